//! Files through a mount beside the local file system: the same calls, in the same run.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use crate::report::{BenchError, Report};
use crate::system::System;

const MIB: usize = 1 << 20;
/// Bytes of a small file: one page.
const SMALL: usize = 4096;

/// Rates of one file system.
struct Rates {
    /// Small files created, written and closed per second; on the local file system with fsync, since a close on
    /// Weir means stable media.
    create: f64,
    /// Small files stat'ed per second, all names in one directory.
    stat: f64,
    /// Small files removed per second.
    remove: f64,
    /// Sequential writes of 1 MiB with one fsync at the end, MiB/s.
    write: f64,
    /// Sequential reads of 1 MiB with cold caches, MiB/s.
    read: f64,
}

/// Measures both file systems and adds the rows.
pub fn measure(system: &System, files: u32, mib: u32, report: &mut Report) -> Result<(), BenchError> {
    let local = rates(&system.local_directory()?, files, mib, true)?;
    let weir = rates(&system.mount_point(), files, mib, false)?;
    let reference = |rate| ("local file system, fsync", rate);
    report.beside("mount: create+write 4 KiB files", weir.create, "files/s", reference(local.create), None);
    report.beside("mount: stat files", weir.stat, "files/s", ("local file system", local.stat), None);
    report.beside("mount: remove files", weir.remove, "files/s", ("local file system", local.remove), None);
    report.beside("mount: sequential write, 1 MiB", weir.write, "MiB/s", reference(local.write), None);
    report.beside(
        "mount: sequential read, 1 MiB",
        weir.read,
        "MiB/s",
        ("local file system, cold", local.read),
        None,
    );
    Ok(())
}

fn rates(directory: &Path, files: u32, mib: u32, sync_each: bool) -> Result<Rates, BenchError> {
    let folder = directory.join("small");
    fs::create_dir_all(&folder).map_err(BenchError::file("make", &folder))?;
    let rate = |count: u32, began: Instant| f64::from(count) / began.elapsed().as_secs_f64();

    let began = Instant::now();
    for n in 0..files {
        create_small(&folder.join(n.to_string()), sync_each)?;
    }
    let create = rate(files, began);

    drop_caches();
    let began = Instant::now();
    for n in 0..files {
        let path = folder.join(n.to_string());
        fs::metadata(&path).map_err(BenchError::file("stat", &path))?;
    }
    let stat = rate(files, began);

    let began = Instant::now();
    for n in 0..files {
        let path = folder.join(n.to_string());
        fs::remove_file(&path).map_err(BenchError::file("remove", &path))?;
    }
    let remove = rate(files, began);

    let big = directory.join("sequential");
    let write = write_sequential(&big, mib)?;
    drop_caches();
    let read = read_sequential(&big, mib)?;
    fs::remove_file(&big).map_err(BenchError::file("remove", &big))?;
    Ok(Rates { create, stat, remove, write, read })
}

fn create_small(path: &Path, sync: bool) -> Result<(), BenchError> {
    let mut file = File::create_new(path).map_err(BenchError::file("create", path))?;
    file.write_all(&[0x5a; SMALL]).map_err(BenchError::file("write", path))?;
    if sync {
        file.sync_all().map_err(BenchError::file("fsync", path))?;
    }
    Ok(())
}

fn write_sequential(path: &Path, mib: u32) -> Result<f64, BenchError> {
    let block: Vec<u8> = (0..MIB).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect();
    let began = Instant::now();
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(BenchError::file("create", path))?;
    for _ in 0..mib {
        file.write_all(&block).map_err(BenchError::file("write", path))?;
    }
    file.sync_all().map_err(BenchError::file("fsync", path))?;
    Ok(f64::from(mib) / began.elapsed().as_secs_f64())
}

fn read_sequential(path: &Path, mib: u32) -> Result<f64, BenchError> {
    let mut block = vec![0; MIB];
    let began = Instant::now();
    let mut file = File::open(path).map_err(BenchError::file("open", path))?;
    for _ in 0..mib {
        file.read_exact(&mut block).map_err(BenchError::file("read", path))?;
    }
    Ok(f64::from(mib) / began.elapsed().as_secs_f64())
}

/// Empties the kernel's caches where the caller may; elsewhere both file systems are read as they are.
fn drop_caches() {
    rustix::fs::sync();
    let control = Path::new("/proc/sys/vm/drop_caches");
    if let Err(error) = fs::write(control, "3") {
        eprintln!("caches stay warm: {}: {error}", control.display());
    }
}
