//! Processes that come, talk to an endpoint of this node, and are gone: one after another, with more endpoints together than the
//! provider has room for.
//!
//! The test starts itself again as those processes, in this pid namespace and in others.

mod inbox;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use inbox::{Inbox, listen};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use weir_fabric::{Address, Endpoint, Options, PeerId, open};
use weir_runtime::real::Executor;

/// Tells a process that it passes by, and whom it is to talk to.
const SERVER: &str = "WEIR_PASSED_BY";

/// How many processes pass by.
const PASSERS: usize = 30;

/// Endpoints of each: together more than the provider has room for (256).
const EACH: usize = 10;

/// What comes before the address that a process says.
const SAYS: &str = "address ";

/// Between two messages to whoever doesn't answer.
const PAUSE: Duration = Duration::from_millis(10);

/// Says an address and talks to the server. Ends without a word, and without closing anything, when its input does, but not
/// while it sends: who dies there blocks the server's queue, which not every library's endpoint notices.
fn pass_by(server: &str) -> ! {
    let ended = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&ended);
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).expect("the parent's");
        noted.store(true, Ordering::Relaxed);
    });
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let own = |_| open(&rt, &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let endpoints: Vec<Rc<dyn Endpoint>> = (0..EACH).map(own).collect();
    let inboxes: Vec<Rc<Inbox>> = endpoints.iter().map(listen).collect();
    for endpoint in &endpoints {
        let own = endpoint.address();
        println!("\n{SAYS}{}", str::from_utf8(own.as_bytes()).expect("a name").trim_end_matches('\0'));
    }
    let server = Address::from_bytes(server.as_bytes()).expect("short");
    executor.block_on(async {
        while !ended.load(Ordering::Relaxed) {
            for (endpoint, inbox) in endpoints.iter().zip(&inboxes) {
                let (own, met) = (endpoint.address(), u8::from(!inbox.messages.borrow().is_empty()));
                // Larger than what the provider copies at once. What the server had not taken when it was opened anew is lost.
                let message: [&[u8]; 3] = [&[met], own.as_bytes(), &[0; 9000]];
                let _ = endpoint.insert(&server).and_then(|to| endpoint.send(to, 0, &message));
            }
            rt.sleep(PAUSE).await;
        }
    });
    std::process::exit(0);
}

/// A process that passes by.
struct Passer {
    child: Child,
    addresses: Vec<Address>,
}

impl Passer {
    fn start(mut command: Command, server: &Address) -> Self {
        let server = str::from_utf8(server.as_bytes()).expect("a name").trim_end_matches('\0');
        command.args(["--nocapture", "more_endpoints"]).env(SERVER, server);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let addresses = lines.filter_map(|line| Address::from_bytes(line.strip_prefix(SAYS)?.as_bytes()));
        let addresses: Vec<Address> = addresses.take(EACH).collect();
        assert_eq!(addresses.len(), EACH);
        Self { child, addresses }
    }

    /// Answers it until it has heard the answers.
    fn answer(&self, executor: &Executor, server: &Rc<dyn Endpoint>, inbox: &Inbox) -> Vec<PeerId> {
        let rt = executor.handle();
        let until = rt.now() + Duration::from_secs(30);
        let mut open = self.addresses.clone();
        while !open.is_empty() {
            assert!(rt.now() < until, "it is not heard, or hears nothing");
            for address in &open {
                let peer = server.insert(address).expect("there is room");
                server.send(peer, 0, &[b"answer"]).expect("accepted");
            }
            executor.block_on(rt.sleep(PAUSE));
            for message in inbox.messages.borrow_mut().drain(..) {
                let met = message.strip_prefix(&[1]);
                open.retain(|address| !met.is_some_and(|rest| rest.starts_with(address.as_bytes())));
            }
        }
        self.addresses.iter().map(|address| server.insert(address).expect("known")).collect()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("it has ended");
        // Others remove what it has left a minute later; by then it would be a gigabyte.
        let names = self.addresses.iter().filter_map(|address| str::from_utf8(address.as_bytes()).ok());
        let names: Vec<&str> = names.collect();
        for file in std::fs::read_dir("/dev/shm").expect("readable").flatten() {
            if names.iter().any(|name| file.file_name().to_string_lossy().starts_with(name)) {
                // Somebody else may sweep at the same time.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn own_program() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

/// This program in a pid namespace of its own. Whoever isn't root may need a user namespace for it, and not every system allows
/// that.
fn elsewhere() -> Option<Command> {
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--pid", "--fork"]).arg(program);
        command
    };
    let can = unshare(Path::new("true")).status().is_ok_and(|status| status.success());
    can.then(|| unshare(&std::env::current_exe().expect("this program")))
}

/// `while_alive`: each is forgotten while it lives, otherwise after it has ended.
fn outlives(command: impl Fn() -> Command, while_alive: bool) {
    let executor = Executor::new().expect("an executor");
    let server = open(&executor.handle(), &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let inbox = listen(&server);
    for _ in 0..PASSERS {
        let passer = Passer::start(command(), &server.address());
        let peers = passer.answer(&executor, &server, &inbox);
        let forget = || peers.iter().for_each(|peer| server.forget(*peer));
        if while_alive {
            forget();
        }
        passer.end();
        forget();
    }
    assert_eq!(server.counters().peers_removed.get(), (PASSERS * EACH) as u64);
    assert!(server.has_room_for_strangers());
}

#[test]
fn an_endpoint_outlives_more_endpoints_than_there_is_room_for_whenever_they_were_forgotten() {
    if let Ok(server) = std::env::var(SERVER) {
        pass_by(&server);
    }
    outlives(own_program, false);
    outlives(|| elsewhere().unwrap_or_else(own_program), true);
}
