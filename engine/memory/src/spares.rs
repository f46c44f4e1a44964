//! Allocations of finished objects, reused by the next ones.

use core::cell::RefCell;
use std::rc::Rc;

/// Most that are kept: two clients with all their credits.
const KEPT_MAX: usize = 64;

/// Some of the unused allocations.
#[derive(Debug)]
pub struct Shelf<T>(RefCell<Vec<T>>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Shelf<T> {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// What was put there last, if there is anything.
    #[inline]
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().pop()
    }

    /// Puts something there. What finds no room is dropped.
    #[inline]
    pub fn put(&self, spare: T) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT_MAX {
            kept.push(spare);
        }
    }
}

/// Unused allocations.
#[derive(Debug)]
pub struct Spares<T>(Shelf<Rc<T>>);

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Spares<T> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Shelf::new())
    }
}

impl<T: Default> Spares<T> {
    /// A place that `fill` has filled: each field where it stays, so that nothing is put together first and copied then.
    #[inline]
    pub fn take(&self, fill: impl FnOnce(&mut T)) -> Rc<T> {
        let mut place = self.0.take().unwrap_or_default();
        if Rc::get_mut(&mut place).is_none() {
            // Another owner still uses it.
            place = Rc::default();
        }
        if let Some(place) = Rc::get_mut(&mut place) {
            fill(place);
        }
        place
    }

    /// Keeps a place whose user has ended.
    #[inline]
    pub fn keep(&self, place: &Rc<T>) {
        self.0.put(Rc::clone(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_when_its_user_has_ended_and_not_before() {
        let spares = Spares::<u32>::default();
        let first = spares.take(|place| *place = 1);
        let address = Rc::as_ptr(&first);
        spares.keep(&first);
        let second = spares.take(|place| *place = 2);
        assert_eq!((*first, *second), (1, 2), "it has a user still");
        spares.keep(&first);
        drop(first);
        let third = spares.take(|place| *place = 3);
        assert_eq!((*third, Rc::as_ptr(&third)), (3, address));
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let spares = Spares::<u32>::default();
        (0..2 * KEPT_MAX).for_each(|_| spares.keep(&Rc::default()));
        assert_eq!(core::iter::from_fn(|| spares.0.take()).count(), KEPT_MAX);
    }
}
