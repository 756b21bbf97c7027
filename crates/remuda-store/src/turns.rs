//! Turns for what takes a store long: large writes of several callers one after the other, and what is short passes them.

use std::sync::Arc;

use remuda_core::{TaskInput, TaskResult};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::keyring::size_of;
use crate::{Error, Result};

/// What is longer waits for its turn.
pub(crate) const SHORT: usize = 64 << 10;

/// How many bytes of what is not short are written at the same time; what is longer is alone.
const AT_ONCE: usize = 512 << 10;

/// What turns are counted in.
const UNIT: usize = 1 << 10;

/// Whose turn it is to write something that is not short. In the order in which they came: somebody who brings many
/// large things lets others wait for those that are under way, and not for all that are to come.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

/// Held until it is written; nothing if it is short.
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE / UNIT)))
    }
}

impl Turns {
    /// Waits until something of this size may be written, unless it is short.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Turn> {
        if bytes <= SHORT {
            return Ok(None);
        }
        let units = u32::try_from(bytes.min(AT_ONCE) / UNIT).unwrap_or(1);
        let turn = Arc::clone(&self.0).acquire_many_owned(units).await;
        turn.map(Some).map_err(|_| Error::Closed)
    }
}

/// About how many bytes of an input are written.
pub(crate) fn size_of_input(input: &TaskInput) -> usize {
    input.workflow.get().len() + input.extra.as_ref().map_or(0, |extra| size_of(extra))
}

/// About how many bytes of a result are written.
pub(crate) fn size_of_result(result: &TaskResult) -> usize {
    /// A file with names of usual length.
    const FILE: usize = 512;
    let errors = result.node_errors.as_ref().map_or(0, |errors| errors.get().len());
    result.outputs.get().len() + errors + FILE * result.files.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_things_wait_for_each_other_and_short_ones_for_nobody() {
        let turns = Turns::default();
        let large = turns.take(30 << 20).await.unwrap();
        assert!(large.is_some());
        assert!(turns.take(SHORT).await.unwrap().is_none());
        let middle = turns.take(100 << 10);
        tokio::pin!(middle);
        assert!(futures_util::poll!(&mut middle).is_pending());
        drop(large);
        let middle = middle.await.unwrap();
        assert!(turns.take(300 << 10).await.unwrap().is_some(), "both fit");
        drop(middle);
    }
}
