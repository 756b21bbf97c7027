//! The parts, put together.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::OwnerId;
use remuda_pool::{HarmBook, Marks, Pool, PoolOptions, Pulse, Watchdog, WatchdogOptions};
use remuda_runner::HerdOptions;
use remuda_store::RunnerStore;
use tokio_util::task::AbortOnDropHandle;

use super::{enforce, harm};
use crate::config::Settings;

/// Watched for as long as this is there.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pool: Pool,
    pub(crate) pulse: Pulse,
    harm: HarmBook,
    _beats: AbortOnDropHandle<()>,
    _watchdog: Watchdog,
}

impl Process {
    /// Starts the parts. The owner of the data directory is held: whoever wrote marks there is dead.
    pub(crate) fn start(settings: &Settings) -> anyhow::Result<Self> {
        let data = &settings.server.data;
        let (limit, drain) = (settings.process.watchdog, settings.tasks.drain);
        let mut options = PoolOptions { queue: settings.process.pool_queue, ..PoolOptions::default() };
        if let Some(threads) = settings.process.pool_threads {
            options.threads = threads;
        }
        Self::with(data, options, limit, drain)
            .with_context(|| format!("cannot watch over this process in {}", data.display()))
    }

    fn with(data: &Path, options: PoolOptions, limit: Duration, drain: Duration) -> std::io::Result<Self> {
        let pool = Pool::new(options);
        let harm = HarmBook::open(data)?;
        let (marks, left) = Marks::open(data)?;
        // First into the book, then out of the marks: what is told twice is counted once.
        harm.add(left.into_iter().map(Into::into))?;
        marks.clear()?;
        pool.mark_in(marks);
        let watchdog = Watchdog::start(&pool, WatchdogOptions::new(limit))?;
        let pulse = watchdog.pulse();
        let beats = AbortOnDropHandle::new(tokio::spawn(pulse.clone().run()));
        enforce::stop(pulse.clone(), drain)?;
        #[cfg(debug_assertions)]
        super::fault::listen(&pool);
        Ok(Self { pool, pulse, harm, _beats: beats, _watchdog: watchdog })
    }

    /// Tells a store that counts of every task that brought this process down. Before anything is taken up again.
    pub(crate) async fn tell(&self, store: &dyn RunnerStore, owner: OwnerId) -> anyhow::Result<()> {
        harm::tell(&self.harm, store, owner).await
    }

    /// For the runners of this process.
    pub(crate) fn equip(&self, mut options: HerdOptions) -> HerdOptions {
        options.pool = self.pool.clone();
        options.harm = self.harm.clone();
        options
    }
}
