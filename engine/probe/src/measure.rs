//! The measurement.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;

use weir_fabric::Buffer;
use weir_proto::probe::ProbeListener;
use weir_proto::{codec, opcode};
use weir_rpc::{Bulk, CallOptions, Peer, Rpc, RpcError};
use weir_runtime::Handle;

/// Bytes of a small request.
pub const REQUEST_LEN: usize = 64;

/// Bytes of a transfer.
pub const TRANSFER_LEN: usize = 1 << 20;

/// Bytes in a MiB, for rates.
const MIB: f64 = 1_048_576.0;

/// How a round measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Time for each figure.
    pub span: Duration,
    /// Requests in flight where their rate is measured.
    pub in_flight: usize,
    /// Longest wait for one answer.
    pub patience: Duration,
}

/// What one round has found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Round {
    /// Microseconds of each lone round trip; at least one.
    pub times: Vec<f64>,
    /// Requests per second, many in flight.
    pub requests: f64,
    /// MiB per second that the server read of this side's memory.
    pub write: f64,
    /// MiB per second that it wrote to it.
    pub read: f64,
}

/// What several rounds have found.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Half of the round trips took at most this long, in microseconds.
    pub median: f64,
    /// All but one in a hundred.
    pub slow: f64,
    /// Requests per second, many in flight.
    pub requests: f64,
    /// MiB per second to the server.
    pub write: f64,
    /// MiB per second from it.
    pub read: f64,
}

/// The value that this share, in hundredths, is not above. Not a number where there are no values.
fn percentile(mut values: Vec<f64>, share: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() * share / 100).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}

impl Figures {
    /// Percentiles over all round trips, and the middle round of each rate.
    #[must_use]
    pub fn of(rounds: &[Round]) -> Self {
        let times: Vec<f64> = rounds.iter().flat_map(|round| round.times.iter().copied()).collect();
        let middle = |rate: fn(&Round) -> f64| percentile(rounds.iter().map(rate).collect(), 50);
        Self {
            median: percentile(times.clone(), 50),
            slow: percentile(times, 99),
            requests: middle(|round| round.requests),
            write: middle(|round| round.write),
            read: middle(|round| round.read),
        }
    }

    /// How many times those of `other` these figures are: the middle of the ratios of neighbouring rounds, so that what
    /// else the machine does meets both.
    #[must_use]
    pub fn ratios(rounds: &[Round], other: &[Round]) -> Self {
        let ratio = |value: &dyn Fn(&Round) -> f64| {
            let ratios = rounds.iter().zip(other).map(|(own, other)| value(own) / value(other));
            percentile(ratios.collect(), 50)
        };
        Self {
            median: ratio(&|round| percentile(round.times.clone(), 50)),
            slow: ratio(&|round| percentile(round.times.clone(), 99)),
            requests: ratio(&|round| round.requests),
            write: ratio(&|round| round.write),
            read: ratio(&|round| round.read),
        }
    }
}

async fn call(
    rt: &Handle,
    rpc: &Rc<Rpc>,
    to: &Peer,
    (opcode, patience): (u16, Duration),
    bulk: Option<Bulk<'_>>,
) -> Result<(), RpcError> {
    let options = CallOptions::within(rt, patience);
    rpc.call(to, opcode, &[0; REQUEST_LEN], bulk, options).await.map(drop)
}

/// Where else a server is measured, if it says so within `patience`. One that is older than the question is not.
///
/// # Errors
/// When the server doesn't answer, or what it says makes no sense.
pub async fn listeners(
    rt: &Handle,
    rpc: &Rc<Rpc>,
    to: &Peer,
    patience: Duration,
) -> Result<Vec<ProbeListener>, RpcError> {
    let options = CallOptions::within(rt, patience);
    match rpc.call(to, opcode::PROBE_LIST, &[], None, options).await {
        Ok(reply) => codec::decode_message(&reply).map_err(|error| RpcError::Unreachable {
            peer: to.clone(),
            reason: format!("its list of listeners for measurements is none: {error}"),
        }),
        Err(RpcError::Remote(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Measures a server that [`crate::serve`]s, once.
///
/// # Errors
/// When a request or transfer fails.
pub async fn measure(rt: &Handle, rpc: &Rc<Rpc>, to: &Peer, plan: Plan) -> Result<Round, RpcError> {
    // The first request makes contact.
    call(rt, rpc, to, (opcode::PING, plan.patience), None).await?;
    let mut times = Vec::new();
    let began = rt.now();
    let mut last = began;
    while times.is_empty() || last - began < plan.span {
        call(rt, rpc, to, (opcode::PING, plan.patience), None).await?;
        let now = rt.now();
        times.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    let requests = rate(rt, rpc, to, plan).await?;
    let mut memory = rpc.alloc(TRANSFER_LEN)?;
    let write = transfers(rt, rpc, to, plan, (opcode::PROBE_PULL, &mut memory)).await?;
    let read = transfers(rt, rpc, to, plan, (opcode::PROBE_PUSH, &mut memory)).await?;
    Ok(Round { times, requests, write, read })
}

/// MiB per second, one transfer after another.
async fn transfers(
    rt: &Handle,
    rpc: &Rc<Rpc>,
    to: &Peer,
    plan: Plan,
    (opcode, memory): (u16, &mut Buffer),
) -> Result<f64, RpcError> {
    let began = rt.now();
    let mut count = 0u32;
    while count == 0 || rt.now() - began < plan.span {
        let bulk = if opcode == opcode::PROBE_PULL { Bulk::read(memory) } else { Bulk::write(memory) };
        call(rt, rpc, to, (opcode, plan.patience), Some(bulk)).await?;
        count += 1;
    }
    let seconds = (rt.now() - began).as_secs_f64();
    Ok(f64::from(count) * (f64::from(u32::try_from(TRANSFER_LEN).unwrap_or(u32::MAX)) / MIB) / seconds)
}

/// Requests per second, each of those in flight made by a task of its own.
async fn rate(rt: &Handle, rpc: &Rc<Rpc>, to: &Peer, plan: Plan) -> Result<f64, RpcError> {
    let done = Rc::new((Cell::new(0u32), RefCell::new(None)));
    let began = rt.now();
    let tasks: Vec<_> = (0..plan.in_flight.max(1))
        .map(|_| {
            let (inner, rpc, to, done) = (rt.clone(), Rc::clone(rpc), to.clone(), Rc::clone(&done));
            rt.spawn(async move {
                let (count, failed) = &*done;
                while failed.borrow().is_none() && inner.now() - began < plan.span {
                    match call(&inner, &rpc, &to, (opcode::PING, plan.patience), None).await {
                        Ok(()) => count.set(count.get() + 1),
                        Err(error) => drop(failed.borrow_mut().replace(error)),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        // None of them is aborted.
        let _ = task.await;
    }
    let (count, failed) = &*done;
    match failed.take() {
        Some(error) => Err(error),
        None => Ok(f64::from(count.get()) / (rt.now() - began).as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Listener, announce, serve};
    use weir_fabric::{LOOPBACK, Options, open};
    use weir_proto::capability::SystemKey;
    use weir_proto::{TenantId, TenantKey};
    use weir_rpc::{Keys, RpcConfig};
    use weir_runtime::real::Executor;

    const KEY: SystemKey = SystemKey([5; 32]);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn round(time: f64, requests: f64) -> Round {
        Round { times: vec![time; 3], requests, write: requests / 2.0, read: requests / 4.0 }
    }

    #[test]
    fn figures_and_ratios_are_those_of_the_middle_turn() {
        let own = [round(1.0, 10.0), round(3.0, 30.0), round(2.0, 20.0)];
        let other = [round(2.0, 10.0), round(3.0, 10.0), round(8.0, 10.0)];
        let figures = Figures::of(&own);
        assert_eq!((figures.median, figures.slow, figures.requests), (2.0, 3.0, 20.0));
        let ratios = Figures::ratios(&own, &other);
        assert_eq!((ratios.median, ratios.requests, ratios.read), (0.5, 2.0, 2.0));
        assert!(Figures::of(&[]).median.is_nan());
    }

    /// A port that no process uses at the moment.
    fn free_port() -> u16 {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        socket.local_addr().expect("bound").port()
    }

    fn client(executor: &Executor, provider: &str, port: u16, key: TenantKey) -> Rc<Rpc> {
        let endpoint = open(&executor.handle(), &Options::near(provider, "127.0.0.1", port));
        let config = RpcConfig { keys: Some(Keys::Tenant(key)), ..RpcConfig::default() };
        Rpc::new(executor.handle(), endpoint.expect("an endpoint"), config)
    }

    #[test]
    fn a_listener_answers_every_figure_and_only_those_who_have_a_key() {
        // Endpoints of one process do not see each other on every provider: tcp's do everywhere.
        for provider in LOOPBACK.iter().filter(|provider| **provider != "shm") {
            let port = free_port();
            let options = Options::listen(provider, "127.0.0.1", port);
            let listener = Listener::start(options.clone(), KEY).expect("a free port");
            assert!(Listener::start(options, KEY).is_err(), "{provider}: the port is taken");
            let executor = Executor::new().expect("an executor");
            let rt = executor.handle();
            let to = Peer::new("127.0.0.1", port);
            let plan = Plan { span: Duration::from_millis(5), in_flight: 4, patience: PATIENCE };
            let rpc = client(&executor, provider, port, KEY.tenant(TenantId(3)));
            let round = executor.block_on(measure(&rt, &rpc, &to, plan)).expect("answers");
            for figure in [round.times[0], round.requests, round.write, round.read] {
                assert!(figure.is_finite() && figure > 0.0, "{provider}: {round:?}");
            }
            let none = executor.block_on(listeners(&rt, &rpc, &to, PATIENCE));
            assert_eq!(none, Ok(Vec::new()), "{provider}: a listener announces nothing");
            let stranger = client(&executor, provider, port, TenantKey::new(TenantId(3), [9; 32]));
            let refused = executor.block_on(measure(&rt, &stranger, &to, plan));
            assert!(matches!(refused, Err(RpcError::Denied { .. })), "{provider}: {refused:?}");
            drop(listener);
        }
    }

    #[test]
    fn a_server_tells_where_else_it_is_measured() {
        let (executor, port) = (Executor::new().expect("an executor"), free_port());
        let rt = executor.handle();
        let endpoint = open(&rt, &Options::listen("tcp", "127.0.0.1", port)).expect("an endpoint");
        let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
        let server = Rpc::new(rt.clone(), endpoint, config);
        serve(&server);
        let listed = vec![ProbeListener { provider: "shm".to_owned(), port: 9 }];
        announce(&server, &listed);
        let rpc = client(&executor, "tcp", port, KEY.tenant(TenantId(3)));
        let to = Peer::new("127.0.0.1", port);
        assert_eq!(executor.block_on(listeners(&rt, &rpc, &to, PATIENCE)), Ok(listed));
    }

    #[test]
    fn nobody_waits_longer_for_an_answer_than_he_says() {
        let executor = Executor::new().expect("an executor");
        let (rt, port) = (executor.handle(), free_port());
        let rpc = client(&executor, "tcp", port, KEY.tenant(TenantId(3)));
        let to = Peer::new("127.0.0.1", port);
        let patience = Duration::from_millis(300);
        let plan = Plan { span: Duration::from_millis(5), in_flight: 4, patience };
        let began = rt.now();
        executor.block_on(measure(&rt, &rpc, &to, plan)).expect_err("nobody is there");
        executor.block_on(listeners(&rt, &rpc, &to, patience)).expect_err("nobody is there");
        assert!(rt.now() - began < Duration::from_secs(5), "{:?}", rt.now() - began);
    }
}
