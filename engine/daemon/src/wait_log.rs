//! Logs what the start of a target waits for while it waits, so that the log shows a device that doesn't answer.

use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use weir_media::{Device, MediaError};
use weir_runtime::Handle;

/// How often a wait is logged. Most steps take milliseconds.
pub const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

fn notice(target: u32, device: &str, step: &str, waited: Duration) -> String {
    format!("target {target}: waiting for {device}: {step}, {} s", waited.as_secs())
}

/// What the device is doing meanwhile.
fn doing(device: &dyn Device) -> String {
    let stats = device.stats();
    let under_way = device.health().map(|health| health.reason).filter(|reason| !reason.is_empty());
    let under_way = under_way.map_or(String::new(), |reason| format!("; {reason}"));
    format!("{under_way}; {} reads and {} writes have ended", stats.reads, stats.writes)
}

/// Runs a step of a target's start, and logs while it waits.
pub async fn with_wait_log<T>(
    rt: &Handle,
    target: u32,
    device: &Rc<dyn Device>,
    step: &str,
    work: impl Future<Output = T>,
) -> T {
    with_log(rt, target, device, step, work, |text| tracing::warn!("{text}")).await
}

async fn with_log<T>(
    rt: &Handle,
    target: u32,
    device: &Rc<dyn Device>,
    step: &str,
    work: impl Future<Output = T>,
    say: impl Fn(&str),
) -> T {
    let (mut work, begin) = (pin!(work), rt.now());
    loop {
        if let Ok(done) = rt.timeout(NOTICE_INTERVAL, work.as_mut()).await {
            return done;
        }
        let waited = rt.now() - begin;
        say(&(notice(target, device.name(), step, waited) + &doing(&**device)));
    }
}

/// Waits for work on another thread, and calls `say` at each interval. The work may be on files of the data directory, whose drive may
/// not answer.
pub async fn on_other_thread<T>(
    interval: Duration,
    say: impl Fn(Duration),
    work: impl Future<Output = T>,
) -> T {
    let (mut work, begin) = (pin!(work), Instant::now());
    loop {
        match tokio::time::timeout(interval, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => say(begin.elapsed()),
        }
    }
}

/// Opens a target's device. That blocks this thread; another thread logs when it takes long.
///
/// # Errors
/// As [`weir_media::open`].
pub fn open(rt: &Handle, target: u32, path: &Path) -> Result<Rc<dyn Device>, MediaError> {
    let say = |text: &str| tracing::warn!("{text}");
    blocked(target, path, NOTICE_INTERVAL, say, || weir_media::open(rt, path))
}

fn blocked<T>(
    target: u32,
    path: &Path,
    interval: Duration,
    say: impl Fn(&str) + Send + 'static,
    call: impl FnOnce() -> T,
) -> T {
    let (alive, ended) = mpsc::channel::<()>();
    let device = path.display().to_string();
    let begin = Instant::now();
    let thread = std::thread::Builder::new().name("start-notice".to_owned()).spawn(move || {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            say(&notice(target, &device, "open", begin.elapsed()));
        }
    });
    if let Err(error) = thread {
        tracing::debug!(%error, "nobody will say that a device takes long to open");
    }
    let result = call();
    drop(alive);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use weir_media::health::MonitoredDevice;
    use weir_media::sim::{SimDisk, SimDiskOptions};
    use weir_proto::{Rank, TargetIndex};
    use weir_runtime::sim::World;
    use weir_store::{FormatOptions, Owner, Store, StoreConfig};

    /// Longest a step may take on a device that doesn't answer: a transfer is given up after 65 s, and a search at most
    /// 10 s later.
    const BOUND: Duration = Duration::from_secs(80);

    fn owner() -> Owner {
        Owner { system: "weir".to_owned(), rank: Rank(0), target: TargetIndex(2) }
    }

    /// A step on a disk that stops before it: what it says in the end, and what was said meanwhile.
    fn silent<T: 'static>(
        step: &'static str,
        work: impl AsyncFnOnce(Handle, Rc<dyn Device>) -> Result<T, String> + 'static,
    ) -> (String, Vec<String>) {
        let world = World::new(1);
        let node = world.node("n");
        let disk = SimDisk::new("/dev/ng0n1", 256 << 20, 1, SimDiskOptions::default());
        let rt = node.handle();
        let device: Rc<dyn Device> = Rc::new(MonitoredDevice::new(&rt, disk.attach(&rt)));
        disk.halt();
        let said = Rc::new(RefCell::new(Vec::new()));
        let notes = Rc::clone(&said);
        let error = world.try_block_on(&node, BOUND, async move {
            let say = |text: &str| notes.borrow_mut().push(text.to_owned());
            let work = work(rt.clone(), Rc::clone(&device));
            with_log(&rt, 2, &device, step, work, say).await.err()
        });
        let error = error.expect("it ends").expect("the device doesn't answer");
        (error, said.take())
    }

    fn check(error: &str, said: &[String], step: &str) {
        assert!(error.contains("/dev/ng0n1") && error.contains("did not end within 65 s"), "{error}");
        let first =
            format!("target 2: waiting for /dev/ng0n1: {step}, 10 s; a read of 4096 bytes at offset 0");
        assert!(said.len() == 6 && said[0].starts_with(&first), "{said:#?}");
        assert!(said[5].contains(&format!("{step}, 60 s")), "{said:#?}");
    }

    #[test]
    fn a_format_on_a_device_that_does_not_answer_ends_and_says_meanwhile_what_it_waits_for() {
        let (error, said) = silent("format", async |rt: Handle, device| {
            let options = FormatOptions { owner: owner(), log_bytes: None };
            Store::format(&rt, &device, &options).await.map_err(|error| error.to_string())
        });
        check(&error, &said, "format");
    }

    #[test]
    fn an_open_on_a_device_that_does_not_answer_ends_and_says_meanwhile_what_it_waits_for() {
        let (error, said) = silent("recovery", async |rt: Handle, device| {
            let opened = Store::open(&rt, device, &owner(), StoreConfig::default()).await;
            opened.map(drop).map_err(|error| error.to_string())
        });
        check(&error, &said, "recovery");
    }

    #[test]
    fn it_is_said_that_another_thread_takes_long() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (end, ended) = tokio::sync::oneshot::channel();
        let end = std::cell::Cell::new(Some(end));
        // The work ends only when something was said.
        let say = |_| assert!(end.take().is_none_or(|end| end.send(7).is_ok()));
        let done = runtime.block_on(async { on_other_thread(Duration::from_millis(1), say, ended).await });
        assert_eq!(done, Ok(7));
    }

    #[test]
    fn another_thread_says_that_a_call_takes_long() {
        let (say, said) = mpsc::channel();
        let say = move |text: &str| drop(say.send(text.to_owned()));
        // The call ends only when something was said.
        let text = blocked(1, Path::new("/dev/ng0n1"), Duration::from_millis(1), say, || {
            said.recv().expect("a notice")
        });
        assert_eq!(text, "target 1: waiting for /dev/ng0n1: open, 0 s");
    }
}
