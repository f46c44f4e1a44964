//! Hard links, devices, and copies that the mount makes by itself.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::Duration;

use super::harness::eventually;
use super::{errno, shell, system};

#[test]
fn every_name_of_a_file_is_the_same_file_on_every_mount() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &["-o", "cache=none"]));
    fs::write(one.path("a"), "content").expect("written");
    fs::create_dir(one.path("d")).expect("made");
    fs::hard_link(one.path("a"), one.path("d/b")).expect("linked");
    let (a, b) = (fs::metadata(one.path("a")).expect("stat"), fs::metadata(one.path("d/b")).expect("stat"));
    assert_eq!((a.ino(), a.nlink(), b.nlink(), b.len()), (b.ino(), 2, 2, 7));
    assert_eq!(fs::metadata(other.path("d/b")).expect("stat").nlink(), 2);
    // What is done by one name shows under the other.
    fs::set_permissions(one.path("a"), Permissions::from_mode(0o640)).expect("changed");
    OpenOptions::new().append(true).open(one.path("d/b")).expect("opened").write_all(b"s").expect("written");
    assert_eq!(fs::metadata(other.path("d/b")).expect("stat").mode() & 0o777, 0o640);
    assert_eq!(fs::read_to_string(other.path("a")).expect("read"), "contents");
    rustix::fs::setxattr(one.path("a"), "user.k", b"v", rustix::fs::XattrFlags::empty()).expect("set");
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(other.path("d/b"), "user.k", &mut value), Ok(1));
    // An open file keeps working whichever of its names goes, here or there.
    let open = OpenOptions::new().read(true).write(true).open(other.path("a")).expect("opened");
    fs::remove_file(one.path("a")).expect("removed");
    assert_eq!(open.metadata().expect("stat").nlink(), 1);
    open.set_permissions(Permissions::from_mode(0o600)).expect("changed");
    eventually("the mode", Duration::from_secs(5), || {
        fs::metadata(one.path("d/b")).is_ok_and(|stat| stat.mode() & 0o777 == 0o600)
    });
    assert_eq!(errno(fs::hard_link(one.path("d"), one.path("e"))), libc::EPERM);
    fs::write(one.path("t"), "").expect("written");
    assert_eq!(errno(fs::hard_link(one.path("d/b"), one.path("t"))), libc::EEXIST);
    // The last name goes, and the content with the last descriptor.
    fs::rename(one.path("t"), one.path("d/b")).expect("replaced");
    eventually("no name is left", Duration::from_secs(5), || {
        open.metadata().is_ok_and(|stat| stat.nlink() == 0)
    });
    let mut bytes = [0; 8];
    open.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"contents");
}

#[test]
fn a_file_that_is_being_written_can_be_linked() {
    let system = system();
    let mount = system.mount("home", &[]);
    let mut file = File::create(mount.path("a")).expect("created");
    file.write_all(b"first ").expect("written");
    file.set_permissions(Permissions::from_mode(0o600)).expect("changed");
    fs::hard_link(mount.path("a"), mount.path("b")).expect("linked");
    let stat = file.metadata().expect("stat");
    assert_eq!((stat.nlink(), stat.len(), stat.mode() & 0o777), (2, 6, 0o600));
    fs::remove_file(mount.path("a")).expect("removed");
    file.write_all(b"last").expect("written");
    drop(file);
    let stat = fs::metadata(mount.path("b")).expect("stat");
    assert_eq!((stat.nlink(), stat.len(), stat.mode() & 0o777), (1, 10, 0o600));
    assert_eq!(fs::read_to_string(mount.path("b")).expect("read"), "first last");
}

#[test]
fn programs_that_use_hard_links_find_them_kept() {
    let system = system();
    let mount = system.mount("home", &[]);
    let linked = |folder: &str| shell(mount.directory(), &format!("find {folder} -type f -links 2 | wc -l"));
    shell(mount.directory(), "mkdir t; for n in 1 2 3; do echo $n > t/$n; ln t/$n t/again-$n; done");
    assert_eq!(linked("t").trim(), "6");
    shell(mount.directory(), "tar cf t.tar t; mkdir u; tar xf t.tar -C u; cp -a t v; cp -al t w; rm -r w");
    assert_eq!((linked("u").trim(), linked("v").trim(), linked("t").trim()), ("6", "6", "6"));
    shell(mount.directory(), "diff -r t u/t; diff -r t v; test u/t/1 -ef u/t/again-1");
    let git = "git -c user.name=n -c user.email=e";
    shell(
        mount.directory(),
        &format!(
            "git init -q r; cd r; cp -r ../t .; git add .; {git} commit -qm one; cd ..; git clone -q --local r s; git -C s fsck"
        ),
    );
    let shared = shell(mount.directory(), "find s/.git/objects -type f -links 2 | wc -l");
    assert!(shared.trim() != "0", "the objects are copies");
    shell(mount.directory(), "rm -rf r; git -C s fsck; test \"$(find s -type f -links 2 | wc -l)\" = 0");
}

#[test]
fn devices_keep_their_numbers_and_are_never_opened() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let made = |name: &str, kind: libc::mode_t| {
        let number = rustix::fs::makedev(0x123, 0x4_5678);
        let kind = rustix::fs::FileType::from_raw_mode(kind);
        rustix::fs::mknodat(rustix::fs::CWD, one.path(name), kind, 0o600.into(), number).expect("made");
        assert_eq!(fs::metadata(other.path(name)).expect("stat").rdev(), number);
    };
    made("c", libc::S_IFCHR);
    made("b", libc::S_IFBLK);
    shell(one.directory(), "test -c c; test -b b; cp -a c d; test -c d; mv d e; rm c b e");
    shell(one.directory(), "mknod zero c 1 5");
    assert_eq!(errno(File::open(one.path("zero"))), libc::EACCES);
}

#[test]
fn a_copy_within_a_mount_is_what_was_written_last() {
    let system = system();
    let (one, other) = (system.mount("home", &[]), system.mount("home", &[]));
    let content: Vec<u8> = (0..20_u32 << 20).map(|at| (at / 4099).to_le_bytes()[0]).collect();
    let source = File::create_new(one.path("source")).expect("created");
    source.write_all_at(&content, 0).expect("written");
    let from = File::open(one.path("source")).expect("opened");
    let to = File::create_new(one.path("copy")).expect("created");
    let (mut at, mut offset, mut calls) = (0, 0, 0);
    loop {
        let left = content.len() + 100;
        let copied = rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut at), left);
        match copied.expect("copied") {
            0 => break,
            _ => calls += 1,
        }
    }
    assert_eq!((offset, at), (content.len() as u64, content.len() as u64));
    assert!(calls >= 3, "a request has a bound");
    // Over what the page cache holds, and at another offset.
    let read = |path: std::path::PathBuf| fs::read(path).expect("read");
    assert!(read(one.path("copy")) == content);
    let (mut from_at, mut to_at) = (4096, 10);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), 100_000);
    assert_eq!(copied.expect("copied"), 100_000);
    let mut expected = content.clone();
    expected[10..100_010].copy_from_slice(&content[4096..104_096]);
    assert!(read(one.path("copy")) == expected);
    drop(to);
    assert!(read(other.path("copy")) == expected);
}
