//! How much CPU time passes between two looks at the devices: what a request that has just come waits for, however fast the
//! device. Time that other programs take doesn't count.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};
use weir_runtime::{EventSource, Handle, SourceId};

use super::failed;
use crate::report::BenchError;

/// Takes part in the executor's turns and notes how far they are apart.
pub struct Turns {
    handle: Handle,
    watch: Rc<Watch>,
    source: SourceId,
}

#[derive(Default)]
struct Watch {
    last_us: Cell<f64>,
    apart_us: RefCell<Vec<f64>>,
}

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let float = |part: i64| super::load::float(u64::try_from(part).unwrap_or(0));
    float(time.tv_sec) * 1e6 + float(time.tv_nsec) / 1e3
}

impl EventSource for Watch {
    fn poll(&self) -> bool {
        let now = cpu_us();
        self.apart_us.borrow_mut().push(now - self.last_us.replace(now));
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        true
    }
}

impl Turns {
    /// Begins to watch.
    pub fn watch(handle: &Handle) -> Result<Self, BenchError> {
        let watch = Rc::new(Watch::default());
        watch.last_us.set(cpu_us());
        let source = handle.add_source(Rc::clone(&watch) as Rc<dyn EventSource>);
        let source = source.map_err(|error| failed("watch an executor", &error))?;
        Ok(Self { handle: handle.clone(), watch, source })
    }

    /// The longest CPU time between two turns since the last call, and what 999 of 1000 stay below, in microseconds.
    pub fn take(&self) -> (f64, f64) {
        let mut apart = self.watch.apart_us.take();
        apart.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| apart.get(index).copied().unwrap_or(0.0);
        (at(apart.len().saturating_sub(1)), at(apart.len() * 999 / 1000))
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.handle.remove_source(self.source);
    }
}
