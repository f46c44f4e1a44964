//! Changing inputs.

use weir_runtime::random::Random;

/// Longest input, in bytes: enough for dozens of choices of every kind, short enough for thousands of runs a second.
pub const INPUT_MAX: usize = 2048;

/// Most changes of one mutation, as a power of two.
const CHANGES_SHIFT_MAX: u64 = 5;

/// A new input from an old one, and sometimes from a second.
#[must_use]
pub fn mutate(random: &Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 << random.below(CHANGES_SHIFT_MAX) {
        change(random, &mut bytes, other);
    }
    bytes.truncate(INPUT_MAX);
    bytes
}

/// Bytes drawn blindly.
#[must_use]
pub fn draw(random: &Random) -> Vec<u8> {
    let len = below(random, 1 << (4 + random.below(8)));
    (0..=len).map(|_| byte(random)).collect()
}

fn below(random: &Random, limit: usize) -> usize {
    usize::try_from(random.below(limit.max(1) as u64)).unwrap_or(0)
}

fn byte(random: &Random) -> u8 {
    u8::try_from(random.below(256)).unwrap_or(0)
}

fn change(random: &Random, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        bytes.push(byte(random));
    }
    let at = below(random, bytes.len());
    let len = below(random, (bytes.len() - at).min(32)) + 1;
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = byte(random),
        2 => bytes[at] = bytes[at].wrapping_add(byte(random) % 16).wrapping_sub(8),
        3 => drop(bytes.drain(at..at + len)),
        4 => {
            let new: Vec<u8> = (0..len).map(|_| byte(random)).collect();
            bytes.splice(at..at, new);
        }
        5 => {
            let copy = bytes[at..at + len].to_vec();
            let to = below(random, bytes.len());
            bytes.splice(to..to, copy);
        }
        6 if !other.is_empty() => {
            let from = below(random, other.len());
            let part = other[from..(from + len).min(other.len())].to_vec();
            bytes.splice(at..at, part);
        }
        7 if !other.is_empty() => {
            let from = below(random, other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => bytes[at..at + len].fill(byte(random)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_change_and_stay_within_bounds() {
        let random = Random::new(1);
        let mut input = draw(&random);
        let mut changed = 0;
        for _ in 0..500 {
            let next = mutate(&random, &input, b"other");
            assert!(next.len() <= INPUT_MAX);
            changed += u32::from(next != input);
            input = next;
        }
        assert!(changed > 450, "{changed}");
    }
}
