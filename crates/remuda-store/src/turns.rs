//! Turns for what takes a store long: large writes of several callers one after the other, tenant by tenant, and what is
//! short passes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::{KeyId, TaskInput, TaskResult, Tenant};
use tokio::sync::oneshot;

use crate::keyring::size_of;
use crate::{Error, Result};

/// What is longer waits for its turn.
pub(crate) const SHORT: usize = 64 << 10;

/// How many bytes of what is not short are written at the same time; what is longer is alone.
const AT_ONCE: usize = 512 << 10;

/// For whom something large is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// Its tasks, results and documents.
    Tenant(Tenant),
    /// What the workers of a key bring of themselves.
    Key(KeyId),
    /// What the installation's own workers say.
    House,
}

impl From<&Tenant> for Party {
    fn from(tenant: &Tenant) -> Self {
        Self::Tenant(tenant.clone())
    }
}

/// Whose turn it is to write something that is not short. Parties come one after the other, and what one of them brings
/// comes in its order: somebody who brings many large things lets others wait for those that are under way and for one of those
/// that are to come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// How many bytes are being written.
    taken: usize,
    /// Those with something that waits, the next one first. Each is there once.
    parties: VecDeque<Party>,
    waiting: HashMap<Party, VecDeque<Waiting>>,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiting {
    bytes: usize,
    called: oneshot::Sender<Held>,
}

/// A turn, given back on drop.
#[derive(Debug)]
pub(crate) struct Held {
    turns: Turns,
    bytes: usize,
}

/// Held until it is written; nothing if it is short.
pub(crate) type Turn = Option<Held>;

impl Turns {
    /// Waits until something of this size may be written, unless it is short.
    pub(crate) async fn take(&self, party: impl Into<Party>, bytes: usize) -> Result<Turn> {
        if bytes <= SHORT {
            return Ok(None);
        }
        let (called, call) = oneshot::channel();
        self.inner().join(party.into(), Waiting { bytes: bytes.min(AT_ONCE), called });
        self.call();
        call.await.map(Some).map_err(|_| Error::Closed)
    }

    /// Calls those whose turn it is.
    fn call(&self) {
        let next = self.inner().next();
        for Waiting { bytes, called } in next {
            // Whoever left meanwhile gives it back with this.
            let _left = called.send(Held { turns: self.clone(), bytes });
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn join(&mut self, party: Party, waiting: Waiting) {
        if !self.waiting.contains_key(&party) {
            self.parties.push_back(party.clone());
        }
        self.waiting.entry(party).or_default().push_back(waiting);
    }

    /// Takes out those that fit. Nobody passes the first one: what is large would never come.
    fn next(&mut self) -> Vec<Waiting> {
        let mut called = Vec::new();
        while let Some(party) = self.parties.pop_front() {
            let Some(line) = self.waiting.get_mut(&party) else { continue };
            while line.front().is_some_and(|first| first.called.is_closed()) {
                line.pop_front();
            }
            let fits = line.front().is_some_and(|first| self.taken + first.bytes <= AT_ONCE);
            let first = if fits { line.pop_front() } else { None };
            let (is_called, is_over) = (first.is_some(), line.is_empty());
            if let Some(first) = first {
                self.taken += first.bytes;
                called.push(first);
            }
            match (is_over, is_called) {
                (true, _) => drop(self.waiting.remove(&party)),
                (false, true) => self.parties.push_back(party),
                (false, false) => {
                    self.parties.push_front(party);
                    break;
                }
            }
        }
        called
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.turns.inner().taken -= self.bytes;
        self.turns.call();
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
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;

    use super::*;

    fn party(name: &str) -> Party {
        Party::Tenant(Tenant::new(name).unwrap())
    }

    /// Somebody who waits for a turn.
    async fn wait(turns: &Turns, name: &str, bytes: usize) -> BoxFuture<'static, Turn> {
        let (turns, party) = (turns.clone(), party(name));
        let mut wait = async move { turns.take(party, bytes).await.unwrap() }.boxed();
        assert!(futures_util::poll!(&mut wait).is_pending());
        wait
    }

    #[tokio::test]
    async fn large_things_wait_for_each_other_and_short_ones_for_nobody() {
        let turns = Turns::default();
        let large = turns.take(party("a"), 30 << 20).await.unwrap();
        assert!(large.is_some());
        assert!(turns.take(party("a"), SHORT).await.unwrap().is_none());
        let middle = wait(&turns, "a", 100 << 10).await;
        drop(large);
        let middle = middle.await;
        assert!(turns.take(party("b"), 300 << 10).await.unwrap().is_some(), "both fit");
        drop(middle);
    }

    #[tokio::test]
    async fn whoever_brings_many_lets_others_wait_for_one_of_them() {
        let turns = Turns::default();
        let under_way = turns.take(party("many"), AT_ONCE).await.unwrap();
        let mut many = VecDeque::new();
        for _ in 0..12 {
            many.push_back(wait(&turns, "many", AT_ONCE).await);
        }
        let (one, other) = (wait(&turns, "one", 100 << 10).await, wait(&turns, "other", 100 << 10).await);
        drop(under_way);
        drop(many.pop_front().unwrap().await);
        // All that the others brought is written before the second of those.
        drop(tokio::join!(one, other));
        for left in many {
            drop(left.await);
        }
        let inner = turns.inner();
        assert!(inner.taken == 0 && inner.parties.is_empty() && inner.waiting.is_empty(), "{inner:?}");
    }

    #[tokio::test]
    async fn whoever_leaves_takes_no_turn() {
        let turns = Turns::default();
        let under_way = turns.take(party("a"), AT_ONCE).await.unwrap();
        let gone = wait(&turns, "a", AT_ONCE).await;
        let stays = wait(&turns, "a", AT_ONCE).await;
        let called_too_late = wait(&turns, "b", AT_ONCE).await;
        drop(gone);
        drop(under_way);
        drop(stays.await);
        // It was called, and leaves without having heard of it.
        drop(called_too_late);
        assert!(turns.take(party("c"), AT_ONCE).await.unwrap().is_some());
    }
}
