//! Pools and containers over gRPC: what works, what is refused, and how it is said.

use tonic::Code;
use weir_management::{Failure, failure_of, v1};
use weir_proto::Der;

use crate::system::System;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn pool(label: &str, mib: u64) -> v1::PoolCreateRequest {
    v1::PoolCreateRequest {
        label: label.to_owned(),
        size_bytes: mib << 20,
        ..v1::PoolCreateRequest::default()
    }
}

fn container(pool: &str, label: &str) -> v1::ContainerCreateRequest {
    v1::ContainerCreateRequest {
        pool: pool.to_owned(),
        label: label.to_owned(),
        r#type: v1::ContainerType::Posix.into(),
        ..v1::ContainerCreateRequest::default()
    }
}

#[test]
fn pools_and_containers_live_from_creation_to_destruction() {
    let system = System::start(3, 1);
    runtime().block_on(async {
        let attached = system.system(2).attach(v1::AttachRequest {}).await.expect("an answer").into_inner();
        assert_eq!((attached.system.as_str(), attached.engines.len()), ("test", 3));
        // Every engine takes every request, and of two at once one makes the pool.
        let (mut pools, mut others) = (system.pools(1), system.pools(2));
        let both = tokio::join!(pools.create(pool("tank", 3 * 64)), others.create(pool("tank", 3 * 64)));
        let (one, other) = (both.0.expect("room").into_inner(), both.1.expect("the same").into_inner());
        assert!(one.existed != other.existed, "{one:?} {other:?}");
        let (made, again) = (one.pool.expect("it"), other.pool.expect("it"));
        assert_eq!((made.uuid.clone(), made.state()), (again.uuid, v1::PoolState::Ready));
        assert_eq!(
            (made.ranks.as_slice(), made.targets, made.object_class.as_str()),
            ([0, 1, 2].as_slice(), 3, "SX")
        );

        for rank in 0..3 {
            let label = format!("home-{rank}");
            let request = v1::ContainerCreateRequest {
                quota_bytes: 10 << 20,
                attributes: [("claim".to_owned(), "team/data".to_owned())].into(),
                ..container("tank", &label)
            };
            let made = system.containers(rank).create(request.clone()).await.expect("room").into_inner();
            let again = system.containers(0).create(request).await.expect("the same").into_inner();
            assert_eq!((made.existed, again.existed), (false, true));
            let made = made.container.expect("it");
            assert_eq!(again.container.expect("it").uuid, made.uuid);
            let query = v1::ContainerQueryRequest { pool: "tank".to_owned(), container: made.uuid.clone() };
            let found =
                system.containers(2).query(query).await.expect("it").into_inner().container.expect("it");
            assert_eq!(
                (found.label.as_str(), found.quota_bytes, found.pool_label.as_str()),
                (label.as_str(), 10 << 20, "tank")
            );
            assert_eq!(found.attributes.get("claim").map(String::as_str), Some("team/data"));
            assert!(found.created_unix_seconds > 1_700_000_000 && found.chunk_size_bytes == 1 << 20);
        }
        let list = v1::ContainerListRequest { pool: made.uuid.clone() };
        let listed = system.containers(1).list(list).await.expect("a list").into_inner().containers;
        assert_eq!(
            listed.iter().map(|one| one.label.as_str()).collect::<Vec<_>>(),
            ["home-0", "home-1", "home-2"]
        );

        change_and_destroy(&system).await;
    });
}

async fn change_and_destroy(system: &System) {
    let raise = v1::ContainerSetQuotaRequest {
        pool: "tank".to_owned(),
        container: "home-0".to_owned(),
        quota_bytes: 20 << 20,
    };
    let raised = system.containers(0).set_quota(raise).await.expect("it").into_inner().container.expect("it");
    assert_eq!(raised.quota_bytes, 20 << 20);
    let grow = v1::PoolResizeRequest { pool: "tank".to_owned(), size_bytes: (3 * 96) << 20 };
    let grown = system.pools(2).resize(grow).await.expect("room").into_inner().pool.expect("it");
    assert_eq!(grown.size_bytes, (3 * 96) << 20);

    let destroy = |force| v1::PoolDestroyRequest { pool: "tank".to_owned(), force };
    let refused = failure_of(&system.pools(0).destroy(destroy(false)).await.expect_err("it has containers"));
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message.contains("has 3 containers (home-0, home-1, home-2)"), "{refused}");
    for (rank, missing) in [(0, false), (1, true)] {
        let gone = v1::ContainerDestroyRequest {
            pool: "tank".to_owned(),
            container: "home-0".to_owned(),
            force: false,
            gone_handles: Vec::new(),
        };
        let destroyed = system.containers(rank).destroy(gone).await.expect("a missing one is no error");
        assert_eq!(destroyed.into_inner().missing, missing);
    }
    system.pools(1).destroy(destroy(true)).await.expect("it goes");
    system.pools(1).destroy(destroy(false)).await.expect("a missing one is no error");
    let listed = system.pools(2).list(v1::PoolListRequest {}).await.expect("a list").into_inner().pools;
    assert!(listed.is_empty());
}

#[test]
fn what_was_made_under_a_chosen_uuid_is_found_by_a_repeated_request() {
    let system = System::start(2, 1);
    let (first, second) = ("5b1f3c52-0000-4000-8000-000000000001", "5b1f3c52-0000-4000-8000-000000000002");
    runtime().block_on(async {
        let chosen = |mib| v1::PoolCreateRequest { uuid: first.to_owned(), ..pool("tank", mib) };
        let ask = async |request| {
            system.pools(0).create(request).await.map(|made| made.into_inner().pool.expect("it"))
        };
        assert_eq!(ask(chosen(2 * 64)).await.expect("room").uuid, first);
        let grow = v1::PoolResizeRequest { pool: first.to_owned(), size_bytes: (2 * 96) << 20 };
        system.pools(1).resize(grow).await.expect("room");
        let again = ask(chosen(2 * 64)).await.expect("the same pool");
        assert_eq!((again.uuid.as_str(), again.size_bytes), (first, (2 * 96) << 20));
        // By label it is taken over by whoever chose another UUID, or none.
        let other = v1::PoolCreateRequest { uuid: second.to_owned(), ..pool("tank", 2 * 96) };
        assert_eq!(ask(other).await.expect("the same pool").uuid, first);
        let taken = failure_of(
            &ask(v1::PoolCreateRequest { label: "lake".to_owned(), ..chosen(2 * 64) })
                .await
                .expect_err("taken"),
        );
        assert!(taken.message.contains("pool tank has the UUID"), "{taken}");
        let wrong = v1::PoolCreateRequest { uuid: "tank".to_owned(), ..pool("lake", 2 * 64) };
        assert_eq!(failure_of(&ask(wrong).await.expect_err("no UUID")).code(), Code::InvalidArgument);

        for rank in 0..2 {
            let request = v1::ContainerCreateRequest { uuid: second.to_owned(), ..container("tank", "box") };
            let made = system.containers(rank).create(request).await.expect("room").into_inner();
            assert_eq!(made.container.expect("it").uuid, second);
        }
    });
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    let system = System::start(2, 1);
    runtime().block_on(async {
        let with = |change: fn(&mut v1::PoolCreateRequest)| {
            let mut request = pool("p", 128);
            change(&mut request);
            request
        };
        let cases = [
            (
                with(|p| p.label = "a b".to_owned()),
                Code::InvalidArgument,
                Der::INVAL,
                "label \"a b\" is not valid",
            ),
            (with(|p| p.size_bytes = 1), Code::InvalidArgument, Der::INVAL, "at least"),
            (
                with(|p| p.size_bytes = 1 << 50),
                Code::ResourceExhausted,
                Der::NOSPACE,
                "unassigned (rank 0 has",
            ),
            (with(|p| p.size_bytes = u64::MAX), Code::ResourceExhausted, Der::NOSPACE, "unassigned"),
            (
                with(|p| p.ranks = vec![0, 7]),
                Code::InvalidArgument,
                Der::INVAL,
                "rank 7 does not exist; the system has ranks 0, 1",
            ),
            (
                with(|p| p.redundancy_factor = 2),
                Code::InvalidArgument,
                Der::INVAL,
                "needs at least 3 engines, there are 2",
            ),
            (
                with(|p| (p.redundancy_factor, p.object_class) = (1, "SX".to_owned())),
                Code::InvalidArgument,
                Der::INVAL,
                "the pool has redundancy factor 1; name a class with more replicas",
            ),
            (
                with(|p| p.object_class = "S3".to_owned()),
                Code::InvalidArgument,
                Der::INVAL,
                "object class \"S3\" is unknown",
            ),
            (
                with(|p| p.object_class = "RP_8G1".to_owned()),
                Code::InvalidArgument,
                Der::NOTSUPPORTED,
                "RP_8G1 stores data with 8 replicas",
            ),
        ];
        for (request, code, der, text) in cases {
            let status = system.pools(1).create(request).await.expect_err(text);
            let Failure { der: found, object, message } = failure_of(&status);
            assert_eq!((status.code(), found), (code, der), "{message}");
            assert!(message.contains(text) && object.starts_with("pool "), "{object}: {message}");
        }
        refuse_what_does_not_fit(&system).await;
    });
    let counted = system.metric(
        0,
        "weir_engine_management_requests_total{rank=\"0\",method=\"Pools/Query\",code=\"NotFound\"}",
    );
    assert_eq!(counted, Some(1.0));
}

async fn refuse_what_does_not_fit(system: &System) {
    system.pools(0).create(pool("tank", 128)).await.expect("room");
    let other = failure_of(&system.pools(1).create(pool("tank", 256)).await.expect_err("another size"));
    assert_eq!(other.code(), Code::AlreadyExists);
    assert!(other.message.contains("size 134217728, not 268435456"), "{other}");

    let missing = v1::PoolQueryRequest { pool: "none".to_owned() };
    let missing = failure_of(&system.pools(0).query(missing).await.expect_err("no such pool"));
    assert_eq!((missing.code(), missing.object.as_str()), (Code::NotFound, "pool none"));
    let orphan =
        failure_of(&system.containers(1).create(container("none", "c")).await.expect_err("no such pool"));
    assert_eq!(orphan.code(), Code::NotFound);
    let class = v1::ContainerCreateRequest { object_class: "EC_2P1G1".to_owned(), ..container("tank", "c") };
    let class = failure_of(&system.containers(0).create(class).await.expect_err("erasure coding"));
    assert_eq!((class.code(), class.der), (Code::InvalidArgument, Der::NOTSUPPORTED));
    let chunk = v1::ContainerCreateRequest { chunk_size_bytes: 5, ..container("tank", "c") };
    let chunk = failure_of(&system.containers(0).create(chunk).await.expect_err("a tiny chunk"));
    assert!(chunk.message.contains("a chunk has 4096 to"), "{chunk}");
    let few = v1::ContainerCreateRequest { quota_bytes: 4096, ..container("tank", "c") };
    let few = failure_of(&system.containers(0).create(few).await.expect_err("a quota of a few bytes"));
    assert_eq!((few.code(), few.der), (Code::InvalidArgument, Der::INVAL));
    assert!(few.message.contains("at least 1048576 bytes"), "{few}");
    system.containers(0).create(container("tank", "d")).await.expect("a quota that suffices");
    let [pool, container] = ["tank", "d"].map(String::from);
    let fewer = v1::ContainerSetQuotaRequest { pool, container, quota_bytes: 1 };
    let fewer = failure_of(&system.containers(0).set_quota(fewer).await.expect_err("a quota of one byte"));
    assert!(fewer.message.contains("at least 1048576 bytes"), "{fewer}");
    let query = v1::ContainerQueryRequest { pool: "tank".to_owned(), container: "c".to_owned() };
    let query = failure_of(&system.containers(0).query(query).await.expect_err("no such container"));
    assert_eq!((query.code(), query.object.as_str()), (Code::NotFound, "container c"));
}

#[test]
fn a_lost_engine_is_named_and_the_rest_goes_on() {
    let mut system = System::start(3, 1);
    runtime().block_on(async {
        system.pools(0).create(pool("tank", 3 * 64)).await.expect("room");
        let query = || v1::PoolQueryRequest { pool: "tank".to_owned() };
        let found = system.pools(0).query(query()).await.expect("it").into_inner().pool.expect("it");
        let service = usize::try_from(found.service_ranks[0]).expect("small");
        // Rank 0 keeps the list of pools; the service is to stay, too.
        let victim = (1..3).find(|rank| *rank != service).expect("another one");
        system.kill(victim);
        let found =
            system.pools(0).query(query()).await.expect("the service is up").into_inner().pool.expect("it");
        assert_eq!(found.state(), v1::PoolState::Degraded);
        assert_eq!(found.unreachable_ranks, [u32::try_from(victim).expect("small")]);
        let states =
            system.system(0).query(v1::SystemQueryRequest {}).await.expect("it").into_inner().engines;
        assert_eq!(states[victim].health(), v1::EngineHealth::Down);
        assert!(!states[victim].message.is_empty());
        let request = v1::PoolCreateRequest { ranks: vec![0, 1, 2], ..pool("other", 3 * 33) };
        let refused = failure_of(&system.pools(0).create(request).await.expect_err("an engine is down"));
        assert!(refused.message.contains(&format!("needs rank {victim}")), "{refused}");
        // Without ranks the pool goes to the engines that are up.
        let smaller = system.pools(0).create(pool("other", 2 * 33)).await.expect("two engines suffice");
        assert_eq!(smaller.into_inner().pool.expect("it").ranks.len(), 2);
        system
            .containers(0)
            .create(container("tank", "c"))
            .await
            .expect("a container needs only the service");
        let gone = v1::ContainerDestroyRequest {
            pool: "tank".to_owned(),
            container: "c".to_owned(),
            force: false,
            ..Default::default()
        };
        system.containers(0).destroy(gone).await.expect("the rest goes when the engine is back");
    });
}
