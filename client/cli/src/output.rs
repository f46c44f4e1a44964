//! What a command prints: text for people, or DAOS's JSON envelope for scripts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{BufWriter, StdoutLock, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use serde_json::{Value, json};

use crate::error::CliError;

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    /// For `--json`: the `response` of the envelope.
    pub response: Value,
    /// For people; printed as it is.
    pub text: String,
    /// What was found is bad: said behind the answer, and in the exit code.
    pub failure: Option<CliError>,
    /// With `--json`, a [`Stream`] has printed the response already, and the rest of the envelope is missing.
    pub is_streamed: bool,
}

impl Answer {
    /// An answer with both forms.
    pub fn new(response: Value, text: impl Into<String>) -> Self {
        Self { response, text: text.into(), failure: None, is_streamed: false }
    }

    /// What is left to be said behind a [`Stream`].
    pub fn streamed(text: impl Into<String>) -> Self {
        Self { is_streamed: true, ..Self::new(Value::Null, text) }
    }

    /// An answer that only says that something was done.
    pub fn done(text: impl Into<String>) -> Self {
        Self::new(Value::Null, format!("{}\n", text.into()))
    }

    /// An answer that describes what was to be made. A repeated command succeeds; that it has made nothing is to be seen.
    pub fn made(kind: &str, label: &str, existed: bool, mut response: Value, description: &str) -> Self {
        response["existed"] = existed.into();
        let done = if existed { "exists already, with these properties" } else { "created" };
        Self::new(response, format!("{kind} {label} {done}\n{description}"))
    }

    /// The same answer with bad news.
    #[must_use]
    pub fn but(mut self, failure: CliError) -> Self {
        self.failure = Some(failure);
        self
    }
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The envelope instead of text.
    pub json: bool,
    /// Timings on standard error.
    pub verbose: bool,
}

impl Output {
    /// Prints the outcome of a command and returns its exit code.
    pub fn print(self, outcome: &Result<Answer, CliError>) -> u8 {
        let mut out = std::io::stdout().lock();
        let written = match outcome {
            Ok(answer) if self.json && answer.is_streamed => {
                let (error, status) = verdict(outcome);
                writeln!(out, r#","error":{error},"status":{status}}}"#)
            }
            _ if self.json => writeln!(out, "{}", envelope(outcome)),
            Ok(answer) => out.write_all(harmless(&answer.text).as_bytes()),
            Err(_) => Ok(()),
        };
        let unwritten = reached(written.and_then(|()| out.flush())).err();
        let shown = if self.json { unwritten.as_ref() } else { failure_of(outcome).or(unwritten.as_ref()) };
        if let Some(error) = shown {
            let _ = writeln!(std::io::stderr(), "ERROR: {}", harmless(&error.to_string()));
        }
        failure_of(outcome).or(unwritten.as_ref()).map_or(0, CliError::exit_code)
    }

    /// Prints how long a step took, when asked to.
    pub fn timing(self, step: &str, since: Instant) {
        if self.verbose {
            let micros = since.elapsed().as_micros();
            let _ = writeln!(std::io::stderr(), "{step}: {}.{:03} ms", micros / 1000, micros % 1000);
        }
    }
}

/// Writes bytes to standard output as they are. Returns whether the output is still read.
///
/// # Errors
/// When they can't be written, e.g. to a full disk.
pub fn write_raw(bytes: &[u8]) -> Result<bool, CliError> {
    let mut out = std::io::stdout().lock();
    reached(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Whether what was written to standard output has reached a reader. A reader that has gone away (`weir … | head`) is
/// no failure of the command; a full disk is.
fn reached(written: std::io::Result<()>) -> Result<bool, CliError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CliError::io("standard output", error)),
    }
}

fn failure_of(outcome: &Result<Answer, CliError>) -> Option<&CliError> {
    match outcome {
        Ok(answer) => answer.failure.as_ref(),
        Err(error) => Some(error),
    }
}

/// DAOS's envelope: the response, the error's text or null, and 0 or a negative DER number.
#[must_use]
pub fn envelope(outcome: &Result<Answer, CliError>) -> Value {
    let response = outcome.as_ref().map_or(&Value::Null, |answer| &answer.response);
    let (error, status) = verdict(outcome);
    json!({"response": response, "error": error, "status": status})
}

/// The error's text or null, and the status.
fn verdict(outcome: &Result<Answer, CliError>) -> (Value, i64) {
    failure_of(outcome).map_or((Value::Null, 0), |error| (error.to_string().into(), error.status()))
}

/// How the JSON of a [`Stream`] begins.
const BEGIN: &str = r#"{"response":{"lines":["#;

/// Lines that are printed as they come, however many there are; with `--json` as an array of the response.
pub struct Stream {
    json: bool,
    out: BufWriter<StdoutLock<'static>>,
    has_begun: bool,
    failed: Option<std::io::Error>,
}

impl Stream {
    /// Nothing is printed before the first line: an error may come first.
    pub fn new(output: Output) -> Self {
        let out = BufWriter::new(std::io::stdout().lock());
        Self { json: output.json, out, has_begun: false, failed: None }
    }

    /// Whether a line was printed.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Prints a line, in the form that is wanted. It is the last one if the output isn't read, or there is no room for
    /// it.
    pub fn push(&mut self, text: impl FnOnce() -> String, object: impl FnOnce() -> Value) -> ControlFlow<()> {
        // Behind a line that was cut nothing else can be read.
        if self.failed.is_some() {
            return ControlFlow::Break(());
        }
        let begin = if self.has_begun { "," } else { BEGIN };
        self.has_begun = true;
        let written = if self.json {
            write!(self.out, "{begin}{}", object())
        } else {
            writeln!(self.out, "{}", harmless(&text()))
        };
        self.failed = written.err();
        if self.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends the response with a further field for each of `rest`. Returns whether the output is still read.
    ///
    /// # Errors
    /// When it can't be written, e.g. to a full disk.
    pub fn end(mut self, rest: &[(&str, Value)]) -> Result<bool, CliError> {
        let mut end = || {
            if self.json {
                let begin = if self.has_begun { "" } else { BEGIN };
                write!(self.out, "{begin}]")?;
                for (name, value) in rest {
                    write!(self.out, r#","{name}":{value}"#)?;
                }
                write!(self.out, "}}")?;
            }
            self.out.flush()
        };
        let written = self.failed.take().map_or_else(&mut end, Err);
        // What it still holds found no room, and would be tried again.
        let _ = self.out.into_parts();
        reached(written)
    }
}

/// Text without what a terminal would take for a command: control characters, but for ends of lines, are shown as
/// `\x1b`. Names and values come from any user.
fn harmless(text: &str) -> Cow<'_, str> {
    let is_command = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_command) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_command(c) {
            let _ = write!(shown, "\\x{:02x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// A name for people: as it is where that is plain text, else as a shell takes it, `$'a\377'`. What is shown can be given to a
/// command again.
#[must_use]
pub fn name_of(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) && !text.starts_with("$'") => text.to_owned(),
        _ => {
            let mut shown = "$'".to_owned();
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\'' | '\\' => shown.extend(['\\', c]),
                        c if c.is_control() => {
                            let mut encoded = [0; 4];
                            let bytes = c.encode_utf8(&mut encoded).bytes();
                            bytes.for_each(|byte| escape(&mut shown, byte));
                        }
                        c => shown.push(c),
                    }
                }
                chunk.invalid().iter().for_each(|byte| escape(&mut shown, *byte));
            }
            shown + "'"
        }
    }
}

/// Three octal digits: behind them, unlike behind hexadecimal ones, any digit is the next character.
fn escape(shown: &mut String, byte: u8) {
    let _ = write!(shown, "\\{byte:03o}");
}

/// Columns of text, each as wide as its widest cell. The first row is the heading.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Lines of `name: value`, aligned.
#[must_use]
pub fn fields(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    lines(pairs.iter().map(|(name, value)| format!("{:<width$} {value}", format!("{name}:"))))
}

/// One line for each item.
#[must_use]
pub fn lines<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().fold(String::new(), |text, item| text + &item.to_string() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_is_the_one_that_scripts_for_daos_read() {
        let good = envelope(&Ok(Answer::new(json!({"uuid": "u"}), "")));
        assert_eq!(good, json!({"response": {"uuid": "u"}, "error": null, "status": 0}));
        let bad = envelope(&Err(CliError::NotFound("pool \"x\" does not exist".into())));
        assert_eq!(bad, json!({"response": null, "error": "pool \"x\" does not exist", "status": -1005}));
        let damaged = Answer::new(json!({"damages": 1}), "").but(CliError::Damaged("it is damaged".into()));
        let both = envelope(&Ok(damaged));
        assert_eq!(both, json!({"response": {"damages": 1}, "error": "it is damaged", "status": -2021}));
    }

    #[test]
    fn no_name_commands_the_terminal() {
        assert_eq!(harmless("plain\nä\n"), "plain\nä\n");
        assert_eq!(harmless("a\x1b]0;x\x07b\rc\u{9b}2J\n"), "a\\x1b]0;x\\x07b\\x0dc\\x9b2J\n");
    }

    #[test]
    fn any_name_is_shown_as_a_shell_takes_it() {
        for (name, shown) in [
            (&b"plain name"[..], "plain name"),
            ("ä".as_bytes(), "ä"),
            (b"a\xffb", "$'a\\377b'"),
            (b"\x1b[31m", "$'\\033[31m'"),
            (b"two\nlines", "$'two\\012lines'"),
            (b"it's\xff\\", "$'it\\'s\\377\\\\'"),
            (b"$'x'", "$'$\\'x\\''"),
        ] {
            assert_eq!(name_of(name), shown);
            if !shown.starts_with("$'") {
                continue;
            }
            let script = format!("printf %s {shown}");
            let output =
                std::process::Command::new("bash").args(["-c", &script]).output().expect("bash runs");
            assert_eq!(output.stdout, name, "{shown}");
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["Pool".into(), "Size".into()], vec!["t".into(), "4.0 GiB".into()]];
        assert_eq!(table(&rows), "Pool  Size\nt     4.0 GiB\n");
        assert_eq!(fields(&[("a", "1".into()), ("bcd", "2".into())]), "a:   1\nbcd: 2\n");
    }
}
