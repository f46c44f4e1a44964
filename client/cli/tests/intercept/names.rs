//! Programs whose calls on names pass the mount, too (`libpil4dfs.so`).

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{DevSystem, Mounted};
use super::{assert_same, directory, git, in_a_pod, loaded, make_sources, run, showing, system};

/// Has a command run with the library of names, and its report in a file.
fn passing<'c>(command: &'c mut Command, report: &Path) -> &'c mut Command {
    command.env("LD_PRELOAD", super::library_of_names()).env("WEIR_INTERCEPT_REPORT", report)
}

/// Calls on names of a report: those that passed the mount, and those that were left to the kernel.
fn calls(report: &Path) -> (u64, u64) {
    let text = fs::read_to_string(report).unwrap_or_default();
    let number = |line: &str, word: &str| {
        let (before, _) = line.split_once(word).unwrap_or_else(|| panic!("no '{word}' in {line}"));
        let last = before.rsplit(' ').next().expect("text");
        last.parse::<u64>().unwrap_or_else(|error| panic!("{error}: '{word}' in {line}"))
    };
    let lines = text.lines().filter(|line| line.contains(": names: "));
    lines.fold((0, 0), |(direct, kernel), line| {
        let added: u64 = [" looked at", " listed", " added"].iter().map(|word| number(line, word)).sum();
        (direct + added, kernel + number(line, " calls left") + number(line, " because"))
    })
}

/// The process of a mount, which goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(mount: &Mounted<'_>) -> Self {
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments: Vec<&[u8]> =
                line.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
            let directory = mount.directory().canonicalize().expect("a path");
            arguments.contains(&&b"--foreground"[..])
                && arguments.last() == Some(&directory.as_os_str().as_encoded_bytes())
        };
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let pid = numbers.filter(serves).find_map(Pid::from_raw).expect("a process serves the mount");
        kill_process(pid, Signal::STOP).expect("stopped");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("it goes on");
    }
}

/// A program that says and is told a line at a time.
struct Talking {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Talking {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("it listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Lines up to this one, which has to come.
    fn until(&mut self, last: &str) -> String {
        let mut said = String::new();
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it ended: {:?}\n{said}", self.child.wait());
            if line == last {
                return said;
            }
            said += &line;
            said.push('\n');
        }
    }
}

fn compiled(system: &DevSystem, name: &str) -> PathBuf {
    let program = system.folder().join(name);
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    run("cc", Command::new("cc").args(options).arg(&program).arg(source));
    program
}

#[test]
fn looking_at_names_and_adding_some_asks_the_mount_nothing() {
    let system = system();
    let program = compiled(&system, "named");
    let mount = system.mount("home", &[]);
    let (plain, passed) = (directory(mount.path("plain")), directory(mount.path("passed")));
    let log = system.folder().join("report");
    let mut talking = Talking::start(Command::new(&program).arg(&plain));
    talking.until("prepared");
    talking.tell("");
    let looked = talking.until("looked");
    talking.tell("");
    let after = talking.until("ok");
    let mut talking = Talking::start(passing(Command::new(&program).arg(&passed), &log));
    talking.until("prepared");
    let stopped = Stopped::new(&mount);
    talking.tell("");
    assert_same("looked at past the mount", &talking.until("looked"), &looked);
    drop(stopped);
    talking.tell("");
    assert_same("after that past the mount", &talking.until("ok"), &after);
    assert!(talking.child.wait().expect("ended").success());
    let (direct, kernel) = calls(&log);
    assert!(direct > 150 && kernel < 20, "{direct} directly, {kernel} through the kernel");
    mount.unmount();
}

/// What programs say of a tree that they look through.
const LOOK: &str = r#"
    export GIT_OPTIONAL_LOCKS=0
    ls -lRai --time-style=full-iso .
    find . -printf '%p %y %m %s %n %l %i %b %T@ %C@ %U %G %D\n' | sort
    find . -name '*.rs' -newer clone/tree/Cargo.toml | sort
    find . -type l -execdir readlink {} \; | sort
    du -a . | sort
    stat -c '%n %A %a %b %B %f %F %g %h %i %o %s %t %T %u %x %y %z' clone/* clone/link
    git -C clone status --short
    git -C clone diff-files --stat
    test -r clone/large; test ! -x clone/large; test -d clone/link; test ! -e clone/none
    tar cf - --sort=name . | sha256sum
    (cd clone/tree/src; ls ..; cat ../Cargo.toml | wc -c; realpath .; find ../src | sort)
    python3 - <<'PYTHON'
import os, pathlib
for folder, folders, names in os.walk("."):
    folders.sort()
    print(folder, folders, sorted(names))
    for name in sorted(folders + names):
        found = os.lstat(os.path.join(folder, name))
        print(name, tuple(found), found.st_mtime_ns, found.st_blocks, found.st_blksize, found.st_dev, found.st_rdev)
for entry in sorted(os.scandir("clone"), key=lambda entry: entry.name):
    print(entry.name, entry.is_dir(), entry.is_symlink(), entry.inode(), entry.stat().st_size)
for path in ("other", "clone", "clone/large", "clone/link", "pipe"):
    names = os.listxattr(path, follow_symlinks=False)
    print(path, names, [os.getxattr(path, name, follow_symlinks=False) for name in names])
folder = os.open("clone", os.O_RDONLY)
print(sorted(os.listdir(folder)), os.stat("tree", dir_fd=folder).st_ino, os.readlink("link", dir_fd=folder))
print(sorted(map(str, pathlib.Path("clone").rglob("*.rs"))), os.access("clone", os.W_OK), os.path.realpath("clone/link/src"))
PYTHON
"#;

#[test]
fn programs_say_the_same_of_a_tree_past_the_mount() {
    let system = system();
    let sources = directory(system.folder().join("sources"));
    make_sources(&sources);
    let mount = system.mount("home", &[]);
    let tree = directory(mount.path("tree"));
    let log = system.folder().join("report");
    let make = "git clone -q --no-hardlinks \"$SOURCES/repository\" clone; ln clone/large other; mkfifo pipe; echo more >>clone/large
        truncate -s 12345678 sparse; touch -d @-5.25 clone/tree/src/lib.rs; touch new
        python3 -c 'import os; os.setxattr(\"other\", \"user.colour\", b\"green\")'";
    let script = |text: &str| {
        let mut command = Command::new("bash");
        command.args(["-eu", "-o", "pipefail", "-c", text]).current_dir(&tree).env("SOURCES", &sources);
        git(&mut command);
        command
    };
    run("a tree", &mut script(make));
    // For so long the kernel goes by times that the mount has noted itself, when it has gathered the writes.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let expected = run("through the mount", &mut script(LOOK));
    let passed = run("past the mount", passing(&mut script(LOOK), &log));
    assert_same("said past the mount", &passed, &expected);
    let (direct, kernel) = calls(&log);
    assert!(direct > 1000 && kernel < direct / 5, "{direct} directly, {kernel} through the kernel");
    mount.unmount();
}

/// Says what it is asked for: size and mode of a path, again and again.
const TELLER: &str = "
import os, sys
os.stat(sys.argv[1])
print('ready', flush=True)
for line in sys.stdin:
    found = os.stat(line.strip())
    print(found.st_size, oct(found.st_mode), int(found.st_mtime), flush=True)
";

#[test]
fn nothing_is_missed_that_the_mount_would_gather() {
    let system = system();
    let mount = system.mount("home", &[]);
    let log = system.folder().join("report");
    let shown = mount.directory().canonicalize().expect("a path");
    // Gathered before the first program comes.
    let mut early = File::create(mount.path("early")).expect("created");
    early.write_all(b"early").expect("written");
    early.set_permissions(fs::Permissions::from_mode(0o751)).expect("changed");
    let mut teller =
        Talking::start(passing(Command::new("python3").args(["-c", TELLER]).arg(shown.join("early")), &log));
    assert_eq!(teller.line(), "ready");
    let mut told = |name: &str| {
        teller.tell(shown.join(name).to_str().expect("plain"));
        let line = teller.line();
        let parts: Vec<&str> = line.split(' ').collect();
        (parts[0].parse::<u64>().expect("a size"), parts[1].to_owned(), parts[2].to_owned())
    };
    let early_is = told("early");
    assert_eq!((early_is.0, early_is.1.as_str()), (5, "0o100751"));
    // And while it runs.
    early.write_all(b" and late").expect("written");
    assert_eq!(told("early").0, 14);
    let mut late = File::create(mount.path("late")).expect("created");
    for part in 1..=20 {
        late.write_all(&[7; 1000]).expect("written");
        assert_eq!(told("late").0, part * 1000);
        let mode = 0o600 + u32::try_from(part % 8).expect("small");
        late.set_permissions(fs::Permissions::from_mode(mode)).expect("changed");
        assert_eq!(told("late").1, format!("{:#o}", 0o100_000 + mode));
    }
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890);
    late.set_modified(time).expect("changed");
    assert_eq!(told("late").2, "1234567890");
    late.set_len(3).expect("cut");
    assert_eq!(told("late").0, 3);
    drop(teller.to);
    assert!(teller.child.wait().expect("ended").success());
    let (direct, kernel) = calls(&log);
    assert!(direct > 40 && kernel == 0, "{direct} directly, {kernel} through the kernel");
    // What comes after the last program is gathered again.
    drop((early, late));
    mount.unmount();
}

/// What a user tries in a directory of another one.
const TRIES: &str = r#"
    cd "$TREE"; umask 022
    try() { "$@" 2>&1 || echo "failed with $?"; }
    try ls open closed searched listed
    try ls -n --time-style=+ open/file searched/file closed/file listed/file
    try stat -c '%a %u %g' open searched/inner closed/inner listed/inner
    for mode in r w x; do for name in open closed searched listed open/file searched/inner; do
        if test -$mode $name; then echo "$mode $name"; fi
    done; done
    for name in open closed searched listed shared group; do try mkdir $name/made; try ln -s anywhere $name/soft; done
    umask 027; try mkdir open/masked; try mkdir -m 3770 group/set
    (cd open/made && try mkdir below && try stat -c '%a %u %g' below ../masked ../../group/made ../../group/set)
    try stat -c '%a %u %g' open/made group/made group/soft
    try rmdir shared/kept; try rmdir open/made/below
    try cat open/away
    python3 - <<'PYTHON'
import os
for name in sorted(os.listdir("modes")):
    path = "modes/" + name
    said = [os.access(path, mode) for mode in (os.R_OK, os.W_OK, os.X_OK)]
    for work in (lambda: os.stat(path + "/inner").st_size, lambda: sorted(os.listdir(path)), lambda: os.mkdir(path + "/made")):
        try:
            said.append(work())
        except OSError as error:
            said.append(error.errno)
    print(name, said)
PYTHON
"#;

/// Files and directories with every mode that tells owner, group and others apart, of each of them.
const MODES: &str = r#"
import os
os.mkdir("modes")
for owner, group in ((12345, 0), (0, 12345), (0, 777), (0, 0)):
    for digit in range(8):
        for place in (64, 8, 1):
            path = f"modes/{owner}-{group}-{digit}-{place}"
            os.mkdir(path + "-folder")
            for file in (path + "-file", path + "-folder/inner"):
                open(file, "w").close()
            for each in (path + "-file", path + "-folder"):
                os.chown(each, owner, group)
                os.chmod(each, digit * place)
"#;

#[test]
fn a_user_may_past_the_mount_what_the_mount_lets_that_user_do() {
    let system = system();
    let mount = system.mount("home", &["-o", "intercept"]);
    let log = system.folder().join("report");
    run("chmod", Command::new("chmod").args(["-R", "a+rX"]).arg(system.folder()));
    fs::write(&log, "").expect("written");
    run("chmod", Command::new("chmod").arg("666").arg(&log));
    let make = r"mkdir open closed searched listed shared group shared/kept; touch {open,closed,searched,listed}/file
        mkdir {open,closed,searched,listed}/inner; ln -s /etc/hostname open/away
        chmod 777 open; chmod 700 closed; chmod 711 searched; chmod 744 listed; chmod 1777 shared
        chgrp 777 group; chmod 2770 group; chmod 750 searched/inner; chgrp 778 searched/inner";
    let tries = |tree: &Path, library: bool| {
        directory(tree.to_owned());
        run("a tree", Command::new("bash").args(["-euc", make]).current_dir(tree));
        run("modes", Command::new("python3").args(["-c", MODES]).current_dir(tree));
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=12345", "--regid=12345", "--groups=777", "bash", "-uc", TRIES])
            .env("TREE", tree);
        if library {
            passing(&mut command, &log);
        }
        run("what a user tries", &mut command)
    };
    let expected = tries(&mount.path("plain"), false);
    assert!(expected.contains("Permission denied") && expected.contains("2755 12345 777"), "{expected}");
    assert_same("tried past the mount", &tries(&mount.path("passed"), true), &expected);
    let (direct, _) = calls(&log);
    assert!(direct > 300, "{direct}: {}", fs::read_to_string(&log).expect("a report"));
    mount.unmount();
}

#[test]
fn a_pod_finds_names_with_what_the_mount_shows() {
    let system = system();
    system.run(&["pool", "create", "seven", "--size", "128MiB", "--tenant", "7"]);
    system.run(&["container", "create", "seven", "home", "--type", "POSIX", "--mode", "0777"]);
    let attach = system.folder().join("tenant");
    system.run(&["fabric", "tenant", "7", attach.to_str().expect("plain")]);
    let mount = showing(&system, ["seven", "home"], &attach.join("client.json"), &loaded());
    let program = "cd data; mkdir -p a/b; ls -R . >/dev/null; test -d a/b; test ! -e a/c";
    let lines = in_a_pod(&system, &mount, "libpil4dfs.so", program);
    assert!(mount.path("a/b").is_dir());
    let directly =
        |line: &&str| line.contains(": names: ") && !line.contains(" 0 looked at, 0 listed, 0 added");
    assert!(lines.lines().filter(directly).count() >= 2, "{lines}");
    mount.unmount();
}
