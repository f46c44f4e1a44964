//! Opens that the kernel tries again because the name was gone or meant another file. The kernel looks the name up
//! first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most callers that are known. A retry comes at once; when there are more, some have died before.
const CALLERS_MAX: usize = 256;

/// Callers whose last open was refused, with the inode that each has looked up since.
#[derive(Debug, Default)]
pub struct Retries {
    callers: Mutex<HashMap<u32, Option<u64>>>,
    /// How many they are, so that what opens and looks up as usual takes no lock.
    count: AtomicUsize,
}

impl Retries {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, Option<u64>>) -> T) -> T {
        let mut callers: MutexGuard<'_, _> = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut callers);
        self.count.store(callers.len(), Ordering::Release);
        changed
    }

    /// An open is refused that the kernel will try again. A caller of number 0 is one that can't be told from others.
    pub fn refused(&self, caller: u32) {
        if caller == 0 {
            return;
        }
        self.change(|callers| {
            if callers.len() >= CALLERS_MAX {
                callers.clear();
            }
            callers.insert(caller, None);
        });
    }

    /// A caller has found an inode under a name.
    pub fn looked_up(&self, caller: u32, number: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.change(|callers| {
                if let Some(found) = callers.get_mut(&caller) {
                    *found = Some(number);
                }
            });
        }
    }

    /// A caller opens an inode. Whether it had that from a look-up since it was refused: then the file had its name after the
    /// caller began to open it.
    pub fn opens(&self, caller: u32, number: u64) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|callers| callers.remove(&caller)).flatten() == Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_looked_up_after_a_refusal_is_known_to_have_had_its_name() {
        let retries = Retries::default();
        retries.looked_up(7, 100);
        assert!(!retries.opens(7, 100), "it may have been replaced before");
        retries.refused(7);
        assert!(!retries.opens(7, 100), "not looked up");
        retries.refused(7);
        retries.looked_up(8, 100);
        retries.looked_up(7, 100);
        retries.looked_up(7, 101);
        assert!(!retries.opens(8, 100), "another caller");
        assert!(retries.opens(7, 101));
        assert!(!retries.opens(7, 101), "once");
        retries.refused(0);
        retries.looked_up(0, 100);
        assert!(!retries.opens(0, 100), "anybody");
    }
}
