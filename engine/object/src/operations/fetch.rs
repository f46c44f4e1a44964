//! Fetches.

use weir_pool::Operation;
use weir_proto::limits::INLINE_MAX;
use weir_proto::object::{Conditions, FetchReply, FetchRequest, Fetched, validate};
use weir_proto::transaction::decode_read;
use weir_proto::{Der, Epoch, ReaderId, Rights, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_store::{AkeySums, Comparison, Fetch, FetchError};

use super::{Operations, check_conditions};
use crate::admission::Access;
use crate::admission::refusal::{self, ErrorSite};

/// Longest reply in front of inline data: what is left is for data.
const REPLY_ROOM: usize = 4 * 1024;

/// Conditions of updates and punches.
const WRITING: Conditions = Conditions(
    Conditions::PUNCH.0
        | Conditions::DKEY_INSERT.0
        | Conditions::DKEY_UPDATE.0
        | Conditions::AKEY_INSERT.0
        | Conditions::AKEY_UPDATE.0,
);

impl Operations {
    pub(crate) async fn fetch(&self, mut request: Request) -> Result<Body, Status> {
        let read = decode_read::<FetchRequest>(request.opcode(), request.body());
        let (reader, wanted) = read.map_err(refusal::malformed)?;
        request.release_body();
        check(&wanted)?;
        let admission = &self.admission;
        let access = admission.access(&request, &wanted.capability, Rights::READ, wanted.map_version).await?;
        self.check_reader(reader, &access, (wanted.object, Some(&wanted.dkey)))?;
        let counted = admission.counted(Operation::Fetch, &access, async |place| {
            let read = ((wanted.object, Some(&wanted.dkey)), reader, wanted.epoch);
            let found = self.when_settled(&request, &access, read, async |epoch| {
                find(&access, &wanted, epoch, reader).await
            });
            let refuse = |error: FetchError| self.refuse(&error, (&access, &wanted), place);
            let found = found.await?.map_err(refuse)?;
            let len = found.data_len();
            let body = if len <= (INLINE_MAX - REPLY_ROOM) as u64 || request.bulk_room() < len {
                self.inline(&request, (&access, &wanted), found, place).await?
            } else {
                self.pushed(&request, (&access, &wanted), found, place).await?
            };
            Ok((body, len))
        });
        counted.await
    }

    /// The answer to a fetch that the store refused. What it found damaged is repaired if there is another copy.
    fn refuse(
        &self,
        error: &FetchError,
        (access, wanted): (&Access, &FetchRequest),
        place: &ErrorSite<'_>,
    ) -> Status {
        if error.is_of_data() || matches!(error, FetchError::Media(_)) {
            let (pool, container) = (access.pool.id(), access.container.id);
            self.repair.suspect(pool, container, (wanted.object, &wanted.dkey));
        }
        refusal::fetch(error, place)
    }

    /// A reply with the data behind it; when that doesn't fit a message, the data is pushed after all.
    async fn inline(
        &self,
        request: &Request,
        read: (&Access, &FetchRequest),
        found: Fetch,
        place: &ErrorSite<'_>,
    ) -> Result<Body, Status> {
        let too_large = || {
            let message = format!(
                "{place}: {} bytes were found, {} bytes of memory were offered for them",
                found.data_len(),
                request.bulk_room()
            );
            Status::new(Der::REC2BIG, message)
        };
        let len = usize::try_from(found.data_len()).map_err(|_| too_large())?;
        if len > INLINE_MAX {
            return Err(too_large());
        }
        let mut data = vec![0; len];
        let sums = found.read_summed(&read.1.akeys, &mut data).await;
        let sums = sums.map_err(|error| self.refuse(&error, read, place))?;
        let mut body = codec::encode(&reply(&found, sums, true));
        if body.len() + data.len() > INLINE_MAX {
            if request.bulk_room() < len as u64 {
                return Err(too_large());
            }
            return self.pushed(request, read, found, place).await;
        }
        body.extend_from_slice(&data);
        Ok(body)
    }

    /// A reply whose data goes to the client's memory. Where the client compares checksums, this side doesn't:
    /// comparing takes as long as everything else together, and memory that was read may take longer to transfer from.
    ///
    /// The data leaves when nothing is held any more of what was found: how long it takes is the client's affair, and
    /// meanwhile no room would come free on the device.
    async fn pushed(
        &self,
        request: &Request,
        read: (&Access, &FetchRequest),
        found: Fetch,
        place: &ErrorSite<'_>,
    ) -> Result<Body, Status> {
        let len = usize::try_from(found.data_len()).map_err(refusal::invalid)?;
        let payload = request.payload(len).await?;
        let mut landed = found
            .read_to(&read.1.akeys, comparison(request.opcode()), payload.into_parts())
            .await
            .map_err(|error| self.refuse(&error, read, place))?;
        let body = codec::encode(&reply(&found, landed.sums, false));
        drop(found);
        let (buffer, _room) = &mut landed.memory;
        // The pool hands out more than was asked for, and the data may begin within a block.
        let range = landed.start..landed.start + len;
        buffer.set_len(range.end);
        request.push_from(0, buffer, range).await?;
        Ok(body)
    }
}

/// Which side compares the data of a fetch.
const fn comparison(opcode: u16) -> Comparison {
    if opcode::is_compared_by_client(opcode) { Comparison::ByReader } else { Comparison::Here }
}

async fn find(
    access: &Access,
    wanted: &FetchRequest,
    epoch: Epoch,
    reader: Option<ReaderId>,
) -> Result<Fetch, FetchError> {
    let (shard, container) = (access.pool.shard(), access.container.id);
    let FetchRequest { object, dkey, conditions, akeys, .. } = wanted;
    if let Some(reader) = reader {
        return shard.view(container, epoch, reader)?.fetch(*object, dkey, *conditions, akeys).await;
    }
    shard.fetch(container, *object, dkey, epoch, *conditions, akeys).await
}

fn check(wanted: &FetchRequest) -> Result<(), Status> {
    validate(wanted.akeys.iter().map(|akey| (&akey.akey, &akey.value))).map_err(refusal::invalid)?;
    check_conditions(wanted.conditions, WRITING, "a fetch")
}

/// Describes what was found, with the checksums that the store has for it.
fn reply(found: &Fetch, sums: AkeySums, inline: bool) -> FetchReply {
    let described = found.akeys().iter().zip(sums);
    let akeys = described
        .map(|(part, checksums)| Fetched { checksums: checksums.into_vec(), ..part.fetched.clone() })
        .collect();
    FetchReply { akeys, data_len: found.data_len(), inline }
}
