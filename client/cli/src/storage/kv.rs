//! `kv` commands: values of a key-value object by key.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_client::{Anchor, Conditions, Container, Hints, Kv, ObjectId, Rights, kind};

use crate::connection::session::{self, Session};
use crate::error::CliError;
use crate::output::{self, Answer, Output, lines, name_of};
use crate::values::{self, base64};

/// Keys asked for in one request.
const PAGE_KEYS: u32 = 512;

/// Largest value that a file or standard input may hold, in bytes: one request's payload.
const VALUE_MAX: u64 = weir_proto::limits::PAYLOAD_MAX;

/// Key-value objects.
#[derive(Subcommand, Debug, Clone)]
pub enum KvCommand {
    /// Store a value.
    Put(KvPut),
    /// Print a value.
    Get(KvKey),
    /// List the keys of an object.
    #[command(visible_alias = "ls")]
    List(KvObject),
    /// Remove a key.
    #[command(visible_alias = "rm")]
    Remove(KvKey),
}

/// Names a key-value object.
#[derive(Args, Debug, Clone)]
pub struct KvObject {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Container, by label or UUID.
    #[arg(value_parser = values::name)]
    pub container: String,
    /// Object: its full id as "hi.lo", or a number of your choice.
    #[arg(value_parser = values::name, allow_negative_numbers = true)]
    pub object: String,
}

/// Names a key.
#[derive(Args, Debug, Clone)]
pub struct KvKey {
    #[command(flatten)]
    object: KvObject,
    /// Key.
    #[arg(value_parser = values::raw_name())]
    pub key: OsString,
}

/// A value to be stored.
#[derive(Args, Debug, Clone)]
pub struct KvPut {
    #[command(flatten)]
    at: KvKey,
    /// Value; standard input when neither it nor --file is given.
    #[arg(conflicts_with = "file")]
    pub value: Option<String>,
    /// File with the value.
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Fail when the key has a value already.
    #[arg(long)]
    pub insert: bool,
}

/// An object id as people write it: its two halves, or only the user's number.
pub(super) fn parse_object(text: &str, container: &Container) -> Result<ObjectId, CliError> {
    let wrong =
        || CliError::Usage(format!("\"{text}\" is not an object id: give hi.lo in decimal, or one number"));
    if let Some((hi, lo)) = text.split_once('.') {
        return Ok(ObjectId { hi: hi.parse().map_err(|_| wrong())?, lo: lo.parse().map_err(|_| wrong())? });
    }
    let user = ObjectId { hi: 0, lo: text.parse().map_err(|_| wrong())? };
    Ok(container.encode_object_id(user, kind::KV_HASHED, None, Hints::NONE)?)
}

fn value_of(arguments: &KvPut) -> Result<Vec<u8>, CliError> {
    let mut value = Vec::new();
    match (&arguments.value, &arguments.file) {
        (Some(text), _) => value.extend_from_slice(text.as_bytes()),
        (None, Some(path)) => {
            let file = std::fs::File::open(path)
                .map_err(|error| CliError::named(path.display().to_string(), error))?;
            file.take(VALUE_MAX + 1)
                .read_to_end(&mut value)
                .map_err(|error| CliError::io(path.display().to_string(), error))?;
        }
        (None, None) => {
            std::io::stdin()
                .take(VALUE_MAX + 1)
                .read_to_end(&mut value)
                .map_err(|error| CliError::io("standard input", error))?;
        }
    }
    if value.len() as u64 > VALUE_MAX {
        return Err(CliError::Usage(format!(
            "the value has more than {VALUE_MAX} bytes; keep it in a file or an array"
        )));
    }
    Ok(value)
}

/// Performs a key-value command.
///
/// # Errors
/// When the engines refuse it or cannot be reached.
pub fn run(
    command: KvCommand,
    attach: &Path,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    let (object, rights) = match &command {
        KvCommand::Put(arguments) => (arguments.at.object.clone(), Rights::READ.union(Rights::WRITE)),
        KvCommand::Remove(key) => (key.object.clone(), Rights::READ.union(Rights::WRITE)),
        KvCommand::Get(key) => (key.object.clone(), Rights::READ),
        KvCommand::List(object) => (object.clone(), Rights::READ),
    };
    let value = match &command {
        KvCommand::Put(arguments) => value_of(arguments)?,
        _ => Vec::new(),
    };
    let names = (object.pool.as_str(), object.container.as_str());
    session::with_container(names, rights, attach, patience, output, async |session| {
        let kv = Kv::open(session.container, parse_object(&object.object, session.container)?)?;
        perform(command, &value, session, &kv, output).await
    })
}

async fn perform(
    command: KvCommand,
    value: &[u8],
    session: &Session<'_>,
    kv: &Kv,
    output: Output,
) -> Result<Answer, CliError> {
    let context = session.context;
    match command {
        KvCommand::Put(arguments) => {
            let conditions = if arguments.insert { Conditions::DKEY_INSERT } else { Conditions::NONE };
            kv.put(context, arguments.at.key.as_bytes(), value, conditions).await?;
            Ok(Answer::new(json!({"bytes": value.len()}), ""))
        }
        KvCommand::Get(key) => {
            let value = kv.get(context, key.key.as_bytes()).await?;
            let KvObject { pool, container, object } = &key.object;
            let place = || format!("object {object} of container {container} in pool {pool}");
            let missing =
                || CliError::NotFound(format!("{} has no key \"{}\"", place(), name_of(key.key.as_bytes())));
            let value = value.ok_or_else(missing)?;
            if !output.json {
                // As it is: not every value is text.
                output::write_raw(&value)?;
            }
            Ok(Answer::new(described(&key.key.to_string_lossy(), &value), ""))
        }
        KvCommand::Remove(key) => {
            kv.remove(context, key.key.as_bytes(), Conditions::PUNCH).await?;
            Ok(Answer::new(serde_json::Value::Null, ""))
        }
        KvCommand::List(_) => {
            let mut keys = Vec::new();
            let mut anchor = Anchor::START;
            loop {
                let page = kv.list(context, &anchor, PAGE_KEYS).await?;
                session.goes_on();
                keys.extend(page.entries.into_iter().map(|entry| entry.key));
                anchor = page.next;
                if anchor.is_end() {
                    break;
                }
            }
            let text = lines(keys.iter().map(|key| name_of(key)));
            let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
            Ok(Answer::new(json!(keys), text))
        }
    }
}

/// A value for scripts: as text, and in base64 when it isn't any.
fn described(key: &str, value: &[u8]) -> Value {
    let text = str::from_utf8(value).ok();
    let encoded = text.is_none().then(|| base64(value));
    json!({"key": key, "value": text, "base64": encoded, "bytes": value.len()})
}
