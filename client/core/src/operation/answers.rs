//! Futures that run side by side.

use core::pin::Pin;
use core::task::Poll;
use std::collections::VecDeque;

/// Futures that run side by side and hand out their results as they come.
pub(crate) struct Answers<F> {
    running: Vec<Pin<Box<F>>>,
}

impl<F: Future> Answers<F> {
    pub(crate) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        Self { running: futures.into_iter().map(Box::pin).collect() }
    }

    /// The next result; `None` when all have been handed out.
    pub(crate) async fn next(&mut self) -> Option<F::Output> {
        if self.running.is_empty() {
            return None;
        }
        core::future::poll_fn(|cx| {
            for index in 0..self.running.len() {
                if let Poll::Ready(output) = self.running[index].as_mut().poll(cx) {
                    drop(self.running.swap_remove(index));
                    return Poll::Ready(Some(output));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Runs futures side by side, at most `limit` at a time; results in the order of the futures.
pub(crate) async fn join_limited<F: Future>(
    limit: usize,
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let mut waiting: VecDeque<(usize, F)> = futures.into_iter().enumerate().collect();
    let mut results: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    let numbered = |(number, future): (usize, F)| async move { (number, future.await) };
    let mut answers =
        Answers::new((0..limit.max(1)).map_while(|_| waiting.pop_front().map(numbered)).collect::<Vec<_>>());
    while let Some((number, output)) = answers.next().await {
        results[number] = Some(output);
        if let Some(next) = waiting.pop_front() {
            answers.running.push(Box::pin(numbered(next)));
        }
    }
    results.into_iter().flatten().collect()
}
