//! Names that are being changed from here. A thread that has written under one of them finds out what became of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_client::ObjectId;

/// A name in a directory.
pub type Name<'a> = (ObjectId, &'a [u8]);

/// Changes of names under way.
#[derive(Debug, Default)]
pub struct NameChanges {
    under_way: Mutex<PendingChanges>,
}

#[derive(Debug, Default)]
struct PendingChanges {
    begun: u64,
    /// Names with the order in which their changes began. No more than twice the threads that serve requests.
    names: Vec<(u64, ObjectId, Vec<u8>)>,
}

/// A change under way. It ends when it is dropped: after what it found out has been noted.
#[derive(Debug)]
pub struct NameChange<'a> {
    all: &'a NameChanges,
    order: u64,
}

impl NameChanges {
    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that these names are about to be changed.
    pub fn begin(&self, names: &[Name<'_>]) -> NameChange<'_> {
        let mut under_way = self.lock();
        under_way.begun += 1;
        let order = under_way.begun;
        let names = names.iter().map(|(directory, name)| (order, *directory, name.to_vec()));
        under_way.names.extend(names);
        NameChange { all: self, order }
    }

    /// The order in which the last change began.
    pub fn last(&self) -> u64 {
        self.lock().begun
    }

    /// Whether a change of this name is under way that had begun by then. Each ends with its requests to engines, which have a
    /// deadline.
    pub fn awaits(&self, last: u64, (directory, name): Name<'_>) -> bool {
        self.lock().names.iter().any(|(order, its_directory, its_name)| {
            *order <= last && *its_directory == directory && its_name == name
        })
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        self.all.lock().names.retain(|(order, ..)| *order != self.order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: ObjectId = ObjectId { hi: 0, lo: 1 };

    #[test]
    fn who_waits_for_a_name_waits_for_its_changes_that_had_begun_and_for_no_others() {
        let changes = NameChanges::default();
        let rename = changes.begin(&[(DIRECTORY, b"a"), (DIRECTORY, b"b")]);
        let begun = changes.last();
        assert!(!changes.awaits(begun, (DIRECTORY, b"c")));
        assert!(!changes.awaits(begun, (ObjectId { hi: 0, lo: 2 }, b"a")));
        assert!(changes.awaits(begun, (DIRECTORY, b"a")) && changes.awaits(begun, (DIRECTORY, b"b")));
        let later = changes.begin(&[(DIRECTORY, b"a")]);
        drop(rename);
        assert!(!changes.awaits(begun, (DIRECTORY, b"a")));
        assert!(changes.awaits(changes.last(), (DIRECTORY, b"a")));
        drop(later);
        assert!(!changes.awaits(changes.last(), (DIRECTORY, b"a")));
    }
}
