//! Who led groups of replicas before, as a new leader has to know: a group with more than two members is led only when all
//! that serve have said which changes of former leaders are unsettled there, and all of those are settled. The protocol is described in
//! docs/explanation/replication.md.
//!
//! Operations, transactions and the rebuild wait by it, and the replication asks and sends what is to be asked and sent.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::{Der, Key, PoolId};
use weir_rpc::Status;
use weir_runtime::sync::Notify;
use weir_runtime::{Handle, Instant};

use crate::unsettled::{ObjectName, Place, Unsettled, has_many_members};

/// How often who waits looks whether all is settled.
const LOOK: Duration = Duration::from_millis(5);

/// What is known of a pool.
#[derive(Default)]
struct Known {
    /// Version of the map by which that was found out.
    version: u32,
    /// Targets that serve and are sure, each with the version since which it does.
    sure: BTreeMap<u32, u32>,
    /// Those that have said what former leaders have left there, since the last one was lost.
    heard: HashSet<Place>,
    /// Those that are to be asked.
    wanted: HashSet<Place>,
}

impl Known {
    /// Follows the map. What former leaders have left is asked about anew when one that served serves no more, or anew.
    fn follow(&mut self, pool: &TargetPool) {
        pool.with_map(|map| {
            if self.version == map.version {
                return;
            }
            let sure = map.targets.iter().filter(|target| target.state.serves() && !target.in_doubt);
            let sure: BTreeMap<u32, u32> = sure.map(|target| (target.id, target.since)).collect();
            if self.sure.iter().any(|(id, since)| sure.get(id) != Some(since)) {
                self.heard.clear();
            }
            (self.version, self.sure) = (map.version, sure);
        });
    }
}

/// What this target knows of those that led before it, by pool.
#[derive(Default)]
pub(crate) struct Succession {
    pools: RefCell<HashMap<PoolId, Known>>,
    woken: Notify,
}

impl Succession {
    fn with<T>(&self, pool: &TargetPool, look: impl FnOnce(&mut Known) -> T) -> T {
        let mut pools = self.pools.borrow_mut();
        let known = pools.entry(pool.id()).or_default();
        known.follow(pool);
        look(known)
    }

    /// Forgets pools that are gone.
    pub(crate) fn retain(&self, lives: impl Fn(PoolId) -> bool) {
        self.pools.borrow_mut().retain(|pool, _| lives(*pool));
    }

    /// Opens when somebody is to be asked.
    pub(crate) fn woken(&self) -> Notify {
        self.woken.clone()
    }

    /// Has a member asked, unless it has said what there is.
    pub(crate) fn want(&self, pool: &TargetPool, member: Place) {
        self.with(pool, |known| {
            if !known.heard.contains(&member) {
                known.wanted.insert(member);
            }
        });
        self.woken.notify_one();
    }

    /// Those that are to be asked.
    pub(crate) fn wanted(&self, pool: &TargetPool) -> Vec<Place> {
        self.with(pool, |known| known.wanted.iter().copied().collect())
    }

    /// A member has said all, by a version of the map, or is to be asked no more. Whether that counts.
    pub(crate) fn note_heard(&self, pool: &TargetPool, member: Place, version: u32) {
        self.with(pool, |known| {
            if known.version == version {
                known.wanted.remove(&member);
                known.heard.insert(member);
            }
        });
    }

    /// Who serves no more is not asked.
    pub(crate) fn give_up(&self, pool: &TargetPool, member: Place) {
        self.with(pool, |known| known.wanted.remove(&member));
    }

    /// Has all of these asked that haven't said what there is. Whether all have.
    pub(crate) fn have_heard(&self, pool: &TargetPool, members: &[Place]) -> bool {
        let missing: Vec<Place> = self.with(pool, |known| {
            members.iter().filter(|member| !known.heard.contains(*member)).copied().collect()
        });
        for member in &missing {
            self.want(pool, *member);
        }
        missing.is_empty()
    }

    /// Whether this target may go by what it has of the groups that it leads, of those that hold some dkeys of an object, or all of it:
    /// nothing of former leaders is unsettled there.
    pub(crate) fn is_ready(
        &self,
        unsettled: &Unsettled,
        (pool, own): (&TargetPool, Place),
        (object, dkeys): (&ObjectName, Option<&[Key]>),
    ) -> bool {
        if !has_many_members(object.2) || !unsettled.takes_over() {
            return true;
        }
        let led = pool.with_layout(object.2, |layout, map| {
            let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
            let groups: Vec<usize> = match dkeys {
                Some(dkeys) => dkeys.iter().map(|dkey| layout.group_index(dkey.hash())).collect(),
                None => (0..layout.group_count()).collect(),
            };
            let mut led: Vec<(usize, Vec<Place>)> = Vec::new();
            for group in groups {
                let serving: Vec<Place> = layout.serving(group, map).filter_map(place).collect();
                if serving.first() == Some(&own) && led.iter().all(|(known, _)| *known != group) {
                    led.push((group, serving[1..].to_vec()));
                }
            }
            (map.version, led)
        });
        let Ok((version, led)) = led else { return true };
        let mut is_ready = true;
        for (group, others) in led {
            is_ready &= self.have_heard(pool, &others);
            if unsettled.has_left(own, object, group, version) {
                self.woken.notify_one();
                is_ready = false;
            }
        }
        is_ready
    }

    /// Waits for that.
    ///
    /// # Errors
    /// When it isn't so in time.
    pub(crate) async fn ready(
        &self,
        rt: &Handle,
        unsettled: &Unsettled,
        here: (&TargetPool, Place),
        what: (&ObjectName, Option<&[Key]>),
        until: Instant,
    ) -> Result<(), Status> {
        while !self.is_ready(unsettled, here, what) {
            if rt.now() >= until {
                return Err(not_yet(here.0));
            }
            rt.sleep(LOOK).await;
        }
        Ok(())
    }
}

/// The answer of a new leader that doesn't know yet what the one before it has left.
pub(crate) fn not_yet(pool: &TargetPool) -> Status {
    let label = pool.label();
    let message = format!(
        "pool {label}: the new leader of a group of replicas is finding out what the one before it has left"
    );
    Status::new(Der::INPROGRESS, message)
}
