//! The client on real engines over loopback.

#[path = "loopback/mod.rs"]
mod engines;

use std::time::{Duration, Instant};

use engines::{POOL, System};
use weir_client::{
    Attach, Conditions, Container, ContainerProperties, ContainerType, Context, Kv, Pool, Rights, kind,
};

fn properties(label: &str) -> ContainerProperties {
    ContainerProperties {
        label: label.into(),
        kind: ContainerType::Object,
        quota: 0,
        object_class: "SX".into(),
        chunk_size: 1 << 20,
        uid: 0,
        gid: 0,
        mode: 0o755,
        attributes: std::collections::BTreeMap::new(),
    }
}

#[test]
fn a_client_starts_fast_and_several_threads_share_handles() {
    let system = System::start(2);
    let attach = Attach::load(Some(&system.attach_path())).expect("valid");
    let rights = Rights(15);
    let first = Context::real(&attach).expect("a context");
    first.block_on(async {
        let pool = Pool::connect(&first, POOL, rights).await.expect("connects");
        Container::create(&first, &pool, properties("shared"), false).await.expect("creates");
    });
    let mut best = Duration::MAX;
    let mut opened = None;
    for _ in 0..5 {
        let start = Instant::now();
        let context = Context::real(&attach).expect("a context");
        let container = context.block_on(async {
            let pool = Pool::connect(&context, POOL, rights).await.expect("connects");
            Container::open(&context, &pool, "shared", rights).await.expect("opens")
        });
        best = best.min(start.elapsed());
        opened = Some((container, context));
    }
    let (container, context) = opened.expect("five tries");
    println!("init, pool connect and container open: {best:?}");
    // The goal is 20 ms on an idle machine; this one may be building something else at the same time.
    assert!(best < Duration::from_millis(100), "{best:?}");
    let oid = context.block_on(container.new_object_id(&context, kind::KV_HASHED, None)).expect("an id");
    let kv = Kv::open(&container, oid).expect("opens");
    let threads: Vec<_> = (0_u8..4)
        .map(|thread| {
            let (kv, attach) = (kv.clone(), attach.clone());
            std::thread::spawn(move || {
                let context = Context::real(&attach).expect("a context");
                context.block_on(async {
                    for number in 0_u8..50 {
                        let value = vec![number; 1 + 3000 * usize::from(number)];
                        kv.put(&context, &[thread, number], &value, Conditions::NONE).await.expect("put");
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    context.block_on(async {
        for thread in 0_u8..4 {
            for number in [0_u8, 1, 20, 49] {
                let value = kv.get(&context, &[thread, number]).await.expect("get");
                assert_eq!(value, Some(vec![number; 1 + 3000 * usize::from(number)]));
            }
        }
    });
}

#[test]
fn a_client_starts_while_no_engine_can_be_resolved_and_says_so_when_it_is_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = r#"{"system":"weir","provider":"tcp","system_key_file":"key","engines":[
        {"rank":0,"host":"engine-0.invalid","fabric_port":10100,"targets":1}]}"#;
    std::fs::write(folder.path().join("client.json"), text).expect("written");
    std::fs::write(folder.path().join("key"), engines::KEY_TEXT).expect("written");
    let attach = Attach::load(Some(&folder.path().join("client.json"))).expect("valid");
    let context = Context::real(&attach).expect("a context all the same");
    context.set_deadline(Duration::from_millis(300));
    let away = context.block_on(Pool::connect(&context, POOL, Rights::READ)).expect_err("nobody answers");
    assert_eq!(away.errno(), 110, "{away}");
    assert!(away.to_string().contains("engine-0.invalid"), "{away}");
    let other = Attach { provider: "no-such-provider".into(), ..attach };
    let refused = Context::real(&other).map(|_| ()).expect_err("there is none");
    assert!(refused.to_string().contains("no-such-provider"), "{refused}");
}
