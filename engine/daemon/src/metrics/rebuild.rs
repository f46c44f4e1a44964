//! Series about data that a target gets from others.

use super::{Exporter, Metric, Value};

impl Exporter {
    pub(super) fn rebuild(&self) -> Vec<Metric> {
        vec![
            self.by_target(
                "weir_engine_rebuilds_running",
                "Pools of which the target gets data",
                |figures| Value::Gauge(figures.rebuild.running),
            ),
            self.by_target(
                "weir_engine_rebuilds_ended",
                "Times that the target has got all that it lacked of a pool",
                |figures| Value::Counter(figures.rebuild.ended),
            ),
            self.by_target("weir_engine_rebuilt_bytes", "Bytes of data that the target has got", |figures| {
                Value::Counter(figures.rebuild.bytes)
            }),
            self.by_target(
                "weir_engine_rebuild_share_percent",
                "Most of its time that the target works for rebuilds, by how long its clients wait",
                |figures| Value::Gauge(figures.rebuild.share_percent),
            ),
        ]
    }
}
