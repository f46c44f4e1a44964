//! C programs, compiled against our headers and linked with our library, on real engines over loopback.

#[path = "../../core/tests/loopback/mod.rs"]
mod engines;

use std::collections::BTreeSet;
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
    for program in [
        "kv",
        "array",
        "multilevel",
        "events",
        "arguments",
        "transactions",
        "rules",
        "fork",
        "anchors",
        "dfs",
    ] {
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

/// Names of functions by their tiers, 1 to 3.
fn functions() -> Vec<(usize, String)> {
    let lines = include_str!("functions.txt").lines().filter(|line| !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once(' ').expect("a tier and a name"));
    parts.map(|(tier, name)| (tier.parse().expect("a number"), name.to_owned())).collect()
}

/// What the library exports, and what the headers define inline or by another name.
fn offered() -> BTreeSet<String> {
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library_folder().join("libdaos.so"))
        .output()
        .expect("there is nm");
    expect_success("nm", &symbols);
    let text = String::from_utf8(symbols.stdout).expect("text");
    let mut names: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    for header in ["", "daos/", "gurt/"].into_iter().flat_map(headers) {
        let text = std::fs::read_to_string(source_folder().join("include").join(header)).expect("readable");
        let mut is_inline = false;
        for line in text.lines() {
            if is_inline && let Some((name, _)) = line.split_once('(') {
                names.insert(name.trim_start_matches('*').to_owned());
            }
            is_inline = line.starts_with("static inline");
        }
    }
    names
}

/// The page says how many functions of each tier there are, and of each that isn't there why.
#[test]
fn the_page_names_the_functions_that_are_not_there() {
    let page =
        std::fs::read_to_string(source_folder().join("../../docs/reference/libdaos.md")).expect("the page");
    let (_, section) = page.split_once("\n## What is missing\n").expect("the section is there");
    let (section, _) = section.split_once("\n## ").expect("another one follows");
    let (offered, functions) = (offered(), functions());
    let mut counts = [(0, 0); 4];
    let mut missing = Vec::new();
    for (tier, name) in &functions {
        let is_there = offered.contains(name);
        counts[*tier].0 += usize::from(is_there);
        counts[*tier].1 += 1;
        if is_there == section.contains(&format!("`{name}`")) {
            missing.push(name.clone());
        }
    }
    let [_, one, two, three] = counts;
    let said = format!("{} of {}, {} of {} and {} of {}", one.0, one.1, two.0, two.1, three.0, three.1);
    assert!(
        missing.is_empty(),
        "either there or in the page's list of what is missing: {missing:?}; there are {said}"
    );
    assert!(page.contains(&said), "the page has to say: {said}");
}
