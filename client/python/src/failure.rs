//! Errors, as Python raises them.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// An operation failed.
#[derive(Debug)]
pub enum Failure {
    /// On objects: raised as `weir.Error`.
    Object(weir_client::Error),
    /// On files: raised as `OSError` with an errno.
    File(weir_dfs::Error),
    /// The worker has ended, or could not be started.
    Worker(String),
}

impl From<weir_client::Error> for Failure {
    fn from(error: weir_client::Error) -> Self {
        Self::Object(error)
    }
}

impl From<weir_dfs::Error> for Failure {
    fn from(error: weir_dfs::Error) -> Self {
        Self::File(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::File(error) => PyOSError::new_err((error.errno(), error.to_string())),
            Failure::Object(error) => raised(&error.to_string(), error.der().0),
            Failure::Worker(reason) => raised(&reason, weir_proto::Der::UNINIT.0),
        }
    }
}

/// `weir.Error`, which is defined in Python.
fn raised(message: &str, der: u32) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("weir._errors")
            .and_then(|module| module.getattr("Error"))
            .and_then(|class| class.call1((message, der)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}
