//! Leases: what a client has open of the files whose last name other clients have removed.
//!
//! A mount renews one record, its lease, in rounds (*turns*). A client that removes the last name of a file while
//! others have leases enters the content as an *orphan* instead of freeing it. Every client names in its lease the
//! orphans that it has open. An orphan's content is freed when all clients that were there have released it ([`rule`]).
//! So no open and no close costs a message. What a dead client leaves is freed by the others, or by the next client.

mod locks;
mod orphans;
mod record;
mod rule;

use core::time::Duration;
use std::collections::BTreeMap;

use weir_client::{
    AkeyRead, AkeyWrite, Anchor, Conditions, Container, Context, Epoch, Object, Restarts, Transaction,
};
use weir_proto::limits::LIST_KEYS_MAX;
use weir_proto::{Der, Key, ObjectId};

use crate::entry::akey;
use crate::mount::directory_id;
use crate::superblock::CLIENTS_OID;
use crate::{Error, Result};
use orphans::Batches;
pub use record::ClientId;
use record::{ClientRecord, Pins, encode};
use rule::Observer;

/// Pause between two turns of a client. Space that is freed comes back after three or four of them.
pub const TURN: Duration = Duration::from_secs(3);

/// The akey of a lease.
const LEASE_KEY: &[u8] = b"c";

/// A client's lease on a container. It belongs to one task, which renews it.
#[derive(Debug)]
pub struct Lease {
    container: Container,
    id: ClientId,
    turn: u64,
    renewed: Epoch,
    origin: Vec<u8>,
    batches: Batches,
    observer: Observer,
    grants_locks: bool,
    lost_locks: bool,
    is_resumed: bool,
}

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RenewalOutcome {
    /// No other client has a lease.
    pub is_alone: bool,
    /// The others had given this client up: content that it had open may be gone.
    pub was_lost: bool,
    /// It granted locks, and another client does now.
    pub lost_locks: bool,
}

impl Lease {
    /// Stores a lease. From then on, what is opened by its name stays until it is closed, as long as the lease is renewed:
    /// [`Lease::take_turn`] every [`TURN`].
    ///
    /// `origin` is kept with the lease. Leases of others of which `is_dead` says so, by their origin, end now.
    ///
    /// # Errors
    /// When the handle does not allow writing; or an object error.
    pub async fn begin(
        context: &Context,
        container: &Container,
        origin: &[u8],
        is_dead: impl Fn(&[u8]) -> bool,
    ) -> Result<Self> {
        let mut id = [0; record::KEY_LEN];
        let (front, back) = id.split_at_mut(8);
        front.copy_from_slice(&context.runtime().random_u64().to_be_bytes());
        back.copy_from_slice(&context.runtime().random_u64().to_be_bytes());
        let mut lease = Self {
            container: container.clone(),
            id: ClientId(id),
            turn: 0,
            renewed: context.rpc().clock().now(context.runtime().wall_ns()),
            origin: origin.to_vec(),
            batches: Batches::default(),
            observer: Observer::default(),
            grants_locks: false,
            lost_locks: false,
            is_resumed: false,
        };
        lease.store(context, Conditions::NONE, Pins::Some(Vec::new())).await?;
        for (client, bytes) in lease.others(context).await? {
            let record = record::decode::<ClientRecord>(&bytes);
            if record.is_some_and(|record| is_dead(&record.origin)) {
                remove(context, container, client, &bytes).await?;
            }
        }
        Ok(lease)
    }

    /// The lease of a client that goes on in another process: that of a mount whose process has ended. It is renewed by
    /// the first turn, which also tells whether others have given the client up meanwhile. `granted_locks` says whether the
    /// client had the right to grant locks.
    ///
    /// # Errors
    /// An object error.
    pub async fn resume(
        context: &Context,
        container: &Container,
        origin: &[u8],
        client: ClientId,
        granted_locks: bool,
    ) -> Result<Self> {
        let stored = fetch(context, &clients(container)?, &key_of(client)?).await?;
        Ok(Self {
            container: container.clone(),
            id: client,
            // Whoever watches the client compares turns.
            turn: record::decode::<ClientRecord>(&stored).map_or(0, |record| record.turn),
            renewed: context.rpc().clock().now(context.runtime().wall_ns()),
            origin: origin.to_vec(),
            batches: Batches::default(),
            observer: Observer::default(),
            grants_locks: granted_locks,
            lost_locks: false,
            is_resumed: true,
        })
    }

    /// The holder of the lease.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.id
    }

    /// Whether it was another process' before, and no turn was taken since.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Whether this client has the right to grant locks.
    #[must_use]
    pub fn grants_locks(&self) -> bool {
        self.grants_locks
    }

    /// Renews the lease, and frees orphans that no client needs. `opened` is told of orphans and says which of them are
    /// open here; the others may not be opened any more.
    ///
    /// # Errors
    /// An object error. Then the lease was not renewed, or what was to be done besides is left to the next turn.
    pub async fn take_turn(
        &mut self,
        context: &Context,
        opened: impl FnOnce(&[ObjectId]) -> Vec<ObjectId>,
    ) -> Result<RenewalOutcome> {
        self.is_resumed = false;
        self.batches.list(context, &self.container).await?;
        let open = opened(&self.batches.oids());
        let pins = Pins::of(open.clone());
        let was_lost = match self.store(context, Conditions::DKEY_UPDATE, pins.clone()).await {
            Ok(()) => false,
            Err(Error::Client(error)) if error.is(Der::NONEXIST) => {
                if self.grants_locks && !self.restore_with_locks(context, pins.clone()).await? {
                    (self.grants_locks, self.lost_locks) = (false, true);
                }
                if !self.grants_locks {
                    self.store(context, Conditions::NONE, pins).await?;
                }
                true
            }
            Err(error) => return Err(error),
        };
        let others = self.others(context).await?;
        for (client, bytes) in self.observer.note(others.into_iter().collect()) {
            if remove(context, &self.container, client, &bytes).await? {
                self.observer.ended(client);
            }
        }
        self.observer.note_batches(&self.batches.keys());
        self.batches.free(context, &self.container, (self.id, &self.observer), &open).await?;
        Ok(RenewalOutcome { is_alone: self.observer.is_alone(), was_lost, lost_locks: self.lost_locks })
    }

    /// Ends the lease: nothing is open here any more.
    ///
    /// # Errors
    /// An object error; then the others wait until it has expired.
    pub async fn end(self, context: &Context) -> Result<()> {
        Ok(clients(&self.container)?.punch_dkeys(context, Conditions::NONE, &[key_of(self.id)?]).await?)
    }

    /// Stores the lease in its next turn, which counts when it is known to be stored: what was noted for a turn that failed is
    /// older than that number.
    async fn store(&mut self, context: &Context, conditions: Conditions, pins: Pins) -> Result<()> {
        let (turn, bytes) = self.record(pins);
        let (key, writes) = (key_of(self.id)?, [AkeyWrite::single(lease_key()?, &bytes)]);
        self.renewed = clients(&self.container)?.update(context, &key, conditions, &writes).await?;
        self.turn = turn;
        Ok(())
    }

    /// The next turn, and the lease as it is stored then.
    fn record(&self, pins: Pins) -> (u64, Vec<u8>) {
        let (turn, origin) = (self.turn + 1, self.origin.clone());
        (turn, encode(&ClientRecord { turn, before: self.renewed, origin, pins }))
    }

    /// The leases of others.
    async fn others(&self, context: &Context) -> Result<BTreeMap<ClientId, Vec<u8>>> {
        let mut leases = leases(context, &self.container).await?;
        leases.remove(&self.id);
        Ok(leases)
    }
}

fn clients(container: &Container) -> Result<Object> {
    Ok(Object::open(container, directory_id(container, CLIENTS_OID)?)?)
}

fn key_of(client: ClientId) -> Result<Key> {
    akey(&client.0)
}

fn lease_key() -> Result<Key> {
    akey(LEASE_KEY)
}

/// All leases of a container, as they are stored.
async fn leases(context: &Context, container: &Container) -> Result<BTreeMap<ClientId, Vec<u8>>> {
    let found = values(context, &clients(container)?, &lease_key()?).await?;
    Ok(found.into_iter().filter_map(|(key, bytes)| Some((ClientId::from_key(&key)?, bytes))).collect())
}

/// The dkeys of an object that have a value under an akey, with that.
async fn values(context: &Context, object: &Object, akey: &Key) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut anchor, mut found) = (Anchor::START, Vec::new());
    while !anchor.is_end() {
        let page = object.list_dkeys(context, &anchor, LIST_KEYS_MAX, Some(akey)).await?;
        for entry in page.entries {
            let value = entry.value.map(serde_bytes::ByteBuf::into_vec).filter(|value| !value.is_empty());
            found.extend(value.map(|value| (entry.key, value)));
        }
        anchor = page.next;
    }
    Ok(found)
}

/// A lease as it is stored; empty when there is none.
async fn fetch(context: &Context, clients: &Object, key: &Key) -> Result<Vec<u8>> {
    let mut bytes = vec![0; record::BYTES_MAX];
    let mut reads = [AkeyRead::single(lease_key()?, &mut bytes)];
    let found = clients.fetch(context, key, Conditions::NONE, &mut reads).await?;
    let size = found.first().map_or(0, |found| found.size);
    // A longer one is not a lease of this version. Its beginning equals none that was listed.
    if let Ok(size) = usize::try_from(size) {
        bytes.truncate(size);
    }
    Ok(bytes)
}

/// Removes the lease of a client that is gone, unless it was renewed. Whether it is removed.
async fn remove(context: &Context, container: &Container, client: ClientId, bytes: &[u8]) -> Result<bool> {
    let (object, key) = (clients(container)?, key_of(client)?);
    let mut restarts = Restarts::new(context);
    loop {
        let mut transaction = Transaction::begin(context, container);
        let tried = async {
            let found = fetch(context, &transaction.view(&object), &key).await?;
            if found != bytes {
                return Ok(found.is_empty());
            }
            transaction.punch_dkeys(&object, Conditions::NONE, core::slice::from_ref(&key))?;
            transaction.commit(context).await?;
            Ok(true)
        };
        match tried.await {
            Ok(removed) => return Ok(removed),
            Err(Error::Client(error)) => restarts.again(context, error).await?,
            Err(error) => return Err(error),
        }
    }
}
