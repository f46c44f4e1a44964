//! A device that passes on what it is told, and lets the measurement look at it or keep it away from the disk.

use std::cell::RefCell;
use std::rc::Rc;

use weir_media::health::DeviceHealth;
use weir_media::{Device, DeviceStats, DmaBuf, DmaPool, Features, IoFuture, MediaError, Slice};

/// The device.
pub struct Tapped {
    inner: Rc<dyn Device>,
    /// Where reads begin, while they are noted.
    noted: RefCell<Option<Vec<u64>>>,
    /// Writes of nothing but this memory are not done.
    forgotten: RefCell<Option<Slice>>,
}

impl Tapped {
    /// Passes everything on.
    pub fn new(inner: Rc<dyn Device>) -> Self {
        Self { inner, noted: RefCell::default(), forgotten: RefCell::default() }
    }

    /// Notes from now on where reads begin.
    pub fn note_reads(&self) {
        self.noted.replace(Some(Vec::new()));
    }

    /// Where reads have begun, in their order; they are noted no more.
    pub fn noted_reads(&self) -> Vec<u64> {
        self.noted.take().unwrap_or_default()
    }

    /// Forgets from now on what is written from this memory; nothing, if there is none.
    pub fn forget(&self, data: Option<Slice>) {
        self.forgotten.replace(data);
    }
}

impl Device for Tapped {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        if let Some(noted) = &mut *self.noted.borrow_mut() {
            noted.push(offset);
        }
        self.inner.read(offset, buffer)
    }

    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        self.inner.lend(offset, len)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        // Updates that lie together are written together.
        let is_of = |memory: &Slice| data.iter().all(|slice| slice.as_ptr() == memory.as_ptr());
        if self.forgotten.borrow().as_ref().is_some_and(is_of) {
            return Box::pin(core::future::ready(Ok::<(), MediaError>(())));
        }
        self.inner.write(offset, data)
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.inner.write_stable(offset, data)
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.prepare(offset, len)
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        self.inner.first_data(from)
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn register(&self, pool: &DmaPool) {
        self.inner.register(pool);
    }

    fn features(&self) -> Features {
        self.inner.features()
    }

    fn health(&self) -> Option<DeviceHealth> {
        self.inner.health()
    }
}
