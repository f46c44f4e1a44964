//! Sizes as people write them: `4GiB`, `1G`, `512Mi`, `1.5T`, `4096`.

use std::fmt;

/// Bytes, parsed from text. Units with `i` are powers of 1024, others of 1000, as in Kubernetes quantities and in
/// `dmg`; a trailing `B` means nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

/// A text is not a size, or one beyond all numbers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a size below 16EiB: write a number with a unit, e.g. 4GiB (2^30), 4Gi, 4G (10^9) or 512MiB"
)]
pub struct InvalidSize(String);

const UNITS: [(&str, u128); 13] = [
    ("", 1),
    ("k", 1_000),
    ("ki", 1 << 10),
    ("m", 1_000_000),
    ("mi", 1 << 20),
    ("g", 1_000_000_000),
    ("gi", 1 << 30),
    ("t", 1_000_000_000_000),
    ("ti", 1 << 40),
    ("p", 1_000_000_000_000_000),
    ("pi", 1 << 50),
    ("e", 1_000_000_000_000_000_000),
    ("ei", 1 << 60),
];

impl std::str::FromStr for Size {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let invalid = || InvalidSize(text.chars().take(40).collect());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim().to_ascii_lowercase();
        let unit = unit.strip_suffix('b').unwrap_or(&unit);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?.1;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
            return Err(invalid());
        }
        let whole: u128 = whole.parse().map_err(|_| invalid())?;
        let mut bytes = whole.checked_mul(factor).ok_or_else(invalid)?;
        if !fraction.is_empty() {
            let digits: u128 = fraction.parse().map_err(|_| invalid())?;
            // At most nine digits were let in, so the power fits.
            let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| invalid())?);
            bytes = bytes.checked_add(digits * factor / scale).ok_or_else(invalid)?;
        }
        u64::try_from(bytes).map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: [(&str, u64); 5] =
            [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (name, factor) in steps {
            // What would print as 1024.0 of the next smaller unit is 1.0 of this one.
            if self.0 >= factor - factor / (20 * 1024) {
                // To the nearest: a pool that lacks a few bytes of its size is not a tenth smaller.
                let factor = u128::from(factor);
                let tenths = (u128::from(self.0) * 10 + factor / 2) / factor;
                return f.pad(&format!("{}.{} {name}", tenths / 10, tenths % 10));
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_both_kinds_are_understood() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("4Gi", 4 << 30),
            ("1G", 1_000_000_000),
            ("1GB", 1_000_000_000),
            ("1.5 KiB", 1536),
            ("0.5m", 500_000),
            ("4096", 4096),
            ("16EiB", 0),
        ] {
            match text.parse::<Size>() {
                Ok(size) => assert_eq!(size.0, bytes, "{text}"),
                Err(error) => assert_eq!(text, "16EiB", "{error}"),
            }
        }
        let long = "99999999999999999999999999999999999999999";
        // Beyond 128 bits only with its fraction.
        let edge = "340282366920938463463374607431768211.9k";
        for bad in ["", "GiB", "-1G", "1X", "1..5G", "1.G", "1e9", long, edge] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_print_with_one_decimal() {
        assert_eq!(Size(0).to_string(), "0 B");
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
        assert_eq!(Size((3 << 29) - 1).to_string(), "1.5 GiB");
        assert_eq!(Size((1 << 30) - 1).to_string(), "1.0 GiB");
        assert_eq!(Size((1 << 20) - 52).to_string(), "1023.9 KiB");
        assert_eq!(Size((1 << 20) - 51).to_string(), "1.0 MiB");
        assert_eq!(Size(1023).to_string(), "1023 B");
        assert_eq!(Size(u64::MAX).to_string(), "16384.0 PiB");
        assert_eq!(format!("{:>10}", Size(4 << 30)), "   4.0 GiB");
    }
}
