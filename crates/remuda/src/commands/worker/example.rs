//! The smallest source: the folder `inbox` in the data directory. `cat.json` in it is a graph, and `cat.result` will be its
//! end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use remuda_runner::source::foreign::{Delivery, DeliveryEnding, ForeignQueue, Reported};
use remuda_runner::source::{Result, Source, SourceError};
use remuda_runner::{HerdOptions, WorkerConfig};
use serde_json::json;

use super::WorkerSource;
use super::foreign::{self, ForeignConnection, Terms};
use super::lifecycle::{Around, Connected, Serve, run_worker};
use crate::config::Settings;
use crate::instance::{Simulators, worker_configs};

pub(super) const SOURCE: WorkerSource = WorkerSource {
    name: "folder",
    settings: &[],
    run: |settings, stop, json| Box::pin(run_worker::<Folder>(settings, stop, json)),
};

#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The next graph. A graph that was taken has another name: nobody takes it twice.
    fn take(&self) -> std::io::Result<Option<Delivery>> {
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let key = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = std::fs::read(&path)?;
            let delivery = match serde_json::from_slice(&text) {
                Ok(graph) => Delivery::new(&self.name(), key, 0, graph),
                // What cannot be begun is a delivery as well: only this is to be said of it.
                Err(error) => {
                    let nothing = serde_json::value::RawValue::NULL.to_owned();
                    let refused = Some(error.to_string().into());
                    Delivery { refused, ..Delivery::new(&self.name(), key, 0, nothing) }
                }
            };
            std::fs::rename(&path, path.with_extension("taken"))?;
            return Ok(Some(delivery));
        }
        Ok(None)
    }

    /// The end is there whole or not at all: said twice, it is the same file.
    fn write(&self, delivery: &Delivery, ending: &DeliveryEnding) -> std::io::Result<()> {
        let path = self.0.join(format!("{}.result", delivery.key));
        std::fs::write(path.with_extension("tmp"), serde_json::to_vec_pretty(ending)?)?;
        std::fs::rename(path.with_extension("tmp"), path)
    }
}

/// It may work later: the source asks again, or says it again.
fn later(error: std::io::Error) -> SourceError {
    SourceError::Unavailable(error.to_string())
}

#[async_trait]
impl ForeignQueue for Folder {
    fn name(&self) -> String {
        format!("folder {}", self.0.display())
    }

    async fn next(&self) -> Result<Delivery> {
        loop {
            // Nothing is awaited between taking and returning: a call that is dropped has taken nothing.
            if let Some(delivery) = self.take().map_err(later)? {
                return Ok(delivery);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn report(&self, delivery: &Delivery, ending: &DeliveryEnding) -> Result<Reported> {
        self.write(delivery, ending).map_err(later)?;
        Ok(Reported::Heard)
    }
}

impl Serve for Folder {
    type Connection = ForeignConnection;

    fn read(settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self(settings.server.data.join("inbox")))
    }

    fn workers(&self, settings: &Settings, simulators: &Simulators) -> anyhow::Result<Vec<WorkerConfig>> {
        worker_configs(settings, simulators, settings.worker.id.as_deref())
    }

    async fn connect(self, around: &Around) -> anyhow::Result<Connected<ForeignConnection>> {
        let terms = Terms {
            folder: SOURCE.name,
            slots: around.workers.len(),
            sink: None,
            patience: Duration::from_secs(120),
            pause: Duration::from_secs(2),
        };
        let connection = foreign::connect(around, terms, || self.clone(), async || Ok(self.clone())).await?;
        Ok(Connected {
            source: Arc::clone(&connection.source) as Arc<dyn Source>,
            herd: HerdOptions::new(around.owner.id),
            line: format!("Rendering the graphs in {} with {{workers}}.", self.0.display()),
            json: json!({"source": self.name()}),
            connection,
        })
    }
}
