//! What is remembered of tasks that are under way: for as long as they are.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_core::WorkerId;
use tokio::time::Instant;
use uuid::Uuid;

use crate::log::TaskLog;
use crate::reporting::Unheard;

/// No more tasks than this are remembered. The one that was begun first goes first: it loses its log and nothing else.
const MOST: usize = 4096;

/// What is remembered of a task.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) log: TaskLog,
    /// The prompt's id, and the ComfyUI that has it.
    pub(crate) begun: Option<(Uuid, WorkerId)>,
    /// Since when this process has had it in hand.
    pub(crate) since: Option<Instant>,
    /// How many checkpoints this process has left.
    pub(crate) stored: i32,
    /// How often that was tried.
    pub(crate) tries: u32,
    /// What an earlier attempt has left was asked for.
    pub(crate) asked: bool,
    /// How often its report was not heard.
    pub(crate) unheard: Unheard,
}

/// The notes of all tasks.
#[derive(Debug, Default)]
pub(crate) struct NoteBook {
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Numbers tasks in the order in which they came.
    next: u64,
    notes: HashMap<String, (u64, Notes)>,
}

impl NoteBook {
    /// Reads or changes the notes of a task; new ones, if there are none.
    pub(crate) fn of<T>(&self, key: &str, change: impl FnOnce(&mut Notes) -> T) -> T {
        let mut pages = self.pages();
        if !pages.notes.contains_key(key) && pages.notes.len() >= MOST {
            let first = pages.notes.iter().min_by_key(|(_, (number, _))| *number).map(|(key, _)| key.clone());
            first.and_then(|first| pages.notes.remove(&first));
        }
        pages.next += 1;
        let number = pages.next;
        change(&mut pages.notes.entry(key.to_owned()).or_insert_with(|| (number, Notes::default())).1)
    }

    /// Nothing is left of a task.
    pub(crate) fn drop(&self, key: &str) {
        self.pages().notes.remove(key);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(book: &NoteBook) -> usize {
        book.pages().notes.len()
    }

    fn stored(book: &NoteBook, key: &str) -> i32 {
        book.of(key, |notes| notes.stored)
    }

    #[test]
    fn the_oldest_goes_first() {
        let book = NoteBook::default();
        for n in 0..MOST {
            book.of(&format!("task-{n}"), |notes| notes.stored = 1);
        }
        // What is written later makes it no younger.
        book.of("task-0", |notes| notes.stored = 1);
        for n in 0..10 {
            book.of(&format!("new-{n}"), |notes| notes.stored = 1);
        }
        assert_eq!(keys(&book), MOST);
        let kept = |n: usize| book.pages().notes.contains_key(&format!("task-{n}"));
        assert!((0..10).all(|n| !kept(n)) && (10..MOST).all(kept));
    }

    #[test]
    fn what_is_gone_is_gone() {
        let book = NoteBook::default();
        book.of("task", |notes| notes.stored = 1);
        assert_eq!(stored(&book, "task"), 1);
        book.drop("task");
        assert_eq!(keys(&book), 0);
        assert_eq!(stored(&book, "task"), 0);
    }
}
