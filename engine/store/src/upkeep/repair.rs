//! Repair of versions whose data is damaged, with data that another target has.
//!
//! The checksums that stand with a version are the truth: of data that comes from elsewhere each chunk is taken that matches its own,
//! and nothing else. What is whole then goes to other blocks, and a record of the log replaces the version's entry, at the same
//! epoch. Until that record is durable the index refers to the damaged blocks, so that a crash leaves one or the other.

use crate::format::codec::crc32c;
use crate::format::record::Change;
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Inline, Payload, Version};
use crate::index::fault::Halt;
use crate::operations::fetch::hold_blocks;
use crate::space::map::Purpose;
use crate::state::core::Core;
use crate::state::error::{FetchError, UpdateError};
use crate::state::pace::PIECE;
use crate::state::reservation::Reservation;
use crate::state::shard::Shard;
use crate::upkeep::merge::write_data;
use weir_media::MediaError;
use weir_proto::history::VersionName;
use weir_proto::object::{AkeyFetch, Conditions, Extent, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// A version of which some chunks don't match their checksums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedVersion {
    key: Vec<u8>,
    value: Vec<u8>,
    record_size: u32,
    payload: Payload,
    data: Vec<u8>,
    /// Numbers of the chunks that are damaged.
    bad: Vec<u64>,
}

/// What became of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairOutcome {
    /// The version is whole.
    Repaired,
    /// Something else stands there by now.
    Changed,
    /// The device has no room for it at the moment, or can't write it.
    NoRoom,
}

/// Bytes of a chunk, and the checksum that it is to have.
fn chunk_of(payload: &Payload, number: u64) -> (core::ops::Range<usize>, Option<u32>) {
    match payload {
        Payload::Hole => (0..0, None),
        Payload::Inline(Inline { bytes, checksum }) => (0..bytes.len(), *checksum),
        Payload::Blocks(blocks) => {
            let range = blocks.chunks.range(number);
            let sum = blocks.checksums.get(in_memory(number)).copied();
            (in_memory(range.start)..in_memory(range.end), sum)
        }
    }
}

/// Whether a chunk of data is what it is to be. In the index a value may be without a checksum.
fn is_sound(payload: &Payload, number: u64, data: &[u8]) -> bool {
    let (range, sum) = chunk_of(payload, number);
    match (sum, data.get(range)) {
        (Some(sum), Some(chunk)) => crc32c(chunk) == sum,
        (None, Some(_)) => matches!(payload, Payload::Inline(_) | Payload::Hole),
        (_, None) => false,
    }
}

/// The data of a version as the device has it now, and the numbers of the chunks that are damaged. What can't be read is damaged.
async fn read(core: &Core, payload: &Payload) -> Result<(Vec<u8>, Vec<u64>), FetchError> {
    let (data, chunks) = match payload {
        Payload::Hole => (Vec::new(), 0),
        Payload::Inline(inline) => (inline.bytes.clone(), 1),
        Payload::Blocks(blocks) => (read_runs(core, blocks).await?, blocks.chunks.count()),
    };
    let bad = (0..chunks).filter(|number| !is_sound(payload, *number, &data)).collect();
    Ok((data, bad))
}

async fn read_runs(core: &Core, blocks: &Blocks) -> Result<Vec<u8>, FetchError> {
    // The index may be ahead of the device.
    core.make_durable(core.journal.last()).await.map_err(FetchError::Failed)?;
    let mut data = Vec::with_capacity(in_memory(blocks.len()));
    for run in &blocks.runs {
        let begin = core.layout.data(run.block);
        for offset in (begin..begin + run.bytes()).step_by(PIECE) {
            let len = in_memory((PIECE as u64).min(begin + run.bytes() - offset));
            match core.read_behind(offset, len).await {
                Ok(bytes) => data.extend_from_slice(&bytes[..len]),
                Err(MediaError::Io { .. }) if core.device.fault().is_none() => {
                    data.resize(data.len() + len, 0);
                }
                Err(error) => return Err(error.into()),
            }
            core.yield_to_io().await;
        }
    }
    data.truncate(in_memory(blocks.len()));
    Ok(data)
}

impl DamagedVersion {
    /// Bytes of its data.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "what is damaged is never empty")]
    pub const fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Takes the chunks that it lacks from data of another target, those of which that match the checksums here.
    pub fn take(&mut self, data: &[u8]) {
        if data.len() != self.data.len() {
            return;
        }
        let Self { payload, data: own, bad, .. } = self;
        bad.retain(|number| {
            let is_sound = is_sound(payload, *number, data);
            if is_sound {
                let (range, _) = chunk_of(payload, *number);
                own[range.clone()].copy_from_slice(&data[range]);
            }
            !is_sound
        });
    }

    /// Whether all of it is there.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.bad.is_empty()
    }
}

impl Shard {
    /// The versions of a dkey whose data is damaged on the device. Reads all of them.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn damaged_versions(
        &self,
        container: ContainerId,
        (object, dkey): (ObjectId, &Key),
    ) -> Result<Vec<VersionName>, FetchError> {
        let (mut damaged, mut from) = (Vec::new(), Some(Vec::new()));
        while let Some(begin) = from.take() {
            let guard = hold_blocks(&self.core);
            let page = self.versions_of(container, (object, dkey), &begin).await?;
            for (name, payload) in page.versions {
                let (_, bad) = read(&self.core, &payload).await?;
                if !bad.is_empty() {
                    damaged.push(name);
                }
            }
            drop(guard);
            from = page.next;
        }
        Ok(damaged)
    }

    /// A version as it is here. `None`: it isn't damaged, or it isn't here any more.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn damaged_version(&self, name: &VersionName) -> Result<Option<DamagedVersion>, FetchError> {
        let key = self.place_of(name)?.to_vec();
        let _guard = hold_blocks(&self.core);
        let Some(value) = self.entry(&key).await? else { return Ok(None) };
        let Version { record_size, payload } = Version::decode(&value)?;
        let (data, bad) = read(&self.core, &payload).await?;
        let damaged = DamagedVersion { key, value, record_size, payload, data, bad };
        Ok(Some(damaged).filter(|version| !version.is_whole()))
    }

    async fn entry(&self, key: &[u8]) -> Result<Option<Vec<u8>>, FetchError> {
        self.core.ask(|tree| Ok::<_, Halt<FetchError>>(tree.get(key)?)).await
    }

    /// The data of a version of so many bytes, for a target whose own is damaged. Where aggregation has made another version of it, it is
    /// the data of the same records then or now. It may be damaged here, too: the asker compares it. Empty: it isn't here.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn version_data(&self, name: &VersionName, len: u64) -> Result<Vec<u8>, FetchError> {
        let key = self.place_of(name)?;
        let guard = hold_blocks(&self.core);
        if let Some(value) = self.entry(&key).await? {
            return Ok(read(&self.core, &Version::decode(&value)?.payload).await?.0);
        }
        drop(guard);
        for epoch in [name.epoch, Epoch::MAX] {
            if let Some(data) = self.shown(name, epoch, len).await? {
                return Ok(data);
            }
        }
        Ok(Vec::new())
    }

    /// The records of a version as they are at an epoch, if all of them are there.
    async fn shown(&self, name: &VersionName, epoch: Epoch, len: u64) -> Result<Option<Vec<u8>>, FetchError> {
        let Some(extent @ Extent { count, .. }) = name.extent else { return Ok(None) };
        let Some(record_size) = len.checked_div(count).and_then(|size| u32::try_from(size).ok()) else {
            return Ok(None);
        };
        let value = Value::Array { record_size, extents: vec![extent] };
        let akeys = [AkeyFetch { akey: name.akey.clone(), value, conditions: Conditions::NONE }];
        let found =
            self.fetch(name.container, name.object, &name.dkey, epoch, Conditions::NONE, &akeys).await?;
        if found.data_len() != len || found.akeys().iter().any(|akey| akey.fetched.present != [extent]) {
            return Ok(None);
        }
        let mut data = vec![0; in_memory(len)];
        found.read(&mut data).await?;
        Ok(Some(data))
    }

    /// Writes a version anew that is whole by now ([`DamagedVersion::take`]), at its epoch. Durable when it returns.
    ///
    /// # Errors
    /// [`UpdateError::Invalid`]: it isn't whole. Otherwise see [`UpdateError`].
    pub async fn repair_version(&self, damaged: DamagedVersion) -> Result<RepairOutcome, UpdateError> {
        if !damaged.is_whole() {
            return Err(UpdateError::Invalid("a version is still damaged".to_owned()));
        }
        let DamagedVersion { key, value, record_size, mut payload, data, .. } = damaged;
        let core = &self.core;
        core.admit().await.map_err(UpdateError::Failed)?;
        let mut reservation = None;
        match &mut payload {
            Payload::Hole => return Ok(RepairOutcome::Changed),
            Payload::Inline(inline) => inline.bytes = data,
            Payload::Blocks(blocks) => {
                let Some(written) = self.write_elsewhere(blocks, data).await? else {
                    return Ok(RepairOutcome::NoRoom);
                };
                blocks.runs = written.runs().into();
                reservation = Some(written);
            }
        }
        let repaired = Version { record_size, payload }.encode();
        let is_current = core.ask(|tree| {
            tree.reach([key.as_slice()])?;
            Ok::<_, Halt<UpdateError>>(tree.get(&key)?.as_ref() == Some(&value))
        });
        if !is_current.await? {
            return Ok(RepairOutcome::Changed);
        }
        core.commit(&[Change::Put { key, value: repaired }], None)?;
        if let Some(mut reservation) = reservation {
            reservation.keep();
        }
        core.make_durable(core.journal.last()).await.map_err(UpdateError::Failed)?;
        Ok(RepairOutcome::Repaired)
    }

    /// Writes the data of a version to as many blocks as it has, in no more runs, so that its entry doesn't grow. `None`: there is no
    /// room, or the device couldn't.
    async fn write_elsewhere(
        &self,
        blocks: &Blocks,
        data: Vec<u8>,
    ) -> Result<Option<Reservation>, UpdateError> {
        let core = &self.core;
        let count: u64 = blocks.runs.iter().map(|run| run.count).sum();
        // The blocks that it has now come free at once.
        if !core.has_blocks_for_copy(count) {
            return Ok(None);
        }
        let runs = core.space.borrow_mut().allocate(count, Purpose::Data, blocks.runs.len());
        let Some(runs) = runs else { return Ok(None) };
        let reservation = Reservation::of_runs(core, self.number, runs);
        write_data(core, reservation, data).await.map_err(UpdateError::Failed)
    }
}
