//! Remains of killed processes' endpoints in shared memory. Mercury names endpoints after process ids and refuses to
//! open one beside the remains of another. So an engine with the same id, as in a container that is started again,
//! would never come back.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Once;

/// Where Mercury keeps an endpoint's socket, unless it is configured otherwise when it is built.
const SOCKETS: &str = "/tmp";

/// Where the memory is.
const MEMORY: &str = "/dev/shm";

/// First part of the names in both.
const PREFIX: &str = "na_sm-";

/// Name of the socket in an endpoint's folder.
const SOCKET: &str = "sock";

/// Removes them, once in a process: before it has endpoints of its own.
pub(super) fn sweep() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| sweep_in(Path::new(SOCKETS), Path::new(MEMORY)));
}

fn sweep_in(sockets: &Path, memory: &Path) {
    let Ok(user) = fs::metadata("/proc/self").map(|metadata| metadata.uid()) else { return };
    let Ok(entries) = fs::read_dir(sockets) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_endpoint = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_own = || entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user);
        if is_endpoint && is_own() && is_abandoned(&entry.path().join(SOCKET)) {
            tracing::debug!(endpoint = %entry.path().display(), "removing what a killed process left");
            // Another process may sweep at the same time.
            let _ = fs::remove_dir_all(entry.path());
            let _ = fs::remove_file(memory.join(&name));
        }
    }
}

/// Whether a socket is there and no process has it: the system knows that also of processes that can't be seen from
/// here.
fn is_abandoned(socket: &Path) -> bool {
    let asked = UnixDatagram::unbound().and_then(|own| own.connect(socket));
    asked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_has_any_more_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sockets, memory) = (folder.path().join("sockets"), folder.path().join("memory"));
        fs::create_dir(&memory).expect("made");
        let make = |name: &str| {
            fs::create_dir_all(sockets.join(name)).expect("made");
            fs::write(memory.join(name), "").expect("written");
            UnixDatagram::bind(sockets.join(name).join(SOCKET)).expect("bound")
        };
        drop(make("na_sm-17-0"));
        let _held = make("na_sm-17-1");
        drop(make("another-17-0"));
        fs::create_dir(sockets.join("na_sm-18-0")).expect("a folder without a socket: being made");
        sweep_in(&sockets, &memory);
        let left = |folder: &Path| {
            let names = fs::read_dir(folder).expect("listed").map(|entry| entry.expect("one").file_name());
            let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(left(&sockets), ["another-17-0", "na_sm-17-1", "na_sm-18-0"]);
        assert_eq!(left(&memory), ["another-17-0", "na_sm-17-1"]);
    }
}
