//! When objects, dkeys and akeys exist.
//!
//! Each has events: an update creates it at an epoch where it doesn't exist, a punch ends it. Punching something ends
//! everything below it without touching it: what is below counts only from the epoch on at which the thing above was
//! last created.

use crate::format::key::{self, Path};
use crate::format::value::{Event, Kind};
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::ControlFlow;

/// Whether something exists at an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Existence {
    pub(crate) exists: bool,
    /// The epoch from which on what is stored below belongs to the present incarnation.
    pub(crate) low: u64,
    /// The newest event up to the epoch, also one of an earlier incarnation.
    pub(crate) event: Option<(u64, Event)>,
}

impl Existence {
    /// That of the root, which is above all objects.
    pub(crate) const ALWAYS: Self = Self { exists: true, low: 0, event: None };

    /// That of something without events, below something that exists as `above` says.
    pub(crate) const fn never(above: &Self) -> Self {
        Self { exists: false, low: above.low, event: None }
    }

    /// The epoch of the newest change that the event names: of an object, its own or one below it.
    pub(crate) fn newest(&self) -> u64 {
        match self.event {
            Some((_, Event::Object { newest })) => newest,
            Some((at, _)) => at,
            None => 0,
        }
    }

    /// Whether the newest event up to the epoch is a punch at exactly this epoch.
    pub(crate) fn punched_at(&self, epoch: u64) -> bool {
        matches!(self.event, Some((at, Event::Punch)) if at == epoch)
    }

    /// Whether a version of this epoch is visible at `at`.
    pub(crate) fn shows(&self, epoch: u64, at: u64) -> bool {
        self.low <= epoch && epoch <= at
    }
}

/// Merges two consecutive creations of the same thing to one: an update may arrive with an earlier epoch than the
/// one that created it.
fn merge(newer: Event, older: Event) -> Event {
    match (newer, older) {
        (
            Event::Akey { kind, record_size, classes },
            Event::Akey { kind: old_kind, record_size: old_size, classes: old },
        ) if kind == old_kind => {
            let record_size = if record_size == 0 { old_size } else { record_size };
            Event::Akey { kind, record_size, classes: classes | old }
        }
        (Event::Object { newest }, Event::Object { newest: old }) => {
            Event::Object { newest: newest.max(old) }
        }
        (newer, _) => newer,
    }
}

/// Computes an existence from events, the newest one first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Events {
    /// Whether what is above exists.
    is_there: bool,
    /// From which epoch on what is below that belongs to its present incarnation.
    low: u64,
    existence: Existence,
    start: u64,
}

impl Events {
    /// Without events yet, below something that exists as `above` says.
    pub(crate) fn below(above: &Existence) -> Self {
        Self { is_there: above.exists, low: above.low, existence: Existence::never(above), start: above.low }
    }

    /// Adds the next older event. Breaks when events before it make no difference.
    pub(crate) fn tell(&mut self, at: u64, event: Event) -> ControlFlow<()> {
        let Self { is_there, low, existence, start } = self;
        match (existence.event, event) {
            (None, Event::Punch) => {
                existence.event = Some((at, event));
                *start = (*start).max(at.saturating_add(1));
                ControlFlow::Break(())
            }
            (None, _) => {
                existence.event = Some((at, event));
                existence.exists = *is_there && at >= *low;
                *start = (*start).max(at);
                if existence.exists { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }
            (Some(_), Event::Punch) => ControlFlow::Break(()),
            (Some((newest, newer)), older) if at >= *low => {
                existence.event = Some((newest, merge(newer, older)));
                *start = at;
                ControlFlow::Continue(())
            }
            (Some(_), _) => ControlFlow::Break(()),
        }
    }

    /// The existence by the events that were added.
    pub(crate) fn existence(self) -> Existence {
        Existence { low: self.start.max(self.low), ..self.existence }
    }
}

/// Whether the thing at `path` exists at `epoch`, below something that exists as `above` says.
pub(crate) fn existence(tree: &Tree, path: &Path, above: Existence, epoch: u64) -> Result<Existence, Fault> {
    existence_from(tree, &path.event(epoch), above)
}

/// As [`existence`], of the thing and the epoch whose event would have the key `from`.
pub(crate) fn existence_from(tree: &Tree, from: &[u8], above: Existence) -> Result<Existence, Fault> {
    let mut events = Events::below(&above);
    let fault = tree.scan_below(from, from.len() - size_of::<u64>(), |rest, value| {
        let (at, event) = match (key::epoch_from(rest), Event::decode(value)) {
            (Ok(at), Ok(event)) => (at.0, event),
            (Err(malformed), _) | (_, Err(malformed)) => return ControlFlow::Break(Some(malformed)),
        };
        events.tell(at, event).map_break(|()| None)
    })?;
    if let Some(Some(malformed)) = fault {
        return Err(malformed.into());
    }
    Ok(events.existence())
}

impl Existence {
    /// What an akey holds, if it exists.
    pub(crate) fn array_or_single(&self) -> Option<(Kind, u32, u32)> {
        match self.event {
            Some((_, Event::Akey { kind, record_size, classes })) if self.exists => {
                Some((kind, record_size, classes))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::{Key, ObjectId};

    fn setup() -> (Tree, Path, Path) {
        let object = Path::object(1, 1, ObjectId { hi: 1, lo: 1 });
        let dkey = object.dkey(&Key::new(b"d").expect("a key"));
        (Tree::default(), object, dkey)
    }

    fn exists(tree: &Tree, object: &Path, dkey: &Path, epoch: u64) -> (bool, bool, u64) {
        let above = existence(tree, object, Existence::ALWAYS, epoch).expect("sound");
        let below = existence(tree, dkey, above, epoch).expect("sound");
        (above.exists, below.exists, below.low)
    }

    #[test]
    fn a_punch_above_ends_what_is_below_until_it_is_created_again() {
        let (mut tree, object, dkey) = setup();
        tree.put(&object.event(10), &Event::Object { newest: 10 }.encode()).expect("in memory");
        tree.put(&dkey.event(10), &Event::Dkey.encode()).expect("in memory");
        tree.put(&object.event(20), &Event::Punch.encode()).expect("in memory");
        tree.put(&object.event(30), &Event::Object { newest: 30 }.encode()).expect("in memory");
        assert_eq!(exists(&tree, &object, &dkey, 9), (false, false, 0));
        assert_eq!(exists(&tree, &object, &dkey, 15), (true, true, 10));
        assert_eq!(exists(&tree, &object, &dkey, 25), (false, false, 21));
        assert_eq!(exists(&tree, &object, &dkey, 35), (true, false, 30));
        tree.put(&dkey.event(40), &Event::Dkey.encode()).expect("in memory");
        assert_eq!(exists(&tree, &object, &dkey, 45), (true, true, 40));
        assert_eq!(exists(&tree, &object, &dkey, 15), (true, true, 10));
    }

    #[test]
    fn an_update_that_arrives_late_extends_the_life_backwards() {
        let (mut tree, object, dkey) = setup();
        tree.put(&object.event(10), &Event::Object { newest: 50 }.encode()).expect("in memory");
        tree.put(&object.event(5), &Event::Object { newest: 5 }.encode()).expect("in memory");
        tree.put(&dkey.event(10), &Event::Dkey.encode()).expect("in memory");
        tree.put(&dkey.event(5), &Event::Dkey.encode()).expect("in memory");
        assert_eq!(exists(&tree, &object, &dkey, 12), (true, true, 5));
        let above = existence(&tree, &object, Existence::ALWAYS, 12).expect("sound");
        assert_eq!(above.event, Some((10, Event::Object { newest: 50 })));
    }
}
