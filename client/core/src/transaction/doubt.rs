//! The meaning of a refusal for a transaction that may have been committed before.

use core::time::Duration;

use weir_proto::{Der, Rank, TargetIndex};

use crate::error::Error;
use crate::operation::RequestInfo;

/// The targets that were asked to commit a transaction, and have not told how that ended. A newer pool map may have it led by
/// another one.
#[derive(Default)]
pub(super) struct Doubt(Vec<(Rank, TargetIndex)>);

impl Doubt {
    /// This target was asked, and how that ended isn't known.
    pub(super) fn add(&mut self, leader: (Rank, TargetIndex)) {
        self.0.push(leader);
    }

    /// The error to report when `error` ends the transaction; it comes from the target that leads it now, if there is
    /// one. That nothing has happened is reported only where no other target can have committed it. Not even the leader
    /// knows, where it has forgotten.
    pub(super) fn explain(
        &self,
        info: &RequestInfo<'_>,
        by: Option<(Rank, TargetIndex)>,
        error: Error,
        waited: Duration,
    ) -> Error {
        let (operation, subject) = (info.operation, info.subject.to_string());
        match error {
            Error::Refused { der: Der::TX_UNCERTAIN, message, .. } if self.0.is_empty() => {
                Error::Refused { operation, subject, der: Der::TX_RESTART, message }
            }
            Error::Refused { der, message, .. }
                if der == Der::TX_UNCERTAIN || self.0.iter().any(|asked| Some(*asked) != by) =>
            {
                let server = "the target that leads it".to_owned();
                let cause = format!("whether it has happened is not known: {message}");
                Error::Unavailable { operation, subject, server, waited, cause }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::opcode;

    const FIRST: (Rank, TargetIndex) = (Rank(1), TargetIndex(0));
    const SECOND: (Rank, TargetIndex) = (Rank(2), TargetIndex(0));

    /// What becomes of a refusal, after tries at these targets whose end isn't known.
    fn told(asked: &[(Rank, TargetIndex)], by: Option<(Rank, TargetIndex)>, der: Der) -> Der {
        let mut doubt = Doubt::default();
        for leader in asked {
            doubt.add(*leader);
        }
        let info = RequestInfo::new("commit", &"a transaction", opcode::TRANSACTION_COMMIT);
        let error = Error::refused("commit", "a transaction".to_owned(), der, "no".to_owned());
        doubt.explain(&info, by, error, Duration::from_secs(1)).der()
    }

    #[test]
    fn only_who_may_have_committed_it_says_that_it_has_not_happened() {
        let unknown = Der::TIMEDOUT;
        assert_eq!(told(&[], Some(FIRST), Der::TX_RESTART), Der::TX_RESTART);
        assert_eq!(told(&[FIRST], Some(FIRST), Der::TX_RESTART), Der::TX_RESTART);
        assert_eq!(told(&[FIRST], Some(SECOND), Der::TX_RESTART), unknown, "another one leads it now");
        assert_eq!(told(&[FIRST, SECOND], Some(SECOND), Der::TX_RESTART), unknown);
        assert_eq!(told(&[FIRST], None, Der::NVME_IO), unknown, "no one leads it now");
        assert_eq!(told(&[], None, Der::NVME_IO), Der::NVME_IO);
    }

    #[test]
    fn a_leader_that_may_have_forgotten_it_says_nothing_of_what_it_was_asked_before() {
        assert_eq!(told(&[], Some(FIRST), Der::TX_UNCERTAIN), Der::TX_RESTART, "it was not asked before");
        assert_eq!(told(&[FIRST], Some(FIRST), Der::TX_UNCERTAIN), Der::TIMEDOUT);
    }
}
