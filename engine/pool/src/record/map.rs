//! A pool's map: a part of the records of pools, and a record of its own where the device can't take it.

use serde::{Deserialize, Serialize};
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
use weir_proto::{Rank, TargetIndex, codec};

use super::{Read, Stored, read_as};

/// The form of versions 1 and 2.
#[derive(Serialize, Deserialize)]
pub(super) struct MapForm {
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
}

impl From<&PoolMap> for MapForm {
    fn from(map: &PoolMap) -> Self {
        let target = |target: &PoolTarget| TargetForm {
            id: target.id,
            rank: target.rank,
            index: target.index,
            state: match target.state {
                TargetState::UpIn => StateForm::UpIn,
                TargetState::Down => StateForm::Down,
            },
        };
        Self { version: map.version, targets: map.targets.iter().map(target).collect() }
    }
}

impl From<MapForm> for PoolMap {
    fn from(form: MapForm) -> Self {
        let target = |TargetForm { id, rank, index, state }| PoolTarget {
            id,
            rank,
            index,
            state: match state {
                StateForm::UpIn => TargetState::UpIn,
                StateForm::Down => TargetState::Down,
            },
        };
        Self { version: form.version, targets: form.targets.into_iter().map(target).collect() }
    }
}

impl Stored for PoolMap {
    const WHAT: &'static str = "the map";
    const VERSION: u8 = 2;

    fn body(&self) -> Vec<u8> {
        codec::encode(&MapForm::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 | 2 => read_as::<MapForm, _>(body),
            _ => Read::Unknown,
        }
    }
}
