//! Decisions of transactions as they are stored.

use crate::codec::{Decoder, Encode, Malformed};
use weir_proto::Epoch;

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Its changes are there, at this epoch.
    Committed(Epoch),
    /// It never happened, and never will.
    Aborted,
}

impl Decision {
    /// The stored decision, made at this wall time, in nanoseconds since 1970.
    #[must_use]
    pub fn encode(self, wall_ns: u64) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Aborted => {
                out.put_u8(0);
                out.put_u64(0);
            }
            Self::Committed(epoch) => {
                out.put_u8(1);
                out.put_u64(epoch.0);
            }
        }
        out.put_u64(wall_ns);
        out
    }

    /// The decision with the wall time at which it was made.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), Malformed> {
        let mut decoder = Decoder::new(bytes);
        let (tag, epoch) = (decoder.u8()?, decoder.u64()?);
        let decision = match tag {
            0 => Self::Aborted,
            1 => Self::Committed(Epoch(epoch)),
            _ => return Err(Malformed("a decision is of unknown kind")),
        };
        Ok((decision, decoder.u64()?))
    }
}
