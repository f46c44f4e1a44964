//! Figures of a target as plain data that crosses threads. The metrics exporter asks targets for them.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_fabric::Capabilities;
use weir_group::Roster;
use weir_media::health::DeviceHealth;
use weir_object::{IoService, LatencyCounts};
use weir_pool::{OPERATIONS, PoolService, TargetPool};
use weir_proto::group::MemberState;
use weir_proto::{ContainerId, Der, Epoch};
use weir_rpc::membership::swim::SwimStats;
use weir_rpc::membership::{Membership, ProbeTimes};
use weir_store::{ScrubReport, StoreStats};

use crate::target::Target;

/// Most containers of which a target's counters are exported one by one; the others count together
/// (`docs/reference/metrics.md`, cardinality budget).
const CONTAINERS_MAX: usize = 256;

/// Label of the containers beyond [`CONTAINERS_MAX`].
const OTHER: &str = "other";

/// How old the figures of a whole pool may be: scrapes come every few seconds, and asking all targets for each
/// would multiply them.
const POOL_AGE: Duration = Duration::from_secs(5);

/// Counters of a container on a target.
#[derive(Clone, Debug, Default)]
pub struct ContainerFigures {
    /// Operations answered, by kind.
    pub operations: [u64; OPERATIONS],
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Errors by number.
    pub errors: BTreeMap<Der, u64>,
}

/// Space of a pool on a target, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardFigures {
    /// The pool's share.
    pub total: u64,
    /// Taken.
    pub used: u64,
    /// Not taken.
    pub free: u64,
    /// Waits to be reclaimed.
    pub pending: u64,
    /// Kept for what isn't written yet.
    pub reserved: u64,
}

/// A container as its pool's service knows it.
#[derive(Clone, Debug)]
pub struct ServedContainer {
    /// Label.
    pub label: String,
    /// Quota in bytes; 0 for none.
    pub quota: u64,
    /// Bytes in use.
    pub used: u64,
    /// Open handles.
    pub handles: u32,
    /// Namespace and name of the claim that the CSI driver made it for.
    pub claim: Option<(String, String)>,
}

/// A pool whose service runs on the target.
#[derive(Clone, Debug)]
pub struct ServedPool {
    /// Label.
    pub label: String,
    /// Number of its tenant.
    pub tenant: u64,
    /// Bytes it may hold.
    pub size: u64,
    /// Bytes in use on the targets that answered.
    pub used: u64,
    /// Engines that did not answer.
    pub unreachable: usize,
    /// Targets that are out of service.
    pub down: usize,
    /// Engines are away that it can't do without.
    pub beyond_redundancy: bool,
    /// Version of its map.
    pub map_version: u32,
    /// Its containers.
    pub containers: Vec<ServedContainer>,
}

/// Figures of a target.
#[derive(Clone, Debug, Default)]
pub struct TargetFigures {
    /// CPU time of its thread.
    pub busy: Duration,
    /// Counters by pool and container label.
    pub containers: BTreeMap<(String, String), ContainerFigures>,
    /// Space by pool label.
    pub shards: BTreeMap<String, ShardFigures>,
    /// Request times by kind of operation.
    pub latency: [LatencyCounts; OPERATIONS],
    /// Requests refused because the target held no lease of a pool's map.
    pub without_lease: u64,
    /// Requests that waited since their tenant's clients may go no faster, and of these those that were sent away.
    pub paced: (u64, u64),
    /// Changes that aren't known to be at all replicas, and the epoch of the oldest one.
    pub unsettled: (u64, Epoch),
    /// Requests to others that wait for their replies.
    pub in_flight: u64,
    /// Messages and requests whose authentication was wrong, and replays.
    pub unauthenticated: u64,
    /// The store.
    pub store: StoreStats,
    /// What it held is not on its device.
    pub lost: bool,
    /// How its device is doing.
    pub health: DeviceHealth,
    /// Its scrubber.
    pub scrub: ScrubReport,
    /// Damaged versions that were repaired with another replica's data, and those that could not be so far.
    pub repairs: (u64, u64),
    /// Data that it gets from others, or gives them.
    pub rebuild: RebuildFigures,
    /// Places found rotten, by pool label; empty for what belongs to the target as a whole.
    pub rotten: BTreeMap<String, u64>,
    /// RPC counters by name.
    pub rpc: BTreeMap<&'static str, u64>,
    /// Counters of the fabric endpoint by name.
    pub endpoint: BTreeMap<&'static str, u64>,
    /// What the fabric provider can do.
    pub fabric: Option<Capabilities>,
    /// Pools whose service runs here.
    pub served: Vec<ServedPool>,
    /// Which engines are alive; only target 0 knows.
    pub membership: Option<MembershipFigures>,
}

/// Data that a target gets from others, or gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RebuildFigures {
    /// Pools of which it gets data at this moment.
    pub running: u64,
    /// Times that it has got all that it lacked of a pool.
    pub ended: u64,
    /// Bytes of data that it has got.
    pub bytes: u64,
    /// Most of its time that it works for rebuilds, by how long its clients wait, in percent.
    pub share_percent: u64,
}

impl RebuildFigures {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 1 in percent")]
    fn of(io: &IoService) -> Self {
        let (running, ended) = io.rebuilds();
        let share_percent = (io.rebuild_share() * 100.0).round() as u64;
        Self { running: running.len() as u64, ended, bytes: io.rebuilt_bytes(), share_percent }
    }
}

/// What target 0 knows of the other engines.
#[derive(Clone, Debug, Default)]
pub struct MembershipFigures {
    /// Engines by state, in the order of [`MemberState::ALL`]; this one counts too.
    pub states: [u64; MemberState::ALL.len()],
    /// Which life of this engine.
    pub incarnation: u64,
    /// How badly this engine itself is doing, 0 to 8.
    pub health: u32,
    /// What happened so far.
    pub stats: SwimStats,
    /// How long answers took.
    pub times: ProbeTimes,
    /// The list of engines.
    pub group: GroupFigures,
}

/// Which list of engines target 0 goes by.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupFigures {
    /// Its version.
    pub version: u64,
    /// Requests refused for another version.
    pub refused: u64,
    /// Newer lists taken over.
    pub adopted: u64,
}

impl MembershipFigures {
    fn of(membership: &Membership, roster: &Roster) -> Self {
        let mut states = [0; MemberState::ALL.len()];
        for member in membership.members() {
            states[member.state as usize] += 1;
        }
        Self {
            states,
            incarnation: membership.incarnation(),
            health: membership.health(),
            stats: membership.stats(),
            times: membership.probe_times(),
            group: GroupFigures {
                version: roster.version(),
                refused: roster.refused(),
                adopted: roster.adopted(),
            },
        }
    }
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
}

/// Takes a target's figures, on its thread.
pub async fn take(target: &Target) -> TargetFigures {
    let (unsettled, oldest) = target.io.unsettled();
    let mut figures = TargetFigures {
        busy: thread_time(),
        latency: target.io.metrics().latency(),
        without_lease: target.io.metrics().without_lease(),
        paced: target.io.paced(),
        unsettled: (unsettled, oldest.unwrap_or(Epoch::ZERO)),
        in_flight: target.rpc.in_flight() as u64,
        unauthenticated: target.pools.engines().forged() + target.rpc.metrics().unauthenticated.get(),
        store: target.store.stats(),
        lost: target.pools.lost().is_some(),
        health: target.store.device_health().unwrap_or_default(),
        scrub: target.store.scrub(),
        repairs: target.io.repairs(),
        rebuild: RebuildFigures::of(&target.io),
        rpc: target.rpc.metrics().all().into_iter().collect(),
        endpoint: target.rpc.endpoint().counters().all().into_iter().collect(),
        fabric: Some(target.rpc.endpoint().capabilities().clone()),
        membership: target
            .membership()
            .map(|membership| MembershipFigures::of(membership, target.pools.engines().roster())),
        ..TargetFigures::default()
    };
    let mut rotten = figures.scrub.rotten.clone();
    figures.rotten.insert(String::new(), rotten.remove(&None).unwrap_or(0));
    let mut room = CONTAINERS_MAX;
    for pool in target.pools.all() {
        let label = pool.label();
        count_containers(&pool, &label, &mut room, &mut figures);
        figures.rotten.insert(label.clone(), rotten.remove(&Some(pool.shard().id())).unwrap_or(0));
        let space = pool.shard().space();
        let pending = space.containers.iter().filter(|summary| summary.destroying);
        let shard = ShardFigures {
            total: space.total,
            used: space.total.saturating_sub(space.free),
            free: space.free,
            pending: pending.map(|summary| summary.used).sum(),
            reserved: space.reserved,
        };
        figures.shards.insert(label, shard);
        if let Some(service) = target.pools.own_service(pool.id())
            && let Some(served) = served(&service).await
        {
            figures.served.push(served);
        }
    }
    figures
}

fn count_containers(pool: &TargetPool, label: &str, room: &mut usize, figures: &mut TargetFigures) {
    for container in pool.containers() {
        let counters = &container.counters;
        let operations = counters.operations();
        if operations.iter().all(|count| *count == 0) {
            continue;
        }
        let name = if *room == 0 { OTHER.to_owned() } else { container.label.borrow().clone() };
        *room = room.saturating_sub(1);
        let sum = figures.containers.entry((label.to_owned(), name)).or_default();
        for (total, count) in sum.operations.iter_mut().zip(operations) {
            *total += count;
        }
        let (written, read) = counters.bytes();
        sum.written += written;
        sum.read += read;
        for (der, count) in counters.errors() {
            *sum.errors.entry(der).or_default() += count;
        }
    }
}

/// Attributes in which the CSI driver keeps the claim of a container (`csi/volume/parameters.go`).
const CLAIM_ATTRIBUTES: [&str; 2] = ["csi.weir.dev/pvc-namespace", "csi.weir.dev/pvc-name"];

/// The claim of a container. What isn't text, or longer than a name of Kubernetes, is none.
fn claim(service: &PoolService, container: ContainerId) -> Option<(String, String)> {
    const NAME_BYTES_MAX: usize = 253;
    let mut attributes = service.attributes_of(container);
    let [namespace, name] = CLAIM_ATTRIBUTES.map(|attribute| {
        let value = String::from_utf8(attributes.remove(attribute)?.into_vec()).ok()?;
        (value.len() <= NAME_BYTES_MAX).then_some(value)
    });
    Some((namespace?, name?))
}

async fn served(service: &PoolService) -> Option<ServedPool> {
    let record = service.pool().ok()?;
    let gathered = service.gathered(POOL_AGE).await.ok()?;
    let (total, free) = gathered.total_and_free();
    let containers = service.list_within(POOL_AGE).await.ok()?.into_iter().map(|info| ServedContainer {
        used: gathered.used_by(info.container),
        claim: claim(service, info.container),
        label: info.properties.label,
        quota: info.properties.quota,
        handles: info.handles,
    });
    Some(ServedPool {
        label: record.label,
        tenant: record.tenant.0,
        size: record.size.saturating_mul(record.map.targets.len() as u64),
        used: total.saturating_sub(free),
        unreachable: gathered.unreachable.len(),
        down: record.map.down().count(),
        beyond_redundancy: service.is_beyond_redundancy(),
        map_version: record.map.version,
        containers: containers.take(CONTAINERS_MAX).collect(),
    })
}
