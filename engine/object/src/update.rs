//! Updates and punches.

use std::rc::Rc;

use weir_media::Slice;
use weir_pool::{Operation, TargetContainer, TargetPool};
use weir_proto::limits::AKEYS_MAX;
use weir_proto::object::{Conditions, PunchRequest, PunchScope, UpdateReply, UpdateRequest, validate};
use weir_proto::{Epoch, Rights, codec};
use weir_rpc::{Body, Request, Status};
use weir_store::{Data, UpdateError};

use crate::refusal::{self, ErrorSite};
use crate::repeats::Marks;
use crate::service::{Access, IoService, Permit};

/// Most times an update asks for more quota: others may use up what was granted before its turn comes.
const GRANT_TRIES: usize = 8;

/// Data of an update, where it arrived.
enum UpdateData<'a> {
    Inline(&'a [u8]),
    Pulled(Slice),
}

impl UpdateData<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Pulled(slice) => slice,
        }
    }

    fn data(&self) -> Data<'_> {
        match self {
            Self::Inline(bytes) => Data::Borrowed(bytes),
            Self::Pulled(slice) => Data::Shared(slice.clone()),
        }
    }
}

impl IoService {
    pub(crate) async fn update(&self, request: Request) -> Result<Body, Status> {
        let (update, inline) =
            codec::decode_prefix::<UpdateRequest>(request.body()).map_err(refusal::malformed)?;
        let len = check(&update)?;
        let permit = self.permit(&request, &update.capability, Rights::WRITE).await?;
        if let Some(repeated) = self.answer_again(&permit, &request) {
            return Ok(repeated);
        }
        let access = self.reach(permit, update.map_version, request.deadline()).await?;
        self.counted(Operation::Update, &access, async |place| {
            if access.container.is_short_of_room() {
                // A client doesn't send its data over and over while there is no room for it.
                let check = async || access.pool.shard().check_room_for(access.container.id, len);
                within_quota((&access.pool, &access.container), len, place, check).await?;
            }
            let data = self.arrive(&request, inline, len).await?;
            let marks = self.repeats.marks(&self.rt, &access.pool, &request);
            let epoch = self.store(&access, &update, &data, &marks, place).await?;
            access.container.has_found_room(len);
            self.repeats.committed(&access.pool, &marks, epoch);
            Ok((codec::encode(&UpdateReply { epoch }), len))
        })
        .await
    }

    /// The answer to a change that was executed before. Whatever else would be said to it now, from a newer map on, would have
    /// its client ask for it under another number, and it would happen twice.
    fn answer_again(&self, permit: &Permit, request: &Request) -> Option<Body> {
        let executed = self.repeats.executed(&permit.pool, request)?;
        // A client that has not been told the epoch is told a later one.
        let epoch = executed.epoch.unwrap_or_else(|| self.epoch());
        Some(codec::encode(&UpdateReply { epoch }))
    }

    /// Gets the data: behind the message, or from the client's memory.
    async fn arrive<'a>(
        &self,
        request: &Request,
        inline: &'a [u8],
        len: u64,
    ) -> Result<UpdateData<'a>, Status> {
        if inline.len() as u64 == len {
            return Ok(UpdateData::Inline(inline));
        }
        if !inline.is_empty() || request.bulk_len() < len {
            return Err(refusal::invalid(format!(
                "{len} bytes of data are described, {} came with the message and {} are offered",
                inline.len(),
                request.bulk_len()
            )));
        }
        let size = usize::try_from(len).map_err(refusal::invalid)?;
        let mut payload = request.payload(size).await?;
        request.pull(0, &mut payload, size).await?;
        let outside = || refusal::invalid("its data was pulled short");
        Slice::new(Rc::new(payload), 0..size).map(UpdateData::Pulled).ok_or_else(outside)
    }

    /// Stores the update. When the container's share of its quota is used up here, a greater one is asked for.
    async fn store(
        &self,
        access: &Access,
        update: &UpdateRequest,
        data: &UpdateData<'_>,
        marks: &Marks,
        place: &ErrorSite<'_>,
    ) -> Result<Epoch, Status> {
        let shard = access.pool.shard();
        let attempt = async || {
            shard
                .update_by_clock(
                    access.container.id,
                    update.object,
                    &update.dkey,
                    &|| self.epoch(),
                    update.conditions,
                    &update.akeys,
                    data.data(),
                    &|epoch| marks.along(epoch),
                )
                .await
        };
        within_quota((&access.pool, &access.container), data.bytes().len() as u64, place, attempt).await
    }

    pub(crate) async fn punch(&self, request: &Request) -> Result<Body, Status> {
        let punch: PunchRequest = codec::decode(request.body()).map_err(refusal::malformed)?;
        check_punch(&punch)?;
        let permit = self.permit(request, &punch.capability, Rights::WRITE).await?;
        if let Some(repeated) = self.answer_again(&permit, request) {
            return Ok(repeated);
        }
        let access = self.reach(permit, punch.map_version, request.deadline()).await?;
        self.counted(Operation::Punch, &access, async |place| {
            let marks = self.repeats.marks(&self.rt, &access.pool, request);
            let shard = access.pool.shard();
            let punched = shard
                .punch_by_clock(
                    access.container.id,
                    punch.object,
                    &punch.scope,
                    &|| self.epoch(),
                    punch.conditions,
                    &|epoch| marks.along(epoch),
                )
                .await;
            let epoch = punched.map_err(|error| refusal::update(&error, place))?;
            self.repeats.committed(&access.pool, &marks, epoch);
            Ok((codec::encode(&UpdateReply { epoch }), 0))
        })
        .await
    }
}

/// Does `attempt`, again with a greater share of the container's quota, for so many bytes, while that is used up here. What
/// finds no room because others have overwritten or deleted something a moment ago is sent away to come again.
pub(crate) async fn within_quota<T>(
    (pool, container): (&TargetPool, &TargetContainer),
    wanted: u64,
    place: &ErrorSite<'_>,
    attempt: impl AsyncFn() -> Result<T, UpdateError>,
) -> Result<T, Status> {
    let mut tries = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        tries += 1;
        if matches!(error, UpdateError::Quota { .. })
            && tries < GRANT_TRIES
            && pool.enlarge(container, wanted).await?
        {
            continue;
        }
        let has_no_room = matches!(error, UpdateError::Quota { .. } | UpdateError::NoSpace { .. });
        return Err(if has_no_room && pool.may_regain_room(container, wanted, &error) {
            refusal::room_to_come(&error, place)
        } else {
            refusal::update(&error, place)
        });
    }
}

/// Checks an update's limits; returns its bytes of data.
fn check(update: &UpdateRequest) -> Result<u64, Status> {
    let akeys = update.akeys.iter().map(|akey| (&akey.akey, &akey.value));
    let len = validate(akeys).map_err(refusal::invalid)?;
    let fetching = Conditions::DKEY_FETCH.union(Conditions::AKEY_FETCH).union(Conditions::PUNCH);
    check_conditions(update.conditions, fetching, "an update")?;
    Ok(len)
}

/// Refuses conditions that an operation can't have (daos-api §1.4).
pub(crate) fn check_conditions(
    given: Conditions,
    forbidden: Conditions,
    operation: &str,
) -> Result<(), Status> {
    if given.0 & forbidden.0 != 0 {
        let reason = format!("condition flags {:#x} make no sense in {operation}", given.0 & forbidden.0);
        return Err(refusal::invalid(reason));
    }
    let akey = Conditions::AKEY_INSERT.0 | Conditions::AKEY_UPDATE.0 | Conditions::AKEY_FETCH.0;
    if given.has(Conditions::PER_AKEY) && given.0 & akey != 0 {
        return Err(refusal::invalid("conditions stand at each akey and at the whole operation"));
    }
    Ok(())
}

fn check_punch(punch: &PunchRequest) -> Result<(), Status> {
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
