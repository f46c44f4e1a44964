//! Lists and key queries.

use weir_layout::Layout;
use weir_pool::Operation;
use weir_proto::limits::{INLINE_MAX, KEY_MAX, LIST_KEYS_MAX, RUNS_MAX};
use weir_proto::object::{
    GroupTail, KeyQuery, ListReply, ListRequest, ListScope, MeasureRequest, QueryKeyRequest, RunsRequest,
    SearchKeyReply, SearchKeyRequest,
};
use weir_proto::transaction::{decode_read, decode_read_with_tail};
use weir_proto::{Epoch, Key, ObjectId, ReaderId, Rights, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_store::{FetchError, ListPage};

use super::Operations;
use crate::admission::Access;
use crate::admission::refusal::{self, ErrorSite};

/// Longest anchor that is taken back: the longest key twice, with the store's own framing.
const ANCHOR_MAX: usize = 4 * KEY_MAX;

/// Most bytes of a list reply that is pushed to the client's memory: 1024 entries with values of a directory entry.
const PUSHED_MAX: u64 = 1024 * 1024;

/// Bytes that the length in front of a pushed reply takes.
const LENGTH_LEN: u64 = 8;

/// The dkeys of an object that a request is about: those of one group, or all that the target has.
struct Asked(Option<(Layout, usize)>);

impl Asked {
    fn of(access: &Access, object: ObjectId, tail: GroupTail) -> Result<Self, Status> {
        let Some(number) = tail.group else { return Ok(Self(None)) };
        let layout = access.pool.with_layout(object, |layout, _| layout.clone()).map_err(refusal::invalid)?;
        let group = usize::try_from(number).ok().filter(|group| *group < layout.group_count());
        let group =
            group.ok_or_else(|| refusal::invalid(format!("object {object} has no group {number}")))?;
        Ok(Self(Some((layout, group))))
    }

    fn has(&self, dkey: &Key) -> bool {
        self.0.as_ref().is_none_or(|(layout, group)| layout.group_index(dkey.hash()) == *group)
    }
}

impl Operations {
    pub(crate) async fn list(&self, request: &Request) -> Result<Body, Status> {
        let read = decode_read::<ListRequest>(request.opcode(), request.body());
        let (reader, wanted) = read.map_err(refusal::malformed)?;
        check(&wanted)?;
        let admission = &self.admission;
        let access = admission.access(request, &wanted.capability, Rights::READ, wanted.map_version).await?;
        self.check_reader(reader, &access, (wanted.object, None))?;
        let counted = admission.counted(Operation::List, &access, async |place| {
            let offered = request.bulk_room().min(PUSHED_MAX).saturating_sub(LENGTH_LEN);
            let room = usize::try_from(offered).unwrap_or(0).max(INLINE_MAX);
            let page = self.page(request, &access, (reader, &wanted), room, place).await?;
            Ok((weir_group::reply(request, page).await?, 0))
        });
        counted.await
    }

    /// The largest page, up to the limit, whose encoding fits the room.
    async fn page(
        &self,
        request: &Request,
        access: &Access,
        (reader, wanted): (Option<ReaderId>, &ListRequest),
        room: usize,
        place: &ErrorSite<'_>,
    ) -> Result<Vec<u8>, Status> {
        let mut limit = wanted.limit;
        loop {
            let read = ((wanted.object, None), reader, wanted.epoch);
            let page = self.when_settled(request, access, read, async |epoch| {
                list(access, wanted, epoch, reader, limit).await
            });
            let page = page.await?.map_err(|error| refusal::fetch(&error, place))?;
            let count = page.entries.len();
            let mut reply = ListReply { entries: page.entries, next: page.next.map(Into::into) };
            let mut encoded = codec::encode(&reply);
            if encoded.len() <= room {
                return Ok(encoded);
            }
            if count <= 1 {
                // One entry whose value is too long: it is listed without.
                for entry in &mut reply.entries {
                    entry.value = None;
                }
                encoded = codec::encode(&reply);
                return Ok(encoded);
            }
            let fitting = count.saturating_mul(room) / encoded.len();
            let fewer = fitting.saturating_sub(fitting / 8).clamp(1, count - 1);
            limit = u32::try_from(fewer).unwrap_or(1);
        }
    }

    /// What the opcode asks about keys and records.
    pub(crate) async fn query(&self, request: &Request) -> Result<Body, Status> {
        match request.opcode() {
            opcode::OBJECT_QUERY_KEY => self.query_key(request).await,
            opcode::OBJECT_MEASURE => self.measure(request).await,
            opcode::OBJECT_RUNS => self.runs(request).await,
            _ => self.search_key(request).await,
        }
    }

    /// All of a search in one request, for clients that don't ask for its parts.
    async fn query_key(&self, request: &Request) -> Result<Body, Status> {
        let wanted: QueryKeyRequest = codec::decode_message(request.body()).map_err(refusal::malformed)?;
        self.queried(request, &wanted, async |access, place| {
            let all = Asked(None);
            let mut part = self.search(request, access, (None, &wanted, &all), &[], place).await?;
            while let Some(next) = part.next {
                part = self.search(request, access, (None, &wanted, &all), &next, place).await?;
            }
            Ok(codec::encode(&part.found))
        })
        .await
    }

    async fn search_key(&self, request: &Request) -> Result<Body, Status> {
        let read = decode_read_with_tail::<SearchKeyRequest, GroupTail>(request.opcode(), request.body());
        let (reader, wanted, tail) = read.map_err(refusal::malformed)?;
        check_anchor(&wanted.anchor)?;
        self.queried(request, &wanted.query, async |access, place| {
            let asked = Asked::of(access, wanted.query.object, tail)?;
            let query = (reader, &wanted.query, &asked);
            Ok(codec::encode(&self.search(request, access, query, &wanted.anchor, place).await?))
        })
        .await
    }

    /// A part of a search, and how many records are real.
    async fn measure(&self, request: &Request) -> Result<Body, Status> {
        let (wanted, tail): (MeasureRequest, GroupTail) =
            codec::decode_with_tail(request.body()).map_err(refusal::malformed)?;
        let SearchKeyRequest { query, anchor } = &wanted.search;
        check_anchor(anchor)?;
        self.queried(request, query, async |access, place| {
            let asked = Asked::of(access, query.object, tail)?;
            let wants = |dkey: &Key| asked.has(dkey);
            let (shard, container) = (access.pool.shard(), access.container.id);
            let read = ((query.object, None), None, query.epoch);
            let found = self.when_settled(request, access, read, async |epoch| {
                shard
                    .measure(container, query.object, epoch, &query.query, anchor, wanted.below, &wants)
                    .await
            });
            Ok(codec::encode(&found.await?.map_err(|error| refusal::fetch(&error, place))?))
        })
        .await
    }

    /// Which records are real.
    async fn runs(&self, request: &Request) -> Result<Body, Status> {
        let (wanted, tail): (RunsRequest, GroupTail) =
            codec::decode_with_tail(request.body()).map_err(refusal::malformed)?;
        let RunsRequest { object, akey, from, below, limit, .. } = &wanted;
        if *limit == 0 || *limit > RUNS_MAX {
            return Err(refusal::invalid(format!("a reply has 1 to {RUNS_MAX} runs, not {limit}")));
        }
        let admission = &self.admission;
        let access = admission.access(request, &wanted.capability, Rights::READ, wanted.map_version).await?;
        let asked = Asked::of(&access, *object, tail)?;
        let wants = |dkey: &Key| asked.has(dkey);
        let counted = admission.counted(Operation::Query, &access, async |place| {
            let (shard, container) = (access.pool.shard(), access.container.id);
            let read = ((*object, None), None, wanted.epoch);
            let found = self.when_settled(request, &access, read, async |epoch| {
                shard.runs(container, *object, epoch, akey, *from, *below, *limit, &wants).await
            });
            let found = found.await?.map_err(|error| refusal::fetch(&error, place))?;
            Ok((codec::encode(&found), 0))
        });
        counted.await
    }

    /// A part of a search.
    async fn search(
        &self,
        request: &Request,
        access: &Access,
        (reader, wanted, asked): (Option<ReaderId>, &QueryKeyRequest, &Asked),
        anchor: &[u8],
        place: &ErrorSite<'_>,
    ) -> Result<SearchKeyReply, Status> {
        self.check_reader(reader, access, (wanted.object, None))?;
        let (shard, container) = (access.pool.shard(), access.container.id);
        let wants = |dkey: &Key| asked.has(dkey);
        let read = ((wanted.object, None), reader, wanted.epoch);
        let found = self.when_settled(request, access, read, async |epoch| {
            if let Some(reader) = reader {
                let view = shard.view(container, epoch, reader)?;
                return view.query_key_among(wanted.object, &wanted.query, anchor, &wants).await;
            }
            shard.query_key_among(container, wanted.object, epoch, &wanted.query, anchor, &wants).await
        });
        found.await?.map_err(|error| refusal::fetch(&error, place))
    }

    async fn queried(
        &self,
        request: &Request,
        wanted: &QueryKeyRequest,
        answer: impl AsyncFnOnce(&Access, &ErrorSite<'_>) -> Result<Vec<u8>, Status>,
    ) -> Result<Body, Status> {
        let admission = &self.admission;
        let access = admission.access(request, &wanted.capability, Rights::READ, wanted.map_version).await?;
        let counted = admission.counted(Operation::Query, &access, async |place| {
            if let KeyQuery::Search { dkey: Some(_), akey: Some(_), extent: false, .. } = &wanted.query {
                return Err(refusal::invalid("a key query that names both keys asks for nothing"));
            }
            Ok((answer(&access, place).await?, 0))
        });
        counted.await
    }
}

async fn list(
    access: &Access,
    wanted: &ListRequest,
    epoch: Epoch,
    reader: Option<ReaderId>,
    limit: u32,
) -> Result<ListPage, FetchError> {
    let (shard, container) = (access.pool.shard(), access.container.id);
    let ListRequest { object, scope, anchor, with_value, .. } = wanted;
    if let Some(reader) = reader {
        let view = shard.view(container, epoch, reader)?;
        return view.list(*object, scope, anchor, limit, with_value.as_ref()).await;
    }
    shard.list(container, *object, scope, epoch, anchor, limit, with_value.as_ref()).await
}

fn check_anchor(anchor: &[u8]) -> Result<(), Status> {
    if anchor.len() > ANCHOR_MAX {
        return Err(refusal::invalid(format!("an anchor has at most {ANCHOR_MAX} bytes")));
    }
    Ok(())
}

fn check(wanted: &ListRequest) -> Result<(), Status> {
    if wanted.limit == 0 || wanted.limit > LIST_KEYS_MAX {
        return Err(refusal::invalid(format!(
            "a page has 1 to {LIST_KEYS_MAX} entries, not {}",
            wanted.limit
        )));
    }
    check_anchor(&wanted.anchor)?;
    if wanted.with_value.is_some() && wanted.scope != ListScope::Dkeys {
        return Err(refusal::invalid("values are listed with dkeys only"));
    }
    Ok(())
}
