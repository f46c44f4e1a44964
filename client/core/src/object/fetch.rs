//! Fetches.

use weir_fabric::Buffer;
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::object::{AkeyFetch, Conditions, Extent, FetchReply, FetchRequest, Fetched, Value};
use weir_proto::transaction::encode_read;
use weir_proto::{Key, codec, opcode};

use super::update::check_conditions;
use super::{Object, Place};
use crate::checksum::{crc32c, crc32c_of};
use crate::context::Context;
use crate::error::Error;
use crate::payload::{LEND_MIN, LEND_PIECES_MAX, Payload};
use crate::request::Question;
use crate::{Result, scatter};

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

const FETCH_CONDITIONS: Conditions = Conditions(8 | 64 | 128);

impl Object {
    /// Reads akeys of one dkey. What was found stands in the result, in the order of `reads`; a missing akey has
    /// size 0.
    ///
    /// # Errors
    /// `NONEXIST` under a fetch condition, `REC_SIZE` when the record size is not the akey's, `CSUM` when data was
    /// altered, `INVAL` for malformed arguments, and [`Error::Unavailable`] when the target does not answer in time.
    pub async fn fetch(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        reads: &mut [AkeyRead<'_>],
    ) -> Result<Vec<Fetched>> {
        let opcode = if self.reader.is_some() { opcode::TRANSACTION_FETCH } else { opcode::OBJECT_FETCH };
        let question = Question::new("fetch", self, opcode);
        check_conditions(question.operation, conditions, FETCH_CONDITIONS)?;
        let wanted = weir_proto::object::validate(reads.iter().map(|read| (&read.akey, &read.value)))
            .map_err(|error| Error::invalid(question.operation, error))?;
        let akeys: Vec<AkeyFetch> = reads
            .iter()
            .map(|read| AkeyFetch {
                akey: read.akey.clone(),
                value: read.value.clone(),
                conditions: read.conditions,
            })
            .collect();
        let build = |map_version| {
            let wanted = FetchRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                dkey: dkey.clone(),
                map_version,
                epoch: self.epoch,
                conditions,
                akeys: akeys.clone(),
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
        let lent = lend(context, reads, wanted);
        let direct = lent.is_some();
        let payload = match lent {
            Some(lent) => Payload::Deliver(lent.into()),
            None => Payload::Receive { len: wanted, descriptors },
        };
        let exchange = self
            .exchange(context, &question, Place::Dkey(dkey), &payload, &build)
            .await
            .map_err(|refusal| refusal.error)?;
        let (reply, behind) =
            codec::decode_prefix::<FetchReply>(exchange.body()).map_err(|error| question.protocol(error))?;
        if direct && !reply.inline {
            return delivered(&question, reads, reply);
        }
        let data = if reply.inline { behind } else { exchange.received() };
        let data = usize::try_from(reply.data_len).ok().and_then(|len| data.get(..len)).ok_or_else(|| {
            question.protocol(format!("the reply holds less than {} bytes", reply.data_len))
        })?;
        if reply.akeys.len() != reads.len() {
            return Err(question.protocol(format!("{} akeys for {}", reply.akeys.len(), reads.len())));
        }
        let mut rest = data;
        for (read, found) in reads.iter_mut().zip(&reply.akeys) {
            rest = deliver(&question, read, found, rest)?;
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

/// Checks data that has gone to its place already.
fn delivered(question: &Question<'_>, reads: &[AkeyRead<'_>], reply: FetchReply) -> Result<Vec<Fetched>> {
    let ([read], [found]) = (reads, &reply.akeys[..]) else {
        return Err(question.protocol(format!("{} akeys for {}", reply.akeys.len(), reads.len())));
    };
    let Value::Array { record_size, extents } = &read.value else { return Ok(reply.akeys) };
    let pieces: Vec<&[u8]> = read.into.iter().map(|piece| &**piece).collect();
    let mut from = 0;
    for (extent, expected) in extents.iter().zip(&found.checksums) {
        let len = usize::try_from(extent.count.saturating_mul(u64::from(*record_size))).unwrap_or(usize::MAX);
        let actual = crc32c_of(scatter::part(&pieces, from, len));
        if actual != *expected {
            let subject = question.subject.to_string();
            return Err(Error::Checksum {
                operation: question.operation,
                subject,
                expected: *expected,
                actual,
            });
        }
        from += len;
    }
    Ok(reply.akeys)
}

/// Checks one akey's bytes at the start of `data` and copies them to their place; returns what follows them.
fn deliver<'d>(
    question: &Question<'_>,
    read: &mut AkeyRead<'_>,
    found: &Fetched,
    data: &'d [u8],
) -> Result<&'d [u8]> {
    let cut = |data: &'d [u8], len: u64| {
        usize::try_from(len)
            .ok()
            .and_then(|len| data.split_at_checked(len))
            .ok_or_else(|| question.protocol("the reply holds less data than it describes"))
    };
    match &read.value {
        // Whoever makes room for a longer value by what an engine says must not run out of memory.
        Value::Single { .. } if found.size > PAYLOAD_MAX => {
            Err(question.protocol(format!("it says that a value has {} bytes", found.size)))
        }
        Value::Single { size } => {
            let (bytes, rest) = cut(data, found.size.min(*size))?;
            verify(question, bytes, found.checksums.first())?;
            scatter::scatter(&mut read.into, 0, bytes);
            Ok(rest)
        }
        Value::Array { record_size: 0, .. } => Ok(data),
        Value::Array { .. } if found.size == 0 => Ok(data),
        Value::Array { record_size, extents } => {
            let record = u64::from(*record_size);
            let (mut rest, mut base) = (data, 0_usize);
            for (number, extent) in extents.iter().enumerate() {
                let (bytes, behind) = cut(rest, extent.count.saturating_mul(record))?;
                verify(question, bytes, found.checksums.get(number))?;
                for present in &found.present {
                    let (start, end) = (present.index.max(extent.index), present.end().min(extent.end()));
                    if start < end {
                        let at = |index: u64| {
                            usize::try_from((index - extent.index) * record).unwrap_or(usize::MAX)
                        };
                        scatter::scatter(&mut read.into, base + at(start), &bytes[at(start)..at(end)]);
                    }
                }
                base += bytes.len();
                rest = behind;
            }
            Ok(rest)
        }
    }
}

fn verify(question: &Question<'_>, bytes: &[u8], expected: Option<&u32>) -> Result<()> {
    let Some(&expected) = expected else { return Ok(()) };
    let actual = crc32c(bytes);
    if actual == expected {
        return Ok(());
    }
    let subject = question.subject.to_string();
    Err(Error::Checksum { operation: question.operation, subject, expected, actual })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_longer_than_any_is_an_engines_mistake() {
        let question = Question::new("fetch", &"an object", opcode::OBJECT_FETCH);
        let mut into = [0; 4];
        let mut read = AkeyRead::single(Key::new(b"v").expect("a key"), &mut into);
        let mut of_size = |size| {
            let found = Fetched { size, present: Vec::new(), checksums: Vec::new() };
            deliver(&question, &mut read, &found, b"data").map(<[u8]>::len)
        };
        assert!(matches!(of_size(PAYLOAD_MAX + 1), Err(Error::Protocol { .. })));
        assert!(matches!(of_size(PAYLOAD_MAX), Ok(0)));
    }
}
