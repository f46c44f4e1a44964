//! Trees of files that are copied: directories of this machine, and file systems in containers.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use weir_client::Context;
use weir_dfs::{Dfs, Kind, Node, Ownership, SetAttributes};

use super::file_system::failed;
use super::listing;
use crate::error::CliError;
use crate::output::name_of;

/// Something in a tree.
#[derive(Clone, Debug)]
pub enum Item {
    /// A path of this machine.
    Local(PathBuf),
    /// An inode of a container.
    Stored(Box<Node>),
}

impl Item {
    /// What an item is, and its permission bits.
    pub fn form(&self) -> Result<(Form, u32), CliError> {
        match self {
            Self::Local(path) => {
                let about = fs::symlink_metadata(path).map_err(local(path))?;
                let kind = about.file_type();
                let form = if kind.is_dir() {
                    Form::Directory
                } else if kind.is_file() {
                    Form::File
                } else if kind.is_symlink() {
                    Form::Link(fs::read_link(path).map_err(local(path))?.into_os_string().into_vec())
                } else {
                    Form::Other
                };
                Ok((form, about.mode() & 0o7777))
            }
            Self::Stored(node) => {
                let form = match node.record.kind {
                    Kind::Directory => Form::Directory,
                    Kind::File => Form::File,
                    Kind::Symlink => Form::Link(node.record.target.clone()),
                    Kind::Fifo | Kind::Socket | Kind::BlockDevice | Kind::CharacterDevice => Form::Other,
                };
                Ok((form, node.record.mode))
            }
        }
    }
}

/// What an item is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// A pipe, a socket or a device.
    Other,
}

/// A tree.
pub enum Tree<'a> {
    /// This machine's.
    Local,
    /// That of a container.
    Stored {
        /// What reaches the engines.
        context: &'a Context,
        /// The file system.
        dfs: Box<Dfs>,
    },
}

fn local(path: &std::path::Path) -> impl Fn(io::Error) -> CliError {
    let shown = name_of(path.as_os_str().as_bytes());
    move |error| CliError::named(shown.clone(), error)
}

fn stored(name: &[u8]) -> impl Fn(weir_dfs::Error) -> CliError {
    let shown = name_of(name);
    move |error| failed(&shown, &error)
}

fn mixed() -> CliError {
    CliError::Usage("an item of another tree".into())
}

impl Tree<'_> {
    /// The item at a path; `None` when there is none. Symbolic links are followed.
    pub async fn find(&self, path: &[u8]) -> Result<Option<Item>, CliError> {
        match self {
            Self::Local => {
                let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
                match fs::metadata(&path) {
                    Ok(_) => Ok(Some(Item::Local(path))),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(local(&path)(error)),
                }
            }
            Self::Stored { context, dfs } => match dfs.resolve(context, path, true).await {
                Ok(node) => Ok(Some(Item::Stored(Box::new(node)))),
                Err(weir_dfs::Error::NotFound(_)) => Ok(None),
                Err(error) => Err(stored(path)(error)),
            },
        }
    }

    /// Whether an item of this tree is one of another tree.
    pub fn is_same(&self, item: &Item, other_tree: &Self, other: &Item) -> bool {
        match ((self, item), (other_tree, other)) {
            ((Self::Local, Item::Local(path)), (Self::Local, Item::Local(other))) => path == other,
            (
                (Self::Stored { dfs, .. }, Item::Stored(node)),
                (Self::Stored { dfs: other_dfs, .. }, Item::Stored(other)),
            ) => dfs.container().id() == other_dfs.container().id() && node.oid() == other.oid(),
            _ => false,
        }
    }

    /// Names and items of a directory, in the order of names.
    pub async fn list(&self, directory: &Item) -> Result<Vec<(Vec<u8>, Item)>, CliError> {
        let mut found = Vec::new();
        match (self, directory) {
            (Self::Local, Item::Local(path)) => {
                for entry in fs::read_dir(path).map_err(local(path))? {
                    let entry = entry.map_err(local(path))?;
                    found.push((entry.file_name().into_vec(), Item::Local(entry.path())));
                }
            }
            (Self::Stored { context, dfs }, Item::Stored(node)) => {
                let wrong = stored(&node.name);
                let nodes = listing::entries(context, dfs, node, &|| ()).await.map_err(wrong)?;
                found.extend(nodes.into_iter().map(|node| (node.name.clone(), Item::Stored(Box::new(node)))));
            }
            _ => return Err(mixed()),
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// A new directory, or the one that is there.
    pub async fn make_directory(&self, parent: &Item, name: &[u8]) -> Result<Item, CliError> {
        match (self, parent) {
            (Self::Local, Item::Local(parent)) => {
                let path = parent.join(std::ffi::OsStr::from_bytes(name));
                match fs::create_dir(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                    made => made.map_err(local(&path))?,
                }
                Ok(Item::Local(path))
            }
            (Self::Stored { context, dfs }, Item::Stored(parent)) => {
                let wrong = stored(name);
                let node = match dfs.mkdir(context, parent, name, own(0o755)).await {
                    Err(weir_dfs::Error::Exists(_)) => {
                        let node = dfs.lookup(context, parent, name).await.map_err(&wrong)?;
                        if node.is_directory() {
                            node
                        } else {
                            return Err(wrong(weir_dfs::Error::NotDirectory(name_of(name))));
                        }
                    }
                    made => made.map_err(&wrong)?,
                };
                Ok(Item::Stored(Box::new(node)))
            }
            _ => Err(mixed()),
        }
    }

    /// A new symbolic link.
    pub async fn make_link(&self, parent: &Item, name: &[u8], target: &[u8]) -> Result<(), CliError> {
        match (self, parent) {
            (Self::Local, Item::Local(parent)) => {
                let path = parent.join(std::ffi::OsStr::from_bytes(name));
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &path).map_err(local(&path))
            }
            (Self::Stored { context, dfs }, Item::Stored(parent)) => {
                let made = dfs.symlink(context, parent, name, target, own(0o777)).await;
                made.map(drop).map_err(stored(name))
            }
            _ => Err(mixed()),
        }
    }

    /// A new file, or the one that is there, emptied.
    pub async fn make_file(&self, parent: &Item, name: &[u8]) -> Result<Content, CliError> {
        match (self, parent) {
            (Self::Local, Item::Local(parent)) => {
                let path = parent.join(std::ffi::OsStr::from_bytes(name));
                let file = File::create(&path).map_err(local(&path))?;
                Ok(Content::Local(path, file))
            }
            (Self::Stored { context, dfs }, Item::Stored(parent)) => {
                let wrong = stored(name);
                let node = match dfs.create(context, parent, name, own(0o644)).await {
                    Err(weir_dfs::Error::Exists(_)) => {
                        let node = dfs.lookup(context, parent, name).await.map_err(&wrong)?;
                        dfs.file(&node).map_err(&wrong)?.truncate(context, 0).await.map_err(&wrong)?;
                        node
                    }
                    made => made.map_err(&wrong)?,
                };
                Ok(Content::Stored(node.name.clone(), dfs.file(&node).map_err(wrong)?))
            }
            _ => Err(mixed()),
        }
    }

    /// A file, to be read.
    pub fn open(&self, item: &Item) -> Result<Content, CliError> {
        match (self, item) {
            (Self::Local, Item::Local(path)) => {
                Ok(Content::Local(path.clone(), File::open(path).map_err(local(path))?))
            }
            (Self::Stored { dfs, .. }, Item::Stored(node)) => {
                Ok(Content::Stored(node.name.clone(), dfs.file(node).map_err(stored(&node.name))?))
            }
            _ => Err(mixed()),
        }
    }

    /// Bytes from `offset` on; 0 at the end.
    pub async fn read(&self, from: &Content, offset: u64, into: &mut [u8]) -> Result<usize, CliError> {
        match (self, from) {
            (Self::Local, Content::Local(path, file)) => file.read_at(into, offset).map_err(local(path)),
            (Self::Stored { context, .. }, Content::Stored(name, file)) => {
                file.read(context, offset, into, None).await.map_err(stored(name))
            }
            _ => Err(mixed()),
        }
    }

    /// Writes bytes at `offset`.
    pub async fn write(&self, to: &Content, offset: u64, data: &[u8]) -> Result<(), CliError> {
        match (self, to) {
            (Self::Local, Content::Local(path, file)) => file.write_all_at(data, offset).map_err(local(path)),
            (Self::Stored { context, .. }, Content::Stored(name, file)) => {
                file.write(context, offset, data).await.map(drop).map_err(stored(name))
            }
            _ => Err(mixed()),
        }
    }

    /// Sets the permission bits of an entry that isn't a link.
    pub async fn set_mode(&self, parent: &Item, name: &[u8], mode: u32) -> Result<(), CliError> {
        match (self, parent) {
            (Self::Local, Item::Local(parent)) => {
                let path = parent.join(std::ffi::OsStr::from_bytes(name));
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(local(&path))
            }
            (Self::Stored { context, dfs }, Item::Stored(parent)) => {
                let wrong = stored(name);
                let node = dfs.lookup(context, parent, name).await.map_err(&wrong)?;
                let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                dfs.set_attributes(context, &node, &change).await.map(drop).map_err(wrong)
            }
            _ => Err(mixed()),
        }
    }
}

/// The content of a file.
pub enum Content {
    /// Of this machine.
    Local(PathBuf, File),
    /// Of a container, with its name.
    Stored(Vec<u8>, weir_dfs::File),
}

fn own(mode: u32) -> Ownership {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Ownership { mode, uid, gid }
}
