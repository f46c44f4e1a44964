//! `fs` commands: a POSIX container's files without a mount.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use weir_client::{Context, Rights};
use weir_dfs::{Dfs, Kind, Node};
use weir_fuse::report::{FailureKind, MountFailure};

use crate::connection::session::{self, Session};
use crate::error::CliError;
use crate::output::{self, Answer, Output, fields, name_of, table};
use crate::values::{self, Size, base64};

/// Entries asked for at a time.
const STEP: usize = 1024;

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
    let names = match &command {
        FsCommand::Df(names) => names.clone(),
        FsCommand::Ls(path) | FsCommand::Cat(path) => path.file_system.clone(),
    };
    let whole = (names.pool.as_str(), names.container.as_str());
    session::with_container(whole, Rights::READ, attach, patience, output, async |session| {
        let dfs = Dfs::mount(session.context, session.container)
            .await
            .map_err(|error| unusable(&names.container, &error))?;
        match command {
            FsCommand::Df(_) => df(session.context, &dfs, &names.container).await,
            FsCommand::Ls(path) => ls(session, &dfs, path.path.as_bytes()).await,
            FsCommand::Cat(path) => cat(session, &dfs, path.path.as_bytes()).await,
        }
    })
}

/// A container that can't be opened as a file system; one that has none is refused as `weir mount` refuses it.
fn unusable(container: &str, error: &weir_dfs::Error) -> CliError {
    match error {
        weir_dfs::Error::NotPosix(_) | weir_dfs::Error::Invalid(_) => {
            CliError::Mount(MountFailure::new(FailureKind::FailedPrecondition, error))
        }
        other => failed(container, other),
    }
}

fn failed(what: &str, error: &weir_dfs::Error) -> CliError {
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

fn letter(kind: Kind) -> char {
    match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    }
}

async fn ls(session: &Session<'_>, dfs: &Dfs, path: &[u8]) -> Result<Answer, CliError> {
    let context = session.context;
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let node = dfs.resolve(context, path, true).await.map_err(wrong)?;
    let mut nodes: Vec<Node> = Vec::new();
    if node.is_directory() {
        let mut stream = dfs.open_directory(&node).map_err(wrong)?;
        let mut cookie = 0;
        loop {
            let entries = dfs.read_directory(context, &mut stream, cookie, STEP).await.map_err(wrong)?;
            session.goes_on();
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            nodes.extend(entries.iter().map(|entry| entry.node.clone()));
        }
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
