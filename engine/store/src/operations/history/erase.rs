//! Erasing objects: what a target has of them and the others don't is to be gone.

use super::import::superseded;
use crate::format::key;
use crate::format::record::Change;
use crate::index::fault::Halt;
use crate::state::error::UpdateError;
use crate::state::shard::Shard;
use core::ops::ControlFlow;
use weir_proto::{ContainerId, ObjectId};

/// Entries that one record removes: some 200 µs of work.
const REMOVALS_MAX: usize = 64;

impl Shard {
    /// Erases all history of the objects of a container that `doomed` names, as if they never had been. What is stored of them
    /// meanwhile may go, or stay in part: it is to be taken in once more. Each record commits if `holds` says at that moment that
    /// they are to go. Durable when it returns.
    ///
    /// # Errors
    /// [`UpdateError::Restart`]: they aren't to go any more. Otherwise see [`UpdateError`]. Some may be gone then.
    pub async fn erase_objects(
        &self,
        container: ContainerId,
        doomed: &dyn Fn(ObjectId) -> bool,
        holds: &dyn Fn() -> bool,
    ) -> Result<(), UpdateError> {
        let number = self.locate(container)?;
        let prefix = key::objects(self.number, number);
        let mut from = prefix.clone();
        loop {
            self.core.admit().await.map_err(UpdateError::Failed)?;
            let found = self.core.ask(|tree| {
                let mut found = Found::default();
                let malformed = tree.scan_below(&from, prefix.len(), |rest, _| {
                    let object = match key::object_from(rest) {
                        Ok(object) => object,
                        Err(malformed) => return ControlFlow::Break(Some(malformed)),
                    };
                    if !doomed(object) {
                        found.spared = Some(object);
                        return ControlFlow::Break(None);
                    }
                    found.keys.push([prefix.as_slice(), rest].concat());
                    if found.keys.len() == REMOVALS_MAX {
                        return ControlFlow::Break(None);
                    }
                    ControlFlow::Continue(())
                })?;
                if let Some(Some(malformed)) = malformed {
                    return Err(Halt::Failed(UpdateError::from(malformed)));
                }
                tree.reach(found.keys.iter().map(Vec::as_slice))?;
                Ok(found)
            });
            let Found { keys, spared } = found.await?;
            if self.locate(container)? != number {
                return Err(UpdateError::ContainerMissing(container));
            }
            if !holds() {
                return Err(superseded());
            }
            let is_over = keys.len() < REMOVALS_MAX && spared.is_none();
            if let Some(last) = keys.last() {
                from.clone_from(last);
                let changes: Vec<Change> = keys.into_iter().map(|key| Change::Remove { key }).collect();
                self.core.commit(&changes, None)?;
            }
            if is_over {
                break;
            }
            if let Some(object) = spared {
                from = key::after(key::Path::object(self.number, number, object).as_bytes());
                if !from.starts_with(&prefix) {
                    break;
                }
            }
            self.core.yield_slice().await;
        }
        self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)
    }
}

/// What a look has found.
#[derive(Default)]
struct Found {
    /// Entries that go.
    keys: Vec<Vec<u8>>,
    /// The object behind them, which stays.
    spared: Option<ObjectId>,
}
