//! Engines on loopback in this process, each target on a thread of its own, with memory for disks.
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../unmarked/mod.rs"]
mod unmarked;

use core::cell::RefCell;
use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use prost::Message;
use tempfile::TempDir;
use weir_daemon::target::{EngineKeys, SwimConfig, Target, TargetContext};
use weir_fabric::{Options, libfabric};
use weir_management::v1;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::{Rank, TargetIndex};
use weir_runtime::real::{Executor, Remote};
use weir_runtime::sync::Notify;
use weir_store::{FormatOptions, Owner, Store, StoreConfig};

use unmarked::Unmarked;

const DISK_BYTES: u64 = 256 << 20;
/// Base64 of the bytes 0 to 31.
pub const KEY_TEXT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub const POOL: &str = "tank";

thread_local! {
    static TARGET: RefCell<Option<(Rc<Target>, Notify)>> = const { RefCell::new(None) };
}

/// A running system.
pub struct System {
    folder: TempDir,
    threads: Vec<(Remote, JoinHandle<()>)>,
}

impl System {
    /// Engines of one target each that serve, with a pool over all of them.
    pub fn start(engines: u32) -> Self {
        Self::start_with(engines, 0)
    }

    /// The same with a redundancy factor of the pool.
    pub fn start_with(engines: u32, redundancy_factor: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Held until all ports are known, so that they differ.
        let listeners: Vec<TcpListener> =
            (0..engines).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let infos: Vec<EngineInfo> = (0..)
            .zip(&listeners)
            .map(|(rank, listener)| EngineInfo {
                rank: Rank(rank),
                host: "127.0.0.1".into(),
                fabric_port: listener.local_addr().expect("bound").port(),
                targets: 1,
                management: String::new(),
            })
            .collect();
        drop(listeners);
        let threads = infos.iter().map(|info| start_engine(info.clone(), infos.clone())).collect();
        let system = Self { folder, threads };
        system.write_attach(&infos);
        system.create_pool(u64::from(engines) * DISK_BYTES / 2, redundancy_factor);
        system
    }

    /// The attach file.
    pub fn attach_path(&self) -> PathBuf {
        self.folder.path().join("client.json")
    }

    /// A folder for what a test makes.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    fn write_attach(&self, infos: &[EngineInfo]) {
        let engines: Vec<String> = infos
            .iter()
            .map(|info| {
                format!(
                    r#"{{"rank":{},"host":"{}","fabric_port":{},"targets":1,"management":""}}"#,
                    info.rank, info.host, info.fabric_port
                )
            })
            .collect();
        let text = format!(
            r#"{{"system":"weir","provider":"tcp","engines":[{}],"system_key_file":"system.key"}}"#,
            engines.join(",")
        );
        std::fs::write(self.attach_path(), text).expect("written");
        std::fs::write(self.folder.path().join("system.key"), KEY_TEXT).expect("written");
    }

    fn create_pool(&self, size_bytes: u64, redundancy_factor: u32) {
        let (done, waits) = mpsc::channel();
        let job = move |runtime: &weir_runtime::Handle| {
            let target = TARGET.with_borrow(|slot| slot.as_ref().map(|(target, _)| Rc::clone(target)));
            let management = Rc::clone(target.expect("it serves").management().expect("target 0 has it"));
            runtime.spawn(async move {
                let label = POOL.into();
                let request =
                    v1::PoolCreateRequest { label, size_bytes, redundancy_factor, ..Default::default() };
                let made = management.call("Pools/Create", &request.encode_to_vec()).await;
                done.send(made.map(|_| ()).map_err(|failure| failure.to_string())).expect("somebody waits");
            });
        };
        self.threads[0].0.spawn(Box::new(job)).expect("the engine runs");
        waits.recv().expect("an answer").expect("the pool is created");
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for (remote, thread) in self.threads.drain(..) {
            let stop = |_: &weir_runtime::Handle| {
                if let Some((_, end)) = TARGET.with_borrow(Clone::clone) {
                    end.notify_one();
                }
            };
            if remote.spawn(Box::new(stop)).is_ok() {
                drop(thread.join());
            }
        }
    }
}

fn start_engine(own: EngineInfo, engines: Vec<EngineInfo>) -> (Remote, JoinHandle<()>) {
    let (ready, waits) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let options = Options::listen("tcp", &own.host, own.fabric_port);
        let endpoint = libfabric::open(&rt, &options).expect("an endpoint");
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(DISK_BYTES));
        let owner = Owner { system: "weir".into(), rank: own.rank, target: TargetIndex(0) };
        let end = Notify::new();
        let keys =
            EngineKeys { system: SystemKey::parse(KEY_TEXT).expect("a key"), engines: EngineKey([43; 32]) };
        executor.block_on(async {
            let format = FormatOptions { owner: owner.clone(), log_bytes: None };
            Store::format(&rt, &device, &format).await.expect("formats");
            let context = TargetContext {
                rt: rt.clone(),
                endpoint,
                device: Ok(device),
                fault_record: Rc::new(Unmarked),
                last_seen: Rc::new(Unmarked),
                map_backup: Rc::new(Unmarked),
                tenants: Rc::new(Unmarked),
                owner,
                store: StoreConfig::default(),
                engines: engines.into(),
                membership: SwimConfig::default(),
                keys,
                provider: "tcp".into(),
                started: 0,
            };
            let target = Target::start(context).await.expect("the target starts");
            TARGET.set(Some((target, end.clone())));
            ready.send(executor.remote()).expect("somebody waits");
            end.notified().await;
            TARGET.set(None);
        });
    });
    (waits.recv().expect("the engine serves"), thread)
}
