//! The identity of a client.

use super::{ClientId, Header};
use weir_proto::TenantId;

/// A client, as servers tell clients apart. It chooses its id itself, and every host on the network may see that. The
/// id is unique among the clients of its tenant, and says nothing about those of other tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Caller {
    /// The tenant; 0 for all clients where tenants are not authenticated.
    pub tenant: TenantId,
    /// The id among the tenant's clients.
    pub id: ClientId,
}

impl Caller {
    /// The sender of an authenticated message.
    #[inline]
    pub(crate) fn of(header: &Header) -> Self {
        Self { tenant: TenantId(header.tenant), id: header.client }
    }
}
