//! The mount daemon: its protocol, and what outlives what.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use harness::DevSystem;
use tonic::Code;
use weir_fuse::v1::mounts_client::MountsClient;
use weir_fuse::v1::{ListRequest, MountCredentials, MountHealth, MountInfo, MountRequest, UnmountRequest};

/// A mount daemon for a test. Its mounts outlive it, as they should: the test removes them.
struct Daemon {
    process: Child,
    state: PathBuf,
    metrics: SocketAddr,
    runtime: tokio::runtime::Runtime,
}

impl Daemon {
    fn start(system: &DevSystem, root: &Path, attach: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let state = system.folder().join("mountd");
        let process = Command::new(harness::program("weir-mountd", "weir-fuse"))
            .arg("--socket")
            .arg(state.join("mountd.sock"))
            .arg("--state")
            .arg(&state)
            .arg("--root")
            .arg(root)
            .arg("--attach")
            .arg(attach)
            .arg("--metrics")
            .arg(free.to_string())
            .stderr(
                fs::File::options()
                    .create(true)
                    .append(true)
                    .open(system.folder().join("mounts.log"))
                    .expect("log"),
            )
            .spawn()
            .expect("weir-mountd starts");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let daemon = Self { process, state, metrics: free, runtime };
        harness::eventually("the daemon serves", Duration::from_secs(20), || {
            std::os::unix::net::UnixStream::connect(daemon.state.join("mountd.sock")).is_ok()
        });
        daemon
    }

    fn call<T>(&self, work: impl AsyncFnOnce(MountsClient<tonic::transport::Channel>) -> T) -> T {
        let address = format!("unix://{}", self.state.join("mountd.sock").display());
        self.runtime.block_on(async {
            let endpoint = tonic::transport::Endpoint::from_shared(address).expect("an address");
            work(MountsClient::new(endpoint.connect().await.expect("connected"))).await
        })
    }

    fn mount(&self, request: MountRequest) -> Result<MountInfo, tonic::Status> {
        let reply = self.call(async |mut client| client.mount(request).await)?;
        Ok(reply.into_inner().mount.expect("described"))
    }

    fn unmount(&self, target: &Path, lazy: bool) -> Result<(), tonic::Status> {
        let target_path = target.display().to_string();
        self.call(async |mut client| client.unmount(UnmountRequest { target_path, lazy }).await).map(|_| ())
    }

    fn list(&self) -> Vec<MountInfo> {
        self.call(async |mut client| client.list(ListRequest {}).await).expect("listed").into_inner().mounts
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics).expect("connected");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("reaped");
    }
}

fn request(target: &Path) -> MountRequest {
    MountRequest {
        pool: "tank".into(),
        container: "home".into(),
        target_path: target.display().to_string(),
        volume: "pvc-1".into(),
        ..MountRequest::default()
    }
}

/// Process that serves a mount: the daemon's record names it.
fn server_of(daemon: &Daemon, target: &Path) -> i32 {
    let mut records = fs::read_dir(daemon.state.join("mounts")).expect("listed").flatten();
    let record = records.find_map(|folder| {
        let text = fs::read_to_string(folder.path().join("record.json")).ok()?;
        let record: serde_json::Value = serde_json::from_str(&text).ok()?;
        (record["spec"]["target"] == target.display().to_string()).then_some(record)
    });
    i32::try_from(record.expect("recorded")["process"]["pid"].as_i64().expect("a number")).expect("a pid")
}

fn directory(system: &DevSystem, name: &str) -> PathBuf {
    let path = system.folder().join("volumes").join(name);
    fs::create_dir_all(&path).expect("made");
    path
}

/// Unmounts what no test uses any more. A process that another test was just starting has a copy of each open file until it runs its
/// own program.
fn unmount_soon(daemon: &Daemon, target: &Path) {
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(busy) = daemon.unmount(target, false) {
        assert!(busy.code() == Code::FailedPrecondition && Instant::now() < until, "{busy:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn requests_can_be_sent_again_and_bad_ones_say_what_is_wrong() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    system.run(&["container", "create", "tank", "objects", "--type", "object"]);
    let (one, two) = (directory(&system, "one"), directory(&system, "two"));
    let daemon =
        Daemon::start(&system, one.parent().expect("a folder"), &system.folder().join("client.json"));
    let first = daemon.mount(request(&one)).expect("mounted");
    assert_eq!(first.health(), MountHealth::Serving);
    assert!(!first.pool_uuid.is_empty() && !first.container_uuid.is_empty());
    let again = daemon.mount(request(&one)).expect("the same mount");
    assert_eq!(again.mounted_unix_seconds, first.mounted_unix_seconds);
    fs::write(one.join("f"), "x").expect("it works");

    let refused = |request: MountRequest| daemon.mount(request).expect_err("must be refused");
    let other = refused(MountRequest { read_only: true, ..request(&one) });
    assert_eq!(other.code(), Code::AlreadyExists, "{other:?}");
    let bad = refused(MountRequest { options: vec!["sync".into()], ..request(&two) });
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert!(bad.message().contains("\"sync\""), "{bad:?}");
    let absent = refused(MountRequest { container: "nowhere".into(), ..request(&two) });
    assert_eq!(absent.code(), Code::NotFound, "{absent:?}");
    assert!(absent.message().contains("nowhere") && !absent.details().is_empty(), "{absent:?}");
    let objects = refused(MountRequest { container: "objects".into(), ..request(&two) });
    assert_eq!(objects.code(), Code::FailedPrecondition, "{objects:?}");
    let outside = refused(request(Path::new("/tmp")));
    assert_eq!(outside.code(), Code::FailedPrecondition, "{outside:?}");
    let missing = refused(request(&two.join("none")));
    assert_eq!(missing.code(), Code::FailedPrecondition, "{missing:?}");
    assert_eq!(
        refused(MountRequest { system: "another".into(), ..request(&two) }).code(),
        Code::FailedPrecondition
    );
    assert_eq!(
        refused(MountRequest { target_path: "x/../y".into(), ..request(&two) }).code(),
        Code::InvalidArgument
    );
    assert_eq!(daemon.list().len(), 1, "nothing is left of requests that failed");

    let open = fs::File::open(one.join("f")).expect("opened");
    let busy = daemon.unmount(&one, false).expect_err("in use");
    assert_eq!(busy.code(), Code::FailedPrecondition, "{busy:?}");
    drop(open);
    let metrics = daemon.page("/metrics");
    assert!(metrics.contains("weir_mountd_mounts{health=\"serving\"} 1"), "{metrics}");
    let bytes = "weir_mountd_bytes_total{pool=\"tank\",container=\"home\",direction=\"write\"} 1\n";
    assert!(metrics.contains(bytes), "{metrics}");
    assert!(daemon.page("/readyz").starts_with("HTTP/1.1 200"));
    unmount_soon(&daemon, &one);
    daemon.unmount(&one, false).expect("again");
    daemon.unmount(&directory(&system, "never"), false).expect("never was");
    assert!(daemon.list().is_empty());
    assert!(!one.join("f").exists());
    daemon.kill();
}

#[test]
fn an_attach_file_may_come_after_the_daemon() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let target = directory(&system, "one");
    let later = system.folder().join("clients");
    let daemon = Daemon::start(&system, target.parent().expect("a folder"), &later);
    let early = daemon.mount(request(&target)).expect_err("no attach file yet");
    assert_eq!(early.code(), Code::Unavailable, "{early:?}");
    assert!(early.message().contains("StorageCluster"), "it says what to wait for: {early:?}");
    fs::create_dir_all(later.join("weir")).expect("made");
    fs::copy(system.folder().join("client.json"), later.join("weir/client.json")).expect("copied");
    daemon.mount(MountRequest { system: "weir".into(), ..request(&target) }).expect("mounted");
    daemon.unmount(&target, true).expect("unmounted");
    daemon.kill();
}

#[test]
fn mounts_outlive_the_daemon_and_do_not_share_each_others_fate() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let (one, two) = (directory(&system, "one"), directory(&system, "two"));
    let root = one.parent().expect("a folder");
    let attach = system.folder().join("client.json");
    let daemon = Daemon::start(&system, root, &attach);
    daemon.mount(request(&one)).expect("mounted");
    daemon.mount(request(&two)).expect("mounted");
    let servers = (server_of(&daemon, &one), server_of(&daemon, &two));
    let mut file = fs::File::create(one.join("f")).expect("created");
    file.write_all(b"before ").expect("written");
    daemon.kill();
    file.write_all(b"without ").expect("the mount goes on");
    let daemon = Daemon::start(&system, root, &attach);
    file.write_all(b"after").expect("written");
    drop(file);
    assert_eq!(fs::read_to_string(two.join("f")).expect("read"), "before without after");
    let list = daemon.list();
    assert!(list.len() == 2 && list.iter().all(|mount| mount.health() == MountHealth::Serving), "{list:?}");
    assert_eq!((server_of(&daemon, &one), server_of(&daemon, &two)), servers, "the same processes");

    // A mount whose process dies takes no other with it, is reported, and can be made again.
    let pid = rustix::process::Pid::from_raw(servers.0).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    harness::eventually("the dead mount is noticed", Duration::from_secs(10), || {
        daemon.list().iter().any(|mount| mount.health() == MountHealth::Dead)
    });
    assert!(fs::read(one.join("f")).is_err(), "nobody answers");
    assert_eq!(fs::read_to_string(two.join("f")).expect("read"), "before without after");
    let again = daemon.mount(request(&one)).expect("mounted again");
    assert_eq!(again.health(), MountHealth::Serving);
    assert_eq!(fs::read_to_string(one.join("f")).expect("read"), "before without after");
    for target in [&one, &two] {
        daemon.unmount(target, false).expect("unmounted");
    }
    daemon.kill();
}

/// What a tenant's clients attach with, as the operator writes it into their Secret.
fn credentials_of(system: &DevSystem, tenant: u64) -> MountCredentials {
    let folder = system.folder().join(format!("tenant-{tenant}"));
    system.run(&["fabric", "tenant", &tenant.to_string(), folder.to_str().expect("plain")]);
    let read = |name: &str| fs::read(folder.join(name)).expect("written");
    MountCredentials { attach: read("client.json"), key: read("tenant.key") }
}

/// The files that the daemon keeps for its mounts, beside records and sockets.
fn kept(daemon: &Daemon) -> Vec<PathBuf> {
    let folders = fs::read_dir(daemon.state.join("mounts")).expect("listed").flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).expect("listed").flatten());
    files
        .map(|file| file.path())
        .filter(|path| path.ends_with("client.json") || path.ends_with("client.key"))
        .collect()
}

#[test]
fn one_node_serves_tenants_by_the_credentials_of_their_mounts() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    for (tenant, pool) in [("70007", "seven"), ("70008", "eight")] {
        system.run(&["pool", "create", pool, "--size", "64MiB", "--tenant", tenant]);
        system.run(&["container", "create", pool, "home"]);
    }
    let (one, two) = (directory(&system, "one"), directory(&system, "two"));
    let root = one.parent().expect("a folder");
    // The daemon itself has no attach file of any system.
    let nothing = system.folder().join("clients");
    let daemon = Daemon::start(&system, root, &nothing);
    let seven = || MountRequest {
        pool: "seven".into(),
        system: "weir".into(),
        credentials: Some(credentials_of(&system, 70007)),
        ..request(&one)
    };
    let eight = || MountRequest {
        pool: "eight".into(),
        system: "weir".into(),
        credentials: Some(credentials_of(&system, 70008)),
        ..request(&two)
    };
    let theirs = MountRequest { pool: "eight".into(), target_path: two.display().to_string(), ..seven() };
    let refused = daemon.mount(theirs).expect_err("tenant 70007 has no part in it");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(kept(&daemon).is_empty(), "credentials of a mount that failed are kept");
    daemon.mount(seven()).expect("mounted");
    daemon.mount(eight()).expect("mounted");
    daemon.mount(seven()).expect("the same mount");
    let foreign = MountRequest { credentials: Some(credentials_of(&system, 70008)), ..seven() };
    assert_eq!(daemon.mount(foreign).expect_err("another tenant").code(), Code::AlreadyExists);
    fs::write(one.join("f"), "seven's").expect("written");
    fs::write(two.join("f"), "eight's").expect("written");
    let files = kept(&daemon);
    assert_eq!(files.len(), 4, "{files:?}");
    for file in &files {
        assert_eq!(
            fs::metadata(file).expect("there").permissions().mode() & 0o777,
            0o600,
            "{}",
            file.display()
        );
    }

    // A mount whose process has ended is made again by its credentials, which a later daemon has, too.
    let pid = rustix::process::Pid::from_raw(server_of(&daemon, &one)).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    daemon.kill();
    let daemon = Daemon::start(&system, root, &nothing);
    harness::eventually("the dead mount is noticed", Duration::from_secs(10), || {
        daemon.list().iter().any(|mount| mount.health() == MountHealth::Dead)
    });
    daemon.mount(MountRequest { credentials: None, ..seven() }).expect("mounted again");
    assert_eq!(fs::read_to_string(one.join("f")).expect("read"), "seven's");
    for target in [&one, &two] {
        unmount_soon(&daemon, target);
    }
    assert!(kept(&daemon).is_empty(), "credentials outlive their mounts");
    let bare =
        daemon.mount(MountRequest { credentials: None, ..seven() }).expect_err("no credentials at all");
    assert_eq!(bare.code(), Code::Unavailable, "{bare:?}");
    daemon.kill();
}

#[test]
fn nothing_is_open_any_more_of_a_container_that_is_unmounted() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let target = directory(&system, "one");
    let attach = system.folder().join("client.json");
    let daemon = Daemon::start(&system, target.parent().expect("a folder"), &attach);
    let by_daemon: &dyn Fn() = &|| unmount_soon(&daemon, &target);
    let by_command: &dyn Fn() = &|| {
        system.run(&["umount", target.to_str().expect("plain")]);
    };
    for (container, unmount) in [("by-daemon", by_daemon), ("by-command", by_command)] {
        system.run(&["container", "create", "tank", container]);
        daemon.mount(MountRequest { container: container.into(), ..request(&target) }).expect("mounted");
        fs::write(target.join("f"), vec![7; 3 << 20]).expect("written");
        unmount();
        // Refused if a handle were open.
        system.run(&["container", "destroy", "tank", container]);
    }
    daemon.kill();
}

#[test]
fn requests_that_wait_for_an_engine_are_counted_and_told() {
    const FILES: usize = 9;
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let target = directory(&system, "one");
    let attach = system.folder().join("client.json");
    let daemon = Daemon::start(&system, target.parent().expect("a folder"), &attach);
    daemon.mount(request(&target)).expect("mounted");
    let paths: Vec<PathBuf> = (0..FILES).map(|number| target.join(format!("f{number}"))).collect();
    for path in &paths {
        fs::write(path, "small").expect("written");
    }
    let gauge = |name: &str| -> u64 {
        let page = daemon.page("/metrics");
        let series = format!("{name}{{pool=\"tank\",container=\"home\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
    };
    assert_eq!((gauge("weir_mountd_waiting_requests"), gauge("weir_mountd_overflow_threads")), (0, 0));
    let engine = i32::try_from(system.engine_pid(0)).expect("a pid");
    let engine = rustix::process::Pid::from_raw(engine).expect("not zero");
    // Until the kernel knows no attributes any more.
    std::thread::sleep(Duration::from_millis(1500));
    rustix::process::kill_process(engine, rustix::process::Signal::STOP).expect("stopped");
    std::thread::scope(|scope| {
        for path in &paths {
            scope.spawn(move || assert_eq!(fs::metadata(path).expect("sooner or later").len(), 5));
        }
        let begun = Instant::now();
        let told = format!("{FILES} requests wait for engines");
        let is_told = || daemon.list().iter().any(|mount| mount.message.contains(&told));
        while !is_told() && begun.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let seen = (gauge("weir_mountd_waiting_requests"), gauge("weir_mountd_overflow_threads"));
        let list = daemon.list();
        rustix::process::kill_process(engine, rustix::process::Signal::CONT).expect("continued");
        assert!(list[0].health() == MountHealth::Degraded && list[0].message.contains(&told), "{list:?}");
        assert!(seen.0 == FILES as u64 && seen.1 >= 5, "{seen:?}");
    });
    harness::eventually("all is as before", Duration::from_mins(1), || {
        (gauge("weir_mountd_waiting_requests"), gauge("weir_mountd_overflow_threads")) == (0, 0)
    });
    unmount_soon(&daemon, &target);
    daemon.kill();
}

/// KiB of a process's memory that are its own: what it has of programs and libraries, all mounts of a node share.
fn own_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("counted");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// What `docs/reference/posix.md` says of the memory of a mount: two hundred of them take no more than 4 GiB.
#[test]
fn two_hundred_mounts_fit_into_four_gibibytes() {
    const EACH: u64 = (4 << 20) / 200;
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let target = directory(&system, "one");
    let attach = system.folder().join("client.json");
    let daemon = Daemon::start(&system, target.parent().expect("a folder"), &attach);
    daemon.mount(request(&target)).expect("mounted");
    let pid = server_of(&daemon, &target);
    // Enough for each thread to have served some.
    for number in 0..32 {
        let path = target.join(format!("f{number}"));
        fs::write(&path, "small").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"small");
    }
    assert_eq!(fs::read_dir(&target).expect("listed").count(), 32);
    let taken = own_memory(pid);
    assert!(taken <= EACH, "a mount with small files takes {taken} KiB, not {EACH}");
    unmount_soon(&daemon, &target);
    daemon.kill();
}

/// Mounts whose system speaks one of Mercury's protocols: data of several sizes there and back, two mounts of one container,
/// a server of a mount that dies, an engine that dies, and a daemon that is replaced.
#[cfg(feature = "mercury")]
fn mounts_over(provider: &str) {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB", "--provider", provider]);
    let (one, two) = (directory(&system, "one"), directory(&system, "two"));
    let root = one.parent().expect("a folder");
    let attach = system.folder().join("client.json");
    let daemon = Daemon::start(&system, root, &attach);
    for target in [&one, &two] {
        let mount =
            daemon.mount(request(target)).unwrap_or_else(|error| panic!("{error:?}\n{}", system.logs()));
        assert_eq!(mount.health(), MountHealth::Serving);
    }
    // In the message, in several messages, and by RMA in several pieces.
    let contents = |len: usize| (0..len).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect::<Vec<u8>>();
    let sizes = [0, 100, 5000, 70_000, 9 << 20];
    for len in sizes {
        fs::write(one.join(format!("f{len}")), contents(len)).expect("written");
    }
    for len in sizes {
        assert!(fs::read(two.join(format!("f{len}"))).expect("read") == contents(len), "{len} bytes");
    }

    let pid = rustix::process::Pid::from_raw(server_of(&daemon, &one)).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    harness::eventually("the dead mount is noticed", Duration::from_secs(10), || {
        daemon.list().iter().any(|mount| mount.health() == MountHealth::Dead)
    });
    daemon.mount(request(&one)).expect("mounted again");

    let pid = i32::try_from(system.engine_pid(1)).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    daemon.kill();
    let daemon = Daemon::start(&system, root, &attach);
    // What was there and what is new, with the engine that `weir dev` has started again.
    for len in sizes {
        assert!(fs::read(one.join(format!("f{len}"))).expect("read") == contents(len), "{len} bytes");
        fs::write(two.join(format!("g{len}")), contents(len)).expect("written");
    }
    for target in [&one, &two] {
        daemon.unmount(target, false).expect("unmounted");
    }
    daemon.kill();
}

#[cfg(feature = "mercury")]
#[test]
fn mounts_over_mercury_on_tcp_hold_what_was_written_when_servers_and_engines_die() {
    mounts_over("mercury/ofi+tcp");
}

#[cfg(feature = "mercury")]
#[test]
fn mounts_over_mercury_in_shared_memory_hold_what_was_written_when_servers_and_engines_die() {
    mounts_over("mercury/na+sm");
}
