//! Fetching values.

use crate::error::FetchError;
use weir_proto::object::Fetched;

/// What a fetch found of one akey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedAkey {
    /// Size and presence, as the reply names them; the checksums are left empty.
    pub fetched: Fetched,
    /// Bytes this akey contributes to the data: the whole requested extents with holes as zeros, or the single value
    /// up to the size asked for; 0 when there is nothing (`fetched.size` is 0) or only the size was asked for.
    pub len: u64,
}

/// A fetch whose places are known and whose data can be read. What it refers to stays on the device until it is
/// dropped, so drop it soon.
pub struct Fetch {}

impl Fetch {
    /// What was found, one entry for each akey of the request in its order.
    #[must_use]
    pub fn akeys(&self) -> &[FetchedAkey] {
        todo!()
    }

    /// Bytes of all akeys together.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        todo!()
    }

    /// Reads all data, in the order of the akeys and, within one, of the extents, to the start of `into`. Holes become
    /// zeros. What is read is checked first.
    ///
    /// # Errors
    /// When the buffer is too small, the device fails, or the data is damaged; the buffer's content is then undefined.
    pub async fn read(&self, into: &mut [u8]) -> Result<(), FetchError> {
        todo!()
    }

    /// Reads the data of one akey.
    ///
    /// # Errors
    /// As [`Fetch::read`]; also when there is no such akey.
    pub async fn read_akey(&self, akey: usize, into: &mut [u8]) -> Result<(), FetchError> {
        todo!()
    }
}
