//! Series about the scrubber, and about the repair of what it and reads find.

use super::{Exporter, Metric, Value, seconds};

impl Exporter {
    pub(super) fn scrub(&self) -> Vec<Metric> {
        let rotten = self.serving().flat_map(|(index, figures)| {
            let series = move |(pool, count): (&String, &u64)| {
                (self.labels(index, &[("pool", pool)]), Value::Counter(*count))
            };
            figures.rotten.iter().map(series)
        });
        let rotten = rotten.collect();
        vec![
            self.by_target("weir_engine_scrub_bytes", "Bytes read and compared by the scrubber", |figures| {
                Value::Counter(figures.scrub.bytes)
            }),
            self.by_target(
                "weir_engine_scrub_passes",
                "Passes of the scrubber over all of the target",
                |figures| Value::Counter(figures.scrub.passes),
            ),
            self.by_target(
                "weir_engine_scrub_last_pass_timestamp_seconds",
                "End of the scrubber's last pass",
                |figures| Value::GaugeSeconds(seconds(figures.scrub.last_ns)),
            ),
            self.by_target(
                "weir_engine_scrub_renewed",
                "Rotten places that are written anew, from memory or a copy",
                |figures| Value::Counter(figures.scrub.renewed),
            ),
            Metric {
                name: "weir_engine_scrub_rotten",
                help: "Places at which the scrubber found something else than was written, and which stay so",
                series: rotten,
            },
            self.by_target(
                "weir_engine_repaired_versions",
                "Damaged versions that were repaired with the data of another replica",
                |figures| Value::Counter(figures.repairs.0),
            ),
            self.by_target(
                "weir_engine_unrepaired_versions",
                "Damaged versions of objects with replicas that could not be repaired so far",
                |figures| Value::Gauge(figures.repairs.1),
            ),
        ]
    }
}
