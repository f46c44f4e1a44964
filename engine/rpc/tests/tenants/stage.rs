//! One server of the system, one client of tenant 1, and an endpoint in the hands of tenant 2.

use core::cell::RefCell;
use core::time::Duration;
use std::rc::{Rc, Weak};

use super::recorder::Recorder;
use weir_fabric::sim::{Fabric, UnknownSource};
use weir_fabric::{Endpoint, FabricError, Message, PeerId, Sink};
use weir_fabric::{Options, open};
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::{CallOptions, Keys, Peer, Reply, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::Handle;
use weir_runtime::real::Executor;
use weir_runtime::sim::{Node, World};

/// Counts executions and says who asked.
pub const COUNT: u16 = 0x7001;
/// Pulls what the client exposes to it, and answers with the sum of the bytes.
pub const SUM: u16 = 0x7002;

pub const KEY: SystemKey = SystemKey([0x42; 32]);
pub const VICTIM: TenantId = TenantId(1);
pub const MALLORY: TenantId = TenantId(2);

/// Takes everything in and does nothing with it.
#[derive(Default)]
pub struct Inbox {
    pub messages: RefCell<Vec<Vec<u8>>>,
}

impl Sink for Inbox {
    fn message(&self, message: Message) {
        self.messages.borrow_mut().push(message.to_vec());
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

/// What the server executed: tenant and body of each request.
pub type Executed = Rc<RefCell<Vec<(TenantId, Vec<u8>)>>>;

enum Time {
    Simulated { world: World, fabric: Fabric, home: Node },
    Real { executor: Executor, provider: &'static str },
}

pub struct Stage {
    time: Time,
    pub rt: Handle,
    pub port: u16,
    pub server: RefCell<Option<Rc<Rpc>>>,
    pub executed: Executed,
    pub victim: Rc<Rpc>,
    /// What the victim's endpoint sent.
    pub tap: Rc<Recorder>,
    /// What the server's endpoint sent.
    pub server_tap: RefCell<Rc<Recorder>>,
    pub mallory: Rc<dyn Endpoint>,
    pub inbox: Rc<Inbox>,
}

fn keyed(keys: Keys) -> RpcConfig {
    RpcConfig { keys: Some(keys), ..RpcConfig::default() }
}

fn serve(rt: &Handle, endpoint: Rc<dyn Endpoint>, executed: &Executed) -> Rc<Rpc> {
    let rpc = Rpc::new(rt.clone(), endpoint, keyed(Keys::System(KEY)));
    let seen = Rc::clone(executed);
    rpc.serve(
        COUNT,
        Rc::new(move |request: Request| {
            seen.borrow_mut().push((request.tenant(), request.body().to_vec()));
            async move { Ok(request.body().to_vec()) }
        }),
    );
    let seen = Rc::clone(executed);
    rpc.serve(
        SUM,
        Rc::new(move |request: Request| {
            seen.borrow_mut().push((request.tenant(), request.body().to_vec()));
            async move {
                let len = usize::try_from(request.bulk_len()).expect("small");
                let mut buffer = request.payload(len).await?;
                request.pull(0, &mut buffer, len).await?;
                Ok(buffer.iter().map(|byte| u64::from(*byte)).sum::<u64>().to_le_bytes().to_vec())
            }
        }),
    );
    rpc
}

impl Stage {
    pub fn simulated(seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let home = world.node("everybody");
        Self::assemble(home.handle(), 31_416, Time::Simulated { world, fabric, home })
    }

    /// The same on a network whose NICs name senders that they don't know by their addresses, and has no auth keys.
    pub fn simulated_with_sources(seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        fabric.configure(|config| config.unknown_source = UnknownSource::Address);
        let home = world.node("everybody");
        Self::assemble(home.handle(), 31_416, Time::Simulated { world, fabric, home })
    }

    pub fn real(provider: &'static str) -> Self {
        let executor = Executor::new().expect("an executor");
        Self::assemble(executor.handle(), crate::port::free(), Time::Real { executor, provider })
    }

    fn assemble(rt: Handle, port: u16, time: Time) -> Self {
        let server_tap = Recorder::new(time.endpoint(&rt, Some(port)));
        let executed = Executed::default();
        let server = serve(&rt, Rc::clone(&server_tap) as Rc<dyn Endpoint>, &executed);
        let tap = Recorder::new(time.endpoint(&rt, None));
        let keys = Keys::Tenant(KEY.tenant(VICTIM));
        let victim = Rpc::new(rt.clone(), Rc::clone(&tap) as Rc<dyn Endpoint>, keyed(keys));
        let mallory = time.endpoint(&rt, None);
        let inbox = Rc::new(Inbox::default());
        let sink = Rc::downgrade(&inbox) as Weak<dyn Sink>;
        mallory.set_sink(sink);
        let server = RefCell::new(Some(server));
        let server_tap = RefCell::new(server_tap);
        Self { time, rt, port, server, executed, victim, tap, server_tap, mallory, inbox }
    }

    /// The server ends and another incarnation of it takes its place.
    pub fn restart_server(&self) {
        drop(self.server.take());
        let port = self.port;
        let spare = Recorder::new(self.time.endpoint(&self.rt, None));
        drop(self.server_tap.replace(spare));
        self.pass(Duration::from_millis(50));
        let tap = Recorder::new(self.time.endpoint(&self.rt, Some(port)));
        let server = serve(&self.rt, Rc::clone(&tap) as Rc<dyn Endpoint>, &self.executed);
        self.server_tap.replace(tap);
        self.server.replace(Some(server));
    }

    /// One in nobody's hands yet.
    pub fn another_endpoint(&self) -> Rc<dyn Endpoint> {
        self.time.endpoint(&self.rt, None)
    }

    pub fn another_client(&self, keys: Option<Keys>) -> Rc<Rpc> {
        let endpoint = self.another_endpoint();
        Rpc::new(self.rt.clone(), endpoint, RpcConfig { keys, ..RpcConfig::default() })
    }

    pub fn run<F: Future<Output: 'static> + 'static>(&self, future: F) -> F::Output {
        match &self.time {
            Time::Simulated { world, home, .. } => world.block_on(home, future),
            Time::Real { executor, .. } => executor.block_on(future),
        }
    }

    pub fn pass(&self, time: Duration) {
        self.run(self.rt.sleep(time));
    }

    /// A call of some client, with so many seconds to succeed.
    pub fn call(&self, rpc: &Rc<Rpc>, opcode: u16, body: &[u8], seconds: u64) -> Result<Reply, RpcError> {
        let (rpc, rt, to, body) = (Rc::clone(rpc), self.rt.clone(), self.peer(), body.to_vec());
        self.run(async move {
            let options = CallOptions::within(&rt, Duration::from_secs(seconds));
            rpc.call(&to, opcode, &body, None, options).await
        })
    }

    pub fn peer(&self) -> Peer {
        Peer::new(self.host(), self.port)
    }

    pub fn host(&self) -> &'static str {
        if matches!(self.time, Time::Simulated { .. }) { "everybody" } else { "127.0.0.1" }
    }

    /// The server as Mallory's endpoint knows it.
    pub fn aim(&self) -> PeerId {
        let (endpoint, host, port) = (Rc::clone(&self.mallory), self.host(), self.port);
        let address =
            self.run(async move { endpoint.resolve(host, port).await }).expect("it listens").address;
        self.mallory.insert(&address).expect("an address")
    }

    /// Sends bytes to the server as Mallory, and lets them take effect.
    pub fn attack(&self, to: PeerId, messages: &[Vec<u8>]) {
        for bytes in messages {
            // A provider may refuse; then nothing arrives, which is as well.
            drop(self.mallory.send(to, 0, &[bytes]));
        }
        self.pass(Duration::from_millis(30));
    }

    pub fn server_metric(&self, name: &str) -> u64 {
        let server = self.server.borrow();
        let all = server.as_ref().expect("it runs").metrics().all();
        all.into_iter().find(|(known, _)| *known == name).expect("such a counter").1
    }
}

impl Time {
    fn endpoint(&self, rt: &Handle, port: Option<u16>) -> Rc<dyn Endpoint> {
        match self {
            Self::Simulated { fabric, home, .. } => fabric.endpoint(home, port),
            Self::Real { provider, .. } => {
                let options = match port {
                    Some(port) => Options::listen(provider, "127.0.0.1", port),
                    None => Options::near(provider, "127.0.0.1", 1),
                };
                open(rt, &options).expect("an endpoint")
            }
        }
    }
}
