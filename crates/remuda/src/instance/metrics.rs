//! What the runners of this process count, for `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use remuda_runner::Counters;

struct Runners(Arc<Counters>);

impl fmt::Debug for Runners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runners").finish()
    }
}

impl Collector for Runners {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = serde_json::to_value(self.0.snapshot()).map_err(|_| fmt::Error)?;
        for (name, value) in snapshot.as_object().into_iter().flatten() {
            let help = format!("{} by the runners of this process", name.replace('_', " "));
            let name = format!("remuda_runner_{name}");
            let counter = ConstCounter::new(value.as_u64().unwrap_or(0));
            let metric = encoder.encode_descriptor(&name, &help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}

/// Adds the counters to a registry.
pub(crate) fn register(registry: &mut Registry, counters: Arc<Counters>) {
    registry.register_collector(Box::new(Runners(counters)));
}
