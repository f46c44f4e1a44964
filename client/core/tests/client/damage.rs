//! Data that is altered on an engine's device, or on its way from there, and who finds out.

use crate::cluster;

use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, DISK_BYTES, open_container, properties};
use weir_client::{
    AkeyRead, AkeyWrite, Buffer, Conditions, ContainerType, Context, Der, Error, Extent, Key, Lender, Object,
    ObjectClass, Traffic, Transaction, kind,
};
use weir_media::sim::SimDisk;
use weir_proto::object::{FetchReply, Fetched};
use weir_proto::opcode;
use weir_rpc::{Request, Status};

/// Bytes of the value.
pub const LEN: usize = 1 << 20;
/// Bytes of a chunk of it.
pub const CHUNK: usize = 32 << 10;
/// A byte of it, and a bit.
pub const PLACE: (usize, u8) = (5 * CHUNK + 777, 4);

pub fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

pub fn value() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    (0..LEN).map(|_| next()).collect()
}

pub fn extents(index: usize, count: usize) -> Vec<Extent> {
    vec![Extent { index: index as u64, count: count as u64 }]
}

/// A system of one target with the value in it, as an array of bytes, and where on the disk that begins.
struct Stage {
    cluster: Cluster,
    context: Context,
    object: Object,
    start: u64,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::start(seed, 1, 1);
        let context = cluster.context(Duration::from_mins(1));
        let writer = context.clone();
        let object = cluster.run(async move {
            let container = open_container(&writer, properties("damaged", ContainerType::Object)).await;
            let oid = container.new_object_id(&writer, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
            let object = Object::open(&container, oid.expect("an id")).expect("opens");
            let value = value();
            let write = [AkeyWrite::array(key("a"), 1, extents(0, LEN), vec![&value])];
            object.update(&writer, &key("d"), Conditions::NONE, &write).await.expect("stored");
            object
        });
        let (disk, value) = (cluster.disk((0, 0)), value());
        let start = (0..DISK_BYTES / 4096).find(|at| disk.bytes(at * 4096, 4096) == value[..4096]);
        Self { cluster, context, object, start: start.expect("on the disk") * 4096 }
    }

    fn disk(&self) -> SimDisk {
        self.cluster.disk((0, 0))
    }

    /// Where on the disk [`PLACE`] is.
    fn place(&self) -> u64 {
        self.start + PLACE.0 as u64
    }

    /// What a fetch of a part brings, and what it took of requests, second fetches and errors that the engine's store counted.
    fn fetch(&self, index: usize, count: usize) -> (Result<Vec<u8>, Error>, [u64; 3]) {
        self.fetch_from(self.object.clone(), index, count)
    }

    fn fetch_from(&self, object: Object, index: usize, count: usize) -> (Result<Vec<u8>, Error>, [u64; 3]) {
        let errors = || self.cluster.targets(0)[0].store().stats().checksum_errors;
        let before = (self.context.traffic(), errors());
        let context = self.context.clone();
        let found = self.cluster.run(async move {
            let mut into = vec![0xee; count];
            let mut read = AkeyRead::array(key("a"), 1, extents(index, count), vec![&mut into]);
            read.zero_holes = true;
            let found = object.fetch(&context, &key("d"), Conditions::NONE, &mut [read]).await;
            found.map(|_| into)
        });
        let Traffic { requests, altered, .. } = self.context.traffic();
        (found, [requests - before.0.requests, altered - before.0.altered, errors() - before.1])
    }

    /// The same object as a transaction reads it.
    fn in_transaction(&self) -> Object {
        let context = self.context.clone();
        let object = self.object.clone();
        self.cluster.run(async move {
            let transaction = Transaction::begin(&context, object.container());
            object.in_transaction(transaction.reader())
        })
    }
}

/// Memory that is lent, and where data doesn't arrive: it goes elsewhere.
struct Elsewhere;

impl Lender for Elsewhere {
    fn source(&self, memory: &[u8]) -> Buffer {
        Buffer::from_vec(memory.to_vec())
    }

    fn sink(&self, memory: &mut [u8]) -> Buffer {
        Buffer::from_vec(vec![0; memory.len()])
    }
}

#[test]
fn a_bit_that_has_rotted_on_the_device_is_told_with_its_place_counted_once_and_never_delivered() {
    let stage = Stage::new(1);
    let sound = (stage.fetch(0, LEN), stage.fetch(CHUNK, 2 * CHUNK));
    assert!(sound.0.0.expect("it is sound") == value() && sound.0.1 == [1, 0, 0], "{:?}", sound.0.1);
    assert!(sound.1.0.expect("it is sound") == value()[CHUNK..3 * CHUNK] && sound.1.1 == [1, 0, 0]);
    stage.disk().rot(stage.place(), PLACE.1);
    let chunk = stage.start + (5 * CHUNK) as u64;
    for object in [stage.object.clone(), stage.in_transaction()] {
        // The reader finds out, and asks who can tell.
        let (found, costs) = stage.fetch_from(object.clone(), 0, LEN);
        let error = found.expect_err("it is damaged");
        assert!(error.is(Der::CSUM) && matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains(&format!("at byte {chunk} of")), "{error}");
        assert_eq!(costs, [2, 1, 1]);
        // Of a part of a chunk the engine finds out.
        let (found, costs) = stage.fetch_from(object.clone(), PLACE.0 - 20_000, 40_000);
        let error = found.expect_err("it is damaged");
        assert!(error.is(Der::CSUM) && error.to_string().contains(&format!("at byte {chunk} of")), "{error}");
        assert_eq!(costs, [1, 0, 1]);
        let (found, costs) = stage.fetch_from(object, 8 * CHUNK, 8 * CHUNK);
        assert!(found.expect("that is sound") == value()[8 * CHUNK..16 * CHUNK]);
        assert_eq!(costs, [1, 0, 0]);
    }
    stage.context.set_lender(Rc::new(Elsewhere));
    let (found, costs) = stage.fetch(0, LEN);
    let error = found.expect_err("it is damaged");
    assert!(error.is(Der::CSUM) && error.to_string().contains(&format!("at byte {chunk} of")), "{error}");
    assert_eq!(costs, [2, 1, 1]);
}

#[test]
fn a_bit_that_flips_on_the_way_is_made_good_by_a_second_answer() {
    let stage = Stage::new(2);
    for object in [stage.object.clone(), stage.in_transaction()] {
        stage.disk().misread(stage.place(), PLACE.1);
        let (found, costs) = stage.fetch_from(object, 0, LEN);
        assert!(found.expect("what is stored is sound") == value());
        assert_eq!(costs, [2, 1, 0], "nothing is wrong with the device's content");
    }
    // Twice in a row: there is no third request, and this time the engine has compared.
    for _ in 0..2 {
        stage.disk().misread(stage.place(), PLACE.1);
    }
    let (found, costs) = stage.fetch(0, LEN);
    assert!(found.expect_err("it is altered again").is(Der::CSUM));
    assert_eq!(costs, [2, 1, 1]);
    // Where the memory of the application is at fault, the second answer goes to other memory.
    stage.context.set_lender(Rc::new(Elsewhere));
    let (found, costs) = stage.fetch(0, LEN);
    assert!(found.expect("it got through") == value());
    assert_eq!(costs, [2, 1, 0]);
}

/// Answers the engine's plain fetches as if somebody had punched the value between the two answers: there is nothing.
fn punch_behind(stage: &Stage) {
    let nothing = |_: Request| async {
        let found = Fetched { size: 0, present: Vec::new(), checksums: Vec::new() };
        let reply = FetchReply { akeys: vec![found], data_len: 0, inline: true };
        Ok(weir_proto::codec::encode(&reply))
    };
    stage.cluster.targets(0)[0].rpc().serve(opcode::OBJECT_FETCH, Rc::new(nothing));
}

#[test]
fn of_an_answer_that_came_altered_nothing_is_delivered() {
    let stage = Stage::new(6);
    punch_behind(&stage);
    stage.disk().misread(stage.place(), PLACE.1);
    let (context, object) = (stage.context.clone(), stage.object.clone());
    stage.cluster.run(async move {
        // What is altered is in the second of both extents.
        let extents = [extents(0, 4 * CHUNK), extents(4 * CHUNK, 4 * CHUNK)].concat();
        let mut into = vec![0xee; 8 * CHUNK];
        let read = AkeyRead::array(key("a"), 1, extents, vec![&mut into]);
        let found = object.fetch(&context, &key("d"), Conditions::NONE, &mut [read]).await;
        assert_eq!(found.expect("there is nothing")[0].size, 0);
        assert!(into.iter().all(|byte| *byte == 0xee), "holes are left as they are");
        assert_eq!(context.traffic().altered, 1);
    });
}

#[test]
fn what_came_altered_leaves_nothing_where_there_is_a_hole_by_the_second_answer() {
    let stage = Stage::new(3);
    punch_behind(&stage);
    stage.context.set_lender(Rc::new(Elsewhere));
    let (found, costs) = stage.fetch(0, LEN);
    assert!(found.expect("there is nothing").iter().all(|byte| *byte == 0));
    assert_eq!(costs, [2, 1, 0]);
}

#[test]
fn an_engine_that_knows_no_readers_who_compare_is_asked_as_ever() {
    let stage = Stage::new(4);
    let target = Rc::clone(&stage.cluster.targets(0)[0]);
    for opcode in [opcode::OBJECT_FETCH_TO_COMPARE, opcode::TRANSACTION_FETCH_TO_COMPARE] {
        let unserved = |_: Request| async { Err(Status::new(Der::NOSYS, "it is not served here")) };
        target.rpc().serve(opcode, Rc::new(unserved));
    }
    for object in [stage.object.clone(), stage.in_transaction()] {
        let (found, costs) = stage.fetch_from(object, 0, LEN);
        assert!(found.expect("it answers") == value());
        assert_eq!(costs, [2, 0, 0]);
    }
}

#[test]
fn data_without_a_checksum_is_not_taken() {
    let stage = Stage::new(5);
    let target = Rc::clone(&stage.cluster.targets(0)[0]);
    let unsummed = |_: Request| async {
        let found = Fetched { size: 1, present: extents(0, 100), checksums: Vec::new() };
        let reply = FetchReply { akeys: vec![found], data_len: 100, inline: true };
        let mut body = weir_proto::codec::encode(&reply);
        body.extend_from_slice(&[7; 100]);
        Ok(body)
    };
    target.rpc().serve(opcode::OBJECT_FETCH, Rc::new(unsummed));
    let (found, _) = stage.fetch(0, 100);
    assert!(matches!(found, Err(Error::Protocol { .. })), "{found:?}");
}
