//! Appends of several clients to one file, on a simulated system.

use crate::cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, open_container, properties};
use weir_client::{ContainerProperties, ContainerType, Context};
use weir_dfs::{Dfs, Node, Ownership};
use weir_runtime::join_all;
use weir_runtime::random::Random;

const CLIENTS: u64 = 3;
const RECORDS: u64 = 25;
const CHUNK: u64 = 64 << 10;
const OWNER: Ownership = Ownership { mode: 0o644, uid: 1000, gid: 1000 };

/// A record: who wrote it, which of his it is, how long it is, and bytes that follow from these.
fn record(client: u64, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = [client, number, len as u64].map(u64::to_le_bytes).concat();
    let fill = (client * 31 + number * 7) % 251;
    bytes.resize(24 + len, u8::try_from(fill).expect("small"));
    bytes
}

async fn append_all(context: Context, dfs: Dfs, node: Node, client: u64, random: Rc<Random>) {
    let file = dfs.file(&node).expect("a file");
    for number in 0..RECORDS {
        // Some fit a commit, some take a turn; some lie in one chunk, some in several.
        let most = [50, 9_000, 40_000, 200_000][usize::try_from(number % 4).expect("small")];
        let len = usize::try_from(random.below(most)).expect("small");
        file.append(&context, &record(client, number, len)).await.expect("appended");
    }
}

/// Every client's records, each once and in one piece, in its order.
fn check(content: &[u8]) {
    let (mut at, mut next) = (0, [0; 3]);
    while at < content.len() {
        let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
        let (client, number, len) = (word(at), word(at + 8), usize::try_from(word(at + 16)).expect("small"));
        assert!(client < CLIENTS && number < RECORDS, "no record begins at {at}");
        assert!(content[at..at + 24 + len] == record(client, number, len), "the record at {at} is torn");
        let index = usize::try_from(client).expect("small");
        assert_eq!(next[index], number, "record of client {client} at {at}");
        next[index] += 1;
        at += 24 + len;
    }
    assert_eq!(next, [RECORDS; 3]);
}

#[test]
fn what_several_clients_append_is_all_there_in_one_piece_and_once() {
    for seed in 0..8 {
        let cluster = Rc::new(Cluster::start(seed, 2, 2));
        let random = Rc::new(Random::new(seed));
        if seed % 2 == 1 {
            for crash in 0..2_u64 {
                let after = Duration::from_micros(20_000 + 60_000 * crash + random.below(50_000));
                let rank = u32::try_from(random.below(2)).expect("small");
                cluster.schedule_crash(rank, after, Duration::from_micros(1000 + random.below(30_000)));
            }
        }
        let contexts: Vec<Context> = (0..CLIENTS).map(|_| cluster.context(Duration::from_mins(2))).collect();
        let content = cluster.run(async move {
            let properties =
                ContainerProperties { chunk_size: CHUNK, ..properties("home", ContainerType::Posix) };
            let container = open_container(&contexts[0], properties).await;
            let dfs = Dfs::mount(&contexts[0], &container).await.expect("mounts");
            let node = dfs.create(&contexts[0], dfs.root(), b"log", OWNER).await.expect("created");
            let clients = (0..CLIENTS).zip(&contexts).map(|(client, context)| {
                append_all(context.clone(), dfs.clone(), node.clone(), client, Rc::clone(&random))
            });
            join_all(clients).await;
            let file = dfs.file(&node).expect("a file");
            let (size, _) = file.size_and_epoch(&contexts[0]).await.expect("a size");
            let mut content = vec![0; usize::try_from(size).expect("small")];
            file.read(&contexts[0], 0, &mut content, None).await.expect("read");
            content
        });
        check(&content);
    }
}
