//! The table of tasks that both executors use.

use crate::LocalBoxFuture;
use crate::waker::TaskWaker;
use std::sync::Arc;
use std::task::Waker;

/// Names a task; never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl TaskId {
    /// The future that `block_on` polls in place.
    pub(crate) const MAIN: Self = Self { index: u32::MAX, generation: 0 };
}

pub(crate) type Task = LocalBoxFuture<'static, ()>;

/// What wakes a task. Both are made once: they move in and out of the table with the task, and no count of users is
/// touched on the way.
pub(crate) struct Waking {
    flag: Arc<TaskWaker>,
    waker: Waker,
}

impl Waking {
    /// Called just before the task is polled: from here on a wake queues it again.
    pub(crate) fn begin(&self) {
        self.flag.begin();
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    /// Absent while the task is being polled.
    future: Option<Task>,
    /// Absent while the task is being polled.
    waking: Option<Waking>,
    owner: u64,
    live: bool,
}

/// Tasks by index, with generations so that a late wake of a finished task meets nothing.
#[derive(Default)]
pub(crate) struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl TaskTable {
    /// Takes a slot for a task of this owner; [`TaskTable::fill`] makes it runnable.
    pub(crate) fn reserve(&mut self, owner: u64) -> TaskId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let slot = &mut self.slots[index as usize];
        slot.live = true;
        slot.owner = owner;
        TaskId { index, generation: slot.generation }
    }

    pub(crate) fn fill(&mut self, id: TaskId, future: Task, waker: Arc<TaskWaker>) {
        if let Some(slot) = self.slot(id) {
            slot.future = Some(future);
            slot.waking = Some(Waking { waker: waker.waker(), flag: waker });
        }
    }

    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.live && slot.generation == id.generation)
    }

    /// The waker of a live task that is not being polled.
    pub(crate) fn waker(&self, id: TaskId) -> Option<Waker> {
        let slot = self.slots.get(id.index as usize)?;
        let waking = slot.waking.as_ref().filter(|_| slot.live && slot.generation == id.generation)?;
        Some(waking.waker.clone())
    }

    /// Takes the task out to poll it. `None`: it has finished, was aborted, or is being polled.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<(Task, Waking)> {
        let slot = self.slot(id)?;
        Some((slot.future.take()?, slot.waking.take()?))
    }

    /// Puts a pending task back. Returns it when it was aborted meanwhile: the caller drops it.
    pub(crate) fn put_back(&mut self, id: TaskId, future: Task, waking: Waking) -> Option<Task> {
        match self.slot(id) {
            Some(slot) => {
                slot.future = Some(future);
                slot.waking = Some(waking);
                None
            }
            None => Some(future),
        }
    }

    /// Ends a task. What is returned must be dropped by the caller after the table is released, because its
    /// destructors may reach the table again.
    pub(crate) fn remove(&mut self, id: TaskId) -> (Option<Task>, Option<Waking>) {
        let Some(slot) = self.slot(id) else { return (None, None) };
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
        let parts = (slot.future.take(), slot.waking.take());
        self.free.push(id.index);
        parts
    }

    /// The live tasks of one owner, or of all.
    pub(crate) fn ids(&self, owner: Option<u64>) -> Vec<TaskId> {
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.live && owner.is_none_or(|owner| slot.owner == owner))
            .map(|(index, slot)| TaskId { index, generation: slot.generation })
            .collect()
    }
}
