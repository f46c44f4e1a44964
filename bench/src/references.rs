//! Other storage libraries under the same load, in a program of their own (`bench/references`): what they are written
//! in and linked with is no part of Weir.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::report::BenchError;

/// The libraries.
pub const LIBRARIES: [&str; 4] = ["RocksDB", "RocksDB's writers", "LMDB", "redb"];

/// What a library has done so far, and the turn that has just ended.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Standing {
    /// Operations of the turn in a second.
    pub rate: f64,
    /// Bytes written since the start.
    pub written: f64,
    /// CPU time since the start, in microseconds.
    pub cpu_us: f64,
}

/// A library in a process of its own that does what it is told, a turn at a time. It ends when this is dropped.
pub struct Reference {
    child: Child,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
    name: String,
}

impl Reference {
    /// Starts one whose data lie in a new folder; what is stored first has been stored, and fetched once, when this returns.
    ///
    /// # Errors
    /// When the program fails.
    pub fn start(
        program: &Path,
        folder: PathBuf,
        library: &str,
        [keys, width, bytes]: [u64; 3],
    ) -> Result<Self, BenchError> {
        std::fs::create_dir_all(&folder).map_err(BenchError::file("make", &folder))?;
        let mut command = Command::new(program);
        command.arg(&folder).arg(library).args([keys, width, bytes].map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(BenchError::file("start", program))?;
        let name = format!("{} {library}", program.display());
        let answers = child.stdout.take().ok_or_else(|| failed(&name, "it has no output".to_owned()))?;
        let mut reference = Self { child, answers: BufReader::new(answers), folder, name };
        reference.answer()?;
        Ok(reference)
    }

    /// Has it do a turn: `update` so many keys, `overwrite` so many of those that were stored first, or `fetch` all of these
    /// so many times.
    ///
    /// # Errors
    /// When the program fails.
    pub fn turn(&mut self, what: &str, count: u64) -> Result<Standing, BenchError> {
        let told = self.child.stdin.as_mut().map(|input| writeln!(input, "{what} {count}"));
        match told {
            Some(Ok(())) => self.answer(),
            Some(Err(error)) => Err(failed(&self.name, error.to_string())),
            None => Err(failed(&self.name, "it has no input".to_owned())),
        }
    }

    fn answer(&mut self) -> Result<Standing, BenchError> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| failed(&self.name, error.to_string()))?;
        serde_json::from_str(&line)
            .map_err(|error| failed(&self.name, format!("{line:?} is no answer: {error}")))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What is left is in the way of nobody but the next run, which reports it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn failed(name: &str, output: String) -> BenchError {
    BenchError::Command { command: name.to_owned(), output }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Result<Reference, BenchError> {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("executable");
        Reference::start(&program, folder.path().join("data"), "LMDB", [1, 2, 3])
    }

    #[test]
    fn each_turn_is_told_and_answered() {
        let answer = r#"echo '{"rate":'$rate',"written":2,"cpu_us":3}'"#;
        let script = format!("rate=0; {answer}; while read what count; do rate=$count; {answer}; done");
        let mut reference = start(&script).expect("it starts");
        for count in [7, 8] {
            let turn = reference.turn("update", count).expect("an answer");
            assert!((turn.rate - f64::from(u32::try_from(count).expect("small"))).abs() < 1e-9);
        }
    }

    #[test]
    fn what_a_program_says_that_has_failed_is_no_answer() {
        let error = start("echo no; exit 1").err().expect("a failure");
        assert!(error.to_string().contains("no\\n"), "{error}");
    }
}
