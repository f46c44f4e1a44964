//! Quantities as manifests write them. They are those of Kubernetes, to the letter: `m` is a thousandth there, and `Mb` nothing.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A quantity of Kubernetes, as it is written.
#[derive(Clone, Debug)]
pub struct Quantity(String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(D::Error::custom(format!("{other} is no quantity such as 10Gi"))),
        }
    }
}

impl Quantity {
    /// Bytes; a fraction of one counts as a whole one.
    ///
    /// # Errors
    /// When it is none, none that is counted in bytes, or 0.
    pub fn bytes(&self) -> Result<u64, String> {
        let wrong =
            || format!("\"{}\" is no quantity of bytes: write one like 10Gi (2^30) or 10G (10^9)", self.0);
        let split = self.0.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.0.len());
        let (number, suffix) = self.0.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = [whole, fraction].concat();
        if digits.len() > QUANTITY_DIGITS_MAX {
            return Err(wrong());
        }
        let digits: u128 = digits.parse().map_err(|_| wrong())?;
        let (times, power) = match suffix.strip_prefix(['e', 'E']).filter(|exponent| !exponent.is_empty()) {
            Some("i") => (1 << 60, 0),
            Some(exponent) => (1, exponent.parse::<i32>().map_err(|_| wrong())?),
            None => *SUFFIXES
                .iter()
                .find(|(name, _)| *name == suffix)
                .map(|(_, value)| value)
                .ok_or_else(wrong)?,
        };
        let power = power - i32::try_from(fraction.len()).map_err(|_| wrong())?;
        let scale = 10_u128.checked_pow(power.unsigned_abs()).ok_or_else(wrong)?;
        let value = digits.checked_mul(times).ok_or_else(wrong)?;
        let bytes = if power < 0 { Some(value.div_ceil(scale)) } else { value.checked_mul(scale) };
        match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
            Some(0) => Err(format!("\"{}\" must be greater than zero", self.0)),
            bytes => bytes.ok_or_else(wrong),
        }
    }
}

/// Most digits of a quantity, which fit into 64 bits with nine behind the point.
const QUANTITY_DIGITS_MAX: usize = 28;

/// Suffixes of quantities (those of Kubernetes, where case counts): a factor and a power of ten.
const SUFFIXES: [(&str, (u128, i32)); 15] = [
    ("", (1, 0)),
    ("n", (1, -9)),
    ("u", (1, -6)),
    ("m", (1, -3)),
    ("k", (1, 3)),
    ("M", (1, 6)),
    ("G", (1, 9)),
    ("T", (1, 12)),
    ("P", (1, 15)),
    ("E", (1, 18)),
    ("Ki", (1 << 10, 0)),
    ("Mi", (1 << 20, 0)),
    ("Gi", (1 << 30, 0)),
    ("Ti", (1 << 40, 0)),
    ("Pi", (1 << 50, 0)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, bytes) in [
            ("10Gi", 10 << 30),
            ("1.5Ki", 1536),
            ("10G", 10_000_000_000),
            ("1e9", 1_000_000_000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("1500m", 2),
            ("100", 100),
            ("0.5k", 500),
            ("12e-1", 2),
        ] {
            assert_eq!(Quantity(text.into()).bytes(), Ok(bytes), "{text}");
        }
        let long = "9".repeat(QUANTITY_DIGITS_MAX + 1);
        for bad in [
            "", "Gi", "10GB", "10gi", "10 Gi", "1K", "16Ei", "1e40", "1e", "1..5", "+-1", "٣", &long, "0",
            "0m",
        ] {
            assert!(Quantity(bad.into()).bytes().is_err(), "{bad}");
        }
    }
}
