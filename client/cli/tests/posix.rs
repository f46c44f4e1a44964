//! What `docs/reference/posix.md` promises, on real mounts of real engines.

#[path = "posix/caching.rs"]
mod caching;
#[path = "posix/clients.rs"]
mod clients;
mod harness;
#[path = "posix/links.rs"]
mod links;
#[path = "posix/locks.rs"]
mod locks;
#[path = "posix/nameless.rs"]
mod nameless;
#[path = "posix/pieces.rs"]
mod pieces;
#[path = "posix/running.rs"]
mod running;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use harness::DevSystem;
use rustix::fs::{FallocateFlags, RawDir, XattrFlags, fallocate};
use rustix::io::Errno;

/// A system for one test: one engine is enough where no engine is lost.
fn system() -> DevSystem {
    DevSystem::start(&["--engines", "1", "--size", "1GiB"])
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("must fail").raw_os_error().expect("of the operating system")
}

fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("sh").arg("-euc").arg(script).current_dir(directory).output().expect("sh runs");
    assert!(output.status.success(), "{script}: {}", harness::text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn files_hold_what_was_written_at_every_offset() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("created");
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&path)), libc::EEXIST);
    let block: Vec<u8> = (0..3_000_017_u32).map(|n| u8::try_from(n % 251).expect("small")).collect();
    file.write_all(&block).expect("written");
    file.write_all_at(b"patch", 1_048_570).expect("across a chunk");
    let mut expected = block;
    expected[1_048_570..1_048_575].copy_from_slice(b"patch");
    assert_eq!(fs::read(&path).expect("read"), expected);
    // A hole reads as zeros, and the size counts it.
    file.write_all_at(b"end", 5_000_000).expect("behind a hole");
    assert_eq!(file.metadata().expect("stat").len(), 5_000_003);
    let mut hole = vec![1; 1000];
    file.read_exact_at(&mut hole, 4_000_000).expect("read");
    assert!(hole.iter().all(|byte| *byte == 0));
    file.set_len(1_000_000).expect("cut");
    file.set_len(1_000_010).expect("grown");
    let mut tail = vec![1; 20];
    file.seek(SeekFrom::Start(999_995)).expect("seek");
    let read = file.read(&mut tail).expect("read");
    assert_eq!((read, &tail[5..15]), (15, &[0; 10][..]));
    file.sync_all().expect("synced");
    let truncated = OpenOptions::new().write(true).truncate(true).open(&path).expect("opened");
    assert_eq!(truncated.metadata().expect("stat").len(), 0);
}

#[test]
fn names_are_made_moved_and_removed_as_posix_says() {
    let system = system();
    let mount = system.mount("home", &[]);
    let at = |name: &str| mount.path(name);
    fs::create_dir(at("d")).expect("made");
    assert_eq!(errno(fs::create_dir(at("d"))), libc::EEXIST);
    fs::write(at("d/a"), "a").expect("written");
    fs::write(at("d/b"), "b").expect("written");
    assert_eq!(errno(fs::remove_dir(at("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::read_dir(at("d/a"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(at("d"))), libc::EISDIR);
    assert_eq!(errno(File::open(at("none"))), libc::ENOENT);
    assert_eq!(errno(fs::write(at(&"n".repeat(256)), "")), libc::ENAMETOOLONG);
    fs::write(at(&"n".repeat(255)), "").expect("the longest name");

    // A rename over an open file replaces the name, and the file that was open stays what it was.
    let mut open = File::open(at("d/b")).expect("opened");
    let inode = fs::metadata(at("d/a")).expect("stat").ino();
    fs::rename(at("d/a"), at("d/b")).expect("renamed");
    assert_eq!(fs::metadata(at("d/b")).expect("stat").ino(), inode, "inode numbers are stable");
    let mut old = String::new();
    open.read_to_string(&mut old).expect("read");
    assert_eq!((old.as_str(), fs::read_to_string(at("d/b")).expect("read").as_str()), ("b", "a"));
    drop(open);

    fs::create_dir(at("e")).expect("made");
    fs::rename(at("d/b"), at("e/c")).expect("to another directory");
    fs::rename(at("d"), at("e/d")).expect("a directory too");
    assert_eq!(errno(fs::rename(at("e"), at("e/d/e"))), libc::EINVAL);
    fs::create_dir(at("full")).expect("made");
    fs::write(at("full/x"), "").expect("written");
    assert_eq!(errno(fs::rename(at("e/d"), at("full"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(at("e/d"), at("e/c"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(at("e/c"), at("full"))), libc::EISDIR);
    // mv -n uses RENAME_NOREPLACE.
    shell(mount.directory(), "mv -n e/c full/x; test -e e/c; test ! -s full/x");
    let exchange = |one: &str, other: &str| {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, at(one), rustix::fs::CWD, at(other), flags)
    };
    exchange("e/c", "full/x").expect("exchanged");
    assert_eq!(fs::read_to_string(at("full/x")).expect("read"), "a");
    assert_eq!(fs::read_to_string(at("e/c")).expect("read"), "");
    exchange("full", "e/c").expect("a directory and a file");
    assert_eq!(fs::read_to_string(at("e/c/x")).expect("read"), "a");
    assert_eq!(exchange("e", "e/c").expect_err("its own subtree"), rustix::io::Errno::INVAL);
    exchange("full", "e/c").expect("back again");
    shell(mount.directory(), "rm -r e full; test -z \"$(ls | grep -v nnn)\"");
}

#[test]
fn attributes_are_kept_to_the_nanosecond() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("f");
    fs::write(&path, "x").expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o4751)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).expect("chown");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.uid(), stat.gid()), (1234, 4321));
    assert_eq!(stat.mode() & 0o7777, 0o751, "chown clears set-user-id");
    let file = File::options().write(true).open(&path).expect("opened");
    let mtime = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let atime = UNIX_EPOCH - Duration::new(86_400, 1);
    file.set_times(fs::FileTimes::new().set_modified(mtime).set_accessed(atime)).expect("utimens");
    drop(file);
    let fresh = system.mount("home", &[]);
    let stat = fs::metadata(fresh.path("f")).expect("stat");
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_234_567_890, 123_456_789));
    assert_eq!(stat.modified().expect("supported"), mtime);
    assert_eq!((stat.atime(), stat.atime_nsec()), (-86_401, 999_999_999));
    fs::write(fresh.path("f"), "changed").expect("written");
    assert!(fs::metadata(fresh.path("f")).expect("stat").modified().expect("supported") > mtime);
}

#[test]
fn links_pipes_and_extended_attributes_are_kept() {
    let system = system();
    let mount = system.mount("home", &[]);
    let target = "../a/very/../odd//path ".repeat(40);
    std::os::unix::fs::symlink(&target, mount.path("link")).expect("made");
    assert_eq!(fs::read_link(mount.path("link")).expect("read"), Path::new(&target));
    shell(mount.directory(), "mkfifo p; (echo through > p &); test \"$(cat p)\" = through");
    assert!(fs::metadata(mount.path("p")).expect("stat").file_type().is_fifo());
    let file = mount.path("f");
    fs::write(&file, "x").expect("written");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&file, name, value, flags);
    let get = |name: &str| {
        let mut value = vec![0; 70_000];
        rustix::fs::getxattr(&file, name, &mut value).map(|size| value[..size].to_vec())
    };
    set("user.a", b"1", XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.big", &vec![7; 60_000], XattrFlags::empty()).expect("set");
    assert_eq!(get("user.a"), Ok(b"1".to_vec()));
    fs::rename(&file, mount.path("g")).expect("renamed");
    fs::rename(mount.path("g"), &file).expect("and back");
    assert_eq!(get("user.big"), Ok(vec![7; 60_000]), "attributes move with the name");
    let mut list = [0; 100];
    let size = rustix::fs::listxattr(&file, &mut list).expect("listed");
    let mut names: Vec<&[u8]> =
        list[..size].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [b"user.a".as_slice(), b"user.big"]);
    rustix::fs::removexattr(&file, "user.a").expect("removed");
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    // Version 2, and entries for owner (6), group (4) and others (4): valid, but access control lists are not served.
    let entry = |tag: u8, access: u8| [tag, 0, access, 0, 255, 255, 255, 255];
    let list = [&[2, 0, 0, 0][..], &entry(1, 6), &entry(4, 4), &entry(32, 4)].concat();
    assert_eq!(set("system.posix_acl_access", &list, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
}

#[test]
fn an_unlinked_file_works_until_it_is_closed_and_then_its_space_comes_back() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("created");
    file.write_all(&vec![5; 20 << 20]).expect("written");
    fs::remove_file(&path).expect("unlinked");
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    file.write_all_at(b"still here", 100).expect("written");
    let mut back = [0; 10];
    file.read_exact_at(&mut back, 100).expect("read");
    assert_eq!(&back, b"still here");
    file.set_len(30 << 20).expect("grown");
    let stat = file.metadata().expect("stat");
    assert_eq!((stat.nlink(), stat.len()), (0, 30 << 20));
    file.set_permissions(Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(file.metadata().expect("stat").mode() & 0o777, 0o600);
    let used = || system.json(&["fs", "df", "tank", "home"])["used_bytes"].as_u64().expect("a number");
    harness::eventually("the space is seen", Duration::from_secs(20), || used() >= 20 << 20);
    drop(file);
    harness::eventually("the space comes back", Duration::from_secs(20), || used() < 10 << 20);
}

#[test]
fn appends_of_several_writers_do_not_overwrite_each_other() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("log");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
                for line in 0..50 {
                    // One write for one line: what a format macro splits is several appends.
                    file.write_all(format!("writer {writer} line {line:03}\n").as_bytes()).expect("appended");
                }
            });
        }
    });
    let text = fs::read_to_string(&path).expect("read");
    assert_eq!(text.lines().count(), 200);
    assert!(text.lines().all(|line| line.len() == "writer 0 line 000".len()));
    // Another client that appends later finds the end that this one made.
    let other = system.mount("home", &[]);
    let mut file = OpenOptions::new().append(true).open(other.path("log")).expect("opened");
    writeln!(file, "from elsewhere").expect("appended");
    drop(file);
    let mut here = OpenOptions::new().append(true).open(&path).expect("opened");
    writeln!(here, "and back").expect("appended");
    drop(here);
    let text = fs::read_to_string(other.path("log")).expect("read");
    assert!(text.ends_with("from elsewhere\nand back\n"), "{}", &text[text.len() - 60..]);
}

#[test]
fn what_one_client_closed_another_sees_when_it_opens() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    for round in 0..20_usize {
        let content = format!("round {round} {}", "x".repeat(round * 1000));
        fs::write(one.path("f"), &content).expect("written");
        assert_eq!(
            fs::read_to_string(two.path("f")).expect("read"),
            content,
            "round {round}: written in place"
        );
        let content = format!("replaced {round}");
        fs::write(two.path("new"), &content).expect("written");
        fs::rename(two.path("new"), two.path("f")).expect("renamed");
        assert_eq!(fs::read_to_string(one.path("f")).expect("read"), content, "round {round}: replaced");
    }
    fs::remove_file(one.path("f")).expect("removed");
    assert_eq!(errno(File::open(two.path("f"))), libc::ENOENT);
    fs::write(two.path("f"), "anew").expect("written");
    assert_eq!(fs::read_to_string(one.path("f")).expect("read"), "anew");
    // Same size and another content: the page cache of the other client must not survive.
    fs::write(two.path("f"), "ANEW").expect("written");
    assert_eq!(fs::read_to_string(one.path("f")).expect("read"), "ANEW");
    // Even when it gets the same modification time again.
    let timed = |content: &str| {
        let mut file = OpenOptions::new().write(true).open(one.path("f")).expect("opened");
        file.write_all(content.as_bytes()).expect("written");
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        file.set_times(times).expect("utimens");
    };
    for content in ["1234", "5678"] {
        timed(content);
        for _ in 0..2 {
            assert_eq!(fs::read_to_string(two.path("f")).expect("read"), content, "with an old time");
        }
    }
    fs::create_dir(one.path("dir")).expect("made");
    fs::write(two.path("dir/x"), "").expect("written");
    assert_eq!(fs::read_dir(one.path("dir")).expect("listed").count(), 1);
}

#[test]
fn a_listing_that_goes_on_does_not_bring_back_what_was_changed_meanwhile() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = |number: usize| mount.path(&format!("d/{number:03}"));
    fs::create_dir(mount.path("d")).expect("made");
    for number in 0..120 {
        fs::write(path(number), "").expect("written");
    }
    // With a buffer that takes a part of what engines list at once.
    let directory = File::open(mount.path("d")).expect("opened");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut listing = RawDir::new(&directory, &mut buffer);
    listing.next().expect("there are some").expect("listed");
    for number in 0..120 {
        fs::set_permissions(path(number), Permissions::from_mode(0o600)).expect("chmod");
    }
    let open = OpenOptions::new().write(true).open(path(80)).expect("opened");
    fs::remove_file(path(80)).expect("removed");
    fs::rename(path(81), mount.path("elsewhere")).expect("renamed");
    // The kernel takes attributes with a listing while programs ask for them, and keeps them for a moment.
    while let Some(entry) = listing.next() {
        let name = entry.expect("listed").file_name().to_str().expect("text").to_owned();
        match fs::metadata(mount.path("d").join(&name)) {
            Ok(stat) if stat.is_file() => {
                assert_eq!(stat.mode() & 0o777, 0o600, "{name}");
                assert!(name != "080" && name != "081", "{name} is gone");
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{name}"),
        }
    }
    assert_eq!(open.metadata().expect("stat").nlink(), 0);
    open.set_permissions(Permissions::from_mode(0o640)).expect("chmod of a file without a name");
}

#[test]
fn a_name_that_two_clients_create_at_once_is_one_file_for_both() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    for round in 0..100 {
        let name = format!("f{round}");
        let inode = |path: std::path::PathBuf| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            file.expect("opened").metadata().expect("stat").ino()
        };
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| inode(two.path(&name)));
            (inode(one.path(&name)), other.join().expect("opened"))
        });
        assert_eq!(first, second);
    }
}

#[test]
fn a_new_file_with_its_attributes_is_whole_for_another_client_once_it_is_closed() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    let times = |seconds| fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(seconds));
    for (round, size) in (0_u64..).zip([0, 1, 5000, 1 << 20, 3_500_000]) {
        let name = format!("f{round}");
        let content: Vec<u8> = (0..size).map(|at: usize| u8::try_from(at % 251).expect("small")).collect();
        let mut file = File::create(one.path(&name)).expect("created");
        for part in content.chunks(10_240) {
            file.write_all(part).expect("written");
        }
        file.set_times(times(1000 + round)).expect("times set");
        file.set_permissions(Permissions::from_mode(0o640)).expect("mode set");
        std::os::unix::fs::fchown(&file, Some(12), Some(34)).expect("owner set");
        let check = |stat: fs::Metadata, whose: &str| {
            assert_eq!(stat.len(), size as u64, "{whose} {name}");
            assert_eq!(stat.mtime(), 1000 + i64::try_from(round).expect("few"), "{whose} {name}");
            assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o640, 12, 34), "{whose} {name}");
        };
        check(file.metadata().expect("stat"), "the writer's");
        drop(file);
        assert!(fs::read(two.path(&name)).expect("read") == content, "{name}");
        check(fs::metadata(two.path(&name)).expect("stat"), "another client's");
        check(fs::metadata(one.path(&name)).expect("stat"), "the writer's, closed,");
    }
    // A write after the times were set moves them again.
    let mut file = File::create(one.path("later")).expect("created");
    file.set_times(times(1000)).expect("times set");
    file.write_all(b"more").expect("written");
    drop(file);
    assert!(fs::metadata(two.path("later")).expect("stat").mtime() > 1_000_000);
}

#[test]
fn a_new_file_that_is_renamed_while_it_is_closed_keeps_its_attributes() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    for round in 0..300 {
        let (old, new) = (one.path(&format!("old{round}")), format!("new{round}"));
        let file = File::create(&old).expect("created");
        file.set_permissions(Permissions::from_mode(0o640)).expect("mode set");
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let renamer = scope.spawn(|| {
                start.wait();
                // At each moment of the other thread's `close` in some round.
                std::thread::sleep(Duration::from_micros(round % 50 * 8));
                fs::rename(&old, one.path(&new)).expect("renamed");
            });
            start.wait();
            drop(file);
            renamer.join().expect("no error");
        });
        let mode = fs::metadata(two.path(&new)).expect("stat").mode() & 0o7777;
        assert_eq!(mode, 0o640, "round {round}");
    }
}

#[test]
fn a_change_of_an_open_file_reaches_others_in_about_a_second_or_with_fsync() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    let mut file = File::create(one.path("log")).expect("created");
    file.write_all(b"first").expect("written");
    file.sync_data().expect("synced");
    assert_eq!(fs::read(two.path("log")).expect("read"), b"first");
    file.write_all(b" second").expect("written");
    // The writer itself, and others on its mount, see it at once.
    assert_eq!(fs::read(one.path("log")).expect("read"), b"first second");
    file.write_all(b" third").expect("written");
    harness::eventually("the sender sends what has waited", Duration::from_secs(10), || {
        fs::read(two.path("log")).expect("read") == b"first second third"
    });
    // Renamed and removed while it is open and has more to send.
    file.write_all(b" fourth").expect("written");
    fs::rename(one.path("log"), one.path("moved")).expect("renamed");
    file.write_all(b" fifth").expect("written");
    drop(file);
    assert_eq!(fs::read(two.path("moved")).expect("read"), b"first second third fourth fifth");
    let mut file = File::create(one.path("gone")).expect("created");
    file.write_all(b"nobody").expect("written");
    fs::remove_file(one.path("gone")).expect("removed");
    file.write_all(b" sees it").expect("written");
    assert_eq!(file.metadata().expect("stat").len(), 14);
    file.sync_all().expect("synced");
}

#[test]
fn a_stream_of_large_writes_keeps_no_other_file_waiting() {
    let system = system();
    let (one, two) = (system.mount("home", &[]), system.mount("home", &[]));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stream = File::create(one.path("stream")).expect("created");
    let mut small = File::create(one.path("small")).expect("created");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let block = vec![3; 1 << 20];
            for number in 0_u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                stream.write_all_at(&block, (number % 8) << 20).expect("written");
                // Never as long as the sender waits for more.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        small.write_all(b"waits in vain?").expect("written");
        harness::eventually("the other file is sent", Duration::from_secs(8), || {
            fs::read(two.path("small")).expect("read") == b"waits in vain?"
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().expect("no error");
    });
}

#[test]
fn mappings_are_shared_and_reach_the_engines() {
    let system = system();
    let (mount, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let program = system.folder().join("mapping");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mapping.c");
    let built = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).status();
    assert!(built.expect("cc runs").success());
    let done = Command::new(&program).arg(mount.path("map")).status().expect("runs");
    assert_eq!(done.code(), Some(0), "the step that failed, see mapping.c");
    let content = fs::read(other.path("map")).expect("read by another client");
    assert_eq!(content.len(), 4096 * 300);
    assert_eq!((content[27 * 4096 + 5], content[28 * 4096], content[content.len() - 1]), (b'b', b'!', b'#'));
    // A program that is run is mapped too.
    shell(mount.directory(), "cp /bin/true t; chmod 755 t; ./t");
}

#[test]
fn a_directory_of_ten_thousand_entries_is_listed_whole() {
    let system = system();
    let mount = system.mount("home", &[]);
    fs::create_dir(mount.path("d")).expect("made");
    std::thread::scope(|scope| {
        for part in 0..8 {
            let mount = &mount;
            scope.spawn(move || {
                for number in (part..10_000).step_by(8) {
                    File::create(mount.path(&format!("d/entry-{number:05}"))).expect("created");
                }
            });
        }
    });
    let mut names: Vec<String> = fs::read_dir(mount.path("d"))
        .expect("listed")
        .map(|entry| entry.expect("read").file_name().into_string().expect("text"))
        .collect();
    names.sort_unstable();
    let expected: Vec<String> = (0..10_000).map(|number| format!("entry-{number:05}")).collect();
    assert_eq!(names, expected);
    // Removing while listing leaves nothing out and nothing over.
    shell(mount.directory(), "rm -r d; test ! -e d");
}

#[test]
fn a_mount_for_reading_only_refuses_every_change() {
    let system = system();
    let writable = system.mount("home", &[]);
    fs::write(writable.path("f"), "x").expect("written");
    let mount = system.mount("home", &["--read-only"]);
    assert_eq!(fs::read_to_string(mount.path("f")).expect("read"), "x");
    assert_eq!(errno(fs::write(mount.path("f"), "y")), libc::EROFS);
    assert_eq!(errno(fs::create_dir(mount.path("d"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(mount.path("f"))), libc::EROFS);
    let uncached = system.mount("home", &["-o", "cache=none"]);
    assert_eq!(fs::read_to_string(uncached.path("f")).expect("read"), "x");
    let (code, error) = system.fails(&["mount", "tank", "home", "/tmp", "-o", "sync"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("\"sync\""), "{error}");
}

#[test]
fn a_mount_whose_threads_can_not_start_says_so_and_leaves_nothing() {
    let system = system();
    let directory = system.folder().join("starved");
    fs::create_dir(&directory).expect("a directory");
    let target = directory.to_str().expect("plain");
    let (code, error) = system.fails(&["mount", "tank", "home", target, "--threads", "257"]);
    assert!(code == 2 && error.contains("1 to 256 threads"), "{code}: {error}");
    // Each thread has a descriptor of the kernel's device.
    let starved = r#"ulimit -n 150; exec timeout --signal=KILL 60 "$0" "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", starved, harness::WEIR, "--attach"]).arg(system.folder().join("client.json"));
    command.args(["mount", "tank", "home", target, "--threads", "200"]);
    let output = command.output().expect("runs");
    let error = harness::text(&output);
    assert_eq!(output.status.code(), Some(5), "{error}");
    assert!(error.contains("is not served: Too many open files"), "{error}");
    assert_eq!(system.fails(&["umount", target]).0, 3, "nothing is mounted");
}

#[test]
fn a_group_owns_what_is_created_in_its_volume() {
    let system = system();
    let mount = system.mount("home", &["--fs-group", "2000"]);
    fs::write(mount.path("f"), "x").expect("written");
    fs::create_dir_all(mount.path("a/b")).expect("made");
    fs::write(mount.path("a/b/g"), "x").expect("written");
    for name in ["f", "a", "a/b", "a/b/g", ""] {
        assert_eq!(fs::metadata(mount.path(name)).expect("stat").gid(), 2000, "{name}");
    }
    assert_eq!(fs::metadata(mount.path("a/b")).expect("stat").mode() & 0o2000, 0o2000);
    let root = fs::metadata(mount.directory()).expect("stat").mode();
    assert_eq!(root & 0o2070, 0o2070);
}

#[test]
fn a_full_pool_is_enospc_and_deleting_makes_room_again() {
    let system = DevSystem::start(&["--engines", "1", "--size", "1GiB", "--bare"]);
    system.run(&["pool", "create", "tank", "--size", "128MiB"]);
    system.run(&["container", "create", "tank", "home"]);
    let mount = system.mount("home", &[]);
    fs::create_dir_all(mount.path("a/b")).expect("made");
    let block = vec![1; 1 << 20];
    let mut written = 0;
    let error = loop {
        match fs::write(mount.path(&format!("f{written}")), &block) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 200, "128 MiB hold 200 MiB");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "after {written} MiB");
    assert!(written > 60, "only {written} MiB fit 128 MiB");
    assert_eq!(fs::read(mount.path("f0")).expect("read"), block, "what fitted is there");
    fs::remove_dir_all(mount.path("a")).expect("directories can be removed when the pool is full");
    for number in 0..=written {
        match fs::remove_file(mount.path(&format!("f{number}"))) {
            Ok(()) => {}
            Err(error) => assert_eq!((number, error.raw_os_error()), (written, Some(libc::ENOENT))),
        }
    }
    harness::eventually("there is room again", Duration::from_secs(30), || {
        fs::write(mount.path("again"), vec![2; 20 << 20]).is_ok()
    });
    assert_eq!(fs::read(mount.path("again")).expect("read"), vec![2; 20 << 20]);
}

#[test]
fn a_file_is_overwritten_many_times_within_a_small_quota() {
    let system = system();
    system.run(&["container", "create", "tank", "small", "--quota", "32MiB"]);
    let mount = system.mount("small", &[]);
    let file = File::create(mount.path("f")).expect("created");
    for round in 0..20_u8 {
        for piece in 0..8 {
            let written = file.write_all_at(&vec![round; 1 << 20], piece << 20);
            written.and_then(|()| file.sync_all()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    assert_eq!(fs::read(mount.path("f")).expect("read"), vec![19; 8 << 20]);
}

#[test]
fn a_full_quota_is_enospc_and_can_be_raised() {
    let system = system();
    system.run(&["container", "create", "tank", "small", "--quota", "32MiB"]);
    let mount = system.mount("small", &[]);
    fs::create_dir_all(mount.path("a/b")).expect("made");
    let mut file = File::create(mount.path("f")).expect("created");
    let error =
        (0..200).find_map(|_| file.write_all(&vec![1; 1 << 20]).err()).expect("200 MiB do not fit 32");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    fs::remove_dir_all(mount.path("a")).expect("directories can be removed when the quota is used up");
    system.run(&["container", "set-quota", "tank", "small", "200MiB"]);
    harness::eventually("the new quota is known", Duration::from_secs(20), || {
        file.write_all_at(&vec![1; 1 << 20], 100 << 20).is_ok()
    });
}

#[test]
fn permissions_are_enforced_for_ordinary_users() {
    let system = system();
    let mount = system.mount("home", &[]);
    fs::write(mount.path("secret"), "x").expect("written");
    fs::set_permissions(mount.path("secret"), Permissions::from_mode(0o600)).expect("chmod");
    let shared =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o666).open(mount.path("shared"));
    shared.expect("created");
    fs::set_permissions(mount.path("shared"), Permissions::from_mode(0o4777)).expect("chmod");
    // The test's folder is private; the mount itself is not.
    fs::set_permissions(system.folder(), Permissions::from_mode(0o755)).expect("chmod");
    let nobody = |script: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(mount.directory()).uid(65534).gid(65534);
        command.output().expect("sh runs").status.success()
    };
    assert!(!nobody("cat secret"), "mode 600 of another user");
    assert!(!nobody("touch new"), "directory of another user");
    assert!(nobody("echo y > shared"));
    let mode = fs::metadata(mount.path("shared")).expect("stat").mode() & 0o7777;
    assert_eq!(mode, 0o777, "a write by an ordinary user clears set-user-id");
}

#[test]
fn space_can_be_asked_for_and_given_back() {
    let system = system();
    let mount = system.mount("home", &[]);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("f")).expect("created");
    fallocate(&file, FallocateFlags::empty(), 0, 3 << 20).expect("grown");
    assert_eq!(file.metadata().expect("stat").len(), 3 << 20);
    file.write_all_at(&vec![9; 3 << 20], 0).expect("written");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 1 << 20, 1 << 20).expect("punched");
    let content = fs::read(mount.path("f")).expect("read");
    assert_eq!(content.len(), 3 << 20);
    assert!(content[1 << 20..2 << 20].iter().all(|byte| *byte == 0));
    assert!(content[..1 << 20].iter().chain(&content[2 << 20..]).all(|byte| *byte == 9));
    mount.path("f");
    drop(file);
    mount.unmount();
}

#[test]
fn the_size_is_right_while_a_write_waits_however_the_file_became_as_long() {
    let system = system();
    let mount = system.mount("home", &[]);
    let path = mount.path("f");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("created");
    let size = || file.metadata().expect("stat").len();
    fallocate(&file, FallocateFlags::empty(), 0, 5_000_000).expect("grown");
    file.write_all_at(b"x", 0).expect("written");
    assert_eq!(size(), 5_000_000, "the write is shorter than what was asked for");
    fs::remove_file(&path).expect("unlinked");
    file.set_len(7_000_000).expect("grown");
    file.write_all_at(b"y", 1).expect("written");
    assert_eq!(size(), 7_000_000, "it has no name");
    file.set_len(10).expect("cut");
    file.write_all_at(b"z", 2).expect("written");
    assert_eq!(size(), 10, "it was longer before");
    let mut content = [1; 10];
    file.read_exact_at(&mut content, 0).expect("read");
    assert_eq!(&content, b"xyz\0\0\0\0\0\0\0");
    drop(file);
    mount.unmount();
}

#[test]
fn a_container_of_any_chunk_size_can_be_mounted() {
    let system = system();
    for (label, size) in [("small", "4KiB"), ("large", "1GiB")] {
        system.run(&["container", "create", "tank", label, "--chunk-size", size]);
        let mount = system.mount(label, &[]);
        let content: Vec<u8> = (0..9_000_001_u32).map(|n| u8::try_from(n % 253).expect("small")).collect();
        fs::write(mount.path("f"), &content).expect("written");
        mount.unmount();
        let mount = system.mount(label, &[]);
        assert!(fs::read(mount.path("f")).expect("read") == content, "chunks of {size}");
        mount.unmount();
    }
}
