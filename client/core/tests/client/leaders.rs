//! What the targets of a transaction take from those who claim to lead it, on a simulated system.

use crate::cluster;

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use cluster::{Cluster, ENGINE_KEY, FABRIC_PORT, KEY, POOL, open_container, properties};
use weir_client::{
    Conditions, Container, ContainerType, Context, Der, Object, ObjectClass, Restarts, Transaction, kind,
};
use weir_group::{AskError, EngineKeys, Engines, Refusal};
use weir_proto::object::{PunchScope, UpdateReply};
use weir_proto::pool::{GrantRequest, TargetContainerState, TargetPoolMap};
use weir_proto::transaction::{
    Change, CommitRequest, DecideRequest, Declined, Outcome, OutcomeRequest, Part, PrepareRequest,
};
use weir_proto::{Capability, Epoch, ObjectId, Rank, ReaderId, TargetIndex, TransactionId, codec, opcode};
use weir_rpc::{CallOptions, Keys, Peer, Rpc, RpcConfig};
use weir_runtime::sim::Node;
use weir_store::{Decision, Shard, StoreConfig};

const MINUTE: Duration = Duration::from_mins(1);
const SECOND: Duration = Duration::from_secs(1);

/// The target that takes part; the tests are its leader.
const PLACE: (Rank, TargetIndex) = (Rank(0), TargetIndex(0));
const LEADER: (Rank, TargetIndex) = (Rank(1), TargetIndex(0));

/// A change that every target can make.
fn change(object: u64) -> Change {
    let object = ObjectId { hi: u64::from(kind::MULTI_HASHED) << 56, lo: object };
    Change::Punch { object, scope: PunchScope::Object, conditions: Conditions::NONE }
}

fn epoch(context: &Context) -> Epoch {
    let wall = context.runtime().wall_ns();
    Epoch(context.rpc().clock().now(wall).0)
}

fn shard(cluster: &Cluster, container: &Container) -> Shard {
    cluster.targets(0)[0].store().pool(container.pool().id()).expect("it has a shard")
}

/// The door of an engine that a test plays itself, on one of the world's nodes: where that is the engine's own, and the
/// engine away, others find it there.
pub fn play(cluster: &Cluster, rank: u32, node: &Node) -> Rc<Engines> {
    let rt = node.handle();
    let port = (node.name() == cluster.engine(rank).name()).then_some(FABRIC_PORT);
    let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
    let rpc = Rpc::new(rt.clone(), cluster.fabric.endpoint(node, port), config);
    let keys = EngineKeys { system: KEY, engines: ENGINE_KEY };
    Engines::new(rt, rpc, keys, (Rank(rank), TargetIndex(0)), cluster.infos().into()).expect("a good list")
}

/// Three engines, the second one of which is away, so that the test can play it, and a container that the first one
/// knows.
fn begin(seed: u64) -> (Cluster, Context, Container) {
    let cluster = Cluster::start(seed, 3, 1);
    let context = cluster.context(MINUTE);
    let (setup, leader) = (context.clone(), play(&cluster, 1, &cluster.client));
    let container = cluster.run(async move {
        let container = open_container(&setup, properties("box", ContainerType::Object)).await;
        let first = Led::new(&setup, &container, u64::MAX);
        first.prepare(&leader, container.pool().map().version).await.expect("prepares");
        first.decide(&leader, Outcome::Aborted).await.expect("it is given up");
        container
    });
    cluster.crash(1);
    (cluster, context, container)
}

/// A transaction that a test leads.
#[derive(Clone)]
struct Led {
    container: Container,
    id: TransactionId,
    epoch: Epoch,
}

impl Led {
    fn new(context: &Context, container: &Container, number: u64) -> Self {
        Self {
            container: container.clone(),
            id: TransactionId::new(LEADER, ReaderId(number)),
            epoch: epoch(context),
        }
    }

    async fn prepare(&self, engines: &Engines, map_version: u32) -> Result<(), Declined> {
        let request = PrepareRequest {
            pool: self.container.pool().id(),
            container: self.container.id(),
            map_version,
            transaction: self.id,
            epoch: self.epoch,
            changes: vec![change(1)],
        };
        let (rank, index) = PLACE;
        let asked = engines.ask(rank, index, opcode::TARGET_TRANSACTION_PREPARE, &request, SECOND);
        asked.await.expect("it answers")
    }

    async fn decide(&self, engines: &Engines, outcome: Outcome) -> Result<(), AskError> {
        let (pool, container) = (self.container.pool().id(), self.container.id());
        let request = DecideRequest { pool, container, transaction: self.id, outcome };
        let (rank, index) = PLACE;
        engines.ask(rank, index, opcode::TARGET_TRANSACTION_DECIDE, &request, SECOND).await
    }
}

#[test]
fn a_target_prepares_nothing_that_was_placed_by_an_older_map_than_its_own() {
    let (cluster, context, container) = begin(1);
    let leader = play(&cluster, 1, cluster.engine(1));
    cluster.run(async move {
        let led = Led::new(&context, &container, 1);
        let version = container.pool().map().version;
        let declined = led.prepare(&leader, version - 1).await.expect_err("it is older");
        assert_eq!(declined.der, Der::STALE, "{declined:?}");
        led.prepare(&leader, version + 1).await.expect("the target hears of a newer one later");
    });
}

fn capability(container: &Container) -> Capability {
    codec::decode_prefix::<Capability>(&container.to_bytes()).expect("it is first").0
}

/// Has the target of the tests commit a transaction.
async fn commit(context: &Context, request: &CommitRequest) -> Result<UpdateReply, Der> {
    commit_within(context, 10 * SECOND, request).await
}

async fn commit_within(
    context: &Context,
    limit: Duration,
    request: &CommitRequest,
) -> Result<UpdateReply, Der> {
    let engine = context.attach().engine(PLACE.0).expect("it is listed").clone();
    let peer = Peer::new(&engine.host, engine.fabric_port);
    let options = CallOptions::within(context.runtime(), limit);
    let body = codec::encode(request);
    let called = context.rpc().call(&peer, opcode::TRANSACTION_COMMIT, &body, None, options).await;
    called.map(|reply| codec::decode(&reply).expect("an epoch")).map_err(|error| error.der())
}

#[test]
fn a_transaction_has_no_parts_for_targets_outside_its_pool() {
    let cluster = Cluster::start_empty(2, 2, 1, StoreConfig::default());
    cluster.create_pool(POOL, 48 << 20, vec![0]);
    let context = cluster.context(MINUTE);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let capability = capability(&container);
        let commit_to = async |number, others: &[(u32, u32)]| {
            let places = [(0, 0)].into_iter().chain(others.iter().copied());
            let part = |(rank, index)| Part {
                rank: Rank(rank),
                index: TargetIndex(index),
                changes: vec![change(number)],
            };
            let request = CommitRequest {
                capability: capability.clone(),
                map_version: container.pool().map().version,
                transaction: TransactionId::new(PLACE, ReaderId(number)),
                epoch: epoch(&context),
                parts: places.map(part).collect(),
            };
            commit(&context, &request).await
        };
        // One engine has no part of the pool, the other no such target.
        assert_eq!(commit_to(1, &[(1, 0)]).await.expect_err("not of the pool"), Der::INVAL);
        assert_eq!(commit_to(2, &[(0, 7)]).await.expect_err("there is none"), Der::INVAL);
        commit_to(3, &[]).await.expect("its own target is fine");
    });
}

#[test]
fn only_who_leads_a_transaction_decides_it() {
    let (cluster, context, container) = begin(3);
    let (leader, other) = (play(&cluster, 1, cluster.engine(1)), play(&cluster, 2, &cluster.client));
    let shard = shard(&cluster, &container);
    cluster.run(async move {
        let led = Led::new(&context, &container, 1);
        led.prepare(&leader, container.pool().map().version).await.expect("prepares");
        for outcome in [Outcome::Aborted, Outcome::Committed] {
            let refused = led.decide(&other, outcome).await.expect_err("somebody else leads it");
            assert_eq!(refused.der(), Der::INVAL, "{refused}");
            assert_eq!(shard.decision(container.id(), led.id).await, Ok(None));
        }
        led.decide(&leader, Outcome::Committed).await.expect("it leads it");
        let decision = shard.decision(container.id(), led.id).await;
        assert_eq!(decision, Ok(Some(Decision::Committed(led.epoch))));
    });
}

#[test]
fn a_target_answers_for_what_it_leads_only() {
    let (cluster, context, container) = begin(4);
    let leader = play(&cluster, 1, cluster.engine(1));
    let shard = shard(&cluster, &container);
    cluster.run(async move {
        let led = Led::new(&context, &container, 1);
        led.prepare(&leader, container.pool().map().version).await.expect("prepares");
        let (pool, transaction) = (container.pool().id(), led.id);
        let request = OutcomeRequest { pool, container: container.id(), transaction };
        let asked = leader.ask::<_, Option<Outcome>>(
            PLACE.0,
            PLACE.1,
            opcode::TARGET_TRANSACTION_OUTCOME,
            &request,
            SECOND,
        );
        assert_eq!(asked.await.expect_err("another target leads it").der(), Der::INVAL);
        assert_eq!(shard.decision(container.id(), led.id).await, Ok(None), "it gives up what it leads only");
    });
}

#[test]
fn what_is_prepared_again_and_again_is_asked_for_once_at_a_time() {
    let (cluster, context, container) = begin(5);
    let leader = play(&cluster, 1, cluster.engine(1));
    let shard = shard(&cluster, &container);
    cluster.run(async move {
        let asked = Rc::new(Cell::new(0));
        let (count, decided) = (Rc::clone(&asked), Rc::new(Cell::new(None)));
        let outcome = Rc::clone(&decided);
        leader.serve(opcode::TARGET_TRANSACTION_OUTCOME, move |_, _: OutcomeRequest| {
            count.set(count.get() + 1);
            let outcome = outcome.get();
            async move { Ok::<_, Refusal>(outcome) }
        });
        let version = container.pool().map().version;
        let led = Led::new(&context, &container, 1);
        for _ in 0..10 {
            led.prepare(&leader, version).await.expect("prepares");
        }
        context.runtime().sleep(5 * SECOND).await;
        assert_eq!(asked.get(), 2, "after one second, and two more");
        decided.set(Some(Outcome::Committed));
        context.runtime().sleep(10 * SECOND).await;
        assert_eq!(asked.get(), 3);
        let decision = shard.decision(container.id(), led.id).await;
        assert_eq!(decision, Ok(Some(Decision::Committed(led.epoch))));
        // The next one has a watcher, too.
        let next = Led::new(&context, &container, 2);
        next.prepare(&leader, version).await.expect("prepares");
        context.runtime().sleep(2 * SECOND).await;
        assert_eq!(asked.get(), 4);
        let decision = shard.decision(container.id(), next.id).await;
        assert_eq!(decision, Ok(Some(Decision::Committed(next.epoch))));
    });
}

/// The rank that serves the pool of a container: the one who asks, if none of the others does.
async fn service_of(asking: &Engines, own: Rank, container: &Container) -> Rank {
    let (pool, index) = (container.pool().id(), TargetIndex(0));
    let request = GrantRequest { pool, container: container.id(), index, used: 0, wanted: 0 };
    let opcode = opcode::TARGET_CONTAINER_GRANT;
    for rank in (0..3).map(Rank).filter(|rank| *rank != own) {
        match asking.ask::<_, TargetContainerState>(rank, index, opcode, &request, SECOND).await {
            Ok(_) => return rank,
            Err(error) => assert_eq!(error.der(), Der::NOTLEADER, "{error}"),
        }
    }
    own
}

#[test]
fn who_commits_by_an_old_map_that_its_leader_goes_by_too_fetches_the_new_one_and_starts_again() {
    let cluster = Cluster::start(6, 3, 1);
    let context = cluster.context(MINUTE);
    let others = [0, 1, 2].map(|rank| play(&cluster, rank, &cluster.client));
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let service = service_of(&others[0], Rank(0), &container).await;
        // It tells the two that it isn't itself.
        let left_out = (service.0 + 1) % 3;
        let other = &others[left_out as usize];
        let mut map = container.pool().map().clone();
        let mut objects = Vec::new();
        for _ in 0..12 {
            let oid = container.new_object_id(&context, kind::MULTI_HASHED, Some(ObjectClass::S1)).await;
            objects.push(Object::open(&container, oid.expect("an id")).expect("opens"));
        }
        let mut restarted = 0;
        for _ in 0..objects.len() {
            // The next version reaches all but one: where that one leads, it can't know that the map is old.
            map.version += 1;
            let news = TargetPoolMap { pool: container.pool().id(), map: map.clone() };
            for rank in (0..3).map(Rank).filter(|rank| rank.0 != left_out) {
                let told = other.ask::<_, ()>(rank, TargetIndex(0), opcode::TARGET_POOL_MAP, &news, SECOND);
                told.await.expect("it takes the map");
            }
            objects.rotate_left(1);
            let mut restarts = Restarts::new(&context);
            loop {
                let mut transaction = Transaction::begin(&context, &container);
                for object in &objects {
                    transaction.punch(object).expect("well formed");
                }
                let Err(error) = transaction.commit(&context).await else { break };
                restarts.again(&context, error).await.expect("only that");
                restarted += 1;
            }
        }
        assert!((1..12).contains(&restarted), "{restarted}: once where that one leads");
    });
}

#[test]
fn what_a_client_has_given_up_is_not_begun_later() {
    let mut has_waited = false;
    for seed in 10..14 {
        let cluster = Rc::new(Cluster::start(seed, 3, 1));
        let context = cluster.context(MINUTE);
        let (asking, of_run) = (play(&cluster, 0, &cluster.client), Rc::clone(&cluster));
        has_waited |= cluster.run(async move {
            let container = open_container(&context, properties("box", ContainerType::Object)).await;
            if service_of(&asking, PLACE.0, &container).await == PLACE.0 {
                return false;
            }
            let request = CommitRequest {
                capability: capability(&container),
                map_version: container.pool().map().version,
                transaction: TransactionId::new(PLACE, ReaderId(1)),
                epoch: epoch(&context),
                parts: vec![Part { rank: PLACE.0, index: PLACE.1, changes: vec![change(1)] }],
            };
            // The leader has yet to learn of the container, and hears nothing for longer than the client waits.
            of_run.fabric.partition(&[of_run.engine(0)], &[of_run.engine(1), of_run.engine(2)]);
            let together = Rc::clone(&of_run);
            of_run.world.schedule(3 * SECOND, move || together.fabric.heal());
            let lost = commit_within(&context, 2 * SECOND, &request).await;
            assert!(lost.is_err(), "seed {seed}: {lost:?}");
            context.runtime().sleep(20 * SECOND).await;
            let shard = shard(&of_run, &container);
            assert!(
                shard.containers().iter().any(|known| known.container == container.id()),
                "it has learnt"
            );
            assert_eq!(shard.decision(container.id(), request.transaction).await, Ok(None), "seed {seed}");
            true
        });
    }
    assert!(has_waited, "the leader had the pool's service itself each time");
}

#[test]
fn what_is_prepared_waits_for_a_leader_that_stays_away_and_takes_its_word_when_it_comes() {
    let (cluster, context, container) = begin(7);
    let shard = shard(&cluster, &container);
    let led = {
        let (context, container) = (context.clone(), container.clone());
        let leader = play(&cluster, 1, &cluster.client);
        cluster.run(async move {
            let led = Led::new(&context, &container, 1);
            led.prepare(&leader, container.pool().map().version).await.expect("prepares");
            context.runtime().sleep(30 * MINUTE).await;
            led
        })
    };
    let id = container.id();
    let waiting = shard.clone();
    let undecided = cluster.run(async move { waiting.undecided(id).await });
    assert_eq!(undecided, Ok(vec![(led.id, led.epoch)]), "nobody knows what the leader has noted");
    // What it finds on its device when it comes: it was prepared nowhere, and not noted.
    cluster.boot(1);
    let decision = cluster.run(async move {
        context.runtime().sleep(20 * SECOND).await;
        shard.decision(id, led.id).await
    });
    assert_eq!(decision, Ok(Some(Decision::Aborted)));
}

#[test]
fn a_leader_that_has_nothing_of_the_pool_any_more_gives_up_what_it_led() {
    let cluster = Cluster::start_empty(8, 2, 1, StoreConfig::default());
    cluster.create_pool(POOL, 48 << 20, vec![0]);
    let context = cluster.context(MINUTE);
    let asking = play(&cluster, 0, &cluster.client);
    cluster.run(async move {
        let container = open_container(&context, properties("box", ContainerType::Object)).await;
        let (pool, transaction) = (container.pool().id(), TransactionId::new(LEADER, ReaderId(1)));
        let request = OutcomeRequest { pool, container: container.id(), transaction };
        let (rank, index) = LEADER;
        let opcode = opcode::TARGET_TRANSACTION_OUTCOME;
        let outcome = asking.ask::<_, Option<Outcome>>(rank, index, opcode, &request, SECOND).await;
        assert_eq!(outcome, Ok(Some(Outcome::Aborted)));
    });
}

#[test]
fn who_has_heard_that_a_transaction_is_given_up_never_hears_that_it_is_committed() {
    for seed in 0..40 {
        let (cluster, context, container) = begin(100 + seed);
        let cluster = Rc::new(cluster);
        let other = play(&cluster, 1, cluster.engine(1));
        let told = Rc::new(core::cell::RefCell::new(Vec::new()));
        let heard = Rc::clone(&told);
        let may_prepare = Rc::new(Cell::new(false));
        let accepts = Rc::clone(&may_prepare);
        other.serve(opcode::TARGET_TRANSACTION_PREPARE, move |_, _: PrepareRequest| {
            let declined = Declined { der: Der::TX_RESTART, message: "it comes too late".into() };
            let answer: Result<(), Declined> = if accepts.get() { Ok(()) } else { Err(declined) };
            async move { Ok::<_, Refusal>(answer) }
        });
        // The leader dies as soon as somebody has heard of its decision.
        let leader = Rc::clone(&cluster);
        other.serve(opcode::TARGET_TRANSACTION_DECIDE, move |_, request: DecideRequest| {
            if heard.borrow().is_empty() {
                let dying = Rc::clone(&leader);
                leader.world.schedule(Duration::ZERO, move || dying.crash(0));
            }
            heard.borrow_mut().push(request.outcome);
            async move { Ok::<_, Refusal>(()) }
        });
        let part = |place: (Rank, TargetIndex), object| Part {
            rank: place.0,
            index: place.1,
            changes: vec![change(object)],
        };
        let request = Rc::new(CommitRequest {
            capability: capability(&container),
            map_version: container.pool().map().version,
            transaction: TransactionId::new(PLACE, ReaderId(7)),
            epoch: epoch(&context),
            parts: vec![part(PLACE, 1), part(LEADER, 2)],
        });
        let (first, asked) = (context.clone(), Rc::clone(&request));
        cluster.client.handle().spawn(async move { commit(&first, &asked).await });
        for _ in 0..500 {
            cluster.world.run_for(Duration::from_millis(10));
            if !told.borrow().is_empty() {
                break;
            }
        }
        assert_eq!(*told.borrow(), [Outcome::Aborted]);
        may_prepare.set(true);
        cluster.boot(0);
        cluster.run(async move {
            // Whoever asks again has not got the first answer.
            let again = commit(&context, &request).await;
            context.runtime().sleep(SECOND).await;
            let told = told.borrow();
            assert!(!told.contains(&Outcome::Committed), "seed {seed}: {again:?} {told:?}");
        });
    }
}
