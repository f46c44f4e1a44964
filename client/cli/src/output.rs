//! What a command prints: text for people, or DAOS's JSON envelope for scripts.

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
            Ok(answer) => out.write_all(answer.text.as_bytes()),
            Err(_) => Ok(()),
        };
        let unwritten = reached(written.and_then(|()| out.flush())).err();
        let shown = if self.json { unwritten.as_ref() } else { failure_of(outcome).or(unwritten.as_ref()) };
        if let Some(error) = shown {
            let _ = writeln!(std::io::stderr(), "ERROR: {error}");
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

/// Writes bytes to standard output as they are. Whether somebody still reads them.
///
/// # Errors
/// When they can't be written, e.g. to a full disk.
pub fn write_raw(bytes: &[u8]) -> Result<bool, CliError> {
    let mut out = std::io::stdout().lock();
    reached(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Whether what was written to standard output has reached somebody. A reader that has gone away (`weir … | head`) is no
/// failure of the command; a full disk is.
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

    /// Prints a line, in the form that is wanted. It is the last one if nobody reads it, or there is no room for it.
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
            writeln!(self.out, "{}", text())
        };
        self.failed = written.err();
        if self.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends the response with a further field for each of `rest`. Whether somebody still reads it.
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
    fn columns_line_up() {
        let rows = vec![vec!["Pool".into(), "Size".into()], vec!["t".into(), "4.0 GiB".into()]];
        assert_eq!(table(&rows), "Pool  Size\nt     4.0 GiB\n");
        assert_eq!(fields(&[("a", "1".into()), ("bcd", "2".into())]), "a:   1\nbcd: 2\n");
    }
}
