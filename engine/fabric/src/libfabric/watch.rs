//! Whether an endpoint still receives, and still completes what it sends.
//!
//! Where senders write into the receiver's queue themselves, a sender that is killed or stopped between taking a
//! slot and filling it blocks all later ones. To the endpoint its queue looks empty. So when nothing has arrived
//! for a while it sends itself a message. If anything arrives, all is well. If nothing does although the
//! endpoint goes on polling, the queue is blocked.
//!
//! In the same way a peer that is killed or stopped before it has taken a large message delays the completions of
//! everything sent after it, to any peer, because the provider reports them in order. That is harmless while there is
//! room, but waiting for them keeps the endpoint awake. So it drops those of a dead peer as soon as nothing depends on
//! them.

use core::cell::Cell;
use core::time::Duration;
use weir_runtime::Instant;

/// Silence after which an endpoint asks itself: shorter than the first pause of a request that is sent again, so that the
/// silence of a blocked queue is noticed before its peers come back to it.
const QUIET: Duration = Duration::from_millis(250);

/// How long nothing may arrive after that. A sender that has lost its processor in the wrong moment gets it back sooner.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Looks in vain that it takes besides: a process that was stopped for that time has not looked.
const LOOKS_MIN: u32 = 10;

/// How often to look, at most; and at least, while an answer is missing.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Operations under way without any ending that mean that the provider will soon have no room: half of what it has
/// (`tx_attr.size` of `shm`, 1,024).
const CROWD: usize = 512;

/// Polls between two looks at the clock of an endpoint that never sleeps: each may come after a turn of the executor, which
/// may take milliseconds.
const POLLS_PER_LOOK: u32 = 128;

/// Length of the query in bytes: long enough that no peer guesses it, or sends the same by chance.
pub(super) const QUESTION: usize = 16;

/// What has come to pass so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    /// Messages that have arrived.
    pub(super) arrived: u64,
    /// Operations that have ended.
    pub(super) ended: u64,
}

/// Operations that the provider has.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedOps {
    /// How many.
    pub(super) count: usize,
    /// Some are with a peer that has gone.
    pub(super) orphans: bool,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Advice {
    /// Nothing.
    Nothing,
    /// Send a message to itself.
    Ask,
    /// Open the endpoint anew: its queue is blocked.
    Blocked,
    /// Open the endpoint anew: nothing that it sends ends.
    Unending,
}

/// A question that is not answered.
#[derive(Clone, Copy)]
struct OpenQuery {
    looks: u32,
    /// The provider has it.
    sent: bool,
}

#[derive(Clone, Copy, Default)]
struct State {
    arrived: u64,
    /// When it was looked at last.
    looked: Instant,
    /// When that was first seen.
    heard: Instant,
    /// When a question was last asked, or given up.
    asked: Instant,
    question: Option<OpenQuery>,
    ended: u64,
    /// Since when the provider has had too many of which none ends, or one that can't.
    stuck: Option<Instant>,
}

/// Counts polls.
#[derive(Default)]
pub(super) struct Polls(Cell<u32>);

impl Polls {
    /// One more. Returns whether it is time for a look although the endpoint doesn't sleep.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        let polls = self.0.get().wrapping_add(1);
        self.0.set(polls);
        polls.is_multiple_of(POLLS_PER_LOOK)
    }
}

/// An endpoint's watch over itself.
pub(super) struct Watch {
    question: [u8; QUESTION],
    state: Cell<State>,
}

impl Watch {
    /// The watch of an endpoint that has drawn these numbers.
    pub(super) fn new([one, other]: [u64; 2]) -> Self {
        let (mut question, halves) = ([0; QUESTION], [one.to_le_bytes(), other.to_le_bytes()]);
        question.copy_from_slice(halves.as_flattened());
        Self { question, state: Cell::default() }
    }

    /// What the endpoint sends itself.
    pub(super) fn question(&self) -> &[u8] {
        &self.question
    }

    /// Whether an answer is missing.
    pub(super) fn is_waiting(&self) -> bool {
        self.state.get().question.is_some()
    }

    /// The question was answered.
    pub(super) fn answered(&self) {
        self.state.set(State { question: None, ..self.state.get() });
    }

    /// The endpoint was opened anew: what it knew of the one before says nothing.
    pub(super) fn start_afresh(&self, now: Instant) {
        let (heard, asked) = (now, now);
        self.state.set(State { heard, asked, question: None, stuck: None, ..self.state.get() });
    }

    /// The provider has the question.
    pub(super) fn asked(&self) {
        let mut state = self.state.get();
        if let Some(question) = &mut state.question {
            question.sent = true;
        }
        self.state.set(state);
    }

    /// Judges by what has come to pass until now. `posted` is asked for only when nothing has ended.
    pub(super) fn look(&self, now: Instant, signs: Signs, posted: impl FnOnce() -> PostedOps) -> Advice {
        let mut state = self.state.get();
        if now - state.looked < LOOK_EVERY {
            return Advice::Nothing;
        }
        state.looked = now;
        let advice = match state.look_in(now, signs.arrived) {
            Advice::Nothing => state.look_out(now, signs.ended, posted),
            advice => advice,
        };
        self.state.set(state);
        advice
    }
}

impl State {
    fn look_in(&mut self, now: Instant, arrived: u64) -> Advice {
        if self.arrived != arrived {
            (self.arrived, self.heard, self.question) = (arrived, now, None);
            return Advice::Nothing;
        }
        let Some(question) = &mut self.question else {
            if now - self.heard < QUIET || now - self.asked < QUIET {
                return Advice::Nothing;
            }
            self.asked = now;
            self.question = Some(OpenQuery { looks: 0, sent: false });
            return Advice::Ask;
        };
        question.looks += 1;
        if question.looks >= LOOKS_MIN && now - self.asked >= LOST_AFTER {
            (self.question, self.asked) = (None, now);
            return Advice::Blocked;
        }
        if question.sent { Advice::Nothing } else { Advice::Ask }
    }

    fn look_out(&mut self, now: Instant, ended: u64, posted: impl FnOnce() -> PostedOps) -> Advice {
        let quiet = now - self.heard >= QUIET;
        let is_stuck = |posted: PostedOps| posted.count >= CROWD || posted.orphans && quiet;
        if self.ended != ended || !is_stuck(posted()) {
            (self.ended, self.stuck) = (ended, None);
            return Advice::Nothing;
        }
        if now - *self.stuck.get_or_insert(now) < LOST_AFTER {
            return Advice::Nothing;
        }
        self.stuck = None;
        Advice::Unending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch, what time it is, and what has come to pass.
    struct Story {
        watch: Watch,
        now: Instant,
        signs: Signs,
        posted: PostedOps,
    }

    impl Story {
        fn new() -> Self {
            let (signs, posted) = (Signs { arrived: 1, ended: 0 }, PostedOps { count: 0, orphans: false });
            let mut story = Self { watch: Watch::new([1, 2]), now: Instant::default(), signs, posted };
            assert_eq!(story.after(QUIET), Advice::Nothing);
            story
        }

        /// Looks after a pause.
        fn after(&mut self, pause: Duration) -> Advice {
            self.now += pause;
            self.watch.look(self.now, self.signs, || self.posted)
        }

        /// Looks as an endpoint does that waits for an answer, until it is told something else than to go on.
        fn wait(&mut self) -> (Advice, Duration) {
            let began = self.now;
            loop {
                match self.after(LOOK_EVERY) {
                    Advice::Nothing | Advice::Ask => assert!(self.now - began < LOST_AFTER * 2),
                    advice => return (advice, self.now - began),
                }
            }
        }
    }

    #[test]
    fn who_sleeps_a_thousand_times_a_second_looks_twenty_times() {
        let mut story = Story::new();
        let counts = Cell::new(0);
        for _ in 0..1000 {
            story.now += Duration::from_millis(1);
            story.signs.arrived += 1;
            let count = || {
                counts.set(counts.get() + 1);
                story.posted
            };
            story.watch.look(story.now, story.signs, count);
        }
        assert_eq!(counts.get(), 20);
    }

    #[test]
    fn nobody_asks_while_messages_arrive() {
        let mut story = Story::new();
        for _ in 0..100 {
            story.signs.arrived += 1;
            assert_eq!(story.after(QUIET * 2), Advice::Nothing);
        }
    }

    #[test]
    fn an_answer_gives_peace_until_the_next_silence() {
        let mut story = Story::new();
        for _ in 0..100 {
            assert_eq!(story.after(QUIET), Advice::Ask);
            story.watch.asked();
            assert!(story.watch.is_waiting());
            assert_eq!(story.after(LOOK_EVERY), Advice::Nothing);
            story.watch.answered();
            assert!(!story.watch.is_waiting());
        }
    }

    #[test]
    fn a_question_that_the_provider_takes_and_nobody_answers_shows_that_the_queue_is_blocked() {
        let mut story = Story::new();
        assert_eq!(story.after(QUIET), Advice::Ask);
        story.watch.asked();
        let (advice, took) = story.wait();
        assert_eq!(advice, Advice::Blocked);
        assert!((LOST_AFTER..LOST_AFTER * 2).contains(&took));
    }

    #[test]
    fn a_question_of_an_endpoint_that_was_opened_anew_is_nobodys() {
        let mut story = Story::new();
        assert_eq!(story.after(QUIET), Advice::Ask);
        story.watch.asked();
        for _ in 0..LOOKS_MIN {
            assert_eq!(story.after(LOOK_EVERY), Advice::Nothing);
        }
        story.watch.start_afresh(story.now);
        assert_eq!(story.after(LOOK_EVERY), Advice::Nothing);
        assert!(!story.watch.is_waiting());
        assert_eq!(story.after(QUIET), Advice::Ask);
        assert_eq!(story.after(LOOK_EVERY), Advice::Ask);
    }

    #[test]
    fn a_question_that_finds_no_room_is_asked_again_and_shows_the_same() {
        let mut story = Story::new();
        assert_eq!(story.after(QUIET), Advice::Ask);
        assert_eq!(story.after(LOOK_EVERY), Advice::Ask);
        assert_eq!(story.wait().0, Advice::Blocked);
    }

    #[test]
    fn a_queue_with_a_backlog_is_not_blocked() {
        let mut story = Story::new();
        assert_eq!(story.after(QUIET), Advice::Ask);
        for _ in 0..1000 {
            story.signs.arrived += 1;
            assert_eq!(story.after(LOOK_EVERY), Advice::Nothing);
        }
    }

    #[test]
    fn who_was_stopped_and_has_not_looked_does_not_judge() {
        let mut story = Story::new();
        assert_eq!(story.after(QUIET), Advice::Ask);
        story.watch.asked();
        assert_eq!(story.after(LOST_AFTER * 100), Advice::Nothing);
    }

    /// Looks for a while. Returns when it was told that nothing ends, if it was.
    fn unending(story: &mut Story, arriving: bool, ending: bool) -> Option<Duration> {
        let began = story.now;
        while story.now - began < LOST_AFTER * 3 {
            story.signs.arrived += u64::from(arriving);
            story.signs.ended += u64::from(ending);
            let advice = story.after(LOOK_EVERY);
            story.watch.answered();
            if advice == Advice::Unending {
                return Some(story.now - began);
            }
            assert_ne!(advice, Advice::Blocked);
        }
        None
    }

    #[test]
    fn a_crowd_of_which_none_ends_shows_that_the_provider_is_stuck() {
        let mut story = Story::new();
        story.posted.count = CROWD;
        let took = unending(&mut story, true, false);
        assert!(took.is_some_and(|took| took >= LOST_AFTER));
        assert_eq!(unending(&mut story, true, true), None, "some end");
        story.posted.count = CROWD - 1;
        assert_eq!(unending(&mut story, true, false), None, "there is room");
    }

    #[test]
    fn what_waits_for_a_peer_that_has_gone_is_given_up_when_nobody_else_would_notice() {
        let mut story = Story::new();
        story.posted = PostedOps { count: 1, orphans: true };
        assert_eq!(unending(&mut story, true, false), None, "others are there");
        let took = unending(&mut story, false, false);
        assert!(took.is_some_and(|took| took >= LOST_AFTER));
        story.posted.orphans = false;
        assert_eq!(unending(&mut story, false, false), None, "it is only slow");
    }

    #[test]
    fn who_never_sleeps_looks_all_the_same() {
        let polls = Polls::default();
        assert_eq!((0..3 * POLLS_PER_LOOK).filter(|_| polls.are_many()).count(), 3);
    }
}
