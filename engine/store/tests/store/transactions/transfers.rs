//! Money moves between accounts, several transfers and audits at once: the sum stays.

use super::*;
use std::cell::Cell;
use std::time::Duration;
use weir_runtime::random::Random;
use weir_runtime::{Handle, join_all};

const ACCOUNTS: u64 = 40;
const START: u64 = 1000;

fn account(number: u64) -> (u64, String) {
    (number % 4, format!("account {number}"))
}

fn amount(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("an amount")))
}

/// The bytes of an amount: long enough that the accounts fill several index nodes.
fn bytes(amount: u64) -> Vec<u8> {
    let mut bytes = vec![7; 2000];
    bytes[..8].copy_from_slice(&amount.to_le_bytes());
    bytes
}

/// Epochs, each of which two transactions of this test have.
struct Epochs(Cell<u64>);

impl Epochs {
    fn next(&self, wall_ns: u64) -> Epoch {
        self.0.set((self.0.get() + 1).max(2 * wall_ns));
        Epoch(self.0.get() / 2)
    }
}

/// Moves some money; `Ok(false)`: it has to be tried again.
async fn transfer(shard: &Shard, number: u128, epoch: Epoch, (from, to): (u64, u64)) -> Result<bool, String> {
    let view = shard.view(CONTAINER, epoch, id(number).reader()).map_err(|error| error.to_string())?;
    let mut amounts = Vec::new();
    for number in [from, to] {
        let (object, dkey) = account(number);
        match read_in(&view, object, &dkey).await {
            Ok(value) => amounts.push(amount(value)),
            Err(FetchError::Undecided { .. }) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
    let moved = amounts[0] / 3;
    let values = [bytes(amounts[0] - moved), bytes(amounts[1] + moved)];
    let names = [account(from), account(to)];
    let operations: Vec<Operation<'_>> =
        names.iter().zip(&values).map(|((object, dkey), value)| store_value(*object, dkey, value)).collect();
    match shard.prepare(CONTAINER, id(number), epoch, &operations).await {
        Ok(()) => {}
        Err(UpdateError::Undecided { .. } | UpdateError::Restart { .. }) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    }
    let decided = if number.is_multiple_of(5) {
        shard.abort_transaction(CONTAINER, id(number)).await
    } else {
        shard.commit_transaction(CONTAINER, id(number)).await.map(|_| ())
    };
    decided.map(|()| true).map_err(|error| error.to_string())
}

/// The sum of all accounts at an epoch; `None` when something stays undecided.
async fn sum(handle: &Handle, shard: &Shard, epoch: Epoch) -> Result<Option<u64>, String> {
    let view = shard.view(CONTAINER, epoch, ReaderId(u64::MAX)).map_err(|error| error.to_string())?;
    let (mut sum, mut number, mut tries) = (0, 0, 0);
    while number < ACCOUNTS {
        let (object, dkey) = account(number);
        match read_in(&view, object, &dkey).await {
            Ok(value) => {
                sum += amount(value);
                number += 1;
            }
            Err(FetchError::Undecided { .. }) if tries < 100 => {
                tries += 1;
                handle.sleep(Duration::from_micros(200)).await;
            }
            Err(FetchError::Undecided { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(Some(sum))
}

fn run(seed: u64, config: StoreConfig) {
    let machine = Machine::new(seed, 96 << 20);
    let (store, shard) = machine.start(config.clone());
    let handle = machine.handle();
    let epochs = Rc::new(Epochs(Cell::new(handle.wall_ns() + 1_000_000)));
    let user = shard.clone();
    let (clock, first) = (handle.clone(), Rc::clone(&epochs));
    machine.run(async move {
        for number in 0..ACCOUNTS {
            let (object, dkey) = account(number);
            let epoch = first.next(clock.wall_ns());
            plain(&user, object, &dkey, epoch.0, &bytes(START)).await.expect("stored");
        }
    });
    let (done, sums) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let workers = (0..6u64).map(|worker| {
        let (shard, handle, epochs) = (shard.clone(), handle.clone(), Rc::clone(&epochs));
        let (done, sums) = (Rc::clone(&done), Rc::clone(&sums));
        async move {
            let random = Random::new(seed ^ (worker << 20));
            for step in 0..40u64 {
                let epoch = epochs.next(handle.wall_ns());
                handle.sleep(Duration::from_micros(random.below(300))).await;
                if worker == 0 {
                    let found = sum(&handle, &shard, epoch).await.expect("a healthy store");
                    assert!(found.is_none_or(|sum| sum == ACCOUNTS * START), "{found:?} at {epoch}");
                    sums.set(sums.get() + u64::from(found.is_some()));
                } else {
                    let from = random.below(ACCOUNTS);
                    let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
                    let number = u128::from(worker * 1000 + step);
                    let moved = transfer(&shard, number, epoch, (from, to)).await;
                    done.set(done.get() + u64::from(moved.expect("a healthy store")));
                }
            }
        }
    });
    let all: Vec<_> = workers.collect();
    let cut = Duration::from_millis(Random::new(seed).between(5, 400));
    // The power fails somewhere in the middle, or after the end.
    let ended = machine.world.try_block_on(&machine.node, cut, async move {
        join_all(all).await;
    });
    drop((store, shard));
    machine.crash(CrashKeeps::Any);
    let store = machine.open(config);
    assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for (transaction, _) in shard.undecided(CONTAINER).await.expect("the container") {
            if transaction.0.as_u128().is_multiple_of(2) {
                shard.commit_transaction(CONTAINER, transaction).await.expect("committed");
            } else {
                shard.abort_transaction(CONTAINER, transaction).await.expect("aborted");
            }
        }
        let found = sum(&handle, &shard, epochs.next(handle.wall_ns())).await;
        assert_eq!(found, Ok(Some(ACCOUNTS * START)), "seed {seed}");
    });
    if ended.is_ok() {
        assert!(done.get() > 40 && sums.get() > 5, "seed {seed}: {} and {}", done.get(), sums.get());
    }
}

#[test]
fn keep_their_sum_whatever_meets_and_wherever_the_power_fails() {
    for seed in 0..12 {
        run(seed, quiet());
        run(seed, cramped());
    }
}
