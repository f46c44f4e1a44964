//! Series about messages: of the fabric endpoint and of the RPC layer above it.

use super::{Exporter, Metric, Value};
use crate::snapshot::TargetFigures;

/// The name that a counter is exported under, which ends in its own behind that of its layer, and what it says. What ends
/// in `_max` is the greatest value that there was.
type Exported = (&'static str, &'static str);

/// The counters of an endpoint.
const ENDPOINT: &[Exported] = &[
    ("weir_engine_fabric_messages_sent", "Messages handed to the provider"),
    ("weir_engine_fabric_bytes_sent", "Bytes of messages handed to the provider"),
    ("weir_engine_fabric_messages_received", "Messages that arrived"),
    ("weir_engine_fabric_bytes_received", "Bytes of messages that arrived"),
    ("weir_engine_fabric_sends_failed", "Sends that failed after they were accepted"),
    ("weir_engine_fabric_eagain", "Times that the provider had no room and an operation was queued"),
    ("weir_engine_fabric_retries", "Times that an operation which was queued was tried again"),
    ("weir_engine_fabric_unknown_sources", "Messages whose sender was not known"),
    (
        "weir_engine_fabric_intake_max",
        "Most messages that had arrived and waited to be handed to the sink at a time",
    ),
    (
        "weir_engine_fabric_intake_dropped",
        "Messages dropped because more waited of their senders than any has under way",
    ),
    ("weir_engine_fabric_slab_copies", "Messages copied out because few slabs were left"),
    ("weir_engine_fabric_slab_posts", "Slabs posted, first time and again"),
    (
        "weir_engine_fabric_slabs_run_out",
        "Times that the provider let go of the only slab that was posted: nothing is received until another one is",
    ),
    ("weir_engine_fabric_reads", "Reads of remote memory that completed"),
    ("weir_engine_fabric_bytes_read", "Bytes read from remote memory"),
    ("weir_engine_fabric_writes", "Writes of remote memory that completed"),
    ("weir_engine_fabric_bytes_written", "Bytes written to remote memory"),
    ("weir_engine_fabric_transfers_failed", "Reads and writes that failed"),
    ("weir_engine_fabric_exposures", "Memory exposed to peers"),
    ("weir_engine_fabric_registrations", "Registrations that the provider made to expose memory"),
    ("weir_engine_fabric_mr_hits", "Exposures that found a registration which serves again"),
    (
        "weir_engine_fabric_mr_stale",
        "Kept registrations that ended because their memory was freed, moved or discarded",
    ),
    ("weir_engine_fabric_channel_sent", "Messages sent through channels within the node"),
    ("weir_engine_fabric_channel_received", "Messages received through channels within the node"),
    ("weir_engine_fabric_channels_accepted", "Channels that peers offered and that were accepted"),
    ("weir_engine_fabric_channels_refused", "Channels that peers offered and that were refused"),
    ("weir_engine_fabric_doorbells", "Doorbells rung at sleeping peers"),
    ("weir_engine_fabric_probes", "Messages that the endpoint sent itself, to see whether it still receives"),
    (
        "weir_engine_fabric_reopened",
        "Times that the endpoint was opened anew, because a peer that died had blocked its queue or had its lock",
    ),
    ("weir_engine_fabric_addresses_told", "Times that the endpoint's published address was told"),
    (
        "weir_engine_fabric_addresses_refused",
        "Questions about the published address that were none, came too slowly, or were of no tenant",
    ),
    ("weir_engine_fabric_peers_inserted", "Peers inserted"),
    ("weir_engine_fabric_peers_removed", "Peers given up"),
];

/// The counters of the RPC layer, but for those that are exported in another form ([`Exporter::fabric`]).
const RPC: &[Exported] = &[
    ("weir_engine_rpc_messages_sent", "Messages sent, of every kind"),
    ("weir_engine_rpc_bytes_sent", "Bytes of messages sent"),
    ("weir_engine_rpc_messages_received", "Messages received, of every kind"),
    ("weir_engine_rpc_bytes_received", "Bytes of messages received"),
    ("weir_engine_rpc_sends_failed", "Sends that failed after they were accepted"),
    ("weir_engine_rpc_calls", "Calls made"),
    ("weir_engine_rpc_queued", "Calls that waited for a credit or the quota"),
    ("weir_engine_rpc_calls_failed", "Calls that ended with an error of any kind"),
    ("weir_engine_rpc_timeouts", "Calls that ended without a reply at their deadline"),
    ("weir_engine_rpc_retries", "Requests sent again"),
    ("weir_engine_rpc_connects", "Contacts made"),
    ("weir_engine_rpc_disconnects", "Contacts given up"),
    ("weir_engine_rpc_requests", "Requests accepted for execution"),
    ("weir_engine_rpc_replies", "Replies sent"),
    (
        "weir_engine_rpc_repeats_running",
        "Requests that were sent again and met their first execution still running",
    ),
    ("weir_engine_rpc_repeats_answered", "Requests that were sent again and were answered from memory"),
    ("weir_engine_rpc_repeats_stale", "Requests that came after their client had finished with them"),
    (
        "weir_engine_rpc_repeats_forgotten",
        "Requests that were sent again after their replies had to be forgotten",
    ),
    ("weir_engine_rpc_malformed", "Messages that don't decode"),
    ("weir_engine_rpc_version_refused", "Messages of other protocol versions"),
    ("weir_engine_rpc_unknown_sessions", "Requests of clients that have no session here"),
    ("weir_engine_rpc_revoked", "Hellos and requests in the name of tenants whose access is revoked"),
    ("weir_engine_rpc_replays_refused", "Hellos and requests that were recorded and sent again"),
    ("weir_engine_rpc_notices", "Servers' words that they don't know this client"),
    ("weir_engine_rpc_skew_refused", "Messages whose sender's clock is too far ahead"),
    (
        "weir_engine_rpc_requests_early",
        "Requests that waited because their tenant's clock was more than half of the bound ahead",
    ),
    ("weir_engine_rpc_expired", "Requests that had expired when they were unpacked"),
    ("weir_engine_rpc_bulk_expired", "Bulk transfers refused or abandoned for their deadline"),
    (
        "weir_engine_rpc_replies_held",
        "Replies held back until the last piece of a bulk transfer that was given up had ended",
    ),
    (
        "weir_engine_rpc_withdrawals",
        "Failed or dropped calls whose memory the server might still have been at",
    ),
    (
        "weir_engine_rpc_withdrawals_confirmed",
        "Failed or dropped calls whose server said that it is not at their memory, and will not be",
    ),
    (
        "weir_engine_rpc_withdrawals_waited",
        "Failed or dropped calls whose memory was kept from use until the server must have given up",
    ),
    (
        "weir_engine_rpc_left_exposed",
        "Failed or dropped calls whose memory stayed exposed, because the registration method leaves it so",
    ),
    ("weir_engine_rpc_bulk_retries", "Pieces of bulk transfers tried again after contact broke"),
    ("weir_engine_rpc_overloaded", "Requests refused for overload"),
    ("weir_engine_rpc_overdrawn", "Requests refused because their clients had too many under way"),
    (
        "weir_engine_rpc_ignored",
        "Messages that got no answer because their clients don't heed answers: refused requests, hellos and repeats",
    ),
    ("weir_engine_rpc_overload_hints", "Overload answers received"),
    (
        "weir_engine_rpc_unknown_senders",
        "Messages that can't be answered, because neither the provider nor the message says who sent them",
    ),
    ("weir_engine_rpc_impostors", "Messages that carry the id of a client which is elsewhere"),
    ("weir_engine_rpc_stray_replies", "Replies that nobody waits for"),
    (
        "weir_engine_rpc_passed_max",
        "Most requests of others that began while one waited whose client had no other under way",
    ),
];

impl Exporter {
    pub(super) fn fabric(&self) -> Vec<Metric> {
        let bulk = self.serving().flat_map(|(index, figures)| {
            [("write", "bulk_pulled_bytes"), ("read", "bulk_pushed_bytes")].map(|(direction, counter)| {
                let count = figures.rpc.get(counter).copied().unwrap_or(0);
                (self.labels(index, &[("direction", direction)]), Value::Counter(count))
            })
        });
        let mut metrics = vec![
            self.by_target(
                "weir_engine_rpc_inflight",
                "Requests sent to others and not answered",
                |figures| Value::Gauge(figures.in_flight),
            ),
            self.by_target(
                "weir_engine_rpc_unauthenticated",
                "Messages dropped because their authentication code was wrong",
                |figures| Value::Counter(figures.unauthenticated),
            ),
            Metric { name: "weir_engine_rpc_bulk_bytes", help: "Bytes moved by RMA", series: bulk.collect() },
        ];
        metrics
            .extend(RPC.iter().map(|counter| self.counter(counter, |figures, name| figures.rpc.get(name))));
        metrics.extend(
            ENDPOINT.iter().map(|counter| self.counter(counter, |figures, name| figures.endpoint.get(name))),
        );
        metrics
    }

    fn counter(
        &self,
        (name, help): &Exported,
        count: impl for<'a> Fn(&'a TargetFigures, &str) -> Option<&'a u64>,
    ) -> Metric {
        // weir_engine_rpc_retries: of the engine's RPC layer the retries.
        let counter = name.splitn(4, '_').last().unwrap_or_default();
        self.by_target(name, help, |figures| {
            let count = count(figures, counter).copied().unwrap_or(0);
            if counter.ends_with("_max") { Value::Gauge(count) } else { Value::Counter(count) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Figures, render};
    use std::collections::BTreeMap;
    use weir_fabric::FabricCounters;
    use weir_rpc::RpcMetrics;

    /// Exported in another form: as `weir_engine_queue_depth`, by direction, and with what engines refuse of each other.
    const ELSEWHERE: [&str; 4] = ["running", "bulk_pulled_bytes", "bulk_pushed_bytes", "unauthenticated"];

    fn numbered(names: &[(&'static str, u64)], first: u64) -> BTreeMap<&'static str, u64> {
        names.iter().zip(first..).map(|((name, _), number)| (*name, number)).collect()
    }

    #[test]
    fn every_counter_is_exported_and_has_its_place_in_the_reference() {
        let (endpoint, rpc) = (FabricCounters::default().all(), RpcMetrics::default().all());
        let figures = TargetFigures {
            endpoint: numbered(&endpoint, 1000),
            rpc: numbered(&rpc, 2000),
            ..TargetFigures::default()
        };
        let figures = Figures { targets: vec![Some(figures)], ..Figures::default() };
        let text = render(figures.clone()).expect("memory");
        let reference = include_str!("../../../../docs/reference/metrics.md");
        let target = figures.targets[0].as_ref().expect("it serves");
        let engine = "weir_engine";
        for (kind, counters) in [("fabric", &target.endpoint), ("rpc", &target.rpc)] {
            for (counter, value) in counters.iter().filter(|(counter, _)| !ELSEWHERE.contains(counter)) {
                let end = if counter.ends_with("_max") { "" } else { "_total" };
                let name = format!("{engine}_{kind}_{counter}{end}");
                let line = format!("{name}{{rank=\"0\",target=\"0\"}} {value}\n");
                assert!(text.contains(&line), "{name} is not exported");
                assert!(reference.contains(&format!("| `{name}` |")), "{name} is not in the reference");
            }
        }
    }
}
