//! The RPC side: the same operations as requests.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use std::time::Instant;

use weir_fabric::Endpoint;
use weir_fabric::{Ability, Options, open};
use weir_proto::capability::SystemKey;
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};

use super::{CROWD, IN_FLIGHT, LARGE, Mode, SMALL, Server, Side, TRANSFERS, What, failed, rate, touch};
use crate::pin::Seats;
use crate::report::BenchError;

/// Operation that answers with nothing.
pub const EMPTY: u16 = 0x7f01;
/// Operation that pulls all client memory.
pub const PULL: u16 = 0x7f02;
/// Operation that pushes to all client memory.
pub const PUSH: u16 = 0x7f03;

/// Settings of either end.
pub fn settings(sealed: bool) -> RpcConfig {
    RpcConfig { keys: sealed.then_some(Keys::System(SystemKey([7; 32]))), ..RpcConfig::default() }
}

/// What a server process of this side keeps.
pub fn serve(rt: Handle, endpoint: Rc<dyn Endpoint>, sealed: bool) -> Rc<Rpc> {
    let rpc = Rpc::new(rt, endpoint, settings(sealed));
    rpc.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    rpc.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_len()).unwrap_or(0);
            let mut buffer = request.payload(len).await?;
            request.pull(0, &mut buffer, len).await?;
            Ok(Vec::new())
        }),
    );
    rpc.serve(
        PUSH,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_room()).unwrap_or(0);
            let buffer = request.payload(len).await?;
            request.push(0, &buffer, len).await?;
            Ok(Vec::new())
        }),
    );
    rpc
}

/// Requests per second with many in flight, each made by a task of its own.
pub(super) async fn rate_of_tasks(rt: &Handle, rpc: &Rc<Rpc>, to: &Peer, span: Duration) -> f64 {
    let began = Instant::now();
    // The executor's clock: reading the system's for each request would be a good part of what a request costs.
    let until = rt.now() + span;
    let done = Rc::new(Cell::new(0u32));
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (inner, rpc, to, done) = (rt.clone(), Rc::clone(rpc), to.clone(), Rc::clone(&done));
            rt.spawn(async move {
                while inner.now() < until {
                    let options = CallOptions::within(&inner, Duration::from_secs(10));
                    if rpc.call(&to, EMPTY, &[7; SMALL], None, options).await.is_ok() {
                        done.set(done.get() + 1);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        // A task that was aborted has counted what it did.
        let _ = task.await;
    }
    f64::from(done.get()) / began.elapsed().as_secs_f64()
}

/// Small requests per second, one after another, while transfers of a MiB are under way.
async fn rate_beside(side: &Requests, span: Duration) -> f64 {
    let began = Instant::now();
    let (moving, done) = (Cell::new(CROWD), Cell::new(0u32));
    let (moving, done) = (&moving, &done);
    let workers = (0..=CROWD).map(|worker| async move {
        if worker == CROWD {
            while moving.get() == CROWD {
                side.call(EMPTY).await;
                done.set(done.get() + 1);
            }
            return began.elapsed();
        }
        while began.elapsed() < span {
            side.call(PULL).await;
        }
        moving.set(moving.get() - 1);
        Duration::ZERO
    });
    let took = join_all(workers).await.into_iter().max().unwrap_or_default();
    f64::from(done.get()) / took.as_secs_f64()
}

/// A client of an RPC server.
pub(super) struct Requests {
    executor: Executor,
    rt: Handle,
    rpc: Rc<Rpc>,
    to: Peer,
    trouble: RefCell<Option<RpcError>>,
    server: Server,
    seats: Seats,
}

impl Requests {
    pub(super) fn start(provider: &str, mode: Mode, seats: Seats) -> Result<Self, BenchError> {
        Self::start_without(provider, mode, seats, &[])
    }

    /// A client that does without some of the provider's abilities.
    pub(super) fn start_without(
        provider: &str,
        mode: Mode,
        seats: Seats,
        without: &[Ability],
    ) -> Result<Self, BenchError> {
        let server = Server::start(mode, provider, seats)?;
        let executor = Executor::new().map_err(|error| failed("executor", &error))?;
        let rt = executor.handle();
        let near = Options::near(provider, "127.0.0.1", server.1);
        let options = Options { without: without.to_vec(), ..near };
        let endpoint = open(&rt, &options).map_err(|error| failed("endpoint", &error))?;
        touch(&*endpoint).map_err(|error| failed("endpoint", &error))?;
        let rpc = Rpc::new(rt.clone(), endpoint, settings(mode == Mode::Sealed));
        let to = Peer::new("127.0.0.1", server.1);
        let side = Self { executor, rt, rpc, to, trouble: RefCell::default(), server, seats };
        side.executor.block_on(side.call(EMPTY));
        Ok(side)
    }

    /// Where the server listens.
    pub(super) fn port(&self) -> u16 {
        self.server.1
    }

    /// The server's process id.
    pub(super) fn server_pid(&self) -> u32 {
        self.server.0.id()
    }

    /// One request with this many bytes and an empty answer.
    pub(super) fn ask(&self, len: usize) -> Result<(), BenchError> {
        let options = CallOptions::within(&self.rt, Duration::from_secs(30));
        let body = vec![7; len];
        let answer = self.executor.block_on(self.rpc.call(&self.to, EMPTY, &body, None, options));
        answer.map(|_| ()).map_err(|error| failed("RPC", &error))
    }

    async fn call(&self, opcode: u16) {
        let options = CallOptions::within(&self.rt, Duration::from_secs(10));
        let mut buffer = if opcode == EMPTY { None } else { self.rpc.alloc(LARGE).ok() };
        let bulk = buffer
            .as_mut()
            .map(|buffer| if opcode == PUSH { Bulk::write(buffer) } else { Bulk::read(buffer) });
        if let Err(error) = self.rpc.call(&self.to, opcode, &[7; SMALL], bulk, options).await {
            self.trouble.borrow_mut().get_or_insert(error);
        }
    }
}

impl Side for Requests {
    fn sample(&self, what: What, span: Duration) -> Result<f64, BenchError> {
        let rate = self.executor.block_on(async {
            match what {
                What::Alone => rate(span, 1, |_| self.call(EMPTY)).await,
                What::Together | What::OneWay => rate_of_tasks(&self.rt, &self.rpc, &self.to, span).await,
                What::Read | What::AskedRead => rate(span, 1, |_| self.call(PULL)).await,
                What::Write | What::AskedWrite => rate(span, 1, |_| self.call(PUSH)).await,
                What::Reads => rate(span, TRANSFERS, |_| self.call(PULL)).await,
                What::Writes => rate(span, TRANSFERS, |_| self.call(PUSH)).await,
                What::Beside => rate_beside(self, span).await,
            }
        });
        self.trouble.borrow_mut().take().map_or(Ok(rate), |error| Err(failed("RPC", &error)))
    }

    fn server(&self) -> &Server {
        &self.server
    }

    fn core(&self) -> usize {
        self.seats.client
    }
}
