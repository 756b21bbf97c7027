//! What the attempts on one worker have in common.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comfyui::{Client, ObjectInfo, PromptId, Session};
use remuda_core::{Capabilities, Sha256, WorkerSpec};
use tokio::sync::watch;
use uuid::Uuid;

use crate::herd::Shared;

/// A worker that was looked over and can be sent prompts.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) session: Session,
    pub(crate) installation: Uuid,
    /// What its identity file says.
    pub(crate) identity: String,
    pub(crate) info: Arc<ObjectInfo>,
    pub(crate) hash: Sha256,
    pub(crate) offer: Arc<Capabilities>,
}

/// What the attempts on one worker have in common.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) spec: WorkerSpec,
    pub(crate) client: Client,
    /// How long to wait until it can be asked.
    pub(crate) patience: Duration,
    /// `None` until it was first reached.
    pub(crate) ready: watch::Receiver<Option<Arc<Ready>>>,
    /// Names of files that were in its input folder when last looked for.
    pub(crate) placed: Mutex<HashSet<String>>,
    /// Prompts whose entries in its history are of no more use.
    pub(crate) left: Mutex<Vec<PromptId>>,
}

impl Worker {
    /// The entry of this prompt can go. Whether it is the only one that waits for that.
    pub(crate) fn leave(&self, prompt: PromptId) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(prompt);
        left.len() == 1
    }

    /// All prompts whose entries can go.
    pub(crate) fn take_left(&self) -> Vec<PromptId> {
        std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_placed(&self, name: &str) -> bool {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    pub(crate) fn remember_placed(&self, name: &str) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        // Only saves a question; a worker that sees more files than this is asked again.
        if placed.len() >= 10_000 {
            placed.clear();
        }
        placed.insert(name.to_owned());
    }

    /// These may have been deleted.
    pub(crate) fn forget_placed(&self, names: &[String]) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            placed.remove(name);
        }
    }

    /// Another ComfyUI may answer: nothing is known of its input folder.
    pub(crate) fn forget_all_placed(&self) {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
