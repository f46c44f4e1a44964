//! Names that are being changed from here. Who has written under one of them finds out what became of it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use weir_client::ObjectId;

/// A name in a directory.
pub type Name<'a> = (ObjectId, &'a [u8]);

/// Changes of names under way.
#[derive(Debug, Default)]
pub struct NameChanges {
    under_way: Mutex<UnderWay>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct UnderWay {
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
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
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

    /// Waits for the changes of a name that are under way now. Each ends with its requests to engines, which have a deadline.
    pub fn wait_for(&self, (directory, name): Name<'_>) {
        let under_way = self.lock();
        let last = under_way.begun;
        let concerns = |(order, its_directory, its_name): &(u64, ObjectId, Vec<u8>)| {
            *order <= last && *its_directory == directory && its_name == name
        };
        let waited = self.ended.wait_while(under_way, |now| now.names.iter().any(concerns));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        self.all.lock().names.retain(|(order, ..)| *order != self.order);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const DIRECTORY: ObjectId = ObjectId { hi: 0, lo: 1 };

    #[test]
    fn who_waits_for_a_name_waits_for_its_changes_that_had_begun_and_for_no_others() {
        let changes = NameChanges::default();
        let rename = changes.begin(&[(DIRECTORY, b"a"), (DIRECTORY, b"b")]);
        changes.wait_for((DIRECTORY, b"c"));
        changes.wait_for((ObjectId { hi: 0, lo: 2 }, b"a"));
        let (waits, waiting) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                changes.wait_for((DIRECTORY, b"b"));
                waits.send(()).expect("the test waits");
            });
            assert!(waiting.recv_timeout(std::time::Duration::from_millis(50)).is_err());
            drop(rename);
            waiting.recv().expect("the change has ended");
        });
        changes.wait_for((DIRECTORY, b"a"));
    }
}
