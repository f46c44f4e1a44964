//! Files in the folder of shared memory that stand for ports. Each holds the address of the endpoint that
//! listens there.
//!
//! Every user may make files of any kind and name in that folder. Whatever is in the place of such a file must not
//! delay a process that reads or makes it, or lead it elsewhere.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Longest content that is read, in bytes: a name has fewer than 60, an address of Mercury's fewer than 100.
const CONTENT_MAX: u64 = 128;

/// The content of a port's file, if it is text. It waits neither for the writer of a pipe, nor for the end of an
/// endless file, nor for the end of a lease.
pub(crate) fn read(path: &Path) -> Option<String> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(CONTENT_MAX).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// Makes a port's file, replacing an existing one. It is written as `scratch` and renamed, so that readers see
/// all of it or nothing.
///
/// # Errors
/// Those of the files, such as when `scratch` belongs to another user.
pub(crate) fn write(path: &Path, scratch: &Path, content: &str) -> io::Result<()> {
    // Left by an earlier try. A file that can't be removed is found below.
    let _ = fs::remove_file(scratch);
    File::create_new(scratch)?.write_all(content.as_bytes())?;
    fs::rename(scratch, path)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn make_pipe(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().expect("runs").success());
    }

    /// Has a descriptor's news come as another signal than SIGIO (`fcntl.h`).
    const F_SETSIG: libc::c_int = 10;

    /// A lease on a file: a process that opens the file otherwise waits for the lease's end, for 45 s at most.
    #[expect(unsafe_code, reason = "no library has leases")]
    pub(crate) fn lease(path: &Path) -> File {
        let file = File::options().read(true).write(true).open(path).expect("a file");
        // SAFETY: both calls take numbers only. The signal that tells of a break is one that is ignored.
        let leased = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(leased, "{}", io::Error::last_os_error());
        file
    }

    #[test]
    fn a_file_that_was_written_is_read_also_in_the_place_of_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, scratch] = ["port", "scratch"].map(|name| folder.path().join(name));
        assert_eq!(read(&path), None);
        for content in ["weir-1-2-3", "na+sm://1-2"] {
            write(&path, &scratch, content).expect("written");
            assert_eq!((read(&path).as_deref(), scratch.exists()), (Some(content), false));
        }
    }

    #[test]
    fn pipes_links_leases_and_long_files_hold_up_no_reader_and_lead_nowhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let [pipe, real, link, long] = ["pipe", "real", "link", "long"].map(|name| folder.path().join(name));
        make_pipe(&pipe);
        assert_eq!(read(&pipe).unwrap_or_default(), "");
        fs::write(&real, "weir-1-2-3").expect("written");
        symlink(&real, &link).expect("a link");
        assert_eq!((read(&link), read(&real).as_deref()), (None, Some("weir-1-2-3")));
        fs::write(&long, "weir".repeat(1000)).expect("written");
        assert!(read(&long).is_some_and(|content| content.len() as u64 == CONTENT_MAX));
        assert_eq!(read(folder.path()), None);
        let lease = lease(&real);
        assert_eq!(read(&real), None);
        write(&real, &link, "weir-4-5-6").expect("written in its place");
        assert_eq!(read(&real).as_deref(), Some("weir-4-5-6"));
        drop(lease);
    }

    #[test]
    fn pipes_and_links_hold_up_no_writer_and_lead_nowhere() {
        for place in ["scratch", "port"] {
            let folder = tempfile::tempdir().expect("a folder");
            let [path, scratch, other] = ["port", "scratch", "other"].map(|name| folder.path().join(name));
            make_pipe(&folder.path().join(place));
            write(&path, &scratch, "weir-1-2-3").expect("written");
            assert_eq!(read(&path).as_deref(), Some("weir-1-2-3"));
            fs::remove_file(&path).expect("removed");
            fs::write(&other, "another's").expect("written");
            symlink(&other, folder.path().join(place)).expect("a link");
            write(&path, &scratch, "weir-1-2-3").expect("written");
            let [content, others] = [&path, &other].map(|path| read(path).expect("a file"));
            assert_eq!((content.as_str(), others.as_str()), ("weir-1-2-3", "another's"));
        }
    }
}
