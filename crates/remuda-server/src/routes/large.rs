//! Large graphs on their way to readers: read once, counted once, and the same bytes for everybody who reads them meanwhile.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use remuda_core::{TaskId, TaskInput};

use crate::error::{ApiError, ApiResult};
use crate::share::{Pass, Visit};
use crate::state::AppState;

/// From here on a graph is shared between its readers.
const LARGE: usize = 64 << 10;

/// When this many are remembered, those that nobody reads any more are forgotten.
const REMEMBERED: usize = 64;

/// What a task runs.
pub(crate) enum Input {
    Small(TaskInput),
    Large(Shared),
}

/// A large graph that somebody reads.
#[derive(Debug)]
struct Read {
    input: TaskInput,
    /// Counted for whoever asked first.
    _pass: Pass,
}

/// A large graph, for one of its readers.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Read>);

impl Shared {
    /// The graph; the same bytes for every reader.
    pub(crate) fn workflow(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Shared {
    type Target = TaskInput;

    fn deref(&self) -> &TaskInput {
        &self.0.input
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.input.workflow.get().as_bytes()
    }
}

/// Large graphs that somebody reads at this moment.
#[derive(Debug, Default)]
pub(crate) struct LargeInputs(Mutex<HashMap<TaskId, Weak<Read>>>);

impl LargeInputs {
    fn known(&self) -> MutexGuard<'_, HashMap<TaskId, Weak<Read>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: TaskId) -> Option<Input> {
        let read = self.known().get(&id).and_then(Weak::upgrade)?;
        Some(Input::Large(Shared(read)))
    }

    /// What a task runs. Its caller must have seen the task.
    pub(crate) async fn input(&self, state: &AppState, id: TaskId) -> ApiResult<Option<Input>> {
        if let Some(found) = self.find(id) {
            return Ok(Some(found));
        }
        let _turn = state.permits.read().await?;
        // Somebody else's turn may have been for the same one.
        if let Some(found) = self.find(id) {
            return Ok(Some(found));
        }
        let Some(input) = state.store.input(id).await? else { return Ok(None) };
        let size = input.workflow.get().len();
        if size < LARGE {
            return Ok(Some(Input::Small(input)));
        }
        let pass = state.memory.take(&Visit::guest(), size as u64).map_err(|_| ApiError::no_memory())?;
        let read = Arc::new(Read { input, _pass: pass });
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.retain(|_, read| read.strong_count() > 0);
        }
        known.insert(id, Arc::downgrade(&read));
        Ok(Some(Input::Large(Shared(read))))
    }
}
