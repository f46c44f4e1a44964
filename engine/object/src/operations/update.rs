//! Updates.

use std::ops::Deref;
use std::rc::Rc;

use weir_media::Slice;
use weir_pool::Operation;
use weir_proto::object::{Conditions, UpdateReply, UpdateRequest, validate};
use weir_proto::{Epoch, Rights, codec};
use weir_rpc::{Body, Request, Status};
use weir_store::Data;

use super::quota::within_quota;
use super::{Operations, check_conditions};
use crate::admission::Access;
use crate::admission::refusal::{self, ErrorSite};
use crate::repeats::Marks;

/// Data of an update, where it arrived.
#[derive(Clone)]
pub(crate) enum UpdateData<Inline> {
    /// In the message, or copied from it.
    Inline(Inline),
    Pulled(Slice),
}

impl<Inline: Deref<Target = [u8]>> UpdateData<Inline> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Pulled(slice) => slice,
        }
    }

    pub(crate) fn data(&self) -> Data<'_> {
        match self {
            Self::Inline(bytes) => Data::Borrowed(bytes),
            Self::Pulled(slice) => Data::Shared(slice.clone()),
        }
    }
}

impl Operations {
    pub(crate) async fn update(&self, request: Request) -> Result<Body, Status> {
        let (update, inline) =
            codec::decode_prefix::<UpdateRequest>(request.body()).map_err(refusal::malformed)?;
        let len = check(&update)?;
        let admission = &self.admission;
        let permit = admission.permit(&request, &update.capability, Rights::WRITE).await?;
        if let Some(repeated) = self.answer_again(&permit, &request) {
            return Ok(repeated);
        }
        let access = admission.reach(permit, update.map_version, request.deadline()).await?;
        let counted = admission.counted(Operation::Update, &access, async |place| {
            if access.container.is_short_of_room() {
                // A client doesn't send its data over and over while there is no room for it.
                let check = async || access.pool.shard().check_room_for(access.container.id, len);
                within_quota((&access.pool, &access.container), len, place, check).await?;
            }
            let data = self.arrive(&request, inline, len).await?;
            let marks = self.repeats.marks(&self.admission.rt, &access.pool, &request);
            let epoch = self.store(&access, &update, &data, &marks, place).await?;
            access.container.has_found_room(len);
            self.repeats.committed(&access.pool, &marks, epoch);
            Ok((codec::encode(&UpdateReply { epoch }), len))
        });
        counted.await
    }

    /// Gets the data: behind the message, or from the client's memory.
    async fn arrive<'a>(
        &self,
        request: &Request,
        inline: &'a [u8],
        len: u64,
    ) -> Result<UpdateData<&'a [u8]>, Status> {
        if inline.len() as u64 == len {
            return Ok(UpdateData::Inline(inline));
        }
        pull(request, inline, len).await.map(UpdateData::Pulled)
    }

    /// Stores the update. When the container's share of its quota is used up here, a greater one is asked for.
    async fn store(
        &self,
        access: &Access,
        update: &UpdateRequest,
        data: &UpdateData<&[u8]>,
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
                    &|| self.admission.epoch(),
                    update.conditions,
                    &update.akeys,
                    data.data(),
                    &|epoch| marks.along(epoch),
                )
                .await
        };
        within_quota((&access.pool, &access.container), data.bytes().len() as u64, place, attempt).await
    }
}

/// Gets data that isn't behind the message from the client's memory.
pub(crate) async fn pull(request: &Request, inline: &[u8], len: u64) -> Result<Slice, Status> {
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
    Slice::new(Rc::new(payload), 0..size).ok_or_else(outside)
}

/// Checks an update's limits; returns its bytes of data.
pub(crate) fn check(update: &UpdateRequest) -> Result<u64, Status> {
    let akeys = update.akeys.iter().map(|akey| (&akey.akey, &akey.value));
    let len = validate(akeys).map_err(refusal::invalid)?;
    let fetching = Conditions::DKEY_FETCH.union(Conditions::AKEY_FETCH).union(Conditions::PUNCH);
    check_conditions(update.conditions, fetching, "an update")?;
    Ok(len)
}
