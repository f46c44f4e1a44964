//! One client lengthens a file, and cuts it off, while another reads it, on a simulated system.

use crate::cluster;

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{ContainerProperties, ContainerType};
use weir_dfs::{Dfs, Ownership};
use weir_runtime::random::Random;

const CHUNK: u64 = 8 << 10;
const SIZE: u64 = 40 * CHUNK;
const OWNER: Ownership = Ownership { mode: 0o644, uid: 1000, gid: 1000 };

/// The byte at an offset: never 0.
fn byte(offset: u64) -> u8 {
    u8::try_from(offset / 100 % 251 + 1).expect("small")
}

#[test]
fn who_reads_a_file_that_grows_finds_a_beginning_of_it() {
    for seed in 0..10 {
        let cluster = Rc::new(Cluster::start(seed, 2, 2));
        let random = Random::new(seed);
        if seed % 2 == 1 {
            let rank = u32::try_from(random.below(2)).expect("small");
            let (after, away) = (Duration::from_millis(30), Duration::from_millis(40));
            cluster.schedule_crash(rank, after, away);
        }
        let (writer, reader) =
            (cluster.context(Duration::from_mins(2)), cluster.context(Duration::from_mins(2)));
        let (looks, beginnings) = cluster.run(async move {
            let properties =
                ContainerProperties { chunk_size: CHUNK, ..properties("home", ContainerType::Posix) };
            let container = open_container(&writer, properties).await;
            let dfs = Dfs::mount(&writer, &container).await.expect("mounts");
            let node = dfs.create(&writer, dfs.root(), b"log", OWNER).await.expect("created");
            let (file, ended) = (dfs.file(&node).expect("a file"), Cell::new(false));
            let lengthening = async {
                let mut at = 0;
                while at < SIZE {
                    let len = (1 + random.below(9 * CHUNK)).min(SIZE - at);
                    let part: Vec<u8> = (at..at + len).map(byte).collect();
                    file.write_in_order(&writer, at, &part, at).await.expect("written");
                    at += len;
                }
                ended.set(true);
            };
            let reads = async {
                let (mut looks, mut beginnings, mut last) = (0, 0, 0);
                while !ended.get() {
                    let file = dfs.file(&node).expect("a file");
                    let mut found = vec![0; usize::try_from(SIZE).expect("small")];
                    let read = file.read(&reader, 0, &mut found, None).await.expect("read");
                    let other = (0..).zip(&found[..read]).find(|(at, found)| **found != byte(*at));
                    assert_eq!(other, None, "seed {seed}, in a file of {read} bytes");
                    assert!(read >= last, "seed {seed}: it was longer");
                    (looks, beginnings) = (looks + 1, beginnings + u32::from(read > last));
                    last = read;
                }
                (looks, beginnings)
            };
            weir_runtime::join_all([
                Box::pin(async {
                    lengthening.await;
                    None
                }) as weir_runtime::LocalBoxFuture<'_, _>,
                Box::pin(async { Some(reads.await) }),
            ])
            .await
            .pop()
            .flatten()
            .expect("it has looked")
        });
        assert!(looks > 5 && beginnings > 3, "seed {seed}: {beginnings} beginnings in {looks} looks");
    }
}
