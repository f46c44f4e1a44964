use super::*;
use crate::sync::{Notify, oneshot};

#[test]
fn tasks_run_side_by_side_and_hand_back_their_results() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let total = executor.block_on(async {
        let tasks: Vec<_> = (0..10u64)
            .map(|n| {
                let inner = rt.clone();
                rt.spawn(async move {
                    inner.sleep(Duration::from_millis(10 - n)).await;
                    n
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.expect("not aborted");
        }
        total
    });
    assert_eq!(total, 45);
}

#[test]
fn an_aborted_task_runs_its_destructors_and_reports_it() {
    struct Flag(Rc<Cell<bool>>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let dropped = Rc::new(Cell::new(false));
    let flag = Flag(Rc::clone(&dropped));
    executor.block_on(async {
        let inner = rt.clone();
        let task = rt.spawn(async move {
            let _flag = flag;
            inner.sleep(Duration::from_hours(1)).await;
        });
        rt.yield_now().await;
        task.abort();
        assert!(dropped.get());
        assert!(task.await.is_err());
    });
}

#[test]
fn a_timeout_drops_what_is_late_and_passes_on_what_is_not() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    executor.block_on(async {
        let slow = rt.timeout(Duration::from_millis(5), rt.sleep(Duration::from_mins(1))).await;
        assert!(slow.is_err());
        assert_eq!(rt.timeout(Duration::from_mins(1), async { 7 }).await, Ok(7));
    });
}

#[test]
fn another_thread_reaches_a_sleeping_executor() {
    let executor = Executor::new().expect("an executor");
    let remote = executor.remote();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for round in 0..20u64 {
            std::thread::sleep(Duration::from_millis(1));
            let reply = sender.clone();
            remote
                .spawn(Box::new(move |rt| {
                    let inner = rt.clone();
                    rt.spawn(async move {
                        inner.sleep(Duration::from_micros(100)).await;
                        reply.send(round).expect("the test waits");
                    });
                }))
                .expect("the executor runs");
        }
    });
    let rt = executor.handle();
    let sum: u64 = executor.block_on(async {
        let mut got = Vec::new();
        while got.len() < 20 {
            rt.sleep(Duration::from_millis(1)).await;
            got.extend(receiver.try_iter());
        }
        got.into_iter().sum()
    });
    thread.join().expect("no panic");
    assert_eq!(sum, 190);
}

#[test]
fn a_waker_works_from_another_thread() {
    let executor = Executor::new().expect("an executor");
    let shared = Arc::new(std::sync::Mutex::new((false, None::<Waker>)));
    let other = Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let mut state = other.lock().expect("not poisoned");
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    });
    executor.block_on(core::future::poll_fn(|cx| {
        let mut state = shared.lock().expect("not poisoned");
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }));
    thread.join().expect("no panic");
}

#[test]
fn an_idle_executor_sleeps() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    executor.block_on(async {
        for _ in 0..10 {
            rt.sleep(Duration::from_millis(20)).await;
        }
    });
    let stats = executor.stats();
    assert!(stats.sleeps >= 10 && stats.sleeps <= 40, "one or two sleeps for each timer: {stats:?}");
}

#[test]
fn what_is_woken_while_nobody_runs_the_executor_goes_on_in_the_next_run() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let (told, count) = (Notify::new(), Rc::new(Cell::new(0)));
    let (awaited, counted) = (told.clone(), Rc::clone(&count));
    rt.spawn(async move {
        awaited.notified().await;
        counted.set(counted.get() + 1);
    });
    executor.block_on(rt.yield_now());
    told.notify_one();
    assert_eq!(count.get(), 0, "nobody runs it");
    executor.block_on(rt.sleep(Duration::from_millis(1)));
    assert_eq!(count.get(), 1);
}

/// Has something happen this long after it happened last.
struct Rare {
    every: Duration,
    due: Cell<Option<std::time::Instant>>,
    left: Cell<u32>,
    done: Notify,
}

impl EventSource for Rare {
    fn poll(&self) -> bool {
        let now = std::time::Instant::now();
        let due = self.due.get().unwrap_or(now + self.every);
        if now < due {
            self.due.set(Some(due));
            return false;
        }
        self.due.set(None);
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.done.notify_one();
        }
        true
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        true
    }

    fn max_sleep(&self) -> Option<Duration> {
        Some(Duration::from_micros(500))
    }
}

/// Sleeps of an executor in which fifty things happen.
fn sleeps(every: Duration, attend: bool) -> u64 {
    let executor = Executor::new().expect("an executor");
    let (due, left) = (Cell::default(), Cell::new(50));
    let source = Rc::new(Rare { every, due, left, done: Notify::new() });
    executor.add_source(Rc::clone(&source) as Rc<dyn EventSource>).expect("nothing to watch");
    let _attention = attend.then(|| executor.handle().attend());
    executor.block_on(source.done.notified());
    executor.stats().sleeps
}

#[test]
fn what_is_expected_soon_is_met_awake_and_what_comes_late_is_not_waited_for() {
    // Other processes may take the core away for a while: then an executor sleeps that would not.
    let soon = Duration::from_micros(100);
    assert!(sleeps(soon, false) >= 45);
    let attended = (0..5).map(|_| sleeps(soon, true)).min().expect("five");
    assert!(attended < 25, "{attended} sleeps");
    assert!(sleeps(Duration::from_millis(2), true) >= 50);
}

/// Asks a task to run each time it is polled, some times in a row, and notes which of them were granted.
struct Caller {
    rt: Handle,
    task: Cell<Option<crate::TaskName>>,
    asks: usize,
    granted: RefCell<Vec<bool>>,
}

impl EventSource for Caller {
    fn poll(&self) -> bool {
        let Some(task) = self.task.take() else { return false };
        self.granted.replace((0..self.asks).map(|_| self.rt.run_now(task)).collect());
        true
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        self.task.get().is_none()
    }
}

#[test]
fn a_task_is_polled_in_place_within_a_source_only_never_within_a_task_and_not_for_ever() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let (asks, granted) = (2 * POLLS_IN_PLACE, RefCell::default());
    let caller = Rc::new(Caller { rt: rt.clone(), task: Cell::new(None), asks, granted });
    executor.add_source(Rc::clone(&caller) as Rc<dyn EventSource>).expect("nothing to watch");
    executor.block_on(async {
        let (polls, own) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
        let (inner, counted, name) = (rt.clone(), Rc::clone(&polls), Rc::clone(&own));
        let task = rt.spawn(core::future::poll_fn(move |_| {
            counted.set(counted.get() + 1);
            let within = name.get().is_some_and(|name| inner.run_now(name));
            assert!(!within, "a task within a task");
            Poll::<()>::Pending
        }));
        rt.yield_now().await;
        let before = polls.get();
        assert!(!rt.run_now(task.name()), "this is a task, too");
        own.set(Some(task.name()));
        caller.task.set(Some(task.name()));
        rt.sleep(Duration::from_millis(1)).await;
        assert_eq!(polls.get() - before, POLLS_IN_PLACE);
        let granted = caller.granted.borrow().iter().filter(|granted| **granted).count();
        assert_eq!(granted, POLLS_IN_PLACE);
        task.abort();
        caller.task.set(Some(task.name()));
        rt.sleep(Duration::from_millis(1)).await;
        assert_eq!(polls.get() - before, POLLS_IN_PLACE, "it has ended");
    });
}

#[test]
fn dropping_the_executor_drops_its_tasks() {
    let held = Rc::new(());
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let inside = Rc::clone(&held);
    let inner = rt.clone();
    rt.spawn(async move {
        inner.sleep(Duration::from_hours(1)).await;
        drop(inside);
    });
    executor.block_on(rt.yield_now());
    assert_eq!(Rc::strong_count(&held), 2);
    drop(executor);
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_oneshot_whose_sender_is_dropped_ends_the_wait() {
    let executor = Executor::new().expect("an executor");
    let (sender, receiver) = oneshot::channel::<u8>();
    let rt = executor.handle();
    rt.spawn(async move { drop(sender) });
    assert_eq!(executor.block_on(receiver), Err(oneshot::Closed));
}

/// Notes at each poll whether the clock has been read, and wakes the main future at the fifth.
struct Clocked {
    readings: Rc<Readings>,
    seen: RefCell<Vec<bool>>,
    done: Notify,
}

impl EventSource for Clocked {
    fn poll(&self) -> bool {
        let mut seen = self.seen.borrow_mut();
        seen.push(self.readings.now().is_some());
        let last = seen.len() == 5;
        if last {
            self.done.notify_one();
        }
        last
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        false
    }
}

#[test]
fn what_comes_when_there_is_nothing_to_do_finds_the_clock_read() {
    let executor = Executor::new().expect("an executor");
    let readings = Rc::clone(&executor.core.readings);
    let source = Rc::new(Clocked { readings, seen: RefCell::default(), done: Notify::new() });
    executor.add_source(Rc::clone(&source) as Rc<dyn EventSource>).expect("a source");
    executor.block_on(source.done.notified());
    // The first two polls come before and behind the main future's; nothing is done between the others.
    assert_eq!(*source.seen.borrow(), [false, false, true, true, true]);
}

#[test]
fn one_reading_serves_a_turn_unless_it_is_asked_for_another_one() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    executor.block_on(async {
        let before = rt.times();
        let pause = Duration::from_millis(20);
        std::thread::sleep(pause);
        assert_eq!(rt.times(), before, "the turn is the same");
        let after = rt.times_anew();
        // The wall clock may be slowed down meanwhile.
        let half = 10_000_000;
        assert!(after.0 - before.0 >= pause && after.1 - before.1 >= half, "{after:?} after {before:?}");
        assert_eq!(rt.times(), after, "who asks later is told the same");
    });
}

/// Notes at each poll whether any task is ready, and wakes the main future when none is.
struct Observer {
    rt: Handle,
    seen: RefCell<Vec<bool>>,
    done: Notify,
}

impl EventSource for Observer {
    fn poll(&self) -> bool {
        let idle = self.rt.is_idle();
        self.seen.borrow_mut().push(idle);
        if idle {
            self.done.notify_one();
        }
        idle
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        false
    }
}

#[test]
fn a_source_is_told_whether_any_task_is_ready() {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let source = Rc::new(Observer { rt: rt.clone(), seen: RefCell::default(), done: Notify::new() });
    executor.add_source(Rc::clone(&source) as Rc<dyn EventSource>).expect("a source");
    rt.spawn(async {});
    executor.block_on(source.done.notified());
    // Task and main future are ready before the first turn, and end in it.
    assert_eq!(*source.seen.borrow(), [false, true]);
}
