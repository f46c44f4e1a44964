//! Enumeration of keys, and queries for the greatest and smallest ones.

use weir_layout::ObjectClass;
use weir_proto::object::{
    Extent, GroupTail, KeyQuery, ListReply, ListRequest, ListScope, Listed, MeasureReply, MeasureRequest,
    QueryKeyReply, QueryKeyRequest, RunsReply, RunsRequest, SearchKeyReply, SearchKeyRequest,
};
use weir_proto::transaction::encode_read;
use weir_proto::{Der, Epoch, Key, ObjectId, codec, opcode};
use weir_runtime::join_all;

use super::{Anchor, Page};
use super::{Object, ShardChoice};
use crate::handles::Container;
use crate::operation::{Payload, RequestInfo};
use crate::session::Context;
use crate::{Error, Result};

/// The greatest or smallest key or record of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtremeKey {
    /// The dkey found or asked about; `None` when the object is empty.
    pub dkey: Option<Key>,
    /// The akey found or asked about.
    pub akey: Option<Key>,
    /// The extent that holds the record found, with its record size.
    pub extent: Option<(Extent, u32)>,
    /// Epoch of the newest change on the shards that were asked, when the search began there.
    pub max_epoch: Epoch,
}

/// The last record of an akey, and how many of its records are real.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Measured {
    /// The greatest dkey and its greatest record.
    pub(crate) last: ExtremeKey,
    /// Of each shard that was asked how many records are real, and the dkey at which counting ended early. `None` where the
    /// engine can't count.
    pub(crate) counts: Vec<Option<(u64, Option<u64>)>>,
}

impl Object {
    /// Lists dkeys, at most `limit` in a page, and with each the single value of `with_value` when there is one.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn list_dkeys(
        &self,
        context: &Context,
        anchor: &Anchor,
        limit: u32,
        with_value: Option<&Key>,
    ) -> Result<Page> {
        let shards = self.shard_count(context)?;
        let mut at = anchor.clone();
        while !at.ended {
            let place = ShardChoice::Shard(at.shard as usize);
            let (entries, next) =
                self.list_page(context, place, ListScope::Dkeys, &at.inner, limit, with_value).await?;
            at = match next {
                Some(inner) => Anchor { inner, ..at },
                None => {
                    Anchor { shard: at.shard + 1, inner: Vec::new(), ended: at.shard as usize + 1 >= shards }
                }
            };
            if !entries.is_empty() {
                return Ok(Page { entries, next: at });
            }
        }
        Ok(Page { entries: Vec::new(), next: at })
    }

    /// Lists the objects of a container that one target has something of, at an epoch. Targets are counted as the pool map that
    /// `context` knows counts those in service; `None` behind the last one.
    ///
    /// # Errors
    /// When the target refuses or does not answer in time.
    pub async fn list_of_target(
        context: &Context,
        container: &Container,
        (target, epoch): (usize, Epoch),
        anchor: &Anchor,
    ) -> Result<Option<(Vec<ObjectId>, Anchor)>> {
        let everywhere = ObjectClass::SX.encode(ObjectId { hi: 0, lo: 0 }, crate::kind::MULTI_HASHED);
        let object = Self::open(container, everywhere)?.at(epoch);
        if target >= object.shard_count(context)? {
            return Ok(None);
        }
        let (place, limit) = (ShardChoice::Shard(target), weir_proto::limits::LIST_KEYS_MAX);
        let (entries, next) =
            object.list_page(context, place, ListScope::Objects, &anchor.inner, limit, None).await?;
        let oid_of = |key: &[u8]| {
            let bytes = <[u8; 16]>::try_from(key).map_err(|_| Error::Protocol {
                operation: "list objects",
                subject: format!("target {target}"),
                reason: format!("an object id has 16 bytes, not {}", key.len()),
            })?;
            Ok(ObjectId::from_bytes(bytes))
        };
        let oids: Result<Vec<_>> = entries.iter().map(|entry| oid_of(&entry.key)).collect();
        let ended = next.is_none();
        let next = Anchor { shard: anchor.shard, inner: next.unwrap_or_default(), ended };
        Ok(Some((oids?, next)))
    }

    /// Lists the dkeys that one shard holds, all of them.
    ///
    /// # Errors
    /// When the shard refuses or does not answer in time.
    pub async fn shard_dkeys(&self, context: &Context, shard: usize) -> Result<Vec<Key>> {
        let mut inner = Vec::new();
        let mut found = Vec::new();
        loop {
            let limit = weir_proto::limits::LIST_KEYS_MAX;
            let (entries, next) = self
                .list_page(context, ShardChoice::Shard(shard), ListScope::Dkeys, &inner, limit, None)
                .await?;
            found.extend(entries.iter().filter_map(|entry| Key::new(&entry.key).ok()));
            match next {
                Some(next) => inner = next,
                None => return Ok(found),
            }
        }
    }

    /// Lists the akeys of a dkey.
    ///
    /// # Errors
    /// When the shard refuses or does not answer in time.
    pub async fn list_akeys(
        &self,
        context: &Context,
        dkey: &Key,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<Page> {
        self.list_in_dkey(context, dkey, ListScope::Akeys(dkey.clone()), anchor, limit).await
    }

    /// Lists the extents of an array akey.
    ///
    /// # Errors
    /// When the shard refuses or does not answer in time.
    pub async fn list_extents(
        &self,
        context: &Context,
        dkey: &Key,
        akey: &Key,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<Page> {
        let scope = ListScope::Extents(dkey.clone(), akey.clone());
        self.list_in_dkey(context, dkey, scope, anchor, limit).await
    }

    async fn list_in_dkey(
        &self,
        context: &Context,
        dkey: &Key,
        scope: ListScope,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<Page> {
        if anchor.ended {
            return Ok(Page { entries: Vec::new(), next: anchor.clone() });
        }
        let (entries, next) =
            self.list_page(context, ShardChoice::Dkey(dkey), scope, &anchor.inner, limit, None).await?;
        let ended = next.is_none();
        Ok(Page { entries, next: Anchor { shard: anchor.shard, inner: next.unwrap_or_default(), ended } })
    }

    async fn list_page(
        &self,
        context: &Context,
        place: ShardChoice<'_>,
        scope: ListScope,
        anchor: &[u8],
        limit: u32,
        with_value: Option<&Key>,
    ) -> Result<(Vec<Listed>, Option<Vec<u8>>)> {
        let opcode = if self.reader.is_some() { opcode::TRANSACTION_LIST } else { opcode::OBJECT_LIST };
        let info = RequestInfo::new("list", self, opcode);
        let limit = limit.clamp(1, weir_proto::limits::LIST_KEYS_MAX);
        let build = |map_version| {
            let wanted = ListRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                map_version,
                epoch: self.epoch,
                scope: scope.clone(),
                anchor: anchor.to_vec(),
                limit,
                with_value: with_value.cloned(),
            };
            encode_read(self.reader, wanted)
        };
        let exchange = self
            .exchange(context, &info, place, &Payload::None, &build)
            .await
            .map_err(|refusal| refusal.error)?;
        let mut reply: ListReply = exchange.decode(&info)?;
        if let (ListScope::Dkeys, ShardChoice::Shard(group)) = (&scope, place)
            && self.is_replicated()
        {
            // The target that leads the group may have places in others.
            let layout = self.layout(context, &context.map_of(self.container.pool()))?;
            let is_of_group = |listed: &Listed| {
                Key::new(&listed.key).is_ok_and(|dkey| layout.group_index(dkey.hash()) == group)
            };
            reply.entries.retain(is_of_group);
        }
        Ok((reply.entries, reply.next.map(serde_bytes::ByteBuf::into_vec)))
    }

    /// Says behind a question which group of replicas it is about, where it is about one as a whole.
    fn of_group(&self, place: ShardChoice<'_>, mut question: Vec<u8>) -> Vec<u8> {
        if let ShardChoice::Shard(group) = place
            && self.is_replicated()
        {
            question.extend(codec::encode(&GroupTail { group: u32::try_from(group).ok() }));
        }
        question
    }

    /// The greatest (`max`) or smallest key: of all dkeys or within `dkey`, of all akeys or within `akey`, and with
    /// `extent` the greatest or smallest record. Only for keys that are integers.
    ///
    /// # Errors
    /// `INVAL` when keys are not integers; or when a shard refuses or does not answer in time.
    pub async fn extreme_key(
        &self,
        context: &Context,
        max: bool,
        dkey: Option<&Key>,
        akey: Option<&Key>,
        extent: bool,
    ) -> Result<ExtremeKey> {
        let query = KeyQuery::Search { max, dkey: dkey.cloned(), akey: akey.cloned(), extent };
        if let Some(dkey) = dkey {
            return self.query_at(context, ShardChoice::Dkey(dkey), &query).await;
        }
        let all = (0..self.shard_count(context)?)
            .map(|shard| self.query_at(context, ShardChoice::Shard(shard), &query));
        let found: Result<Vec<ExtremeKey>> = join_all(all).await.into_iter().collect();
        Ok(outermost(found?, max))
    }

    /// The greatest record of an akey of the greatest dkey, or of one dkey, and how many records of each dkey are real below
    /// `below`. As many requests as [`Object::extreme_key`].
    ///
    /// # Errors
    /// As [`Object::extreme_key`].
    pub(crate) async fn measure(
        &self,
        context: &Context,
        dkey: Option<&Key>,
        akey: &Key,
        below: u64,
    ) -> Result<Measured> {
        let query =
            KeyQuery::Search { max: true, dkey: dkey.cloned(), akey: Some(akey.clone()), extent: true };
        let places: Vec<ShardChoice<'_>> = match dkey {
            Some(dkey) => vec![ShardChoice::Dkey(dkey)],
            None => (0..self.shard_count(context)?).map(ShardChoice::Shard).collect(),
        };
        let all = places.into_iter().map(|place| self.measure_at(context, place, &query, below));
        let (mut last, mut counts) = (Vec::new(), Vec::new());
        for found in join_all(all).await {
            let (found, count) = found?;
            last.push(found);
            counts.push(count);
        }
        Ok(Measured { last: outermost(last, true), counts })
    }

    /// Records of an akey that are real on one shard, from dkey and record `from` on, below record `below` of each dkey, at
    /// most `limit` runs, and where to go on. `None`: the engine can't tell.
    ///
    /// # Errors
    /// When the shard refuses or does not answer in time.
    pub(crate) async fn runs(
        &self,
        context: &Context,
        shard: usize,
        akey: &Key,
        from: (u64, u64),
        below: u64,
        limit: u32,
    ) -> Result<Option<RunsReply>> {
        let info = RequestInfo::new("find records of", self, opcode::OBJECT_RUNS);
        let build = |map_version| {
            let asked = RunsRequest {
                capability: self.container.state.capability.clone(),
                object: self.oid,
                map_version,
                epoch: self.epoch,
                akey: akey.clone(),
                from,
                below,
                limit,
            };
            self.of_group(ShardChoice::Shard(shard), codec::encode(&asked))
        };
        match self.exchange(context, &info, ShardChoice::Shard(shard), &Payload::None, &build).await {
            Err(refusal) if refusal.error.is(Der::NOSYS) => Ok(None),
            answer => answer.map_err(|refusal| refusal.error)?.decode(&info).map(Some),
        }
    }

    /// Epoch of the object's newest change; zero when it has none.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn max_epoch(&self, context: &Context) -> Result<Epoch> {
        let all = (0..self.shard_count(context)?)
            .map(|shard| self.query_at(context, ShardChoice::Shard(shard), &KeyQuery::Epoch));
        let mut newest = Epoch::ZERO;
        for found in join_all(all).await {
            newest = newest.max(found?.max_epoch);
        }
        Ok(newest)
    }

    /// Asks part by part until there is an answer. Each part may take as long as an operation: a search ends if it gets on.
    async fn query_at(
        &self,
        context: &Context,
        place: ShardChoice<'_>,
        query: &KeyQuery,
    ) -> Result<ExtremeKey> {
        let (mut anchor, mut begun) = (Vec::new(), None);
        loop {
            let SearchKeyReply { found, next } = self.query_part(context, place, query, anchor).await?;
            // What has changed since the first part may not be in the answer.
            let max_epoch = *begun.get_or_insert(found.max_epoch);
            let Some(next) = next else {
                let QueryKeyReply { dkey, akey, extent, .. } = found;
                return Ok(ExtremeKey { dkey, akey, extent, max_epoch });
            };
            anchor = next.into_vec();
        }
    }

    /// As [`Object::query_at`], and how many records are real. An engine that can't count is asked for the rest only.
    async fn measure_at(
        &self,
        context: &Context,
        place: ShardChoice<'_>,
        query: &KeyQuery,
        below: u64,
    ) -> Result<(ExtremeKey, Option<(u64, Option<u64>)>)> {
        let (mut anchor, mut begun) = (Vec::new(), None);
        let info = RequestInfo::new("measure", self, opcode::OBJECT_MEASURE);
        loop {
            let part = |map_version| {
                let query = self.key_request(query, map_version);
                let search = SearchKeyRequest { query, anchor: anchor.clone() };
                self.of_group(place, codec::encode(&MeasureRequest { search, below }))
            };
            let answer = self.exchange(context, &info, place, &Payload::None, &part).await;
            let MeasureReply { search, real, stopped } = match answer {
                Err(refusal) if refusal.error.is(Der::NOSYS) => {
                    return Ok((self.query_at(context, place, query).await?, None));
                }
                answer => answer.map_err(|refusal| refusal.error)?.decode(&info)?,
            };
            let max_epoch = *begun.get_or_insert(search.found.max_epoch);
            let Some(next) = search.next else {
                let QueryKeyReply { dkey, akey, extent, .. } = search.found;
                return Ok((ExtremeKey { dkey, akey, extent, max_epoch }, Some((real, stopped))));
            };
            anchor = next.into_vec();
        }
    }

    fn key_request(&self, query: &KeyQuery, map_version: u32) -> QueryKeyRequest {
        QueryKeyRequest {
            capability: self.container.state.capability.clone(),
            object: self.oid,
            map_version,
            epoch: self.epoch,
            query: query.clone(),
        }
    }

    async fn query_part(
        &self,
        context: &Context,
        place: ShardChoice<'_>,
        query: &KeyQuery,
        anchor: Vec<u8>,
    ) -> Result<SearchKeyReply> {
        let request = |map_version| self.key_request(query, map_version);
        let in_transaction = self.reader.is_some();
        let opcode = if in_transaction { opcode::TRANSACTION_SEARCH_KEY } else { opcode::OBJECT_SEARCH_KEY };
        let info = RequestInfo::new("query keys of", self, opcode);
        let part = |map_version| {
            let wanted = SearchKeyRequest { query: request(map_version), anchor: anchor.clone() };
            self.of_group(place, encode_read(self.reader, wanted))
        };
        match self.exchange(context, &info, place, &Payload::None, &part).await {
            // An engine that doesn't know of parts answers as a whole.
            Err(refusal) if refusal.error.is(Der::NOSYS) && anchor.is_empty() && !in_transaction => {}
            answer => return answer.map_err(|refusal| refusal.error)?.decode(&info),
        }
        let info = RequestInfo::new("query keys of", self, opcode::OBJECT_QUERY_KEY);
        let whole = |map_version| codec::encode(&request(map_version));
        let exchange = self
            .exchange(context, &info, place, &Payload::None, &whole)
            .await
            .map_err(|refusal| refusal.error)?;
        Ok(SearchKeyReply { found: exchange.decode(&info)?, next: None })
    }
}

/// The greatest or smallest of what several shards found, with the newest epoch of all.
fn outermost(all: Vec<ExtremeKey>, max: bool) -> ExtremeKey {
    let mut best = ExtremeKey::default();
    for found in all {
        let max_epoch = best.max_epoch.max(found.max_epoch);
        let better = match (&found.dkey, &best.dkey) {
            (Some(found), Some(best)) => (found > best) == max,
            (found, _) => found.is_some(),
        };
        if better {
            best = found;
        }
        best.max_epoch = max_epoch;
    }
    best
}
