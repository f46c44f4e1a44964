//! C programs, compiled against our headers and linked with our library, on real engines over loopback.

#[path = "../../core/tests/loopback/mod.rs"]
mod engines;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

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

/// The headers and libraries as they are installed, once for all tests of this run.
fn installed() -> &'static Path {
    static INSTALLED: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("client");
        let made = Command::new(source_folder().join("../../setup/install_client.sh"))
            .arg(library_folder().join("libdaos.so"))
            .arg(&prefix)
            .output()
            .expect("the script runs");
        expect_success("install_client.sh", &made);
        prefix
    });
    &INSTALLED
}

/// Libraries that programs for DAOS are linked with.
const LIBRARIES: [&str; 7] =
    ["-ldfs", "-lduns", "-lgurt", "-lcart", "-ldaos_common", "-ldaos_tests", "-ldaos"];

/// Compiles a program as programs for DAOS are linked, with further options; any warning fails it.
fn compile_with(options: &[&str], program: &str, into: &Path) -> PathBuf {
    let (binary, prefix) = (into.join(program), installed());
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"])
        .args(options)
        .arg("-o")
        .arg(&binary)
        .arg("-I")
        .arg(prefix.join("include"))
        .arg(source_folder().join(format!("tests/c/{program}.c")))
        .arg("-L")
        .arg(prefix.join("lib"))
        .args(LIBRARIES)
        .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()))
        .output()
        .expect("there is a C compiler");
    expect_success("cc", &compiled);
    binary
}

/// Compiles a program as programs for DAOS are linked.
fn compile(program: &str, into: &Path) -> PathBuf {
    compile_with(&[], program, into)
}

fn expect_success(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
}

fn run(options: &[&str], program: &str, system: &System) {
    let binary = compile_with(options, program, system.folder());
    let output = Command::new("timeout")
        .arg("120")
        .arg(binary)
        .arg(POOL)
        .env("WEIR_ATTACH", system.attach_path())
        // What a process has at its end is no leak.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
        .output()
        .expect("it runs");
    expect_success(program, &output);
    assert_eq!(output.stdout, b"ok\n", "{program} ran to its end");
}

/// Programs that need no engine.
const WITHOUT_ENGINES: [&str; 4] = ["constants", "layout", "errors", "headers"];

/// What the headers define, and what their programs are compiled with.
#[test]
fn headers_define_what_programs_for_daos_were_compiled_with() {
    let folder = tempfile::tempdir().expect("a folder");
    for program in WITHOUT_ENGINES {
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

/// A program that needs a pool with redundancy factor 1.
const WITH_REDUNDANCY: &str = "replicas";

/// Programs that use engines with a pool without redundancy.
fn programs_with_engines() -> Vec<String> {
    let entries = source_folder().join("tests/c").read_dir().expect("the programs are there");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let programs = paths.filter(|path| path.extension().is_some_and(|end| end == "c"));
    let mut programs: Vec<String> = programs
        .map(|path| path.file_stem().and_then(|name| name.to_str()).expect("text").to_owned())
        .filter(|name| !WITHOUT_ENGINES.contains(&name.as_str()) && name != WITH_REDUNDANCY)
        .collect();
    programs.sort();
    assert!(programs.len() > 10, "{programs:?}");
    programs
}

#[test]
fn programs_written_for_daos_run_on_real_engines() {
    let system = System::start(2);
    for program in &programs_with_engines() {
        run(&[], program, &system);
    }
}

#[test]
fn objects_with_replicas_are_kept_in_pools_with_redundancy() {
    let system = System::start_with(3, 1);
    run(&[], WITH_REDUNDANCY, &system);
}

/// The library writes and reads the programs' memory nowhere but where it may. What memory many threads take is another one then.
#[test]
fn programs_written_for_daos_run_under_address_sanitizer() {
    let system = System::start(2);
    for program in programs_with_engines().iter().filter(|name| *name != "stations") {
        run(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], program, &system);
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

/// Configure scripts look for one function in one library, by its plain name or through pkg-config.
#[test]
fn each_library_alone_has_the_functions_that_configure_scripts_look_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, binary) = (folder.path().join("probe.c"), folder.path().join("probe"));
    let libraries = installed().join("lib");
    for (library, function) in [
        ("daos", "daos_init"),
        ("dfs", "dfs_mkdir"),
        ("duns", "duns_resolve_path"),
        ("gurt", "d_hash_murmur64"),
        ("daos_common", "daos_der2errno"),
    ] {
        let text = format!("char {function}();\nint main(void) {{ return {function} == 0; }}\n");
        std::fs::write(&source, text).expect("written");
        let linked = Command::new("cc")
            .args(["-w", "-fno-builtin", "-o"])
            .args([&binary, &source])
            .arg(format!("-L{}", libraries.display()))
            .arg(format!("-l{library}"))
            .arg(format!("-Wl,-rpath,{}", libraries.display()))
            .output()
            .expect("there is a C compiler");
        expect_success(library, &linked);
        expect_success(function, &Command::new(&binary).output().expect("it runs"));
    }
    for package in ["daos", "dfs"] {
        let told = Command::new("pkg-config")
            .args(["--cflags", "--libs", package])
            .env("PKG_CONFIG_PATH", libraries.join("pkgconfig"))
            .output()
            .expect("there is pkg-config");
        expect_success(package, &told);
    }
}

/// A filter's function is that of libdaos.so.2, also where nothing else brings that.
#[test]
fn functions_of_the_other_libraries_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <gurt/hash.h>\n#include <daos_uns.h>\n#include <stdio.h>\nint main(void) { struct duns_attr_t attr = {0}; \
                  int rc = duns_resolve_path(\"daos://a/b\", &attr); printf(\"%u %d %s\\n\", d_hash_string_u32(\"a\", 1), rc, attr.da_cont); \
                  return rc; }";
    let (file, binary) = (folder.path().join("filter.c"), folder.path().join("filter"));
    std::fs::write(&file, source).expect("written");
    let prefix = installed();
    let linked = Command::new("cc")
        .arg("-o")
        .args([&binary, &file])
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(format!("-L{}", prefix.join("lib").display()))
        .args(["-lgurt", "-lduns"])
        .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()))
        .output()
        .expect("there is a C compiler");
    expect_success("cc", &linked);
    let ran = Command::new(&binary).output().expect("it runs");
    expect_success("filter", &ran);
    assert_eq!(ran.stdout, b"177670 0 b\n");
}
