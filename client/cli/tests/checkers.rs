//! Public checkers of file systems on mounts of real engines: `pjdfstest`, beside the local file system in the same run, and
//! `fsx`, whose file a second mount then reads. `setup/tools.sh` builds both.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::DevSystem;

/// What fails on a mount and not on the local file system: a name and the reason, one a line.
const EXCEPTIONS: &str = include_str!("checkers/pjdfstest-exceptions.txt");

/// Users other than root, with their groups, that Debian has.
const PJDFSTEST_CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Operations of one run of `fsx`.
const FSX_OPERATIONS: &str = "2000";

/// What `fsx` does beside reads, writes and truncations, which it always does.
const FSX_CONFIG: &str = r"
flen = 3000000
[opsize]
max = 400000
[weights]
close_open = 1
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 0.5
punch_hole = 1
sendfile = 1
posix_fadvise = 0.5
copy_file_range = 1
read = 5
write = 10
truncate = 1
";

const FSX_MAPPED: &str = "mapread = 5\nmapwrite = 10\ninvalidate = 1\n";
const FSX_UNMAPPED: &str = "mapread = 0\nmapwrite = 0\ninvalidate = 0\n";

/// A checker in the cache of set-up.
fn checker(name: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    let path = cache.map_or_else(home, PathBuf::from).join("weir/bin").join(name);
    assert!(path.is_file(), "{} is not there: run setup/tools.sh {name}", path.display());
    path
}

/// How each test of `pjdfstest` ends in a directory, with what it says when it fails.
fn pjdfstest(directory: &Path, config: &Path) -> BTreeMap<String, (String, String)> {
    let mut command = Command::new(checker("pjdfstest"));
    command.arg("-c").arg(config).arg("-p").arg(directory).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    let output = command.output().expect("it runs");
    let text = harness::text(&output);
    let (mut outcomes, mut last) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(name), Some(outcome @ ("ok" | "FAILED" | "skipped")), None) if name.contains("::") => {
                outcomes.insert(name.to_owned(), (outcome.to_owned(), String::new()));
                name.clone_into(&mut last);
            }
            _ => {
                if let Some((_, said)) = outcomes.get_mut(&last) {
                    said.push_str(line.trim());
                    said.push(' ');
                }
            }
        }
    }
    assert!(text.contains("Summary: ") && outcomes.len() > 300, "{text}");
    outcomes
}

fn exceptions() -> BTreeMap<&'static str, &'static str> {
    let lines = EXCEPTIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').expect("a name and a reason")).collect()
}

#[test]
fn pjdfstest_finds_on_a_mount_what_it_finds_on_a_local_file_system() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    let local = tempfile::tempdir().expect("a folder");
    let config = local.path().join("config.toml");
    fs::write(&config, PJDFSTEST_CONFIG).expect("written");
    let local = local.path().join("local");
    fs::create_dir(&local).expect("made");
    for directory in [local.parent().expect("it has one"), &local, system.folder(), mount.directory()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("others go through");
    }
    let (expected, found) = (pjdfstest(&local, &config), pjdfstest(mount.directory(), &config));
    let exceptions = exceptions();
    let mut wrong = Vec::new();
    for (name, (outcome, said)) in &found {
        let (there, _) = expected.get(name).expect("both run the same tests");
        match (outcome == there, exceptions.get(name.as_str())) {
            (false, None) => wrong.push(format!("{name}: {outcome}, locally {there}: {said}")),
            (true, Some(reason)) => {
                wrong.push(format!("{name}: as locally; it is no exception any more ({reason})"));
            }
            _ => {}
        }
    }
    for name in exceptions.keys().filter(|name| !found.contains_key(**name)) {
        wrong.push(format!("{name}: there is no such test"));
    }
    let passed = found.values().filter(|(outcome, _)| outcome == "ok").count();
    assert!(wrong.is_empty() && passed > 200, "{passed} passed\n{}", wrong.join("\n"));
}

#[test]
fn fsx_finds_nothing_and_another_mount_reads_what_it_wrote() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let (mount, other) = (system.mount("home", &[]), system.mount("home", &[]));
    for (seed, name, weights) in [("1", "mapped", FSX_MAPPED), ("2", "unmapped", FSX_UNMAPPED)] {
        let config = system.folder().join(format!("{name}.toml"));
        fs::write(&config, format!("{FSX_CONFIG}{weights}")).expect("written");
        let mut command = Command::new(checker("fsx"));
        command.args(["-N", FSX_OPERATIONS, "-S", seed, "-f"]).arg(&config);
        command.arg("-P").arg(system.folder()).arg(mount.path(name));
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{name}: {}", harness::text(&output));
        let (here, there) = (fs::read(mount.path(name)), fs::read(other.path(name)));
        let (here, there) = (here.expect("read"), there.expect("read"));
        assert!(!here.is_empty() && here == there, "{name}: {} and {} bytes", here.len(), there.len());
    }
}
