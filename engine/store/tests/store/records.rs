//! Changes that don't fit one record of the log, which no open would read: they are refused, and nothing else suffers.

use crate::setup::*;
use weir_media::sim::CrashKeeps;
use weir_store::{AttributeChange, AttributeError};

/// Attributes with short names and values in scopes that have little in common.
fn attributes(count: u16) -> Vec<AttributeChange> {
    let scope = |number: u16| [&number.to_be_bytes()[..], &[0; 509]].concat();
    let change =
        |number| AttributeChange { scope: scope(number), name: b"n".to_vec(), value: Some(Vec::new()) };
    (0..count).map(change).collect()
}

#[test]
fn attributes_that_do_not_fit_a_record_are_refused_before_anything_changes() {
    let machine = Machine::new(71, 64 << 20);
    let (store, shard) = machine.start(quiet());
    let user = shard.clone();
    let before = store.stats().entries;
    machine.run(async move {
        let refused = user.change_attributes(&attributes(2300)).await;
        assert!(matches!(refused, Err(AttributeError::TooLong { .. })), "{refused:?}");
    });
    assert_eq!(store.stats().entries, before);
    // As many as fit are taken, and read again.
    let user = shard.clone();
    machine.run(async move { user.change_attributes(&attributes(1900)).await }).expect("stored");
    drop((store, shard));
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    assert_eq!(store.stats().entries, before + 1900);
    // To remove much by few names takes no less.
    let shard = store.pool(POOL).expect("the pool");
    let removals: Vec<AttributeChange> =
        attributes(1900).into_iter().map(|change| AttributeChange { value: None, ..change }).collect();
    machine.run(async move { shard.change_attributes(&removals).await }).expect("removed");
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    assert_eq!(machine.open(quiet()).stats().entries, before);
}
