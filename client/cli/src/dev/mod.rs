//! `weir dev`: the same engine without Kubernetes. N engines on loopback, pools and containers from the same manifests,
//! mounts. The room calls the system's folder, connections, and the commands for storage and mounts. Nothing but the arguments
//! calls it.

mod apply;
mod growth;
mod loss;
mod manifest;
mod quantity;
mod supervisor;
mod trust;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;
use weir_fuse::mountinfo;
use weir_management::v1::{
    ContainerCreateRequest, ContainerType, PoolCreateRequest, PoolInfo, SystemQueryResponse,
};

use crate::connection::{System, runtime};
use crate::error::CliError;
use crate::local::{Folder, Lock, Running, Settings, default_folder, in_quotes, quoted};
use crate::output::{Answer, Output, table};
use crate::storage::{pool, system};
use crate::values::{self, Size};
use loss::EngineArguments;
use manifest::{Manifests, MountRequest};
use supervisor::Plan;

/// First words of the line by which a detached supervisor says that the system is up.
const READY_LINE: &str = "weir dev is up";

/// Engines of a system that neither arguments nor a manifest describe.
const ENGINES: u32 = 3;
/// Redundancy factor of the default pool, unless another one is asked for: 1, or 0 with one engine.
fn default_redundancy(engines: u32) -> u32 {
    engines.saturating_sub(1).min(1)
}

/// How long `down` waits for the supervisor, which gives engines time to write a checkpoint.
const DOWN_LIMIT: Duration = Duration::from_mins(1);

/// How long a process that is left over may take to end after it was asked.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

/// A system on this machine.
#[derive(Subcommand, Debug, Clone)]
pub enum DevCommand {
    /// Start engines, apply manifests, mount.
    Up(Box<UpArguments>),
    /// Unmount and stop everything.
    Down(DownArguments),
    /// Show what runs.
    Status(DirArguments),
    /// Print what makes other commands use this system: eval "$(weir dev env)".
    Env(DirArguments),
    /// End an engine with SIGKILL; it is started again, as Kubernetes would.
    Kill(EngineArguments),
    /// End an engine with SIGKILL and erase its data; it stays away until `return`.
    Lose(EngineArguments),
    /// Start a lost engine again, empty.
    Return(EngineArguments),
    /// Start one engine more, which joins the system; `pool extend` has it join pools.
    Add(DirArguments),
}

/// Names a system's folder.
#[derive(Args, Debug, Clone)]
pub struct DirArguments {
    /// Folder of the system [default: ~/.weir-dev].
    #[arg(long, env = "WEIR_DEV_DIR")]
    pub dir: Option<PathBuf>,
}

impl DirArguments {
    fn folder(&self) -> Result<Folder, CliError> {
        let path = self.dir.clone().unwrap_or_else(default_folder);
        let folder = std::path::absolute(&path)
            .map(Folder)
            .map_err(|error| CliError::io(path.display().to_string(), error))?;
        trust::check(&folder.0)?;
        Ok(folder)
    }
}

/// A system to be started.
#[derive(Args, Debug, Clone)]
pub struct UpArguments {
    #[command(flatten)]
    dir: DirArguments,
    /// Number of engines [default: 3, or what the manifest says].
    #[arg(long)]
    engines: Option<u32>,
    /// Targets of each engine [default: 2, or what the manifest says].
    #[arg(long)]
    targets: Option<u32>,
    /// Storage of each engine, taken from the disk at once [default: 4GiB, or what the manifest says].
    #[arg(long)]
    size: Option<Size>,
    /// Redundancy factor of the pool "tank": how many engines may be lost at a time. Kept with the system [default: 1, or 0 with one
    /// engine].
    #[arg(long, value_name = "FACTOR")]
    redundancy: Option<u32>,
    /// Device of a target instead of a file, e.g. /dev/ng0n1: given once for each target of each engine, those of engine 0
    /// first.
    #[arg(long = "device")]
    devices: Vec<PathBuf>,
    /// libfabric provider [default: tcp, or what the manifest says].
    #[arg(long, value_parser = values::name)]
    provider: Option<String>,
    /// Have `weir fabric bench` measure the engines by this provider, too. May be given several times.
    #[arg(long = "probe", value_parser = values::name)]
    probes: Vec<String>,
    /// Manifest with the cluster, pools and containers to be there; other kinds are ignored. May be given several times.
    /// Without any, a pool "tank" with a file system "home" is made.
    #[arg(long)]
    apply: Vec<PathBuf>,
    /// Mount a container: [POOL/]CONTAINER=DIR. May be given several times.
    #[arg(long = "mount")]
    mounts: Vec<MountRequest>,
    /// Make no pool and no container of its own.
    #[arg(long)]
    bare: bool,
    /// Go on in the background once everything is up.
    #[arg(short, long)]
    detach: bool,
    /// Seconds that engines may take to be up: to format a device, or to recover a large log.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Log level of engines and mounts.
    #[arg(long, default_value = "info", value_parser = weir_fuse::spec::parse_log)]
    log: String,
    /// Program of the engine [default: weir-engine beside this program, else on PATH].
    #[arg(long, env = "WEIR_ENGINE")]
    engine: Option<PathBuf>,
    /// Started by `up --detach`.
    #[arg(long, hide = true)]
    detached: bool,
}

/// A system to be stopped.
#[derive(Args, Debug, Clone)]
pub struct DownArguments {
    #[command(flatten)]
    dir: DirArguments,
    /// Remove the folder with all data too.
    #[arg(long)]
    wipe: bool,
}

/// Performs a `dev` command.
///
/// # Errors
/// When the system cannot be started, stopped or asked.
pub fn run(command: DevCommand, output: Output) -> Result<Answer, CliError> {
    match command {
        DevCommand::Up(arguments) if arguments.detach && !arguments.detached => {
            up_detached(&arguments, output)
        }
        DevCommand::Up(arguments) => up(&arguments, output),
        DevCommand::Down(arguments) => down(&arguments),
        DevCommand::Status(arguments) => status(&arguments.folder()?),
        DevCommand::Env(arguments) => env(&arguments.folder()?),
        DevCommand::Kill(arguments) => loss::kill(&arguments),
        DevCommand::Lose(arguments) => loss::lose(&arguments),
        DevCommand::Return(arguments) => loss::come_back(&arguments),
        DevCommand::Add(arguments) => growth::add(&arguments.folder()?),
    }
}

fn plan(arguments: &UpArguments, folder: Folder) -> Result<Plan, CliError> {
    let is_new = folder.is_new()?;
    let mut manifests = Manifests::load(&arguments.apply)?;
    let settings = settings_of(arguments, &manifests, &folder)?;
    settings.check()?;
    let defaults = arguments.apply.is_empty() && !arguments.bare;
    if defaults {
        add_defaults(&mut manifests, &settings);
    }
    let own_program = std::env::current_exe().map_err(|error| CliError::io("path of this program", error))?;
    let engine_program = arguments.engine.clone().unwrap_or_else(|| engine_beside(&own_program));
    Ok(Plan {
        folder,
        settings,
        wait: Duration::from_secs(arguments.wait),
        manifests,
        defaults,
        mounts: arguments.mounts.clone(),
        is_new,
        engine_program,
        own_program,
        log: arguments.log.clone(),
    })
}

fn refuse_second(folder: &Folder) -> Result<(), CliError> {
    match folder.running()? {
        Some(running) if running.supervisor.is_alive() => Err(CliError::Busy(format!(
            "a system runs in {} already (process {}): stop it with `{}`, or give another --dir",
            folder.0.display(),
            running.supervisor.pid,
            folder.command("down")
        ))),
        _ => Ok(()),
    }
}

/// Makes a folder this process' own, in which no system runs any more.
fn take(folder: &Folder) -> Result<Lock, CliError> {
    refuse_second(folder)?;
    trust::make(&folder.0)?;
    let Some(lock) = folder.lock()? else {
        // The holder of the lock may have said so by now.
        refuse_second(folder)?;
        return Err(folder.is_busy());
    };
    refuse_second(folder)?;
    if let Some(running) = folder.running()? {
        // Its supervisor was killed and left them: they hold the data and the ports.
        tracing::warn!(folder = %folder.0.display(), "ending what a supervisor left");
        end_leftovers(&running)?;
    }
    Ok(lock)
}

/// The shape of the system: of the folder when it has one, else what arguments and manifests say.
fn settings_of(
    arguments: &UpArguments,
    manifests: &Manifests,
    folder: &Folder,
) -> Result<Settings, CliError> {
    let cluster = manifests.cluster.as_ref();
    let engines = arguments.engines.or(cluster.map(|cluster| cluster.engines));
    let targets = arguments.targets.or(cluster.map(|cluster| cluster.targets));
    let size = arguments.size.map(|size| size.0).or(cluster.map(|cluster| cluster.size));
    let provider = arguments.provider.clone().or(cluster.map(|cluster| cluster.provider.clone()));
    let kept = folder.settings()?;
    let (is_new, count) = (kept.is_none(), engines.unwrap_or(ENGINES));
    let mut settings = match kept {
        Some(kept) => {
            let differs = engines.is_some_and(|engines| engines != kept.engines)
                || targets.is_some_and(|targets| targets != kept.targets)
                || size.is_some_and(|size| size != kept.size)
                || provider.is_some_and(|provider| provider != kept.provider)
                || arguments.redundancy.is_some_and(|factor| factor != kept.redundancy)
                || (!arguments.devices.is_empty() && arguments.devices != kept.devices)
                || (!arguments.probes.is_empty() && arguments.probes != kept.probes);
            if differs {
                return Err(CliError::Usage(format!(
                    "{} holds a system of {} engines with {} targets and {} each, redundancy {}, provider {}, devices {:?}, probes {:?}: use these, another --dir, or `{}`",
                    folder.0.display(),
                    kept.engines,
                    kept.targets,
                    Size(kept.size),
                    kept.redundancy,
                    kept.provider,
                    kept.devices,
                    kept.probes,
                    folder.command("down --wipe")
                )));
            }
            kept
        }
        None => Settings {
            provider: provider.unwrap_or_else(|| "tcp".into()),
            engines: count,
            redundancy: arguments.redundancy.unwrap_or_else(|| default_redundancy(count)),
            targets: targets.unwrap_or(2),
            size: size.unwrap_or(4 << 30),
            devices: arguments.devices.clone(),
            probes: arguments.probes.clone(),
            ports: vec![],
        },
    };
    settings.check()?;
    if is_new {
        settings.check_files(&folder.0)?;
    }
    settings.assign_ports()?;
    Ok(settings)
}

/// A pool over half the space, and a file system in it.
fn add_defaults(manifests: &mut Manifests, settings: &Settings) {
    let whole = settings.target_size() * u64::from(settings.targets) * u64::from(settings.engines);
    manifests.pools.push(PoolCreateRequest {
        uuid: String::new(),
        label: "tank".into(),
        size_bytes: whole / 2,
        ranks: vec![],
        redundancy_factor: settings.redundancy,
        object_class: String::new(),
        tenant: 0,
        places: vec![],
    });
    manifests.containers.push(ContainerCreateRequest {
        uuid: String::new(),
        pool: "tank".into(),
        label: "home".into(),
        r#type: ContainerType::Posix.into(),
        quota_bytes: 0,
        object_class: String::new(),
        chunk_size_bytes: 0,
        attributes: std::collections::HashMap::new(),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mode: 0o755,
    });
}

fn engine_beside(own: &Path) -> PathBuf {
    let beside = own.with_file_name("weir-engine");
    if beside.is_file() { beside } else { PathBuf::from("weir-engine") }
}

fn up(arguments: &UpArguments, output: Output) -> Result<Answer, CliError> {
    let folder = arguments.dir.folder()?;
    let is_own = !folder.0.exists();
    let lock = take(&folder)?;
    let outcome = supervise(arguments, folder.clone(), output);
    if !arguments.detached {
        folder.forget(is_own);
    } else if let Err(error) = &outcome {
        // The process that started it removes what is left, and may have gone.
        eprintln!("ERROR: {error}");
    }
    drop(lock);
    outcome
}

fn supervise(arguments: &UpArguments, folder: Folder, output: Output) -> Result<Answer, CliError> {
    let plan = plan(arguments, folder)?;
    plan.folder.keep_settings(&plan.settings)?;
    let folder = plan.folder.clone();
    let say = |line: &str| {
        // A parent that has gone away has heard enough. JSON stands alone; a parent tells the one from the other.
        let _ = if output.json && !arguments.detached {
            writeln!(std::io::stderr(), "{line}")
        } else {
            writeln!(std::io::stdout(), "{line}")
        };
    };
    let ready = |took: Duration| {
        if arguments.detached {
            // A session of its own: from now on neither the terminal's Ctrl-C nor its end reaches it.
            let _ = rustix::process::setsid();
        }
        say(&format!("{READY_LINE} in {:.2} s", took.as_secs_f64()));
        say(&hints(&folder, arguments.detached));
    };
    let runtime = runtime()?;
    let outcome = runtime.block_on(supervisor::supervise(plan, say, ready));
    runtime.shutdown_background();
    outcome.map(|()| Answer::new(serde_json::Value::Null, "weir dev is down\n"))
}

fn hints(folder: &Folder, detached: bool) -> String {
    let stop = if detached { format!(": {}", folder.command("down")) } else { " Ctrl-C".to_owned() };
    format!("use it with: export WEIR_ATTACH={}\nstop with{stop}", quoted(&folder.attach()))
}

/// Starts the supervisor in the background and relays what it says until the system is up.
fn up_detached(arguments: &UpArguments, output: Output) -> Result<Answer, CliError> {
    let begun = Instant::now();
    let folder = arguments.dir.folder()?;
    refuse_second(&folder)?;
    if let Some(path) = arguments.apply.iter().find(|path| path.exists() && !path.is_file()) {
        let reason =
            "it is no file, and the process in the background reads it again: write it to one".to_owned();
        return Err(CliError::Manifest { path: path.clone(), reason });
    }
    // Mistakes in the arguments are told before anything is made.
    plan(arguments, folder.clone())?;
    let is_own = !folder.0.exists();
    trust::make(&folder.0)?;
    let mut child = background(&folder, output)?;
    let stdout = child.stdout.take().ok_or_else(|| CliError::Dev("the supervisor has no output".into()))?;
    let mut failure = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|error| CliError::io("read the supervisor's output", error))?;
        let ready = line.starts_with(READY_LINE);
        // Its last words, if it fails.
        failure = serde_json::from_str(&line).ok();
        if failure.is_none() && !output.json {
            // A start doesn't fail because its output isn't read.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        if ready {
            output.timing("weir dev up", begun);
            let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Ok(Answer::new(
                json!({"attach_file": folder.attach(), "pid": child.id(), "milliseconds": millis}),
                format!("{}\n", hints(&folder, true)),
            ));
        }
    }
    let code = child.wait().ok().and_then(|status| status.code());
    folder.forget(is_own);
    Err(match (failure, code.and_then(|code| u8::try_from(code).ok())) {
        (Some(Failure { error: reason, status }), Some(code)) => {
            CliError::Background { reason, status, code }
        }
        _ => CliError::Dev(format!("the system did not come up; its log is {}", folder.log().display())),
    })
}

/// What a supervisor says at its end, as JSON.
#[derive(Deserialize)]
struct Failure {
    error: String,
    status: i64,
}

/// A supervisor in the background, with the arguments of this process.
fn background(folder: &Folder, output: Output) -> Result<Child, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::io("path of this program", error))?;
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.log())
        .map_err(|error| CliError::io(folder.log().display().to_string(), error))?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).arg("--detached");
    if !output.json {
        command.arg("--json");
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| CliError::io(format!("start {}", program.display()), error))
}

/// Ends what a dead supervisor left: mounts first, then engines.
fn end_leftovers(running: &Running) -> Result<(), CliError> {
    let runtime = runtime()?;
    let (mounts, engines): (Vec<_>, Vec<_>) =
        running.members.iter().partition(|member| member.directory.is_some());
    for member in mounts.into_iter().chain(engines) {
        if let Some(directory) = &member.directory {
            // A mount whose process is dead holds its directory until it is unmounted.
            let _ = weir_fuse::serve::unmount(directory, true);
        }
        let _ = member.process.signal(Signal::TERM);
        let gone = runtime.block_on(member.process.wait_gone(LEFTOVER_LIMIT)).unwrap_or(true);
        if !gone {
            let _ = member.process.signal(Signal::KILL);
            let _ = runtime.block_on(member.process.wait_gone(LEFTOVER_LIMIT));
        }
    }
    Ok(())
}

fn down(arguments: &DownArguments) -> Result<Answer, CliError> {
    let folder = arguments.dir.folder()?;
    let running = folder.running()?;
    if let Some(running) = &running {
        let asked = running.supervisor.signal(Signal::TERM);
        if asked.map_err(|error| CliError::io("signal the supervisor", error))? {
            let gone = runtime()?.block_on(running.supervisor.wait_gone(DOWN_LIMIT)).unwrap_or(false);
            if !gone {
                let _ = running.supervisor.signal(Signal::KILL);
            }
        }
        end_leftovers(&folder.running()?.unwrap_or_else(|| running.clone()))?;
        folder.forget_running();
    } else if !arguments.wipe {
        return Err(CliError::NotFound(format!("no system runs in {}", folder.0.display())));
    }
    if !arguments.wipe {
        return Ok(Answer::done("weir dev is down"));
    }
    let others = wipe(&folder)?;
    let stays = match others.as_slice() {
        [] => String::new(),
        names => {
            format!("; {} stays, with what others have put there: {}", folder.0.display(), names.join(", "))
        }
    };
    Ok(Answer::done(format!("weir dev is down, its data removed{stays}")))
}

/// Removes a system's folder, and nothing that is not one. Returns the names of what others have put there.
fn wipe(folder: &Folder) -> Result<Vec<String>, CliError> {
    if folder.settings()?.is_none() {
        return Err(CliError::NotFound(format!("{} is not a folder of `weir dev`", folder.0.display())));
    }
    let _lock = folder.lock_soon()?;
    // What is mounted below is not the folder's own: removing it would empty the volume.
    let mounts = mountinfo::below(&folder.0).map_err(|error| CliError::io("/proc/self/mountinfo", error))?;
    for mount in mounts {
        let place = mount.mount_point.display().to_string();
        if mount.file_system != mountinfo::FILE_SYSTEM_TYPE {
            return Err(CliError::Dev(format!(
                "{place} is a mount of type {}: unmount it first",
                mount.file_system
            )));
        }
        weir_fuse::serve::unmount(&mount.mount_point, true).map_err(|error| CliError::io(place, error))?;
    }
    folder.wipe()
}

fn status(folder: &Folder) -> Result<Answer, CliError> {
    let running = folder.running()?.filter(|running| {
        running.supervisor.is_alive() || running.members.iter().any(|member| member.process.is_alive())
    });
    let Some(running) = running else {
        return Err(CliError::NotFound(format!("no system runs in {}", folder.0.display())));
    };
    if !running.supervisor.is_alive() {
        return Err(left(folder, &running));
    }
    let mut rows = vec![["Name", "Process", "State"].map(String::from).to_vec()];
    let mut members = Vec::new();
    for member in &running.members {
        let state = match member.rank {
            _ if member.process.is_alive() => "running",
            Some(rank) if folder.is_lost(rank) => "lost",
            _ => "dead",
        };
        rows.push(vec![member.name.clone(), member.process.pid.to_string(), state.to_owned()]);
        members.push(json!({"name": member.name, "rank": member.rank, "directory": member.directory,
            "pid": member.process.pid, "state": state}));
    }
    let engines = folder.settings()?.map_or(0..0, |settings| 0..settings.engines);
    let is_shown = |rank: &u32| running.members.iter().any(|member| member.rank == Some(*rank));
    for rank in engines.filter(|rank| folder.is_lost(*rank) && !is_shown(rank)) {
        let name = format!("engine {rank}");
        rows.push(vec![name.clone(), "-".to_owned(), "lost".to_owned()]);
        members.push(json!({"name": name, "rank": rank, "directory": null, "pid": null, "state": "lost"}));
    }
    let asked = ask(folder, &running);
    let (pools, mut text) = (asked.as_ref().ok().map(|(_, pools)| pools), table(&rows));
    for engine in asked.iter().flat_map(|(engines, _)| &engines.engines) {
        let (free, all) = (Size(engine.free_bytes), Size(engine.capacity_bytes));
        let _ = writeln!(text, "engine {}: {free} of {all} free", engine.rank);
    }
    for info in pools.into_iter().flatten() {
        let _ = writeln!(
            text,
            "pool {}: {} of {} free",
            info.label,
            Size(info.free_bytes),
            Size(info.size_bytes)
        );
    }
    let _ = writeln!(text, "attach file: {}", folder.attach().display());
    let response = json!({
        "ready": running.ready,
        "supervisor": running.supervisor.pid,
        "members": members,
        "attach_file": folder.attach(),
        "pools": pools.map(|pools| pools.iter().map(pool::to_json).collect::<Vec<_>>()),
    });
    let answer = Answer::new(response, text);
    Ok(match asked {
        Ok(_) => answer,
        Err(error) => answer.but(error),
    })
}

/// What to say of processes whose supervisor was killed.
fn left(folder: &Folder, running: &Running) -> CliError {
    let living = running.members.iter().filter(|member| member.process.is_alive());
    let named: Vec<String> =
        living.map(|member| format!("{} (process {})", member.name, member.process.pid)).collect();
    CliError::Busy(format!(
        "what started the system in {} is gone and has left {}: end them with `{}`; `{}` does, too, and starts anew",
        folder.0.display(),
        named.join(", "),
        folder.command("down"),
        folder.command("up")
    ))
}

/// Asks the engines for their space and their pools, unless all of them are dead.
fn ask(folder: &Folder, running: &Running) -> Result<(SystemQueryResponse, Vec<PoolInfo>), CliError> {
    let engines = running.members.iter().filter(|member| member.rank.is_some());
    let (living, dead): (Vec<_>, Vec<_>) = engines.partition(|engine| engine.process.is_alive());
    if living.is_empty() {
        let mut said: Vec<String> = dead.iter().map(|engine| format!("{} is dead", engine.name)).collect();
        if said.is_empty() {
            said.push("no engine has been started yet".to_owned());
        }
        let said = said.join("; ");
        let logs = folder.0.join("engine-*/log");
        return Err(CliError::Dead(format!(
            "{said}; process {} starts engines again as they end: why they do is in {}",
            running.supervisor.pid,
            logs.display()
        )));
    }
    runtime()?.block_on(async {
        let system = System::open(&folder.attach(), Duration::from_secs(5))?;
        let engines = system::query_system(&system).await?;
        Ok((engines, pool::list_pools(&system).await?))
    })
}

fn env(folder: &Folder) -> Result<Answer, CliError> {
    let attach = folder.attach();
    if !attach.exists() {
        return Err(CliError::NotFound(format!(
            "no system in {}: start one with `{}`",
            folder.0.display(),
            folder.command("up")
        )));
    }
    // Quoted whatever it is: a script may rely on it.
    let quoted = in_quotes(&attach);
    Ok(Answer::new(json!({"WEIR_ATTACH": attach}), format!("export WEIR_ATTACH={quoted}\n")))
}
