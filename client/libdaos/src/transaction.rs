//! Transactions: several calls that read one state, and whose changes happen together.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_client::{Array, Container, Context, Epoch, Error, Object, Restarts, Rights, Transaction};
use weir_proto::Der;

use crate::boundary::{Outcome, der_of, guarded, operation, required, run};
use crate::handle::{self, Opened};
use crate::types::{daos_event_t, daos_handle_t};

/// Opens a transaction that changes nothing (`DAOS_TF_RDONLY`).
const READ_ONLY: u64 = 1;

/// Has the caller's data stay where it is until the commit (`DAOS_TF_ZERO_COPY`). It is copied all the same.
const ZERO_COPY: u64 = 2;

/// What a transaction's handle stands for.
pub enum Tx {
    /// A snapshot, to be read.
    Snapshot {
        /// The container it was taken of.
        container: Container,
        /// When.
        epoch: Epoch,
    },
    /// Reads of one state, and changes.
    Changes {
        /// The container that all of it is in.
        container: Container,
        /// It takes no changes.
        is_read_only: bool,
        /// How far it is.
        state: Mutex<State>,
    },
}

/// How far a transaction is, how often it was, and when it reads.
pub struct State {
    phase: Phase,
    epoch: Epoch,
    restarts: Restarts,
}

enum Phase {
    /// It takes calls.
    Open(Transaction),
    /// Its commit is under way, or it is about to begin anew.
    Busy,
    /// Another client was first: it has to be started again.
    Failed,
    /// It has happened.
    Committed,
    /// It was given up.
    Aborted,
    /// Whether it has happened isn't known.
    Uncertain,
}

impl Phase {
    /// Why it takes no calls.
    fn refusal(&self) -> Der {
        match self {
            Self::Busy => Der::TX_BUSY,
            Self::Failed => Der::TX_RESTART,
            Self::Uncertain => Der::TX_UNCERTAIN,
            Self::Open(_) | Self::Committed | Self::Aborted => Der::NO_PERM,
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a call belongs to.
#[derive(Clone)]
pub enum Scope {
    /// It is by itself (`DAOS_TX_NONE`).
    Alone,
    /// A transaction.
    Within(Arc<Tx>),
}

/// What the handle that was given with a call says.
pub fn scope(th: daos_handle_t) -> Result<Scope, Der> {
    if th.cookie == 0 { Ok(Scope::Alone) } else { handle::transaction(th).map(Scope::Within) }
}

impl Scope {
    /// The object as the call is to read it.
    pub fn view(&self, object: &Object) -> Result<Object, Der> {
        let Self::Within(tx) = self else { return Ok(object.clone()) };
        tx.check(object)?;
        match &**tx {
            Tx::Snapshot { epoch, .. } => Ok(object.at(*epoch)),
            Tx::Changes { state, .. } => match &lock(state).phase {
                Phase::Open(transaction) => Ok(transaction.view(object)),
                other => Err(other.refusal()),
            },
        }
    }

    /// The array as the call is to read it: as it is, or as it was at a snapshot.
    pub fn view_array(&self, array: &Array) -> Result<Array, Der> {
        match self {
            Self::Alone => Ok(array.clone()),
            Self::Within(tx) => {
                tx.check(array.object())?;
                tx.snapshot().map(|epoch| array.at(epoch))
            }
        }
    }

    /// Checks that the call opens something: in no transaction, or to read a snapshot.
    pub fn check_open(&self) -> Outcome {
        match self {
            Self::Alone => Ok(()),
            Self::Within(tx) => tx.snapshot().map(drop),
        }
    }

    /// Checks that the call, which can't be a part of a transaction, is by itself.
    pub fn check_alone(&self) -> Outcome {
        match self {
            Self::Alone => Ok(()),
            Self::Within(tx) => tx.snapshot().and(Err(Der::NO_PERM)),
        }
    }

    /// Notes a change of an object for the commit; where the call is by itself, makes it now.
    pub async fn change(
        &self,
        object: &Object,
        note: impl FnOnce(&mut Transaction) -> Result<(), Error>,
        now: impl Future<Output = Result<(), Error>>,
    ) -> Outcome {
        let Self::Within(tx) = self else { return now.await.map_err(der_of) };
        tx.check(object)?;
        match &**tx {
            Tx::Snapshot { .. } | Tx::Changes { is_read_only: true, .. } => Err(Der::NO_PERM),
            Tx::Changes { state, .. } => match &mut lock(state).phase {
                Phase::Open(transaction) => note(transaction).map_err(der_of),
                other => Err(other.refusal()),
            },
        }
    }

    /// Notes how a call has ended: a transaction that has to start again takes no more.
    pub fn ended(&self, outcome: Outcome) -> Outcome {
        self.ended_with(outcome)
    }

    /// As [`Scope::ended`], of a call that finds something.
    pub fn ended_with<T>(&self, outcome: Result<T, Der>) -> Result<T, Der> {
        if matches!(outcome, Err(Der::TX_RESTART))
            && let Self::Within(tx) = self
            && let Tx::Changes { state, .. } = &**tx
        {
            let mut state = lock(state);
            if matches!(state.phase, Phase::Open(_)) {
                state.phase = Phase::Failed;
            }
        }
        outcome
    }
}

impl Tx {
    const fn container(&self) -> &Container {
        match self {
            Self::Snapshot { container, .. } | Self::Changes { container, .. } => container,
        }
    }

    /// Checks that an object is in the container of the transaction.
    fn check(&self, object: &Object) -> Outcome {
        let (own, other) = (self.container(), object.container());
        if own.id() == other.id() && own.pool().id() == other.pool().id() { Ok(()) } else { Err(Der::INVAL) }
    }

    /// The epoch of a snapshot. Arrays are no part of transactions that change something: their changes need not fit one.
    fn snapshot(&self) -> Result<Epoch, Der> {
        match self {
            Self::Snapshot { epoch, .. } => Ok(*epoch),
            Self::Changes { .. } => Err(Der::NOTSUPPORTED),
        }
    }
}

/// Opens a transaction.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_open(
    coh: daos_handle_t,
    th: *mut daos_handle_t,
    flags: u64,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(th)?);
        if flags & !(READ_ONLY | ZERO_COPY) != 0 {
            return Err(Der::INVAL);
        }
        let is_read_only = flags & READ_ONLY != 0 || !container.rights().allows(Rights::WRITE);
        Ok(operation(move |context| async move {
            let transaction = Transaction::begin(&context, &container);
            let (epoch, restarts) = (transaction.epoch(), Restarts::new(&context));
            let state = Mutex::new(State { phase: Phase::Open(transaction), epoch, restarts });
            let tx = Tx::Changes { container, is_read_only, state };
            place.set(handle::issue(Opened::Transaction(Arc::new(tx)))?);
            Ok(())
        }))
    })
}

/// Opens a transaction that reads a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_open_snap(
    coh: daos_handle_t,
    epoch: u64,
    th: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(th)?);
        if epoch == 0 || epoch == Epoch::MAX.0 {
            return Err(Der::INVAL);
        }
        Ok(operation(move |_| async move {
            let tx = Tx::Snapshot { container, epoch: Epoch(epoch) };
            place.set(handle::issue(Opened::Transaction(Arc::new(tx)))?);
            Ok(())
        }))
    })
}

/// Makes the changes of a transaction, all or none.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_commit(th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let tx = handle::transaction(th)?;
        Ok(operation(move |context| async move { commit(&context, &tx).await }))
    })
}

async fn commit(context: &Context, tx: &Tx) -> Outcome {
    // To a snapshot there is nothing to do.
    let Tx::Changes { state, .. } = tx else { return Ok(()) };
    let transaction = match &mut lock(state).phase {
        Phase::Committed => return Err(Der::ALREADY),
        phase @ Phase::Open(_) => core::mem::replace(phase, Phase::Busy),
        other => return Err(other.refusal()),
    };
    let Phase::Open(transaction) = transaction else { return Err(Der::MISC) };
    let mut end = End { state, phase: Some(Phase::Uncertain) };
    let done = transaction.commit(context).await;
    let (phase, outcome) = match done {
        Ok(_) => (Phase::Committed, Ok(())),
        Err(Error::Unavailable { .. }) => (Phase::Uncertain, Err(Der::TX_UNCERTAIN)),
        // Nothing has happened, and may when it is started again.
        Err(error) => (Phase::Failed, Err(error.der())),
    };
    end.phase = Some(phase);
    outcome
}

/// The phase behind a call, also behind one that is dropped before its end, with the queue of its event.
struct End<'a> {
    state: &'a Mutex<State>,
    phase: Option<Phase>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if let Some(phase) = self.phase.take() {
            lock(self.state).phase = phase;
        }
    }
}

/// Gives a transaction up.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_abort(th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let tx = handle::transaction(th)?;
        Ok(operation(move |_| async move {
            let Tx::Changes { state, .. } = &*tx else { return Ok(()) };
            match &mut lock(state).phase {
                phase @ (Phase::Open(_) | Phase::Failed) => *phase = Phase::Aborted,
                Phase::Aborted => return Err(Der::ALREADY),
                other => return Err(other.refusal()),
            }
            Ok(())
        }))
    })
}

/// Begins a transaction anew, without what it was to change, at a newer epoch.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_restart(th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let tx = handle::transaction(th)?;
        Ok(operation(move |context| async move { restart(&context, &tx).await }))
    })
}

async fn restart(context: &Context, tx: &Tx) -> Outcome {
    let Tx::Changes { container, state, .. } = tx else { return Err(Der::NO_PERM) };
    let mut restarts = {
        let mut state = lock(state);
        match &mut state.phase {
            phase @ (Phase::Open(_) | Phase::Failed) => *phase = Phase::Busy,
            other => return Err(other.refusal()),
        }
        state.restarts.clone()
    };
    let mut end = End { state, phase: Some(Phase::Failed) };
    restarts.wait(context).await;
    end.phase = None;
    let transaction = Transaction::begin(context, container);
    let epoch = transaction.epoch();
    *lock(state) = State { phase: Phase::Open(transaction), epoch, restarts };
    Ok(())
}

/// Ends the use of a transaction. One that is open changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_close(th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    handle::close(th, ev, handle::transaction)
}

/// The epoch at which a transaction reads.
#[unsafe(no_mangle)]
pub extern "C" fn daos_tx_hdl2epoch(th: daos_handle_t, epoch: *mut u64) -> c_int {
    guarded(|| {
        let (tx, place) = (handle::transaction(th)?, required(epoch)?);
        place.set(match &*tx {
            Tx::Snapshot { epoch, .. } => epoch.0,
            Tx::Changes { state, .. } => lock(state).epoch.0,
        });
        Ok(())
    })
}

/// Time of an epoch.
#[unsafe(no_mangle)]
pub extern "C" fn daos_hlc2timespec(hlc: u64, ts: *mut libc::timespec) -> c_int {
    guarded(|| {
        let (place, ns) = (required(ts)?, Epoch(hlc).wall_ns());
        let seconds = i64::try_from(ns / 1_000_000_000).map_err(|_| Der::OVERFLOW)?;
        let rest = i64::try_from(ns % 1_000_000_000).map_err(|_| Der::OVERFLOW)?;
        place.set(libc::timespec { tv_sec: seconds, tv_nsec: rest });
        Ok(())
    })
}

/// Time of an epoch in seconds.
#[unsafe(no_mangle)]
pub extern "C" fn daos_hlc2timestamp(hlc: u64, ts: *mut libc::time_t) -> c_int {
    guarded(|| {
        let place = required(ts)?;
        place.set(i64::try_from(Epoch(hlc).wall_ns() / 1_000_000_000).map_err(|_| Der::OVERFLOW)?);
        Ok(())
    })
}
