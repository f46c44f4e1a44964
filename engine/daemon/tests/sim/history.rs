//! Histories of keys, and whether they are linearizable.

use std::collections::{BTreeMap, HashSet};

/// What an operation did to a key, as its client saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Wrote a value.
    Put(u64),
    /// Wrote a value provided there was none; whether it did.
    Insert(u64, bool),
    /// Wrote a value provided there was one; whether it did.
    Replace(u64, bool),
    /// Removed the value.
    Remove,
    /// Removed the value provided there was one; whether it did.
    Take(bool),
    /// Read; the value, if there was one.
    Get(Option<u64>),
}

/// An operation on a key.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// When it began, in virtual nanoseconds.
    pub began: u64,
    /// When it was answered; `None`: whether it took place is unknown.
    pub ended: Option<u64>,
    /// What it did.
    pub action: Action,
}

/// Operations by key.
#[derive(Clone, Default, Debug)]
pub struct History {
    keys: BTreeMap<u64, Vec<Entry>>,
}

/// Most operations of one key: the search marks them in one word.
const ENTRIES_MAX: usize = 64;

impl History {
    pub fn add(&mut self, key: u64, entry: Entry) {
        self.keys.entry(key).or_default().push(entry);
    }

    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Whether those of each key are linearizable.
    pub fn is_linearizable(&self) -> bool {
        self.keys.values().all(|entries| is_linearizable(entries))
    }

    /// Panics with the history of a key that is not linearizable.
    pub fn check(&self, seed: u64) {
        for (key, entries) in &self.keys {
            assert!(
                is_linearizable(entries),
                "seed {seed}: the history of key {key} is not linearizable:\n{}",
                entries.iter().map(|entry| format!("  {entry:?}")).collect::<Vec<_>>().join("\n")
            );
        }
    }
}

/// An action met a state in which it would have had another answer.
struct Contradiction;

/// The state of a key after an action, when it held `state` before.
fn apply(action: Action, state: Option<u64>) -> Result<Option<u64>, Contradiction> {
    let after = |possible: bool, after| if possible { Ok(after) } else { Err(Contradiction) };
    match action {
        Action::Put(value) => Ok(Some(value)),
        Action::Insert(value, true) => after(state.is_none(), Some(value)),
        Action::Insert(_, false) => after(state.is_some(), state),
        Action::Replace(value, true) => after(state.is_some(), Some(value)),
        Action::Take(true) => after(state.is_some(), None),
        Action::Replace(_, false) | Action::Take(false) => after(state.is_none(), state),
        Action::Remove => Ok(None),
        Action::Get(seen) => after(seen == state, state),
    }
}

/// Searches for an order of the operations that respects real time and in which every answer is right (Wing and
/// Gong, 1993; with remembered dead ends as by Lowe, 2017). An operation without an answer may take place at any
/// time after its beginning, or never.
fn is_linearizable(entries: &[Entry]) -> bool {
    assert!(entries.len() <= ENTRIES_MAX, "at most {ENTRIES_MAX} operations a key");
    let answered = entries.iter().enumerate().filter(|(_, entry)| entry.ended.is_some());
    let needed = answered.fold(0_u64, |mask, (index, _)| mask | 1 << index);
    let mut dead_ends = HashSet::new();
    let mut open = vec![(0_u64, None)];
    while let Some((done, state)) = open.pop() {
        if done & needed == needed {
            return true;
        }
        if !dead_ends.insert((done, state)) {
            continue;
        }
        let left = || entries.iter().enumerate().filter(|(index, _)| done & 1 << index == 0);
        // An operation can be next unless another one that is left was answered before it began.
        let horizon = left().filter_map(|(_, entry)| entry.ended).min().unwrap_or(u64::MAX);
        for (index, entry) in left().filter(|(_, entry)| entry.began <= horizon) {
            let action = match (entry.action, entry.ended) {
                // Its answer is unknown, so its condition may not have held: then it changed nothing, as if it never took place.
                (Action::Insert(value, _), None) => Action::Insert(value, true),
                (Action::Replace(value, _), None) => Action::Replace(value, true),
                (Action::Take(_), None) => Action::Take(true),
                (action, _) => action,
            };
            if let Ok(after) = apply(action, state) {
                open.push((done | 1 << index, after));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(began: u64, ended: u64, action: Action) -> Entry {
        Entry { began, ended: Some(ended), action }
    }

    #[test]
    fn a_lost_write_is_noticed() {
        let lost = [entry(0, 1, Action::Put(5)), entry(2, 3, Action::Get(None))];
        assert!(!is_linearizable(&lost));
        let concurrent = [entry(0, 3, Action::Put(5)), entry(2, 4, Action::Get(None))];
        assert!(is_linearizable(&concurrent));
    }

    #[test]
    fn a_value_from_the_dead_is_noticed() {
        let stale = [
            entry(0, 1, Action::Put(1)),
            entry(2, 3, Action::Put(2)),
            entry(4, 5, Action::Get(Some(2))),
            entry(6, 7, Action::Get(Some(1))),
        ];
        assert!(!is_linearizable(&stale));
    }

    #[test]
    fn an_unanswered_write_may_take_place_late_or_never() {
        let unknown = Entry { began: 0, ended: None, action: Action::Put(9) };
        assert!(is_linearizable(&[
            unknown,
            entry(5, 6, Action::Get(None)),
            entry(7, 8, Action::Get(Some(9)))
        ]));
        assert!(is_linearizable(&[unknown, entry(5, 6, Action::Get(None))]));
        assert!(!is_linearizable(&[
            unknown,
            entry(5, 6, Action::Get(Some(9))),
            entry(7, 8, Action::Get(None))
        ]));
    }

    #[test]
    fn two_inserts_cannot_both_succeed() {
        let both = [entry(0, 5, Action::Insert(1, true)), entry(0, 5, Action::Insert(2, true))];
        assert!(!is_linearizable(&both));
        let one = [entry(0, 5, Action::Insert(1, true)), entry(0, 5, Action::Insert(2, false))];
        assert!(is_linearizable(&one));
    }

    #[test]
    fn two_cannot_take_the_same_value() {
        let put = entry(0, 1, Action::Put(1));
        let both = [put, entry(2, 5, Action::Take(true)), entry(2, 5, Action::Take(true))];
        assert!(!is_linearizable(&both));
        let one = [put, entry(2, 5, Action::Take(true)), entry(2, 5, Action::Take(false))];
        assert!(is_linearizable(&one));
        let unknown = Entry { began: 2, ended: None, action: Action::Take(true) };
        assert!(is_linearizable(&[put, unknown, entry(3, 5, Action::Take(false))]));
    }

    #[test]
    fn nobody_replaces_what_was_taken() {
        let (put, take) = (entry(0, 1, Action::Put(1)), entry(2, 5, Action::Take(true)));
        assert!(!is_linearizable(&[put, take, entry(6, 7, Action::Replace(2, true))]));
        assert!(is_linearizable(&[put, take, entry(6, 7, Action::Replace(2, false))]));
        assert!(is_linearizable(&[put, take, entry(3, 7, Action::Replace(2, true))]));
    }
}
