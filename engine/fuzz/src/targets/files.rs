//! Files of other processes in shared memory's folder: those that stand for ports, and doorbells. Every user may make
//! them.

use crate::source::Source;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_fabric::libfabric::files::{ASLEEP, CHANNELS, ForeignDoorbell, LOCKED, MOVED, WORDS, holder};

/// Bytes of a bell's page.
const PAGE: usize = 4096;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    port(&mut source);
    bell(&mut source);
}

/// A port's file. The name in it becomes the name of files.
fn port(source: &mut Source<'_>) {
    let name = format!("weir-{}-{}-{:016x}", source.number(), source.number32(), source.number());
    let mut content = name.into_bytes();
    let mut is_right = true;
    for _ in 0..source.below(3) {
        is_right = false;
        let at = usize::try_from(source.below(content.len() as u64 + 1)).unwrap_or(0);
        match source.below(3) {
            0 => content.insert(at, source.byte()),
            1 => content.truncate(at),
            _ => content.extend(source.bytes(200)),
        }
    }
    let file = Scratch::new(&content);
    let found = holder(&file.0);
    if let Some(name) = &found {
        assert!(name.starts_with("weir-") && !name.contains(['/', '\0', '.']) && name.len() < 64, "{name:?}");
        assert_eq!(name.as_bytes(), content, "a part of a name");
    }
    // No process has the number 0.
    let is_nobody = || str::from_utf8(&content).is_ok_and(|name| name.split('-').nth(2) == Some("0"));
    assert!(!is_right || found.is_some() || is_nobody(), "a name by the rules is refused");
}

/// A file that is removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(content: &[u8]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("weir-fuzz-port-{process}-{number}"));
        fs::write(&path, content).expect("a file");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is gone when another process clears the folder.
        let _ = fs::remove_file(&self.0);
    }
}

/// A bell, of any length and with anything in it.
fn bell(source: &mut Source<'_>) {
    let mut page = vec![0; PAGE];
    let values = [0, ASLEEP, MOVED, CHANNELS, LOCKED];
    let words = WORDS.map(|word| {
        let value = if source.chance(60) { source.number32() } else { source.pick(&values) };
        page[4 * word..][..4].copy_from_slice(&value.to_ne_bytes());
        value
    });
    match source.below(4) {
        0 | 1 => {}
        2 => page.truncate(usize::try_from(source.below(PAGE as u64)).unwrap_or(0)),
        _ => page.extend(source.bytes(100)),
    }
    let foreign = ForeignDoorbell::new(&page).expect("a file");
    // The lock is free: the process that claims to have it has ended.
    let says_locked = page.len() >= 4 * (WORDS[3] + 1) && words[3] == LOCKED;
    assert_eq!(foreign.is_dead(), says_locked, "{words:?}");
    let Ok(bell) = foreign.ring() else {
        assert!(page.len() < PAGE, "a whole bell is refused");
        return;
    };
    assert!(page.len() >= PAGE, "a bell of {} bytes", page.len());
    assert_eq!((bell.generation, bell.takes_channels), (words[1], words[2] == CHANNELS));
    assert_eq!((bell.woken, bell.moved), (words[0] == ASLEEP, words[0] == MOVED), "{words:?}");
    // Ringing changes one word, and nothing else.
    let mut expected = page;
    if bell.woken {
        expected[4 * WORDS[0]..][..4].fill(0);
    }
    assert_eq!(foreign.content().expect("it is there"), expected);
}
