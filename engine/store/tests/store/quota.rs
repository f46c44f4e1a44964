//! Quotas of containers that are overwritten: what is about to be reclaimed doesn't count, and nothing else is left out.

use crate::setup::*;
use std::time::Duration;
use weir_proto::object::{AkeyUpdate, Conditions, PunchScope};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_runtime::random::Random;
use weir_store::{Data, Shard, StoreConfig, UpdateError};

const DISK: u64 = 64 << 20;
const QUOTA: u64 = 1 << 20;
/// Bytes of a piece of an array: eight of them stay.
const PIECE: usize = 64 << 10;

/// An update at the present epoch, as an engine makes it.
async fn update_now(
    (shard, rt): (&Shard, &Handle),
    object: ObjectId,
    dkey: &Key,
    akey: AkeyUpdate,
    value: &[u8],
) -> Result<Epoch, UpdateError> {
    let (clock, data) = (|| Epoch(rt.wall_ns()), Data::Borrowed(value));
    shard
        .update_by_clock(CONTAINER, object, dkey, &clock, Conditions::NONE, &[akey], data, &|_| Vec::new())
        .await
}

async fn write_now(on: (&Shard, &Handle), dkey: u64, index: u64, value: &[u8]) -> Result<Epoch, UpdateError> {
    let akey = array("data", 1, &[(index, value.len() as u64)]);
    update_now(on, ARRAY, &Key::from_u64(dkey), akey, value).await
}

fn used(shard: &Shard) -> (u64, u64) {
    let summary = shard.containers().into_iter().find(|summary| summary.container == CONTAINER).expect("it");
    (summary.used, summary.counted)
}

/// Ten times the quota is written before anything of it can go.
#[test]
fn what_is_overwritten_in_place_needs_no_room_for_its_history() {
    let machine = Machine::new(1, DISK);
    let (store, shard) = machine.start(StoreConfig::default());
    let (user, rt) = (shard.clone(), machine.handle());
    machine.run(async move {
        user.set_quota(CONTAINER, QUOTA).await.expect("set");
        for round in 0..20u64 {
            for piece in 0..8 {
                let value = pattern(round, PIECE);
                write_now((&user, &rt), piece, 0, &value)
                    .await
                    .unwrap_or_else(|error| panic!("{round}: {error}"));
                let akey = single("a", &value[..1000]);
                let (dkey, on) = (key("d"), (&user, &rt));
                update_now(on, OBJECT, &dkey, akey, &value[..1000]).await.expect("a single value, too");
                rt.sleep(Duration::from_millis(5)).await;
            }
        }
        let (all, counted) = used(&user);
        assert!(all > 10 * QUOTA && counted <= QUOTA, "{counted} of {all} count");
        rt.sleep(Duration::from_secs(8)).await;
        let (all, counted) = used(&user);
        assert!(all < QUOTA && counted == all, "{counted} of {all} count");
        for piece in 8..14 {
            write_now((&user, &rt), piece, 0, &pattern(1, PIECE)).await.expect("within the quota");
        }
        for piece in 14..40 {
            let Err(error) = write_now((&user, &rt), piece, 0, &pattern(1, PIECE)).await else { continue };
            assert!(matches!(error, UpdateError::Quota { .. }), "{error}");
            return;
        }
        panic!("40 pieces don't fit");
    });
    drop(store);
}

/// One step of somebody who writes what he likes.
async fn step(on: (&Shard, &Handle), random: &mut Random) -> Result<(), UpdateError> {
    let (shard, rt) = on;
    let dkey = random.below(3);
    match random.below(20) {
        0 => shard.set_snapshots(CONTAINER, &[Epoch(rt.wall_ns())]).await.expect("set"),
        1 => shard.set_snapshots(CONTAINER, &[]).await.expect("set"),
        2 => {
            let (scope, none) = (PunchScope::Dkeys(vec![Key::from_u64(dkey)]), Conditions::NONE);
            let clock = || Epoch(rt.wall_ns());
            shard.punch_by_clock(CONTAINER, ARRAY, &scope, &clock, none, &|_| Vec::new()).await?;
        }
        3..6 => {
            let value = pattern(dkey, random.below(9000) as usize + 1);
            update_now(on, OBJECT, &key("d"), single("a", &value), &value).await?;
        }
        6 => rt.sleep(Duration::from_millis(random.below(400))).await,
        _ => {
            // Extents of a few lengths, so that many lie within others or are the same.
            let len = [512, 4096, 8192, 20_000][random.below(4) as usize];
            let value = pattern(dkey, len);
            write_now(on, dkey, random.below(6) * 4096, &value).await?;
        }
    }
    Ok(())
}

/// Whatever is written: what counts is never less than what is left when all is gone that can go.
#[test]
fn what_counts_is_never_less_than_what_stays() {
    let mut credited = 0;
    for seed in 0..40 {
        let machine = Machine::new(seed, DISK);
        let config = StoreConfig { retention: Duration::from_secs(1), ..StoreConfig::default() };
        let (store, shard) = machine.start(config);
        let rt = machine.handle();
        credited += machine.run(async move {
            let mut random = Random::new(seed);
            shard.set_quota(CONTAINER, 200_000).await.expect("set");
            for _ in 0..300 {
                match step((&shard, &rt), &mut random).await {
                    Ok(()) => {}
                    Err(UpdateError::Quota { .. }) => rt.sleep(Duration::from_millis(100)).await,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                rt.sleep(Duration::from_millis(3)).await;
            }
            let (all, counted) = used(&shard);
            shard.aggregate(CONTAINER, Epoch(rt.wall_ns())).await.expect("done");
            let (stays, still) = used(&shard);
            assert!(
                stays <= counted && still == stays,
                "seed {seed}: {counted} of {all} counted, {stays} stay"
            );
            // What punches store isn't refused.
            assert!(stays <= 202_000, "seed {seed}: {stays} bytes stay");
            all - counted
        });
        drop(store);
    }
    assert!(credited > 400_000, "{credited} bytes were left out");
}

/// The leader has checked the quota, by its own share: what it has stored has to have its copies.
#[test]
fn no_quota_refuses_the_copy_of_what_a_leader_has_stored() {
    let machine = Machine::new(3, DISK);
    let (store, shard) = machine.start(StoreConfig::default());
    let (user, rt) = (shard.clone(), machine.handle());
    machine.run(async move {
        user.set_quota(CONTAINER, QUOTA).await.expect("set");
        let full = loop {
            let piece = used(&user).0 / PIECE as u64;
            if let Err(error) = write_now((&user, &rt), piece, 0, &pattern(1, PIECE)).await {
                break error;
            }
        };
        assert!(matches!(full, UpdateError::Quota { .. }), "{full}");
        let before = used(&user).0;
        for (object, akey, size) in
            [(ARRAY, array("data", 1, &[(0, PIECE as u64)]), PIECE), (OBJECT, single("a", &[7; 100]), 100)]
        {
            let (value, epoch) = (vec![7; size], Epoch(rt.wall_ns()));
            let (chosen, dkey) = ((epoch, &(|| true) as &dyn Fn() -> bool), Key::from_u64(1000));
            let (updates, data) = ([akey], Data::Borrowed(&value));
            let stored =
                user.update_as_replica(CONTAINER, object, &dkey, chosen, &updates, data, &|_| Vec::new());
            stored.await.expect("a copy");
        }
        assert!(used(&user).0 > before + PIECE as u64, "copies count");
    });
    drop(store);
}
