//! Recorded messages: what an earlier release has sent is read today, and says what it said.
//!
//! A file holds the messages of one release. A line is a type, its encoding in hexadecimal, and what it says (its `Debug`
//! text). Lines are never changed but for renamed fields. For new types and for what messages have gained,
//! `WEIR_RECORD=NAME cargo test --workspace --lib recorded` writes a further file.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{READERS, ReadMessage};

/// Messages of each type in a file, of different lengths.
const SAMPLES: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded")
}

/// A message of a type: bytes drawn one after another, each so that what is there may still begin a message. They are small,
/// so that lengths end soon.
fn drawn(read: ReadMessage, seed: u64) -> Option<(Vec<u8>, String)> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele, Lea, Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [low, kind, ..] = (mixed ^ (mixed >> 31)).to_le_bytes();
        match kind {
            ..220 => low % 3,
            // The length of an identifier.
            220..250 => 16,
            _ => low % 128,
        }
    };
    let mut bytes = Vec::new();
    for _ in 0..2000 {
        match read(&bytes) {
            Ok(found) => return Some(found),
            Err(error) if error.is_cut() => {}
            // Not with this byte. What is wrong may have begun some bytes before.
            Err(_) => bytes.truncate(bytes.len().saturating_sub(usize::from(next()) + 1)),
        }
        bytes.push(next());
    }
    None
}

/// A file of messages as this build writes them.
fn record() -> String {
    let mut lines = String::new();
    for (name, read) in READERS {
        let mut lengths = BTreeSet::new();
        for seed in 0..1000 {
            let Some((bytes, says)) = drawn(*read, seed) else { continue };
            if lengths.insert(bytes.len()) {
                write!(lines, "{name}\t").expect("text");
                for byte in bytes {
                    write!(lines, "{byte:02x}").expect("text");
                }
                writeln!(lines, "\t{says}").expect("text");
            }
            if lengths.len() == SAMPLES {
                break;
            }
        }
        assert!(!lengths.is_empty(), "no {name} was drawn");
    }
    lines
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..hex.len()).step_by(2).map(|at| digits(at).expect("two hexadecimal digits")).collect()
}

#[test]
fn recorded_messages_say_what_they_said() {
    if let Some(name) = std::env::var_os("WEIR_RECORD") {
        std::fs::write(folder().join(name), record()).expect("a new file");
    }
    let mut recorded = BTreeSet::new();
    for file in std::fs::read_dir(folder()).expect("recorded messages").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("a file of messages");
        for line in text.lines() {
            let parts: Vec<&str> = line.splitn(3, '\t').collect();
            let [name, hex, said] = parts[..] else { panic!("{}: {line}", file.path().display()) };
            let (_, read) =
                READERS.iter().find(|(listed, _)| *listed == name).expect("a type of the protocol");
            let (_, says) = read(&bytes_of(hex)).unwrap_or_else(|error| panic!("{hex}: {error}"));
            assert_eq!(says, said, "a {name}");
            // What a later release puts behind it changes nothing.
            let longer = [bytes_of(hex), vec![7; 5]].concat();
            assert_eq!(read(&longer).expect("a longer message").1, said, "a {name} with a tail");
            recorded.insert(name.to_owned());
        }
    }
    let missing: Vec<_> = READERS.iter().filter(|(name, _)| !recorded.contains(*name)).collect();
    let names: Vec<_> = missing.iter().map(|(name, _)| name).collect();
    assert!(names.is_empty(), "no message is recorded of {names:?}; see WEIR_RECORD above");
}
