//! Counters of one mount, and the Prometheus text of many. Names and labels are those of `docs/reference/metrics.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper bounds of the latency histogram in microseconds (`docs/reference/metrics.md`, "Histogram buckets").
pub const BUCKETS_MICROS: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// FUSE operations that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the FUSE operations")]
pub enum Operation {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Link,
    Rename,
    Open,
    Create,
    Read,
    Write,
    Release,
    Flush,
    Fsync,
    Opendir,
    Readdir,
    Readdirplus,
    Fsyncdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
    CopyFileRange,
    Ioctl,
}

const OPERATIONS: [(Operation, &str); 31] = [
    (Operation::Lookup, "lookup"),
    (Operation::Getattr, "getattr"),
    (Operation::Setattr, "setattr"),
    (Operation::Readlink, "readlink"),
    (Operation::Mknod, "mknod"),
    (Operation::Mkdir, "mkdir"),
    (Operation::Unlink, "unlink"),
    (Operation::Rmdir, "rmdir"),
    (Operation::Symlink, "symlink"),
    (Operation::Link, "link"),
    (Operation::Rename, "rename"),
    (Operation::Open, "open"),
    (Operation::Create, "create"),
    (Operation::Read, "read"),
    (Operation::Write, "write"),
    (Operation::Release, "release"),
    (Operation::Flush, "flush"),
    (Operation::Fsync, "fsync"),
    (Operation::Opendir, "opendir"),
    (Operation::Readdir, "readdir"),
    (Operation::Readdirplus, "readdirplus"),
    (Operation::Fsyncdir, "fsyncdir"),
    (Operation::Statfs, "statfs"),
    (Operation::Setxattr, "setxattr"),
    (Operation::Getxattr, "getxattr"),
    (Operation::Listxattr, "listxattr"),
    (Operation::Removexattr, "removexattr"),
    (Operation::Fallocate, "fallocate"),
    (Operation::Lseek, "lseek"),
    (Operation::CopyFileRange, "copy_file_range"),
    (Operation::Ioctl, "ioctl"),
];

impl Operation {
    /// Name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        OPERATIONS[self as usize].1
    }
}

#[derive(Debug, Default)]
struct Latency {
    buckets: [AtomicU64; BUCKETS_MICROS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// Counters of one mount. Several threads count at once; a count may be seen a moment before another of the same event.
#[derive(Debug, Default)]
pub struct Metrics {
    latencies: [Latency; OPERATIONS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// Errors are rare, so a lock costs nothing.
    errors: Mutex<BTreeMap<i32, u64>>,
}

/// Errors that programs ask for in their normal course, e.g. to learn that a name is free, or that a file ends with a hole.
fn is_answer(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOENT | libc::ENODATA | libc::EEXIST | libc::ENOTEMPTY | libc::ENXIO | libc::ENOTTY
    )
}

impl Metrics {
    /// Counts an answered request.
    pub fn answered(&self, operation: Operation, took: Duration, errno: Option<i32>) {
        let latency = &self.latencies[operation as usize];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BUCKETS_MICROS.iter().position(|bound| micros <= *bound) {
            latency.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        latency.count.fetch_add(1, Ordering::Relaxed);
        latency.micros.fetch_add(micros, Ordering::Relaxed);
        if let Some(errno) = errno.filter(|errno| !is_answer(*errno)) {
            let mut errors = self.errors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *errors.entry(errno).or_default() += 1;
        }
    }

    /// Requests that were answered.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.latencies.iter().map(|latency| latency.count.load(Ordering::Relaxed)).sum()
    }

    /// Counts bytes handed to an application.
    pub fn read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes taken from an application.
    pub fn written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counts now. What waits, others know.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut operations = BTreeMap::new();
        for (operation, name) in OPERATIONS {
            let latency = &self.latencies[operation as usize];
            let count = latency.count.load(Ordering::Relaxed);
            if count > 0 {
                let buckets = latency.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
                let micros = latency.micros.load(Ordering::Relaxed);
                operations.insert(name.to_owned(), Histogram { buckets, count, micros });
            }
        }
        let errors = self.errors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Snapshot {
            operations,
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            errors: errors.iter().map(|(errno, count)| (errno_name(*errno), *count)).collect(),
            ..Snapshot::default()
        }
    }
}

/// Latencies of one operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Events in each bucket of [`BUCKETS_MICROS`], not cumulative.
    pub buckets: Vec<u64>,
    /// Events in all.
    pub count: u64,
    /// Sum of latencies in microseconds.
    pub micros: u64,
}

impl Histogram {
    fn add(&mut self, other: &Self) {
        self.buckets.resize(BUCKETS_MICROS.len(), 0);
        for (own, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += theirs;
        }
        self.count += other.count;
        self.micros += other.micros;
    }
}

/// Counts of one mount at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// By operation.
    pub operations: BTreeMap<String, Histogram>,
    /// Bytes handed to applications.
    pub read_bytes: u64,
    /// Bytes taken from applications.
    pub written_bytes: u64,
    /// Bytes among them that the engines don't have yet.
    #[serde(default)]
    pub unsent_bytes: u64,
    /// Requests that wait for engines.
    #[serde(default)]
    pub waiting_requests: u64,
    /// Threads that serve requests beside them.
    #[serde(default)]
    pub overflow_threads: u64,
    /// Programs that find names past the mount, because of which it gathers nothing.
    #[serde(default)]
    pub name_readers: u64,
    /// By errno name.
    pub errors: BTreeMap<String, u64>,
}

/// Symbolic name of an errno; its number when it has none here.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::E2BIG => "E2BIG",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::ERANGE => "ERANGE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::ENODATA => "ENODATA",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ESTALE => "ESTALE",
        libc::EDQUOT => "EDQUOT",
        libc::ECANCELED => "ECANCELED",
        other => return other.to_string(),
    };
    name.to_owned()
}

/// One mount as metrics show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountMetrics {
    /// Label of the pool.
    pub pool: String,
    /// Label of the container.
    pub container: String,
    /// `serving`, `degraded` or `dead`.
    pub health: &'static str,
    /// Counts; of a dead mount the last that were seen, or none.
    pub counts: Snapshot,
}

/// Prometheus text of a daemon with these mounts. Mounts of one container are added up, since a series must appear once.
#[must_use]
pub fn render(mounts: &[MountMetrics]) -> String {
    let mut text = String::new();
    family(&mut text, "weir_mountd_build_info", "gauge", "Version of the mount daemon; always 1.");
    let _ = writeln!(text, "weir_mountd_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    family(&mut text, "weir_mountd_mounts", "gauge", "Mounts by health.");
    for health in ["serving", "degraded", "dead"] {
        let count = mounts.iter().filter(|mount| mount.health == health).count();
        let _ = writeln!(text, "weir_mountd_mounts{{health=\"{health}\"}} {count}");
    }
    let mut containers: BTreeMap<(&str, &str), Snapshot> = BTreeMap::new();
    let mut latencies: BTreeMap<&str, Histogram> = BTreeMap::new();
    for mount in mounts {
        let sum = containers.entry((&mount.pool, &mount.container)).or_default();
        sum.read_bytes += mount.counts.read_bytes;
        sum.written_bytes += mount.counts.written_bytes;
        sum.unsent_bytes += mount.counts.unsent_bytes;
        sum.waiting_requests += mount.counts.waiting_requests;
        sum.overflow_threads += mount.counts.overflow_threads;
        sum.name_readers += mount.counts.name_readers;
        for (name, histogram) in &mount.counts.operations {
            sum.operations.entry(name.clone()).or_default().add(histogram);
            latencies.entry(name).or_default().add(histogram);
        }
        for (name, count) in &mount.counts.errors {
            *sum.errors.entry(name.clone()).or_default() += count;
        }
    }
    render_containers(&mut text, &containers);
    render_latencies(&mut text, &latencies);
    render_process(&mut text);
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn render_containers(text: &mut String, containers: &BTreeMap<(&str, &str), Snapshot>) {
    let labels = |(pool, container): &(&str, &str)| {
        format!("pool=\"{}\",container=\"{}\"", escape(pool), escape(container))
    };
    let mut gauge = |name: &str, help: &str, value: fn(&Snapshot) -> u64| {
        family(text, name, "gauge", help);
        for (names, counts) in containers {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(names), value(counts));
        }
    };
    let help = "Bytes written by applications that the engines don't have yet.";
    gauge("weir_mountd_unsent_bytes", help, |counts| counts.unsent_bytes);
    let help = "Requests of the kernel that have waited for engines for more than 250 ms.";
    gauge("weir_mountd_waiting_requests", help, |counts| counts.waiting_requests);
    let help = "Threads that serve requests beside those of which requests wait for engines.";
    gauge("weir_mountd_overflow_threads", help, |counts| counts.overflow_threads);
    let help = "Programs that find names past the mount, because of which it gathers no writes.";
    gauge("weir_mountd_name_readers", help, |counts| counts.name_readers);
    family(text, "weir_mountd_operations_total", "counter", "Requests of the kernel answered.");
    for (names, counts) in containers {
        for (op, histogram) in &counts.operations {
            let count = histogram.count;
            let _ = writeln!(text, "weir_mountd_operations_total{{{},op=\"{op}\"}} {count}", labels(names));
        }
    }
    family(text, "weir_mountd_bytes_total", "counter", "Bytes read and written through mounts.");
    for (names, counts) in containers {
        for (direction, bytes) in [("read", counts.read_bytes), ("write", counts.written_bytes)] {
            let _ = writeln!(
                text,
                "weir_mountd_bytes_total{{{},direction=\"{direction}\"}} {bytes}",
                labels(names)
            );
        }
    }
    family(
        text,
        "weir_mountd_errors_total",
        "counter",
        "Requests answered with an error that programs do not expect.",
    );
    for (names, counts) in containers {
        for (errno, count) in &counts.errors {
            let _ = writeln!(text, "weir_mountd_errors_total{{{},errno=\"{errno}\"}} {count}", labels(names));
        }
    }
}

/// Seconds as Prometheus text; exact, since the number of microseconds is.
fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn render_latencies(text: &mut String, latencies: &BTreeMap<&str, Histogram>) {
    let name = "weir_mountd_operation_seconds";
    family(text, name, "histogram", "From a request of the kernel to its answer.");
    for (op, histogram) in latencies {
        let mut cumulative = 0;
        for (bound, count) in BUCKETS_MICROS.iter().zip(&histogram.buckets) {
            cumulative += count;
            let bound = seconds(*bound);
            let bound = bound.trim_end_matches('0').trim_end_matches('.');
            let _ = writeln!(text, "{name}_bucket{{op=\"{op}\",le=\"{bound}\"}} {cumulative}");
        }
        let _ = writeln!(text, "{name}_bucket{{op=\"{op}\",le=\"+Inf\"}} {}", histogram.count);
        let _ = writeln!(text, "{name}_sum{{op=\"{op}\"}} {}", seconds(histogram.micros));
        let _ = writeln!(text, "{name}_count{{op=\"{op}\"}} {}", histogram.count);
    }
}

/// The series that every component serves of its own process.
fn render_process(text: &mut String) {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |index: usize| -> u64 {
        after_name.split_ascii_whitespace().nth(index).and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    // Fields 14 and 15 of proc(5)'s stat are user and system time, 22 the start and 24 the resident pages; the list
    // here begins with field 3.
    let cpu_millis = (field(11) + field(12)) * 1000 / ticks;
    family(text, "process_cpu_seconds_total", "counter", "Processor time of the process.");
    let _ = writeln!(text, "process_cpu_seconds_total {}.{:03}", cpu_millis / 1000, cpu_millis % 1000);
    let resident = field(21) * rustix::param::page_size() as u64;
    family(text, "process_resident_memory_bytes", "gauge", "Resident memory of the process.");
    let _ = writeln!(text, "process_resident_memory_bytes {resident}");
    let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    family(text, "process_open_fds", "gauge", "Open file descriptors of the process.");
    let _ = writeln!(text, "process_open_fds {descriptors}");
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot =
        boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    family(text, "process_start_time_seconds", "gauge", "Start of the process, seconds since 1970.");
    let _ = writeln!(text, "process_start_time_seconds {}", boot + field(19) / ticks);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_own_name() {
        for (index, (operation, name)) in OPERATIONS.iter().enumerate() {
            assert_eq!(*operation as usize, index);
            assert_eq!(operation.name(), *name);
        }
    }

    #[test]
    fn buckets_are_cumulative_and_expected_errors_do_not_count() {
        let metrics = Metrics::default();
        metrics.answered(Operation::Write, Duration::from_micros(60), None);
        metrics.answered(Operation::Write, Duration::from_secs(9), Some(libc::ENOSPC));
        metrics.answered(Operation::Lookup, Duration::from_micros(10), Some(libc::ENOENT));
        metrics.written(4096);
        let mount = MountMetrics {
            pool: "tank".into(),
            container: "a\"b".into(),
            health: "serving",
            counts: Snapshot {
                waiting_requests: 3,
                overflow_threads: 2,
                name_readers: 1,
                ..metrics.snapshot()
            },
        };
        let text = render(&[mount.clone(), mount]);
        for line in [
            "weir_mountd_mounts{health=\"serving\"} 2",
            "weir_mountd_operations_total{pool=\"tank\",container=\"a\\\"b\",op=\"write\"} 4",
            "weir_mountd_bytes_total{pool=\"tank\",container=\"a\\\"b\",direction=\"write\"} 8192",
            "weir_mountd_errors_total{pool=\"tank\",container=\"a\\\"b\",errno=\"ENOSPC\"} 2",
            "weir_mountd_waiting_requests{pool=\"tank\",container=\"a\\\"b\"} 6",
            "weir_mountd_overflow_threads{pool=\"tank\",container=\"a\\\"b\"} 4",
            "weir_mountd_name_readers{pool=\"tank\",container=\"a\\\"b\"} 2",
            "weir_mountd_operation_seconds_bucket{op=\"write\",le=\"0.00005\"} 0",
            "weir_mountd_operation_seconds_bucket{op=\"write\",le=\"5\"} 2",
            "weir_mountd_operation_seconds_bucket{op=\"write\",le=\"+Inf\"} 4",
            "weir_mountd_operation_seconds_sum{op=\"write\"} 18.000120",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("errno=\"ENOENT\""));
        assert!(text.contains("process_open_fds "));
    }
}
