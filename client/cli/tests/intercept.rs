//! Programs that nobody has changed, with the library that moves their data past the mount: what they see and leave is what it is
//! on the mount without it, and on a local disk.

mod harness;
#[path = "intercept/names.rs"]
mod names;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use harness::{DevSystem, Mounted, text};

/// The library that does the work, which cargo has built beside this test.
fn loaded() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let library = test.with_file_name("libweir_direct.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// The library that programs are started with, beside that one.
fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("intercept-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let library = folder.join("libweir_intercept.so");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../intercept/preload/build.sh");
        for each in [&library, &folder.join(OF_NAMES)] {
            run("preload/build.sh", Command::new("sh").arg(script).arg(each));
        }
        let link = folder.join("libweir_direct.so");
        if !link.exists() {
            std::os::unix::fs::symlink(loaded(), link).expect("a link");
        }
        library
    });
    &LIBRARY
}

/// The library that programs are started with whose calls on names pass the mount, too.
const OF_NAMES: &str = "libpil4dfs.so";

/// That library.
fn library_of_names() -> PathBuf {
    library().with_file_name(OF_NAMES)
}

fn system() -> DevSystem {
    DevSystem::start(&["--engines", "1", "--size", "1GiB"])
}

/// Has a command run with the library, and its report in a file.
fn intercepted<'c>(command: &'c mut Command, report: &Path) -> &'c mut Command {
    command.env("LD_PRELOAD", library()).env("WEIR_INTERCEPT_REPORT", report)
}

fn run(what: &str, command: &mut Command) -> String {
    let output: Output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// A fresh directory.
fn directory(path: PathBuf) -> PathBuf {
    fs::create_dir(&path).expect("a directory");
    path
}

/// Names, types, modes, sizes, times and content of a tree, as programs without the library see it.
fn listing(root: &Path) -> String {
    let script = r"find . -name .git -prune -o -type f -printf '%p %y %m %s %n %l %TY-%Tm-%Td\n' -o -printf '%p %y %m %l\n' | sort
        find . -path ./clone/.git/index -prune -o -path './clone/.git/logs' -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
    run("listing", Command::new("sh").args(["-euc", script]).current_dir(root))
}

/// Lines of a report by the end of the file's path: how it was accessed, and the rest.
fn report(path: &Path, below: &Path) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let (_, name) = line.rsplit_once(": ").expect("a path");
        let Some(name) = name.strip_prefix(below.to_str().expect("plain")) else { continue };
        files.entry(name.trim_start_matches('/').to_owned()).or_default().push(line.to_owned());
    }
    files
}

#[test]
fn a_program_sees_the_same_files_whichever_way_its_data_goes() {
    let system = system();
    let program = system.folder().join("intercepted");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/intercepted.c");
    let options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    run("cc", Command::new("cc").args(options).arg(&program).arg(source));
    let mount = system.mount("home", &[]);
    let (plain, passing) = (directory(mount.path("plain")), directory(mount.path("passing")));
    let local = directory(system.folder().join("local"));
    let log = system.folder().join("report");
    let expected = run("on a local disk", Command::new(&program).arg(&local));
    assert!(expected.ends_with("ok\n"));
    assert_same("on the mount", &run("on the mount", Command::new(&program).arg(&plain)), &expected);
    let passed = run(
        "past the mount",
        intercepted(Command::new("timeout").arg("300").arg(&program), &log).arg(&passing),
    );
    assert_same("past the mount", &passed, &expected);
    assert_same("left past the mount", &listing(&passing), &listing(&plain));
    let named = directory(mount.path("named"));
    let mut command = Command::new("timeout");
    command.arg("300").arg(&program).arg(&named).env("LD_PRELOAD", library_of_names());
    assert_same("past the mount with names", &run("past the mount with names", &mut command), &expected);
    assert_same("left past the mount with names", &listing(&named), &listing(&plain));
    let files = report(&log, &passing);
    let is = |name: &str, way: &str| {
        files.get(name).is_some_and(|lines| lines.iter().any(|line| line.contains(way)))
    };
    for name in ["plain", "vectors", "append", "duplicates", "children", "threads", "large", "output"] {
        assert!(is(name, ": direct, "), "{name}: {files:#?}");
    }
    assert!(is("mapped", ": kernel (it was mapped, or a request failed), "), "{files:#?}");
    let mut others = files.iter().filter(|(name, _)| *name != "mapped").flat_map(|(_, lines)| lines);
    assert!(others.all(|line| line.contains(": direct, ")), "{files:#?}");
    mount.unmount();
}

/// Two printed things are equal; else says which lines aren't.
fn assert_same(what: &str, found: &str, expected: &str) {
    let missing = |of: &str, from: &str| {
        let all: std::collections::HashSet<&str> = from.lines().collect();
        of.lines().filter(|line| !all.contains(line)).take(20).map(str::to_owned).collect::<Vec<_>>()
    };
    let (unexpected, lacking) = (missing(found, expected), missing(expected, found));
    assert!(found == expected, "{what}: unexpected {unexpected:#?}, lacking {lacking:#?}");
}

/// What the programs are run on.
fn make_sources(folder: &Path) {
    let script = "git init -q repository; cd repository; cp -r \"$SOURCE\" tree; chmod 600 tree/Cargo.toml; ln -s tree link
        touch -d @1234567890 tree/src/lib.rs; git add .; git commit -q -m one; head -c 3000000 /dev/urandom >large; git add large
        git commit -q -m two; cd ..; tar cf sources.tar repository/tree repository/link repository/large; gzip -k sources.tar";
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../dfs");
    run("sources", git(Command::new("sh").args(["-euc", script]).current_dir(folder)).env("SOURCE", source));
}

/// Gives git an identity, and no settings of the user's.
fn git(command: &mut Command) -> &mut Command {
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("GIT_CONFIG_KEY_1", "pack.threads")
        .env("GIT_CONFIG_VALUE_1", "1")
        .envs([
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@b"),
            ("GIT_AUTHOR_DATE", "@1234567890 +0000"),
        ])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
        .env("GIT_COMMITTER_DATE", "@1234567890 +0000")
}

/// What the programs do, in a directory each.
const SCRIPT: &str = r#"
    mkdir tar dd python
    tar xf "$SOURCES/sources.tar" -C tar
    tar xzf "$SOURCES/sources.tar.gz" -C tar --transform 's,^repository,zipped,'
    tar cf tar/again.tar --sort=name -C tar repository/tree repository/link repository/large
    tar tvf tar/again.tar | wc -l
    tar df tar/again.tar -C tar
    git clone -q --no-hardlinks "$SOURCES/repository" clone
    git -C clone status --short
    git -C clone fsck 2>&1
    git -C clone log --format=%H
    dd if=/dev/zero of=dd/zeros bs=64k count=40 status=none
    dd if="$SOURCES/sources.tar" of=dd/copy bs=10000 conv=fsync status=none
    dd if=dd/copy of=dd/middle bs=4k skip=10 count=100 status=none
    dd if=dd/middle of=dd/zeros bs=4k seek=7 conv=notrunc status=none
    dd if=dd/middle bs=512 count=3 oflag=append conv=notrunc status=none >>dd/zeros
    cat dd/middle dd/zeros >dd/both
    cp dd/both dd/copied
    sort tar/repository/tree/src/file.rs >dd/sorted
    (echo one; echo two; sh -c 'echo three') >dd/lines
    echo four >>dd/lines
    cat dd/lines
    python3 - <<'PYTHON'
import json, mmap, os, shutil, sqlite3, subprocess, tempfile, zipfile
os.chdir("python")
with open("text", "w+") as file:
    for number in range(5000):
        print("line", number, file=file)
    file.seek(0)
    print(sum(len(line) for line in file))
with open("bytes", "wb", buffering=0) as file:
    print(file.write(bytes(range(256)) * 1000), file.tell(), file.seek(-100, 2), file.write(b"end"), file.truncate())
with open("bytes", "r+b") as file:
    print(len(file.read()), os.fstat(file.fileno()).st_size)
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:6] = b"mapped"
        print(mapped[100:110])
with zipfile.ZipFile("archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr(zipfile.ZipInfo("text"), open("text").read())
print(zipfile.ZipFile("archive.zip").testzip())
base = sqlite3.connect("base")
base.execute("create table words (word text)")
base.executemany("insert into words values (?)", [(str(number),) for number in range(2000)])
base.commit()
print(base.execute("select count(*), max(word) from words").fetchall())
base.close()
json.dump({"a": list(range(1000))}, open("json", "w"))
with open("child", "w") as file:
    file.write("before\n")
    file.flush()
    subprocess.run(["sh", "-c", "echo from the child"], stdout=file, check=True)
    file.write("after\n")
print(open("child").read())
shutil.copyfile("bytes", "bytes-copy")
with tempfile.TemporaryFile(dir=".") as file:
    file.write(b"temporary")
    file.seek(0)
    print(file.read())
print(sorted(os.listdir(".")))
PYTHON
    cp -r tar/repository copied; cp -a tar/repository again; diff -r copied again
    find copied again \( -type f -printf '%P %m %s\n' \) -o -printf '%P %y %m %l\n' | sort
    ls -R again; chmod -R go-rwx again; find again -perm /077 -not -type l; mkdir -p made/below/deep; mv made moved; ls -R moved
    rm -r copied; rmdir -p moved/below/deep; test ! -e copied; test ! -e moved; ls -A
    if command -v fio >/dev/null; then
        fio --name=job --directory=. --size=4m --bs=16k --rw=randwrite --ioengine=psync --verify=crc32c --randseed=7 --minimal >/dev/null
    fi
"#;

#[test]
fn unmodified_programs_leave_the_same_files_on_the_mount_past_it_and_on_a_local_disk() {
    let system = system();
    let sources = directory(system.folder().join("sources"));
    make_sources(&sources);
    let mount = system.mount("home", &[]);
    let local = directory(system.folder().join("local"));
    let (plain, passing) = (directory(mount.path("plain")), directory(mount.path("passing")));
    let log = system.folder().join("report");
    let script = |directory: &Path| {
        let mut command = Command::new("bash");
        command.args(["-eu", "-o", "pipefail", "-c", SCRIPT]).current_dir(directory).env("SOURCES", &sources);
        git(&mut command);
        command
    };
    let expected = run("on a local disk", &mut script(&local));
    assert_same("printed on the mount", &run("on the mount", &mut script(&plain)), &expected);
    let passed = run("past the mount", intercepted(&mut script(&passing), &log));
    assert_same("printed past the mount", &passed, &expected);
    let named = directory(mount.path("named"));
    let mut with_names = script(&named);
    with_names.env("LD_PRELOAD", library_of_names());
    assert_same(
        "printed past the mount with names",
        &run("past the mount with names", &mut with_names),
        &expected,
    );
    let left = listing(&local);
    assert_same("left past the mount with names", &listing(&named), &left);
    assert_same("left on the mount", &listing(&plain), &left);
    assert_same("left past the mount", &listing(&passing), &left);
    let files = report(&log, &passing);
    for name in ["tar/again.tar", "tar/repository/large", "dd/copy", "dd/zeros", "python/bytes"] {
        let lines = files.get(name).unwrap_or_else(|| panic!("{name}: {files:#?}"));
        assert!(lines.iter().any(|line| line.contains(": direct, ")), "{lines:#?}");
    }
    mount.unmount();
}

#[test]
fn a_mount_lets_only_its_own_user_pass_unless_it_is_made_for_all() {
    let system = system();
    let log = system.folder().join("report");
    for (options, way) in [(&[][..], ": kernel ("), (&["-o", "intercept"], ": direct, ")] {
        let mount = system.mount("home", options);
        let open = directory(mount.path("open"));
        run("chmod", Command::new("chmod").args(["777"]).arg(&open));
        // Another user reads the attach file of this one.
        run("chmod", Command::new("chmod").args(["-R", "a+rX"]).arg(system.folder()));
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=12345",
            "--regid=12345",
            "--clear-groups",
            "dd",
            "if=/dev/zero",
            "bs=1k",
            "count=3",
        ]);
        command.arg("status=none").arg(format!("of={}", open.join("file").display()));
        fs::write(&log, "").expect("written");
        run("chmod", Command::new("chmod").args(["666"]).arg(&log));
        run("dd", intercepted(&mut command, &log));
        assert_eq!(fs::read(open.join("file")).expect("readable"), vec![0; 3072]);
        let files = report(&log, &open);
        assert!(files["file"].iter().all(|line| line.contains(way)), "{files:#?}");
        fs::remove_dir_all(&open).expect("removed");
        mount.unmount();
    }
}

/// A mount that shows the libraries to programs, of which it finds the second one in a file.
fn showing<'s>(system: &'s DevSystem, of: [&str; 2], attach: &Path, file: &Path) -> Mounted<'s> {
    let mut weir = system.weir();
    weir.env("WEIR_INTERCEPT_LIBRARY", file).arg("--attach").arg(attach);
    system.mount_by(weir, of, &["-o", "intercept"])
}

/// Has a program run as a pod has it: by another user, with the mount at a place of its own, and without the files of the system. It is
/// started with a library that the mount shows. Returns the report.
fn in_a_pod(system: &DevSystem, mount: &Mounted<'_>, library: &str, program: &str) -> String {
    let pod = tempfile::Builder::new().prefix("weir-pod-").tempdir_in("/tmp").expect("a folder");
    let script = r#"mount --bind "$MOUNT" "$POD/data"; mount -t tmpfs none "$HIDDEN"; cd "$POD"
        unset MOUNT HIDDEN WEIR_ATTACH
        exec setpriv --reuid=12345 --regid=12345 --clear-groups env WEIR_INTERCEPT_REPORT="$POD/report/lines" \
            LD_PRELOAD="$POD/data/.weir/$LIBRARY" sh -euc "$PROGRAM""#;
    run("chmod", Command::new("chmod").arg("755").arg(pod.path()));
    for (name, mode) in [("data", "755"), ("report", "777")] {
        fs::create_dir(pod.path().join(name)).expect("a folder");
        run("chmod", Command::new("chmod").arg(mode).arg(pod.path().join(name)));
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
    command.env("MOUNT", mount.directory()).env("POD", pod.path()).env("HIDDEN", system.folder());
    command.env("LIBRARY", library);
    let said = run("in a pod", command.env("PROGRAM", program));
    assert_eq!(said, "", "nothing that a program has not printed by itself");
    fs::read_to_string(pod.path().join("report/lines")).unwrap_or_default()
}

#[test]
fn a_pod_passes_its_mount_with_what_the_mount_shows_and_hands_over() {
    let system = system();
    system.run(&["pool", "create", "seven", "--size", "128MiB", "--tenant", "7"]);
    system.run(&["container", "create", "seven", "home", "--type", "POSIX", "--mode", "0777"]);
    let attach = system.folder().join("tenant");
    system.run(&["fabric", "tenant", "7", attach.to_str().expect("plain")]);
    let own = system.folder().join("client.json");
    let write = "dd if=/dev/zero of=data/$NAME bs=1k count=3 status=none; cmp -n 3072 data/$NAME /dev/zero";
    let absent = system.folder().join("absent.so");
    for (name, attach, library, way) in [
        ("tenants", attach.join("client.json"), loaded(), ": direct, "),
        // The key of the whole system is handed to no pod.
        ("systems", own, loaded(), ": kernel (the engines can't be reached from this process)"),
        ("without", attach.join("client.json"), absent, ""),
    ] {
        let mount = showing(&system, ["seven", "home"], &attach, &library);
        let lines = in_a_pod(&system, &mount, "libweir_intercept.so", &write.replace("$NAME", name));
        assert_eq!(fs::read(mount.path(name)).expect("readable"), vec![0; 3072], "{name}");
        let all = lines.lines().filter(|line| line.ends_with(&format!("/data/{name}")));
        let (count, like) =
            all.fold((0, 0), |(all, like), line| (all + 1, like + u32::from(line.contains(way))));
        assert!(count == like && (count > 0) != way.is_empty(), "{name}: {lines}");
        mount.unmount();
    }
}

#[test]
fn what_a_mount_shows_to_programs_is_none_of_its_containers_files() {
    let system = system();
    let mount = showing(&system, ["tank", "home"], &system.folder().join("client.json"), &loaded());
    let shown = mount.path(".weir");
    let script = r#"
        test -z "$(ls -A .)"
        ls .weir; cmp .weir/libweir_intercept.so "$PRELOADED"; cmp .weir/libioil.so "$PRELOADED"; cmp .weir/libweir_direct.so "$LOADED"; cmp .weir/libpil4dfs.so "$OF_NAMES"
        touch file; mkdir folder
        refused() { ! "$@" 2>/dev/null || { echo "$@: not refused"; exit 1; }; }
        refused mkdir .weir; refused rmdir .weir; refused rm -r .weir; refused mv -T folder .weir; refused mv .weir other
        refused touch .weir/more; refused mv file .weir; refused ln file .weir/file; refused ln .weir/libioil.so link
        refused chmod 700 .weir; refused chmod 777 .weir/libioil.so; refused rm -f .weir/libioil.so
        refused sh -c 'echo >.weir/libioil.so'; refused truncate -s 0 .weir/libioil.so; refused setfattr -n user.a -v b .weir
        find . | sort; cp -a . ../copy; ls -A ../copy"#;
    let mut command = Command::new("sh");
    command
        .args(["-euc", script])
        .env("PRELOADED", library())
        .env("LOADED", loaded())
        .env("OF_NAMES", library_of_names())
        .current_dir(mount.directory());
    let said = run("what is shown", &mut command);
    assert_eq!(
        said,
        "libioil.so\nlibpil4dfs.so\nlibweir_direct.so\nlibweir_intercept.so\n.\n./file\n./folder\nfile\nfolder\n"
    );
    assert!(shown.is_dir());
    mount.unmount();
    let mount = system.mount("home", &[]);
    assert!(!mount.path(".weir").exists(), "only where programs may pass");
    mount.unmount();
}

#[test]
fn programs_with_another_c_library_go_on_through_the_kernel() {
    let system = system();
    let program = system.folder().join("other");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/other_library.c");
    run("musl-gcc", Command::new("musl-gcc").args(["-O1", "-o"]).arg(&program).arg(source));
    let mount = showing(&system, ["tank", "home"], &system.folder().join("client.json"), &loaded());
    let mut command = Command::new(&program);
    command.arg(mount.path("file")).env("LD_PRELOAD", mount.path(".weir/libweir_intercept.so"));
    assert_eq!(run("with another C library", &mut command), "12 bytes: hello, hello\n");
    mount.unmount();
}
