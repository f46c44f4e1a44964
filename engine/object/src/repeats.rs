//! Changes that a client sends again after this target was restarted.
//!
//! While a target runs, its RPC layer executes each request once however often it comes. To keep that promise over
//! a restart, a change stores the identity of its request in the same log record. An identity is forgotten, along
//! with a later change, once the client says that it has finished with the request; those of clients that have
//! fallen silent are swept when the request's deadline has passed.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::PoolId;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_rpc::Request;
use weir_runtime::Handle;
use weir_store::{AttributeChange, Shard};

/// Scope of the attributes that hold identities.
const SCOPE: &[u8] = b"request";

/// Most identities that one change forgets: bounds its log record. Each change adds one, so this catches up.
const FORGET_MAX: usize = 8;

/// Most identities of a pool that a sweep forgets in one record.
const SWEEP_MAX: usize = 1024;

/// How long after a request's deadline its identity is kept: the clocks of client and target may differ.
const GRACE: Duration = Duration::from_nanos(2 * SKEW_MAX_NS);

/// A request of a client: incarnation of the client, and its number.
type Identity = (u64, u64);

#[derive(Default)]
struct PoolRepeats {
    /// Executed before the restart.
    executed: HashSet<Identity>,
    /// Stored identities with the wall time, in nanoseconds, until which they are kept: by client and number.
    stored: HashMap<u64, BTreeMap<u64, u64>>,
}

/// Identities of executed changes, by pool.
#[derive(Default)]
pub struct Repeats {
    pools: RefCell<HashMap<PoolId, PoolRepeats>>,
}

/// What a change stores and forgets beside its own effect.
pub struct Marks {
    identity: Identity,
    until: u64,
    forgotten: Vec<u64>,
    /// To be committed with the change.
    pub along: Vec<AttributeChange>,
}

impl Repeats {
    /// Whether the change was executed before the target was restarted.
    pub fn is_executed(&self, pool: &TargetPool, request: &Request) -> bool {
        self.with(pool, |repeats| repeats.executed.contains(&identity(request)))
    }

    /// What to store with the change that `request` asks for.
    pub fn marks(&self, rt: &Handle, pool: &TargetPool, request: &Request) -> Marks {
        let identity = identity(request);
        let left = request.deadline().saturating_duration_since(rt.now()) + GRACE;
        let until = rt.wall_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let forgotten: Vec<u64> = self.with(pool, |repeats| {
            let stored = repeats.stored.get(&identity.0);
            let finished = stored.into_iter().flat_map(|stored| stored.range(..request.acked()));
            finished.map(|(number, _)| *number).take(FORGET_MAX).collect()
        });
        let mut along = vec![change(identity, Some(until))];
        along.extend(forgotten.iter().map(|number| change((identity.0, *number), None)));
        Marks { identity, until, forgotten, along }
    }

    /// The change was committed.
    pub fn committed(&self, pool: &TargetPool, marks: &Marks) {
        self.with(pool, |repeats| {
            let stored = repeats.stored.entry(marks.identity.0).or_default();
            for number in &marks.forgotten {
                stored.remove(number);
                repeats.executed.remove(&(marks.identity.0, *number));
            }
            stored.insert(marks.identity.1, marks.until);
        });
    }

    fn with<T>(&self, pool: &TargetPool, work: impl FnOnce(&mut PoolRepeats) -> T) -> T {
        let mut pools = self.pools.borrow_mut();
        work(pools.entry(pool.id()).or_insert_with(|| load(pool.shard())))
    }

    /// Forgets identities whose requests can't come again, and pools that are gone.
    pub async fn sweep(&self, rt: &Handle, pools: &[std::rc::Rc<TargetPool>]) {
        self.pools.borrow_mut().retain(|id, _| pools.iter().any(|pool| pool.id() == *id));
        for pool in pools {
            // A client that fell silent may have left very many.
            while self.sweep_some(rt, pool).await {}
        }
    }

    /// Forgets some of a pool's old identities. Returns whether there are more.
    async fn sweep_some(&self, rt: &Handle, pool: &TargetPool) -> bool {
        let now = rt.wall_ns();
        let old: Vec<Identity> = self.with(pool, |repeats| {
            let all = repeats.stored.iter().flat_map(|(client, numbers)| {
                numbers.iter().map(move |(number, until)| ((*client, *number), *until))
            });
            all.filter(|(_, until)| *until < now).map(|(identity, _)| identity).take(SWEEP_MAX).collect()
        });
        if old.is_empty() {
            return false;
        }
        let changes: Vec<_> = old.iter().map(|identity| change(*identity, None)).collect();
        if let Err(error) = pool.shard().change_attributes(&changes).await {
            tracing::debug!(pool = %pool.id(), %error, "identities of old requests stay until the next sweep");
            return false;
        }
        self.with(pool, |repeats| {
            for (client, number) in &old {
                repeats.executed.remove(&(*client, *number));
                if let Some(numbers) = repeats.stored.get_mut(client) {
                    numbers.remove(number);
                }
            }
            repeats.stored.retain(|_, numbers| !numbers.is_empty());
        });
        old.len() == SWEEP_MAX
    }
}

fn identity(request: &Request) -> Identity {
    (request.client().id.bits(), request.id())
}

fn change(identity: Identity, until: Option<u64>) -> AttributeChange {
    let name = [identity.0.to_be_bytes(), identity.1.to_be_bytes()].concat();
    AttributeChange { scope: SCOPE.to_vec(), name, value: until.map(|until| until.to_be_bytes().to_vec()) }
}

/// What was stored before the target was started.
fn load(shard: &Shard) -> PoolRepeats {
    let mut repeats = PoolRepeats::default();
    let mut from = Vec::new();
    loop {
        let page = shard.attributes(SCOPE, &from, SWEEP_MAX);
        let Some((last, _)) = page.last() else { return repeats };
        // The least name greater than the last one.
        from = [last.as_slice(), &[0]].concat();
        for (name, value) in page {
            let (Some((client, number)), Ok(until)) = (split(&name), value.try_into()) else { continue };
            repeats.executed.insert((client, number));
            repeats.stored.entry(client).or_default().insert(number, u64::from_be_bytes(until));
        }
    }
}

fn split(name: &[u8]) -> Option<Identity> {
    let (client, number) = name.split_at_checked(8)?;
    Some((u64::from_be_bytes(client.try_into().ok()?), u64::from_be_bytes(number.try_into().ok()?)))
}
