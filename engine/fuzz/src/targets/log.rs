//! The log: batches with right checksums in a right chain, and records that are nearly right.

use super::entries::{key, put_varint, value};
use super::transaction;
use crate::image::{base, header, put_u32, put_u64, seal, superblock, u64_at, use_device};
use crate::source::Source;
use weir_media::BLOCK;

/// Bytes of a batch before its records.
const BATCH_HEADER: usize = 64;

/// From this choice on a record holds a whole transaction.
const TRANSACTIONS_FROM: u8 = 200;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let device = base();
    let (_, checkpoint) = header(&device);
    let block = superblock(&device);
    let (log_offset, log_len) = (u64_at(&block, 144), u64_at(&block, 152));
    let mark = u64_at(&block, 32);
    let (mut position, mut sequence) = (u64_at(&checkpoint, 80), u64_at(&checkpoint, 88));
    let mut previous = u32::from_le_bytes(checkpoint[96..100].try_into().unwrap_or_default());
    for _ in 0..=source.below(6) {
        let records = records(&mut source);
        let mut batch = vec![0; BATCH_HEADER];
        batch[..4].copy_from_slice(b"WLOG");
        put_u64(&mut batch, 8, mark);
        put_u64(&mut batch, 16, if source.chance(10) { source.number() } else { sequence });
        put_u64(&mut batch, 24, if source.chance(10) { source.number() } else { u64_at(&checkpoint, 48) });
        put_u32(&mut batch, 32, if source.chance(10) { source.number32() } else { previous });
        batch.extend(&records);
        let len = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        put_u32(&mut batch, 36, if source.chance(10) { source.number32() } else { len });
        batch[40] = if source.chance(10) { source.byte() } else { 0 };
        previous = seal(&mut batch, 4);
        let end = batch.len().next_multiple_of(BLOCK) as u64;
        if position + end > log_len {
            break;
        }
        device.overwrite(log_offset + position, &batch);
        position = if batch[40] == 1 { 0 } else { position + end };
        sequence = sequence.wrapping_add(1);
    }
    use_device(&device);
}

fn records(source: &mut Source<'_>) -> Vec<u8> {
    if source.chance(10) {
        return source.bytes(300);
    }
    let mut out = Vec::new();
    for _ in 0..=source.below(3) {
        let mut body = Vec::new();
        let changes = changes(source);
        put_varint(&mut body, if source.chance(4) { source.number() } else { changes.len() as u64 });
        let mut before: Vec<u8> = Vec::new();
        for (key, value) in changes {
            body.push(if source.chance(4) { source.byte() } else { u8::from(value.is_some()) });
            let shared = before.iter().zip(&key).take_while(|(a, b)| a == b).count();
            put_varint(&mut body, if source.chance(4) { source.number() } else { shared as u64 });
            put_varint(
                &mut body,
                if source.chance(4) { source.number() } else { (key.len() - shared) as u64 },
            );
            body.extend(&key[shared..]);
            if let Some(value) = value {
                put_varint(&mut body, value.len() as u64);
                body.extend(value);
            }
            before = key;
        }
        put_varint(&mut out, if source.chance(4) { source.number() } else { body.len() as u64 });
        out.extend(body);
    }
    out
}

/// Keys with what each is set to; `None`: it is removed.
fn changes(source: &mut Source<'_>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let choice = source.byte();
    if choice >= TRANSACTIONS_FROM {
        return transaction::prepared(source).into_iter().map(|(key, value)| (key, Some(value))).collect();
    }
    let change = |source: &mut Source<'_>| {
        let is_put = source.chance(200);
        let key = key(source);
        let value = is_put.then(|| value(source, &key));
        (key, value)
    };
    (0..choice % 5).map(|_| change(source)).collect()
}
