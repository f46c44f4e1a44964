//! Lists and searches in many parts, while what they show comes and goes.

use super::model::{Change, Search, State, common};
use super::observe::{Container, Place, Trouble, find, list, names_and_extents};
use super::trial::Trial;
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_proto::object::{Extent, ListScope};
use weir_proto::{Key, ObjectId};

/// Changes while one list or search is under way.
const CHANGES: u64 = 5;

/// What is asked.
#[derive(Clone)]
enum Question {
    List(ListScope),
    Search(Search),
}

/// What was found.
enum Found {
    Listed((Vec<Vec<u8>>, Vec<Extent>)),
    Searched(Option<Place>),
}

impl Question {
    /// The dkey that it names.
    fn dkey(&self) -> Option<&Key> {
        match self {
            Self::List(ListScope::Akeys(dkey) | ListScope::Extents(dkey, _)) => Some(dkey),
            Self::List(_) => None,
            Self::Search(search) => search.dkey.as_ref(),
        }
    }

    async fn ask(
        &self,
        container: &Container,
        object: ObjectId,
        epoch: u64,
        between: impl AsyncFnMut(),
    ) -> Result<Found, Trouble> {
        Ok(match self {
            Self::List(scope) => Found::Listed(list(container, object, scope, epoch, 1, between).await?),
            Self::Search(search) => Found::Searched(find(container, object, epoch, search, between).await?),
        })
    }

    /// Compares what was found with what an object was at each moment meanwhile.
    fn check(&self, found: Found, moments: &[Rc<State>]) {
        match (self, found) {
            (Self::List(scope), Found::Listed((names, extents))) => {
                let shown = moments.iter().map(|state| names_and_extents(state, scope));
                let (all_names, all_extents): (Vec<_>, Vec<_>) = shown.unzip();
                check_names(&names, &all_names);
                check_extents(&extents, &all_extents);
            }
            (Self::Search(search), Found::Searched(found)) => check_place(search, found.as_ref(), moments),
            _ => unreachable!("that wasn't asked"),
        }
    }
}

/// Names are listed once and in order: those that were there all the time, and none that never was.
fn check_names(found: &[Vec<u8>], moments: &[Vec<Vec<u8>>]) {
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    let ever: BTreeSet<_> = moments.iter().flatten().collect();
    assert!(found.iter().all(|name| ever.contains(name)), "{found:?} of {ever:?}");
    let mut always = moments[0].iter().filter(|name| moments.iter().all(|names| names.contains(name)));
    assert!(always.all(|name| found.contains(name)), "{found:?} of {moments:?}");
}

/// The same of records.
fn check_extents(found: &[Extent], moments: &[Vec<Extent>]) {
    assert!(found.is_sorted_by(|a, b| a.end() <= b.index), "{found:?}");
    let never = moments.iter().fold(found.to_vec(), |left, shown| without(&left, shown));
    assert_eq!(never, [], "{found:?} of {moments:?}");
    let always = moments.iter().skip(1).fold(moments[0].clone(), |always, shown| common(&always, shown));
    assert_eq!(without(&always, found), [], "{found:?} of {moments:?}");
}

/// What was found was there at some moment, and nothing beyond it all the time.
fn check_place(search: &Search, found: Option<&Place>, moments: &[Rc<State>]) {
    if let Some(found) = found {
        assert!(moments.iter().any(|state| state.has(found)), "{search:?}: {found:?} was never there");
    }
    let always = moments.iter().skip(1).fold(State::clone(&moments[0]), |always, state| always.common(state));
    let Some(least) = always.search(search) else { return };
    let is_beyond = found.is_some_and(|found| if search.max { *found >= least } else { *found <= least });
    assert!(is_beyond, "{search:?}: {found:?}, though {least:?} was there all the time");
}

/// The records of some extents that are in none of the others.
fn without(extents: &[Extent], others: &[Extent]) -> Vec<Extent> {
    let mut left = extents.to_vec();
    for gone in others {
        let before = Extent { index: 0, count: gone.index };
        let behind = Extent { index: gone.end(), count: u64::MAX - gone.end() };
        left = common(&left, &[before, behind]);
    }
    left
}

impl Trial {
    fn draw_question(&self, object: ObjectId) -> Question {
        if self.draw().one_in(2) {
            return Question::Search(self.draw().search(object));
        }
        let scope = self.draw().scope(object);
        Question::List(if scope == ListScope::Objects { ListScope::Dkeys } else { scope })
    }

    /// Changes what a question is about. Returns them with their epochs and what they make of the object, one by one.
    fn draw_disturbance(&mut self, object: ObjectId, question: &Question) -> Vec<(Change, u64, Rc<State>)> {
        let mut changes = Vec::new();
        for _ in 0..CHANGES {
            let epoch = self.next_epoch();
            let draw = self.draw();
            let dkey = question.dkey().filter(|_| !draw.one_in(6)).cloned();
            let dkey = dkey.unwrap_or_else(|| draw.dkey(object));
            let change = match self.random.below(12) {
                0 => draw.punch(object),
                1..4 => draw.punch_of(object, dkey),
                _ => draw.update(object, dkey, epoch),
            };
            if let Ok(plan) = self.here.versions.plan(core::slice::from_ref(&change), epoch) {
                self.here.versions.take(plan);
                changes.push((change, epoch, self.here.versions.at(object, u64::MAX)));
            }
        }
        changes
    }

    /// Lists or searches the newest state in small parts, between which it changes, or that of an epoch, which stays as it
    /// is.
    pub fn observe_while_it_changes(&mut self) {
        if self.faulty || self.tight {
            return;
        }
        self.conclude();
        let object = self.draw().object();
        let question = self.draw_question(object);
        let newest = self.draw().one_in(2);
        let at = if newest { u64::MAX } else { self.epoch };
        let before = self.here.versions.at(object, at);
        let changes = self.draw_disturbance(object, &question);
        let (container, asked, sent) = (self.container(), question.clone(), changes.clone());
        let found = self.run(async move {
            let mut rest = sent.into_iter();
            let left = &mut rest;
            let found = asked.ask(&container, object, at, async || {
                if let Some((change, epoch, _)) = left.next() {
                    change.send(&container, epoch).await.expect("it was planned");
                }
            });
            let found = found.await;
            let unseen = rest.len();
            for (change, epoch, _) in rest {
                change.send(&container, epoch).await.expect("it was planned");
            }
            found.map(|found| (found, unseen))
        });
        let Some(Ok((found, unseen))) = found else { panic!("a healthy disk") };
        let seen = if newest { changes.len() - unseen } else { 0 };
        let after = changes.into_iter().take(seen).map(|(.., state)| state);
        question.check(found, &core::iter::once(before).chain(after).collect::<Vec<_>>());
    }
}
