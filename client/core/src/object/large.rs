//! Updates and fetches of more data than one request may have.

use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::object::{Conditions, Extent, Fetched, Value, validate};
use weir_proto::{Der, Epoch, Key};

use super::Object;
use super::fetch::AkeyRead;
use super::update::AkeyWrite;
use crate::Result;
use crate::error::Error;
use crate::operation::scatter::{self, Dealer};
use crate::session::Context;

/// A part of what is written to an akey, or read of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    /// Number of the akey.
    akey: usize,
    value: Value,
    /// Its first byte in the akey's data.
    from: u64,
    len: u64,
    /// It goes on within the extent that the part before ends with.
    continues: bool,
}

/// Whether values together have more data than one request may have, or more than can be counted.
pub(super) fn is_large<'a>(mut values: impl Iterator<Item = &'a Value>) -> bool {
    let total = values.try_fold(0_u64, |sum, value| sum.checked_add(value.data_len()?));
    total.is_none_or(|total| total > PAYLOAD_MAX)
}

/// Checks names and extents of values, whatever their data. Returns the bytes of each, which together can be counted.
fn check<'a>(
    operation: &'static str,
    values: impl Iterator<Item = (&'a Key, &'a Value)> + Clone,
) -> Result<Vec<u64>> {
    let without_data = |value: &Value| match value {
        Value::Single { .. } => Value::Single { size: 0 },
        Value::Array { extents, .. } => Value::Array { record_size: 0, extents: extents.clone() },
    };
    let shapes: Vec<(Key, Value)> =
        values.clone().map(|(akey, value)| (akey.clone(), without_data(value))).collect();
    validate(shapes.iter().map(|(akey, value)| (akey, value)))
        .map_err(|error| Error::invalid(operation, error))?;
    let mut total = 0_u64;
    let mut lens = Vec::with_capacity(shapes.len());
    for (akey, value) in values {
        let len = value.data_len();
        let sum = len.and_then(|len| total.checked_add(len));
        let (Some(len), Some(sum)) = (len, sum) else {
            let reason = format!("the data up to akey \"{akey}\" is longer than 2^64 bytes");
            return Err(Error::invalid(operation, reason));
        };
        total = sum;
        lens.push(len);
    }
    Ok(lens)
}

/// Cuts values, whose data can be counted, into requests of at most `most` bytes, in their order. A single value and a record
/// stay whole.
fn requests<'a>(values: impl Iterator<Item = &'a Value>, most: u64) -> Vec<Vec<Part>> {
    let mut made = vec![Vec::new()];
    let mut left = most;
    for (akey, value) in values.enumerate() {
        match value {
            Value::Array { record_size, extents } if *record_size > 0 => {
                cut(&mut made, &mut left, most, akey, (*record_size, extents));
            }
            whole => {
                let len = whole.data_len().expect("invariant: values are checked before they are cut");
                if len > left {
                    made.push(Vec::new());
                    left = most;
                }
                left = left.saturating_sub(len);
                push(&mut made, Part { akey, value: whole.clone(), from: 0, len, continues: false });
            }
        }
    }
    made.retain(|request| !request.is_empty());
    made
}

fn push(made: &mut [Vec<Part>], part: Part) {
    if let Some(last) = made.last_mut() {
        last.push(part);
    }
}

/// Adds the records of an array to requests, of which the last one has room for `left` bytes.
fn cut(
    made: &mut Vec<Vec<Part>>,
    left: &mut u64,
    most: u64,
    akey: usize,
    (record_size, extents): (u32, &[Extent]),
) {
    let record = u64::from(record_size);
    let (mut from, mut taken, mut continues) = (0, Vec::new(), false);
    let mut finish = |made: &mut Vec<Vec<Part>>, taken: &mut Vec<Extent>, continues: bool| {
        let extents = core::mem::take(taken);
        let len = extents.iter().map(|extent| extent.count * record).sum();
        if !extents.is_empty() {
            let value = Value::Array { record_size, extents };
            push(made, Part { akey, value, from, len, continues });
        }
        from += len;
    };
    for extent in extents {
        let mut rest = *extent;
        while rest.count > 0 {
            let fits = if *left == most { (most / record).max(1) } else { *left / record };
            if fits == 0 {
                finish(made, &mut taken, continues);
                continues = rest.index > extent.index;
                made.push(Vec::new());
                *left = most;
                continue;
            }
            let count = rest.count.min(fits);
            taken.push(Extent { index: rest.index, count });
            *left = left.saturating_sub(count * record);
            rest = Extent { index: rest.index + count, count: rest.count - count };
        }
    }
    finish(made, &mut taken, continues);
}

/// Adds what was found of a part to what was found of its akey.
fn join(whole: &mut Fetched, part: &Part, found: Fetched) {
    whole.size = whole.size.max(found.size);
    whole.checksums.extend(found.checksums);
    let mut present = found.present.into_iter();
    if let (true, Some(last), Some(first)) =
        (part.continues, whole.present.last_mut(), present.as_slice().first())
        && last.end() == first.index
    {
        last.count += first.count;
        present.next();
    }
    whole.present.extend(present);
}

fn length(operation: &'static str, len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|error| Error::invalid(operation, error))
}

impl Object {
    /// As [`Self::update`], by one request after another.
    pub(super) async fn update_in_parts(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        writes: &[AkeyWrite<'_>],
    ) -> Result<Epoch> {
        const OPERATION: &str = "update";
        let lens = check(OPERATION, writes.iter().map(|write| (&write.akey, &write.value)))?;
        let all = writes.iter().map(|write| write.conditions).chain([conditions]);
        if all.into_iter().any(|conditions| conditions != Conditions::NONE) {
            let reason =
                format!("conditions are for at most {PAYLOAD_MAX} bytes; leave them out, or write less");
            return Err(Error::Size { operation: OPERATION, reason, der: Der::REC2BIG });
        }
        let mut epoch = Epoch::default();
        for (write, need) in writes.iter().zip(lens) {
            if scatter::total(&write.data) as u64 != need {
                let reason = format!("akey \"{}\" takes {need} bytes, the buffers hold others", write.akey);
                return Err(Error::Size { operation: OPERATION, reason, der: Der::REC2BIG });
            }
        }
        for request in requests(writes.iter().map(|write| &write.value), PAYLOAD_MAX) {
            let mut parts = Vec::with_capacity(request.len());
            for part in request {
                let write = &writes[part.akey];
                let (from, len) = (length(OPERATION, part.from)?, length(OPERATION, part.len)?);
                let data = scatter::part(&write.data, from, len);
                let akey = write.akey.clone();
                parts.push(AkeyWrite { akey, value: part.value, conditions: Conditions::NONE, data });
            }
            epoch = self.update_once(context, dkey, Conditions::NONE, &parts).await?;
        }
        Ok(epoch)
    }

    /// As [`Self::fetch`], by one request after another.
    pub(super) async fn fetch_in_parts(
        &self,
        context: &Context,
        dkey: &Key,
        conditions: Conditions,
        reads: &mut [AkeyRead<'_>],
    ) -> Result<Vec<Fetched>> {
        const OPERATION: &str = "fetch";
        let lens = check(OPERATION, reads.iter().map(|read| (&read.akey, &read.value)))?;
        for (read, need) in reads.iter().zip(lens) {
            let have = scatter::total_mut(&read.into) as u64;
            // Each request costs something, also one whose data would not be kept.
            if matches!(read.value, Value::Array { .. }) && have < need {
                let reason = format!("akey \"{}\" has {need} bytes, the buffers {have}", read.akey);
                return Err(Error::Size { operation: OPERATION, reason, der: Der::REC2BIG });
            }
        }
        let requests = requests(reads.iter().map(|read| &read.value), PAYLOAD_MAX);
        let nothing = || Fetched { size: 0, present: Vec::new(), checksums: Vec::new() };
        let mut all: Vec<Fetched> = reads.iter().map(|_| nothing()).collect();
        let akeys: Vec<_> =
            reads.iter().map(|read| (read.akey.clone(), read.conditions, read.zero_holes)).collect();
        let memory = reads.iter_mut().map(|read| read.into.iter_mut().map(|piece| &mut **piece).collect());
        let mut dealers: Vec<Dealer<'_>> = memory.map(Dealer::new).collect();
        for request in requests {
            let mut parts = Vec::with_capacity(request.len());
            for part in &request {
                let (akey, conditions, zero_holes) = akeys[part.akey].clone();
                let into = dealers[part.akey].take(length(OPERATION, part.len)?);
                parts.push(AkeyRead { akey, value: part.value.clone(), conditions, into, zero_holes });
            }
            let found = self.fetch_once(context, dkey, conditions, &mut parts).await?;
            for (part, found) in request.iter().zip(found) {
                join(&mut all[part.akey], part, found);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(record_size: u32, extents: &[(u64, u64)]) -> Value {
        let extents = extents.iter().map(|&(index, count)| Extent { index, count }).collect();
        Value::Array { record_size, extents }
    }

    #[test]
    fn arrays_are_cut_between_records_and_other_values_stay_whole() {
        let values = [array(4, &[(0, 3), (10, 6)]), Value::Single { size: 9 }, array(4, &[(7, 1)])];
        let made = requests(values.iter(), 20);
        let part = |akey, value, (from, len), continues| Part { akey, value, from, len, continues };
        let expected = vec![
            vec![part(0, array(4, &[(0, 3), (10, 2)]), (0, 20), false)],
            vec![part(0, array(4, &[(12, 4)]), (20, 16), true)],
            vec![
                part(1, Value::Single { size: 9 }, (0, 9), false),
                part(2, array(4, &[(7, 1)]), (0, 4), false),
            ],
        ];
        assert_eq!(made, expected);
    }

    #[test]
    fn data_that_can_not_be_counted_is_refused() {
        let (akey, other) = (Key::from_u64(1), Key::from_u64(2));
        let uncountable = array(8, &[(0, 1 << 62)]);
        let half = array(4, &[(0, 1 << 61)]);
        assert!(is_large([&uncountable].into_iter()) && is_large([&half, &half].into_iter()));
        assert!(!is_large([&array(4, &[(0, 1)])].into_iter()));
        let error = check("update", [(&akey, &uncountable)].into_iter()).expect_err("too long");
        assert_eq!(error.der(), Der::INVAL);
        assert!(check("update", [(&akey, &half), (&other, &half)].into_iter()).is_err());
        assert_eq!(check("update", [(&akey, &half)].into_iter()).expect("it can be counted"), [1 << 63]);
    }

    #[test]
    fn a_record_or_value_that_fits_no_request_is_one_by_itself() {
        let values = [array(50, &[(0, 2)]), Value::Single { size: 60 }, array(0, &[(0, 9)])];
        let made = requests(values.iter(), 20);
        let lens: Vec<Vec<u64>> =
            made.iter().map(|request| request.iter().map(|part| part.len).collect()).collect();
        assert_eq!(lens, [vec![50], vec![50], vec![60, 0]]);
    }

    #[test]
    fn what_a_cut_parted_is_one_extent_again_and_what_the_caller_parted_is_not() {
        let found = |index, count| {
            let present = vec![Extent { index, count }];
            Fetched { size: 4, present, checksums: vec![7] }
        };
        let part = |continues| Part { akey: 0, value: array(4, &[]), from: 0, len: 0, continues };
        let mut whole = Fetched { size: 0, present: Vec::new(), checksums: Vec::new() };
        join(&mut whole, &part(false), found(0, 5));
        join(&mut whole, &part(true), found(5, 5));
        join(&mut whole, &part(false), found(10, 5));
        assert_eq!((whole.size, whole.checksums.len()), (4, 3));
        assert_eq!(whole.present, [Extent { index: 0, count: 10 }, Extent { index: 10, count: 5 }]);
    }
}
