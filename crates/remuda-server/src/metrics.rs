//! What the server counts, and what it looks up when somebody asks for metrics.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use remuda_core::Tenant;
use remuda_store::Counts;

/// How many tenants have a label of their own; the others share `other`.
const TENANTS: usize = 20;

/// How many tenants are counted at all.
const TENANTS_COUNTED: usize = 10_000;

type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Route {
    method: &'static str,
    route: String,
    status: u16,
}

impl EncodeLabelSet for Route {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let labels: Labels = vec![
            ("method", self.method.to_owned()),
            ("route", self.route.clone()),
            ("status", self.status.to_string()),
        ];
        EncodeLabelSet::encode(&labels, encoder)
    }
}

/// What the server counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Route, Counter>,
    latency: Histogram,
    tasks: Family<Labels, Gauge>,
    workers: Family<Labels, Gauge>,
    submitted: Family<Labels, Counter>,
    by_tenant: Mutex<HashMap<Tenant, u64>>,
    pub(crate) streams: Gauge<i64>,
    /// Since how many seconds the feed is held back.
    pub(crate) feed_held: Gauge<i64>,
    pub(crate) login_failures: Counter,
}

impl Metrics {
    pub(crate) fn new(mut registry: Registry) -> Self {
        let requests = Family::<Route, Counter>::default();
        let latency = Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let tasks = Family::<Labels, Gauge>::default();
        let workers = Family::<Labels, Gauge>::default();
        let submitted = Family::<Labels, Counter>::default();
        let streams = Gauge::default();
        let feed_held = Gauge::default();
        let login_failures = Counter::default();
        registry.register("remuda_login_failures", "Wrong keys that were shown", login_failures.clone());
        registry.register("remuda_http_requests", "Answered requests", requests.clone());
        registry.register(
            "remuda_http_request_seconds",
            "From the head of a request to the head of its answer",
            latency.clone(),
        );
        registry.register("remuda_tasks", "Tasks by state", tasks.clone());
        registry.register("remuda_workers", "Workers by status", workers.clone());
        registry.register(
            "remuda_tasks_submitted",
            "Tasks taken in by this process, by tenant",
            submitted.clone(),
        );
        registry.register("remuda_event_streams", "Open streams of events", streams.clone());
        registry.register(
            "remuda_feed_held_seconds",
            "Since when events that are committed wait for a transaction that began before them",
            feed_held.clone(),
        );
        let by_tenant = Mutex::default();
        Self {
            registry,
            requests,
            latency,
            tasks,
            workers,
            submitted,
            by_tenant,
            streams,
            feed_held,
            login_failures,
        }
    }

    pub(crate) fn answered(&self, method: &http::Method, route: Option<&str>, status: u16, took: Duration) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            http::Method::POST => "POST",
            http::Method::DELETE => "DELETE",
            http::Method::OPTIONS => "OPTIONS",
            // The world may invent methods; we do not count each.
            _ => "OTHER",
        };
        // Paths that lead nowhere must not make a label each.
        let route = route.unwrap_or("unknown").to_owned();
        self.requests.get_or_create(&Route { method, route, status }).inc();
        self.latency.observe(took.as_secs_f64());
    }

    pub(crate) fn submitted(&self, tenant: &Tenant) {
        let mut by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if by_tenant.len() < TENANTS_COUNTED || by_tenant.contains_key(tenant) {
            *by_tenant.entry(tenant.clone()).or_default() += 1;
        }
    }

    /// The text of all metrics, with the given numbers of the moment.
    pub(crate) fn text(
        &self,
        counts: Counts,
        workers: &[(&'static str, i64)],
    ) -> Result<String, std::fmt::Error> {
        let states = [
            ("pending", counts.pending),
            ("running", counts.running),
            ("completed", counts.completed),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
        ];
        for (state, count) in states {
            self.tasks.get_or_create(&vec![("status", state.to_owned())]).set(count);
        }
        for (status, count) in workers {
            self.workers.get_or_create(&vec![("status", (*status).to_owned())]).set(*count);
        }
        self.submitted.clear();
        for (tenant, count) in self.busiest() {
            let counter = self.submitted.get_or_create(&vec![("tenant", tenant)]);
            let counter: &AtomicU64 = counter.inner();
            counter.store(count, std::sync::atomic::Ordering::Relaxed);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn busiest(&self) -> Vec<(String, u64)> {
        let by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<(String, u64)> =
            by_tenant.iter().map(|(tenant, count)| (tenant.to_string(), *count)).collect();
        drop(by_tenant);
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let rest: u64 = all.iter().skip(TENANTS).map(|(_, count)| count).sum();
        all.truncate(TENANTS);
        if rest > 0 {
            all.push(("other".to_owned(), rest));
        }
        all
    }
}
