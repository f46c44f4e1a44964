//! The command line under the names `daos` and `dmg`, against real engines, as scripts for DAOS call it.

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use harness::DevSystem;
use serde_json::{Value, json};

/// `daos` or `dmg`, as a link to `weir`.
fn program(system: &DevSystem, name: &str) -> Command {
    let link = system.folder().join(name);
    if !link.exists() {
        symlink(harness::WEIR, &link).expect("a link");
    }
    let mut command = Command::new(link);
    command.env("WEIR_ATTACH", system.folder().join("client.json"));
    command
}

/// Runs a line, which must succeed, and returns the `response` of its envelope.
fn json_of(system: &DevSystem, line: &str) -> Value {
    let mut words = line.split(' ');
    let output = program(system, words.next().expect("a program")).args(words).arg("-j").output();
    let output = output.expect("runs");
    let envelope: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{line}: {}", harness::text(&output)));
    assert_eq!((&envelope["status"], &envelope["error"]), (&json!(0), &Value::Null), "{line}: {envelope}");
    envelope["response"].clone()
}

/// Runs a line, which must fail; its exit code and the envelope.
fn failure_of(system: &DevSystem, line: &str) -> (Option<i32>, Value) {
    let mut words = line.split(' ');
    let output = program(system, words.next().expect("a program")).args(words).arg("-j").output();
    let output = output.expect("runs");
    (output.status.code(), serde_json::from_slice(&output.stdout).expect("an envelope"))
}

#[test]
fn pools_are_managed_as_the_test_helpers_of_daos_do() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB", "--bare"]);
    let line = "dmg -i pool create --user=root --group=root --scm-size=16777216 --nvme-size=117440512 --ranks=0,1 --nsvc=1 tank";
    let pool = json_of(&system, line);
    assert_eq!((&pool["tgt_ranks"], &pool["tier_bytes"]), (&json!([0, 1]), &json!([256 << 20])), "{pool}");
    assert!(pool["svc_reps"].as_array().is_some_and(|ranks| !ranks.is_empty()), "{pool}");
    let listed = json_of(&system, "dmg -o /etc/daos/daos_control.yml pool list --no-query");
    assert_eq!(listed["pools"][0]["uuid"], pool["uuid"]);
    assert_eq!(json_of(&system, "dmg system list-pools"), listed);
    assert_eq!(json_of(&system, "daos pool list"), listed);
    assert_eq!(json_of(&system, "daos pool query tank")["uuid"], pool["uuid"]);

    let all = json_of(&system, "dmg pool query-targets tank");
    assert_eq!(all["infos"].as_array().map(Vec::len), Some(4));
    let one = json_of(&system, "daos pool query-targets tank --rank=1 --target-idx=1");
    let info = &one["infos"][0];
    assert_eq!(
        (&info["rank"], &info["target"], &info["target_state"]),
        (&json!(1), &json!(1), &json!("up_in"))
    );
    assert_eq!(info["space"][0]["total"], json!(64 << 20));
    assert_eq!(one["infos"].as_array().map(Vec::len), Some(1));
    let (code, envelope) = failure_of(&system, "dmg pool query-targets tank --rank=7");
    assert_eq!((code, &envelope["status"]), (Some(3), &json!(-1005)), "{envelope}");

    let label = json_of(&system, "dmg pool get-prop tank label");
    assert_eq!(label, json!([{"name": "label", "description": "Pool label", "value": "tank"}]));
    let (code, envelope) = failure_of(&system, "dmg pool get-prop tank reclaim");
    assert_eq!((code, &envelope["status"]), (Some(2), &json!(-1003)), "{envelope}");

    let health = json_of(&system, "daos health check");
    assert_eq!(health["members"].as_array().map(Vec::len), Some(2));
    let provider = json_of(&system, "dmg network scan");
    assert!(provider["providers"].as_array().is_some_and(|all| !all.is_empty()), "{provider}");
    json_of(&system, "dmg pool destroy tank --force --recursive");
    assert_eq!(json_of(&system, "dmg pool list")["pools"], json!([]));
}

#[test]
fn containers_and_their_objects_are_described() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    json_of(&system, "daos cont create tank objects --type=object");
    let listed = json_of(&system, "daos pool list-containers tank");
    let labels: Vec<_> = listed.as_array().expect("a list").iter().map(|entry| &entry["label"]).collect();
    assert!(labels.contains(&&json!("objects")), "{labels:?}");
    let properties = json_of(&system, "daos cont get-prop tank objects --properties=label,layout_type");
    assert_eq!((&properties[0]["value"], &properties[1]["value"]), (&json!("objects"), &json!("OBJECT")));

    assert_eq!(json_of(&system, "daos cont list-objects tank objects"), json!([]));
    json_of(&system, "daos kv put tank objects 42 key value");
    let snapshot = json_of(&system, "daos cont create-snap tank objects")["epoch"].clone();
    json_of(&system, "daos kv put tank objects 43 key value");
    let now = json_of(&system, "daos cont list-objects tank objects");
    assert_eq!(now.as_array().map(Vec::len), Some(2), "{now}");
    let before = json_of(&system, &format!("daos cont list-objects tank objects --epc {snapshot}"));
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");
    let object = before[0].as_str().expect("an id");
    let layout = json_of(&system, &format!("daos object query tank objects {object}"));
    assert_eq!(layout["object"], before[0]);
    let (code, envelope) = failure_of(&system, "daos cont list-objects tank objects --epc 5");
    assert_eq!((code, &envelope["status"]), (Some(3), &json!(-1005)), "{envelope}");
}

/// What a tree has: path, mode and content or target of each entry, in order.
fn tree(folder: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let (mut found, mut ahead) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(path) = ahead.pop() {
        for entry in std::fs::read_dir(&path).expect("listed") {
            let path = entry.expect("an entry").path();
            let about = std::fs::symlink_metadata(&path).expect("there");
            let content = if about.is_dir() {
                ahead.push(path.clone());
                Vec::new()
            } else if about.is_symlink() {
                std::fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
            } else {
                std::fs::read(&path).expect("read")
            };
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            found.push((name, about.mode(), content));
        }
    }
    found.sort();
    found
}

#[test]
fn trees_go_into_a_container_and_come_back_as_they_were() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let source = system.folder().join("source");
    std::fs::create_dir_all(source.join("deep/er")).expect("made");
    let large: Vec<u8> = (0..=250).cycle().take(9_000_000).collect();
    std::fs::write(source.join("deep/er/large"), large).expect("written");
    std::fs::write(source.join("empty"), b"").expect("written");
    std::fs::set_permissions(source.join("empty"), std::fs::Permissions::from_mode(0o600)).expect("set");
    std::fs::set_permissions(source.join("deep/er"), std::fs::Permissions::from_mode(0o500)).expect("set");
    symlink("../nowhere", source.join("deep/link")).expect("a link");
    let shown = source.display();

    let copied = json_of(&system, &format!("daos fs copy --src {shown} --dst daos://tank/home/"));
    assert_eq!(copied["copy_stats"]["num_files"], json!(2), "{copied}");
    assert_eq!(copied["copy_stats"]["num_bytes"], json!(9_000_000));
    json_of(&system, "daos cont create tank other --type POSIX");
    json_of(&system, "daos fs copy --src daos://tank/home/source --dst weir://tank/other/renamed");
    let back = system.folder().join("back");
    json_of(&system, &format!("daos fs copy --src daos://tank/other/renamed --dst {}", back.display()));
    assert_eq!(tree(&back), tree(&source));

    let scanned = json_of(&system, "daos fs scan tank other");
    let counts = ["num_dirs", "num_files", "num_links", "total_bytes"].map(|name| scanned[name].clone());
    assert_eq!(counts, [json!(3), json!(2), json!(1), json!(9_000_000)]);
    let attributes = json_of(&system, "daos fs get-attr tank other --dfs-path=/renamed/empty");
    assert_eq!((&attributes["oclass"], &attributes["chunk_size"]), (&json!("SX"), &json!(1 << 20)));
    json_of(&system, "daos fs chmod tank other --dfs-path=/renamed/empty --mode=0640");
    let listed = json_of(&system, "daos fs ls tank other /renamed");
    let empty = listed.as_array().expect("a list").iter().find(|entry| entry["name"] == "empty");
    assert_eq!(empty.expect("listed")["mode"], json!(0o640));

    for (line, code) in [
        ("daos fs copy --src daos://tank/other/renamed --dst daos://tank/other/renamed/deep", 2),
        ("daos fs copy --src daos://tank/other/none --dst /tmp/never", 3),
        ("daos fs copy --src daos://tank/none/a --dst /tmp/never", 3),
        ("daos fs copy --src /tmp --dst /tmp/never", 2),
        ("daos fs copy --src daos://tank --dst /tmp/never", 2),
    ] {
        let (found, envelope) = failure_of(&system, line);
        assert_eq!(found, Some(code), "{line}: {envelope}");
    }
    // Whatever failed: nobody has it open.
    json_of(&system, "daos cont destroy tank other");
}

#[test]
fn manual_pages_and_completion_are_there_for_each_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let weir = |arguments: &[&str]| {
        let output = Command::new(harness::WEIR).args(arguments).output().expect("runs");
        assert!(output.status.success(), "{arguments:?}: {}", harness::text(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let pages = weir(&["manual", folder.path().to_str().expect("plain")]);
    for page in
        ["weir.1", "weir-pool-create.1", "daos.1", "daos-container-create.1", "dmg.1", "dmg-pool-create.1"]
    {
        assert!(pages.lines().any(|line| line == page), "{page} is missing:\n{pages}");
        let text = std::fs::read_to_string(folder.path().join(page)).expect("a page");
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
    for (program, command) in [("weir", "umount"), ("daos", "filesystem"), ("dmg", "network")] {
        for shell in ["bash", "zsh"] {
            let script = weir(&["completion", shell, "--program", program]);
            assert!(script.contains(program) && script.contains(command), "{shell}, {program}: {script}");
        }
    }
}

#[test]
fn an_installation_has_each_name_its_completion_and_its_pages() {
    let prefix = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../setup/install_programs.sh");
    let output = Command::new(script).arg(harness::WEIR).arg(prefix.path()).output().expect("runs");
    assert!(output.status.success(), "{}", harness::text(&output));
    for name in ["weir", "daos", "dmg"] {
        let output =
            Command::new(prefix.path().join("bin").join(name)).arg("--version").output().expect("runs");
        assert!(harness::text(&output).starts_with(name), "{}", harness::text(&output));
        let completion = prefix.path().join("share/bash-completion/completions").join(name);
        let checked = Command::new("bash").arg("-n").arg(&completion).output().expect("bash runs");
        assert!(checked.status.success(), "{}", harness::text(&checked));
        for file in [format!("share/zsh/site-functions/_{name}"), format!("share/man/man1/{name}.1")] {
            assert!(std::fs::metadata(prefix.path().join(&file)).expect("there").len() > 100, "{file}");
        }
    }
}
