//! Client memory that a server may read or write during one call.

use crate::Inner;
use crate::wire::{SEGMENT_LEN, SEGMENTS_MAX, encode_segment};
use core::ops::Range;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::{Access, Buffer, Exposure, FabricError, MemoryHold};
use weir_proto::hlc::SKEW_MAX_NS;
use weir_runtime::Instant;

/// How long after the deadline exposed memory of a failed call is kept from being used again: the server's clock may
/// lag by [`SKEW_MAX_NS`], and a piece of at most 1 MiB that it started just before the deadline may take a second
/// on a link that is barely alive.
pub(crate) const WITHDRAWAL_GRACE: Duration = Duration::from_nanos(SKEW_MAX_NS + 1_000_000_000);

struct Segment<'a> {
    buffer: &'a Buffer,
    range: Range<usize>,
    access: Access,
}

/// Memory of the caller that the server may read or write while the call lasts: a list of segments. Offsets that the
/// server uses count over all readable segments one after another, and separately over all writable ones.
#[derive(Default)]
pub struct Bulk<'a> {
    segments: Vec<Segment<'a>>,
}

impl<'a> Bulk<'a> {
    /// No memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole buffer that the server may read.
    #[must_use]
    pub fn read(buffer: &'a Buffer) -> Self {
        Self::new().and_read(buffer, 0..buffer.len())
    }

    /// A whole buffer that the server may write to.
    #[must_use]
    pub fn write(buffer: &'a mut Buffer) -> Self {
        let range = 0..buffer.len();
        Self::new().and_write(buffer, range)
    }

    /// Adds a part of a buffer that the server may read.
    #[must_use]
    pub fn and_read(mut self, buffer: &'a Buffer, range: Range<usize>) -> Self {
        self.segments.push(Segment { buffer, range, access: Access::Read });
        self
    }

    /// Adds a part of a buffer that the server may write to.
    #[must_use]
    pub fn and_write(mut self, buffer: &'a mut Buffer, range: Range<usize>) -> Self {
        self.segments.push(Segment { buffer, range, access: Access::Write });
        self
    }

    /// Number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there is no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

/// The registrations of one call. Whatever way the call ends, its memory is not used again before the server must
/// have given up, unless a reply said that the server has finished.
pub(crate) struct Exposed {
    inner: Rc<Inner>,
    exposures: Vec<Exposure>,
    deadline: Instant,
    descriptors: Vec<u8>,
}

impl Exposed {
    pub(crate) fn new(
        inner: &Rc<Inner>,
        bulk: Option<&Bulk<'_>>,
        deadline: Instant,
    ) -> Result<Self, FabricError> {
        let mut exposed =
            Self { inner: Rc::clone(inner), exposures: Vec::new(), deadline, descriptors: Vec::new() };
        let Some(bulk) = bulk else { return Ok(exposed) };
        if bulk.len() > SEGMENTS_MAX {
            let (end, len) = (bulk.len() as u64, SEGMENTS_MAX as u64);
            return Err(FabricError::OutOfRange { start: 0, end, len });
        }
        exposed.descriptors.reserve(bulk.len() * SEGMENT_LEN);
        for segment in bulk.segments.iter().filter(|segment| !segment.range.is_empty()) {
            let exposure = inner.endpoint.expose(segment.buffer, segment.range.clone(), segment.access);
            let exposure = match exposure {
                Ok(exposure) => exposure,
                Err(error) => {
                    exposed.settle();
                    return Err(error);
                }
            };
            exposed.descriptors.extend(encode_segment(exposure.region(), segment.access));
            exposed.exposures.push(exposure);
        }
        Ok(exposed)
    }

    pub(crate) fn descriptors(&self) -> &[u8] {
        &self.descriptors
    }

    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.exposures.len()).unwrap_or(0)
    }

    /// The server has finished with the memory, or never heard of it.
    pub(crate) fn settle(&mut self) {
        self.exposures.clear();
    }

    /// The call failed and the server may be at work: withdraws the memory. Pooled memory stays out of the pool for
    /// the grace time in the background; for memory of the application this waits.
    pub(crate) async fn withdraw(mut self) {
        let foreign = self.exposures.iter().any(Exposure::is_foreign);
        let until = self.deadline + WITHDRAWAL_GRACE;
        let holds = self.close();
        if foreign {
            self.inner.rt.sleep_until(until).await;
            drop(holds);
        } else {
            self.quarantine(holds);
        }
    }

    fn close(&mut self) -> Vec<MemoryHold> {
        self.exposures.drain(..).map(Exposure::close).collect()
    }

    fn quarantine(&self, holds: Vec<MemoryHold>) {
        if holds.is_empty() {
            return;
        }
        let wait = self.inner.rt.sleep_until(self.deadline + WITHDRAWAL_GRACE);
        self.inner.rt.spawn(async move {
            wait.await;
            drop(holds);
        });
    }
}

impl Drop for Exposed {
    /// The call was dropped before it ended.
    fn drop(&mut self) {
        if self.exposures.is_empty() {
            return;
        }
        let holds = self.close();
        self.quarantine(holds);
    }
}
