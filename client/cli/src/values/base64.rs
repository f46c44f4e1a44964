//! Bytes as text.

/// Standard base64 (RFC 4648 section 4).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        // The last group is filled up with zero bits.
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(group);
        for position in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * position)) as usize & 63];
            text.push(if position <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd", "//79")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
