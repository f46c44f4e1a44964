//! Clients that propose numbered commands until each has taken effect.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use weir_raft::{Command, Lost, Outcome};
use weir_store::AttributeChange;

use crate::group::{Group, STATE};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(30);

/// Longest wait for one attempt: a replica that is gone never answers.
const PATIENCE: Duration = Duration::from_secs(2);

/// The command of a number. Each attempt would leave a trace of its own.
pub fn command(number: u64, attempt: u64, len: usize) -> Command {
    let name = [number.to_be_bytes(), attempt.to_be_bytes()].concat();
    let value = Some(vec![u8::try_from(number % 256).expect("a byte"); len]);
    Command {
        id: Some(u128::from(number).to_be_bytes()),
        result: number.to_be_bytes().to_vec(),
        changes: vec![AttributeChange { scope: STATE.to_vec(), name, value }],
    }
}

/// The numbers of the commands that a state shows, each as often as it has taken effect.
pub fn numbers(state: &[(Vec<u8>, Vec<u8>)]) -> Vec<u64> {
    state.iter().map(|(name, _)| u64::from_be_bytes(*name.first_chunk().expect("a number"))).collect()
}

/// What clients have done.
#[derive(Clone, Default)]
pub struct Clients {
    acknowledged: Rc<RefCell<BTreeSet<u64>>>,
    running: Rc<Cell<usize>>,
}

impl Clients {
    /// Starts clients that have so many commands each take effect.
    pub fn start(group: &Group, count: u64, commands: u64) -> Self {
        Self::start_from(group, 0, (count, commands))
    }

    /// The same, whose commands have the numbers from `first` on.
    pub fn start_from(group: &Group, first: u64, (count, commands): (u64, u64)) -> Self {
        let clients = Self::default();
        for client in 0..count {
            let (group, clients, rt) = (group.clone(), clients.clone(), group.clients.handle());
            clients.running.set(clients.running.get() + 1);
            rt.spawn(async move {
                for number in (0..commands).map(|number| first + client * commands + number) {
                    clients.have_done(&group, number).await;
                    clients.acknowledged.borrow_mut().insert(number);
                    group.clients.handle().sleep(PAUSE).await;
                }
                clients.running.set(clients.running.get() - 1);
            });
        }
        clients
    }

    async fn have_done(&self, group: &Group, number: u64) {
        let rt = group.clients.handle();
        for attempt in 0.. {
            if let Some((_, replica, leadership)) = group.leader() {
                let proposed = replica.propose(leadership.term, command(number, attempt, 100));
                let proposed = rt.timeout(PATIENCE, proposed).await;
                drop(replica);
                match proposed {
                    Ok(Ok(Outcome::Applied)) => return,
                    Ok(Ok(Outcome::Repeated(result))) => {
                        assert_eq!(result, number.to_be_bytes());
                        return;
                    }
                    Ok(Err(Lost::NotLeader(_) | Lost::InDoubt | Lost::Failed(_))) | Err(_) => {}
                    Ok(Err(error @ Lost::TooLong { .. })) => panic!("{error}"),
                }
            }
            rt.sleep(PAUSE).await;
        }
    }

    pub fn is_finished(&self) -> bool {
        self.running.get() == 0
    }

    /// Commands that were acknowledged.
    pub fn acknowledged(&self) -> BTreeSet<u64> {
        self.acknowledged.borrow().clone()
    }

    /// Waits until all have finished.
    pub fn finish(&self, group: &Group) {
        for _ in 0..1200 {
            if self.is_finished() {
                return;
            }
            group.world.run_for(Duration::from_millis(100));
        }
        panic!("seed {}: clients don't finish", group.world.seed());
    }

    /// Every acknowledged command is there once, on every replica.
    pub fn check(&self, group: &Group) {
        let seed = group.world.seed();
        for rank in 0..group.members() {
            let there = numbers(&group.state(rank));
            let once: BTreeSet<u64> = there.iter().copied().collect();
            assert_eq!(there.len(), once.len(), "seed {seed}: a command took effect twice at {rank}");
            let lost: Vec<_> = self.acknowledged().difference(&once).copied().collect();
            assert!(lost.is_empty(), "seed {seed}: {rank} lacks {lost:?}");
        }
    }
}
