//! Pages that the kernel has of a file, and the attributes by which it drops them.
//!
//! The kernel drops a file's pages when it is told another modification time than the one it knows (`FUSE_AUTO_INVAL_DATA`). So it
//! notices what others have changed. But writes from here change that time, too, and its pages have them. If another write is on
//! its way to this process when the pages go, its page is read anew without it, and a program doesn't see what it has just written.
//!
//! So while programs write to a file, the kernel doesn't get to know attributes that show nothing but these writes: they are withheld.
//! A program that asks for them gets them all the same.

use std::time::{Duration, Instant};

use weir_dfs::{Kind, Stat};

use super::worker::Shared;

/// How long after a write another one is expected. Until then the kernel asks for attributes at each use.
const BUSY: Duration = Duration::from_secs(1);

/// For how long attributes are withheld at most: a change by another client that is older than the newest write from here can't be
/// told from that write.
const WITHHELD_MAX: Duration = Duration::from_mins(1);

/// What attributes say beside size and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Others {
    mode: u32,
    owner: (u32, u32),
    links: u32,
}

/// What is known of the pages of a file.
#[derive(Debug, Default)]
pub struct Pages {
    /// Handles that may write.
    writers: u32,
    /// When a write came last that the pages have.
    written: Option<Instant>,
    /// Until when attributes are withheld at most, since they are.
    until: Option<Instant>,
    /// Attributes that the kernel was given last.
    others: Option<Others>,
    /// Something has changed that neither pages nor attributes of the kernel have.
    is_behind: bool,
}

impl Pages {
    /// One more handle may write.
    pub fn begin_writer(&mut self) {
        self.writers += 1;
    }

    /// One handle less may write.
    pub fn end_writer(&mut self) {
        self.writers = self.writers.saturating_sub(1);
    }

    /// Notes a write that the pages have. Returns whether it is the first one for some time.
    pub fn note_written(&mut self, now: Instant) -> bool {
        let was_busy = self.is_busy(now);
        self.written = Some(now);
        !was_busy
    }

    /// Notes a change that the pages don't have.
    pub fn note_bypassed(&mut self) {
        self.is_behind = true;
    }

    /// Notes that the engines have told of a change by another client. While nobody writes here the kernel is told of it anyway.
    pub fn note_foreign(&mut self, now: Instant) {
        self.is_behind |= self.is_busy(now);
    }

    /// Notes that the kernel drops the pages, because the file is opened. A page that is read anew meanwhile may lack a write that was on
    /// its way: it doesn't stay for long.
    pub fn note_dropped(&mut self, now: Instant) {
        if self.is_busy(now) {
            let soon = now + BUSY;
            self.until = Some(self.until.map_or(soon, |until| until.min(soon)));
        }
    }

    /// Whether programs write to the file.
    fn is_busy(&self, now: Instant) -> bool {
        self.writers > 0 && self.written.is_some_and(|written| now.saturating_duration_since(written) < BUSY)
    }

    /// Whether the kernel goes without attributes of which it may have all but those of its own writes.
    pub fn is_withholding(&self, now: Instant) -> bool {
        self.is_busy(now) && !self.is_behind
    }

    /// Whether the kernel must not get to know attributes that it is about to be answered.
    fn withholds(&mut self, others: Others, now: Instant) -> bool {
        let has_others = self.others.replace(others).is_some_and(|before| before != others);
        if !self.is_busy(now) {
            (self.until, self.is_behind) = (None, false);
            return false;
        }
        self.is_behind |= has_others;
        if self.is_behind {
            return false;
        }
        if now < *self.until.get_or_insert(now + WITHHELD_MAX) {
            return true;
        }
        self.until = None;
        false
    }
}

impl Shared {
    /// Comes before an answer with attributes: withholds them from the kernel where its pages would go for nothing. It takes no notice
    /// of an answer to what it asked before it was told that its attributes are out of date.
    pub(crate) fn withhold(&self, stat: &Stat) {
        if stat.kind != Kind::File {
            return;
        }
        let Some(inode) = self.inodes.get(stat.inode) else { return };
        // Whoever accesses it directly has the kernel go by attributes alone.
        if inode.gathering.is_direct() {
            return;
        }
        let others = Others { mode: stat.mode, owner: (stat.uid, stat.gid), links: stat.links };
        let is_withheld = inode.lock().pages.withholds(others, Instant::now());
        if is_withheld {
            self.expire_attributes(inode.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: Others = Others { mode: 0o644, owner: (1, 1), links: 1 };

    /// Pages that were just written to.
    fn busy(now: Instant) -> Pages {
        let mut pages = Pages::default();
        pages.begin_writer();
        assert!(!pages.withholds(OTHERS, now), "nothing is written");
        assert!(pages.note_written(now));
        assert!(!pages.note_written(now), "not the first");
        pages
    }

    #[test]
    fn attributes_are_withheld_while_programs_write() {
        let now = Instant::now();
        let mut pages = busy(now);
        assert!(pages.withholds(OTHERS, now));
        assert!(!pages.withholds(OTHERS, now + BUSY), "they have stopped");
        assert!(pages.note_written(now + BUSY));
        assert!(pages.withholds(OTHERS, now + BUSY));
        pages.end_writer();
        assert!(!pages.withholds(OTHERS, now + BUSY), "none can go on");
    }

    #[test]
    fn a_change_that_the_pages_lack_is_told_until_programs_stop_writing() {
        let now = Instant::now();
        for change in [
            |pages: &mut Pages, now| pages.note_foreign(now),
            |pages: &mut Pages, _| pages.note_bypassed(),
            |pages: &mut Pages, now| {
                assert!(!pages.withholds(Others { mode: 0o600, ..OTHERS }, now));
                assert!(!pages.withholds(OTHERS, now));
            },
        ] {
            let mut pages = busy(now);
            change(&mut pages, now);
            assert!(!pages.is_withholding(now) && !pages.withholds(OTHERS, now));
            assert!(!pages.note_written(now));
            assert!(!pages.withholds(OTHERS, now), "an answer may have got lost between two writes");
            assert!(!pages.withholds(OTHERS, now + BUSY));
            assert!(pages.note_written(now + BUSY));
            assert!(pages.withholds(OTHERS, now + BUSY));
        }
    }

    #[test]
    fn what_others_change_before_a_first_write_is_told_by_the_attributes_themselves() {
        let now = Instant::now();
        let mut pages = Pages::default();
        pages.begin_writer();
        pages.note_foreign(now);
        pages.note_written(now);
        assert!(pages.withholds(OTHERS, now));
    }

    #[test]
    fn attributes_are_told_once_in_a_while_however_long_programs_write() {
        let now = Instant::now();
        let mut pages = busy(now);
        assert!(pages.withholds(OTHERS, now));
        pages.note_written(now + WITHHELD_MAX);
        assert!(!pages.withholds(OTHERS, now + WITHHELD_MAX));
        assert!(pages.withholds(OTHERS, now + WITHHELD_MAX));
    }

    #[test]
    fn attributes_are_told_soon_after_the_file_was_opened() {
        let now = Instant::now();
        let mut pages = busy(now);
        pages.note_dropped(now);
        assert!(pages.withholds(OTHERS, now));
        let later = now + BUSY / 2;
        pages.note_dropped(later);
        pages.note_written(later);
        assert!(pages.withholds(OTHERS, later));
        assert!(!pages.withholds(OTHERS, now + BUSY), "however often it is opened");
        assert!(pages.withholds(OTHERS, now + BUSY));
    }
}
