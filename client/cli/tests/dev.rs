//! How a system of `weir dev` starts and ends, and what it leaves.

mod harness;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use harness::DevSystem;
use serde_json::{Value, json};

/// A small system.
const SMALL: [&str; 7] = ["--engines", "1", "--targets", "1", "--size", "256MiB", "--bare"];

/// Longest time for a process to do what it is told.
const LIMIT: Duration = Duration::from_mins(1);

fn up(system: &DevSystem, arguments: &[&str]) -> Command {
    let engine = harness::program("weir-engine", "weir-daemon");
    let mut command = system.weir();
    command.args(["dev", "up", "--engine"]).arg(engine).args(SMALL).args(arguments);
    command
}

/// Sends a signal to a process, or to a group of them.
fn signal(name: &str, whom: &str) {
    let sent = Command::new("kill").args([name, "--", whom]).status().expect("kill runs");
    assert!(sent.success(), "{name} to {whom}");
}

fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Processes whose command line names the system's folder.
fn processes_of(system: &DevSystem) -> Vec<String> {
    let folder = system.folder().to_str().expect("plain");
    let entries = std::fs::read_dir("/proc").expect("listed").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder))
        .collect()
}

fn left_in(system: &DevSystem) -> Vec<String> {
    let entries = std::fs::read_dir(system.folder()).expect("listed").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_start_in_the_background_fails_as_one_in_the_foreground() {
    let system = DevSystem::absent();
    for arguments in [
        ["--mount", "none=/tmp", "--detach"].as_slice(),
        &["--mount", "none=/tmp"],
        &["--mount", "none=/tmp", "-dj"],
        &["--mount", "none=/tmp", "-j"],
        &["--mount", "none=/tmp", "-vd", "--json"],
    ] {
        let output = up(&system, arguments).output().expect("runs");
        let said = harness::text(&output);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {said}");
        assert!(said.contains("no pool has a container"), "{arguments:?}: {said}");
        if said.contains("{\"error\"") {
            let envelope: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
            assert_eq!((&envelope["status"], &envelope["response"]), (&json!(-1005), &Value::Null));
        } else {
            assert!(!said.contains(" INFO "), "the reason, not the log: {said}");
        }
    }
    // A pipe would be empty for the second who reads it.
    let pipe =
        up(&system, &["--detach", "--apply", "/dev/stdin"]).stdin(Stdio::piped()).output().expect("runs");
    let said = harness::text(&pipe);
    assert!(pipe.status.code() == Some(2) && said.contains("write it to one"), "{said}");
    let inner = system.folder().join("inner");
    let huge = system.weir().args(["dev", "up", "--detach", "--size", "15EiB", "--dir"]).arg(&inner).output();
    let huge = huge.expect("runs");
    let said = harness::text(&huge);
    assert!(huge.status.code() == Some(2) && said.contains("beyond all numbers"), "{said}");
    assert!(!inner.exists(), "nothing was made");
}

#[test]
fn what_no_engine_could_run_with_is_a_wrong_argument() {
    let system = DevSystem::absent();
    for (arguments, named) in [
        (["--provider", "nosuch", "--detach"].as_slice(), "nosuch"),
        (&["--probe", "nosuch"], "nosuch"),
        (&["--probe", "shm", "--probe", "shm", "--detach"], "shm twice"),
    ] {
        let output = up(&system, arguments).output().expect("runs");
        let said = harness::text(&output);
        assert!(output.status.code() == Some(2) && said.contains(named), "{arguments:?}: {said}");
    }
}

#[test]
fn flags_may_be_written_together_and_what_is_said_names_the_folder() {
    let system = DevSystem::absent();
    let output = up(&system, &["-dj"]).output().expect("runs");
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!((output.status.code(), &envelope["status"]), (Some(0), &json!(0)), "{envelope}");
    let folder = system.folder().to_str().expect("plain");
    let second = harness::text(&up(&system, &["-d"]).output().expect("runs"));
    assert!(second.contains(&format!("`weir dev down --dir {folder}`")), "{second}");
    system.run(&["dev", "down"]);
    let other = harness::text(&up(&system, &["-d", "--provider", "shm"]).output().expect("runs"));
    assert!(other.contains(&format!("`weir dev down --wipe --dir {folder}`")), "{other}");
    let said = harness::text(&up(&system, &["-d"]).output().expect("runs"));
    assert!(said.contains(&format!("stop with: weir dev down --dir {folder}\n")), "{said}");
    // Whoever is asked by this name knows nothing of the folder in the environment.
    let asked = Command::new(harness::WEIR).args(["dev", "status", "--dir", folder]).output().expect("runs");
    assert!(asked.status.success(), "{}", harness::text(&asked));
}

#[test]
fn what_nobody_reads_ends_no_start() {
    let system = DevSystem::absent();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = up(&system, &["--detach"]).stdout(writer).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", harness::text(&output));
    system.run(&["dev", "status"]);
}

#[test]
fn a_system_in_the_foreground_prints_json_and_nothing_else() {
    let system = DevSystem::absent();
    let child = up(&system, &["--json"]).stdout(Stdio::piped()).spawn().expect("runs");
    wait_ready(&system);
    signal("-INT", &child.id().to_string());
    let output = child.wait_with_output().expect("ended");
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!((output.status.code(), &envelope["status"]), (Some(0), &json!(0)), "{envelope}");
}

fn wait_ready(system: &DevSystem) -> Value {
    let mut status = Value::Null;
    harness::eventually("the system is up", LIMIT, || {
        let output = system.weir().args(["--json", "dev", "status"]).output().expect("runs");
        status = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()["response"].clone();
        status["ready"] == json!(true)
    });
    status
}

#[test]
fn of_several_that_are_started_at_once_one_comes_up() {
    let system = DevSystem::absent();
    for round in 0..4 {
        let start = |_| up(&system, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        let children: Vec<Child> = (0..4).map(start).collect();
        let supervisor = wait_ready(&system)["supervisor"].as_u64().expect("a process id");
        let (running, refused): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|child| u64::from(child.id()) == supervisor);
        for child in refused {
            let output = child.wait_with_output().expect("ended");
            let said = harness::text(&output);
            assert_eq!(output.status.code(), Some(8), "round {round}: {said}");
            assert!(said.contains(&system.folder().display().to_string()), "{said}");
        }
        assert_eq!(running.len(), 1, "round {round}");
        system.run(&["dev", "down"]);
        for child in running {
            let output = child.wait_with_output().expect("ended");
            assert!(output.status.success(), "round {round}: {}", harness::text(&output));
        }
        system.run(&["dev", "down", "--wipe"]);
        assert_eq!(processes_of(&system), Vec::<String>::new());
        std::fs::create_dir_all(system.folder()).expect("made");
    }
}

#[test]
fn a_terminal_that_goes_takes_the_system_along() {
    let system = DevSystem::absent();
    // Who runs these tests may have said already what becomes of the signal.
    let start = |how: &str| {
        let up = up(&system, &[]);
        let mut command = Command::new("env");
        command.arg(how).arg(harness::WEIR).args(up.get_args()).env("WEIR_DEV_DIR", system.folder());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs")
    };
    let mut child = start("--default-signal=HUP");
    let status = wait_ready(&system);
    let engine = status["members"][0]["pid"].as_u64().expect("a process id");
    signal("-HUP", &child.id().to_string());
    assert!(ended(&mut child).success(), "it has ended as by Ctrl-C");
    harness::eventually("the engine has ended, too", LIMIT, || !is_alive(engine));
    // Where somebody has said that it is to be ignored, it is.
    let mut child = start("--ignore-signal=HUP");
    let status = wait_ready(&system);
    signal("-HUP", &child.id().to_string());
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_alive(status["members"][0]["pid"].as_u64().expect("a process id")));
    system.run(&["dev", "down"]);
    assert!(ended(&mut child).success());
}

/// How a process has ended, which is about to.
fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    harness::eventually("the process has ended", LIMIT, || {
        status = child.try_wait().expect("it can be asked");
        status.is_some()
    });
    status.expect("it has")
}

/// An engine that never answers.
fn mute(system: &DevSystem) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = system.folder().with_extension("engine");
    std::fs::write(&path, "#!/bin/sh\nexec sleep 77\n").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

#[test]
fn a_start_that_is_interrupted_leaves_nothing() {
    let system = DevSystem::absent();
    let engine = mute(&system);
    for arguments in [["dev", "up"].as_slice(), &["dev", "up", "--detach"]] {
        let mut command = system.weir();
        command.args(arguments).args(SMALL).arg("--engine").arg(&engine);
        // As a terminal does, Ctrl-C reaches all that belong to the command.
        let mut child = command.process_group(0).stdout(Stdio::null()).spawn().expect("runs");
        let mut engine = 0;
        harness::eventually("the engine is started", LIMIT, || {
            let running = std::fs::read(system.folder().join("running.json")).unwrap_or_default();
            let running: Value = serde_json::from_slice(&running).unwrap_or_default();
            engine = running["members"][0]["process"]["pid"].as_u64().unwrap_or(0);
            engine != 0
        });
        signal("-INT", &format!("-{}", child.id()));
        ended(&mut child);
        harness::eventually("the engine has ended", LIMIT, || !is_alive(engine));
        let nothing = || left_in(&system).iter().all(|name| name == "log" || name == "lock");
        harness::eventually("nothing is left", LIMIT, nothing);
    }
    std::fs::remove_file(engine).expect("removed");
    system.up(&SMALL);
}

#[test]
fn wiping_removes_a_system_and_nothing_else() {
    let system = DevSystem::absent();
    let (photo, folder) = (system.folder().join("photo"), system.folder().join("engine-holidays"));
    std::fs::write(&photo, "precious").expect("written");
    std::fs::create_dir(&folder).expect("made");
    system.up(&SMALL);
    let said = system.run(&["dev", "down", "--wipe"]);
    assert!(said.contains("engine-holidays") && said.contains("photo"), "it says what stays: {said}");
    assert_eq!(left_in(&system), ["engine-holidays", "photo"]);
    let (code, error) = system.fails(&["dev", "down", "--wipe"]);
    assert!(code == 3 && error.contains("is not a folder of `weir dev`"), "{code}: {error}");
    std::fs::remove_file(photo).expect("removed");
    std::fs::remove_dir(folder).expect("removed");
    system.up(&SMALL);
    assert_eq!(system.run(&["dev", "down", "--wipe"]), "weir dev is down, its data removed\n");
    assert!(!system.folder().exists(), "the folder has gone, too");
}

#[test]
fn a_status_tells_of_engines_whose_supervisor_was_killed() {
    let system = DevSystem::start(&SMALL);
    let supervisor = system.json(&["dev", "status"])["supervisor"].as_u64().expect("a process id");
    let engine = system.engine_pid(0);
    signal("-KILL", &supervisor.to_string());
    harness::eventually("it is gone", LIMIT, || !is_alive(supervisor));
    let (code, said) = system.fails(&["dev", "status"]);
    assert!(code == 8 && said.contains(&format!("engine 0 (process {engine})")), "{said}");
    assert!(said.contains("weir dev down"), "{said}");
    system.run(&["dev", "down"]);
    assert!(!is_alive(engine));
    assert!(system.fails(&["dev", "status"]).1.contains("no system runs"));
}

#[test]
fn a_lost_engine_stays_away_until_it_returns_empty() {
    let system = DevSystem::start(&["--engines", "2", "--targets", "1", "--size", "256MiB", "--bare"]);
    let data = system.folder().join("engine-1/data");
    // The list of pools, begun by both engines, is there without one of them, though no pool is in it.
    system.json(&["pool", "list"]);
    let names = || std::fs::read_dir(&data).expect("listed").count();
    let state = || {
        let status = system.json(&["dev", "status"]);
        let members = status["members"].as_array().expect("members").clone();
        let engine = members.into_iter().find(|member| member["rank"] == 1);
        engine.map(|engine| engine["state"].as_str().expect("a state").to_owned())
    };
    let first = system.engine_pid(1);
    let (code, said) = system.fails(&["dev", "return", "1"]);
    assert!(code == 3 && said.contains("engine 1 is not lost"), "{said}");
    let (code, said) = system.fails(&["dev", "lose", "2"]);
    assert!(code == 3 && said.contains("has engines 0 to 1"), "{said}");
    assert!(names() > 0);
    // Before the list of pools is begun nobody knows that the engine which is lost doesn't keep an older one.
    system.run(&["pool", "list"]);
    system.run(&["dev", "lose", "1"]);
    assert!(!is_alive(first));
    assert_eq!(state().as_deref(), Some("lost"));
    assert!(system.fails(&["dev", "lose", "1"]).1.contains("engine 1 is lost already"));
    // It is still lost when the system starts again.
    system.run(&["dev", "down"]);
    system.up(&["--bare"]);
    assert_eq!(state().as_deref(), Some("lost"));
    assert_eq!(names(), 0, "nobody has written there");
    system.run(&["dev", "return", "1"]);
    harness::eventually("it runs", LIMIT, || state().as_deref() == Some("running"));
    harness::eventually("its targets are made anew", LIMIT, || names() > 0);
    assert_ne!(system.engine_pid(1), first);
}
