//! The engine's metrics in Prometheus text format (`docs/reference/metrics.md`), made anew for each scrape from figures
//! of the targets.

mod fabric;
mod membership;
mod rebuild;
mod scrub;
mod transactions;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use weir_media::Wear;
use weir_media::health::{DeviceState, MEDIA_BOUNDS_US};
use weir_object::BOUNDS_US;
use weir_pool::Operation;
use weir_proto::Der;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_store::{CHECKPOINT_BOUNDS_MS, LATENCY_BOUNDS_US};

use crate::VERSION;
use crate::process::ProcessFigures;
use crate::snapshot::TargetFigures;

/// Upper bounds of the times of management calls, in milliseconds.
pub const MANAGEMENT_BOUNDS_MS: [u64; 13] =
    [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

/// Management calls of one method.
#[derive(Clone, Debug, Default)]
pub struct MethodFigures {
    /// Calls by gRPC code.
    pub codes: BTreeMap<String, u64>,
    /// Times by bucket; the last is beyond all bounds.
    pub buckets: [u64; MANAGEMENT_BOUNDS_MS.len() + 1],
    /// Sum of the times.
    pub sum: Duration,
}

impl MethodFigures {
    /// Counts a call.
    pub fn record(&mut self, code: &str, took: Duration) {
        *self.codes.entry(code.to_owned()).or_default() += 1;
        let ms = u64::try_from(took.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        self.buckets[MANAGEMENT_BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.sum += took;
    }
}

/// Everything that one scrape exports.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The engine.
    pub rank: u32,
    /// libfabric provider.
    pub provider: String,
    /// The process.
    pub process: ProcessFigures,
    /// Each target; `None` while it doesn't serve.
    pub targets: Vec<Option<TargetFigures>>,
    /// Management calls by method.
    pub methods: BTreeMap<String, MethodFigures>,
}

/// The figures as text.
///
/// # Errors
/// When the text can't be written, which memory always can.
pub fn render(figures: Figures) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exporter(figures)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Exporter(Figures);

type Labels = Vec<(&'static str, String)>;

/// A value of a series.
enum Value {
    Counter(u64),
    CounterSeconds(f64),
    Gauge(u64),
    GaugeSeconds(f64),
    Histogram(Histogram),
}

struct Histogram {
    bounds: Vec<f64>,
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Of bounds in a unit of which a second has `per_second`, counts by bucket, and their sum in seconds.
    fn new(bounds: &[u64], per_second: f64, buckets: &[u64], sum: f64) -> Self {
        Self { bounds: scaled(bounds, per_second), buckets: buckets.to_vec(), sum }
    }
}

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) | Self::CounterSeconds(_) => MetricType::Counter,
            Self::Gauge(_) | Self::GaugeSeconds(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(value) => ConstCounter::new(*value).encode(encoder),
            Self::CounterSeconds(value) => ConstCounter::new(*value).encode(encoder),
            Self::Gauge(value) => ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX)).encode(encoder),
            Self::GaugeSeconds(value) => ConstGauge::new(*value).encode(encoder),
            Self::Histogram(Histogram { bounds, buckets, sum }) => {
                let bounds = bounds.iter().copied().chain([f64::INFINITY]);
                let pairs: Vec<(f64, u64)> = bounds.zip(buckets.iter().copied()).collect();
                let count = buckets.iter().sum();
                encoder.encode_histogram::<prometheus_client::encoding::NoLabelSet>(*sum, count, &pairs, None)
            }
        }
    }
}

/// A metric with its series. The name is without the `_total` that counters get.
struct Metric {
    name: &'static str,
    help: &'static str,
    series: Vec<(Labels, Value)>,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating point; 53 bits of nanoseconds are 104 days"
)]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "bounds are small")]
fn scaled(bounds: &[u64], per_second: f64) -> Vec<f64> {
    bounds.iter().map(|bound| *bound as f64 / per_second).collect()
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = self.process();
        metrics.extend(self.engine());
        metrics.extend(self.operations());
        metrics.extend(self.log());
        metrics.extend(self.transactions());
        metrics.extend(self.index());
        metrics.extend(self.buffers());
        metrics.extend(self.media());
        metrics.extend(self.capabilities());
        metrics.extend(self.health());
        metrics.extend(self.paces());
        metrics.extend(self.scrub());
        metrics.extend(self.rebuild());
        metrics.extend(self.fabric());
        metrics.extend(self.membership());
        metrics.extend(self.group());
        metrics.extend(self.management());
        metrics.extend(self.pools());
        for metric in metrics.into_iter().filter(|metric| !metric.series.is_empty()) {
            let kind = metric.series[0].1.kind();
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            if let [(labels, value)] = metric.series.as_slice()
                && labels.is_empty()
            {
                value.encode(family)?;
                continue;
            }
            for (labels, value) in &metric.series {
                value.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Exporter {
    /// Series with the label `rank`, and `target` where there is one.
    fn ranked(&self) -> Labels {
        vec![("rank", self.0.rank.to_string())]
    }

    fn labels(&self, target: usize, more: &[(&'static str, &str)]) -> Labels {
        let mut labels = self.ranked();
        labels.push(("target", target.to_string()));
        labels.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        labels
    }

    fn serving(&self) -> impl Iterator<Item = (usize, &TargetFigures)> {
        let targets = self.0.targets.iter().enumerate();
        targets.filter_map(|(index, figures)| figures.as_ref().map(|figures| (index, figures)))
    }

    /// One series for each target that serves.
    fn by_target(
        &self,
        name: &'static str,
        help: &'static str,
        value: impl Fn(&TargetFigures) -> Value,
    ) -> Metric {
        let series = self.serving().map(|(index, figures)| (self.labels(index, &[]), value(figures)));
        Metric { name, help, series: series.collect() }
    }

    fn process(&self) -> Vec<Metric> {
        let process = &self.0.process;
        let one = |name, help, value| Metric { name, help, series: vec![(Vec::new(), value)] };
        vec![
            one("process_cpu_seconds", "CPU time of the process", Value::CounterSeconds(process.cpu_seconds)),
            one("process_resident_memory_bytes", "Resident memory", Value::Gauge(process.resident_bytes)),
            one("process_open_fds", "Open file descriptors", Value::Gauge(process.open_fds)),
            one("process_start_time_seconds", "Start of the process", Value::GaugeSeconds(process.started)),
        ]
    }

    fn engine(&self) -> Vec<Metric> {
        let mut build = self.ranked();
        build.extend([
            ("version", VERSION.to_owned()),
            ("provider", self.0.provider.clone()),
            ("protocol_min", PROTOCOL_MIN.to_string()),
            ("protocol_max", PROTOCOL_MAX.to_string()),
        ]);
        let up = self.0.targets.iter().enumerate();
        let up = up.map(|(index, figures)| (self.labels(index, &[]), Value::Gauge(figures.is_some().into())));
        vec![
            Metric {
                name: "weir_engine_build_info",
                help: "Always 1",
                series: vec![(build, Value::Gauge(1))],
            },
            Metric {
                name: "weir_engine_start_time_seconds",
                help: "Start of the process, seconds since 1970",
                series: vec![(self.ranked(), Value::GaugeSeconds(self.0.process.started))],
            },
            Metric {
                name: "weir_engine_target_up",
                help: "1 while the target serves I/O",
                series: up.collect(),
            },
            self.by_target(
                "weir_engine_target_busy_seconds",
                "Time the target's thread was not asleep",
                |figures| Value::CounterSeconds(figures.busy.as_secs_f64()),
            ),
            self.by_target(
                "weir_engine_queue_depth",
                "Requests that have arrived and are not answered",
                |figures| Value::Gauge(figures.rpc.get("running").copied().unwrap_or(0)),
            ),
        ]
    }

    fn operations(&self) -> Vec<Metric> {
        let (mut operations, mut bytes, mut errors, mut times) = (vec![], vec![], vec![], vec![]);
        for (index, figures) in self.serving() {
            for ((pool, container), counters) in &figures.containers {
                let names = [("pool", pool.as_str()), ("container", container.as_str())];
                let labels = |name, value: &str| {
                    let mut labels = self.labels(index, &names);
                    labels.push((name, value.to_owned()));
                    labels
                };
                for (operation, count) in Operation::ALL.iter().zip(counters.operations) {
                    if count > 0 {
                        operations.push((labels("op", operation.name()), Value::Counter(count)));
                    }
                }
                bytes.push((labels("direction", "write"), Value::Counter(counters.written)));
                bytes.push((labels("direction", "read"), Value::Counter(counters.read)));
                for (der, count) in &counters.errors {
                    let name = der.name().map_or_else(|| der.0.to_string(), |name| format!("DER_{name}"));
                    errors.push((labels("der", &name), Value::Counter(*count)));
                }
            }
            for (operation, counts) in Operation::ALL.iter().zip(figures.latency) {
                if counts.buckets.iter().any(|count| *count > 0) {
                    let sum = seconds(counts.sum_ns);
                    let histogram = Histogram::new(&BOUNDS_US, 1e6, &counts.buckets, sum);
                    let labels = self.labels(index, &[("op", operation.name())]);
                    times.push((labels, Value::Histogram(histogram)));
                }
            }
        }
        let metric = |name, help, series| Metric { name, help, series };
        vec![
            metric("weir_engine_operations", "Operations answered", operations),
            metric("weir_engine_bytes", "Application bytes moved by operations that succeeded", bytes),
            metric("weir_engine_errors", "Operations answered with an error", errors),
            metric("weir_engine_operation_seconds", "From the arrival of a request to its reply", times),
        ]
    }

    fn log(&self) -> Vec<Metric> {
        let checkpoints = self.serving().flat_map(|(index, figures)| {
            let store = &figures.store;
            [("ok", store.checkpoints), ("failed", store.checkpoint_failures)]
                .map(|(result, count)| (self.labels(index, &[("result", result)]), Value::Counter(count)))
        });
        vec![
            self.by_target("weir_engine_wal_flush_seconds", "One device flush of the log", |figures| {
                let latency = &figures.store.commit.latency;
                let sum = seconds(latency.sum_ns);
                Value::Histogram(Histogram::new(&LATENCY_BOUNDS_US, 1e6, &latency.buckets, sum))
            }),
            self.by_target("weir_engine_wal_records", "Records made durable", |figures| {
                Value::Counter(figures.store.commit.records)
            }),
            self.by_target("weir_engine_wal_bytes", "Bytes of records made durable", |figures| {
                Value::Counter(figures.store.commit.log_written)
            }),
            self.by_target(
                "weir_engine_wal_used_bytes",
                "Log not yet superfluous by a checkpoint",
                |figures| Value::Gauge(figures.store.commit.log_used),
            ),
            self.by_target("weir_engine_wal_capacity_bytes", "Size of the log", |figures| {
                Value::Gauge(figures.store.commit.log_capacity)
            }),
            self.by_target(
                "weir_engine_wal_replayed_records",
                "Records applied by the last recovery",
                |figures| Value::Gauge(figures.store.replayed_records),
            ),
            self.by_target("weir_engine_recovery_seconds", "How long the last recovery took", |figures| {
                Value::GaugeSeconds(figures.store.recovery_time.as_secs_f64())
            }),
            Metric {
                name: "weir_engine_checkpoints",
                help: "Checkpoints ended",
                series: checkpoints.collect(),
            },
            self.by_target("weir_engine_checkpoint_seconds", "One checkpoint that succeeded", |figures| {
                let latency = &figures.store.checkpoint_latency;
                let sum = seconds(latency.sum_ns);
                Value::Histogram(Histogram::new(&CHECKPOINT_BOUNDS_MS, 1e3, &latency.buckets, sum))
            }),
            self.by_target(
                "weir_engine_checkpoint_last_success_timestamp_seconds",
                "End of the last checkpoint that succeeded",
                |figures| Value::GaugeSeconds(seconds(figures.store.checkpoint_last_ns)),
            ),
        ]
    }

    fn index(&self) -> Vec<Metric> {
        vec![
            self.by_target("weir_engine_index_entries", "Entries of the index", |figures| {
                Value::Gauge(figures.store.entries)
            }),
            self.by_target("weir_engine_index_memory_bytes", "Memory that the index takes", |figures| {
                Value::Gauge(figures.store.index.memory)
            }),
            self.by_target("weir_engine_index_memory_limit_bytes", "Memory it may take", |figures| {
                Value::Gauge(figures.store.index.memory_limit)
            }),
            self.by_target("weir_engine_index_faults", "Index nodes read when needed", |figures| {
                Value::Counter(figures.store.index.faults)
            }),
            self.by_target("weir_engine_index_evictions", "Index nodes put out of memory", |figures| {
                Value::Counter(figures.store.index.evictions)
            }),
            self.by_target(
                "weir_engine_index_errors",
                "Index nodes found damaged or unreadable",
                |figures| Value::Counter(figures.store.index.errors),
            ),
        ]
    }

    /// Memory beside the index's: of the cache and of transfers.
    fn buffers(&self) -> Vec<Metric> {
        vec![
            self.by_target("weir_engine_cache_bytes", "Small values kept in memory", |figures| {
                Value::Gauge(figures.store.cache.bytes)
            }),
            self.by_target("weir_engine_cache_limit_bytes", "Memory that they may take", |figures| {
                Value::Gauge(figures.store.cache.limit)
            }),
            self.by_target("weir_engine_cache_hits", "Reads that found their value there", |figures| {
                Value::Counter(figures.store.cache.hits)
            }),
            self.by_target("weir_engine_cache_misses", "Reads of small values that didn't", |figures| {
                Value::Counter(figures.store.cache.misses)
            }),
            self.by_target("weir_engine_dma_bytes", "Transfer buffers in use", |figures| {
                Value::Gauge(figures.store.dma.used)
            }),
            self.by_target("weir_engine_dma_held_bytes", "Memory of transfer buffers", |figures| {
                Value::Gauge(figures.store.dma.held)
            }),
            self.by_target("weir_engine_dma_limit_bytes", "Transfer buffers that may be in use", |figures| {
                Value::Gauge(figures.store.dma.limit)
            }),
            self.by_target("weir_engine_dma_waits", "Transfers that waited for a buffer", |figures| {
                Value::Counter(figures.store.dma.waits)
            }),
        ]
    }

    fn media(&self) -> Vec<Metric> {
        let (mut checksums, mut space, mut pending, mut reserved) = (vec![], vec![], vec![], vec![]);
        for (index, figures) in self.serving() {
            for (pool, shard) in &figures.shards {
                for (kind, bytes) in [("total", shard.total), ("used", shard.used), ("free", shard.free)] {
                    let labels = self.labels(index, &[("pool", pool), ("kind", kind)]);
                    space.push((labels, Value::Gauge(bytes)));
                }
                pending.push((self.labels(index, &[("pool", pool)]), Value::Gauge(shard.pending)));
                reserved.push((self.labels(index, &[("pool", pool)]), Value::Gauge(shard.reserved)));
            }
            let mut damaged = BTreeMap::<&str, u64>::new();
            for ((pool, _), counters) in &figures.containers {
                let count = counters.errors.get(&Der::CSUM).copied().unwrap_or(0);
                *damaged.entry(pool).or_default() += count;
            }
            for (pool, count) in damaged.into_iter().filter(|(_, count)| *count > 0) {
                checksums.push((self.labels(index, &[("pool", pool)]), Value::Counter(count)));
            }
        }
        let errors = self.serving().flat_map(|(index, figures)| {
            let device = &figures.store.device;
            [("read", device.read_errors), ("write", device.write_errors), ("flush", device.flush_errors)]
                .map(|(op, count)| (self.labels(index, &[("op", op)]), Value::Counter(count)))
        });
        let errors = errors.collect();
        let metric = |name, help, series| Metric { name, help, series };
        vec![
            metric("weir_engine_media_errors", "Device operations that failed", errors),
            metric("weir_engine_checksum_errors", "Data found not to match its checksum", checksums),
            self.by_target("weir_engine_capacity_bytes", "Size of the target's media", |figures| {
                Value::Gauge(figures.store.space.capacity)
            }),
            self.by_target("weir_engine_unallocated_bytes", "Media not given to any pool", |figures| {
                Value::Gauge(figures.store.space.capacity.saturating_sub(figures.store.space.assigned))
            }),
            metric("weir_engine_space_bytes", "The pool's share on the target", space),
            metric("weir_engine_reclaim_pending_bytes", "Space that is still to be reclaimed", pending),
            metric("weir_engine_reserved_bytes", "Space that is kept for what isn't written yet", reserved),
            self.by_target("weir_engine_relocated", "Values moved by defragmentation", |figures| {
                Value::Counter(figures.store.relocated)
            }),
        ]
    }

    /// What the provider can do. All targets of an engine have the same one, so that the first speaks for all.
    fn capabilities(&self) -> Vec<Metric> {
        let Some(found) = self.serving().find_map(|(_, figures)| figures.fabric.as_ref()) else {
            return Vec::new();
        };
        let mut info = self.ranked();
        info.extend([
            ("provider", found.provider.clone()),
            ("provider_version", found.version.clone()),
            ("library", found.library.clone()),
            ("wait", found.wait.to_string()),
        ]);
        let with = |name: &'static str, value: &str| {
            let mut labels = self.ranked();
            labels.push((name, value.to_owned()));
            labels
        };
        let abilities =
            found.flags().map(|(name, on)| (with("ability", name), Value::Gauge(u64::from(on)))).into();
        let limits =
            found.sizes().map(|(name, bytes)| (with("limit", name), Value::Gauge(bytes as u64))).into();
        let metric = |name, help, series| Metric { name, help, series };
        vec![
            metric("weir_engine_fabric_info", "Always 1", vec![(info, Value::Gauge(1))]),
            metric("weir_engine_fabric_ability", "1 when the fabric provider has the ability", abilities),
            metric("weir_engine_fabric_limit_bytes", "Sizes that the fabric provider sets", limits),
        ]
    }

    fn health(&self) -> Vec<Metric> {
        let (mut states, mut times) = (vec![], vec![]);
        for (index, figures) in self.serving() {
            for state in DeviceState::ALL {
                let labels = self.labels(index, &[("state", state.name())]);
                states.push((labels, Value::Gauge((figures.health.state == state).into())));
            }
            let health = &figures.health;
            for (op, counted) in [("read", health.reads), ("write", health.writes), ("flush", health.flushes)]
            {
                let sum = seconds(counted.sum_ns);
                let histogram = Histogram::new(&MEDIA_BOUNDS_US, 1e6, &counted.buckets, sum);
                times.push((self.labels(index, &[("op", op)]), Value::Histogram(histogram)));
            }
        }
        // Only of drives that tell.
        let worn = |figure: fn(&Wear) -> u64| {
            let of = |(index, figures): (_, &TargetFigures)| {
                let wear = figures.health.wear.as_ref()?;
                Some((self.labels(index, &[]), Value::Gauge(figure(wear))))
            };
            self.serving().filter_map(of).collect::<Vec<_>>()
        };
        let metric = |name, help, series| Metric { name, help, series };
        vec![
            metric("weir_engine_media_state", "1 for the state that the device is in", states),
            metric("weir_engine_media_seconds", "Time of one transfer of the device", times),
            self.by_target("weir_engine_media_slow", "Transfers of more than a second", |figures| {
                Value::Counter(figures.health.slow)
            }),
            self.by_target(
                "weir_engine_target_lost",
                "1 when what the target held is not on its device",
                |figures| Value::Gauge(figures.lost.into()),
            ),
            self.by_target(
                "weir_engine_target_without_lease",
                "Requests refused because the target held no lease of a pool's map",
                |figures| Value::Counter(figures.without_lease),
            ),
            self.by_target("weir_engine_media_refused", "Transfers refused to a faulty device", |figures| {
                Value::Counter(figures.health.refused)
            }),
            self.by_target("weir_engine_media_calls", "System calls for transfers", |figures| {
                Value::Counter(figures.store.device.calls)
            }),
            metric(
                "weir_engine_media_used_percent",
                "Life of the drive that is used up",
                worn(|wear| wear.used.into()),
            ),
            metric(
                "weir_engine_media_spare_percent",
                "Spare capacity that the drive has left",
                worn(|wear| wear.spare.into()),
            ),
            metric(
                "weir_engine_media_warning",
                "Critical warning of the drive",
                worn(|wear| wear.critical_warning.into()),
            ),
            metric(
                "weir_engine_media_unrecovered",
                "Data that the drive could not recover",
                worn(|wear| wear.media_errors),
            ),
        ]
    }

    fn paces(&self) -> Vec<Metric> {
        vec![
            self.by_target(
                "weir_engine_target_paced",
                "Requests that waited since their tenant's clients may go no faster",
                |figures| Value::Counter(figures.paced.0),
            ),
            self.by_target(
                "weir_engine_target_paced_refused",
                "Requests that were sent away since their tenant's clients may go no faster",
                |figures| Value::Counter(figures.paced.1),
            ),
        ]
    }

    fn management(&self) -> Vec<Metric> {
        let (mut requests, mut times) = (vec![], vec![]);
        for (method, figures) in &self.0.methods {
            let labels = |more: Option<(&'static str, &String)>| {
                let mut labels = self.ranked();
                labels.push(("method", method.clone()));
                labels.extend(more.map(|(name, value)| (name, value.clone())));
                labels
            };
            for (code, count) in &figures.codes {
                requests.push((labels(Some(("code", code))), Value::Counter(*count)));
            }
            let sum = figures.sum.as_secs_f64();
            let histogram = Histogram::new(&MANAGEMENT_BOUNDS_MS, 1e3, &figures.buckets, sum);
            times.push((labels(None), Value::Histogram(histogram)));
        }
        let metric = |name, help, series| Metric { name, help, series };
        vec![
            metric("weir_engine_management_requests", "Management calls answered", requests),
            metric("weir_engine_management_request_seconds", "From a call's arrival to its answer", times),
        ]
    }

    fn pools(&self) -> Vec<Metric> {
        let served = || self.serving().flat_map(|(_, figures)| &figures.served);
        let pool = |name, help, value: fn(&crate::snapshot::ServedPool) -> u64| {
            let series = served().map(|pool| {
                let mut labels = self.ranked();
                labels.push(("pool", pool.label.clone()));
                (labels, Value::Gauge(value(pool)))
            });
            Metric { name, help, series: series.collect() }
        };
        let container = |name, help, value: fn(&crate::snapshot::ServedContainer) -> u64| {
            let every =
                served().flat_map(|pool| pool.containers.iter().map(|container| (&pool.label, container)));
            let series = every.map(|(pool, container)| {
                let mut labels = self.ranked();
                labels.push(("pool", pool.clone()));
                labels.push(("container", container.label.clone()));
                (labels, Value::Gauge(value(container)))
            });
            Metric { name, help, series: series.collect() }
        };
        let tenants = served().map(|pool| {
            let mut labels = self.ranked();
            labels.extend([("pool", pool.label.clone()), ("tenant", pool.tenant.to_string())]);
            (labels, Value::Gauge(1))
        });
        let tenants = tenants.collect();
        let claims = served().flat_map(|pool| {
            pool.containers.iter().filter_map(|container| {
                let (namespace, name) = container.claim.clone()?;
                let mut labels = self.ranked();
                labels.extend([("pool", pool.label.clone()), ("container", container.label.clone())]);
                labels.extend([("claim_namespace", namespace), ("claim", name)]);
                Some((labels, Value::Gauge(1)))
            })
        });
        let claims = claims.collect();
        vec![
            Metric { name: "weir_pool_info", help: "Always 1; the labels tell the tenant", series: tenants },
            Metric { name: "weir_container_info", help: "1 for a container of a claim", series: claims },
            pool("weir_pool_size_bytes", "Bytes the pool may hold", |pool| pool.size),
            pool("weir_pool_used_bytes", "Bytes in use, over all its targets that answer", |pool| pool.used),
            pool("weir_pool_unreachable_ranks", "Engines of the pool that do not answer", |pool| {
                pool.unreachable as u64
            }),
            pool("weir_pool_down_targets", "Targets of the pool that are out of service", |pool| {
                pool.down as u64
            }),
            pool(
                "weir_pool_beyond_redundancy",
                "1 while engines are away that the pool can't do without",
                |pool| pool.beyond_redundancy.into(),
            ),
            pool("weir_pool_map_version", "Version of the pool map", |pool| pool.map_version.into()),
            pool("weir_pool_containers", "Containers of the pool", |pool| pool.containers.len() as u64),
            container("weir_container_quota_bytes", "The container's quota; 0 means none", |one| one.quota),
            container("weir_container_used_bytes", "Bytes that count against the quota", |one| one.used),
            container("weir_container_open_handles", "Clients that have the container open", |one| {
                one.handles.into()
            }),
        ]
    }
}
