//! Adding cells behind the last one, while other clients may do the same.
//!
//! One transaction reads where the array ends, and writes there what fits a commit: of two appends that find the same
//! end, one has to find it anew. For more data the client takes the *append lock*, a value of the first chunk's dkey
//! that such a transaction stores and any other finds and waits for. The lock has an end time, should its client not
//! release it. No request under the lock is executed after that, since none has a later deadline.

use core::time::Duration;

use weir_proto::object::Conditions;
use weir_proto::{Der, Epoch};

use super::{Array, CELLS, End, Range, batch, dkey_of, in_memory, name, split};
use crate::Result;
use crate::error::Error;
use crate::object::{AkeyRead, AkeyWrite};
use crate::session::Context;
use crate::transaction::{Restarts, Transaction};

/// The akey of the first chunk's dkey that holds the append lock.
const APPEND_LOCK: &[u8] = b"t";

/// Bytes of an append lock: a random number that identifies its holder, and the wall time in nanoseconds at which it ends.
const LOCK_LEN: usize = 16;

/// Most bytes that are appended by a commit: they leave room in a message for names, checksums and a capability.
const COMMITTED_MAX: usize = 12 * 1024;

/// How long an append lock lasts: a restart of an engine is within it.
const LOCK_LIFE: Duration = Duration::from_secs(30);

/// Nanoseconds of a second: a lock's end is stored in them.
const NANOSECONDS: u64 = 1_000_000_000;

/// How long requests under the lock last: so much shorter that neither the time that taking the lock took nor clocks that
/// differ by a second bring them beyond its end.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// What a try came to.
enum Tried {
    /// The data is written, from this cell on.
    Written(u64, Epoch),
    /// The lock is taken, to write from this cell on.
    Taken(u64),
    /// Another client has the lock.
    Busy,
}

impl Array {
    /// Writes cells behind the last one, in one piece, of an array that has at most `limit` then. Returns the first one's index,
    /// and the epoch of the last write.
    ///
    /// Of several that append at the same moment, none overwrites another. A write at a chosen index beyond the end, at the
    /// moment of an append of more than 12 KiB, may be overwritten by it.
    ///
    /// # Errors
    /// `OVERFLOW` where it would have more than `limit`; or as [`Array::write`]. After an error a first part may have been written.
    pub async fn append(&self, context: &Context, data: &[u8], limit: u64) -> Result<(u64, Epoch)> {
        let mut restarts = Restarts::new(context);
        let (mut begin, nonce) = (None, context.runtime().random_u64());
        loop {
            match self.try_append(context, (data, limit), nonce, begin).await {
                Ok(Tried::Written(at, epoch)) => return Ok((at, epoch)),
                Ok(Tried::Taken(at)) => {
                    begin = Some(at);
                    context.set_limit(Some(LOCK_LIMIT));
                    let written = self.under_lock(context, at, data).await;
                    context.set_limit(None);
                    match written {
                        Ok(epoch) => return Ok((at, epoch)),
                        // The engine may come back within the time of the whole.
                        Err(Error::Unavailable { .. }) if !restarts.is_over(context) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(Tried::Busy) => {
                    let busy = "somebody else appends".to_owned();
                    let error = Error::refused("append to", &self.object, Der::TX_RESTART, busy);
                    restarts.again(context, error).await?;
                }
                Err(error) => restarts.again(context, error).await?,
            }
        }
    }

    /// Finds the end, and writes there or takes the lock. `before` is where it was to write under an earlier lock that failed.
    async fn try_append(
        &self,
        context: &Context,
        (data, limit): (&[u8], u64),
        nonce: u64,
        before: Option<u64>,
    ) -> Result<Tried> {
        let cells = data.len() as u64 / self.cell();
        let mut transaction = Transaction::begin(context, self.object.container());
        let view = Self { object: transaction.view(&self.object), ..self.clone() };
        let now = context.runtime().wall_ns();
        let held = view.append_lock(context).await?;
        let is_own = held.is_some_and(|(holder, _)| holder == nonce);
        if held.is_some_and(|(_, ends)| ends > now) && !is_own {
            return Ok(Tried::Busy);
        }
        // A lock that no other client took in between has written nothing but the beginning of the same.
        let at = match before.filter(|_| is_own) {
            Some(at) => at,
            None => view.size(context).await?,
        };
        let end = at.checked_add(cells).filter(|end| *end <= limit).ok_or_else(|| {
            let reason = format!("{cells} cells behind cell {at} are more than {limit} allow");
            Error::Size { operation: "append to", reason, der: Der::OVERFLOW }
        })?;
        if end > self.attributes.chunk_cells && !self.is_marked() {
            // Later chunks are looked for only where the mark is, and this transaction has found none.
            self.mark(context).await?;
            return Err(Error::refused("append to", &self.object, Der::TX_RESTART, "it gets a second chunk"));
        }
        if data.len() > COMMITTED_MAX {
            let ends = now.saturating_add(LOCK_LIFE.as_secs() * NANOSECONDS);
            let value = [nonce.to_le_bytes(), ends.to_le_bytes()].concat();
            let write = AkeyWrite::single(name(APPEND_LOCK)?, &value);
            transaction.update(&self.object, &dkey_of(0), Conditions::NONE, &[write])?;
            transaction.commit(context).await?;
            return Ok(Tried::Taken(at));
        }
        let range = Range { index: at, count: cells };
        let pieces = split(&[range], self.cell(), self.attributes.chunk_cells)
            .map_err(|error| Error::invalid("append to", error))?;
        for batch in batch(&pieces, self.cell()) {
            let len: u64 = batch.extents.iter().map(|extent| extent.count * self.cell()).sum();
            let part = &data[in_memory(batch.offset)..in_memory(batch.offset + len)];
            let write = AkeyWrite::array(name(CELLS)?, self.attributes.cell_size, batch.extents, vec![part]);
            transaction.update(&self.object, &dkey_of(batch.chunk), Conditions::NONE, &[write])?;
        }
        Ok(Tried::Written(at, transaction.commit(context).await?))
    }

    /// Holder and end of the lock, if it is stored.
    async fn append_lock(&self, context: &Context) -> Result<Option<(u64, u64)>> {
        let mut value = [0; LOCK_LEN];
        let mut reads = [AkeyRead::single(name(APPEND_LOCK)?, &mut value)];
        let found = self.object.fetch(context, &dkey_of(0), Conditions::NONE, &mut reads).await?;
        if found.first().is_none_or(|found| found.size != LOCK_LEN as u64) {
            return Ok(None);
        }
        let word =
            |at: usize| value[at..at + 8].iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        Ok(Some((word(0), word(8))))
    }

    /// Writes chunk by chunk, so that a concurrent reader finds a beginning, and releases the lock.
    async fn under_lock(&self, context: &Context, mut at: u64, data: &[u8]) -> Result<Epoch> {
        let (mut left, mut epoch) = (data, Epoch::ZERO);
        while !left.is_empty() {
            let room =
                (self.attributes.chunk_cells - at % self.attributes.chunk_cells).saturating_mul(self.cell());
            let (part, rest) = left.split_at(in_memory(room).min(left.len()));
            let count = part.len() as u64 / self.cell();
            epoch = self.write(context, &[Range { index: at, count }], &[part]).await?;
            (left, at) = (rest, at + count);
        }
        let write = AkeyWrite::remove(name(APPEND_LOCK)?);
        // A lock that isn't released so ends with its time.
        let _ = self.object.update(context, &dkey_of(0), Conditions::NONE, &[write]).await;
        Ok(epoch)
    }

    /// Whether the mark is known to be there, or none is needed.
    fn is_marked(&self) -> bool {
        match &self.end {
            End::Scanned => true,
            End::Marked(marked) => marked.load(core::sync::atomic::Ordering::Relaxed),
        }
    }
}
