//! The command line against real engines.

mod harness;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use harness::DevSystem;
use serde_json::json;

#[test]
fn pools_and_containers_are_made_described_and_removed() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB", "--bare"]);
    let pool = system.json(&["pool", "create", "--size", "256MiB", "tank"]);
    assert_eq!(
        (&pool["label"], &pool["total_targets"], &pool["state"]),
        (&json!("tank"), &json!(4), &json!("Ready"))
    );
    let again = system.json(&["pool", "create", "--size", "256MiB", "tank"]);
    assert_eq!(again["uuid"], pool["uuid"], "the same request again is the same pool");
    assert_eq!((&pool["existed"], &again["existed"]), (&json!(false), &json!(true)));
    let said = system.run(&["pool", "create", "--size", "256MiB", "tank"]);
    assert!(said.starts_with("Pool tank exists already, with these properties\n"), "{said}");
    assert_eq!(system.fails(&["pool", "create", "--size", "512MiB", "tank"]).0, 4);
    assert_eq!(system.fails(&["pool", "create", "--size", "900TiB", "huge"]).0, 7);
    assert_eq!(system.fails(&["pool", "query", "none"]).0, 3);
    let container = system.json(&["cont", "create", "tank", "home", "--type", "POSIX", "--attr", "team=a"]);
    assert_eq!(container["container_type"], "POSIX");
    assert_eq!(container["existed"], false);
    for done in ["created", "exists already, with these properties"] {
        let said = system.run(&["container", "create", "tank", "objects", "--type", "object"]);
        assert!(said.starts_with(&format!("Container objects {done}\n")), "{said}");
    }
    let list = system.json(&["container", "list", "tank"]);
    let mut labels: Vec<&str> =
        list.as_array().expect("a list").iter().filter_map(|c| c["label"].as_str()).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["home", "objects"]);
    assert_eq!(system.run(&["container", "get-attr", "tank", "home", "team"]), "team=a\n");
    system.run(&["container", "set-attr", "tank", "home", "team=b", "x=y"]);
    assert_eq!(system.run(&["container", "get-attr", "tank", "home"]), "team=b\nx=y\n");
    let (code, error) = system.fails(&["container", "get-attr", "tank", "home", "none"]);
    assert!(code == 3 && error.contains("container home of pool tank has no attribute \"none\""), "{error}");
    let removed = system.run(&["container", "del-attr", "tank", "home", "x", "none"]);
    assert_eq!(removed, "1 attributes removed\n", "what was not there was not removed");
    let (code, error) = system.fails(&["pool", "destroy", "tank"]);
    assert_eq!(code, 8, "{error}");
    assert!(error.contains("home") && error.contains("objects"), "it says what is in the way: {error}");
    let (code, error) = system.fails(&["container", "destroy", "tank", "hoem"]);
    assert!(code == 3 && error.contains("hoem of pool tank does not exist"), "{code}: {error}");
    assert!(system.run(&["container", "destroy", "tank", "hoem", "--force"]).contains("does not exist"));
    for label in [".", "..", "--force", "-x"] {
        let (code, error) = system.fails(&["container", "create", "tank", "--", label]);
        assert!(code == 2 && error.contains("is not valid"), "{label}: {code}: {error}");
        let (code, error) = system.fails(&["pool", "create", "--size", "96MiB", "--", label]);
        assert!(code == 2 && error.contains("is not valid"), "{label}: {code}: {error}");
    }
    system.run(&["container", "set-attr", "tank", "home", "one:1,two:2", "opts:size=10", "list=a:1,b:2"]);
    let attributes = system.run(&["container", "get-attr", "tank", "home"]);
    assert_eq!(attributes, "list=a:1,b:2\none=1\nopts=size=10\nteam=b\ntwo=2\n");
    system.run(&["container", "set-attr", "tank", "home", "title=a\u{1b}]0;x\u{7}"]);
    assert_eq!(system.run(&["container", "get-attr", "tank", "home", "title"]), "title=a\\x1b]0;x\\x07\n");
    system.run(&["container", "destroy", "tank", "home"]);
    let (code, error) = system.fails(&["pool", "destroy", "tnak"]);
    assert!(code == 3 && error.contains("tnak does not exist"), "{code}: {error}");
    assert!(system.run(&["pool", "destroy", "tnak", "--force"]).contains("does not exist"));
    assert_eq!(system.run(&["pool", "destroy", "tank", "--force"]), "Pool tank destroyed\n");
    assert_eq!(system.json(&["pool", "list"])["pools"], json!([]));
    system.run(&["dev", "down"]);
    // Nobody has to wait to hear it.
    for command in [["pool", "list"].as_slice(), &["kv", "get", "tank", "home", "1", "x"]] {
        let begun = std::time::Instant::now();
        let (_, error) = system.fails(command);
        assert!(error.contains("weir dev up") && begun.elapsed() < Duration::from_secs(20), "{error}");
    }
}

#[test]
fn values_are_put_listed_and_removed() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    system.run(&["container", "create", "tank", "objects", "--type", "object"]);
    for (key, value) in [("a", "1"), ("b", "two"), ("c", "drei")] {
        system.run(&["kv", "put", "tank", "objects", "42", key, value]);
    }
    assert_eq!(system.run(&["kv", "get", "tank", "objects", "42", "b"]), "two");
    let mut keys: Vec<String> =
        system.run(&["kv", "list", "tank", "objects", "42"]).lines().map(String::from).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(system.fails(&["kv", "put", "tank", "objects", "42", "b", "x", "--insert"]).0, 4);
    system.run(&["kv", "remove", "tank", "objects", "42", "b"]);
    let (code, error) = system.fails(&["kv", "get", "tank", "objects", "42", "b"]);
    let said = "object 42 of container objects in pool tank has no key \"b\"";
    assert!(code == 3 && error.contains(said), "{code}: {error}");
    assert_eq!(system.fails(&["kv", "get", "tank", "objects", "one.two", "b"]).0, 2);
    let bytes: Vec<u8> = (0..=255).rev().collect();
    let file = system.folder().join("bytes");
    std::fs::write(&file, &bytes).expect("written");
    let name = file.to_str().expect("plain");
    system.run(&["kv", "put", "tank", "objects", "42", "bytes", "--file", name]);
    let output = system.weir().args(["kv", "get", "tank", "objects", "42", "bytes"]).output().expect("runs");
    assert_eq!(output.stdout, bytes, "a value comes back as it is");
    let described = system.json(&["kv", "get", "tank", "objects", "42", "bytes"]);
    assert_eq!((&described["value"], &described["bytes"]), (&json!(null), &json!(256)));
    assert!(described["base64"].as_str().is_some_and(|text| text.starts_with("//79")), "{described}");
    let (code, error) =
        system.fails(&["kv", "put", "tank", "objects", "42", "bytes", "--file", "/nowhere/bytes"]);
    assert!(code == 3 && error.contains("/nowhere/bytes"), "{code}: {error}");
    // Whatever failed before: nobody has it open.
    system.run(&["container", "destroy", "tank", "objects"]);
}

#[test]
fn a_system_that_was_changed_comes_up_again_as_it_is() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let pool = system.json(&["pool", "resize", "tank", "--size", "300MiB"]);
    system.run(&["container", "set-quota", "tank", "home", "100MiB"]);
    system.run(&["dev", "down"]);
    system.up(&[]);
    let again = system.json(&["pool", "query", "tank"]);
    assert_eq!((&again["uuid"], &again["size_bytes"]), (&pool["uuid"], &pool["size_bytes"]));
    assert_eq!(system.json(&["container", "query", "tank", "home"])["quota_bytes"], 100 << 20);
    system.run(&["container", "destroy", "tank", "home"]);
    system.run(&["dev", "down"]);
    system.up(&[]);
    assert_eq!(system.json(&["container", "list", "tank"])[0]["label"], "home", "what is missing is made");
}

#[test]
fn a_manifest_that_was_changed_changes_pool_and_quota() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB", "--bare"]);
    let manifest = system.folder().join("cluster.yaml");
    let up = |size: &str, quota: &str, class: &str| {
        let text = format!(
            "apiVersion: storage.weir.dev/v1alpha1\nkind: Pool\nmetadata: {{name: tank}}\n\
             spec: {{clusterRef: {{name: dev}}, size: {size}, objectClass: {class}}}\n---\n\
             apiVersion: storage.weir.dev/v1alpha1\nkind: Container\nmetadata: {{name: home}}\n\
             spec: {{poolRef: {{name: tank}}, quota: {quota}}}\n"
        );
        std::fs::write(&manifest, text).expect("written");
        system.run(&["dev", "down"]);
        system.try_up(&["--apply", manifest.to_str().expect("plain")])
    };
    let is = |size: u64, quota: u64| {
        assert_eq!(system.json(&["pool", "query", "tank"])["size_bytes"], size << 20);
        assert_eq!(system.json(&["container", "query", "tank", "home"])["quota_bytes"], quota << 20);
    };
    for (size, quota) in [(200, 50), (300, 100), (300, 100), (100, 20)] {
        up(&format!("{size}Mi"), &format!("{quota}Mi"), "SX").expect("it follows");
        is(size, quota);
    }
    let error = up("200Mi", "20Mi", "S1").expect_err("a class can't be changed");
    assert!(error.contains("class SX, not S1"), "{error}");
    system.up(&[]);
    is(100, 20);
    let error = up("900Gi", "20Mi", "SX").expect_err("the device is smaller");
    assert!(error.contains("tank") && !error.contains("other properties"), "{error}");
    system.up(&[]);
}

#[test]
fn a_container_is_unmounted_by_the_name_it_was_mounted_by() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let directory = system.folder().join("directory");
    let link = system.folder().join("link");
    std::fs::create_dir(&directory).expect("made");
    std::os::unix::fs::symlink(&directory, &link).expect("linked");
    let link = link.to_str().expect("plain");
    system.run(&["mount", "tank", "home", link]);
    system.run(&["umount", link]);
    assert_eq!(system.fails(&["umount", link]).0, 3);
}

#[test]
fn the_names_of_daos_reach_the_same_commands() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB", "--bare"]);
    let link = |name: &str| {
        let path = system.folder().join(name);
        std::os::unix::fs::symlink(harness::WEIR, &path).expect("linked");
        let mut command = Command::new(path);
        command.env("WEIR_ATTACH", system.folder().join("client.json"));
        command
    };
    let output = link("dmg").args(["pool", "create", "--size=200MiB", "tank", "-j"]).output().expect("runs");
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&envelope["status"], &envelope["error"]), (&json!(0), &json!(null)));
    let mut daos = link("daos");
    let output =
        daos.args(["container", "create", "tank", "home", "--type", "POSIX"]).output().expect("runs");
    assert!(output.status.success(), "{}", harness::text(&output));
    let list = system.json(&["container", "list", "tank"]);
    assert_eq!(list[0]["label"], "home");
}

#[test]
fn errors_are_in_the_envelope_and_say_what_to_do() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let output = system.weir().args(["--json", "pool", "query", "none"]).output().expect("runs");
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&envelope["response"], &envelope["status"]), (&json!(null), &json!(-1005)));
    assert!(envelope["error"].as_str().is_some_and(|error| error.contains("none")), "{envelope}");
    let (code, error) = system.fails(&["mount", "tank", "nowhere", "/tmp"]);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("nowhere"), "{error}");
    let (code, error) = system.fails(&["mount", "tank", "home", "/nowhere/at/all"]);
    assert!(code == 3 && error.contains("/nowhere/at/all"), "{code}: {error}");
    system.run(&["container", "create", "tank", "objects", "--type", "object"]);
    let (code, error) = system.fails(&["mount", "tank", "objects", "/tmp"]);
    assert_eq!(code, 8, "{error}");
    assert!(error.contains("POSIX"), "{error}");
    let (code, error) = system.fails(&["fs", "ls", "tank", "objects"]);
    assert_eq!(code, 8, "it has no file system: {error}");
    let (code, error) = system.fails(&["container", "create", "tank", "few", "--quota", "4KiB"]);
    assert!(code == 2 && error.contains("at least 1048576 bytes"), "{code}: {error}");
    let open = || system.json(&["container", "query", "tank", "objects"])["num_handles"].clone();
    assert_eq!(open(), 0, "a mount that failed holds nothing");
    assert_eq!(system.json(&["fs", "ls", "tank", "home"]), json!([]), "it was never mounted");
    system.mount("home", &["--read-only"]).unmount();
    for (path, named) in
        [("/", "/: is a directory"), ("/none", "/none: \"none\": no such file"), ("x/../..", "\"x\"")]
    {
        let (_, error) = system.fails(&["fs", "cat", "tank", "home", path]);
        assert!(error.contains(named), "{error}");
    }
    let file = system.folder().join("client.json");
    let (code, error) = system.fails(&["mount", "tank", "home", file.to_str().expect("plain")]);
    assert_eq!(code, 8, "{error}");
    system.run(&["container", "destroy", "tank", "home"]);
    let (code, _) = system.fails(&["fs", "cat", "tank", "objects", "/f", "--json"]);
    assert_eq!(code, 2, "content is no JSON");
    let twice = ["--attr", "a=1", "--attr", "a=2"];
    let (code, error) =
        system.fails(&[&["container", "create", "tank", "other", "--type", "object"], &twice[..]].concat());
    assert!(code == 2 && error.contains("attribute \"a\" is given twice"), "{code}: {error}");
    let (code, error) = system.fails(&["container", "set-attr", "tank", "objects", "b=1", "a=1", "b=1"]);
    assert!(code == 2 && error.contains("attribute \"b\" is given twice"), "{code}: {error}");
    let (code, error) = system.fails(&["fabric", "bench", "--provider", ""]);
    assert!(code == 2 && error.contains("an empty name"), "{code}: {error}");
    let second = system.weir().args(["dev", "up", "--detach"]).output().expect("runs");
    assert_eq!(second.status.code(), Some(8), "a folder holds one system");
    system.run(&["dev", "down"]);
    let (code, error) = system.fails(&["pool", "list"]);
    assert!(code == 5 && error.contains("start it with"), "{code}: {error}");
}

#[test]
fn a_container_is_free_once_it_is_unmounted_and_any_name_is_shown_and_named() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB"]);
    let mount = system.mount("home", &[]);
    let name = OsStr::from_bytes(b"a\xff\x1b[31m");
    std::fs::write(mount.directory().join(name), "content").expect("written");
    mount.unmount();
    let list = system.run(&["fs", "ls", "tank", "home"]);
    assert!(list.ends_with(" $'a\\377\\033[31m'\n"), "{list}");
    assert_eq!(system.json(&["fs", "ls", "tank", "home"])[0]["name_base64"], "Yf8bWzMxbQ==");
    let read = system.weir().args(["fs", "cat", "tank", "home"]).arg(name).output().expect("weir runs");
    assert_eq!(read.stdout, b"content");
    for round in 0..8 {
        let label = format!("round-{round}");
        system.run(&["container", "create", "tank", &label]);
        let mount = system.mount(&label, &[]);
        std::fs::write(mount.path("f"), "x").expect("written");
        mount.unmount();
        system.run(&["container", "destroy", "tank", &label]);
    }
}

#[test]
fn a_folder_that_others_can_write_holds_no_system() {
    let above = tempfile::tempdir().expect("a folder");
    let (folder, victim) = (above.path().join("dev"), above.path().join("victim"));
    std::fs::create_dir(&folder).expect("made");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    std::fs::write(&victim, "mine").expect("written");
    for link in ["system.new", "settings.new", "log"] {
        std::os::unix::fs::symlink(&victim, folder.join(link)).expect("made");
    }
    let mut bystander = Command::new("sleep").arg("600").spawn().expect("it runs");
    let pid = bystander.id();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("read");
    let begun = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)).expect("a start");
    let process = format!(r#"{{"pid":{pid},"start_ticks":{begun}}}"#);
    let running = format!(r#"{{"supervisor":{process},"ready":true,"members":[]}}"#);
    std::fs::write(folder.join("running.json"), running).expect("written");
    for arguments in [&["up", "--detach"][..], &["up"], &["down"], &["down", "--wipe"], &["kill", "0"]] {
        let mut command = Command::new(harness::WEIR);
        let output =
            command.arg("dev").args(arguments).arg("--dir").arg(&folder).output().expect("weir runs");
        let said = harness::text(&output);
        assert!(output.status.code() == Some(6) && said.contains("not safe"), "{arguments:?}: {said}");
    }
    assert_eq!(bystander.try_wait().expect("asked").map(|status| status.code()), None, "it is not killed");
    assert_eq!(std::fs::read_to_string(&victim).expect("read"), "mine");
    bystander.kill().expect("killed");
    bystander.wait().expect("reaped");
}

#[test]
fn manifests_and_mounts_come_up_with_the_system() {
    let manifest = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        manifest.path(),
        "apiVersion: storage.weir.dev/v1alpha1\nkind: StorageCluster\nmetadata: {name: dev}\nspec:\n  \
         engines: {replicas: 2, targetsPerEngine: 1}\n  storage: {size: 512Mi}\n---\n\
         apiVersion: storage.weir.dev/v1alpha1\nkind: Pool\nmetadata: {name: fast}\nspec:\n  \
         {clusterRef: {name: dev}, label: tank, size: 256Mi}\n---\n\
         apiVersion: storage.weir.dev/v1alpha1\nkind: Container\nmetadata: {name: home}\nspec:\n  \
         {poolRef: {name: fast}, quota: 100Mi, owner: {uid: 7, gid: 8, mode: \"0750\"}}\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {name: ignored}\n",
    )
    .expect("written");
    let directory = tempfile::tempdir().expect("a folder");
    let mount = format!("home={}", directory.path().display());
    let manifest = manifest.path().to_str().expect("plain");
    let system = DevSystem::start(&["--apply", manifest, "--mount", &mount]);
    std::fs::write(directory.path().join("f"), "x").expect("written");
    let root = std::fs::metadata(directory.path()).expect("stat");
    assert_eq!((root.uid(), root.gid(), root.mode() & 0o7777), (7, 8, 0o750));
    let query = system.json(&["container", "query", "tank", "home"]);
    assert_eq!(query["quota_bytes"], 100 << 20);
    assert_eq!(system.json(&["system", "query"])["members"].as_array().map(Vec::len), Some(2));
    system.run(&["dev", "down"]);
    let left = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, 0, "it is unmounted");
    system.up(&["--apply", manifest, "--mount", &mount]);
    assert_eq!(std::fs::read_to_string(directory.path().join("f")).expect("read"), "x");
}

/// Each engine's state in the membership protocol, and which life of it that is about.
fn members(system: &DevSystem) -> Vec<(String, u64)> {
    let reply = system.json(&["system", "query"]);
    let members = reply["members"].as_array().expect("a list");
    let entry = |member: &serde_json::Value| {
        (
            member["membership"].as_str().expect("a state").to_owned(),
            member["incarnation"].as_u64().unwrap_or(0),
        )
    };
    members.iter().map(entry).collect()
}

#[test]
fn the_state_of_every_engine_is_shown_with_what_its_peers_say() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB", "--bare"]);
    let all_alive = || members(&system).iter().all(|(state, _)| state == "alive");
    harness::eventually("the engines see each other", Duration::from_secs(30), all_alive);
    let before = members(&system)[1].1;
    let text = system.run(&["system", "query"]);
    assert!(text.contains("Membership") && text.contains("alive for"), "{text}");
    // The dev system starts it again: another life.
    system.run(&["dev", "kill", "1"]);
    harness::eventually("the engine is seen in its next life", Duration::from_mins(1), || {
        let (state, incarnation) = members(&system)[1].clone();
        state == "alive" && incarnation > before
    });
}

/// A process that stands still until this is dropped.
struct Paused(String);

impl Paused {
    fn signal(&self, signal: &str) {
        let sent = std::process::Command::new("kill").args([signal, &self.0]).status().expect("kill runs");
        assert!(sent.success(), "{signal} to {}", self.0);
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

#[test]
fn dead_engines_are_shown_one_by_one() {
    let system = DevSystem::start(&["--engines", "2", "--targets", "1", "--size", "256MiB", "--bare"]);
    let status = system.json(&["dev", "status"]);
    // Who starts them again.
    let supervisor = Paused(status["supervisor"].to_string());
    supervisor.signal("-STOP");
    system.run(&["dev", "kill", "0"]);
    system.run(&["dev", "kill", "1"]);
    let all_dead = || system.fails(&["dev", "status"]).1.contains("engine 0 is dead; engine 1 is dead");
    harness::eventually("both have ended", Duration::from_secs(30), all_dead);
    let (code, text) = system.fails(&["dev", "status"]);
    assert_eq!(code, 5, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("engine ") && line.contains(" dead")).count(), 2);
    let output = system.weir().args(["--json", "dev", "status"]).output().expect("runs");
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(envelope["error"].as_str().is_some_and(|error| error.contains("engine 1 is dead")), "{envelope}");
    let members = envelope["response"]["members"].as_array().expect("members");
    assert!(members.len() == 2 && members.iter().all(|member| member["state"] == "dead"), "{envelope}");
    // Nobody waits for longer than he has said.
    let directory = tempfile::tempdir().expect("a folder");
    let directory = directory.path().to_str().expect("plain");
    for command in
        [&["pool", "list"][..], &["fs", "ls", "tank", "home"], &["mount", "tank", "home", directory]]
    {
        let begun = std::time::Instant::now();
        let (code, error) = system.fails(&[command, &["--timeout", "1"]].concat());
        assert_eq!(code, 5, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{command:?} took {:?}", begun.elapsed());
    }
    assert_eq!(system.fails(&["fabric", "bench"]).0, 5);
    drop(supervisor);
    harness::eventually("they are started again", Duration::from_mins(1), || {
        system.weir().args(["dev", "status"]).output().expect("runs").status.success()
    });
}

#[test]
fn an_engine_that_hangs_is_named_by_the_others() {
    let system = DevSystem::start(&["--engines", "2", "--targets", "1", "--size", "256MiB"]);
    let hanging = Paused(system.engine_pid(0).to_string());
    hanging.signal("-STOP");
    // The first that is asked takes the connection and says nothing. Less time than it used to be given alone.
    let patience = ["--timeout", "12"];
    let members = || system.json(&[&["system", "query"][..], &patience].concat())["members"].clone();
    harness::eventually("its peers hold it dead", Duration::from_mins(1), || {
        members()[0]["membership"] == "dead"
    });
    assert_eq!(members()[1]["state"], "joined");
    // It has the list of pools.
    for command in [&["pool", "list"][..], &["pool", "create", "--size", "64MiB", "new"]] {
        let (code, error) = system.fails(&[command, &patience].concat());
        assert!(code == 5 && error.contains("rank 0"), "{code}: {error}");
        assert!(!error.contains("none of 2 engines answered"), "one did: {error}");
    }
    drop(hanging);
    harness::eventually("it is back", Duration::from_mins(1), || {
        system.weir().args(["pool", "list"]).output().expect("runs").status.success()
    });
}

#[test]
fn a_start_that_fails_leaves_nothing_of_a_new_system_and_everything_of_an_old_one() {
    let system = DevSystem::absent();
    let listed = || std::fs::read_dir(system.folder()).map_or(0, Iterator::count);
    let small = ["--engines", "1", "--targets", "1", "--size", "256MiB", "--bare"];
    let absent = [&small[..], &["--device", "/dev/null/none"]].concat();
    let error = system.try_up(&absent).expect_err("there is no such device");
    assert!(error.contains("/dev/null/none"), "{error}");
    assert_eq!(listed(), 0, "the next start meets nothing");
    // In a folder that is made for it, and in the foreground.
    let inner = system.folder().join("inner");
    let foreground = system.weir().args(["dev", "up", "--dir"]).arg(&inner).args(&absent).output();
    assert!(!foreground.expect("weir runs").status.success());
    assert!(!inner.exists() && listed() == 0, "the folder has gone, too");
    system.up(&small);
    system.run(&["pool", "create", "--size", "64MiB", "kept"]);
    system.run(&["dev", "down"]);
    // Nobody can make anything of this file.
    let extra = system.folder().join("engine-0/data/target-7.weir");
    std::fs::write(&extra, b"").expect("a file");
    let error = system.try_up(&["--bare"]).expect_err("a target too many");
    assert!(error.contains("target-7.weir"), "{error}");
    std::fs::remove_file(extra).expect("removed");
    system.up(&["--bare"]);
    system.run(&["pool", "query", "kept"]);
    system.run(&["dev", "down"]);
    let error = system.try_up(&["--bare", "--mount", "none=/tmp"]).expect_err("no such container");
    assert!(error.contains("no pool has a container"), "{error}");
    system.up(&["--bare"]);
    system.run(&["pool", "query", "kept"]);
}

/// Whether every figure of a measurement is one.
fn is_measured(figures: &serde_json::Value) -> bool {
    let positive = |value: &serde_json::Value| value.as_f64().is_some_and(|value| value > 0.0);
    let trip = &figures["round_trip_us"];
    positive(&trip["p50"])
        && positive(&trip["p99"])
        && ["requests_per_second", "write_mib_per_second", "read_mib_per_second"]
            .iter()
            .all(|name| positive(&figures[*name]))
}

#[test]
fn the_fabric_is_measured_by_the_providers_that_engines_answer_by() {
    let system = DevSystem::start(&["--engines", "2", "--size", "1GiB", "--bare", "--probe", "shm"]);
    let measured = system.json(&["fabric", "bench", "--provider", "tcp,shm"]);
    let providers = measured["providers"].as_array().expect("a list");
    assert_eq!((&providers[0]["provider"], &providers[1]["provider"]), (&json!("tcp"), &json!("shm")));
    for provider in providers {
        let engines = provider["engines"].as_array().expect("a list");
        assert_eq!((&engines[0]["rank"], &engines[1]["rank"]), (&json!(0), &json!(1)));
        assert!(engines.iter().all(|engine| is_measured(&engine["figures"])), "{provider}");
    }
    let ratios = measured["ratios"].as_array().expect("a list");
    assert_eq!((ratios.len(), &ratios[1]["beside"]), (2, &json!("shm")));
    assert!(ratios.iter().all(|ratio| is_measured(&ratio["figures"])), "{measured}");
    // An engine that is away costs its own figures only. Its rank sorts first, so that it is met first.
    let attach = system.folder().join("client.json");
    let text = std::fs::read_to_string(&attach).expect("read");
    let mut partly: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    partly["engines"][0]["fabric_port"] = nobody.port().into();
    let partial = system.folder().join("partial.json");
    std::fs::write(&partial, partly.to_string()).expect("written");
    let bench = ["fabric", "bench", "--provider", "tcp,shm", "--timeout", "1", "--attach"];
    let run = |form: &[&str]| system.weir().args(bench).arg(&partial).args(form).output().expect("runs");
    let output = run(&["--json"]);
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(5), "{envelope}");
    let error = envelope["error"].as_str().expect("text");
    assert!(error.contains("engine 0 by tcp: ") && error.contains("engine 0 by shm: "), "{error}");
    for provider in envelope["response"]["providers"].as_array().expect("a list") {
        let (away, here) = (&provider["engines"][0], &provider["engines"][1]);
        assert!(away["figures"].is_null() && away["error"].is_string(), "{away}");
        assert!(is_measured(&here["figures"]), "{here}");
    }
    assert_eq!(envelope["response"]["ratios"].as_array().map(Vec::len), Some(1), "{envelope}");
    let output = run(&[]);
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.code() == Some(5) && shown.contains("tcp / shm") && said.contains("engine 0"),
        "{shown}{said}"
    );
    let (code, error) = system.fails(&["fabric", "bench", "--provider", "verbs"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("only by tcp, shm") && error.contains("`probes`"), "{error}");
}

#[test]
fn the_fabric_is_measured_between_two_processes_without_a_system() {
    let bench = |providers: &str| {
        let mut command = Command::new(harness::WEIR);
        command.args(["fabric", "bench", "--local", "--json", "--provider", providers]);
        command.env_remove("WEIR_ATTACH").output().expect("weir runs")
    };
    let output = bench("shm");
    let envelope: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let response = &envelope["response"];
    assert_eq!((&response["local"], &response["ratios"]), (&json!(true), &json!([])), "{envelope}");
    assert!(is_measured(&response["providers"][0]["engines"][0]["figures"]), "{envelope}");
    let refused = bench("nothing");
    assert_eq!(refused.status.code(), Some(2));
    let envelope: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    let error = envelope["error"].as_str().expect("text");
    assert!(error.starts_with("nothing on this machine answers by nothing: "), "{error}");
    assert_eq!(harness::text(&refused).matches("answers by").count(), 1);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "", "the other side has said it to this one");
}
