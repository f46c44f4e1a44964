//! The file system on a simulated system: its rules, its request counts, and random operations against a model.

use crate::cluster;
use crate::model;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use model::{Model, Step};
use weir_client::{Container, ContainerType, Context, Rights};
use weir_dfs::{Change, Dfs, Error, Kind, Node, Ownership, Replace, SetAttributes, XattrMode};
use weir_runtime::random::Random;
use weir_store::StoreConfig;

const MINUTE: Duration = Duration::from_mins(1);
const OWNER: Ownership = Ownership { mode: 0o644, uid: 1000, gid: 1000 };

async fn mount(context: &Context) -> Dfs {
    let container = open_container(context, properties("home", ContainerType::Posix)).await;
    Dfs::mount(context, &container).await.expect("mounts")
}

async fn unlink(context: &Context, dfs: &Dfs, directory: &Node, name: &[u8]) {
    let removed = dfs.unlink(context, directory, name).await.expect("removed");
    dfs.reclaim(context, &removed).await.expect("reclaimed");
}

#[test]
fn names_kinds_and_content_are_kept() {
    let cluster = Cluster::start(1, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        let (_, stat) = dfs.stat(&context, &root).await.expect("stat");
        assert_eq!((stat.kind, stat.mode, stat.uid, stat.inode), (Kind::Directory, 0o755, 1000, 1));
        let folder = dfs
            .mkdir(&context, &root, b"folder", Ownership { mode: 0o2750, uid: 5, gid: 6 })
            .await
            .expect("made");
        let inner = dfs.mkdir(&context, &folder, b"inner", OWNER).await.expect("made");
        assert_eq!((inner.record.gid, inner.record.mode), (6, 0o2644), "set-group-id is inherited");
        assert_eq!(dfs.parent_of(&context, inner.oid()).await.expect("known"), Some(folder.oid()));
        let file = dfs.create(&context, &folder, b"file", OWNER).await.expect("created");
        assert_eq!(file.record.gid, 6);
        let again = dfs.create(&context, &folder, b"file", OWNER).await.expect_err("exists");
        assert_eq!(again.errno(), 17);
        let link = dfs.symlink(&context, &root, b"link", b"folder/file", OWNER).await.expect("linked");
        assert_eq!(dfs.read_link(&link).expect("a link"), b"folder/file");
        let found = dfs.resolve(&context, b"/folder/../link", true).await.expect("found");
        assert_eq!(found.oid(), file.oid());
        assert_eq!(dfs.resolve(&context, b"link", false).await.expect("found").record.kind, Kind::Symlink);
        dfs.symlink(&context, &root, b"loop", b"loop", OWNER).await.expect("linked");
        assert_eq!(dfs.resolve(&context, b"loop/x", true).await.expect_err("loops").errno(), 40);
        let past = dfs.resolve(&context, b"folder/file/../x", true).await.expect_err("no directory");
        assert_eq!(past.to_string(), "\"file\" is not a directory");
        let read = dfs.file(&root).map(|_| ()).expect_err("a directory");
        assert_eq!(read.to_string(), "\"/\" is a directory");
        let emptied = dfs.read_link(&root).expect_err("a directory");
        assert_eq!(emptied.to_string(), "\"/\" is not a symbolic link");
        dfs.mknod(&context, &root, b"pipe", Kind::Fifo, OWNER).await.expect("made");
        let number = 0x1234_5678;
        let device = (Kind::CharacterDevice, number);
        let made = dfs.make_device(&context, &root, b"zero", device, OWNER).await.expect("made");
        let (_, stat) = dfs.stat(&context, &made).await.expect("described");
        assert_eq!((stat.kind, stat.device, stat.size), (Kind::CharacterDevice, number, 0));
        unlink(&context, &dfs, &root, b"zero").await;
        assert!(matches!(dfs.lookup(&context, &file, b"x").await, Err(Error::NotDirectory(_))));
        assert!(matches!(dfs.rmdir(&context, &root, b"folder").await, Err(Error::NotEmpty(_))));
        assert!(matches!(dfs.unlink(&context, &root, b"folder").await, Err(Error::IsDirectory(_))));
        assert!(matches!(dfs.rmdir(&context, &root, b"link").await, Err(Error::NotDirectory(_))));
        let mut stream = dfs.open_directory(&root).expect("opens");
        let listed = dfs.read_directory(&context, &mut stream, 0, 100).await.expect("lists");
        let names: Vec<_> =
            listed.iter().map(|entry| String::from_utf8_lossy(&entry.node.name).into_owned()).collect();
        assert_eq!(names, ["folder", "link", "loop", "pipe"]);
        let second = dfs.read_directory(&context, &mut stream, 2, 1).await.expect("lists")[0].clone();
        assert_eq!((second.node.name.as_slice(), second.cookie), (&b"loop"[..], 3));
        assert!(dfs.read_directory(&context, &mut stream, 4, 1).await.expect("ends").is_empty());
        unlink(&context, &dfs, &folder, b"file").await;
        let removed = dfs.rmdir(&context, &folder, b"inner").await.expect("removed");
        dfs.reclaim(&context, &removed).await.expect("reclaimed");
        let removed = dfs.rmdir(&context, &root, b"folder").await.expect("removed");
        dfs.reclaim(&context, &removed).await.expect("reclaimed");
        assert!(matches!(dfs.stat(&context, &folder).await, Err(Error::Stale(_))));
        let space = dfs.statfs(&context).await.expect("answers");
        assert!(space.total > 0 && space.free <= space.total);
    });
}

#[test]
fn a_new_container_is_empty_for_readers_and_shows_what_is_written_later() {
    let cluster = Cluster::start(7, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let writer = open_container(&context, properties("home", ContainerType::Posix)).await;
        let reader = Container::open(&context, writer.pool(), "home", Rights::READ).await.expect("opens");
        let blank = Dfs::mount(&context, &reader).await.expect("mounts");
        assert!(blank.is_read_only());
        let root = blank.root().clone();
        let (_, stat) = blank.stat(&context, &root).await.expect("stat");
        assert_eq!((stat.kind, stat.mode, stat.uid, stat.inode), (Kind::Directory, 0o755, 1000, 1));
        let listed = async |dfs: &Dfs| {
            let mut stream = dfs.open_directory(dfs.root()).expect("opens");
            let listed = dfs.read_directory(&context, &mut stream, 0, 100).await.expect("lists");
            listed.iter().map(|entry| entry.node.name.clone()).collect::<Vec<_>>()
        };
        assert!(listed(&blank).await.is_empty());
        assert!(matches!(blank.lookup(&context, &root, b"file").await, Err(Error::NotFound(_))));
        assert!(blank.list_xattrs(&context, &root).await.expect("lists").is_empty());
        assert!(matches!(blank.create(&context, &root, b"file", OWNER).await, Err(Error::ReadOnly)));

        let dfs = Dfs::mount(&context, &writer).await.expect("mounts");
        assert_eq!((dfs.superblock(), dfs.root().oid()), (blank.superblock(), root.oid()));
        dfs.create(&context, dfs.root(), b"file", OWNER).await.expect("created");
        let change = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        dfs.set_attributes(&context, dfs.root(), &change).await.expect("changed");
        assert_eq!(listed(&blank).await, [b"file"]);
        assert_eq!(blank.stat(&context, &root).await.expect("stat").1.mode, 0o700);
        blank.resolve(&context, b"/file", true).await.expect("found");
    });
}

#[test]
fn file_content_grows_shrinks_and_has_holes() {
    let cluster = Cluster::start(2, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        let node = dfs.create(&context, &root, b"f", OWNER).await.expect("created");
        let file = dfs.file(&node).expect("a file");
        file.write(&context, 10, b"hello").await.expect("written");
        let mut bytes = [9; 32];
        assert_eq!(file.read(&context, 0, &mut bytes, None).await.expect("read"), 15);
        assert_eq!(&bytes[..15], b"\0\0\0\0\0\0\0\0\0\0hello");
        let large: Vec<u8> =
            (0..5_000_000_u32).map(|index| index.to_le_bytes()[0] ^ index.to_le_bytes()[2]).collect();
        file.write(&context, 700_000, &large).await.expect("written");
        let mut found = vec![0; large.len() + 9];
        assert_eq!(file.read(&context, 700_000, &mut found, None).await.expect("read"), large.len());
        assert_eq!(found[..large.len()], large);
        let other = dfs.file(&node).expect("somebody else's handle");
        assert_eq!(other.size_and_epoch(&context).await.expect("a size").0, 5_700_000);
        file.truncate(&context, 1_048_576 + 5).await.expect("cut off");
        assert_eq!(other.size_and_epoch(&context).await.expect("a size").0, 1_048_581);
        file.truncate(&context, 3).await.expect("cut off");
        assert_eq!(dfs.file(&node).expect("new").size_and_epoch(&context).await.expect("a size").0, 3);
        file.truncate(&context, 9_000_000).await.expect("lengthened");
        let (_, stat) = dfs.stat(&context, &node).await.expect("stat");
        assert_eq!((stat.size, stat.blocks), (9_000_000, 1), "three bytes and the last one are stored");
        let mut tail = [1; 10];
        assert_eq!(file.read(&context, 8_999_995, &mut tail, None).await.expect("read"), 5);
        assert_eq!(tail[..5], [0; 5]);
        file.punch_hole(&context, 8_000_000, 2_000_000).await.expect("a hole");
        // The last byte alone is there already, as a zero.
        file.punch_hole(&context, 8_999_999, 1).await.expect("a hole");
        assert_eq!(file.size_and_epoch(&context).await.expect("a size").0, 9_000_000);
        assert_eq!(file.lengthen(&context, 5).await.expect("it is longer"), 9_000_000);
        unlink(&context, &dfs, &root, b"f").await;
        assert_eq!(dfs.file(&node).expect("new").size_and_epoch(&context).await.expect("a size").0, 0);
    });
}

#[test]
fn what_is_stored_of_a_file_is_counted_and_found_in_all_its_chunks() {
    const CHUNK: u64 = 1 << 20;
    for (seed, looks) in [(30, StoreConfig::default().request_looks), (31, 64)] {
        let store = StoreConfig { request_looks: looks, ..StoreConfig::default() };
        let cluster = Cluster::start_with(seed, 2, 2, store);
        let (context, random) = (cluster.context(MINUTE), Random::new(seed));
        cluster.run(async move {
            let dfs = mount(&context).await;
            let root = dfs.root().clone();
            let node = dfs.create(&context, &root, b"f", OWNER).await.expect("created");
            let file = dfs.file(&node).expect("a file");
            // In units of 4 KiB.
            let mut model = vec![false; 40 * 256];
            for step in 0..60 {
                let (from, most) = (random.below(39 * 256), if step % 9 == 0 { 600 } else { 9 });
                let to = (from + 1 + random.below(most)).min(40 * 256);
                let range = usize::try_from(from).expect("small")..usize::try_from(to).expect("small");
                let (offset, len) = (from * 4096, (to - from) * 4096);
                let (size, _) = file.size_and_epoch(&context).await.expect("a size");
                if step % 3 == 2 && offset + len < size {
                    file.punch_hole(&context, offset, len).await.expect("a hole");
                    model[range].fill(false);
                } else {
                    file.write(&context, offset, &vec![7; len.try_into().expect("small")])
                        .await
                        .expect("written");
                    model[range].fill(true);
                }
            }
            let size = model.iter().rposition(|stored| *stored).expect("some") as u64 * 4096 + 4096;
            let stored = model.iter().filter(|stored| **stored).count() as u64;
            let (_, stat) = dfs.stat(&context, &node).await.expect("stat");
            assert_eq!(stat.size, size);
            if looks > 64 {
                assert_eq!(stat.blocks, stored * 8);
            }
            assert!(stat.blocks > 0 && stat.blocks <= size / 512, "{} blocks", stat.blocks);
            let (mut at, mut found) = (0, vec![false; model.len()]);
            while let Some(data) = file.next_data(&context, at).await.expect("asked") {
                let hole = file.next_hole(&context, data).await.expect("asked").expect("data is in the file");
                assert!(at <= data && data < hole && hole <= size, "{at} {data} {hole} {size}");
                assert_eq!(
                    file.next_hole(&context, at).await.expect("asked"),
                    Some(if at == data { hole } else { at })
                );
                let unit = |offset: u64| usize::try_from(offset / 4096).expect("small");
                found[unit(data)..unit(hole)].fill(true);
                at = hole;
            }
            assert!(found == model, "holes and data are where they were made");
            assert_eq!(at, size);
            assert_eq!(file.next_hole(&context, size).await.expect("asked"), None);
            let middle = 3 * CHUNK + 5;
            let expected = model[usize::try_from(middle / 4096).expect("small")];
            assert_eq!(file.next_data(&context, middle).await.expect("asked") == Some(middle), expected);
        });
    }
}

#[test]
fn times_and_modes_are_set_and_content_changes_move_the_modification_time() {
    let cluster = Cluster::start(3, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        let node = dfs.create(&context, &root, b"f", OWNER).await.expect("created");
        let file = dfs.file(&node).expect("a file");
        let (_, created) = dfs.stat(&context, &node).await.expect("stat");
        context.runtime().sleep(Duration::from_secs(5)).await;
        file.write(&context, 0, b"x").await.expect("written");
        let (_, written) = dfs.stat(&context, &node).await.expect("stat");
        assert!(written.mtime_ns >= created.mtime_ns + 4_000_000_000);
        let change = SetAttributes {
            mode: Some(0o600),
            uid: Some(77),
            atime: Some(Change::To(5)),
            mtime: Some(Change::To(1_234_567_890_123_456_789)),
            ..SetAttributes::default()
        };
        let (node, set) = dfs.set_attributes(&context, &node, &change).await.expect("set");
        assert_eq!((set.mode, set.uid, set.gid, set.atime_ns), (0o600, 77, 1000, 5));
        let (_, kept) = dfs.stat(&context, &node).await.expect("stat");
        assert_eq!(kept.mtime_ns, 1_234_567_890_123_456_789);
        context.runtime().sleep(Duration::from_secs(1)).await;
        let grow = SetAttributes { size: Some(100), ..SetAttributes::default() };
        let (_, grown) = dfs.set_attributes(&context, &node, &grow).await.expect("set");
        assert_eq!(grown.size, 100);
        assert!(grown.mtime_ns > written.mtime_ns && grown.ctime_ns >= grown.mtime_ns);
        let missing = Node { name: b"other".to_vec(), ..node.clone() };
        let refused = dfs.set_attributes(&context, &missing, &change).await;
        assert!(matches!(refused, Err(Error::Stale(_))));
    });
}

#[test]
fn renames_follow_the_rules_of_posix() {
    let cluster = Cluster::start(4, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        let one = dfs.mkdir(&context, &root, b"one", OWNER).await.expect("made");
        let two = dfs.mkdir(&context, &one, b"two", OWNER).await.expect("made");
        let three = dfs.mkdir(&context, &root, b"three", OWNER).await.expect("made");
        let a = dfs.create(&context, &root, b"a", OWNER).await.expect("created");
        let b = dfs.create(&context, &three, b"b", OWNER).await.expect("created");
        dfs.file(&b).expect("a file").write(&context, 0, b"old").await.expect("written");
        let a = dfs.set_xattr(&context, &a, b"user.k", b"v", XattrMode::Any).await.expect("set");
        dfs.set_xattr(&context, &b, b"user.old", b"o", XattrMode::Any).await.expect("set");
        let errno = async |from: &Node, name: &[u8], to: &Node, new: &[u8], replace| {
            dfs.rename(&context, from, name, to, new, replace).await.expect_err("refused").errno()
        };
        assert_eq!(errno(&root, b"one", &two, b"x", Replace::Allow).await, 22, "into its own subtree");
        assert_eq!(errno(&root, b"one", &one, b"x", Replace::Allow).await, 22, "into itself");
        assert_eq!(errno(&root, b"none", &root, b"x", Replace::Allow).await, 2);
        assert_eq!(errno(&root, b"a", &root, b"one", Replace::Allow).await, 21);
        assert_eq!(errno(&root, b"one", &root, b"a", Replace::Allow).await, 20);
        assert_eq!(errno(&one, b"two", &root, b"three", Replace::Allow).await, 39);
        assert_eq!(errno(&root, b"a", &three, b"b", Replace::Refuse).await, 17);
        let (same, gone) =
            dfs.rename(&context, &root, b"a", &root, b"a", Replace::Allow).await.expect("nothing to do");
        assert!(gone.is_none() && same.oid() == a.oid());
        let (moved, gone) =
            dfs.rename(&context, &root, b"a", &three, b"b", Replace::Allow).await.expect("moved");
        let gone = gone.expect("b was replaced");
        assert_eq!((moved.oid(), gone.node.oid()), (a.oid(), b.oid()));
        dfs.reclaim(&context, &gone).await.expect("reclaimed");
        assert_eq!(dfs.get_xattr(&context, &moved, b"user.k").await.expect("moved along"), b"v");
        assert_eq!(dfs.list_xattrs(&context, &moved).await.expect("lists"), [b"user.k".to_vec()]);
        assert!(matches!(dfs.lookup(&context, &root, b"a").await, Err(Error::NotFound(_))));
        assert!(matches!(dfs.stat(&context, &b).await, Err(Error::Stale(_))));
        let (moved, gone) =
            dfs.rename(&context, &one, b"two", &root, b"four", Replace::Allow).await.expect("moved");
        assert!(gone.is_none());
        assert_eq!(dfs.parent_of(&context, moved.oid()).await.expect("known"), Some(root.oid()));
        let (_, gone) = dfs
            .rename(&context, &root, b"four", &root, b"one", Replace::Allow)
            .await
            .expect("replaces an empty one");
        assert_eq!(gone.expect("one").node.oid(), one.oid());
    });
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let cluster = Cluster::start(5, 2, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        let node = dfs.create(&context, &root, b"f", OWNER).await.expect("created");
        assert!(dfs.list_xattrs(&context, &node).await.expect("none").is_empty());
        let node = dfs.set_xattr(&context, &node, b"user.a", b"", XattrMode::Create).await.expect("set");
        let long = vec![b'l'; 65536];
        dfs.set_xattr(&context, &node, b"user.b", &long, XattrMode::Any).await.expect("set");
        assert_eq!(dfs.get_xattr(&context, &node, b"user.a").await.expect("empty"), b"");
        assert_eq!(dfs.get_xattr(&context, &node, b"user.b").await.expect("long"), long);
        let mut names = dfs.list_xattrs(&context, &node).await.expect("two");
        names.sort();
        assert_eq!(names, [b"user.a".to_vec(), b"user.b".to_vec()]);
        let errno = async |name: &[u8], value: &[u8], mode| {
            dfs.set_xattr(&context, &node, name, value, mode).await.expect_err("refused").errno()
        };
        assert_eq!(errno(b"user.a", b"x", XattrMode::Create).await, 17);
        assert_eq!(errno(b"user.c", b"x", XattrMode::Replace).await, 61);
        assert_eq!(errno(b"user.c", &vec![0; 65537], XattrMode::Any).await, 7);
        assert_eq!(errno(&[b'n'; 256], b"x", XattrMode::Any).await, 34);
        dfs.remove_xattr(&context, &node, b"user.a").await.expect("removed");
        assert_eq!(dfs.remove_xattr(&context, &node, b"user.a").await.expect_err("gone").errno(), 61);
        let (root, _) = dfs.stat(&context, &root).await.expect("stat");
        let root =
            dfs.set_xattr(&context, &root, b"user.r", b"1", XattrMode::Any).await.expect("set on the root");
        assert_eq!(dfs.get_xattr(&context, &root, b"user.r").await.expect("there"), b"1");
    });
}

/// Requests of the operations that make up most of a file system's life, where the classes spread over six targets.
#[test]
fn small_files_take_few_requests() {
    let cluster = Cluster::start(6, 3, 2);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        dfs.create(&context, &root, b"warm", OWNER).await.expect("object ids are reserved by this one");
        let count = |start: u64| context.traffic().requests - start;
        let start = context.traffic().requests;
        let node = dfs.create(&context, &root, b"f", OWNER).await.expect("created");
        assert_eq!(count(start), 1, "create");
        let (file, start) = (dfs.file(&node).expect("a file"), context.traffic().requests);
        file.write(&context, 0, &[7; 5000]).await.expect("written");
        assert_eq!(count(start), 1, "write");
        let start = context.traffic().requests;
        dfs.stat(&context, &node).await.expect("stat");
        assert_eq!(count(start), 2, "stat");
        let start = context.traffic().requests;
        file.read(&context, 0, &mut [0; 8192], Some(5000)).await.expect("read");
        assert_eq!(count(start), 1, "read with a known size");
        let start = context.traffic().requests;
        file.read(&context, 0, &mut [0; 8192], None).await.expect("read");
        assert_eq!(count(start), 2, "read to the end");
        let times = SetAttributes { mtime: Some(Change::To(1)), ..SetAttributes::default() };
        let start = context.traffic().requests;
        dfs.set_attributes(&context, &node, &times).await.expect("set");
        assert_eq!(count(start), 3, "utimens");
        let start = context.traffic().requests;
        dfs.lookup(&context, &root, b"f").await.expect("found");
        assert_eq!(count(start), 1, "lookup");
        let start = context.traffic().requests;
        dfs.rename(&context, &root, b"f", &root, b"g", Replace::Allow).await.expect("renamed");
        assert_eq!(count(start), 3, "rename");
        let start = context.traffic().requests;
        unlink(&context, &dfs, &root, b"g").await;
        assert_eq!(count(start), 4, "unlink and reclaim");
        for number in 0..300 {
            let name = format!("entry-{number}");
            dfs.create(&context, &root, name.as_bytes(), OWNER).await.expect("created");
        }
        let start = context.traffic().requests;
        let folder = dfs.mkdir(&context, &root, b"folder", OWNER).await.expect("made");
        assert_eq!(count(start), 1, "mkdir");
        let start = context.traffic().requests;
        dfs.create(&context, &folder, b"f", OWNER).await.expect("created");
        assert_eq!(count(start), 1, "create in another directory");
        let start = context.traffic().requests;
        dfs.rename(&context, &folder, b"f", &root, b"f", Replace::Allow).await.expect("renamed");
        assert_eq!(count(start), 3, "rename to another directory");
        let start = context.traffic().requests;
        let removed = dfs.rmdir(&context, &root, b"folder").await.expect("removed");
        assert_eq!(count(start), 3, "rmdir");
        dfs.reclaim(&context, &removed).await.expect("reclaimed");
        let (mut stream, start) = (dfs.open_directory(&root).expect("opens"), context.traffic().requests);
        let mut listed = 0;
        loop {
            let entries = dfs.read_directory(&context, &mut stream, listed, 1000).await.expect("lists");
            match entries.last() {
                Some(last) => listed = last.cookie,
                None => break,
            }
        }
        assert_eq!((listed, count(start)), (302, 2), "a listing with records: a message holds about 150");
    });
}

/// Several clients at once: of those that create or remove the same name one wins, and a name that all rename onto
/// ends up with one of their files.
#[test]
fn clients_that_meet_at_a_name_agree_on_one_winner() {
    const CLIENTS: usize = 4;
    for seed in 0..30 {
        let cluster = Cluster::start(seed, 2, 2);
        let contexts: Vec<Context> = (0..CLIENTS)
            .map(|number| cluster.context_on(&cluster.world.node(&format!("client-{number}")), MINUTE))
            .collect();
        let first = cluster.context(MINUTE);
        let (dfs, nodes) = cluster.run(async move {
            let dfs = mount(&first).await;
            let mut nodes = Vec::new();
            for number in 0..CLIENTS {
                let name = format!("own-{number}");
                let node = dfs.create(&first, dfs.root(), name.as_bytes(), OWNER).await.expect("created");
                dfs.file(&node).expect("a file").write(&first, 0, name.as_bytes()).await.expect("written");
                nodes.push(node);
            }
            (dfs, nodes)
        });
        let wins: Rc<std::cell::RefCell<Vec<(usize, &str)>>> = Rc::default();
        for (number, context) in contexts.iter().enumerate() {
            let (context, dfs, wins) = (context.clone(), dfs.clone(), Rc::clone(&wins));
            context.runtime().clone().spawn(async move {
                let root = dfs.root().clone();
                for (name, what) in [(&b"made"[..], "create"), (b"folder", "mkdir")] {
                    let made = match what {
                        "create" => dfs.create(&context, &root, name, OWNER).await,
                        _ => dfs.mkdir(&context, &root, name, OWNER).await,
                    };
                    match made {
                        Ok(_) => wins.borrow_mut().push((number, what)),
                        Err(error) => assert_eq!(error.errno(), 17, "seed {seed}: {error}"),
                    }
                }
                let own = format!("own-{number}");
                let renamed =
                    dfs.rename(&context, &root, own.as_bytes(), &root, b"target", Replace::Allow).await;
                let (_, replaced) = renamed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                if let Some(removed) = replaced {
                    dfs.reclaim(&context, &removed).await.expect("reclaimed");
                }
                wins.borrow_mut().push((number, "rename"));
            });
        }
        cluster.world.run_for(MINUTE);
        let count = |what: &str| wins.borrow().iter().filter(|(_, done)| *done == what).count();
        assert_eq!((count("create"), count("mkdir"), count("rename")), (1, 1, CLIENTS), "seed {seed}");
        let context = cluster.context(MINUTE);
        cluster.run(async move {
            let target = dfs.lookup(&context, dfs.root(), b"target").await.expect("there");
            let winner = nodes.iter().position(|node| node.oid() == target.oid()).expect("one of them");
            let mut bytes = [0; 16];
            let len =
                dfs.file(&target).expect("a file").read(&context, 0, &mut bytes, None).await.expect("read");
            assert_eq!(bytes[..len], *format!("own-{winner}").as_bytes(), "seed {seed}");
            let mut stream = dfs.open_directory(dfs.root()).expect("opens");
            let listed = dfs.read_directory(&context, &mut stream, 0, 100).await.expect("lists");
            let names: Vec<_> = listed.iter().map(|entry| entry.node.name.clone()).collect();
            assert_eq!(names, [b"folder".to_vec(), b"made".to_vec(), b"target".to_vec()], "seed {seed}");
        });
    }
}

/// Random operations against a model, while engines crash and come back and messages get lost.
#[test]
fn the_file_system_behaves_as_its_model_while_engines_crash() {
    const STEPS: usize = 250;
    for seed in 0..100 {
        let cluster = Rc::new(Cluster::start(seed, 2, 2));
        let random = Random::new(seed.wrapping_mul(77));
        if seed % 2 == 1 {
            for crash in 0..4_u64 {
                let after = Duration::from_millis(20 + 60 * crash + random.below(60));
                let rank = u32::try_from(random.below(2)).expect("small");
                cluster.schedule_crash(rank, after, Duration::from_millis(1 + random.below(40)));
            }
        }
        if seed % 3 == 0 {
            cluster.fabric.configure(|network| {
                network.loss = 0.002;
                network.duplicate = 0.01;
            });
        }
        let context = cluster.context(Duration::from_mins(5));
        cluster.run(async move {
            let dfs = mount(&context).await;
            let mut model = Model::new();
            for number in 0..STEPS {
                let step = Step::draw(&random);
                let (found, expected) = (step.run(&context, &dfs).await, model.apply(&step));
                assert_eq!(found, expected, "seed {seed}, step {number}: {step:?}");
            }
            assert_eq!(model::walk(&context, &dfs).await, model.contents(), "seed {seed}");
        });
    }
}

#[test]
fn a_directory_that_was_made_although_its_answer_was_lost_is_whole() {
    let cluster = Rc::new(Cluster::start(21, 1, 2));
    let context = cluster.context(Duration::from_secs(5));
    let system = Rc::clone(&cluster);
    cluster.run(async move {
        let dfs = mount(&context).await;
        let root = dfs.root().clone();
        dfs.mkdir(&context, &root, b"before", OWNER).await.expect("made");
        let mut made = 0;
        for number in 0..20 {
            // Answers are lost from some moment on, until nobody waits for them any more, but while what would clean up behind
            // it may still be under way.
            let (faulty, rt) = (Rc::clone(&system), context.runtime().clone());
            let heals = context.runtime().spawn(async move {
                rt.sleep(Duration::from_micros(number * 25)).await;
                faulty.fabric.partition_one_way(faulty.engine(0), &faulty.client);
                rt.sleep(Duration::from_secs(6)).await;
                faulty.fabric.heal();
            });
            let name = format!("d{number}");
            let answer = dfs.mkdir(&context, &root, name.as_bytes(), OWNER).await;
            heals.await.expect("it ends");
            match dfs.lookup(&context, &root, name.as_bytes()).await {
                Ok(found) => {
                    made += u32::from(answer.is_err());
                    assert_eq!(dfs.parent_of(&context, found.oid()).await.expect("known"), Some(root.oid()));
                }
                Err(Error::NotFound(_)) => {
                    answer.map(drop).expect_err("it isn't there");
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(made > 1, "{made}");
    });
}
