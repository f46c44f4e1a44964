//! Changes that are under way at once, beside readers and the store's own work.

use super::model::Change;
use super::observe::{Container, Trouble, check_object};
use super::trial::{Content, Outcome, Trial};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use weir_proto::Epoch;
use weir_runtime::join_all;
use weir_store::{PoolError, UpdateError};

/// Something under way.
type Running = Pin<Box<dyn Future<Output = ()>>>;

/// What has ended, until the disk stopped.
#[derive(Default)]
struct Ended {
    /// Of the changes, by their number.
    sent: Vec<Option<Result<(), UpdateError>>>,
    /// What readers found, with their epochs.
    read: Vec<(u64, Result<(), Trouble>)>,
    /// What became of the store's own work.
    worked: Vec<Result<(), PoolError>>,
}

impl Trial {
    /// Begins changes of different dkeys at once, in any order of their epochs, beside readers of what was there before
    /// and the store's own work. What is acknowledged before the disk stops is there; of the others each is there as a
    /// whole or not at all.
    pub fn change_together(&mut self) {
        let ended = Rc::new(RefCell::new(Ended::default()));
        let mut running = self.work_and_read(&ended);
        let changes = self.draw_changes();
        ended.borrow_mut().sent.resize(changes.len(), None);
        for (at, (change, epoch)) in changes.iter().cloned().enumerate() {
            let (container, ended) = (self.container(), Rc::clone(&ended));
            running.push(Box::pin(async move {
                let sent = change.send(&container, epoch).await;
                ended.borrow_mut().sent[at] = Some(sent);
            }));
        }
        if self.draw().one_in(2) {
            running.reverse();
        }
        let all = self.run(async move { drop(join_all(running).await) });
        let Ended { sent, read, worked } = ended.take();
        assert!(self.faulty || all.is_some());
        let mut doubtful = Vec::new();
        for (sent, (change, epoch)) in sent.into_iter().zip(changes) {
            match self.judge(sent) {
                Outcome::Doubtful => doubtful.push((change, epoch)),
                Outcome::Held(error) => panic!("{error}"),
                outcome => self.settle(outcome, &[change], epoch),
            }
        }
        for (epoch, read) in read {
            self.accept(Some(read), epoch);
        }
        assert!(self.faulty || worked.iter().all(Result::is_ok), "{worked:?}");
        if !doubtful.is_empty() || all.is_none() {
            self.recover();
            self.conclude();
            self.resolve(&doubtful);
        }
    }

    /// Changes of dkeys that no transaction holds, in the order of their epochs.
    fn draw_changes(&mut self) -> Vec<(Change, u64)> {
        let (mut changes, mut places) = (Vec::new(), BTreeSet::new());
        for _ in 0..2 + self.random.below(5) {
            let epoch = self.next_epoch();
            let (draw, object) = (self.draw(), self.draw().object());
            let dkey = draw.dkey(object);
            let punches = draw.one_in(4);
            let change = if punches {
                draw.punch_of(object, dkey.clone())
            } else {
                draw.update(object, dkey.clone(), epoch)
            };
            // Which of them brings an object first isn't known.
            if !self.is_held(&change) && !change.needs_object() && places.insert((object, dkey)) {
                changes.push((change, epoch));
            }
        }
        changes
    }

    /// Readers of epochs that don't change any more, and perhaps a checkpoint, aggregation, defragmentation, or the end of
    /// the other container and its new begin.
    fn work_and_read(&mut self, ended: &Rc<RefCell<Ended>>) -> Vec<Running> {
        let mut running: Vec<Running> = Vec::new();
        let work = self.random.below(6);
        if work == 0 {
            self.here.horizon = self.epoch;
        }
        let (Container { shard, id, .. }, horizon) = (self.container(), Epoch(self.here.horizon));
        let (store, noted) = (Rc::clone(&self.store), Rc::clone(ended));
        let destroyed = (work == 3 && !self.faulty).then_some(self.there.id);
        if let Some(id) = destroyed {
            self.there = Content::new(id);
        }
        running.push(Box::pin(async move {
            let worked = match work {
                0 => shard.aggregate(id, horizon).await,
                1 => store.checkpoint().await,
                2 => store.defragment().await.map(drop),
                _ => match destroyed {
                    Some(id) => Container { shard, id, in_view: false }.begin_anew().await,
                    None => Ok(()),
                },
            };
            noted.borrow_mut().worked.push(worked);
        }));
        for _ in 0..self.random.below(3) {
            // Not the newest, which will change.
            let (epoch, object) = (self.epoch_to_read().min(self.epoch), self.draw().object());
            let (container, versions) = (self.container(), self.here.versions.clone());
            let ended = Rc::clone(ended);
            running.push(Box::pin(async move {
                let read = check_object(&container, &versions, object, epoch).await;
                ended.borrow_mut().read.push((epoch, read));
            }));
        }
        running
    }
}
