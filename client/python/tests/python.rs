//! The Python package, in a real interpreter, on real engines over loopback. Each test runs a file of `tests/cases` by Python's own
//! test runner.

#[path = "../../core/tests/loopback/mod.rs"]
mod engines;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use engines::System;
use tempfile::TempDir;

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The interpreter with the packages that the tests need.
fn interpreter() -> &'static Path {
    static INTERPRETER: LazyLock<PathBuf> = LazyLock::new(|| {
        let script = source_folder().join("../../setup/python.sh");
        let output = Command::new(script).arg("interpreter").output().expect("the script runs");
        assert!(output.status.success(), "setup/python.sh: {}", text(&output));
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    });
    &INTERPRETER
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("listed") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("copied");
        }
    }
}

/// A folder with the package as a wheel would install it: the native half beside the other one.
fn installed() -> &'static Path {
    static INSTALLED: LazyLock<TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder");
        copy(&source_folder().join("python"), folder.path());
        let test = std::env::current_exe().expect("the test has a path");
        let native = test.parent().expect("it is in a folder").join("libweir_python.so");
        std::fs::copy(native, folder.path().join("weir/_native.abi3.so"))
            .expect("it is built beside the test");
        folder
    });
    INSTALLED.path()
}

fn run(case: &str) {
    run_on(&System::start(2), case);
}

fn run_on(system: &System, case: &str) {
    let output = Command::new("timeout")
        .arg("300")
        .arg(interpreter())
        .args(["-W", "error::ResourceWarning", "-m", "unittest", "-v", case])
        .current_dir(source_folder().join("tests/cases"))
        .env("PYTHONPATH", installed())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WEIR_ATTACH", system.attach_path())
        .output()
        .expect("it runs");
    let said = text(&output);
    println!("{said}");
    assert!(output.status.success(), "{case}: {}\n{said}", output.status);
    let ran = said.lines().find_map(|line| line.strip_prefix("Ran ")).expect("it says how many tests it ran");
    assert!(!ran.starts_with("0 "), "{case} ran no test");
}

#[test]
fn dictionaries_and_arrays_are_kept_in_containers() {
    run("objects");
}

#[test]
fn pools_with_redundancy_keep_dictionaries_and_arrays_too() {
    run_on(&System::start_with(2, 1), "objects");
}

#[test]
fn names_of_pydaos_are_there() {
    run("names_of_daos");
}

#[test]
fn file_systems_are_those_of_python() {
    run("files");
}

#[test]
fn libraries_reach_containers_by_fsspec() {
    run("libraries");
}

#[test]
fn forks_threads_and_pickles_go_on() {
    run("processes");
}

#[test]
fn pytorch_loads_from_and_saves_to_containers() {
    run("learning");
}
