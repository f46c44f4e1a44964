//! What the command line prints where no system is needed: for scripts, and where nobody can read it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    command
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn wrong_arguments_are_in_the_envelope_too() {
    for arguments in [
        &["--json", "nonsense"][..],
        &["pool", "create", "tank", "--size", "much", "-j"],
        &["-vj", "pool", "query", ""],
        &["pool", "--json"],
    ] {
        let output = weir(arguments).output().expect("runs");
        assert_eq!((code(&output), output.stderr.as_slice()), (Some(2), &b""[..]), "{arguments:?}");
        let envelope: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&envelope["response"], &envelope["status"]), (&Value::Null, &json!(-1003)));
        let error = envelope["error"].as_str().expect("text");
        assert!(!error.is_empty() && !error.starts_with("error"), "{error}");
    }
    let output = weir(&["pool", "query", "--", "--json", "-j"]).output().expect("runs");
    assert_eq!((code(&output), output.stdout.as_slice()), (Some(2), &b""[..]), "names, and one too many");
    let output = weir(&["--json", "--help"]).output().expect("runs");
    assert!(code(&output) == Some(0) && output.stdout.starts_with(b"Weir"));
}

#[test]
fn what_a_full_disk_does_not_take_is_a_failure_and_what_nobody_reads_is_none() {
    for arguments in [&["version"][..], &["version", "--json"], &["completion", "bash"]] {
        let full = File::options().write(true).open("/dev/full").expect("a full disk");
        let output = weir(arguments).stdout(full).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(code(&output), Some(1), "{arguments:?}: {error}");
        assert!(error.starts_with("ERROR: standard output: "), "{arguments:?}: {error}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = weir(arguments).stdout(writer).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((code(&output), &*error), (Some(0), ""), "{arguments:?}");
    }
    let output = weir(&["completion", "bash", "--json"]).output().expect("runs");
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(envelope["response"]["script"].as_str().is_some_and(|script| script.contains("complete")));
}

/// An attach file that names an engine at a port where nobody listens.
fn attach_to_nobody(folder: &Path) -> PathBuf {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("bound").port();
    let engine = json!({"rank": 0, "host": "127.0.0.1", "fabric_port": port, "targets": 1, "management": ""});
    let attach =
        json!({"system": "weir", "provider": "tcp", "engines": [engine], "system_key_file": "system.key"});
    std::fs::write(folder.join("system.key"), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
        .expect("written");
    let path = folder.join("client.json");
    std::fs::write(&path, attach.to_string()).expect("written");
    path
}

#[test]
fn a_measurement_waits_for_engines_as_long_as_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let attach = attach_to_nobody(folder.path());
    let begun = Instant::now();
    let mut command = weir(&["fabric", "bench", "--timeout", "1", "--attach"]);
    let output = command.arg(&attach).output().expect("runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(code(&output) == Some(5) && error.matches("can't be reached").count() == 1, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn the_providers_are_listed_also_where_the_systems_own_can_not_be_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let attach = attach_to_nobody(folder.path());
    let text = std::fs::read_to_string(&attach).expect("read");
    std::fs::write(&attach, text.replace("\"tcp\"", "\"nosuch\"")).expect("written");
    let info =
        |form: &[&str]| weir(&["fabric", "info", "--attach"]).arg(&attach).args(form).output().expect("runs");
    let output = info(&[]);
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(code(&output) == Some(1) && shown.contains("\ntcp "), "{shown}{said}");
    assert!(said.contains("nosuch"), "{said}");
    let envelope: Value = serde_json::from_slice(&info(&["--json"]).stdout).expect("JSON");
    let error = envelope["error"].as_str().expect("text");
    assert!(error.contains("nosuch") && envelope["status"].as_i64() < Some(0), "{envelope}");
    assert_eq!(envelope["response"]["providers"][0]["provider"], "tcp", "{envelope}");
}

#[test]
fn an_attach_file_that_is_none_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("runs").success());
    for command in [["fabric", "info"], ["fabric", "bench"], ["pool", "list"]] {
        for path in [pipe.as_path(), folder.path()] {
            let output = weir(&command).arg("--attach").arg(path).output().expect("runs");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(code(&output) == Some(5) && error.contains("it is no file"), "{error}");
            let shown = String::from_utf8_lossy(&output.stdout);
            assert_eq!(shown.contains("\ntcp "), command == ["fabric", "info"], "{shown}");
        }
    }
}
