//! Fetches.

use weir_proto::object::{AkeyFetch, Conditions, Extent, FetchReply, FetchRequest, Fetched, Value};
use weir_proto::{Key, codec, opcode};

use super::update::check_conditions;
use super::{Object, Place};
use crate::checksum::crc32c;
use crate::context::Context;
use crate::error::Error;
use crate::request::{Payload, Question};
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
}

impl<'a> AkeyRead<'a> {
    /// A single value of at most `into.len()` bytes; [`Fetched::size`] tells how many it has.
    #[must_use]
    pub fn single(akey: Key, into: &'a mut [u8]) -> Self {
        let value = Value::Single { size: into.len() as u64 };
        Self { akey, value, conditions: Conditions::NONE, into: vec![into] }
    }

    /// Records of an array. With record size 0 only the record size is asked for.
    #[must_use]
    pub fn array(akey: Key, record_size: u32, extents: Vec<Extent>, into: Vec<&'a mut [u8]>) -> Self {
        Self { akey, value: Value::Array { record_size, extents }, conditions: Conditions::NONE, into }
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
        let question = Question::new("fetch", self, opcode::OBJECT_FETCH);
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
            codec::encode(&FetchRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                dkey: dkey.clone(),
                map_version,
                epoch: self.epoch,
                conditions,
                akeys: akeys.clone(),
            })
        };
        let descriptors: usize = reads
            .iter()
            .map(|read| match &read.value {
                Value::Single { .. } => 1,
                Value::Array { extents, .. } => 1 + extents.len(),
            })
            .sum();
        let payload = Payload::Receive { len: wanted, descriptors };
        let exchange = self
            .exchange(context, &question, Place::Dkey(dkey), &payload, &build)
            .await
            .map_err(|refusal| refusal.error)?;
        let (reply, behind) =
            codec::decode_prefix::<FetchReply>(exchange.body()).map_err(|error| question.protocol(error))?;
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
