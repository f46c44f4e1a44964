//! A refusal costs a server the same, however many clients and tenants it knows: instructions are counted, those of a server that
//! knows one client and those of a server that knows ten thousand, of as many tenants.
//!
//! The program starts itself again as that server, and as the network and everybody on it.

mod steps;
mod tenants {
    pub mod forgery;
    pub mod recorder;
}

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::process::{Command, exit};
use std::rc::{Rc, Weak};

use tenants::forgery::Said;
use tenants::recorder::Recorder;
use weir_fabric::sim::Fabric;
use weir_fabric::{Endpoint, FabricError, Message, PeerId, Sink};
use weir_proto::capability::SystemKey;
use weir_proto::{TenantId, TenantKey};
use weir_rpc::seal::TAG_LEN;
use weir_rpc::wire::{self, Kind};
use weir_rpc::{CallOptions, ClientId, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::Handle;
use weir_runtime::sim::{Node, World};

const ECHO: u16 = 0x7001;
const PORT: u16 = 31_416;
const KEY: SystemKey = SystemKey([0x42; 32]);
/// Whose messages are recorded, and in whose name others are forged.
const VICTIM: TenantId = TenantId(1);

/// Sessions that a server knows beside the victim's, where it knows more than one.
const MANY: u64 = 10_000;
/// Messages before those that are counted: more than a server answers in one moment with that it knows nobody of that name.
const BEFORE: usize = 16;
/// Messages that are counted.
const MESSAGES: usize = 4;
/// Instructions by which a refusal may differ: the search in an ordered list of many steps, and where an allocator finds room. To
/// look at each session takes several times as many.
const ALLOWED: u64 = MANY / 10;

/// The exit code of a process that may not be traced.
const UNTRACED: i32 = 77;

/// Messages that are refused, by what is wrong with them, and where a server counts them.
const REFUSALS: [(&str, &[&str]); 6] = [
    ("nonsense", &["malformed"]),
    ("a forged request of a client that is known", &["unauthenticated"]),
    ("a request of a tenant that nobody knows", &["unknown_sessions"]),
    ("a hello that its tenant's key has not sealed", &["unauthenticated"]),
    ("a request that was executed", &["impostors"]),
    ("a hello that was answered", &["impostors"]),
];

/// Stands between the network and the server: lets in what arrives at once, or when it is told to.
struct Door {
    server: Rc<Recorder>,
    shut: Cell<bool>,
    waiting: RefCell<Vec<Message>>,
}

impl Door {
    fn let_in(&self, message: Message) {
        let owner = self.server.owner.get().and_then(Weak::upgrade);
        owner.expect("the server lives").message(message);
    }
}

impl Sink for Door {
    fn message(&self, message: Message) {
        if self.shut.get() {
            self.waiting.borrow_mut().push(message);
        } else {
            self.let_in(message);
        }
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

struct Site {
    world: World,
    door: Rc<Door>,
    server: Rc<Rpc>,
    victim: Rc<Rpc>,
    tap: Rc<Recorder>,
    home: Node,
    rt: Handle,
    mallory: Rc<dyn Endpoint>,
    aim: PeerId,
}

impl Site {
    fn new(sessions: u64) -> Self {
        let world = World::new(5);
        let fabric = Fabric::new(&world);
        let (node, home) = (world.node("server"), world.node("victim"));
        let config = |keys| RpcConfig { keys: Some(keys), ..RpcConfig::default() };
        let endpoint = fabric.endpoint(&node, Some(PORT));
        let address = endpoint.address();
        let taps = Recorder::new(Rc::clone(&endpoint));
        let door =
            Rc::new(Door { server: Rc::clone(&taps), shut: Cell::default(), waiting: RefCell::default() });
        // An endpoint's first sink stays.
        let sink = Rc::downgrade(&door) as Weak<dyn Sink>;
        endpoint.set_sink(sink);
        let server = Rpc::new(node.handle(), taps, config(Keys::System(KEY)));
        server.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
        let tap = Recorder::new(fabric.endpoint(&home, None));
        let keys = config(Keys::Tenant(KEY.tenant(VICTIM)));
        let victim = Rpc::new(home.handle(), Rc::clone(&tap) as Rc<dyn Endpoint>, keys);
        let mallory = fabric.endpoint(&world.node("mallory"), None);
        let aim = mallory.insert(&address).expect("an address");
        let rt = home.handle();
        let site = Self { world, door, server, victim, tap, home, rt, mallory, aim };
        for tenant in 1..=sessions {
            site.send(&site.hello(TenantId(1000 + tenant), &KEY.tenant(TenantId(1000 + tenant))));
        }
        site.world.run_for(Duration::from_millis(1));
        assert_eq!(site.counted(&["replies"]), sessions, "each has a session");
        for _ in 0..8 {
            let (rpc, rt) = (Rc::clone(&site.victim), site.rt.clone());
            let reply = site.world.block_on(&site.home, async move {
                let options = CallOptions::within(&rt, Duration::from_secs(5));
                rpc.call(&Peer::new("server", PORT), ECHO, b"hello", None, options).await
            });
            reply.expect("a reply");
        }
        site
    }

    /// Has a message arrive.
    fn send(&self, message: &[u8]) {
        self.mallory.send(self.aim, 0, &[message]).expect("accepted");
        self.world.run_for(Duration::from_micros(10));
    }

    fn said(&self, tenant: TenantId, client: ClientId, number: u64) -> Said {
        Said { tenant, client, number, wall_ns: self.rt.wall_ns() }
    }

    fn hello(&self, tenant: TenantId, key: &TenantKey) -> Vec<u8> {
        self.said(tenant, ClientId::new(tenant.0), 1).hello(&self.mallory.address(), key)
    }

    fn forged(&self, client: ClientId, tenant: TenantId) -> Vec<u8> {
        let garbage = |_: &[u8]| vec![0x77; TAG_LEN];
        self.said(tenant, client, 1000).request(ECHO, b"forged", Some(&garbage))
    }

    /// The first message of a kind that the victim has sent.
    fn recorded(&self, kind: Kind) -> Vec<u8> {
        let sent = self.tap.sent.borrow();
        let is_meant = |bytes: &&Vec<u8>| wire::decode(bytes).is_ok_and(|(header, _)| header.kind == kind);
        sent.iter().find(is_meant).expect("it was sent").clone()
    }

    fn refused(&self, what: &str) -> Vec<u8> {
        let at = REFUSALS.iter().position(|(known, _)| *known == what);
        match at.expect("such a refusal") {
            0 => vec![0x55; 100],
            1 => self.forged(ClientId::new(self.client()), VICTIM),
            2 => self.forged(ClientId::new(3), TenantId(77)),
            3 => self.hello(VICTIM, &TenantKey::new(VICTIM, [9; 32])),
            4 => self.recorded(Kind::Request),
            _ => self.recorded(Kind::Hello),
        }
    }

    /// The victim's id with this server.
    fn client(&self) -> u64 {
        wire::decode(&self.recorded(Kind::Hello)).expect("well formed").0.client.bits()
    }

    fn counted(&self, names: &[&str]) -> u64 {
        let all = self.server.metrics().all();
        all.into_iter().filter(|(name, _)| names.contains(name)).map(|(_, count)| count).sum()
    }
}

/// Sends a server that knows so many sessions what it refuses. Whether that was counted.
fn refuse(what: &str, sessions: u64) -> bool {
    let names = REFUSALS.iter().find(|(known, _)| *known == what).expect("such a refusal").1;
    let site = Site::new(sessions);
    let message = site.refused(what);
    let before = site.counted(names);
    (0..BEFORE).for_each(|_| site.send(&message));
    site.world.run_for(Duration::from_millis(1));
    site.door.shut.set(true);
    (0..MESSAGES).for_each(|_| site.send(&message));
    site.world.run_for(Duration::from_millis(1));
    let waiting = site.door.waiting.take();
    assert_eq!(waiting.len(), MESSAGES, "all that is counted has arrived");
    let is_traced = steps::part(|| waiting.into_iter().for_each(|message| site.door.let_in(message)));
    assert_eq!(site.counted(names) - before, (BEFORE + MESSAGES) as u64, "each was refused for what it is");
    assert_eq!(site.counted(&["requests"]), 8, "nothing was executed");
    is_traced
}

/// Instructions of one refusal. `None` where they can't be counted.
fn cost(what: &str, sessions: u64) -> Option<u64> {
    let program = std::env::current_exe().expect("own path");
    let (steps, code) = steps::count(Command::new(program).args(["refuse", what, &sessions.to_string()]));
    let expected = if steps.is_some() { 0 } else { UNTRACED };
    assert_eq!(code, expected, "{what}, {sessions} sessions: the exit code");
    steps.map(|steps| steps / MESSAGES as u64)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, what, sessions] = &arguments[..]
        && role == "refuse"
    {
        let is_traced = refuse(what, sessions.parse().expect("a number"));
        exit(if is_traced { 0 } else { UNTRACED });
    }
    for (what, _) in REFUSALS {
        let (Some(one), Some(many)) = (cost(what, 1), cost(what, MANY)) else {
            println!("{what}: refused; processes may not be traced here, so that nothing was counted");
            continue;
        };
        println!("{what}: {one} instructions with one session of others, {many} with {MANY}");
        assert!(many <= one + ALLOWED, "{what}: the more sessions, the dearer");
    }
}
