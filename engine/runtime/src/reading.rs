//! The last reading of the clocks, by the executor that runs now.
//!
//! A message needs the time at every floor on its way from source to task, and reading the clock is a good part of its
//! cost. One reading serves a turn, or a few polls of one, and is where handles see it without asking their executor.

use crate::instant::Instant;
use core::cell::Cell;

/// What the clock says during a turn, or a few polls of one.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reading {
    /// Nothing is polled, or time is virtual: the clock is read each time.
    #[default]
    Outside,
    /// Not read yet.
    Unread,
    /// What it said at the first question.
    At(Instant),
}

/// The wall clock in terms of the monotonic one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wall {
    /// How far it is ahead, in nanoseconds.
    pub(crate) ahead: u64,
    /// Until when that is taken for true.
    pub(crate) until: Instant,
}

/// The last readings of both clocks.
#[derive(Default)]
pub(crate) struct Readings {
    pub(crate) clock: Cell<Reading>,
    pub(crate) wall: Cell<Wall>,
}

impl Readings {
    /// Has both clocks read at the next question.
    pub(crate) fn forget(&self) {
        if self.now().is_some() {
            self.clock.set(Reading::Unread);
        }
        self.wall.set(Wall::default());
    }

    /// Monotonic time, where it is known.
    #[inline]
    pub(crate) fn now(&self) -> Option<Instant> {
        match self.clock.get() {
            Reading::At(now) => Some(now),
            Reading::Outside | Reading::Unread => None,
        }
    }

    /// Monotonic and wall time, where both are known.
    #[inline]
    pub(crate) fn times(&self) -> Option<(Instant, u64)> {
        let (now, wall) = (self.now()?, self.wall.get());
        (now < wall.until).then(|| (now, wall.ahead.wrapping_add(now.as_nanos())))
    }
}
