//! The test double of the cxi provider (`double.h`): it is built here, and the library loads it in a process of its own for
//! each test, because the library looks for providers once in a process.

use core::time::Duration;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

/// Set in the processes that have the double.
const LOADED: &str = "WEIR_TEST_CXI";

/// Longest time that one test takes.
const LIMIT: Duration = Duration::from_secs(100);

/// What libfabric is built with: its include folders, as the compiler's arguments.
fn includes(root: &Path) -> Vec<String> {
    let said = |command: &mut Command| {
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    if std::env::var("WEIR_LIBFABRIC").as_deref() == Ok("system") {
        let flags = said(Command::new("pkg-config").args(["--cflags", "libfabric"]));
        return flags.split_whitespace().map(str::to_owned).collect();
    }
    let prefix = said(Command::new(root.join("setup/libfabric.sh")).arg("prefix"));
    vec![format!("-I{}/include", prefix.trim())]
}

/// Builds the double. Returns the folder that it is in.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = root.join("engine/fabric/tests/provider");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("provider");
    fs::create_dir_all(&folder).expect("a folder");
    // Other test programs may be building it, too, and load it already.
    let made = folder.join(format!("made-by-{}", std::process::id()));
    let files = fs::read_dir(sources).expect("the sources").map(|entry| entry.expect("a file").path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compiler.args(["-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]).args(includes(&root));
    let status = compiler.args(files).arg("-o").arg(&made).status().expect("a C compiler");
    assert!(status.success(), "{compiler:?}");
    fs::rename(&made, folder.join("libcxi-fi.so")).expect("renamed");
    folder
}

/// Whether this process is one that has the double, with these variables in its environment. Else it starts the test of this
/// name in one that has, which has to pass.
#[must_use]
pub fn is_loaded(test: &str, environment: &[(&str, &str)]) -> bool {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if std::env::var_os(LOADED).is_some() {
        return true;
    }
    let folder = FOLDER.get_or_init(build);
    let log = folder.join(format!("{test}-{}.log", std::process::id()));
    let appended = || File::options().create(true).append(true).open(&log).expect("a file");
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(LOADED, "1")
        // Where the library looks for providers; what is there comes before those of the same name in the library itself.
        .env("FI_PROVIDER_PATH", format!("@{}", folder.display()))
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(appended())
        .stderr(appended())
        .spawn()
        .expect("it starts");
    let until = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Some(status);
        }
        if Instant::now() > until {
            child.kill().expect("killed");
            child.wait().expect("reaped");
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).expect("its output");
    fs::remove_file(&log).expect("removed");
    let passed = status.is_some_and(|status| status.success()) && said.contains("1 passed");
    assert!(passed, "with the double: {status:?}\n{said}");
    false
}
