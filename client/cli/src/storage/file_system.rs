//! `fs` commands: a POSIX container's files without a mount.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use weir_client::{Context, ObjectClass, Rights};
use weir_dfs::{Dfs, Kind, Node, SetAttributes};
use weir_fuse::report::{FailureKind, MountFailure};

use super::copy::{self, CopyArguments};
use super::{listing, scan};
use crate::connection::session::{self, Session};
use crate::error::CliError;
use crate::output::{self, Answer, Output, fields, name_of, table};
use crate::values::{self, Size, base64};

/// Bytes read at a time.
const READ_STEP: usize = 4 << 20;

/// What a directory is refused with where a file is needed.
const EISDIR: i32 = 21;

/// Files of a POSIX container.
#[derive(Subcommand, Debug, Clone)]
pub enum FsCommand {
    /// Show the space of a file system.
    #[command(visible_alias = "query")]
    Df(FileSystem),
    /// List a directory.
    Ls(FilePath),
    /// Write a file's content to standard output.
    Cat(FilePath),
    /// Show object class and chunk size of a file or directory.
    GetAttr(FilePath),
    /// Change the mode of a file or directory.
    Chmod(FileMode),
    /// Count what is in a file system, or below a directory of it.
    Scan(FilePath),
    /// Copy files and directories between containers, or between a container and this machine.
    Copy(CopyArguments),
}

/// Names a file system.
#[derive(Args, Debug, Clone)]
pub struct FileSystem {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Container, by label or UUID.
    #[arg(value_parser = values::name)]
    pub container: String,
}

/// Names a file.
#[derive(Args, Debug, Clone)]
pub struct FilePath {
    #[command(flatten)]
    file_system: FileSystem,
    /// Path from the root of the container.
    #[arg(default_value = "/")]
    pub path: OsString,
    /// The same, in the way of `daos`.
    #[arg(long, hide = true, conflicts_with = "path")]
    pub dfs_path: Option<OsString>,
}

impl FilePath {
    fn bytes(&self) -> &[u8] {
        self.dfs_path.as_ref().unwrap_or(&self.path).as_bytes()
    }
}

/// A new mode.
#[derive(Args, Debug, Clone)]
pub struct FileMode {
    #[command(flatten)]
    at: FilePath,
    /// Permission bits in octal.
    #[arg(long, value_parser = parse_mode)]
    pub mode: u32,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("\"{text}\" is not an octal mode from 0 to 7777"))
}

/// Performs a file-system command.
///
/// # Errors
/// When the engines refuse it or cannot be reached.
pub fn run(
    command: FsCommand,
    attach: &Path,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    if output.json && matches!(command, FsCommand::Cat(_)) {
        let reason = "`cat` writes a file's content as it is, which is no JSON: leave out --json";
        return Err(CliError::Usage(reason.into()));
    }
    let (names, rights) = match &command {
        FsCommand::Copy(arguments) => return copy::run(arguments, attach, patience),
        FsCommand::Df(names) => (names.clone(), Rights::READ),
        FsCommand::Chmod(change) => (change.at.file_system.clone(), Rights::READ.union(Rights::WRITE)),
        FsCommand::Ls(path) | FsCommand::Cat(path) | FsCommand::GetAttr(path) | FsCommand::Scan(path) => {
            (path.file_system.clone(), Rights::READ)
        }
    };
    let whole = (names.pool.as_str(), names.container.as_str());
    session::with_container(whole, rights, attach, patience, output, async |session| {
        let dfs = Dfs::mount(session.context, session.container)
            .await
            .map_err(|error| unusable(&names.container, &error))?;
        match command {
            FsCommand::Df(_) => df(session.context, &dfs, &names.container).await,
            FsCommand::Ls(path) => ls(session, &dfs, path.bytes()).await,
            FsCommand::Cat(path) => cat(session, &dfs, path.bytes()).await,
            FsCommand::GetAttr(path) => get_attributes(session.context, &dfs, path.bytes()).await,
            FsCommand::Chmod(FileMode { at, mode }) => {
                change_mode(session.context, &dfs, at.bytes(), mode).await
            }
            FsCommand::Scan(path) => scan::run(session, &dfs, path.bytes()).await,
            FsCommand::Copy(_) => Err(CliError::Usage("a copy opens its containers by itself".into())),
        }
    })
}

/// A container that can't be opened as a file system; one that has none is refused as `weir mount` refuses it.
pub(super) fn unusable(container: &str, error: &weir_dfs::Error) -> CliError {
    match error {
        weir_dfs::Error::NotPosix(_) | weir_dfs::Error::Invalid(_) => {
            CliError::Mount(MountFailure::new(FailureKind::FailedPrecondition, error))
        }
        other => failed(container, other),
    }
}

pub(super) fn failed(what: &str, error: &weir_dfs::Error) -> CliError {
    match error {
        weir_dfs::Error::Client(error) => CliError::Client(error.clone()),
        other => {
            CliError::FileSystem { what: what.to_owned(), message: other.to_string(), errno: other.errno() }
        }
    }
}

async fn df(context: &Context, dfs: &Dfs, container: &str) -> Result<Answer, CliError> {
    let space = dfs.statfs(context).await.map_err(|error| failed(container, &error))?;
    let text = fields(&[
        ("Total", Size(space.total).to_string()),
        ("Used", Size(space.used).to_string()),
        ("Free", Size(space.free).to_string()),
    ]);
    let response = json!({"total_bytes": space.total, "used_bytes": space.used, "free_bytes": space.free});
    Ok(Answer::new(response, text))
}

async fn get_attributes(context: &Context, dfs: &Dfs, path: &[u8]) -> Result<Answer, CliError> {
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let node = dfs.resolve(context, path, true).await.map_err(wrong)?;
    let class =
        ObjectClass::of(node.oid()).map_err(|error| CliError::Damaged(error.to_string()))?.to_string();
    let chunk = node.record.chunk_size;
    let text = fields(&[("Object class", class.clone()), ("Chunk size", Size(chunk).to_string())]);
    Ok(Answer::new(json!({"path": name_of(path), "oclass": class, "chunk_size": chunk}), text))
}

async fn change_mode(context: &Context, dfs: &Dfs, path: &[u8], mode: u32) -> Result<Answer, CliError> {
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let node = dfs.resolve(context, path, true).await.map_err(wrong)?;
    let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let (_, stat) = dfs.set_attributes(context, &node, &change).await.map_err(wrong)?;
    Ok(Answer::new(json!({"mode": stat.mode}), format!("{:04o}\n", stat.mode)))
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::BlockDevice => 'b',
        Kind::CharacterDevice => 'c',
    }
}

async fn ls(session: &Session<'_>, dfs: &Dfs, path: &[u8]) -> Result<Answer, CliError> {
    let context = session.context;
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let node = dfs.resolve(context, path, true).await.map_err(wrong)?;
    let mut nodes: Vec<Node> = Vec::new();
    if node.is_directory() {
        nodes = listing::entries(context, dfs, &node, &|| session.goes_on()).await.map_err(wrong)?;
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
    } else {
        nodes.push(node);
    }
    let (mut rows, mut entries) = (Vec::new(), Vec::new());
    for node in &nodes {
        let stat = dfs.stat_listed(context, node).await.map_err(wrong)?;
        session.goes_on();
        rows.push(vec![
            format!("{}{:04o}", letter(stat.kind), stat.mode),
            format!("{}:{}", stat.uid, stat.gid),
            stat.size.to_string(),
            name_of(&node.name),
        ]);
        let mut entry = json!({"name": String::from_utf8_lossy(&node.name), "type": letter(stat.kind).to_string(), "mode": stat.mode, "uid": stat.uid,
            "gid": stat.gid, "size": stat.size, "mtime_ns": stat.mtime_ns});
        if str::from_utf8(&node.name).is_err() {
            entry["name_base64"] = base64(&node.name).into();
        }
        entries.push(entry);
    }
    Ok(Answer::new(json!(entries), table(&rows)))
}

async fn cat(session: &Session<'_>, dfs: &Dfs, path: &[u8]) -> Result<Answer, CliError> {
    let context = session.context;
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let node = dfs.resolve(context, path, true).await.map_err(wrong)?;
    if node.is_directory() {
        let message = "is a directory; `fs ls` lists it".to_owned();
        return Err(CliError::FileSystem { what: name_of(path), message, errno: EISDIR });
    }
    let file = dfs.file(&node).map_err(wrong)?;
    let (mut offset, mut buffer) = (0_u64, vec![0; READ_STEP]);
    loop {
        let read = file.read(context, offset, &mut buffer, None).await.map_err(wrong)?;
        session.goes_on();
        if read == 0 || !output::write_raw(&buffer[..read])? {
            break;
        }
        offset += read as u64;
    }
    Ok(Answer::new(json!({"bytes": offset}), ""))
}
