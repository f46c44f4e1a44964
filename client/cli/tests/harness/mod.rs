//! A system of engines on this machine for one test, made and removed by `weir dev` itself.

#![allow(dead_code, reason = "each test program uses a part of the harness")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A system that ends with the test.
pub struct DevSystem {
    folder: tempfile::TempDir,
}

/// The command line that is tested.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A program of another package, beside the command line, brought up to date with its source: cargo builds only what
/// belongs to the package under test. With `WEIR_BUILT` set, whoever runs the tests has built everything.
pub fn program(name: &str, package: &str) -> PathBuf {
    let path = Path::new(WEIR).with_file_name(name);
    if std::env::var_os("WEIR_BUILT").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", package, "--bin", name]);
        if cfg!(feature = "mercury") {
            build.args(["--features", "mercury"]);
        }
        if WEIR.contains("/release/") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "{name} does not build");
    }
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

fn engine() -> &'static Path {
    static ENGINE: OnceLock<PathBuf> = OnceLock::new();
    ENGINE.get_or_init(|| program("weir-engine", "weir-daemon"))
}

impl DevSystem {
    /// Starts a system with further arguments of `weir dev up`.
    pub fn start(arguments: &[&str]) -> Self {
        let system = Self::absent();
        system.up(arguments);
        system
    }

    /// An empty folder for a system.
    pub fn absent() -> Self {
        let folder = tempfile::Builder::new().prefix("weir-").tempdir_in("/tmp").expect("a folder");
        Self { folder }
    }

    /// Starts the system (again). Its pool has no redundancy unless the arguments ask for some.
    pub fn up(&self, arguments: &[&str]) {
        let started = self.try_up(arguments);
        started.unwrap_or_else(|error| panic!("weir dev up: {error}\n{}", self.logs()));
    }

    /// Starts the system, or returns what is said of why it doesn't start.
    pub fn try_up(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = self.weir();
        command.args(["dev", "up", "--detach", "--engine"]).arg(engine()).args(arguments);
        if !arguments.contains(&"--redundancy") {
            command.args(["--redundancy", "0"]);
        }
        let output = command.output().expect("weir runs");
        if output.status.success() { Ok(()) } else { Err(text(&output)) }
    }

    /// `weir` for this system.
    pub fn weir(&self) -> Command {
        let mut command = Command::new(WEIR);
        command.env("WEIR_DEV_DIR", self.folder()).env("WEIR_ATTACH", self.folder().join("client.json"));
        // Why what is lost or has returned keeps others waiting, too.
        let log = if env!("CARGO_CRATE_NAME") == "redundancy" {
            "info,weir_object=debug,weir_pool=debug"
        } else {
            "info"
        };
        command.env("WEIR_LOG", log).env("WEIR_LOG_FILE", self.folder().join("mounts.log"));
        command
    }

    /// Runs `weir` and returns what it prints; it must succeed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.weir().args(arguments).output().expect("weir runs");
        assert!(output.status.success(), "weir {}: {}\n{}", arguments.join(" "), text(&output), self.logs());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs `weir --json` and returns the `response` of the envelope.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let envelope: serde_json::Value = serde_json::from_str(&self.run(&all)).expect("JSON");
        assert_eq!(envelope["status"], 0, "{envelope}");
        envelope["response"].clone()
    }

    /// Runs `weir`, which must fail; returns exit code and error text.
    pub fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.weir().args(arguments).output().expect("weir runs");
        assert!(!output.status.success(), "weir {} succeeded", arguments.join(" "));
        (output.status.code().unwrap_or(-1), text(&output))
    }

    /// Folder of the system.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A fresh directory that a container is mounted at with these further arguments.
    pub fn mount(&self, container: &str, arguments: &[&str]) -> Mounted<'_> {
        self.mount_by(self.weir(), ["tank", container], arguments)
    }

    /// As [`DevSystem::mount`], a container of a pool, by a command that was prepared for it.
    pub fn mount_by(&self, mut weir: Command, of: [&str; 2], arguments: &[&str]) -> Mounted<'_> {
        let directory = self.folder().join(format!("mnt-{}", self.mounts()));
        std::fs::create_dir(&directory).expect("a directory");
        let output = weir.arg("mount").args(of).arg(&directory).args(arguments).output().expect("weir runs");
        assert!(output.status.success(), "weir mount: {}\n{}", text(&output), self.logs());
        Mounted { system: self, directory }
    }

    fn mounts(&self) -> usize {
        let entries = std::fs::read_dir(self.folder()).expect("a folder");
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("mnt-")).count()
    }

    /// The ends of all logs, for a failed assertion.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["mounts.log", "log", "engine-0/log", "engine-1/log", "engine-2/log"] {
            if let Ok(log) = std::fs::read_to_string(self.folder().join(name)) {
                let lines: Vec<&str> = log.lines().rev().take(40).collect();
                text = lines.iter().rev().fold(text + "--- " + name + "\n", |text, line| text + line + "\n");
            }
        }
        text
    }

    /// What the system says of itself, for a failed assertion: it may not answer.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for arguments in [&["dev", "status"][..], &["pool", "query", "tank"]] {
            let mut command = Command::new("timeout");
            command.args(["10", WEIR]).args(arguments).env("WEIR_DEV_DIR", self.folder());
            command.env("WEIR_ATTACH", self.folder().join("client.json")).env("WEIR_LOG", "warn");
            let said = command.output().map_or_else(|error| error.to_string(), |output| self::text(&output));
            text += &["--- weir ", &arguments.join(" "), "\n", &said].concat();
        }
        text
    }

    /// Process id of an engine.
    pub fn engine_pid(&self, rank: u64) -> u64 {
        let status = self.json(&["dev", "status"]);
        let members = status["members"].as_array().expect("members");
        let engine = members.iter().find(|member| member["rank"] == rank).expect("the engine runs");
        engine["pid"].as_u64().expect("a process id")
    }
}

impl Drop for DevSystem {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.logs(), self.state());
        }
        if !self.folder().join("settings.json").exists() {
            return;
        }
        let output = self.weir().args(["dev", "down", "--wipe"]).output();
        if let Some(output) = output.ok().filter(|output| !output.status.success()) {
            eprintln!("weir dev down: {}", text(&output));
        }
    }
}

/// A container mounted for a test; unmounted when dropped.
pub struct Mounted<'a> {
    system: &'a DevSystem,
    directory: PathBuf,
}

impl Mounted<'_> {
    /// A path below the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts it now; must succeed, as soon as no process that another test is just starting has copies of closed files.
    pub fn unmount(self) {
        eventually("unmounted", Duration::from_secs(10), || {
            let output = self.system.weir().arg("umount").arg(&self.directory).output().expect("weir runs");
            let is_in_use = output.status.code() == Some(8);
            assert!(output.status.success() || is_in_use, "weir umount: {}", text(&output));
            output.status.success()
        });
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // One that a test has unmounted already, or that is in use because the test failed.
        let _ = self.system.weir().args(["umount", "--lazy"]).arg(&self.directory).output();
    }
}

/// What a command printed.
pub fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Waits until something holds.
pub fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "{what}: not within {} s", limit.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}
