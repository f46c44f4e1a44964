//! Starts the engines of a system, applies manifests, mounts, and keeps everything running until it is told to end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::watch;
use weir_fuse::process::ProcessRecord;
use weir_fuse::serve;
use weir_fuse::spec::{DEFAULT_THREADS, MountSpec};
use weir_management::v1::EngineHealth;

use super::apply::{APPLY_LIMIT, apply};
use super::manifest::{Manifests, MountRequest};
use crate::connection::System;
use crate::error::{CliError, exit};
use crate::local::{Folder, Member, Running, Settings};
use crate::mount;
use crate::output::lines;
use crate::storage::{container, pool, system};

/// Pause between looks whether engines are up: small beside the second or so that they take.
const READY_PAUSE: Duration = Duration::from_millis(15);

/// Limits of the first look and of a later one. The first is below the pause of a management call's rounds, so that an
/// engine that is not there yet costs one attempt; a look that took all its time doubles it, for a machine on which a TLS
/// handshake takes longer.
const READY_LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// How long an engine may take to end by itself: it writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// First and longest pause before an engine that ended is started again, as the kubelet does at its own pace.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// An engine that ran this long has started well, and its next restart is quick again.
const RESTART_RESET: Duration = Duration::from_secs(30);

/// Pause between looks whether a lost engine is to return, or an engine is added.
const LOST_PAUSE: Duration = Duration::from_millis(200);

/// Lines of an engine's log that are shown when it fails to start.
const LOG_TAIL: usize = 12;

/// Engines whose logs are shown when it isn't known which of them is away.
const LOGS_SHOWN: u32 = 3;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The system's folder.
    pub folder: Folder,
    /// Its shape.
    pub settings: Settings,
    /// It wasn't there before: when its engines don't come up, nothing of it stays.
    pub is_new: bool,
    /// How long its engines may take to be up.
    pub wait: Duration,
    /// Pools and containers to be there.
    pub manifests: Manifests,
    /// Not asked for in particular: those that exist stay as they are.
    pub defaults: bool,
    /// Mounts to be made.
    pub mounts: Vec<MountRequest>,
    /// Program of the engine.
    pub engine_program: PathBuf,
    /// Program of the command line, which serves mounts.
    pub own_program: PathBuf,
    /// Log level of engines.
    pub log: String,
}

/// The running processes, shared by the tasks of one supervisor.
struct Roster {
    folder: Folder,
    running: RefCell<Running>,
}

impl Roster {
    fn change(&self, change: impl FnOnce(&mut Running)) {
        let mut running = self.running.borrow_mut();
        change(&mut running);
        if let Err(error) = self.folder.keep_running(&running) {
            eprintln!("weir dev: {error}");
        }
    }

    fn put(&self, member: Member) {
        self.change(|running| {
            running.members.retain(|other| other.name != member.name);
            running.members.push(member);
        });
    }
}

/// Runs a system until a signal ends it. `say` gets progress, line by line; `ready` is called once.
///
/// # Errors
/// When it cannot be brought up; everything that was started has been ended then. A new system whose engines never were up
/// together leaves nothing, also if a signal has ended it.
pub async fn supervise(plan: Plan, say: impl Fn(&str), ready: impl FnOnce(Duration)) -> Result<(), CliError> {
    let started = Instant::now();
    let supervisor = ProcessRecord::current().map_err(|error| CliError::io("/proc/self/stat", error))?;
    let running = Running { supervisor, ready: false, members: vec![] };
    plan.folder.keep_running(&running)?;
    let roster = Rc::new(Roster { folder: plan.folder.clone(), running: RefCell::new(running) });
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| CliError::io("watch signals", error))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| CliError::io("watch signals", error))?;
    // A terminal that is closed would end this process and leave the engines.
    let hangup = || signal(SignalKind::hangup()).map_err(|error| CliError::io("watch signals", error));
    let mut hangup = if hangup_is_ignored() { None } else { Some(hangup()?) };
    let (stop, stopped) = watch::channel(false);
    let was_up = Cell::new(false);
    let local = tokio::task::LocalSet::new();
    let outcome = local
        .run_until(async {
            let mut engines = Vec::new();
            let mut mounts = Vec::new();
            let work = async {
                bring_up(&plan, &roster, &stopped, &mut engines, &was_up, &say).await?;
                for request in &plan.mounts {
                    mounts.push((mount_one(&plan, request, &roster).await?, request.directory.clone()));
                    say(&format!("mounted {} at {}", request.container, request.directory.display()));
                }
                roster.change(|running| running.ready = true);
                ready(started.elapsed());
                std::future::pending::<()>().await;
                Ok(())
            };
            let outcome = tokio::select! {
                failed = work => failed,
                _ = terminate.recv() => Ok(()),
                _ = interrupt.recv() => Ok(()),
                () = received(hangup.as_mut()) => Ok(()),
            };
            for (child, directory) in mounts {
                end_mount(child, &directory).await;
            }
            let _ = stop.send(true);
            for engine in engines {
                let _ = engine.await;
            }
            outcome
        })
        .await;
    plan.folder.forget_running();
    if plan.is_new && !was_up.get() {
        // They hold nothing, and another try may be of another shape.
        plan.folder.clear()?;
    }
    outcome
}

/// Waits for a signal; for ever without one.
async fn received(signal: Option<&mut Signals>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether this process is to outlive its terminal, as `nohup` arranges.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

type EngineTask = tokio::task::JoinHandle<()>;

/// Starts engines, waits until all are up, and applies manifests.
async fn bring_up(
    plan: &Plan,
    roster: &Rc<Roster>,
    stopped: &watch::Receiver<bool>,
    engines: &mut Vec<EngineTask>,
    was_up: &Cell<bool>,
    say: &impl Fn(&str),
) -> Result<(), CliError> {
    plan.folder.write_files(&plan.settings, &plan.log)?;
    let (failed, mut failure) = tokio::sync::mpsc::unbounded_channel();
    for rank in 0..plan.settings.engines {
        let task = run_engine(plan.clone(), rank, Rc::clone(roster), stopped.clone(), failed.clone());
        engines.push(tokio::task::spawn_local(task));
    }
    engines.push(tokio::task::spawn_local(add_engines(
        plan.clone(),
        Rc::clone(roster),
        stopped.clone(),
        failed,
    )));
    let begun = Instant::now();
    tokio::select! {
        up = wait_up(plan) => up?,
        Some(error) = failure.recv() => return Err(error),
    }
    was_up.set(true);
    say(&format!("{} engines up in {:.2} s", started(plan), begun.elapsed().as_secs_f64()));
    apply(plan, say).await
}

/// How many engines are to be up: all but the lost ones.
fn started(plan: &Plan) -> usize {
    (0..plan.settings.engines).filter(|rank| !plan.folder.is_lost(*rank)).count()
}

/// Waits until an engine says that all are up.
async fn wait_up(plan: &Plan) -> Result<(), CliError> {
    let begun = Instant::now();
    let mut look = READY_LOOK.0;
    let mut system = System::open(&plan.folder.attach(), look)?;
    loop {
        let looked = Instant::now();
        let last = match system::query_system(&system).await {
            Ok(reply) => {
                let up = reply.engines.iter().filter(|engine| engine.health() == EngineHealth::Up).count();
                if up == started(plan) {
                    return Ok(());
                }
                let away = reply.engines.iter().find(|engine| engine.health() != EngineHealth::Up);
                away.map_or_else(
                    || format!("{up} are known"),
                    |engine| format!("engine {}: {}", engine.rank, engine.message),
                )
            }
            Err(error) => {
                if looked.elapsed() >= look {
                    look = (look * 2).min(READY_LOOK.1);
                    system = system.within(look);
                }
                error.to_string()
            }
        };
        if begun.elapsed() > plan.wait {
            return Err(CliError::Dev(format!(
                "engines are not up after {} s ({last}); --wait gives them longer. Their logs end with:\n{}",
                plan.wait.as_secs(),
                logs(plan)
            )));
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
}

/// Keeps one engine running until told to stop. An engine that ends before it has run for [`RESTART_RESET`] for the
/// first time is reported as failed, which matters only while the system is being brought up.
async fn run_engine(
    plan: Plan,
    rank: u32,
    roster: Rc<Roster>,
    mut stopped: watch::Receiver<bool>,
    failed: tokio::sync::mpsc::UnboundedSender<CliError>,
) {
    let mut pause = RESTART_PAUSE.0;
    loop {
        if !there(&plan.folder, rank, &mut stopped).await {
            return;
        }
        let begun = Instant::now();
        let (mut child, process) = match start_engine(&plan, rank) {
            Ok(started) => started,
            Err(error) => {
                let _ = failed.send(error);
                return;
            }
        };
        roster.put(Member { name: format!("engine {rank}"), rank: Some(rank), directory: None, process });
        let status = tokio::select! {
            status = child.wait() => status,
            _ = stopped.wait_for(|stop| *stop) => {
                end(&mut child, process).await;
                return;
            }
        };
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        let status = status.map_or_else(|error| error.to_string(), describe);
        let log = plan.folder.engine_log(rank);
        if plan.folder.is_lost(rank) {
            eprintln!("weir dev: engine {rank} is lost");
            continue;
        }
        eprintln!("weir dev: engine {rank} ended ({status}); it is started again");
        let said = format!("engine {rank} ended ({status}):\n{}", tail(&log));
        let is_refused = code == Some(i32::from(exit::USAGE));
        let _ = failed.send(if is_refused { CliError::Usage(said) } else { CliError::Dev(said) });
        if begun.elapsed() > RESTART_RESET {
            pause = RESTART_PAUSE.0;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.wait_for(|stop| *stop) => return,
        }
        pause = (pause * 2).min(RESTART_PAUSE.1);
    }
}

/// Starts engines that are added to the system's settings while it runs. The others learn of them from the new ones.
async fn add_engines(
    mut plan: Plan,
    roster: Rc<Roster>,
    mut stopped: watch::Receiver<bool>,
    failed: tokio::sync::mpsc::UnboundedSender<CliError>,
) {
    let mut engines = Vec::new();
    while !*stopped.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOST_PAUSE) => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        let settings = match plan.folder.settings() {
            Ok(Some(settings)) if settings.engines > plan.settings.engines => settings,
            _ => continue,
        };
        let new = plan.settings.engines..settings.engines;
        plan.settings = settings;
        if let Err(error) = plan.folder.write_files(&plan.settings, &plan.log) {
            eprintln!("weir dev: {error}");
        }
        for rank in new {
            let task = run_engine(plan.clone(), rank, Rc::clone(&roster), stopped.clone(), failed.clone());
            engines.push(tokio::task::spawn_local(task));
        }
    }
    for engine in engines {
        let _ = engine.await;
    }
}

/// Waits while an engine is lost. Returns false when the system stops.
async fn there(folder: &Folder, rank: u32, stopped: &mut watch::Receiver<bool>) -> bool {
    while folder.is_lost(rank) {
        tokio::select! {
            () = tokio::time::sleep(LOST_PAUSE) => {}
            _ = stopped.wait_for(|stop| *stop) => return false,
        }
    }
    !*stopped.borrow()
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

fn start_engine(plan: &Plan, rank: u32) -> Result<(Child, ProcessRecord), CliError> {
    let log = plan.folder.engine_log(rank);
    let output = append(&log)?;
    let errors = output.try_clone().map_err(|error| CliError::io(log.display().to_string(), error))?;
    let mut command = Command::new(&plan.engine_program);
    // The configuration file says everything; what the shell has set for other commands must not override it.
    let is_set_for_others = |name: &OsString| name.as_encoded_bytes().starts_with(b"WEIR_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_set_for_others(name)) {
        command.env_remove(name);
    }
    let child = command
        .arg("--config")
        .arg(plan.folder.engine_config(rank))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // A Ctrl-C at the terminal is for the supervisor, which ends engines after the mounts.
        .process_group(0)
        .spawn()
        .map_err(|error| CliError::io(format!("start {}", plan.engine_program.display()), error))?;
    let process = record_of(&child, &format!("engine {rank}"))?;
    Ok((child, process))
}

fn record_of(child: &Child, name: &str) -> Result<ProcessRecord, CliError> {
    let pid = child.id().ok_or_else(|| CliError::Dev(format!("{name} ended at once")))?;
    ProcessRecord::of(pid).map_err(|error| CliError::io(format!("process of {name}"), error))
}

fn append(path: &Path) -> Result<fs::File, CliError> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| CliError::io(path.display().to_string(), error))
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut last: VecDeque<&str> = VecDeque::new();
    for line in text.lines() {
        if last.len() == LOG_TAIL {
            last.pop_front();
        }
        last.push_back(line);
    }
    lines(last.into_iter().map(|line| format!("  {line}")))
}

/// The ends of the engines' logs.
fn logs(plan: &Plan) -> String {
    let ranks = 0..plan.settings.engines.min(LOGS_SHOWN);
    lines(ranks.map(|rank| format!("engine {rank}:\n{}", tail(&plan.folder.engine_log(rank)))))
}

/// Ends a process: asks, waits, insists.
async fn end(child: &mut Child, process: ProcessRecord) {
    let _ = process.signal(Signal::TERM);
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = process.signal(Signal::KILL);
        let _ = child.wait().await;
    }
}

async fn mount_one(plan: &Plan, request: &MountRequest, roster: &Roster) -> Result<Child, CliError> {
    let pool = pool_of(plan, request).await?;
    let directory = &request.directory;
    fs::create_dir_all(directory).map_err(|error| CliError::io(directory.display().to_string(), error))?;
    let target =
        directory.canonicalize().map_err(|error| CliError::io(directory.display().to_string(), error))?;
    let spec = MountSpec {
        system: String::new(),
        attach: plan.folder.attach(),
        pool,
        container: request.container.clone(),
        target,
        read_only: false,
        fs_group: 0,
        options: vec![],
        volume: String::new(),
        threads: DEFAULT_THREADS,
        engine_wait: weir_fuse::spec::DEFAULT_ENGINE_WAIT,
        open_wait: weir_fuse::spec::DEFAULT_OPEN_WAIT,
        tenant: None,
    };
    let mut command = Command::from(mount::command_of(&plan.own_program, &spec, None, &plan.log));
    let mut child = command
        .stderr(append(&plan.folder.log())?)
        .spawn()
        .map_err(|error| CliError::io(format!("start {}", plan.own_program.display()), error))?;
    let name = format!("mount {}", spec.target.display());
    let process = record_of(&child, &name)?;
    roster.put(Member { name, rank: None, directory: Some(spec.target.clone()), process });
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let mut reader = BufReader::new(output);
        reader.read_line(&mut line).await.map_err(|error| CliError::io("read the mount's report", error))?;
    }
    mount::parse_report(&line)?;
    Ok(child)
}

/// The pool of a mount request: named, or the only one that has a container of that label.
async fn pool_of(plan: &Plan, request: &MountRequest) -> Result<String, CliError> {
    if let Some(pool) = &request.pool {
        return Ok(pool.clone());
    }
    let system = System::open(&plan.folder.attach(), APPLY_LIMIT)?;
    let mut found = Vec::new();
    for info in pool::list_pools(&system).await? {
        if container::query_container(&system, &info.label, &request.container).await.is_ok() {
            found.push(info.label);
        }
    }
    match found.as_slice() {
        [pool] => Ok(pool.clone()),
        [] => Err(CliError::NotFound(format!("no pool has a container \"{}\"", request.container))),
        several => Err(CliError::Usage(format!(
            "pools {} have a container \"{}\": name one, as POOL/CONTAINER=DIR",
            several.join(", "),
            request.container
        ))),
    }
}

/// Unmounts and waits for the mount's process, which ends when its file system is gone.
async fn end_mount(mut child: Child, directory: &Path) {
    let path = directory.to_owned();
    let unmounted = tokio::task::spawn_blocking(move || {
        serve::unmount(&path, false).or_else(|_| serve::unmount(&path, true))
    });
    let _ = tokio::time::timeout(STOP_LIMIT, unmounted).await;
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
