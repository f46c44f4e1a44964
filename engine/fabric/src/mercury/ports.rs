//! Ports of endpoints in shared memory: a file with the endpoint's address for each, so that it is found by a number
//! that others know beforehand.

use crate::FabricError;
use crate::mercury_wire::names::Name;
use crate::naming::port_file;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Where the files are: they go when the machine does, as the endpoints do.
const DIRECTORY: &str = "/dev/shm";

/// First part of the names of the files. Users, and pid namespaces, have ports of their own: one can't reach the memory of
/// the other's processes anyway.
fn prefix() -> String {
    let user = fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino());
    format!("weir-mercury-port-{user}-{namespace}-")
}

/// The file of a port.
fn path(port: u16) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("{}{port}", prefix()))
}

/// Removes the files of ports whose holders were killed.
fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    let prefix = prefix();
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        let holder = port_file::read(&entry.path()).and_then(|text| Name::parse(&text));
        if holder.is_some_and(|holder| holder.is_dead()) {
            // Another process may sweep at the same time.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The process that listens at a port, if it lives.
pub(super) fn lookup(port: u16) -> Option<Name> {
    Name::parse(&port_file::read(&path(port))?).filter(|name| !name.is_dead())
}

/// A port that is listened at; free again when dropped.
pub(super) struct Port {
    port: u16,
    holder: Name,
}

impl Port {
    /// Takes a port.
    pub(super) fn listen(port: u16, holder: &Name, provider: &str) -> Result<Self, FabricError> {
        let failed = |code: i64, reason: String| FabricError::Provider {
            call: "listen",
            code,
            reason,
            provider: provider.to_owned(),
        };
        if let Some(other) = lookup(port) {
            return Err(failed(0, format!("port {port} is in use by {}", other.text())));
        }
        sweep();
        let file = path(port);
        let scratch = file.with_extension(std::process::id().to_string());
        port_file::write(&file, &scratch, &holder.text()).map_err(|error| {
            let code = -i64::from(error.raw_os_error().unwrap_or(0));
            failed(code, format!("can't write {}: {error}", file.display()))
        })?;
        Ok(Self { port, holder: holder.clone() })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if lookup(self.port).as_ref() == Some(&self.holder) {
            // Another process that found it stale may have removed it.
            let _ = fs::remove_file(path(self.port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_one_living_endpoint() {
        let name = |id: u8| Name::parse(&format!("na+sm://{}-{id}", std::process::id())).expect("an address");
        let first = Port::listen(9, &name(200), "mercury/na+sm").expect("a port nobody uses");
        let refused = Port::listen(9, &name(201), "mercury/na+sm").err().expect("in use");
        assert!(refused.to_string().contains("port 9"), "{refused}");
        assert_eq!(lookup(9), Some(name(200)));
        drop(first);
        assert_eq!(lookup(9), None);
        // The file of a process that was killed has no owner.
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        fs::write(path(9), format!("na+sm://{}-0", child.id())).expect("writable");
        child.wait().expect("it ends");
        fs::write(path(8), format!("na+sm://{}-1", child.id())).expect("writable");
        drop(Port::listen(9, &name(202), "mercury/na+sm").expect("its holder is dead"));
        assert!(!path(9).exists() && !path(8).exists());
    }
}
