//! Other storage libraries under the same load, in a program of their own (`bench/references`): what they are written
//! in and linked with is no part of Weir.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::report::{BenchError, Report};

/// What a library reached.
#[derive(Clone, Debug, Deserialize)]
pub struct Figures {
    /// The library.
    pub engine: String,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Updates made durable in a second.
    pub updates: f64,
    /// Fetches in a second.
    pub fetches: f64,
    /// Bytes written per byte of values.
    pub amplification: f64,
    /// CPU time in microseconds per update.
    pub update_cpu_us: f64,
}

/// What Weir's store reached under the same load.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Updates in a second that the disk takes, whoever writes them: 32 in one write and one flush.
    pub floor: f64,
    /// Updates made durable in a second.
    pub updates: f64,
    /// Fetches in a second.
    pub fetches: f64,
}

/// Runs the libraries: keys that are fetched, updates in a batch, and rounds of fetches; for each size the bytes of a value and
/// the updates that are measured. `None` when the program wasn't built.
///
/// # Errors
/// When the program fails.
pub fn run(
    program: &Path,
    scratch: &Path,
    load: [u64; 3],
    sizes: &[(usize, u64)],
) -> Result<Option<Vec<Figures>>, BenchError> {
    if !program.exists() {
        return Ok(None);
    }
    let mut command = Command::new(program);
    command.arg(scratch).args(load.map(|number| number.to_string()));
    command.args(sizes.iter().map(|(bytes, updates)| format!("{bytes}:{updates}")));
    let failed = |output: String| BenchError::Command { command: program.display().to_string(), output };
    let output = command.output().map_err(BenchError::file("start", program))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map(Some).map_err(|error| failed(error.to_string()))
}

/// What is aimed at beside a library: at updates, and at fetches.
fn goals(engine: &str) -> (Option<&'static str>, Option<&'static str>) {
    match engine {
        "RocksDB" | "RocksDB's writers" => (Some("at least 3"), None),
        "LMDB" => (None, Some("at least 1")),
        _ => (None, None),
    }
}

fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1024) { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}

/// Adds a row for each library and size.
pub fn compare(report: &mut Report, own: &[Own], libraries: &[Figures]) {
    for own in own {
        let size = size_name(own.value_bytes);
        let name = format!("store: update {size}, synced, 32 in flight / the disk");
        let bytes = size_name((32 * own.value_bytes).next_multiple_of(4096));
        let disk = format!("raw: 32 in one write of {bytes} and one flush");
        report.beside(&name, own.updates, "op/s", (&disk, own.floor), None);
        for library in libraries.iter().filter(|library| library.value_bytes == own.value_bytes) {
            let (updates, fetches) = goals(&library.engine);
            let reference = (library.engine.as_str(), library.updates);
            let name = format!("store: update {size}, synced, 32 in flight / {}", library.engine);
            report.beside(&name, own.updates, "op/s", reference, updates);
            let name = format!("raw: {size}, 32 in one write of {bytes} and one flush / {}", library.engine);
            report.beside(&name, own.floor, "op/s", reference, None);
            let name = format!("store: fetch {size} / {}", library.engine);
            report.beside(&name, own.fetches, "op/s", (library.engine.as_str(), library.fetches), fetches);
            let name = format!("{}: bytes written per byte of {size} updates", library.engine);
            report.figure(&name, library.amplification, "", None);
            let name = format!("{}: CPU per {size} update", library.engine);
            report.figure(&name, library.update_cpu_us, "us", None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_understood() {
        let text = r#"[{"engine":"LMDB","value_bytes":64,"updates":2.0,"fetches":4.0,"amplification":9.5,"update_cpu_us":1.0}]"#;
        let libraries: Vec<Figures> = serde_json::from_str(text).expect("figures");
        let mut report = Report::default();
        compare(&mut report, &[Own { value_bytes: 64, floor: 6.0, updates: 1.0, fetches: 8.0 }], &libraries);
        let text = serde_json::to_string(report.rows()).expect("rows");
        assert!(text.contains("store: fetch 64 B / LMDB") && text.contains("\"ratio\":2.0"), "{text}");
        assert!(
            text.contains("32 in one write of 4 KiB and one flush / LMDB") && text.contains("\"ratio\":3.0")
        );
        assert_eq!(size_name(4096), "4 KiB");
    }

    #[test]
    fn a_program_that_was_not_built_is_no_failure() {
        let none = run(Path::new("/nonexistent"), Path::new("/tmp"), [1; 3], &[(64, 1)]);
        assert!(matches!(none, Ok(None)));
    }
}
