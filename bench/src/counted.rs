//! What one small request asks the C library for, client and server together: memory, and locks. A library that is loaded
//! before the program counts the calls (`counted/counting.c`).
//!
//! As with instructions the program runs itself twice, the second time with twice as many requests, and takes the difference.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{BenchError, Report};

/// Requests of a run: enough that what is done once in a while, such as by the clock of an endpoint, hardly counts.
const REQUESTS: u32 = 20_000;

/// The library; there is none where it could not be built.
const LIBRARY: &str = env!("WEIR_COUNTING");

/// A place in a program or library.
type Place = (PathBuf, String);

/// What a run has asked for.
#[derive(Default)]
struct Counts {
    allocations: f64,
    locks: BTreeMap<Place, f64>,
}

/// What one request asks for.
#[derive(Default, PartialEq, Debug)]
struct Each {
    allocations: f64,
    /// Locks that Weir's code takes from the C library.
    ours: f64,
    /// Those that libfabric takes, and what else is linked.
    theirs: f64,
}

impl Counts {
    /// What a library has written.
    fn read(text: &str) -> Option<Self> {
        let mut counts = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            let (kind, count) = (words.next()?, words.next()?.parse::<f64>().ok()?);
            if kind == "allocations" {
                counts.allocations = count;
                continue;
            }
            let (address, file) = (words.next()?.to_owned(), PathBuf::from(words.next()?));
            *counts.locks.entry((file, address)).or_default() += count;
        }
        Some(counts)
    }

    fn of_run(provider: &str, requests: u32) -> Option<Self> {
        let file = std::env::temp_dir().join(format!("weir-bench-counts-{}", std::process::id()));
        let status = Command::new(std::env::current_exe().ok()?)
            .args(["--make-requests", &format!("{provider}:plain:{requests}")])
            .env("LD_PRELOAD", LIBRARY)
            .env("WEIR_COUNTS", &file)
            .status();
        let text = std::fs::read_to_string(&file);
        // Without the library there is no file either.
        let _ = std::fs::remove_file(&file);
        status.ok()?.success().then_some(())?;
        Self::read(&text.ok()?)
    }

    /// What was asked for beyond what a shorter run has asked for, by each of so many requests. `is_ours` says whose a place is.
    fn beyond(&self, less: &Self, requests: u32, is_ours: impl Fn(&Place) -> bool) -> Each {
        let each = |more: f64, less: f64| (more - less).max(0.0) / f64::from(requests);
        let mut sum = Each { allocations: each(self.allocations, less.allocations), ..Each::default() };
        for (place, count) in &self.locks {
            let locks = each(*count, less.locks.get(place).copied().unwrap_or(0.0));
            // Whose a place is takes a program to find out.
            if locks > 0.0 && is_ours(place) {
                sum.ours += locks;
            } else {
                sum.theirs += locks;
            }
        }
        sum
    }
}

/// The function at a place, as the linker knows it. Empty where nobody can tell.
fn function((file, address): &Place) -> String {
    let output = Command::new("addr2line").arg("-f").arg("-e").arg(file).arg(address).output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    text.lines().next().unwrap_or("").to_owned()
}

/// Whether a function is Rust's or of Weir's C files. What nobody can tell counts as Weir's.
fn is_of_weir(function: &str) -> bool {
    let strange = function.is_empty() || function.starts_with('?');
    strange || ["_R", "_ZN", "weir_"].iter().any(|start| function.starts_with(start))
}

/// A provider that takes locks for each request: where none is counted there, none is counted anywhere.
const LOCKS: &str = "tcp";

/// Adds rows for each provider, where the library could be built.
///
/// # Errors
/// When locks aren't counted.
pub fn measure(report: &mut Report, providers: &[String]) -> Result<(), BenchError> {
    if !Path::new(LIBRARY).exists() {
        return Ok(());
    }
    for provider in providers {
        let run = |requests| Counts::of_run(provider, requests);
        let (Some(once), Some(twice)) = (run(REQUESTS), run(2 * REQUESTS)) else { continue };
        let each = twice.beyond(&once, REQUESTS, |place| is_of_weir(&function(place)));
        if provider == LOCKS && each.theirs < 1.0 {
            let output = format!("{provider} takes locks, but none were seen");
            return Err(BenchError::Command { command: "counting locks".to_owned(), output });
        }
        let name = |what: &str| format!("fabric {provider}: {what} per request");
        report.figure(&name("allocations"), each.allocations, "", Some("0"));
        report.figure(&name("locks of Weir's"), each.ours, "", Some("0"));
        report.figure(&name("locks of libfabric's"), each.theirs, "", None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_ask_for_is_the_difference_of_two_runs_by_whose_place_it_is() {
        let read = |text: &str| Counts::read(text).expect("well formed");
        let once =
            read("allocations 500\nlock 0 0 elsewhere\nlock 30 0x10 /a program\nlock 7 0x20 /a program\n");
        let twice = read(
            "allocations 510\nlock 0 0 elsewhere\nlock 50 0x10 /a program\nlock 7 0x20 /a program\nlock 5 0x30 /lib\n",
        );
        let each = twice.beyond(&once, 10, |(file, _)| file == Path::new("/lib"));
        assert_eq!(each, Each { allocations: 1.0, ours: 0.5, theirs: 2.0 });
        assert!(Counts::read("allocations many").is_none());
    }

    #[test]
    fn functions_are_told_apart_by_their_names() {
        assert!(["", "??", "_ZN4weir4main17h0E", "_RNvC4weir4main", "weir_send"].into_iter().all(is_of_weir));
        assert!(!["xnet_progress", "ofi_mutex_lock_op", "smr_send"].into_iter().any(is_of_weir));
    }

    #[test]
    fn locks_and_allocations_of_a_program_are_counted() {
        if !Path::new(LIBRARY).exists() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("counts");
        // Any program allocates; most take some lock of the C library's.
        let status = Command::new("/bin/ls")
            .arg(folder.path())
            .env("LD_PRELOAD", LIBRARY)
            .env("WEIR_COUNTS", &file)
            .status();
        assert!(status.expect("it runs").success());
        let counts = Counts::read(&std::fs::read_to_string(&file).expect("written")).expect("well formed");
        assert!(counts.allocations > 10.0, "{}", counts.allocations);
    }
}
