//! A pool's map: a part of the records of pools, and a record of its own where the device can't take it.

use serde::{Deserialize, Serialize};
use weir_proto::codec::DecodeError;
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Rank, TargetIndex, codec};

use super::{Read, Stored, read_as, read_through};

/// The form of version 3: a map's tail is read as far as it is known.
#[derive(Serialize, Deserialize)]
pub(super) struct MapForm {
    map: EarlyMapForm,
    #[serde(with = "serde_bytes")]
    tail: Vec<u8>,
}

/// The form of versions 1 and 2.
#[derive(Serialize, Deserialize)]
pub(super) struct EarlyMapForm {
    version: u32,
    targets: Vec<TargetForm>,
}

#[derive(Serialize, Deserialize)]
struct TargetForm {
    id: u32,
    rank: Rank,
    index: TargetIndex,
    state: StateForm,
}

/// Stored as the number of the variant.
#[derive(Serialize, Deserialize)]
enum StateForm {
    UpIn,
    Down,
    Up,
    New,
    Drain,
    DownOut,
}

impl From<TargetState> for StateForm {
    fn from(state: TargetState) -> Self {
        match state {
            TargetState::UpIn => Self::UpIn,
            TargetState::Down => Self::Down,
            TargetState::Up => Self::Up,
            TargetState::New => Self::New,
            TargetState::Drain => Self::Drain,
            TargetState::DownOut => Self::DownOut,
        }
    }
}

impl From<StateForm> for TargetState {
    fn from(form: StateForm) -> Self {
        match form {
            StateForm::UpIn => Self::UpIn,
            StateForm::Down => Self::Down,
            StateForm::Up => Self::Up,
            StateForm::New => Self::New,
            StateForm::Drain => Self::Drain,
            StateForm::DownOut => Self::DownOut,
        }
    }
}

impl From<&PoolMap> for MapForm {
    fn from(map: &PoolMap) -> Self {
        let target = |target: &PoolTarget| TargetForm {
            id: target.id,
            rank: target.rank,
            index: target.index,
            state: target.state.into(),
        };
        let targets = map.targets.iter().map(target).collect();
        Self { map: EarlyMapForm { version: map.version, targets }, tail: map.tail() }
    }
}

impl From<EarlyMapForm> for PoolMap {
    fn from(form: EarlyMapForm) -> Self {
        let target =
            |TargetForm { id, rank, index, state }| PoolTarget::plain(id, (rank, index), state.into());
        Self::new(form.version, form.targets.into_iter().map(target).collect())
    }
}

impl TryFrom<MapForm> for PoolMap {
    type Error = DecodeError;

    fn try_from(form: MapForm) -> Result<Self, DecodeError> {
        Self::from(form.map).with_tail(&form.tail)
    }
}

impl Stored for PoolMap {
    const WHAT: &'static str = "the map";
    const VERSION: u8 = 3;

    fn body(&self) -> Vec<u8> {
        codec::encode(&MapForm::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 | 2 => read_as::<EarlyMapForm, _>(body),
            3 => read_through::<MapForm, _>(body),
            _ => Read::Unknown,
        }
    }
}
