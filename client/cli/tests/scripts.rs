//! The scripts that build and run a program of their own: help and wrong arguments cost no build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a script where there is nothing to build with.
fn run(script: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.arg(repository().join(script)).args(arguments);
    command.env("PATH", "/usr/bin:/bin").env("RUSTUP_HOME", "/nowhere").env("CARGO_HOME", "/nowhere");
    command.output().expect("bash runs")
}

/// The options that a program's source defines and shows, and whether each has a value.
fn options(source: &str) -> Vec<(String, bool)> {
    let text = std::fs::read_to_string(repository().join(source)).expect("the source");
    let (mut names, mut is_option) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[arg(") {
            is_option = line.contains("long") && !line.contains("hide");
        } else if let Some((name, kind)) = line.split_once(':').filter(|_| is_option) {
            names.push((format!("--{}", name.replace('_', "-")), kind.trim() != "bool,"));
            is_option = false;
        }
    }
    names
}

#[test]
fn help_and_wrong_arguments_cost_no_build() {
    for (script, source) in
        [("bench/run.sh", "bench/src/main.rs"), ("engine/fuzz/run.sh", "engine/fuzz/src/main.rs")]
    {
        let help = run(script, &["--help"]);
        let text = String::from_utf8_lossy(&help.stdout);
        assert!(help.status.success() && text.contains("Usage: "), "{text}");
        let options = options(source);
        assert!(options.len() > 4, "{options:?}");
        for (option, has_value) in options {
            assert!(text.contains(&format!("  {option} ")), "the help of {script} lacks {option}");
            let value: &[&str] = if has_value { &["1"] } else { &[] };
            let refused = run(script, &[&[option.as_str()], value, &["nosuch"]].concat());
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(
                refused.status.code() == Some(2) && said.contains("there is no nosuch"),
                "{option}: {said}"
            );
        }
        for wrong in ["nosuch", "--nosuch", "--nosuch=1"] {
            let refused = run(script, &[wrong]);
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(refused.status.code() == Some(2) && said.contains(wrong), "{said}");
        }
    }
}

#[test]
fn every_group_and_fuzzer_is_known() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect("the source");
    let fuzzers = read("engine/fuzz/src/targets/mod.rs");
    let fuzzers =
        fuzzers.lines().filter_map(|line| line.trim().strip_prefix("Target { name: \"")?.split_once('"'));
    let bench = read("bench/src/main.rs");
    let groups =
        bench.split_once("enum Group {").and_then(|(_, rest)| rest.split_once('}')).expect("groups").0;
    let groups = groups.lines().filter_map(|line| line.trim().strip_suffix(','));
    let kebab = |name: &str| {
        name.chars().enumerate().fold(String::new(), |text, (at, letter)| {
            let dash = if letter.is_uppercase() && at > 0 { "-" } else { "" };
            text + dash + &letter.to_lowercase().to_string()
        })
    };
    let known = fuzzers.map(|(name, _)| ("engine/fuzz/run.sh", name.to_owned()));
    let known: Vec<_> = known.chain(groups.map(|name| ("bench/run.sh", kebab(name)))).collect();
    assert!(known.len() > 15, "{known:?}");
    for (script, name) in known {
        let refused = run(script, &[&name, "nosuch"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("there is no nosuch"), "{script} does not know {name}: {said}");
        assert!(String::from_utf8_lossy(&run(script, &["-h"]).stdout).contains(&name), "{script}: {name}");
    }
}
