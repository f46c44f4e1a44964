//! The system under test: `weir dev` with three engines, two targets each, and a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::report::{BenchError, Report};

/// A pool and a container, as a user would write them.
const MANIFEST: &str = "\
apiVersion: storage.weir.dev/v1alpha1
kind: Pool
metadata: {name: tank}
spec: {clusterRef: {name: weir}, size: 5Gi}
---
apiVersion: storage.weir.dev/v1alpha1
kind: Container
metadata: {name: scratch}
spec: {poolRef: {name: tank}, type: posix}
";

/// A running development system.
#[derive(Debug)]
pub struct System {
    weir: PathBuf,
    scratch: PathBuf,
}

impl System {
    /// Starts it, and notes how long that took.
    pub fn start(binaries: &Path, scratch: &Path, report: &mut Report) -> Result<Self, BenchError> {
        fs::create_dir_all(scratch).map_err(BenchError::file("make", scratch))?;
        let absolute = |path: &Path| path.canonicalize().map_err(BenchError::file("find", path));
        let system = Self { weir: absolute(binaries)?.join("weir"), scratch: absolute(scratch)? };
        let manifest = system.scratch.join("bench.yaml");
        fs::write(&manifest, MANIFEST).map_err(BenchError::file("write", &manifest))?;
        fs::create_dir_all(system.mount_point()).map_err(BenchError::file("make", &system.mount_point()))?;
        let began = Instant::now();
        let (apply, mount) =
            (manifest.display().to_string(), format!("scratch={}", system.mount_point().display()));
        system.dev(&[
            "up",
            "--detach",
            "--engines",
            "3",
            "--targets",
            "2",
            "--size",
            "4GiB",
            "--apply",
            &apply,
            "--mount",
            &mount,
        ])?;
        report.figure(
            "weir dev up: 3 engines, pool, container, mount",
            began.elapsed().as_secs_f64(),
            "s",
            Some("< 2"),
        );
        Ok(system)
    }

    /// Where the container is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.scratch.join("mount")
    }

    /// A directory on the local file system, on the same device as the engines' data.
    pub fn local_directory(&self) -> Result<PathBuf, BenchError> {
        let local = self.scratch.join("local");
        fs::create_dir_all(&local).map_err(BenchError::file("make", &local))?;
        Ok(local)
    }

    /// The development system's directory.
    pub fn directory(&self) -> PathBuf {
        self.scratch.join("dev")
    }

    /// Runs `weir dev VERB…` on this system's directory.
    pub fn dev(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let directory = self.directory().display().to_string();
        let (verb, rest) = arguments.split_first().map_or(("status", &[][..]), |(verb, rest)| (*verb, rest));
        self.weir(&[&["dev", verb, "--dir", &directory], rest].concat())
    }

    /// Runs `weir …` and returns what it printed.
    pub fn weir(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let command = format!("{} {}", self.weir.display(), arguments.join(" "));
        let output =
            Command::new(&self.weir).args(arguments).output().map_err(BenchError::file("run", &self.weir))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(BenchError::Command { command, output: String::from_utf8_lossy(&output.stderr).into_owned() })
    }

    /// Stops it.
    pub fn stop(self) -> Result<(), BenchError> {
        self.dev(&["down"]).map(drop)
    }
}
