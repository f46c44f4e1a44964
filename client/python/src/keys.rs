//! Listing the keys of an object.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weir_client::{Anchor, Context, Kv};

use crate::station;

/// Keys asked for in one request.
const PAGE_KEYS: u32 = 512;

/// The keys of an object, page by page.
#[pyclass(module = "weir._native")]
pub struct Keys {
    kv: Kv,
    attach: Option<String>,
    anchor: Anchor,
}

impl Keys {
    /// From the first key on.
    pub fn new(kv: Kv, attach: Option<String>) -> Self {
        Self { kv, attach, anchor: Anchor::START }
    }
}

#[pymethods]
impl Keys {
    /// The next keys; nothing at the end. A page may be empty although more follows.
    fn page<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        if self.anchor.is_end() {
            return Ok(None);
        }
        let (kv, anchor) = (self.kv.clone(), self.anchor.clone());
        let page = station::run(py, self.attach.as_deref(), async move |context: Context| {
            Ok(kv.list(&context, &anchor, PAGE_KEYS).await?)
        })?;
        self.anchor = page.next;
        Ok(Some(page.entries.iter().map(|entry| PyBytes::new(py, &entry.key)).collect()))
    }
}
