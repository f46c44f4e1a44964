//! Punches.

use weir_pool::Operation;
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::{Conditions, PunchRequest, PunchScope, UpdateReply};
use weir_proto::{Rights, codec};
use weir_rpc::{Body, Request, Status};

use super::Operations;
use crate::admission::refusal;

impl Operations {
    pub(crate) async fn punch(&self, request: &Request) -> Result<Body, Status> {
        let punch: PunchRequest = codec::decode_message(request.body()).map_err(refusal::malformed)?;
        check_punch(&punch)?;
        let admission = &self.admission;
        let permit = admission.permit(request, &punch.capability, Rights::WRITE).await?;
        if let Some(repeated) = self.answer_again(&permit, request) {
            return Ok(repeated);
        }
        let access = admission.reach(permit, punch.map_version, request.deadline()).await?;
        let counted = admission.counted(Operation::Punch, &access, async |place| {
            let marks = self.repeats.marks(&self.admission.rt, &access.pool, request);
            let shard = access.pool.shard();
            let punched = shard
                .punch_by_clock(
                    access.container.id,
                    punch.object,
                    &punch.scope,
                    &|| self.admission.epoch(),
                    punch.conditions,
                    &|epoch| marks.along(epoch),
                )
                .await;
            let epoch = punched.map_err(|error| refusal::update(&error, place))?;
            self.repeats.committed(&access.pool, &marks, epoch);
            Ok((codec::encode(&UpdateReply { epoch }), 0))
        });
        counted.await
    }
}

/// Checks a punch's limits.
pub(crate) fn check_punch(punch: &PunchRequest) -> Result<(), Status> {
    let keys = match &punch.scope {
        PunchScope::Object => 1,
        PunchScope::Dkeys(keys) | PunchScope::Akeys(_, keys) | PunchScope::DkeyWith(_, keys) => keys.len(),
    };
    if keys == 0 || keys > AKEYS_MAX {
        return Err(refusal::invalid(format!("a punch names 1 to {AKEYS_MAX} keys, not {keys}")));
    }
    if punch.conditions.0 & !Conditions::PUNCH.0 != 0 {
        return Err(refusal::invalid("a punch has no condition but that its object exists"));
    }
    Ok(())
}
