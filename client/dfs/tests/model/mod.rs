//! A file system in a few maps, and random operations that it and the real one both do.

use std::collections::BTreeMap;

use weir_client::Context;
use weir_dfs::{Dfs, Error, Kind, Node, Ownership, Replace, SetAttributes};
use weir_runtime::random::Random;

/// A path: few names and little depth, so that operations meet.
pub type Path = Vec<&'static str>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LENGTH_MAX: u64 = 3000;

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    File { content: Vec<u8>, mode: u32 },
    Directory,
    Link(Vec<u8>),
}

/// An operation.
#[derive(Clone, Debug)]
pub enum Step {
    Create(Path),
    Mkdir(Path),
    Symlink(Path),
    Write(Path, u64, Vec<u8>),
    Truncate(Path, u64),
    Chmod(Path, u32),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path),
    Read(Path),
    List(Path),
}

/// What came of it: the errno, or what was read.
pub type Outcome = Result<Vec<u8>, i32>;

fn draw_path(random: &Random) -> Path {
    let depth = 1 + random.below(3);
    (0..depth).map(|_| NAMES[usize::try_from(random.below(4)).expect("small")]).collect()
}

impl Step {
    pub fn draw(random: &Random) -> Self {
        let path = draw_path(random);
        let byte = u8::try_from(1 + random.below(255)).expect("a byte");
        match random.below(16) {
            0..=2 => Self::Create(path),
            3..=4 => Self::Mkdir(path),
            5 => Self::Symlink(path),
            6..=7 => {
                let len = usize::try_from(1 + random.below(500)).expect("small");
                Self::Write(path, random.below(LENGTH_MAX), vec![byte; len])
            }
            8 => Self::Truncate(path, random.below(LENGTH_MAX)),
            9 => Self::Chmod(path, u32::from(byte)),
            10 => Self::Unlink(path),
            11 => Self::Rmdir(path),
            12..=13 => Self::Rename(path, draw_path(random)),
            14 => Self::Read(path),
            _ => Self::List(path),
        }
    }

    /// Does it to the real file system.
    pub async fn run(&self, context: &Context, dfs: &Dfs) -> Outcome {
        self.try_run(context, dfs).await.map_err(|error| error.errno())
    }

    async fn try_run(&self, context: &Context, dfs: &Dfs) -> Result<Vec<u8>, Error> {
        let owner = Ownership { mode: 0o644, uid: 1, gid: 1 };
        let done = Vec::new();
        match self {
            Self::Create(path) => {
                let (directory, name) = parent(context, dfs, path).await?;
                dfs.create(context, &directory, name, owner).await.map(|_| done)
            }
            Self::Mkdir(path) => {
                let (directory, name) = parent(context, dfs, path).await?;
                dfs.mkdir(context, &directory, name, owner).await.map(|_| done)
            }
            Self::Symlink(path) => {
                let (directory, name) = parent(context, dfs, path).await?;
                dfs.symlink(context, &directory, name, b"target", owner).await.map(|_| done)
            }
            Self::Write(path, offset, data) => {
                let node = find(context, dfs, path).await?;
                dfs.file(&node)?.write(context, *offset, data).await.map(|_| done)
            }
            Self::Truncate(path, size) => {
                let node = find(context, dfs, path).await?;
                let change = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                let (_, stat) = dfs.set_attributes(context, &node, &change).await?;
                assert_eq!(stat.size, *size);
                Ok(done)
            }
            Self::Chmod(path, mode) => {
                let node = find(context, dfs, path).await?;
                let change = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                dfs.set_attributes(context, &node, &change).await.map(|_| done)
            }
            Self::Unlink(path) => {
                let (directory, name) = parent(context, dfs, path).await?;
                let removed = dfs.unlink(context, &directory, name).await?;
                dfs.reclaim(context, &removed).await.map(|()| done)
            }
            Self::Rmdir(path) => {
                let (directory, name) = parent(context, dfs, path).await?;
                let removed = dfs.rmdir(context, &directory, name).await?;
                dfs.reclaim(context, &removed).await.map(|()| done)
            }
            Self::Rename(from, to) => {
                let (directory, name) = parent(context, dfs, from).await?;
                dfs.lookup(context, &directory, name).await?;
                let (target, new_name) = parent(context, dfs, to).await?;
                let (_, replaced) =
                    dfs.rename(context, &directory, name, &target, new_name, Replace::Allow).await?;
                match replaced {
                    Some(removed) => dfs.reclaim(context, &removed).await.map(|()| done),
                    None => Ok(done),
                }
            }
            Self::Read(path) => {
                let node = find(context, dfs, path).await?;
                read(context, dfs, &node).await
            }
            Self::List(path) => {
                let node = find(context, dfs, path).await?;
                Ok(list(context, dfs, &node).await?.into_iter().flat_map(|node| node.name).collect())
            }
        }
    }
}

async fn find(context: &Context, dfs: &Dfs, path: &[&str]) -> Result<Node, Error> {
    let mut node = dfs.root().clone();
    for name in path {
        node = dfs.lookup(context, &node, name.as_bytes()).await?;
    }
    Ok(node)
}

async fn parent<'p>(context: &Context, dfs: &Dfs, path: &'p [&str]) -> Result<(Node, &'p [u8]), Error> {
    let (name, folders) = path.split_last().expect("paths have names");
    Ok((find(context, dfs, folders).await?, name.as_bytes()))
}

async fn read(context: &Context, dfs: &Dfs, node: &Node) -> Result<Vec<u8>, Error> {
    let file = dfs.file(node)?;
    let mut bytes = vec![9; 2 * usize::try_from(LENGTH_MAX).expect("small")];
    let len = file.read(context, 0, &mut bytes, None).await?;
    bytes.truncate(len);
    Ok(bytes)
}

async fn list(context: &Context, dfs: &Dfs, node: &Node) -> Result<Vec<Node>, Error> {
    let (mut stream, mut cookie, mut found) = (dfs.open_directory(node)?, 0, Vec::new());
    loop {
        let entries = dfs.read_directory(context, &mut stream, cookie, 3).await?;
        let Some(last) = entries.last() else { return Ok(found) };
        cookie = last.cookie;
        found.extend(entries.iter().map(|entry| entry.node.clone()));
    }
}

/// Everything the real file system holds.
pub async fn walk(context: &Context, dfs: &Dfs) -> BTreeMap<String, Thing> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), dfs.root().clone())];
    while let Some((path, node)) = open.pop() {
        for child in list(context, dfs, &node).await.expect("lists") {
            let path = format!("{path}/{}", String::from_utf8_lossy(&child.name));
            let thing = match child.record.kind {
                Kind::Directory => {
                    open.push((path.clone(), child));
                    Thing::Directory
                }
                Kind::Symlink => Thing::Link(child.record.target.clone()),
                _ => Thing::File {
                    content: read(context, dfs, &child).await.expect("reads"),
                    mode: child.record.mode,
                },
            };
            found.insert(path, thing);
        }
    }
    found
}

/// The model: what is at each path.
pub struct Model {
    things: BTreeMap<Path, Thing>,
}

impl Model {
    pub fn new() -> Self {
        Self { things: BTreeMap::from([(Vec::new(), Thing::Directory)]) }
    }

    pub fn contents(&self) -> BTreeMap<String, Thing> {
        let named = self.things.iter().filter(|(path, _)| !path.is_empty());
        named.map(|(path, thing)| (format!("/{}", path.join("/")), thing.clone())).collect()
    }

    fn find(&self, path: &[&'static str]) -> Result<&Thing, i32> {
        for depth in 0..path.len() {
            match self.things.get(&path[..depth]) {
                None => return Err(2),
                Some(Thing::Directory) => {}
                Some(_) => return Err(20),
            }
        }
        self.things.get(path).ok_or(2)
    }

    fn parent(&self, path: &[&'static str]) -> Result<(), i32> {
        match self.find(&path[..path.len() - 1])? {
            Thing::Directory => Ok(()),
            _ => Err(20),
        }
    }

    fn file(&mut self, path: &Path) -> Result<(&mut Vec<u8>, &mut u32), i32> {
        self.find(path)?;
        match self.things.get_mut(path) {
            Some(Thing::File { content, mode }) => Ok((content, mode)),
            Some(Thing::Directory) => Err(21),
            _ => Err(22),
        }
    }

    fn insert(&mut self, path: &Path, thing: Thing) -> Outcome {
        self.parent(path)?;
        if self.things.contains_key(path) {
            return Err(17);
        }
        self.things.insert(path.clone(), thing);
        Ok(Vec::new())
    }

    fn is_empty(&self, path: &Path) -> bool {
        !self.things.keys().any(|other| other.len() > path.len() && other.starts_with(path))
    }

    /// Does it to the model.
    pub fn apply(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Create(path) => self.insert(path, Thing::File { content: Vec::new(), mode: 0o644 }),
            Step::Mkdir(path) => self.insert(path, Thing::Directory),
            Step::Symlink(path) => self.insert(path, Thing::Link(b"target".to_vec())),
            Step::Write(path, offset, data) => {
                let (content, _) = self.file(path)?;
                let start = usize::try_from(*offset).expect("small");
                content.resize(content.len().max(start + data.len()), 0);
                content[start..start + data.len()].copy_from_slice(data);
                Ok(Vec::new())
            }
            Step::Truncate(path, size) => {
                let (content, _) = self.file(path)?;
                content.resize(usize::try_from(*size).expect("small"), 0);
                Ok(Vec::new())
            }
            Step::Chmod(path, mode) => {
                self.find(path)?;
                if let Some(Thing::File { mode: held, .. }) = self.things.get_mut(path) {
                    *held = *mode;
                }
                Ok(Vec::new())
            }
            Step::Unlink(path) => {
                self.parent(path)?;
                if *self.find(path)? == Thing::Directory {
                    return Err(21);
                }
                self.things.remove(path);
                Ok(Vec::new())
            }
            Step::Rmdir(path) => {
                self.parent(path)?;
                if *self.find(path)? != Thing::Directory {
                    return Err(20);
                }
                if !self.is_empty(path) {
                    return Err(39);
                }
                self.things.remove(path);
                Ok(Vec::new())
            }
            Step::Rename(from, to) => self.rename(from, to),
            Step::Read(path) => self.file(path).map(|(content, _)| content.clone()),
            Step::List(path) => {
                if *self.find(path)? != Thing::Directory {
                    return Err(20);
                }
                let inside = |other: &&Path| other.len() == path.len() + 1 && other.starts_with(path);
                let names = self.things.keys().filter(inside).filter_map(|other| other.last());
                Ok(names.flat_map(|name| name.bytes()).collect())
            }
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Outcome {
        self.parent(from)?;
        let source = self.find(from)?.clone();
        self.parent(to)?;
        if from == to {
            return Ok(Vec::new());
        }
        if source == Thing::Directory && to.starts_with(from) {
            return Err(22);
        }
        if let Some(target) = self.things.get(to) {
            match (&source, target) {
                (Thing::Directory, Thing::Directory) if !self.is_empty(to) => return Err(39),
                (Thing::Directory, Thing::Directory) => {}
                (Thing::Directory, _) => return Err(20),
                (_, Thing::Directory) => return Err(21),
                _ => {}
            }
        }
        let moved: Vec<Path> = self.things.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            if let Some(thing) = self.things.remove(&path) {
                let renamed: Path = to.iter().chain(&path[from.len()..]).copied().collect();
                self.things.insert(renamed, thing);
            }
        }
        Ok(Vec::new())
    }
}
