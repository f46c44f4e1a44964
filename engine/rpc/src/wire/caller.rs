//! Clients as a server tells them from each other.

use super::{ClientId, Header};
use weir_proto::TenantId;

/// A client as a server tells it from others. Its id is its own choice, and everybody on the network may see it: among the
/// clients of its tenant it is the only one of that name, and others' are nobody it could be taken for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Caller {
    /// Whose client it is; 0 for all where nobody checks that.
    pub tenant: TenantId,
    /// Which of them.
    pub id: ClientId,
}

impl Caller {
    /// Who an authenticated message is from.
    #[inline]
    pub(crate) fn of(header: &Header) -> Self {
        Self { tenant: TenantId(header.tenant), id: header.client }
    }
}
