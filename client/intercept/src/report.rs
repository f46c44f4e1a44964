//! The report of which way each file took: a line for each descriptor of a mount's file, when it is closed or the process ends.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

use crate::descriptors::{self, Counts, Known, reason};
use crate::original::Inside;
use crate::tally;

/// Environment variable with the file that the report is added to; `-` is standard error.
const VARIABLE: &str = "WEIR_INTERCEPT_REPORT";

/// The variable that programs for DAOS set; anything but 0 has the report on standard error.
const VARIABLE_OF_DAOS: &str = "D_IL_REPORT";

/// Where the report goes, if there is one.
fn destination() -> Option<&'static OsString> {
    static DESTINATION: OnceLock<Option<OsString>> = OnceLock::new();
    let found = DESTINATION.get_or_init(|| {
        let of_daos = || std::env::var_os(VARIABLE_OF_DAOS).filter(|value| value != "0").map(|_| "-".into());
        std::env::var_os(VARIABLE).or_else(of_daos).filter(|value| !value.is_empty())
    });
    found.as_ref()
}

/// Reads the environment, and has what is open at the end of the process reported.
pub fn prepare() {
    if destination().is_some() {
        // SAFETY: the function is of this library, which is never unloaded.
        unsafe { libc::atexit(all) };
    }
}

fn taken(counts: &Counts) -> [u64; 5] {
    let take = |count: &core::sync::atomic::AtomicU64| count.swap(0, Ordering::Relaxed);
    let ([reads, read], [writes, written]) = (&counts.reads, &counts.writes);
    [take(reads), take(read), take(writes), take(written), take(&counts.kernel)]
}

fn why(why: u16) -> String {
    match why {
        reason::NO_SERVICE => "the process can't have the library's threads".to_owned(),
        reason::UNREACHABLE => "the engines can't be reached from this process".to_owned(),
        reason::MAPPED => "it was mapped, or a request failed".to_owned(),
        reason::FAILED => "a request failed".to_owned(),
        errno => std::io::Error::from_raw_os_error(i32::from(errno)).to_string(),
    }
}

/// Reports a descriptor that is about to be closed. Its counts begin again.
pub fn one(fd: c_int) {
    if destination().is_none() {
        return;
    }
    let way = match descriptors::known(fd) {
        Some(Known::Direct(_)) => "direct".to_owned(),
        Some(Known::Kernel(reason)) => format!("kernel ({})", why(reason)),
        _ => return,
    };
    let _inside = Inside::enter();
    let Some(counts) = descriptors::counts(fd) else { return };
    let [reads, read, writes, written, kernel] = taken(counts);
    let unknown = || "(unknown)".to_owned();
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    let name = name.map_or_else(|_| unknown(), |name| name.display().to_string());
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_else(|_| unknown());
    let line = format!(
        "{} {}: {way}, {reads} reads of {read} bytes, {writes} writes of {written} bytes, {kernel} calls left to the kernel: {}\n",
        program.trim_end(),
        std::process::id(),
        name,
    );
    tell(&line);
}

fn tell(line: &str) {
    let Some(destination) = destination() else { return };
    if destination == "-" {
        // There is nobody to tell of a failure.
        let _ = std::io::stderr().write_all(line.as_bytes());
    } else if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(destination) {
        // As above.
        let _ = file.write_all(line.as_bytes());
    }
}

/// Reports what is open at the end of the process, and which way its calls on names took.
extern "C" fn all() {
    descriptors::all().for_each(one);
    let _inside = Inside::enter();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_else(|_| "(unknown)".to_owned());
    for said in tally::taken() {
        tell(&format!("{} {}: names: {said}\n", program.trim_end(), std::process::id()));
    }
}
