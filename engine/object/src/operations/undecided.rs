//! Reads that meet undecided transactions.

use std::time::Duration;

use weir_proto::Epoch;
use weir_rpc::Request;
use weir_store::FetchError;

use super::Operations;
use crate::unsettled::PlantedBug;

/// Longest wait of a read for decisions: behind it the client is told, and comes again.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// First and longest pause between two looks: a decision takes a flush or two.
const PAUSE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(5));

impl Operations {
    /// Reads at an epoch. Where a transaction is in the way that may change what is read, its decision is waited for.
    ///
    /// The newest state is that of now from then on: transactions that come later are no matter, so that a read ends however
    /// many there are.
    pub(crate) async fn when_decided<T>(
        &self,
        request: &Request,
        epoch: Epoch,
        read: impl AsyncFn(Epoch) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        match read(epoch).await {
            Err(FetchError::Undecided { epoch: Epoch(at), .. })
                if self.unsettled.has_planted(PlantedBug::SnapshotOfUndecided) =>
            {
                read(Epoch(at.saturating_sub(1))).await
            }
            // Boxed, since it is rare and part of every read's future.
            Err(FetchError::Undecided { .. }) => Box::pin(self.look_again(request, epoch, read)).await,
            done => done,
        }
    }

    async fn look_again<T>(
        &self,
        request: &Request,
        epoch: Epoch,
        read: impl AsyncFn(Epoch) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        let at = if epoch == Epoch::MAX { self.admission.epoch() } else { epoch };
        let until = (self.admission.rt.now() + WAIT_MAX).min(request.deadline());
        let mut pause = PAUSE.0;
        loop {
            self.admission.rt.sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
            match read(at).await {
                Err(FetchError::Undecided { .. }) if self.admission.rt.now() + pause < until => {}
                done => return done,
            }
        }
    }
}
