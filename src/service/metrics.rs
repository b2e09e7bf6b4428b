//! The service's numbers, as Prometheus reads them. Names end in their unit, counters in `_total`; docs/operations.md
//! explains each.

use prometheus::{
    Encoder, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Upper bounds of job times, in seconds.
const JOB_BUCKETS: [f64; 11] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];

pub struct Metrics {
    registry: Registry,
    pub inputs: IntGaugeVec,
    pub settling: IntGaugeVec,
    pub stalled: IntGaugeVec,
    pub watch_up: IntGaugeVec,
    pub scans: IntCounterVec,
    pub scan_errors: IntCounterVec,
    pub scan_seconds: GaugeVec,
    pub jobs: IntCounterVec,
    pub job_seconds: HistogramVec,
    pub bytes_read: IntCounterVec,
    pub bytes_written: IntCounterVec,
    pub events: IntCounterVec,
    pub reloads: IntCounterVec,
    pub http_requests: IntCounterVec,
    pub queue: IntGauge,
    pub running: IntGauge,
    pub memory_limit: IntGauge,
    pub memory_reserved: IntGauge,
    pub resident: IntGauge,
    pub disk_waiting: IntGauge,
    pub config_ok: IntGauge,
    pub ready: IntGauge,
    pub started: Gauge,
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let opts = |name: &str, help: &str| Opts::new(format!("halostream_{name}"), help);
        macro_rules! add {
            ($made:expr) => {{
                let metric = $made?;
                registry.register(Box::new(metric.clone()))?;
                metric
            }};
        }
        let metrics = Self {
            inputs: add!(IntGaugeVec::new(opts("inputs", "Inputs in the ledger, by state."), &["watch", "state"])),
            settling: add!(IntGaugeVec::new(opts("inputs_incomplete", "Inputs that are there and not complete."), &["watch"])),
            stalled: add!(IntGaugeVec::new(
                opts("inputs_stalled", "Inputs incomplete for longer than stalled_after."),
                &["watch"]
            )),
            watch_up: add!(IntGaugeVec::new(opts("watch_up", "1 while the watched directory can be read."), &["watch"])),
            scans: add!(IntCounterVec::new(opts("scans_total", "Scans of the watched directory."), &["watch"])),
            scan_errors: add!(IntCounterVec::new(opts("scan_errors_total", "Scans that could not read it."), &["watch"])),
            scan_seconds: add!(GaugeVec::new(opts("scan_seconds", "Time that the last scan took."), &["watch"])),
            jobs: add!(IntCounterVec::new(opts("jobs_total", "Attempts that ended, by outcome."), &["watch", "outcome"])),
            job_seconds: add!(HistogramVec::new(
                HistogramOpts::new("halostream_job_seconds", "Time of the runs that made outputs.").buckets(JOB_BUCKETS.into()),
                &["watch"]
            )),
            bytes_read: add!(IntCounterVec::new(opts("read_bytes_total", "Encoded bytes read from inputs."), &["watch"])),
            bytes_written: add!(IntCounterVec::new(opts("written_bytes_total", "Encoded bytes written to outputs."), &["watch"])),
            events: add!(IntCounterVec::new(opts("events_total", "Events, by name."), &["event"])),
            reloads: add!(IntCounterVec::new(opts("reloads_total", "Reloads of the configuration."), &["result"])),
            http_requests: add!(IntCounterVec::new(opts("http_requests_total", "HTTP answers, by code."), &["code"])),
            queue: add!(IntGauge::with_opts(opts("queue_length", "Inputs waiting for their turn or for a retry."))),
            running: add!(IntGauge::with_opts(opts("running_jobs", "Jobs that run now."))),
            memory_limit: add!(IntGauge::with_opts(opts("memory_limit_bytes", "Bytes of chunks for all jobs together."))),
            memory_reserved: add!(IntGauge::with_opts(opts("memory_reserved_bytes", "Bytes granted to running jobs."))),
            resident: add!(IntGauge::with_opts(opts("resident_bytes", "Resident memory of the process."))),
            disk_waiting: add!(IntGauge::with_opts(opts("waiting_for_disk", "1 while nothing starts because of min_free."))),
            config_ok: add!(IntGauge::with_opts(opts(
                "config_ok",
                "0 while the file on disk was refused and the old one is in use."
            ))),
            ready: add!(IntGauge::with_opts(opts("ready", "1 once every directory was scanned, until draining."))),
            started: add!(Gauge::with_opts(opts("start_time_seconds", "When the service started, since 1970."))),
            registry,
        };
        let version = Opts::new("halostream_build_info", "1, with the version as a label.")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        let info = IntGauge::with_opts(version)?;
        info.set(1);
        metrics.registry.register(Box::new(info))?;
        Ok(metrics)
    }

    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let (resident, _) = crate::engine::report::resident();
        self.resident.set(i64::try_from(resident).unwrap_or(i64::MAX));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
