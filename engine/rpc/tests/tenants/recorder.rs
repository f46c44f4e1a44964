//! An endpoint that keeps a copy of every message it sends: what somebody on the path would have.

use core::cell::{OnceCell, RefCell};
use core::ops::Range;
use std::rc::{Rc, Weak};
use weir_fabric::{
    Access, Address, Buffer, BufferPool, Capabilities, Endpoint, Exposure, FabricCounters, FabricError,
    Found, PeerId, RemoteRegion, Sink, Transfer,
};
use weir_runtime::LocalBoxFuture;

/// Delegates everything, and records what is sent.
pub struct Recorder {
    inner: Rc<dyn Endpoint>,
    pub sent: RefCell<Vec<Vec<u8>>>,
    /// What arrives is for it.
    pub owner: OnceCell<Weak<dyn Sink>>,
}

impl Recorder {
    pub fn new(inner: Rc<dyn Endpoint>) -> Rc<Self> {
        Rc::new(Self { inner, sent: RefCell::default(), owner: OnceCell::new() })
    }
}

impl Endpoint for Recorder {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn address(&self) -> Address {
        self.inner.address()
    }

    fn counters(&self) -> &FabricCounters {
        self.inner.counters()
    }

    fn buffers(&self) -> &BufferPool {
        self.inner.buffers()
    }

    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Found, FabricError>> {
        self.inner.resolve(host, port)
    }

    fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        self.inner.insert(address)
    }

    fn remove(&self, peer: PeerId) {
        self.inner.remove(peer);
    }

    fn forget(&self, peer: PeerId) {
        self.inner.forget(peer);
    }

    fn set_sink(&self, sink: Weak<dyn Sink>) {
        let _ = self.owner.set(Weak::clone(&sink));
        self.inner.set_sink(sink);
    }

    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError> {
        self.sent.borrow_mut().push(parts.concat());
        self.inner.send(to, context, parts)
    }

    fn expose(&self, buffer: &Buffer, range: Range<usize>, access: Access) -> Result<Exposure, FabricError> {
        self.inner.expose(buffer, range, access)
    }

    fn read(&self, peer: PeerId, into: &mut Buffer, range: Range<usize>, from: RemoteRegion) -> Transfer {
        self.inner.read(peer, into, range, from)
    }

    fn write(&self, peer: PeerId, from: &Buffer, range: Range<usize>, to: RemoteRegion) -> Transfer {
        self.inner.write(peer, from, range, to)
    }
}
