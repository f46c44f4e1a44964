//! Which client grants locks: one, as long as its lease lasts. The others refuse them.

use weir_client::{AkeyRead, AkeyWrite, Conditions, Context, Epoch, Object, Restarts, Transaction};
use weir_proto::Key;

use super::record::{ClientId, ClientRecord, KEY_LEN, Pins, decode};
use super::rule::EXPIRED_TURNS;
use super::{Lease, TURN, clients, fetch, key_of, lease_key, remove};
use crate::entry::akey;
use crate::{Error, Result};

/// The dkey under which the client stands that grants locks, and its akey there.
const LOCKS: &[u8] = b"locks";

/// How far a client comes in this time that is alive, whose engine has just come back.
const LOOKS_AGAIN: u32 = 2;

impl Lease {
    /// Claims the right to grant locks. Whether this client has it then, until its lease ends.
    ///
    /// The former holder is waited for if its lease is so old that it may be dead.
    ///
    /// # Errors
    /// An object error.
    pub async fn claim_locks(&mut self, context: &Context) -> Result<bool> {
        loop {
            let Some((holder, bytes)) = self.take_locks(context, None).await? else {
                self.grants_locks = true;
                return Ok(true);
            };
            // The clocks of the one that wrote it may differ from that of the engine by now: this decides no more than whether it
            // is worth a look.
            let before = decode::<ClientRecord>(&bytes).map(|record| record.before);
            let age_ns = before.map_or(0, |before| self.renewed.wall_ns().saturating_sub(before.wall_ns()));
            if u128::from(age_ns) < (TURN * EXPIRED_TURNS).as_nanos() {
                return Ok(false);
            }
            context.runtime().sleep(TURN * LOOKS_AGAIN).await;
            if !remove(context, &self.container, holder, &bytes).await? {
                return Ok(false);
            }
        }
    }

    /// Stores the lease again that others have removed, provided that no other client has got the right to grant locks
    /// since.
    pub(super) async fn restore_with_locks(&mut self, context: &Context, pins: Pins) -> Result<bool> {
        Ok(self.take_locks(context, Some(pins)).await?.is_none())
    }

    /// Takes the right to grant locks, unless another client has it: that is returned with its lease. With pins, the lease is
    /// stored as well, or nothing.
    async fn take_locks(
        &mut self,
        context: &Context,
        pins: Option<Pins>,
    ) -> Result<Option<(ClientId, Vec<u8>)>> {
        let mut restarts = Restarts::new(context);
        loop {
            match self.try_take_locks(context, pins.clone()).await {
                Ok(taken) => return Ok(taken),
                Err(Error::Client(error)) => restarts.again(context, error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_take_locks(
        &mut self,
        context: &Context,
        pins: Option<Pins>,
    ) -> Result<Option<(ClientId, Vec<u8>)>> {
        let (object, locks) = (clients(&self.container)?, akey(LOCKS)?);
        let mut transaction = Transaction::begin(context, &self.container);
        let view = transaction.view(&object);
        let holder = holder(context, &view, &locks).await?;
        if let Some(holder) = holder.filter(|holder| *holder != self.id) {
            let lease = fetch(context, &view, &key_of(holder)?).await?;
            // A client that was given up while it had the right may not have it back.
            if pins.is_some() || !lease.is_empty() {
                return Ok(Some((holder, lease)));
            }
        }
        let writes = [AkeyWrite::single(locks.clone(), &self.id.0)];
        transaction.update(&object, &locks, Conditions::NONE, &writes)?;
        let stored = pins.map(|pins| self.record(pins));
        if let Some((_, bytes)) = &stored {
            let writes = [AkeyWrite::single(lease_key()?, bytes)];
            transaction.update(&object, &key_of(self.id)?, Conditions::NONE, &writes)?;
        }
        let epoch: Epoch = transaction.commit(context).await?;
        if let Some((turn, _)) = stored {
            (self.turn, self.renewed) = (turn, epoch);
        }
        Ok(None)
    }
}

/// The last holder of the right to grant locks.
async fn holder(context: &Context, clients: &Object, locks: &Key) -> Result<Option<ClientId>> {
    let mut id = [0; KEY_LEN];
    let mut reads = [AkeyRead::single(locks.clone(), &mut id)];
    let found = clients.fetch(context, locks, Conditions::NONE, &mut reads).await?;
    Ok(found.first().filter(|found| found.size == KEY_LEN as u64).map(|_| ClientId(id)))
}
