//! What is remembered of a target's store apart from its device: which store it was, and how far it was. A blank device, an older one
//! or another one in its place is told by that.
//!
//! On real engines it is a file beside the target's, `target-N.seen`. It is written when the store was opened, every few seconds
//! while it changes, and when the target has stopped. What was acknowledged since it was written last it doesn't tell of.

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

/// What a file says whose target may have anything, and be made anew.
const GIVEN_UP: &str = "given up";

/// What is remembered of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing.
    Nothing,
    /// How far its store was.
    Store(Mark),
    /// An operator has given up what it held: whatever is there is its store, and where nothing is, one is made.
    GivenUp,
}

/// The memory of one target.
pub trait Witness {
    /// What is remembered.
    fn read(&self) -> Seen;

    /// Remembers how far the store is, soon.
    fn keep(&self, mark: &Mark);

    /// Remembers how far the store is when it was closed, before this returns.
    fn keep_last(&self, mark: &Mark);

    /// Remembers that what the target held is given up.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn give_up(&self) -> io::Result<()>;
}

/// Where it is remembered what a target's file or link had.
#[must_use]
pub fn witness_of(target: &Path) -> PathBuf {
    target.with_extension("seen")
}

/// A memory in a file of the data directory. A thread writes it, so that the target doesn't wait for the file system.
pub struct FileWitness {
    path: PathBuf,
    writer: RefCell<Option<(Sender<String>, JoinHandle<()>)>>,
}

impl FileWitness {
    /// The memory that is kept in this file.
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

fn parse(text: &str) -> Option<Seen> {
    if text.trim() == GIVEN_UP {
        return Some(Seen::GivenUp);
    }
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    Some(Seen::Store(Mark {
        store: field("store")?.parse().ok()?,
        generation: number("generation")?,
        stable: number("stable")?,
        newest: Epoch(number("newest")?),
    }))
}

impl Witness for FileWitness {
    fn read(&self) -> Seen {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Seen::Nothing,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "how far a target's store was can't be read");
                return Seen::Nothing;
            }
        };
        parse(&text).unwrap_or_else(|| {
            tracing::warn!(path = %self.path.display(), "how far a target's store was can't be read: the file makes no sense");
            Seen::Nothing
        })
    }

    fn keep(&self, mark: &Mark) {
        let mut writer = self.writer.borrow_mut();
        if writer.is_none() {
            let (sender, texts) = channel::<String>();
            let path = self.path.clone();
            let thread = Builder::new().name("witness".to_owned()).spawn(move || {
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
        let witness = FileWitness::new(path.clone());
        assert_eq!(witness.read(), Seen::Nothing);
        for stable in 0..100 {
            witness.keep(&mark(stable));
        }
        witness.keep_last(&mark(100));
        assert_eq!(FileWitness::new(path.clone()).read(), Seen::Store(mark(100)));
        witness.keep(&mark(101));
        witness.give_up().expect("it is written");
        assert_eq!(witness.read(), Seen::GivenUp);
        fs::write(&path, "store of something").expect("written");
        assert_eq!(witness.read(), Seen::Nothing);
    }
}
