//! One read for all who ask at the same time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// What many ask for, and what takes longer the more there is of it. One read of it is under way at a time; those who ask
/// meanwhile share the next one. So nobody gets what is older than the question.
#[derive(Debug)]
pub(crate) struct Together<T> {
    turn: tokio::sync::Mutex<()>,
    /// How many reads have begun.
    begun: AtomicU64,
    asking: AtomicUsize,
    last: Mutex<Option<Last<T>>>,
}

/// The last read: its number, and what it found or why it failed.
#[derive(Debug)]
struct Last<T> {
    number: u64,
    found: Result<Arc<T>, String>,
}

impl<T> Default for Together<T> {
    fn default() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            asking: AtomicUsize::new(0),
            last: Mutex::new(None),
        }
    }
}

impl<T> Together<T> {
    /// Reads, or shares what another reads that begins after this.
    pub(crate) async fn ask(&self, read: impl AsyncFnOnce() -> Result<T>) -> Result<Arc<T>> {
        let _asking = Asking::new(self);
        let seen = self.begun.load(Ordering::SeqCst);
        let _turn = self.turn.lock().await;
        if let Some(last) = self.last().as_ref().filter(|last| last.number > seen) {
            let failed = |message: &String| Error::Unavailable { message: message.clone(), source: None };
            return last.found.as_ref().map(Arc::clone).map_err(failed);
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let found = read().await.map(Arc::new);
        let told = match &found {
            Ok(found) => Some(Ok(Arc::clone(found))),
            // Whoever waited as long need not wait for the same again.
            Err(Error::Unavailable { message, .. }) => Some(Err(message.clone())),
            Err(_) => None,
        };
        *self.last() = told.map(|found| Last { number, found });
        found
    }

    fn last(&self) -> MutexGuard<'_, Option<Last<T>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who asks. With the last one what was found is let go of.
struct Asking<'a, T>(&'a Together<T>);

impl<'a, T> Asking<'a, T> {
    fn new(together: &'a Together<T>) -> Self {
        together.asking.fetch_add(1, Ordering::SeqCst);
        Self(together)
    }
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        if self.0.asking.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.0.last() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_meanwhile_share_the_next_read() {
        let (together, reads, gate) = (Together::default(), AtomicU64::new(0), Semaphore::new(0));
        let read = async || {
            let number = reads.fetch_add(1, Ordering::SeqCst) + 1;
            gate.acquire().await.map_err(|_| Error::Closed)?.forget();
            Ok(number)
        };
        let first = together.ask(read);
        tokio::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        let others = join_all((0..400).map(|_| together.ask(read)));
        tokio::pin!(others);
        assert!(futures_util::poll!(&mut others).is_pending());
        gate.add_permits(2);
        let (first, others) = tokio::join!(first, others);
        assert_eq!(*first.unwrap(), 1);
        assert!(others.into_iter().all(|other| *other.unwrap() == 2), "not what was read before they asked");
        assert!(together.last().is_none(), "nobody asks any more");
        gate.add_permits(1);
        assert_eq!(*together.ask(read).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_and_not_remembered() {
        let (together, reads) = (Together::<u64>::default(), AtomicU64::new(0));
        let gate = Semaphore::new(0);
        let read = async || {
            reads.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.map_err(|_| Error::Closed)?.forget();
            Err(Error::Unavailable { message: "away".to_owned(), source: None })
        };
        let first = together.ask(read);
        tokio::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        let others = join_all((0..20).map(|_| together.ask(read)));
        tokio::pin!(others);
        assert!(futures_util::poll!(&mut others).is_pending());
        gate.add_permits(2);
        let (first, others) = tokio::join!(first, others);
        assert!(first.is_err() && others.iter().all(Result::is_err));
        assert_eq!(reads.load(Ordering::SeqCst), 2);
        assert_eq!(*together.ask(async || Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn whoever_leaves_does_not_hold_up_the_others() {
        let together = Together::default();
        let mut gone = Box::pin(together.ask(async || std::future::pending::<Result<u64>>().await));
        assert!(futures_util::poll!(&mut gone).is_pending());
        let other = together.ask(async || Ok(2));
        tokio::pin!(other);
        assert!(futures_util::poll!(&mut other).is_pending());
        drop(gone);
        assert_eq!(*other.await.unwrap(), 2);
    }
}
