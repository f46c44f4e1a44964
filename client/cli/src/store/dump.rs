//! `weir store dump`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use uuid::Uuid;
use weir_inspect::{Dumped, Field, Filter, Line, Part};
use weir_proto::{ContainerId, ObjectId, PoolId};

use super::{places, with_store};
use crate::error::CliError;
use crate::output::{Answer, Output, Stream};

/// What is dumped.
#[derive(Args, Debug, Clone)]
pub struct DumpArguments {
    /// File or block device of a target.
    device: PathBuf,
    /// What to print.
    #[arg(long, value_enum, default_value = "entries")]
    part: PartName,
    /// With entries: only those of this pool (UUID).
    #[arg(long)]
    pool: Option<Uuid>,
    /// With entries: only those of this container (UUID).
    #[arg(long)]
    container: Option<Uuid>,
    /// With entries: only those of this object (`hi.lo`).
    #[arg(long)]
    object: Option<String>,
    /// With entries: go on from this key, which an earlier dump named (hexadecimal).
    #[arg(long)]
    from: Option<String>,
    /// With `--part bytes`: first byte, e.g. one that a check named; the line of 16 bytes that has it is printed whole.
    #[arg(long)]
    offset: Option<u64>,
    /// Most lines.
    #[arg(long, default_value_t = 1000)]
    limit: usize,
}

/// Parts that can be dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartName {
    /// Entries of the index, as an open would find them.
    Entries,
    /// Nodes of the index.
    Nodes,
    /// Batches of the log and their changes.
    Log,
    /// Blocks that the space map marks as used.
    Map,
    /// Bytes of the device.
    Bytes,
}

/// Refuses arguments that the part doesn't heed: what is printed would not be what was asked for.
fn refuse_idle(arguments: &DumpArguments) -> Result<(), CliError> {
    use PartName::{Bytes, Entries};
    let idle = [
        ("--pool", arguments.pool.is_some(), Entries),
        ("--container", arguments.container.is_some(), Entries),
        ("--object", arguments.object.is_some(), Entries),
        ("--from", arguments.from.is_some(), Entries),
        ("--offset", arguments.offset.is_some(), Bytes),
    ];
    let name = |part: PartName| part.to_possible_value().map(|value| value.get_name().to_owned());
    match idle.into_iter().find(|(_, is_given, part)| *is_given && *part != arguments.part) {
        None => Ok(()),
        Some((argument, _, part)) => Err(CliError::Usage(format!(
            "{argument} goes with --part {}, not with --part {}",
            name(part).unwrap_or_default(),
            name(arguments.part).unwrap_or_default()
        ))),
    }
}

/// Prints lines as they are found, and at the end what is missing among them.
///
/// # Errors
/// When the device can't be read or holds no store, or not what is asked for.
pub fn dump(arguments: &DumpArguments, output: Output) -> Result<Answer, CliError> {
    refuse_idle(arguments)?;
    let part = match arguments.part {
        PartName::Entries => Part::Entries,
        PartName::Nodes => Part::Nodes,
        PartName::Log => Part::Log,
        PartName::Map => Part::Map,
        PartName::Bytes => Part::Bytes { offset: arguments.offset.unwrap_or(0) },
    };
    let filter = Filter {
        pool: arguments.pool.map(PoolId),
        container: arguments.container.map(ContainerId),
        object: arguments.object.as_deref().map(object).transpose()?,
        from: arguments.from.as_deref().map_or(Ok(Vec::new()), unhex)?,
        limit: arguments.limit,
    };
    let mut stream = Stream::new(output);
    let mut print = |line: Line| stream.push(|| line_text(&line), || line_json(&line));
    let found = with_store(&arguments.device, async |store| store.dump(part, &filter, &mut print).await);
    let (dumped, failure) = match found {
        Ok(dumped) => {
            let failure = incomplete(&arguments.device, &dumped);
            (dumped, failure)
        }
        Err(error) if stream.has_begun() => (Dumped::default(), Some(error)),
        Err(error) => return Err(error),
    };
    let next = dumped.next.map(|key| hex(&key));
    let mut text = String::new();
    if let Some(next) = &next {
        let _ = writeln!(text, "there is more: go on with --from {next}");
    } else if dumped.more {
        let other = if matches!(part, Part::Bytes { .. }) { ", or with another --offset" } else { "" };
        let _ = writeln!(text, "there is more: ask for it with a greater --limit{other}");
    }
    // The exit code says what was found also when the rest isn't read.
    let is_read = stream.end(&[("more", dumped.more.into()), ("next", next.into())])?;
    let answer = Answer::streamed(if is_read { text } else { String::new() });
    Ok(match failure {
        Some(failure) => answer.but(failure),
        None => answer,
    })
}

/// What to say of a dump that damage has left something out of.
fn incomplete(device: &Path, dumped: &Dumped) -> Option<CliError> {
    let (device, damages) = (device.display(), dumped.damages);
    (damages > 0).then(|| {
        CliError::Damaged(format!(
            "{device}: {damages} places could not be read or are damaged, and what they held is missing here or malformed:{}",
            places(damages, &dumped.findings)
        ))
    })
}

fn object(text: &str) -> Result<ObjectId, CliError> {
    let parsed = text
        .split_once('.')
        .and_then(|(hi, lo)| Some(ObjectId { hi: hi.parse().ok()?, lo: lo.parse().ok()? }));
    parsed.ok_or_else(|| {
        CliError::Usage(format!("\"{text}\" is not an object id: write it as hi.lo, e.g. 0.7"))
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Result<Vec<u8>, CliError> {
    let bad = || CliError::Usage(format!("--from \"{text}\" is not a key in hexadecimal"));
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(bad());
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| bad()))
        .collect()
}

fn line_text(line: &Line) -> String {
    let quoted = |name: &str, field: &Field| match field {
        Field::Text(text) if text.is_empty() || text.contains([' ', '"']) => {
            // Names have been escaped with their quotes; bytes are shown as they are.
            if name == "text" { format!("{text:?}") } else { format!("\"{text}\"") }
        }
        field => field.to_string(),
    };
    let parts: Vec<String> =
        line.iter().map(|(name, field)| format!("{name}={}", quoted(name, field))).collect();
    parts.join(" ")
}

fn line_json(line: &Line) -> Value {
    let value = |field: &Field| match field {
        Field::Number(number) => json!(number),
        Field::Text(text) => json!(text),
        Field::Flag(flag) => json!(flag),
    };
    Value::Object(line.iter().map(|(name, field)| ((*name).to_owned(), value(field))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_no_keys_or_objects_are_refused() {
        assert_eq!(unhex("00ff").expect("two bytes"), [0, 255]);
        assert_eq!(object("3.4").expect("an id"), ObjectId { hi: 3, lo: 4 });
        for bad in ["0", "zz", "ü"] {
            assert_eq!(unhex(bad).expect_err("no key").exit_code(), crate::error::exit::USAGE);
        }
        assert!(object("7").is_err());
    }

    #[test]
    fn fields_with_spaces_are_quoted() {
        let line =
            vec![("a", Field::Number(1)), ("b", Field::Text("x y".to_owned())), ("c", Field::Flag(true))];
        assert_eq!(line_text(&line), "a=1 b=\"x y\" c=true");
        assert_eq!(line_json(&line), json!({"a": 1, "b": "x y", "c": true}));
        let name = b"x \"\\\0".escape_ascii().to_string();
        let line = vec![("dkey", Field::Text(name)), ("text", Field::Text("\"\\".to_owned()))];
        assert_eq!(line_text(&line), r#"dkey="x \"\\\x00" text="\"\\""#, "each is escaped once");
    }
}
