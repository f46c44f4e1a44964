//! Series about transactions that several targets take part in, and about changes that replicas are to have.

use super::{Exporter, Metric, Value, seconds};

impl Exporter {
    pub(super) fn transactions(&self) -> Vec<Metric> {
        vec![
            self.by_target(
                "weir_engine_transactions_undecided",
                "Transactions that were prepared and await their decision",
                |figures| Value::Gauge(figures.store.undecided),
            ),
            self.by_target(
                "weir_engine_transaction_undecided_timestamp_seconds",
                "Time of the oldest of them",
                |figures| Value::GaugeSeconds(seconds(figures.store.undecided_oldest.0)),
            ),
            self.by_target(
                "weir_engine_changes_unsettled",
                "Changes that are not known to be at all replicas",
                |figures| Value::Gauge(figures.unsettled.0),
            ),
            self.by_target(
                "weir_engine_change_unsettled_timestamp_seconds",
                "Time of the oldest of them",
                |figures| Value::GaugeSeconds(seconds(figures.unsettled.1.0)),
            ),
        ]
    }
}
