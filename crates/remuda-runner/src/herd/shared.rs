//! What all runners of a process have in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use comfyui::ObjectInfo;
use remuda_core::Sha256;
use tokio_util::sync::CancellationToken;

use crate::HerdOptions;
use crate::board::Board;
use crate::counters::Counters;
use crate::source::{Result, Source, SourceError};

/// What all runners of a process have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) board: Arc<Board>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) options: HerdOptions,
    /// The descriptions of nodes that some worker has: workers are mostly alike, and one takes megabytes.
    pub(crate) descriptions: Mutex<HashMap<Sha256, Weak<ObjectInfo>>>,
    /// Everything ends at once, and nothing at ComfyUI or in the source is touched: as if the process were killed.
    pub(crate) abandon: CancellationToken,
}

impl Shared {
    /// A request to the source, within a limit of time. One that is cut off may have been done.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.options.timing.source;
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer,
            Err(_) => Err(SourceError::Unavailable(format!("no answer within {limit:?}"))),
        }
    }
}

impl Shared {
    /// The one copy of a description.
    pub(crate) fn share(&self, hash: Sha256, info: ObjectInfo) -> Arc<ObjectInfo> {
        let mut descriptions = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        descriptions.retain(|_, known| known.strong_count() > 0);
        if let Some(known) = descriptions.get(&hash).and_then(Weak::upgrade) {
            return known;
        }
        let info = Arc::new(info);
        descriptions.insert(hash, Arc::downgrade(&info));
        info
    }
}

/// The time, ten per cent more or less, so that processes do not fall into step.
pub(crate) fn jitter(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.9..1.1))
}
