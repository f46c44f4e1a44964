//! Quota for targets where the pool has a share of its tenant's quota: when that is used up, the keeper of the list of pools is asked
//! for more.

use std::time::Duration;

use weir_group::AskError;
use weir_proto::pool::{GrantRequest, TargetContainerState};
use weir_proto::quota::{Rate, RateReply, RateRequest, ShareGrant, ShareRequest};
use weir_proto::{Rank, TenantId, opcode};

use super::TargetPools;
use crate::error::Failed;
use crate::service::{Granted, PoolService};

/// Longest wait for the keeper's answer: it may ask the tenant's other pools for what they don't use. A target waits five seconds for
/// the service, and asks for it twice.
const SHARE_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for the keeper to say how fast clients may go: it answers from memory.
const RATES_LIMIT: Duration = Duration::from_millis(500);

impl TargetPools {
    /// Answers a target that learns of a container or needs a greater share of its quota. Where its tenant has a quota, the pool's share
    /// of that grows first: with what no pool has, then with what targets of this pool, and then of others, don't use.
    ///
    /// # Errors
    /// When the container doesn't exist, with `NOSPACE` when its quota is used up or its tenant's, or when the keeper doesn't answer.
    pub(super) async fn grant(
        &self,
        from: Rank,
        request: &GrantRequest,
    ) -> Result<TargetContainerState, Failed> {
        let service = self.service(request.pool)?;
        service.confirm().await?;
        let mut granted = service.grant(from, request, false).await?;
        let mut unanswered = None;
        for urgent in [false, true] {
            let short = match granted {
                Granted::Enough(state) => return Ok(state),
                Granted::Short(short) => short,
            };
            // The limit may have been lifted meanwhile.
            if let Some(limit) = service.share_limit() {
                match self.ask_for_share(&service, limit, (short, urgent)).await {
                    Ok(grant) => service.take_share(&grant).await?,
                    Err(error) => unanswered = Some(error),
                }
            }
            granted = service.grant(from, request, true).await?;
        }
        match granted {
            Granted::Enough(state) => Ok(state),
            // Whether the tenant may hold more isn't known then.
            Granted::Short(_) => Err(unanswered.unwrap_or_else(|| service.tenant_is_full(request.container))),
        }
    }

    /// Asks the keeper of the list of pools how fast clients of tenants may go here, who would go so fast. Answers in their order.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn ask_rates(&self, wanted: Vec<(TenantId, Rate)>) -> Result<Vec<Rate>, AskError> {
        let request = RateRequest { index: self.engines().own_index(), wanted };
        let limits = (RATES_LIMIT, RATES_LIMIT);
        let RateReply { allowed } = self.ask_who_keeps(opcode::TENANT_RATES, &request, limits).await?;
        Ok(allowed)
    }

    async fn ask_for_share(
        &self,
        service: &PoolService,
        limit: u64,
        (wanted, urgent): (u64, bool),
    ) -> Result<ShareGrant, Failed> {
        let record = service.pool()?;
        let request = ShareRequest { pool: record.pool, limit, wanted, urgent };
        let asked = self.ask_who_keeps(opcode::POOL_SHARE_MORE, &request, (SHARE_LIMIT, SHARE_LIMIT)).await;
        asked.map_err(|error| {
            let object = format!("pool {}", record.label);
            Failed::asking(object, "asking for more of its tenant's quota", error)
        })
    }
}
