//! The durable record of a target's store apart from its device: the identity of the store, and how far it had got. With it an engine
//! recognises a blank device, an older copy, or another device in the place of the target's.
//!
//! Real engines keep the record in a file beside the target's, `target-N.seen`. The record is written when the store is opened, every
//! few seconds while the store changes, and when the target has stopped. It doesn't cover what was acknowledged after it was written.

use std::cell::RefCell;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use weir_proto::Epoch;
use weir_store::Mark;

use crate::durable;

/// Content of the file when the target's content was given up and the target may be made anew.
const GIVEN_UP: &str = "given up";

/// The state in which a target's store was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSeen {
    /// Unknown.
    Nothing,
    /// How far its store was.
    Store(Mark),
    /// An operator has given up what it held: whatever is there is its store, and where nothing is, one is made.
    GivenUp,
}

/// The durable record of one target's store.
pub trait LastSeenRecord {
    /// Reads the record.
    fn read(&self) -> LastSeen;

    /// Records how far the store is, soon.
    fn keep(&self, mark: &Mark);

    /// Records how far the store was when it was closed, before this returns.
    fn keep_last(&self, mark: &Mark);

    /// Records that the target's content is given up.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn give_up(&self) -> io::Result<()>;
}

/// The path of the record for a target's file or link.
#[must_use]
pub fn last_seen_path(target: &Path) -> PathBuf {
    target.with_extension("seen")
}

/// A record in a file of the data directory. A thread writes it, so that the target doesn't wait for the file system.
pub struct LastSeenFile {
    path: PathBuf,
    writer: RefCell<Option<(Sender<String>, JoinHandle<()>)>>,
}

impl LastSeenFile {
    /// The record that is kept in this file.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path, writer: RefCell::new(None) }
    }

    /// Ends the thread behind all that it has to write.
    fn settle(&self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            // It ends by itself.
            let _ = thread.join();
        }
    }
}

fn write(path: &Path, text: &str) {
    if let Err(error) = durable::write(path, text.as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "how far a target's store is can't be written down");
    }
}

fn text_of(mark: &Mark) -> String {
    let mut text = String::new();
    let Mark { store, generation, stable, newest } = mark;
    // A string takes everything.
    let _ = writeln!(text, "store {store}\ngeneration {generation}\nstable {stable}\nnewest {}", newest.0);
    text
}

fn parse(text: &str) -> Option<LastSeen> {
    if text.trim() == GIVEN_UP {
        return Some(LastSeen::GivenUp);
    }
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    Some(LastSeen::Store(Mark {
        store: field("store")?.parse().ok()?,
        generation: number("generation")?,
        stable: number("stable")?,
        newest: Epoch(number("newest")?),
    }))
}

impl LastSeenRecord for LastSeenFile {
    fn read(&self) -> LastSeen {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return LastSeen::Nothing,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "how far a target's store was can't be read");
                return LastSeen::Nothing;
            }
        };
        parse(&text).unwrap_or_else(|| {
            tracing::warn!(path = %self.path.display(), "how far a target's store was can't be read: the file makes no sense");
            LastSeen::Nothing
        })
    }

    fn keep(&self, mark: &Mark) {
        let mut writer = self.writer.borrow_mut();
        if writer.is_none() {
            let (sender, texts) = channel::<String>();
            let path = self.path.clone();
            let thread = Builder::new().name("last-seen".to_owned()).spawn(move || {
                while let Ok(mut text) = texts.recv() {
                    // Of several only the last one counts.
                    while let Ok(newer) = texts.try_recv() {
                        text = newer;
                    }
                    write(&path, &text);
                }
            });
            match thread {
                Ok(thread) => *writer = Some((sender, thread)),
                Err(error) => tracing::warn!(%error, "nobody writes down how far a target's store is"),
            }
        }
        if let Some((sender, _)) = writer.as_ref() {
            // The thread lives as long as the sender.
            let _ = sender.send(text_of(mark));
        }
    }

    fn keep_last(&self, mark: &Mark) {
        self.settle();
        write(&self.path, &text_of(mark));
    }

    fn give_up(&self) -> io::Result<()> {
        self.settle();
        durable::write(&self.path, format!("{GIVEN_UP}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_last_is_remembered_and_what_makes_no_sense_is_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target-0.seen");
        let mark = |stable| Mark { store: uuid::Uuid::from_u128(7), generation: 3, stable, newest: Epoch(9) };
        let last_seen = LastSeenFile::new(path.clone());
        assert_eq!(last_seen.read(), LastSeen::Nothing);
        for stable in 0..100 {
            last_seen.keep(&mark(stable));
        }
        last_seen.keep_last(&mark(100));
        assert_eq!(LastSeenFile::new(path.clone()).read(), LastSeen::Store(mark(100)));
        last_seen.keep(&mark(101));
        last_seen.give_up().expect("it is written");
        assert_eq!(last_seen.read(), LastSeen::GivenUp);
        fs::write(&path, "store of something").expect("written");
        assert_eq!(last_seen.read(), LastSeen::Nothing);
    }
}
