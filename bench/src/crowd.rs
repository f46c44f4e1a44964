//! Ten thousand clients against one target in the simulator, whose requests it can't take all at once: none gets lost, what
//! the target keeps is bounded, and how long answers take. Simulated time is the same in every run.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;

use weir_fabric::sim::Fabric;
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::sim::World;

use crate::report::Report;

const WORK: u16 = 0x7001;
const PORT: u16 = 31_416;

const CLIENTS: u32 = 10_000;

/// Requests of each client, one after another.
const EACH: u32 = 10;

/// What the target has room for at once, and what each request takes: 1.28 million a second.
const RUNNING_MAX: u32 = 256;
const WORK_TIME: Duration = Duration::from_micros(200);

/// How often the target is looked at.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// What a run showed.
struct Reached {
    /// How long each request took that was answered, ascending.
    times: Vec<Duration>,
    took: Duration,
    sent_away: u64,
    /// Most requests that ran at once, and most bytes of replies that were kept.
    running_max: u64,
    kept_max: usize,
}

fn serve(world: &World, fabric: &Fabric) -> Rc<Rpc> {
    let node = world.node("target");
    let config = RpcConfig { running_max: RUNNING_MAX as usize, ..RpcConfig::default() };
    let target = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
    let rt = node.handle();
    target.serve(
        WORK,
        Rc::new(move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(WORK_TIME).await;
                Ok(Vec::new())
            }
        }),
    );
    target
}

fn run(seed: u64) -> Reached {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let target = serve(&world, &fabric);
    let times: Rc<RefCell<Vec<Duration>>> = Rc::default();
    let clients = (0..CLIENTS).map(|n| {
        let node = world.node(&format!("client-{n}"));
        let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default());
        let (rt, times) = (node.handle(), Rc::clone(&times));
        node.handle().spawn(async move {
            let to = Peer::new("target", PORT);
            for _ in 0..EACH {
                let began = rt.now();
                let options = CallOptions::within(&rt, Duration::from_mins(1));
                if rpc.call(&to, WORK, b"", None, options).await.is_ok() {
                    times.borrow_mut().push(rt.now() - began);
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let observer = world.node("observer");
    let (rt, watched, most) = (observer.handle(), Rc::clone(&target), Rc::new(Cell::new((0, 0))));
    let noted = Rc::clone(&most);
    observer.handle().spawn(async move {
        loop {
            let (running, kept) = noted.get();
            let now = (watched.metrics().running.get(), watched.remembered().1);
            noted.set((now.0.max(running), now.1.max(kept)));
            rt.sleep(LOOK_EVERY).await;
        }
    });
    world.block_on(&observer, async move {
        for client in clients {
            // A client that ended early shows as requests without an answer.
            let _ = client.await;
        }
    });
    let mut times = times.take();
    times.sort_unstable();
    let (running_max, kept_max) = most.get();
    let sent_away = target.metrics().overloaded.get();
    Reached { times, took: world.now() - weir_runtime::Instant::default(), sent_away, running_max, kept_max }
}

/// Runs it.
#[expect(clippy::cast_precision_loss, reason = "counts and times far below 2^53")]
pub fn measure(report: &mut Report) {
    let reached = run(1);
    let all = (CLIENTS * EACH) as usize;
    let within = |hundredths: usize| {
        let at = (reached.times.len() * hundredths / 100).min(reached.times.len().saturating_sub(1));
        reached.times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let ideal = f64::from(RUNNING_MAX) / WORK_TIME.as_secs_f64();
    let rate = reached.times.len() as f64 / reached.took.as_secs_f64();
    println!(
        "\n{CLIENTS} simulated clients with {EACH} requests each, one target with room for {RUNNING_MAX}: {} sent away",
        reached.sent_away
    );
    let name = |what: &str| format!("crowd simulated, 10,000 clients: {what}");
    report.beside(&name("answered"), rate, "op/s", ("the target's own time", ideal), None);
    for hundredths in [50, 99, 100] {
        report.figure(&name(&format!("p{hundredths}")), within(hundredths), "ms", None);
    }
    report.figure(&name("without an answer"), (all - reached.times.len()) as f64, "requests", Some("0"));
    let room = format!("<= {RUNNING_MAX}");
    report.figure(&name("most at once"), reached.running_max as f64, "requests", Some(&room));
    report.figure(&name("replies kept, most"), reached.kept_max as f64 / 1024.0, "KiB", Some("<= 64 MiB"));
}
