//! `fs copy`: files and directories between containers and this machine.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use weir_client::{Attach, Container, Context, Pool, Rights};
use weir_dfs::Dfs;

use super::file_system::unusable;
use super::tree::{Form, Item, Tree};
use crate::error::CliError;
use crate::output::{Answer, name_of};

/// Bytes copied at a time.
const STEP: usize = 4 << 20;

/// Longest time for giving handles back: engines drop those of a client that is gone.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// What schemes name containers.
const SCHEMES: [&str; 2] = ["weir://", "daos://"];

/// Where from and where to.
#[derive(Args, Debug, Clone)]
pub struct CopyArguments {
    /// What is copied: a path, or `weir://POOL/CONTAINER/PATH` (also `daos://…`).
    #[arg(short, long = "src", value_parser = parse_place)]
    pub source: Place,
    /// Where it is copied to, as with cp: into a directory that is there, else under this name.
    #[arg(short, long = "dst", value_parser = parse_place)]
    pub destination: Place,
}

/// A place in a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A path of this machine.
    Local(String),
    /// A path in a container.
    Stored {
        /// Label or UUID of the pool.
        pool: String,
        /// Label or UUID of the container.
        container: String,
        /// Path from the container's root.
        path: String,
    },
}

fn parse_place(text: &str) -> Result<Place, String> {
    let Some(rest) = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) else {
        if text.is_empty() {
            return Err("an empty path names nothing".to_owned());
        }
        return Ok(Place::Local(text.to_owned()));
    };
    let mut parts = rest.splitn(3, '/');
    let mut named = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
    match (named(), named()) {
        (Some(pool), Some(container)) => {
            let path = format!("/{}", parts.next().unwrap_or(""));
            Ok(Place::Stored { pool, container, path })
        }
        _ => Err(format!("\"{text}\" is not weir://POOL/CONTAINER/PATH")),
    }
}

impl Place {
    fn path(&self) -> &[u8] {
        match self {
            Self::Local(path) | Self::Stored { path, .. } => path.as_bytes(),
        }
    }
}

/// What was copied.
#[derive(Default)]
struct Copied {
    directories: u64,
    files: u64,
    links: u64,
    bytes: u64,
    skipped: u64,
}

/// Copies.
///
/// # Errors
/// When something can't be read, written or reached. A part may be copied then.
pub fn run(arguments: &CopyArguments, attach: &Path, patience: Duration) -> Result<Answer, CliError> {
    if let (Place::Local(_), Place::Local(_)) = (&arguments.source, &arguments.destination) {
        return Err(CliError::Usage("neither path is in a container: use cp".into()));
    }
    let context = Context::real(&Attach::load(Some(attach)).map_err(weir_client::Error::from)?)?;
    context.set_deadline(patience);
    let copied = context.block_on(async {
        let source = Opened::open(&context, &arguments.source, Rights::READ).await?;
        let wanted = Rights::READ.union(Rights::WRITE);
        let copied = match Opened::open(&context, &arguments.destination, wanted).await {
            Ok(destination) => {
                let places = (arguments.source.path(), arguments.destination.path());
                let copied = copy((&source.tree, &destination.tree), places).await;
                destination.close(&context).await;
                copied
            }
            Err(error) => Err(error),
        };
        source.close(&context).await;
        copied
    })?;
    let Copied { directories, files, links, bytes, skipped } = copied;
    let text = format!(
        "{directories} directories, {files} files ({bytes} bytes) and {links} symbolic links copied{}\n",
        if skipped > 0 { format!("; {skipped} pipes, sockets and devices left out") } else { String::new() }
    );
    let response = json!({"copy_stats": {"num_dirs": directories, "num_files": files, "num_links": links,
        "num_bytes": bytes, "num_skipped": skipped}});
    Ok(Answer::new(response, text))
}

/// A tree with the handles that it needs.
struct Opened<'a> {
    tree: Tree<'a>,
    handles: Option<(Pool, Container)>,
}

impl<'a> Opened<'a> {
    async fn open(context: &'a Context, place: &Place, rights: Rights) -> Result<Self, CliError> {
        let Place::Stored { pool, container: label, .. } = place else {
            return Ok(Self { tree: Tree::Local, handles: None });
        };
        let pool = Pool::connect(context, pool, rights).await?;
        let container = match Container::open(context, &pool, label, rights).await {
            Ok(container) => container,
            Err(error) => {
                // The error counts, whatever becomes of the handle.
                let _ = pool.disconnect(context).await;
                return Err(error.into());
            }
        };
        match Dfs::mount(context, &container).await {
            Ok(dfs) => Ok(Self {
                tree: Tree::Stored { context, dfs: Box::new(dfs) },
                handles: Some((pool, container)),
            }),
            Err(error) => {
                Self { tree: Tree::Local, handles: Some((pool, container)) }.close(context).await;
                Err(unusable(label, &error))
            }
        }
    }

    async fn close(self, context: &Context) {
        // What was copied counts, whatever becomes of the handles.
        context.set_limit(Some(CLOSE_LIMIT));
        if let Some((pool, container)) = self.handles {
            let _ = container.close(context).await;
            let _ = pool.disconnect(context).await;
        }
        context.set_limit(None);
    }
}

async fn copy((from, to): (&Tree<'_>, &Tree<'_>), places: (&[u8], &[u8])) -> Result<Copied, CliError> {
    let missing = |path: &[u8]| CliError::NotFound(format!("{}: no such file or directory", name_of(path)));
    let top = from.find(places.0).await?.ok_or_else(|| missing(places.0))?;
    let mut copied = Copied::default();
    let there = to.find(places.1).await?;
    let target = match there {
        Some(item) if followed(&item)?.form()?.0 == Form::Directory => Some(item),
        // A file that is written anew, or nothing.
        _ => None,
    };
    let name = base_name(places.0);
    match (target, name, followed(&top)?.form()?.0) {
        // A whole container goes to the directory itself.
        (Some(directory), None, Form::Directory) => {
            copy_inside((from, to), &followed(&top)?, &directory, &mut copied).await?;
        }
        (Some(directory), Some(name), _) => {
            copy_item((from, to), (&followed(&top)?, name), &directory, &mut copied).await?;
        }
        _ => {
            let wrong = || missing(places.1);
            let (above, name) = split_path(places.1).ok_or_else(wrong)?;
            let parent = to.find(above).await?.ok_or_else(wrong)?;
            copy_item((from, to), (&followed(&top)?, name), &parent, &mut copied).await?;
        }
    }
    Ok(copied)
}

/// An item that a path has led to: a link of this machine is what it names.
fn followed(item: &Item) -> Result<Item, CliError> {
    match item {
        Item::Local(path) => {
            let shown = name_of(path.as_os_str().as_bytes());
            Ok(Item::Local(path.canonicalize().map_err(|error| CliError::named(shown, error))?))
        }
        Item::Stored(node) => Ok(Item::Stored(node.clone())),
    }
}

/// The last component of a path that has one.
fn base_name(path: &[u8]) -> Option<&[u8]> {
    split_path(path).map(|(_, name)| name).filter(|name| !matches!(*name, b"." | b".."))
}

/// A path's directory and its last component.
fn split_path(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => Some((b"/", &path[1..])),
        Some(at) => Some((&path[..at], &path[at + 1..])),
        None => Some((b".", path)),
    }
}

/// A directory that is being copied: what is left of it, where it goes, and the mode that it gets at the end, when it needs no
/// more writing to.
struct Level {
    entries: std::vec::IntoIter<(Vec<u8>, Item)>,
    target: Item,
    ending: Option<(Item, Vec<u8>, u32)>,
}

async fn copy_inside(
    (from, to): (&Tree<'_>, &Tree<'_>),
    directory: &Item,
    target: &Item,
    copied: &mut Copied,
) -> Result<(), CliError> {
    for (name, item) in from.list(directory).await? {
        copy_item((from, to), (&item, &name), target, copied).await?;
    }
    Ok(())
}

async fn copy_item(
    (from, to): (&Tree<'_>, &Tree<'_>),
    (item, name): (&Item, &[u8]),
    parent: &Item,
    copied: &mut Copied,
) -> Result<(), CliError> {
    let first = vec![(name.to_vec(), item.clone())].into_iter();
    let mut levels = vec![Level { entries: first, target: parent.clone(), ending: None }];
    let mut top: Option<Item> = None;
    while let Some(level) = levels.last_mut() {
        let Some((name, item)) = level.entries.next() else {
            if let Some((parent, name, mode)) = levels.pop().and_then(|level| level.ending) {
                to.set_mode(&parent, &name, mode).await?;
            }
            continue;
        };
        let parent = level.target.clone();
        match item.form()? {
            (Form::Directory, mode) => {
                if top.as_ref().is_some_and(|top| from.is_same(&item, to, top)) {
                    let shown = name_of(&name);
                    return Err(CliError::Usage(format!("{shown}: a directory can't be copied into itself")));
                }
                let target = to.make_directory(&parent, &name).await?;
                let entries = from.list(&item).await?.into_iter();
                copied.directories += 1;
                top.get_or_insert_with(|| target.clone());
                levels.push(Level { entries, target, ending: Some((parent, name, mode)) });
            }
            (Form::File, mode) => {
                copied.bytes += copy_content((from, to), (&item, &name), &parent).await?;
                to.set_mode(&parent, &name, mode).await?;
                copied.files += 1;
            }
            (Form::Link(target), _) => {
                to.make_link(&parent, &name, &target).await?;
                copied.links += 1;
            }
            (Form::Other, _) => copied.skipped += 1,
        }
    }
    Ok(())
}

async fn copy_content(
    (from, to): (&Tree<'_>, &Tree<'_>),
    (item, name): (&Item, &[u8]),
    parent: &Item,
) -> Result<u64, CliError> {
    let source = from.open(item)?;
    let target = to.make_file(parent, name).await?;
    let (mut offset, mut buffer) = (0, vec![0; STEP]);
    loop {
        let read = from.read(&source, offset, &mut buffer).await?;
        if read == 0 {
            return Ok(offset);
        }
        to.write(&target, offset, &buffer[..read]).await?;
        offset += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_or_names_of_containers() {
        let stored =
            |path: &str| Place::Stored { pool: "tank".into(), container: "home".into(), path: path.into() };
        assert_eq!(parse_place("daos://tank/home"), Ok(stored("/")));
        assert_eq!(parse_place("weir://tank/home/a/b"), Ok(stored("/a/b")));
        assert_eq!(parse_place("/tmp/x"), Ok(Place::Local("/tmp/x".into())));
        for wrong in ["daos://tank", "weir:///home", "daos://", ""] {
            assert!(parse_place(wrong).is_err(), "{wrong}");
        }
        assert_eq!(split_path(b"/a/b/"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!(split_path(b"/a"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(split_path(b"a"), Some((&b"."[..], &b"a"[..])));
        assert_eq!(split_path(b"/"), None);
        assert_eq!(base_name(b"/x/.."), None);
    }
}
