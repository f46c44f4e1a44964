//! `weir store` on files: a sound one, damaged ones, and what isn't a store.

mod offline;

use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use offline::{code, folder, json, text};
use serde_json::Value;
use weir_media::file::FileDevice;
use weir_runtime::real::Executor;

/// Versions of the format of which there is a golden image.
const VERSIONS: [u32; 2] = [1, 2];

fn weir(arguments: &[&str], path: &Path) -> Output {
    offline::weir(arguments, &[path])
}

/// The golden image of a version of the format, as a file of a target.
fn image(folder: &Path, version: u32) -> PathBuf {
    let sectors = format!("../../engine/store/tests/golden/v{version}.sectors");
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(sectors)).expect("the image");
    let path = folder.join("target-0.weir");
    let file = std::fs::File::create_new(&path).expect("a new file");
    file.set_len(16 << 20).expect("sized");
    for record in bytes.chunks_exact(516) {
        let (number, sector) = record.split_at(4);
        let number = u32::from_le_bytes(number.try_into().expect("four bytes"));
        file.write_all_at(sector, u64::from(number) * 512).expect("written");
    }
    path
}

fn flip(path: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("read");
    file.write_all_at(&[byte[0] ^ 4], offset).expect("written");
}

#[test]
fn a_sound_store_is_described_and_left_as_it_is() {
    VERSIONS.into_iter().for_each(describe);
}

fn describe(version: u32) {
    let folder = folder();
    let path = image(folder.path(), version);
    let before = std::fs::read(&path).expect("read");
    let shown = weir(&["inspect"], &path);
    let page = text(&shown.stdout);
    assert_eq!(code(&shown), 0, "{page}{}", text(&shown.stderr));
    for part in ["system \"weir\", rank 1, target 0", "log ring", "no damage met"] {
        assert!(page.contains(part), "{page}");
    }
    let checked = weir(&["check", "--json"], &path);
    let envelope = json(&checked);
    assert_eq!((code(&checked), &envelope["status"], &envelope["error"]), (0, &0.into(), &Value::Null));
    let report = &envelope["response"];
    assert_eq!(report["version"], version, "{report}");
    assert_eq!((&report["sound"], &report["depth"]), (&true.into(), &"everything".into()), "{report}");
    assert!(report["data"]["pieces_checked"].as_u64() > Some(5), "{report}");
    let dump = json(&weir(&["dump", "--json", "--limit", "5"], &path));
    assert_eq!(dump["response"]["lines"].as_array().map(Vec::len), Some(5), "{dump}");
    let next = dump["response"]["next"].as_str().expect("there is more").to_owned();
    let rest = json(&weir(&["dump", "--json", "--from", &next, "--limit", "10000"], &path));
    assert_eq!(rest["response"]["next"], Value::Null);
    for part in ["nodes", "log", "map", "bytes"] {
        let dump = weir(&["dump", "--part", part], &path);
        assert!(code(&dump) == 0 && !dump.stdout.is_empty(), "{part}: {}", text(&dump.stderr));
    }
    assert!(std::fs::read(&path).expect("read") == before, "nothing is written");
}

#[test]
fn a_dump_that_leaves_lines_out_says_so_and_what_it_does_not_have_is_named() {
    let folder = folder();
    let path = image(folder.path(), 2);
    let last = ((16 << 20) - 64).to_string();
    for part in ["entries", "nodes", "log", "map", "bytes"] {
        let offset: &[&str] = if part == "bytes" { &["--offset", &last] } else { &[] };
        let all = ["dump", "--json", "--part", part, "--limit", "1000000"];
        let whole = json(&weir(&[&all[..], offset].concat(), &path));
        let count = whole["response"]["lines"].as_array().map_or(0, Vec::len);
        assert_eq!((count > 0, &whole["response"]["more"]), (true, &false.into()), "{part}: {count}");
        for (limit, has_more) in [(count, false), (count - 1, true)] {
            let limit_text = limit.to_string();
            let arguments = [&["dump", "--part", part, "--limit", &limit_text], offset].concat();
            let printed = text(&weir(&arguments, &path).stdout);
            assert_eq!(printed.contains("there is more"), has_more, "{part}, {limit} of {count} lines");
            let dump = json(&weir(&[&arguments[..], &["--json"]].concat(), &path));
            assert_eq!(dump["response"]["more"], has_more, "{part}, {limit} of {count} lines");
            assert_eq!(dump["response"]["lines"].as_array().map(Vec::len), Some(limit), "{part}");
        }
    }
    let nobody = "00000000-0000-0000-0000-00000000abcd";
    for (part, idle, value) in [
        ("log", "--pool", nobody),
        ("map", "--container", nobody),
        ("bytes", "--object", "3.4"),
        ("nodes", "--from", "00"),
        ("entries", "--offset", "0"),
    ] {
        let refused = weir(&["dump", "--part", part, idle, value], &path);
        let message = text(&refused.stderr);
        assert!(code(&refused) == 2 && message.contains(idle) && message.contains(part), "{message}");
    }
    let within = json(&weir(&["dump", "--json", "--part", "bytes", "--offset", "23", "--limit", "1"], &path));
    assert_eq!(within["response"]["lines"][0]["offset"], 16, "the line that has the byte");
    for named in ["--pool", "--container"] {
        let refused = weir(&["dump", named, nobody], &path);
        let message = text(&refused.stderr);
        assert!(code(&refused) == 3 && message.contains(nobody) && message.contains("inspect"), "{message}");
    }
}

#[test]
fn damage_has_an_exit_code_of_its_own_and_a_place() {
    VERSIONS.into_iter().for_each(damage);
}

fn damage(version: u32) {
    let folder = folder();
    let path = image(folder.path(), version);
    let nodes = json(&weir(&["dump", "--json", "--part", "nodes"], &path));
    let root = nodes["response"]["lines"][0]["offset"].as_u64().expect("an offset");
    flip(&path, root + 60);
    let checked = weir(&["check", "-j"], &path);
    let envelope = json(&checked);
    assert_eq!((code(&checked), &envelope["status"]), (9, &(-2021).into()), "{envelope}");
    assert!(envelope["error"].as_str().is_some_and(|error| error.contains("damaged")), "{envelope}");
    let finding = &envelope["response"]["findings"][0];
    assert_eq!((&finding["severity"], &finding["offset"]), (&"damage".into(), &root.into()), "{envelope}");
    let printed = weir(&["check"], &path);
    let line = format!("damage: index node at byte {root}");
    assert!(code(&printed) == 9 && text(&printed.stdout).contains(&line), "{}", text(&printed.stdout));
    let outline = json(&weir(&["inspect", "-j"], &path));
    assert_eq!(outline["response"]["damages"], 1, "what several looks meet is told once: {outline}");
}

#[test]
fn a_dump_names_what_damage_has_left_out() {
    let folder = folder();
    let path = image(folder.path(), 2);
    let whole = json(&weir(&["dump", "--json"], &path));
    let nodes = json(&weir(&["dump", "--json", "--part", "nodes"], &path));
    let root = nodes["response"]["lines"][0]["offset"].as_u64().expect("an offset");
    flip(&path, root + 60);
    let place = format!("index node at byte {root} (");
    for part in ["entries", "nodes"] {
        let printed = weir(&["dump", "--part", part], &path);
        let said = text(&printed.stderr);
        assert!(code(&printed) == 9 && said.contains("1 places could not be read"), "{part}: {said}");
        assert!(said.contains(&place), "{part}: {said}");
        let envelope = json(&weir(&["dump", "--json", "--part", part], &path));
        assert_eq!((&envelope["status"], &envelope["response"]["more"]), (&(-2021).into(), &false.into()));
        let left = envelope["response"]["lines"].as_array().map_or(0, Vec::len);
        assert!(envelope["error"].as_str().is_some_and(|error| error.contains(&place)), "{envelope}");
        let all = whole["response"]["lines"].as_array().map_or(0, Vec::len);
        assert!(part == "nodes" || (0 < left && left < all), "the log's entries stay: {left} of {all}");
    }
    let lost = "00000000-0000-0000-0000-00000000abcd";
    let refused = weir(&["dump", "--pool", lost], &path);
    let message = text(&refused.stderr);
    assert!(code(&refused) == 9 && message.contains(lost) && message.contains(&place), "{message}");
}

#[test]
fn lines_are_printed_as_they_come_and_only_while_somebody_reads_them() {
    let folder = folder();
    let path = image(folder.path(), 2);
    // In memory all at once, they would not fit.
    let bounded = |arguments: &str| {
        let script = format!("ulimit -v 400000; exec \"$0\" store dump \"$1\" --part bytes {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]).arg(&path);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for arguments in ["--limit 400000", "--limit 400000 --json"] {
        let output = bounded(arguments).output().expect("runs");
        assert_eq!((code(&output), &*text(&output.stderr)), (0, ""), "{arguments}");
        let last = output.stdout.rsplit(|byte| *byte == b'\n').nth(1).expect("lines");
        let end = text(&last[last.len().saturating_sub(40)..]);
        assert!(end.contains("--offset") || end.contains(r#""error":null,"status":0}"#), "{end}");
        let mut child = bounded(arguments).spawn().expect("runs");
        let mut some = [0; 100];
        child.stdout.take().expect("a pipe").read_exact(&mut some).expect("the first line");
        let output = child.wait_with_output().expect("ends");
        assert_eq!((code(&output), &*text(&output.stderr)), (0, ""), "{arguments}");
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a full disk");
        let output = bounded(arguments).stdout(full).output().expect("runs");
        let said = text(&output.stderr);
        assert!(code(&output) == 1 && said.starts_with("ERROR: standard output: "), "{said}");
    }
}

#[test]
fn what_is_no_store_or_in_use_is_refused() {
    let folder = folder();
    let missing = weir(&["check"], &folder.path().join("none"));
    assert_eq!(code(&missing), 3, "{}", text(&missing.stderr));
    let blank = folder.path().join("blank");
    std::fs::write(&blank, vec![0; 1 << 20]).expect("written");
    let refused = weir(&["inspect"], &blank);
    assert!(
        code(&refused) == 3 && text(&refused.stderr).contains("holds no store"),
        "{}",
        text(&refused.stderr)
    );
    let tiny = folder.path().join("tiny");
    std::fs::write(&tiny, b"x").expect("written");
    let refused = weir(&["check"], &tiny);
    assert!(code(&refused) == 3 && text(&refused.stderr).contains("holds no store"), "{refused:?}");
    assert_eq!(code(&weir(&["check"], folder.path())), 1, "a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("runs").success());
    let refused = weir(&["inspect"], &pipe);
    assert!(
        code(&refused) == 1 && text(&refused.stderr).contains("neither a file"),
        "{}",
        text(&refused.stderr)
    );
    let path = image(folder.path(), 2);
    assert_eq!(code(&weir(&["dump", "--object", "7"], &path)), 2);
    for offset in [16 << 20, u64::MAX] {
        let beyond = weir(&["dump", "--part", "bytes", "--offset", &offset.to_string()], &path);
        let message = text(&beyond.stderr);
        assert!(code(&beyond) == 2 && message.contains("has only 16777216 bytes"), "{message}");
    }
    let executor = Executor::new().expect("an executor");
    let engine = FileDevice::open(&executor.handle(), &path).expect("as an engine has it");
    let busy = weir(&["check"], &path);
    assert!(code(&busy) == 8 && text(&busy.stderr).contains("stop that engine"), "{}", text(&busy.stderr));
    drop(engine);
    assert_eq!(code(&weir(&["check"], &path)), 0);
}

#[test]
fn who_may_not_read_a_device_is_told_that_reading_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let open_to_all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open_to_all).expect("mode");
    let path = image(folder.path(), 2);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("mode");
    // Root may read everything, and nobody else may look into the folder of the build.
    let program = folder.path().join("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("copied");
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534);
    }
    let refused = command.args(["store", "inspect"]).arg(&path).current_dir("/").output().expect("weir runs");
    let message = text(&refused.stderr);
    assert!(code(&refused) == 1 && message.contains("needs read permission"), "{message}");
}
