//! Data directories that aren't the engine's: refused with a reason, and left as they are.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use weir_management::v1;

use crate::system::System;

/// Every file of a directory with its first bytes, to see that nothing changed.
fn content(folder: &Path) -> Vec<(String, u64, Vec<u8>)> {
    let entries = fs::read_dir(folder).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries
        .map(|path| {
            let bytes = fs::read(&path).unwrap_or_default();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, bytes.len() as u64, bytes)
        })
        .collect();
    found.sort();
    found
}

/// Starts engine 0 on what is in its directory; what it says when it refuses.
fn refusal(system: &mut System) -> String {
    let before = content(&system.engines[0].data);
    let (code, said) = system.run_to_end(0);
    assert_eq!(code, Some(1), "{said}");
    assert!(content(&system.engines[0].data) == before, "the directory was changed");
    said
}

#[test]
fn a_directory_with_something_else_is_refused() {
    let mut system = System::prepare(1, 1);
    let data = system.engines[0].data.clone();
    fs::create_dir_all(&data).expect("a directory");
    fs::write(data.join("holiday.jpg"), b"not ours").expect("a file");
    let said = refusal(&mut system);
    assert!(said.contains("holds no targets but \"holiday.jpg\""), "{said}");
}

/// Starts engine 0 on what is in its directory; what it says when it serves without it.
fn loss(system: &mut System) -> String {
    let before = content(&system.engines[0].data);
    system.spawn(0);
    system.wait_ready();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = runtime.block_on(async { system.system(0).query(v1::SystemQueryRequest {}).await });
    let message = reply.expect("the engine answers").into_inner().engines[0].message.clone();
    assert!(system.terminate(0).success(), "{}", system.log(0));
    assert!(content(&system.engines[0].data) == before, "the directory was changed");
    message
}

#[test]
fn a_file_that_is_no_store_is_a_lost_target() {
    let mut system = System::prepare(1, 1);
    let data = system.engines[0].data.clone();
    fs::create_dir_all(&data).expect("a directory");
    fs::write(data.join("target-0.weir"), vec![b'x'; 64 << 20]).expect("a file");
    let said = loss(&mut system);
    assert!(said.contains("lost: ") && said.contains("target-0.weir holds no store"), "{said}");
}

#[test]
fn the_data_of_another_engine_is_none_of_this_one() {
    let mut system = System::start(2, 1);
    for rank in 0..2 {
        assert!(system.terminate(rank).success());
    }
    let (own, other) = (system.engines[0].data.clone(), system.engines[1].data.clone());
    fs::remove_dir_all(&own).expect("it is ours");
    fs::rename(other, own).expect("the wrong volume");
    let said = loss(&mut system);
    assert!(
        said.contains("belongs to system \"test\", rank 1, target 0, not to system \"test\", rank 0"),
        "{said}"
    );
}

#[test]
fn surplus_targets_are_refused() {
    let mut system = System::start(1, 2);
    assert!(system.terminate(0).success());
    let data = system.engines[0].data.clone();
    let aside = system.folder.path().join("aside");
    fs::rename(data.join("target-1.weir"), &aside).expect("a file");
    fs::rename(&aside, data.join("target-2.weir")).expect("a file");
    let said = refusal(&mut system);
    assert!(said.contains("target-2.weir, but `targets` is 2"), "{said}");
}

#[test]
fn a_target_with_damaged_superblocks_is_lost() {
    let mut system = System::start(1, 1);
    assert!(system.terminate(0).success());
    let path = system.engines[0].data.join("target-0.weir");
    let mut file = fs::OpenOptions::new().write(true).open(path).expect("the file");
    file.seek(SeekFrom::Start(0)).expect("a place");
    file.write_all(&vec![0x5a; 64 * 1024]).expect("damage");
    drop(file);
    let said = loss(&mut system);
    assert!(said.contains("lost: ") && said.contains("target-0.weir"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let mut system = System::prepare(1, 1);
    let taken = std::net::TcpListener::bind(&system.engines[0].management).expect("a free port");
    let (code, said) = system.run_to_end(0);
    assert_eq!(code, Some(1));
    assert!(said.contains("management can't listen at") && said.contains("another engine"), "{said}");
    assert!(!system.engines[0].data.exists(), "no data was made");
    drop(taken);
}

#[test]
fn a_wrong_configuration_ends_with_the_code_for_usage() {
    let mut system = System::prepare(1, 1);
    let config = system.engines[0].config.clone();
    let text = fs::read_to_string(&config).expect("the file");
    for (right, wrong, words) in [
        ("targets = 1", "targets = 0", "`targets` = \"0\" is not valid"),
        ("provider", "provide", "unknown field `provide`"),
        ("\"tcp\"", "\"udp\"", "`provider` = \"udp\" is not valid"),
        ("\"info\"", "\"infoo\"", "`log` = \"infoo\" is not valid"),
    ] {
        fs::write(&config, text.replacen(right, wrong, 1)).expect("the file");
        let (code, said) = system.run_to_end(0);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
