//! Fetches.

use core::cell::Cell;

use weir_fabric::Buffer;
use weir_proto::limits::{INLINE_MAX, PAYLOAD_MAX};
use weir_proto::object::{AkeyFetch, Conditions, Extent, FetchReply, FetchRequest, Fetched, Value};
use weir_proto::transaction::encode_read;
use weir_proto::{Der, Key, Rank, TargetIndex, codec, opcode};
use weir_runtime::Instant;

use super::update::check_conditions;
use super::{Object, ReplicaChoice, ShardChoice, large};
use crate::Result;
use crate::error::Error;
use crate::operation::{
    LEND_MIN, LEND_PIECES_MAX, Payload, RequestInfo,
    checksum::{crc32c, crc32c_of},
    scatter,
};
use crate::session::Context;

/// One akey of a fetch.
#[derive(Debug)]
pub struct AkeyRead<'a> {
    /// The akey.
    pub akey: Key,
    /// What is read.
    pub value: Value,
    /// Conditions of this akey, with [`Conditions::PER_AKEY`].
    pub conditions: Conditions,
    /// Where the bytes go, in order. Bytes of holes and bytes behind a short value are left as they are.
    pub into: Vec<&'a mut [u8]>,
    /// Whether bytes of holes may become zeros instead.
    pub zero_holes: bool,
}

impl<'a> AkeyRead<'a> {
    /// A single value of at most `into.len()` bytes; [`Fetched::size`] tells how many it has.
    #[must_use]
    pub fn single(akey: Key, into: &'a mut [u8]) -> Self {
        let value = Value::Single { size: into.len() as u64 };
        Self { akey, value, conditions: Conditions::NONE, into: vec![into], zero_holes: false }
    }

    /// Records of an array. With record size 0 only the record size is asked for.
    #[must_use]
    pub fn array(akey: Key, record_size: u32, extents: Vec<Extent>, into: Vec<&'a mut [u8]>) -> Self {
        let value = Value::Array { record_size, extents };
        Self { akey, value, conditions: Conditions::NONE, into, zero_holes: false }
    }
}

/// What is done, for errors.
const OPERATION: &str = "fetch";

const FETCH_CONDITIONS: Conditions = Conditions(8 | 64 | 128);

/// What is asked for, however often.
struct Wish<'a> {
    dkey: &'a Key,
    conditions: Conditions,
    akeys: Vec<AkeyFetch>,
    /// Most bytes that may come.
    wanted: u64,
    deadline: Instant,
    /// The target that has answered last.
    answered: Cell<Option<(Rank, TargetIndex)>>,
}

/// How it is asked for.
#[derive(Clone, Copy)]
struct Manner {
    /// The engine leaves it to this side to compare data with its checksums, which this side does in any case.
    to_compare: bool,
    /// The data may come to the memory of the caller straight.
    lends: bool,
}

impl Object {
    /// Reads akeys of one dkey. What was found stands in the result, in the order of `reads`; a missing akey has
    /// size 0. After an error the memory's content is undefined; it may have damaged data, too, while the call runs.
    ///
    /// Data is compared with its writer's checksums before it is reported as present. Data longer than a message is
    /// compared here only, not by the engine. If it doesn't match, the client asks the engine once more, for data that
    /// the engine has compared. Then damage on its device is reported with its place, and damage on the way is
    /// repaired.
    ///
    /// More data than [`PAYLOAD_MAX`] comes by several requests, one after another: unless the object is read at an epoch, changes
    /// that happen meanwhile may be seen in some of it only.
    ///
    /// # Errors
    /// `NONEXIST` under a fetch condition, `REC_SIZE` when the record size is not the akey's, `CSUM` when data was
    /// altered, `INVAL` for malformed arguments, `REC2BIG` when memory for more than [`PAYLOAD_MAX`] is shorter than the data, and
    /// [`Error::Unavailable`] when the target does not answer in time.
    pub async fn fetch(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        reads: &mut [AkeyRead<'_>],
    ) -> Result<Vec<Fetched>> {
        check_conditions(OPERATION, conditions, FETCH_CONDITIONS)?;
        if large::is_large(reads.iter().map(|read| &read.value)) {
            // Boxed, since it is rare and part of every fetch's future.
            return Box::pin(self.fetch_in_parts(context, dkey, conditions, reads)).await;
        }
        self.fetch_once(context, dkey, conditions, reads).await
    }

    /// As [`Self::fetch`], by one request.
    pub(super) async fn fetch_once(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        reads: &mut [AkeyRead<'_>],
    ) -> Result<Vec<Fetched>> {
        let wanted = weir_proto::object::validate(reads.iter().map(|read| (&read.akey, &read.value)))
            .map_err(|error| Error::invalid(OPERATION, error))?;
        let akeys = reads.iter().map(|read| AkeyFetch {
            akey: read.akey.clone(),
            value: read.value.clone(),
            conditions: read.conditions,
        });
        let (akeys, deadline, answered) = (akeys.collect(), context.until(), Cell::new(None));
        let wish = Wish { dkey, conditions, akeys, wanted, deadline, answered };
        let to_compare = wanted > INLINE_MAX as u64;
        let outcome = self.ask(context, &wish, Manner { to_compare, lends: true }, reads).await;
        let lends = match &outcome {
            Err(Error::Checksum { .. }) if to_compare => {
                context.count_altered();
                // What came may lie where there are holes by now.
                for read in reads.iter_mut().filter(|read| read.zero_holes) {
                    scatter::zero(&mut read.into, 0, usize::MAX);
                }
                // To memory of our own, which no other code can have altered.
                false
            }
            // An engine of before there was anything else.
            Err(error) if to_compare && error.is(Der::NOSYS) => true,
            _ => return outcome,
        };
        // The same replica again, which finds out in this way if its data is damaged.
        let again = match (self.replica, wish.answered.get()) {
            (ReplicaChoice::Any, Some(place)) => {
                Self { replica: ReplicaChoice::First(place), ..self.clone() }
            }
            _ => self.clone(),
        };
        // Boxed, since it is rare and part of every fetch's future.
        Box::pin(again.ask(context, &wish, Manner { to_compare: false, lends }, reads)).await
    }

    /// Asks for data, compares it with its checksums and puts it in its place.
    async fn ask(
        &self,
        context: &Context,
        wish: &Wish<'_>,
        manner: Manner,
        reads: &mut [AkeyRead<'_>],
    ) -> Result<Vec<Fetched>> {
        let opcode = match (self.reader.is_some(), manner.to_compare) {
            (false, false) => opcode::OBJECT_FETCH,
            (false, true) => opcode::OBJECT_FETCH_TO_COMPARE,
            (true, false) => opcode::TRANSACTION_FETCH,
            (true, true) => opcode::TRANSACTION_FETCH_TO_COMPARE,
        };
        let info = RequestInfo::new(OPERATION, self, opcode);
        let build = |map_version| {
            let wanted = FetchRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                dkey: wish.dkey.clone(),
                map_version,
                epoch: self.epoch,
                conditions: wish.conditions,
                akeys: wish.akeys.clone(),
            };
            encode_read(self.reader, wanted)
        };
        let descriptors: usize = reads
            .iter()
            .map(|read| match &read.value {
                Value::Single { .. } => 1,
                Value::Array { extents, .. } => 1 + extents.len(),
            })
            .sum();
        let lent = if manner.lends { lend(context, reads, wish.wanted) } else { None };
        let direct = lent.is_some();
        let payload = match lent {
            Some(lent) => Payload::Deliver(lent.into()),
            None => Payload::Receive { len: wish.wanted, descriptors },
        };
        let exchange = self
            .exchange_until(context, wish.deadline, &info, ShardChoice::Dkey(wish.dkey), &payload, &build)
            .await
            .map_err(|refusal| refusal.error)?;
        wish.answered.set(Some(exchange.by()));
        let (reply, behind) =
            codec::decode_prefix::<FetchReply>(exchange.body()).map_err(|error| info.protocol(error))?;
        if reply.akeys.len() != reads.len() {
            return Err(info.protocol(format!("{} akeys for {}", reply.akeys.len(), reads.len())));
        }
        if direct && !reply.inline {
            return delivered(&info, reads, reply);
        }
        let data = if reply.inline { behind } else { exchange.received() };
        let data = usize::try_from(reply.data_len)
            .ok()
            .and_then(|len| data.get(..len))
            .ok_or_else(|| info.protocol(format!("the reply holds less than {} bytes", reply.data_len)))?;
        // All of it before any of it is put anywhere: a second answer may be of another state.
        let mut rest = data;
        for (read, found) in reads.iter().zip(&reply.akeys) {
            rest = verify(&info, &read.value, found, rest)?;
        }
        let mut rest = data;
        for (read, found) in reads.iter_mut().zip(&reply.akeys) {
            rest = deliver(&info, read, found, rest)?;
        }
        Ok(reply.akeys)
    }
}

/// Lends the memory of a read to the fabric, when the data can go there as it comes: one array akey that fills the memory
/// exactly, holes included.
fn lend(context: &Context, reads: &mut [AkeyRead<'_>], wanted: u64) -> Option<Vec<Buffer>> {
    let [read] = reads else { return None };
    let fits = read.zero_holes
        && wanted >= LEND_MIN
        && read.into.len() <= LEND_PIECES_MAX
        && scatter::total_mut(&read.into) as u64 == wanted
        && matches!(read.value, Value::Array { .. });
    let lender = context.lender().filter(|_| fits)?;
    Some(read.into.iter_mut().map(|piece| lender.sink(piece)).collect())
}

/// Compares data that has gone to its place already.
fn delivered(info: &RequestInfo<'_>, reads: &[AkeyRead<'_>], reply: FetchReply) -> Result<Vec<Fetched>> {
    let ([read], [found]) = (reads, &reply.akeys[..]) else {
        return Err(info.protocol("it wrote data of several akeys where one was asked for"));
    };
    let pieces: Vec<&[u8]> = read.into.iter().map(|piece| &**piece).collect();
    let (mut from, mut number) = (0, 0);
    let mut compare = |len: usize| {
        let part = scatter::part(&pieces, from, len);
        let checked = compare(info, len, found.checksums.get(number), || crc32c_of(part));
        (from, number) = (from + len, number + 1);
        checked
    };
    match &read.value {
        Value::Single { .. } => compare(scatter::total(&pieces))?,
        Value::Array { record_size, extents } => {
            for extent in extents {
                let len = extent.count.saturating_mul(u64::from(*record_size));
                compare(usize::try_from(len).unwrap_or(usize::MAX))?;
            }
        }
    }
    Ok(reply.akeys)
}

/// Hands out the bytes of each extent of one akey, or of its single value, which lie at the start of `data`; returns what
/// follows them.
fn cut<'d>(
    info: &RequestInfo<'_>,
    value: &Value,
    found: &Fetched,
    data: &'d [u8],
    mut each: impl FnMut(usize, &'d [u8]) -> Result<()>,
) -> Result<&'d [u8]> {
    let split = |data: &'d [u8], len: u64| {
        usize::try_from(len)
            .ok()
            .and_then(|len| data.split_at_checked(len))
            .ok_or_else(|| info.protocol("the reply holds less data than it describes"))
    };
    match value {
        // A client that allocates room for a longer value by an engine's word must not run out of memory.
        Value::Single { .. } if found.size > PAYLOAD_MAX => {
            Err(info.protocol(format!("it says that a value has {} bytes", found.size)))
        }
        Value::Single { size } => {
            let (bytes, rest) = split(data, found.size.min(*size))?;
            each(0, bytes)?;
            Ok(rest)
        }
        Value::Array { record_size: 0, .. } => Ok(data),
        Value::Array { .. } if found.size == 0 => Ok(data),
        Value::Array { record_size, extents } => {
            let mut rest = data;
            for (number, extent) in extents.iter().enumerate() {
                let (bytes, behind) = split(rest, extent.count.saturating_mul(u64::from(*record_size)))?;
                each(number, bytes)?;
                rest = behind;
            }
            Ok(rest)
        }
    }
}

/// Compares one akey's bytes at the start of `data` with their checksums; returns what follows them.
fn verify<'d>(info: &RequestInfo<'_>, value: &Value, found: &Fetched, data: &'d [u8]) -> Result<&'d [u8]> {
    cut(info, value, found, data, |number, bytes| {
        compare(info, bytes.len(), found.checksums.get(number), || crc32c(bytes))
    })
}

/// Copies one akey's bytes at the start of `data` to their place; returns what follows them.
fn deliver<'d>(
    info: &RequestInfo<'_>,
    read: &mut AkeyRead<'_>,
    found: &Fetched,
    data: &'d [u8],
) -> Result<&'d [u8]> {
    let (value, memory) = (&read.value, &mut read.into);
    let mut base = 0_usize;
    cut(info, value, found, data, |number, bytes| {
        let Value::Array { record_size, extents } = value else {
            scatter::scatter(memory, 0, bytes);
            return Ok(());
        };
        let extent = extents[number];
        for present in &found.present {
            let (start, end) = (present.index.max(extent.index), present.end().min(extent.end()));
            if start < end {
                let at = |index: u64| {
                    usize::try_from((index - extent.index) * u64::from(*record_size)).unwrap_or(usize::MAX)
                };
                scatter::scatter(memory, base + at(start), &bytes[at(start)..at(end)]);
            }
        }
        base += bytes.len();
        Ok(())
    })
}

/// Compares the checksum of bytes with the engine's, which must be present: no other component may have compared them.
fn compare(
    info: &RequestInfo<'_>,
    len: usize,
    expected: Option<&u32>,
    actual: impl FnOnce() -> u32,
) -> Result<()> {
    let Some(&expected) = expected else {
        let missing = || Err(info.protocol(format!("the reply has no checksum of {len} bytes")));
        return if len == 0 { Ok(()) } else { missing() };
    };
    let actual = actual();
    if actual == expected {
        return Ok(());
    }
    let subject = info.subject.to_string();
    Err(Error::Checksum { operation: info.operation, subject, expected, actual })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_longer_than_any_is_an_engines_mistake() {
        let info = RequestInfo::new("fetch", &"an object", opcode::OBJECT_FETCH);
        let mut memory = [0; 4];
        let mut read = AkeyRead::single(Key::new(b"v").expect("a key"), &mut memory);
        let mut of_size = |size| {
            let found = Fetched { size, present: Vec::new(), checksums: Vec::new() };
            deliver(&info, &mut read, &found, b"data").map(<[u8]>::len)
        };
        assert!(matches!(of_size(PAYLOAD_MAX + 1), Err(Error::Protocol { .. })));
        assert!(matches!(of_size(PAYLOAD_MAX), Ok(0)));
    }
}
