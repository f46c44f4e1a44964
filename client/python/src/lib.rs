//! The client for Python: the native half of the package `weir`, whose other half is in `python/weir`.
//!
//! Every call hands its operation to the process's worker (`station`) and waits without the interpreter's lock. Handles are plain
//! data: a forked child uses its parent's with a worker of its own.

mod container;
mod failure;
mod files;
mod keys;
mod station;

use pyo3::prelude::*;

/// The native half of the package.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<container::Container>()?;
    module.add_class::<keys::Keys>()?;
    module.add_class::<files::FileSystem>()?;
    module.add_class::<files::File>()?;
    module.add_function(wrap_pyfunction!(container::create_container, module)?)?;
    module.add_function(wrap_pyfunction!(station::stop, module)?)?;
    module.add("VALUE_MAX", weir_proto::limits::PAYLOAD_MAX)?;
    Ok(())
}
