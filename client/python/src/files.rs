//! File systems in containers.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use weir_client::Context;
use weir_dfs::{Dfs, Error, Kind, Node, Ownership, Replace, SetAttributes, Stat};
use weir_runtime::join_all;

use crate::container::{Container, bytes_of};
use crate::failure::Failure;
use crate::station;

/// Entries asked for at a time.
const STEP: usize = 1024;

/// Files of one call that are read at a time, and entries whose size is asked for.
const TOGETHER: usize = 32;

/// A mounted file system.
#[pyclass(module = "weir._native", frozen)]
pub struct FileSystem {
    dfs: Arc<Dfs>,
    attach: Option<String>,
}

/// A file that is open.
#[pyclass(module = "weir._native", frozen)]
pub struct File {
    file: weir_dfs::File,
    attach: Option<String>,
}

/// What `stat` of Python needs.
struct About {
    name: Vec<u8>,
    stat: Stat,
    target: Vec<u8>,
}

impl About {
    fn of(node: Node, stat: Stat) -> Self {
        Self { name: node.name, stat, target: node.record.target }
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        found.set_item("name", PyBytes::new(py, &self.name))?;
        found.set_item(
            "type",
            match self.stat.kind {
                Kind::File => "file",
                Kind::Directory => "directory",
                Kind::Symlink => "link",
                Kind::Fifo | Kind::Socket | Kind::BlockDevice | Kind::CharacterDevice => "other",
            },
        )?;
        found.set_item("size", self.stat.size)?;
        found.set_item("mode", self.stat.kind.mode_bits() | self.stat.mode)?;
        found.set_item("uid", self.stat.uid)?;
        found.set_item("gid", self.stat.gid)?;
        found.set_item("ino", self.stat.inode)?;
        found.set_item("mtime_ns", self.stat.mtime_ns)?;
        found.set_item("ctime_ns", self.stat.ctime_ns)?;
        found.set_item("atime_ns", self.stat.atime_ns)?;
        if self.stat.kind == Kind::Symlink {
            found.set_item("target", PyBytes::new(py, &self.target))?;
        }
        Ok(found)
    }
}

/// The directory of a path, and the name in it.
async fn parent_of(context: &Context, dfs: &Dfs, path: &[u8]) -> Result<(Node, Vec<u8>), Error> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b""[..], path),
    };
    if name.is_empty() {
        return Err(Error::Invalid("the root has no name".into()));
    }
    Ok((dfs.resolve(context, above, true).await?, name.to_vec()))
}

/// All of a file.
async fn whole(context: &Context, dfs: &Dfs, path: &[u8]) -> Result<Vec<u8>, Error> {
    let node = dfs.resolve(context, path, true).await?;
    let file = dfs.file(&node)?;
    let (size, _) = file.size_and_epoch(context).await?;
    let size = usize::try_from(size).map_err(|_| Error::TooLarge)?;
    let mut data = vec![0; size];
    let read = file.read(context, 0, &mut data, None).await?;
    data.truncate(read);
    Ok(data)
}

impl FileSystem {
    fn run<T, F>(&self, py: Python<'_>, work: F) -> PyResult<T>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&Context, &Dfs) -> Result<T, Error> + Send + 'static,
    {
        let dfs = Arc::clone(&self.dfs);
        station::run(py, self.attach.as_deref(), async move |context: Context| {
            work(&context, &dfs).await.map_err(Failure::from)
        })
    }
}

/// Owner of what is made: the process's own user.
fn own(mode: u32) -> Ownership {
    let options = weir_client::ContextOptions::default();
    Ownership { mode, uid: options.uid, gid: options.gid }
}

#[pymethods]
impl FileSystem {
    /// Mounts a container of type "posix".
    #[new]
    fn new(py: Python<'_>, container: &Container) -> PyResult<Self> {
        let dfs =
            container.run(py, async |context, opened| Ok(Dfs::mount(&context, &opened.container).await?))?;
        Ok(Self { dfs: Arc::new(dfs), attach: container.attach.clone() })
    }

    /// Attributes of what a path leads to.
    #[pyo3(signature = (path, follow=true))]
    fn stat<'py>(&self, py: Python<'py>, path: Vec<u8>, follow: bool) -> PyResult<Bound<'py, PyDict>> {
        let about = self.run(py, async move |context, dfs| {
            let node = dfs.resolve(context, &path, follow).await?;
            let stat = dfs.stat_listed(context, &node).await?;
            Ok(About::of(node, stat))
        })?;
        about.to_dict(py)
    }

    /// Attributes of all entries of a directory.
    fn list<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = self.run(py, async move |context, dfs| {
            let directory = dfs.resolve(context, &path, true).await?;
            let mut stream = dfs.open_directory(&directory)?;
            let (mut found, mut cookie) = (Vec::new(), 0);
            loop {
                let entries = dfs.read_directory(context, &mut stream, cookie, STEP).await?;
                let Some(last) = entries.last() else { return Ok(found) };
                cookie = last.cookie;
                for some in entries.chunks(TOGETHER) {
                    let stats =
                        join_all(some.iter().map(|entry| dfs.stat_listed(context, &entry.node))).await;
                    for (entry, stat) in some.iter().zip(stats) {
                        found.push(About::of(entry.node.clone(), stat?));
                    }
                }
            }
        })?;
        found.iter().map(|about| about.to_dict(py)).collect()
    }

    /// Makes a directory.
    #[pyo3(signature = (path, mode=0o755))]
    fn mkdir(&self, py: Python<'_>, path: Vec<u8>, mode: u32) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (parent, name) = parent_of(context, dfs, &path).await?;
            dfs.mkdir(context, &parent, &name, own(mode)).await.map(drop)
        })
    }

    /// Makes a symbolic link.
    fn symlink(&self, py: Python<'_>, target: Vec<u8>, path: Vec<u8>) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (parent, name) = parent_of(context, dfs, &path).await?;
            dfs.symlink(context, &parent, &name, &target, own(0o777)).await.map(drop)
        })
    }

    /// Removes a file or link.
    fn unlink(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (parent, name) = parent_of(context, dfs, &path).await?;
            let removed = dfs.unlink(context, &parent, &name).await?;
            dfs.release(context, &[removed], None).await
        })
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (parent, name) = parent_of(context, dfs, &path).await?;
            let removed = dfs.rmdir(context, &parent, &name).await?;
            dfs.release(context, &[removed], None).await
        })
    }

    /// Removes a file, or a directory with all that is in it.
    fn remove_tree(&self, py: Python<'_>, path: Vec<u8>) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (parent, name) = parent_of(context, dfs, &path).await?;
            dfs.remove_tree(context, &parent, &name, None).await.map(drop)
        })
    }

    /// Renames, in place of what has the new name.
    fn rename(&self, py: Python<'_>, from: Vec<u8>, to: Vec<u8>) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let (from, name) = parent_of(context, dfs, &from).await?;
            let (to, new_name) = parent_of(context, dfs, &to).await?;
            let (_, removed) = dfs.rename(context, &from, &name, &to, &new_name, Replace::Allow).await?;
            let removed: Vec<_> = removed.into_iter().collect();
            dfs.release(context, &removed, None).await
        })
    }

    /// Changes permission bits.
    fn chmod(&self, py: Python<'_>, path: Vec<u8>, mode: u32) -> PyResult<()> {
        self.run(py, async move |context, dfs| {
            let node = dfs.resolve(context, &path, true).await?;
            let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            dfs.set_attributes(context, &node, &change).await.map(drop)
        })
    }

    /// Total, used and free bytes.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        self.run(py, async |context, dfs| {
            let space = dfs.statfs(context).await?;
            Ok((space.total, space.used, space.free))
        })
    }

    /// Opens a file: one that is there; a new one with `create`, which `exclusive` insists on; emptied with `truncate`.
    #[pyo3(signature = (path, create=false, exclusive=false, truncate=false, mode=0o644))]
    fn open(
        &self,
        py: Python<'_>,
        path: Vec<u8>,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u32,
    ) -> PyResult<File> {
        let file = self.run(py, async move |context, dfs| {
            if exclusive {
                let (parent, name) = parent_of(context, dfs, &path).await?;
                return dfs.file(&dfs.create(context, &parent, &name, own(mode)).await?);
            }
            let file = match dfs.resolve(context, &path, true).await {
                Err(Error::NotFound(_)) if create => {
                    let (parent, name) = parent_of(context, dfs, &path).await?;
                    match dfs.create(context, &parent, &name, own(mode)).await {
                        // Another client was first.
                        Err(Error::Exists(_)) => dfs.file(&dfs.resolve(context, &path, true).await?)?,
                        new => return dfs.file(&new?),
                    }
                }
                found => dfs.file(&found?)?,
            };
            if truncate {
                file.truncate(context, 0).await?;
            }
            Ok(file)
        })?;
        Ok(File { file, attach: self.attach.clone() })
    }

    /// The contents of files, many at a time.
    fn read_files<'py>(&self, py: Python<'py>, paths: Vec<Vec<u8>>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let found = self.run(py, async move |context, dfs| {
            let mut found = Vec::with_capacity(paths.len());
            for some in paths.chunks(TOGETHER) {
                for data in join_all(some.iter().map(|path| whole(context, dfs, path))).await {
                    found.push(data?);
                }
            }
            Ok(found)
        })?;
        Ok(found.iter().map(|data| PyBytes::new(py, data)).collect())
    }
}

impl File {
    fn run<T, F>(&self, py: Python<'_>, work: F) -> PyResult<T>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&Context, &weir_dfs::File) -> Result<T, Error> + Send + 'static,
    {
        let file = self.file.clone();
        station::run(py, self.attach.as_deref(), async move |context: Context| {
            work(&context, &file).await.map_err(Failure::from)
        })
    }
}

#[pymethods]
impl File {
    /// Bytes from an offset on; fewer at the end of the file.
    fn read<'py>(&self, py: Python<'py>, offset: u64, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        if isize::try_from(count).is_err() {
            return Err(PyValueError::new_err(format!("{count} bytes are beyond any memory")));
        }
        let data = self.run(py, async move |context, file| {
            // Not more than there is: the caller's number may be any.
            let left = file.size_and_epoch(context).await?.0.saturating_sub(offset);
            let mut data =
                vec![0; usize::try_from(left.min(count as u64)).expect("at most what was asked for")];
            let read = file.read(context, offset, &mut data, None).await?;
            data.truncate(read);
            Ok(data)
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// Writes at an offset; stable when it returns.
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data = bytes_of(data)?;
        let count = data.len();
        self.run(py, async move |context, file| file.write(context, offset, &data).await.map(drop))?;
        Ok(count)
    }

    /// Bytes of the file.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, async |context, file| Ok(file.size_and_epoch(context).await?.0))
    }

    /// Cuts the file off, or lengthens it with a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.run(py, async move |context, file| file.truncate(context, size).await)
    }
}
