//! Pending, running and finished prompts: every move is one step under one lock and tells all sockets.

use super::heap;
use crate::hub::{Hub, Outgoing};
use crate::json::{Dict, Json, dict, list};
use indexmap::IndexMap;
use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One more than this many entries are kept, then the oldest goes.
const HISTORY_LIMIT: usize = 10_000;

/// One submitted prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// Priority: an int from the counter or the float of the client.
    pub(super) number: Json,
    /// The prompt id.
    pub(super) id: String,
    /// The graph after validation.
    pub(super) prompt: Json,
    /// What came along, with `client_id` and `create_time`.
    pub(super) extra_data: Dict,
    /// The output nodes to execute.
    pub(super) outputs: Vec<String>,
    /// Secrets that were taken out of `extra_data`.
    pub(super) sensitive: Dict,
    /// Digest of the graph before validation changed it, for the statistics.
    pub(super) digest: String,
    /// When the submission was read, for the statistics.
    pub(super) received_us: u64,
}

impl Item {
    /// The five elements that `/queue` and `/history` show.
    pub(super) fn shown(&self) -> Json {
        Json::List(vec![
            self.number.clone(),
            Json::from(&self.id),
            self.prompt.clone(),
            Json::Dict(self.extra_data.clone()),
            list(self.outputs.iter()),
        ])
    }
}

/// Two prompts with the same number and id differ in an object, and objects have no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incomparable;

/// Python's `<` of two tuples: the first elements that differ decide.
fn earlier(left: &Arc<Item>, right: &Arc<Item>) -> Result<bool, Incomparable> {
    if !left.number.python_eq(&right.number) {
        return Ok(left.number.compare_numbers(&right.number) == Some(Ordering::Less));
    }
    if left.id != right.id {
        return Ok(left.id < right.id);
    }
    let same = |l: &Dict, r: &Dict| Json::Dict(l.clone()).python_eq(&Json::Dict(r.clone()));
    if !left.prompt.python_eq(&right.prompt) || !same(&left.extra_data, &right.extra_data) {
        return Err(Incomparable);
    }
    if left.outputs != right.outputs {
        return Ok(left.outputs < right.outputs);
    }
    if same(&left.sensitive, &right.sensitive) { Ok(false) } else { Err(Incomparable) }
}

/// One entry of the history.
#[derive(Debug, Clone)]
pub(super) struct Finished {
    pub(super) item: Arc<Item>,
    pub(super) outputs: Json,
    pub(super) meta: Json,
    pub(super) status: Json,
    /// False if a node reported something that JSON cannot hold.
    pub(super) serializable: bool,
}

impl Finished {
    pub(super) fn shown(&self) -> Json {
        dict([
            ("prompt", self.item.shown()),
            ("outputs", self.outputs.clone()),
            ("status", self.status.clone()),
            ("meta", self.meta.clone()),
        ])
    }
}

/// What `/free` asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) unload_models: bool,
    pub(super) free_memory: bool,
}

/// What the worker finds when it asks for work.
pub(super) enum Taken {
    /// A prompt, and the number under which it runs.
    Prompt(u64, Arc<Item>),
    /// Nothing but flags to look at.
    Woken,
    /// The comparison failed while taking: the worker thread ends here.
    Broken,
}

/// What stands where at one moment.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pending: Vec<Arc<Item>>,
    pub(super) running: IndexMap<u64, Arc<Item>>,
    pub(super) history: IndexMap<String, Arc<Finished>>,
    taken: u64,
    flags: Flags,
}

impl State {
    pub(super) fn remaining(&self) -> usize {
        self.pending.len() + self.running.len()
    }
}

/// The queue itself.
pub(super) struct PromptQueue {
    state: Mutex<State>,
    changed: Notify,
    hub: Arc<dyn Hub>,
}

impl PromptQueue {
    pub(super) fn new(hub: Arc<dyn Hub>) -> PromptQueue {
        PromptQueue { state: Mutex::default(), changed: Notify::new(), hub }
    }

    /// A look under the lock. Keep it short: submissions and the worker wait meanwhile.
    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, state: &State) {
        let info = dict([("exec_info", dict([("queue_remaining", state.remaining().into())]))]);
        self.hub.send(Outgoing::Text { event: "status", data: dict([("status", info)]) }, None);
    }

    /// Adds a prompt. On failure it is pending nevertheless, but nobody is told.
    pub(super) fn put(&self, item: Item) -> Result<(), Incomparable> {
        let mut state = self.look();
        heap::push(&mut state.pending, Arc::new(item), &earlier)?;
        self.tell(&state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a prompt or a flag.
    pub(super) async fn take(&self) -> Taken {
        loop {
            // Asked for before looking, so that nothing that comes in between is slept through.
            let changed = self.changed.notified();
            {
                let mut state = self.look();
                if !state.pending.is_empty() {
                    let Ok(Some(item)) = heap::pop(&mut state.pending, &earlier) else {
                        return Taken::Broken;
                    };
                    let number = state.taken;
                    state.taken += 1;
                    state.running.insert(number, item.clone());
                    self.tell(&state);
                    return Taken::Prompt(number, item);
                }
                if state.flags != Flags::default() {
                    return Taken::Woken;
                }
            }
            changed.await;
        }
    }

    /// Moves a prompt from running to the history.
    pub(super) fn done(&self, number: u64, finished: Finished) {
        let mut state = self.look();
        state.running.shift_remove(&number);
        if state.history.len() > HISTORY_LIMIT {
            state.history.shift_remove_index(0);
        }
        state.history.insert(finished.item.id.clone(), Arc::new(finished));
        self.tell(&state);
    }

    /// Forgets everything that is pending.
    pub(super) fn clear_pending(&self) {
        let mut state = self.look();
        state.pending.clear();
        self.tell(&state);
    }

    /// Forgets the first pending prompt with that id.
    pub(super) fn delete_pending(&self, id: &str) -> Result<(), Incomparable> {
        let mut state = self.look();
        let Some(at) = state.pending.iter().position(|item| item.id == id) else {
            return Ok(());
        };
        let last_one = state.pending.len() == 1;
        state.pending.remove(at);
        heap::heapify(&mut state.pending, &earlier)?;
        self.tell(&state);
        if last_one {
            // ComfyUI empties the queue through its own clearing, which tells the sockets as well.
            self.tell(&state);
        }
        Ok(())
    }

    /// Sets flags for the worker, which looks at them when no prompt runs.
    pub(super) fn set_flags(&self, flags: Flags) {
        let mut state = self.look();
        state.flags.unload_models |= flags.unload_models;
        state.flags.free_memory |= flags.free_memory;
        self.changed.notify_one();
    }

    /// Takes the flags away.
    pub(super) fn take_flags(&self) -> Flags {
        std::mem::take(&mut self.look().flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<usize>);

    impl Hub for Told {
        fn send(&self, _message: Outgoing, _to: Option<&str>) {
            *self.0.lock().unwrap() += 1;
        }

        fn supports_preview_metadata(&self, _client: Option<&str>) -> bool {
            false
        }
    }

    fn item(number: Json, id: &str, text: &str) -> Item {
        Item {
            number,
            id: id.into(),
            prompt: Json::from(text),
            extra_data: Dict::new(),
            outputs: vec![],
            sensitive: Dict::new(),
            digest: String::new(),
            received_us: 0,
        }
    }

    fn order(queue: &PromptQueue) -> Vec<String> {
        queue.look().pending.iter().map(|item| item.id.clone()).collect()
    }

    #[tokio::test]
    async fn lowest_number_first_then_the_id_and_nan_where_it_came() {
        let queue = PromptQueue::new(Arc::new(Told::default()));
        for (number, id) in
            [(Json::Int(2), "c"), (Json::Float(2.0), "b"), (Json::Int(-1), "z"), (Json::Float(0.5), "a")]
        {
            queue.put(item(number, id, id)).unwrap();
        }
        let mut taken = Vec::new();
        while queue.look().remaining() > taken.len() {
            if let Taken::Prompt(_, item) = queue.take().await {
                taken.push(item.id.clone());
            }
        }
        assert_eq!(taken, ["z", "a", "b", "c"]);
        for id in ["n1", "n2", "n3"] {
            queue.put(item(Json::Float(f64::NAN), id, id)).unwrap();
        }
        assert_eq!(order(&queue), ["n1", "n2", "n3"]);
    }

    #[tokio::test]
    async fn equal_number_and_id_is_queued_with_a_failure_and_breaks_the_taking() {
        let told = Arc::new(Told::default());
        let queue = PromptQueue::new(told.clone());
        queue.put(item(Json::Float(50.0), "same", "dup 0")).unwrap();
        for text in ["dup 1", "dup 2", "dup 3", "dup 4"] {
            assert_eq!(queue.put(item(Json::Float(50.0), "same", text)), Err(Incomparable));
        }
        assert_eq!(*told.0.lock().unwrap(), 1);
        assert!(matches!(queue.take().await, Taken::Broken));
        assert_eq!(queue.look().pending.len(), 4);
        assert!(queue.look().running.is_empty());
    }

    #[test]
    fn the_same_submission_twice_is_comparable() {
        let queue = PromptQueue::new(Arc::new(Told::default()));
        queue.put(item(Json::Int(1), "same", "x")).unwrap();
        assert_eq!(queue.put(item(Json::Int(1), "same", "x")), Ok(()));
    }

    #[test]
    fn deleting_the_last_pending_prompt_tells_twice() {
        let told = Arc::new(Told::default());
        let queue = PromptQueue::new(told.clone());
        queue.put(item(Json::Int(1), "a", "a")).unwrap();
        queue.delete_pending("unknown").unwrap();
        assert_eq!(*told.0.lock().unwrap(), 1);
        queue.delete_pending("a").unwrap();
        assert_eq!(*told.0.lock().unwrap(), 3);
    }
}
