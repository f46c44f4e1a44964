//! How a completion queue wakes a context.
//!
//! A descriptor that the executor watches has a cost for each packet, also while no thread sleeps, because the kernel
//! walks every set that it is in. So where a queue has several descriptors, the one that packets make readable is
//! watched only during sleep, in a set of its own.
#![expect(unsafe_code, reason = "the completion queue's descriptors are borrowed from libfabric")]

use super::raw::Raw;
use crate::{FabricError, Wait};
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// What wakes a thread that sleeps on a completion queue. The descriptors belong to the queue, which is open as long as
/// the endpoint.
pub(super) enum Waker {
    /// One descriptor, which is always watched.
    Always(RawFd),
    /// Those that are watched during sleep, in a set that has the others, too.
    Asleep(OwnedFd, Vec<RawFd>),
}

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the descriptor belongs to a completion queue that is open as long as a `Waker` is used. Only its number
    // is used, in calls that refuse what is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn watch(set: &OwnedFd, fd: RawFd) -> io::Result<()> {
    match epoll::add(set, borrow(fd), epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Waker {
    /// What wakes a thread that sleeps on this queue, which was opened to be waited for in this way.
    pub(super) fn new(raw: &Raw, wait: Wait) -> Result<Self, FabricError> {
        if wait != Wait::FdSet {
            return Ok(Self::Always(raw.wait_fd()?));
        }
        let refused = |error: io::Error| FabricError::Provider {
            call: "epoll_ctl",
            code: error.raw_os_error().map_or(0, i64::from),
            reason: error.to_string(),
            provider: raw.provider().to_owned(),
        };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| refused(error.into()))?;
        let (nested, plain): (Vec<_>, Vec<_>) = raw.wait_fds()?.into_iter().partition(|fd| fd.nested != 0);
        // Only a completion makes these readable. The library writes to them once for a thread that polls the queue.
        plain.iter().try_for_each(|fd| watch(&set, fd.fd)).map_err(refused)?;
        Ok(Self::Asleep(set, nested.iter().map(|fd| fd.fd).collect()))
    }

    /// What the executor watches.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Always(fd) => borrow(*fd),
            Self::Asleep(set, _) => set.as_fd(),
        }
    }

    /// A thread is going to sleep. What has come before is noticed, too.
    ///
    /// # Errors
    /// When the system has no room for it: the sleep must be short then.
    pub(super) fn arm(&self) -> io::Result<()> {
        match self {
            Self::Always(_) => Ok(()),
            Self::Asleep(set, nested) => nested.iter().try_for_each(|fd| watch(set, *fd)),
        }
    }

    /// The thread that slept is awake.
    pub(super) fn disarm(&self) {
        if let Self::Asleep(set, nested) = self {
            for fd in nested {
                // What is not in the set, or not open any more, need not be taken out.
                let _ = epoll::delete(set, borrow(*fd));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libfabric::{open, provider_facts};
    use crate::{Ability, Endpoint, Message, Options, PeerId, Sink};
    use core::cell::Cell;
    use core::time::Duration;
    use std::os::fd::AsRawFd;
    use std::rc::{Rc, Weak};
    use weir_runtime::real::Executor;
    use weir_runtime::sync::Notify;

    /// Descriptors in a set, as the kernel tells.
    fn watched(set: BorrowedFd<'_>) -> usize {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", set.as_raw_fd())).expect("open");
        text.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    #[test]
    fn what_packets_make_readable_is_watched_only_during_sleep() {
        let facts = provider_facts::facts("tcp", &[]).expect("built in");
        assert_eq!(facts.wait(), Wait::FdSet);
        let (raw, _) = Raw::open(&facts.on_loopback()).expect("an endpoint");
        let waker = Waker::new(&raw, Wait::FdSet).expect("a set");
        let awake = watched(waker.fd());
        for _ in 0..3 {
            waker.arm().expect("room");
            waker.arm().expect("it is there");
            assert_eq!(watched(waker.fd()), awake + 1);
            waker.disarm();
            waker.disarm();
            assert_eq!(watched(waker.fd()), awake);
        }
    }

    #[derive(Default)]
    struct Count(Cell<u32>, Notify);

    impl Sink for Count {
        fn message(&self, _message: Message) {
            self.0.set(self.0.get() + 1);
            self.1.notify_one();
        }

        fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
    }

    fn listen(endpoint: &Rc<dyn Endpoint>) -> Rc<Count> {
        let count = Rc::new(Count::default());
        let sink: Weak<Count> = Rc::downgrade(&count);
        endpoint.set_sink(sink);
        count
    }

    #[test]
    fn who_sleeps_is_woken_by_each_message_with_and_without_a_set_of_its_own() {
        const MESSAGES: u32 = 50;
        for without in [vec![], vec![Ability::FdSet]] {
            let executor = Executor::new().expect("an executor");
            let options = Options { without: without.clone(), ..Options::near("tcp", "127.0.0.1", 1) };
            let endpoint = open(&executor.handle(), &options).expect("an endpoint");
            assert_eq!(endpoint.capabilities().wait == Wait::Fd, without.contains(&Ability::FdSet));
            let count = listen(&endpoint);
            let address = endpoint.address();
            let sender = std::thread::spawn(move || {
                let executor = Executor::new().expect("an executor");
                let endpoint = open(&executor.handle(), &options).expect("an endpoint");
                let _count = listen(&endpoint);
                let to = endpoint.insert(&address).expect("an address");
                let rt = executor.handle();
                executor.block_on(async {
                    for _ in 0..MESSAGES {
                        endpoint.send(to, 0, &[b"wake up"]).expect("accepted");
                        // Longer than any thread polls.
                        rt.sleep(Duration::from_millis(4)).await;
                    }
                });
            });
            executor.block_on(async {
                while count.0.get() < MESSAGES {
                    let waited = executor.handle().timeout(Duration::from_secs(10), count.1.notified()).await;
                    waited.unwrap_or_else(|_| panic!("without {without:?}: {} came", count.0.get()));
                }
            });
            assert!(executor.stats().sleeps >= u64::from(MESSAGES) / 2, "{:?}", executor.stats());
            sender.join().expect("no panic");
        }
    }
}
