//! Programs with several threads that write pieces of the same pages.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::system;

/// Less than a page, so that several threads write to each.
const PIECE: u64 = 512;

const THREADS: u64 = 8;

/// Files that are written one after the other: what goes wrong does so in every fifth or so.
const FILES: u64 = 25;

/// How often each thread writes to a file.
const ROUNDS: u64 = 40;

/// How often a file is opened meanwhile, at most: so that the test ends also when a write fails.
const OPENS_MAX: u64 = 100_000;

/// Content of a piece, which tells where and when it was written.
fn piece(at: u64, time: u64) -> Vec<u8> {
    let words = (0..PIECE / 8).map(|word| (time + 1) << 48 | at << 16 | word);
    words.flat_map(u64::to_le_bytes).collect()
}

fn created(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("created")
}

/// Has all threads work at once, each for some rounds. Returns the pieces with which they weren't content.
fn at_once(work: impl Fn(u64, u64) -> Result<(), u64> + Sync) -> Vec<u64> {
    let start = Barrier::new(usize::try_from(THREADS).expect("few"));
    let (start, work) = (&start, &work);
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                start.wait();
                (0..ROUNDS).filter_map(|round| work(round, thread).err()).collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn threads_that_write_to_one_page_read_what_they_have_written() {
    let system = system();
    let mount = system.mount("home", &[]);
    for number in 0..FILES {
        let file = created(&mount.path(&format!("f{number}")));
        // What lengthens the file, then what is there already.
        for (time, step) in [(0, THREADS), (ROUNDS, 0)] {
            let wrong = at_once(|round, thread| {
                let at = round * step + thread;
                let (written, mut read) = (piece(at, time + round), vec![0xff; piece(0, 0).len()]);
                file.write_all_at(&written, at * PIECE).expect("written");
                file.read_exact_at(&mut read, at * PIECE).expect("read");
                if read == written { Ok(()) } else { Err(at) }
            });
            assert!(wrong.is_empty(), "file {number}, pieces of {PIECE} bytes at {wrong:?}");
        }
    }
}

#[test]
fn the_size_includes_every_write_that_has_ended() {
    let system = system();
    let mount = system.mount("home", &[]);
    for number in 0..FILES / 5 {
        let path = mount.path(&format!("f{number}"));
        let (file, is_written) = (created(&path), AtomicBool::new(false));
        let wrong = std::thread::scope(|scope| {
            // Has the engines asked while they don't have all yet.
            scope.spawn(|| {
                for _ in (0..OPENS_MAX).take_while(|_| !is_written.load(Ordering::Relaxed)) {
                    File::open(&path).expect("opened");
                    // The others get a turn.
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let wrong = at_once(|round, thread| {
                let at = round * THREADS + thread;
                file.write_all_at(&piece(at, 0), at * PIECE).expect("written");
                let is_there = file.read_exact_at(&mut piece(0, 0), at * PIECE).is_ok();
                let size = file.metadata().expect("stat").len();
                if is_there && size >= (at + 1) * PIECE { Ok(()) } else { Err(at) }
            });
            is_written.store(true, Ordering::Relaxed);
            wrong
        });
        assert!(wrong.is_empty(), "file {number} was too short for pieces of {PIECE} bytes at {wrong:?}");
    }
}
