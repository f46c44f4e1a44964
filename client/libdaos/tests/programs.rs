//! C programs, compiled against our headers and linked with our library, on real engines over loopback.

#[path = "../../core/tests/loopback/mod.rs"]
mod engines;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engines::{POOL, System};

/// The folder of the library that this test was built with.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let folder = test.parent().expect("it is in a folder").to_path_buf();
    assert!(folder.join("libdaos.so").exists(), "libdaos.so is built beside the test");
    folder
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Compiles a program; any warning fails it. It is linked as programs for DAOS are, with the second library's name too.
fn compile(program: &str, into: &Path) -> PathBuf {
    let binary = into.join(program);
    let library = library_folder();
    let second = into.join("libdaos_common.so");
    if !second.exists() {
        std::os::unix::fs::symlink(library.join("libdaos.so"), &second).expect("linked");
    }
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&binary)
        .arg("-I")
        .arg(source_folder().join("include"))
        .arg(source_folder().join(format!("tests/c/{program}.c")))
        .arg("-L")
        .arg(&library)
        .arg("-L")
        .arg(into)
        .args(["-ldaos", "-ldaos_common", &format!("-Wl,-rpath,{}", library.display())])
        .output()
        .expect("there is a C compiler");
    expect_success("cc", &compiled);
    binary
}

fn expect_success(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
}

fn run(program: &str, system: &System) {
    let binary = compile(program, system.folder());
    let output = Command::new("timeout")
        .arg("120")
        .arg(binary)
        .arg(POOL)
        .env("WEIR_ATTACH", system.attach_path())
        .output()
        .expect("it runs");
    expect_success(program, &output);
    assert_eq!(output.stdout, b"ok\n", "{program} ran to its end");
}

/// Programs that need no engine: what the headers define, and what their programs are compiled with.
#[test]
fn headers_define_what_programs_for_daos_were_compiled_with() {
    let folder = tempfile::tempdir().expect("a folder");
    for program in ["constants", "layout", "errors", "headers"] {
        let output = Command::new(compile(program, folder.path())).output().expect("it runs");
        expect_success(program, &output);
        assert_eq!(output.stdout, b"ok\n", "{program} ran to its end");
    }
}

/// Headers below a folder of `include`, as they are included.
fn headers(below: &str) -> Vec<String> {
    let entries = source_folder().join("include").join(below).read_dir().expect("the headers are there");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("text"));
    names
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "h"))
        .map(|name| below.to_owned() + &name)
        .collect()
}

#[test]
fn each_header_can_be_included_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("alone.c");
    for header in ["", "daos/", "gurt/"].into_iter().flat_map(headers) {
        std::fs::write(&source, format!("#include <{header}>\n")).expect("written");
        let checked = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
            .arg(source_folder().join("include"))
            .arg(&source)
            .output()
            .expect("there is a C compiler");
        expect_success(&header, &checked);
    }
}

#[test]
fn programs_written_for_daos_run_on_real_engines() {
    let system = System::start(2);
    for program in
        ["kv", "array", "multilevel", "events", "arguments", "transactions", "rules", "fork", "anchors"]
    {
        run(program, &system);
    }
}

#[test]
fn without_an_attach_file_the_library_says_so_at_its_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(compile("kv", folder.path()))
        .arg(POOL)
        .env("WEIR_ATTACH", folder.path().join("absent.json"))
        .output()
        .expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("DER_AGENT_COMM"), "{said}");
}
