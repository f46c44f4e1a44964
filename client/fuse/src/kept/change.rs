//! Changes of attributes that wait to be sent.

use serde::{Deserialize, Serialize};
use weir_dfs::{Change, SetAttributes};

/// What a file's attributes become, of which the engines may not know. Times are nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptChange {
    /// Number of the file's inode.
    pub inode: u64,
    /// When the program asked for it.
    pub changed_ns: i64,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime_ns: Option<i64>,
    mtime_ns: Option<i64>,
}

impl KeptChange {
    /// A change of an inode's record that a program asked for at that time. "Now" is that time: a successor must not set a later one.
    #[must_use]
    pub fn of(inode: u64, change: &SetAttributes, changed_ns: i64) -> Self {
        let time = |time: Change| match time {
            Change::Now => changed_ns,
            Change::To(ns) => ns,
        };
        let SetAttributes { mode, uid, gid, size: _, atime, mtime } = *change;
        let (atime_ns, mtime_ns) = (atime.map(time), mtime.map(time));
        Self { inode, changed_ns, mode, uid, gid, atime_ns, mtime_ns }
    }

    /// The change.
    #[must_use]
    pub fn attributes(&self) -> SetAttributes {
        let Self { mode, uid, gid, atime_ns, mtime_ns, .. } = *self;
        SetAttributes {
            mode,
            uid,
            gid,
            size: None,
            atime: atime_ns.map(Change::To),
            mtime: mtime_ns.map(Change::To),
        }
    }

    /// Without the modification time, since the content has changed after that was set. `None`: nothing is left.
    #[must_use]
    pub fn before_write(self) -> Option<Self> {
        let rest = Self { mtime_ns: None, ..self };
        rest.attributes().changes_record().then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_when_the_program_asked_and_a_write_takes_the_modification_time_off() {
        let times = SetAttributes {
            atime: Some(Change::Now),
            mtime: Some(Change::To(-7)),
            ..SetAttributes::default()
        };
        let kept = KeptChange::of(16, &times, 5);
        let found = kept.attributes();
        assert_eq!((found.atime, found.mtime), (Some(Change::To(5)), Some(Change::To(-7))));
        let rest = kept.before_write().expect("the access time");
        assert_eq!((rest.attributes().atime, rest.attributes().mtime), (Some(Change::To(5)), None));
        let only = SetAttributes { mtime: Some(Change::Now), ..SetAttributes::default() };
        assert_eq!(KeptChange::of(16, &only, 5).before_write(), None);
    }
}
