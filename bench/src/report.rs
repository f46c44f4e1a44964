//! The list of results: what is printed and what is written.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file or directory.
    #[error("{what} {path}: {source}")]
    File {
        /// What was being done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A command of the system under test failed.
    #[error("{command} failed: {output}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed.
        output: String,
    },
    /// Something took too long.
    #[error("{what} did not happen within {seconds} s")]
    Deadline {
        /// What was awaited.
        what: String,
        /// For how long.
        seconds: u64,
    },
    /// Results of an earlier run do not parse.
    #[error("{path} holds no results: {source}; delete it and run again")]
    Results {
        /// The file.
        path: PathBuf,
        /// What the parser met.
        source: serde_json::Error,
    },
}

impl BenchError {
    /// Adapter for `map_err` on file operations.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { what, path, source }
    }
}

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
    /// Name and figure of the reference in the same run.
    pub reference: Option<String>,
    /// Value ÷ reference.
    pub ratio: Option<f64>,
    /// What is aimed at, in words.
    pub goal: Option<String>,
}

/// All figures, by name; a new run replaces rows of the same name.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// The results of earlier runs, so that groups can be measured one at a time.
    pub fn load(path: &Path) -> Result<Self, BenchError> {
        match fs::read(path) {
            Ok(text) => {
                let rows = serde_json::from_slice(&text)
                    .map_err(|source| BenchError::Results { path: path.to_path_buf(), source })?;
                Ok(Self { rows })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(BenchError::file("read", path)(error)),
        }
    }

    /// Adds a figure without a reference.
    pub fn figure(&mut self, name: &str, value: f64, unit: &str, goal: Option<&str>) {
        self.insert(Row {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            reference: None,
            ratio: None,
            goal: goal.map(str::to_owned),
        });
    }

    /// Adds a figure beside its reference, both in the same unit.
    pub fn beside(&mut self, name: &str, value: f64, unit: &str, reference: (&str, f64), goal: Option<&str>) {
        self.insert(Row {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            reference: Some(format!("{}: {:.4}", reference.0, Significant(reference.1))),
            ratio: Some(value / reference.1),
            goal: goal.map(str::to_owned),
        });
    }

    /// Adds a figure beside its reference with a ratio that is no mere quotient of the two: a median of many.
    pub fn ratio(
        &mut self,
        name: &str,
        value: f64,
        unit: &str,
        reference: (&str, f64),
        ratio: f64,
        goal: Option<&str>,
    ) {
        self.insert(Row {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            reference: Some(format!("{}: {:.4}", reference.0, Significant(reference.1))),
            ratio: Some(ratio),
            goal: goal.map(str::to_owned),
        });
    }

    fn insert(&mut self, row: Row) {
        match self.rows.iter_mut().find(|known| known.name == row.name) {
            Some(known) => *known = row,
            None => self.rows.push(row),
        }
    }

    /// The figures.
    #[cfg(test)]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Prints the table.
    pub fn print(&self) {
        println!("{:<52} {:>12} {:<8} {:>7}  {:<42} goal", "name", "value", "unit", "ratio", "reference");
        for row in &self.rows {
            let ratio = row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let value = Significant(row.value).to_string();
            let (reference, goal) =
                (row.reference.as_deref().unwrap_or(""), row.goal.as_deref().unwrap_or(""));
            println!("{:<52} {value:>12} {:<8} {ratio:>7}  {reference:<42} {goal}", row.name, row.unit);
        }
    }

    /// Writes the list.
    pub fn save(&self, path: &Path) -> Result<(), BenchError> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(BenchError::file("make", directory))?;
        }
        let text = serde_json::to_vec_pretty(&self.rows)
            .map_err(|source| BenchError::Results { path: path.to_path_buf(), source })?;
        fs::write(path, text).map_err(BenchError::file("write", path))
    }
}

/// A number with as many decimals as it deserves.
struct Significant(f64);

impl core::fmt::Display for Significant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let decimals = match self.0.abs() {
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            size if size >= 1.0 => 2,
            _ => 4,
        };
        write!(f, "{:.decimals$}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_replaces_its_own_rows_only() {
        let mut report = Report::default();
        report.figure("a", 1.0, "s", None);
        report.beside("b", 2.0, "s", ("other", 4.0), None);
        report.figure("a", 3.0, "s", None);
        assert_eq!(report.rows.len(), 2);
        assert!((report.rows[0].value - 3.0).abs() < f64::EPSILON);
        assert_eq!(report.rows[1].ratio, Some(0.5));
    }
}
