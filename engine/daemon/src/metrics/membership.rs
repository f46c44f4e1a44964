//! Series about the other engines.

use weir_proto::group::MemberState;
use weir_rpc::membership::PROBE_BOUNDS_US;

use super::{Exporter, Histogram, Metric, Value, seconds};
use crate::snapshot::{GroupFigures, MembershipFigures};

impl Exporter {
    pub(super) fn membership(&self) -> Vec<Metric> {
        let Some(figures) = self.0.targets.iter().flatten().find_map(|target| target.membership.as_ref())
        else {
            return Vec::new();
        };
        let MembershipFigures { states, incarnation, health, stats, times, .. } = figures;
        let one = |name, help, value| Metric { name, help, series: vec![(self.ranked(), value)] };
        let by = |name, help, label, values: &[(&'static str, u64)], value: fn(u64) -> Value| {
            let series = values.iter().map(|(text, count)| {
                let mut labels = self.ranked();
                labels.push((label, (*text).to_owned()));
                (labels, value(*count))
            });
            Metric { name, help, series: series.collect() }
        };
        let states: Vec<_> =
            MemberState::ALL.iter().zip(states).map(|(state, count)| (state.name(), *count)).collect();
        let probes = [
            ("direct", stats.probes_direct),
            ("indirect", stats.probes_indirect),
            ("failed", stats.probes_failed),
            ("void", stats.probes_void),
        ];
        let histogram = Histogram::new(&PROBE_BOUNDS_US, 1e6, &times.buckets, seconds(times.sum_ns));
        vec![
            by(
                "weir_engine_members",
                "Engines of the system as this one sees them",
                "state",
                &states,
                Value::Gauge,
            ),
            one("weir_engine_member_incarnation", "Which life of this engine", Value::Gauge(*incarnation)),
            one(
                "weir_engine_member_health",
                "How badly this engine itself is doing: 0 healthy, 8 worst",
                Value::Gauge((*health).into()),
            ),
            by(
                "weir_engine_member_probes",
                "Probes of other engines ended",
                "result",
                &probes,
                Value::Counter,
            ),
            one("weir_engine_member_probe_seconds", "From a ping to its answer", Value::Histogram(histogram)),
            one("weir_engine_member_suspicions", "Engines suspected", Value::Counter(stats.suspicions)),
            one(
                "weir_engine_member_refutations",
                "Suspects that turned out alive",
                Value::Counter(stats.suspicions_refuted),
            ),
            one("weir_engine_member_deaths", "Engines declared dead", Value::Counter(stats.deaths)),
            one(
                "weir_engine_member_objections",
                "Times that this engine was suspected and objected",
                Value::Counter(stats.objections),
            ),
            one(
                "weir_engine_member_stalls",
                "Times that this engine stood still",
                Value::Counter(stats.stalls),
            ),
        ]
    }

    /// The list of engines that target 0 goes by.
    pub(super) fn group(&self) -> Vec<Metric> {
        let mut targets = self.0.targets.iter().flatten();
        let Some(figures) = targets.find_map(|target| target.membership.as_ref()) else { return Vec::new() };
        let GroupFigures { version, refused, adopted } = figures.group;
        let one = |name, help, value| Metric { name, help, series: vec![(self.ranked(), value)] };
        vec![
            one("weir_engine_group_version", "Version of the list of engines in use", Value::Gauge(version)),
            one(
                "weir_engine_group_refusals",
                "Requests of engines with another version of the list, refused",
                Value::Counter(refused),
            ),
            one(
                "weir_engine_group_adoptions",
                "Newer lists of engines taken over from others",
                Value::Counter(adopted),
            ),
        ]
    }
}
