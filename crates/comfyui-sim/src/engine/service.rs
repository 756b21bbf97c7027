//! The handle the routes hold, and the worker behind it.

use super::client::Client;
use super::convert::int_of_text;
use super::queue::{Flags, PromptQueue};
use super::validate::{Trouble, contains};
use super::{Answer, Dirs, ExecutionFaults, jobs, submit, worker};
use crate::config::{Profile, SimConfig};
use crate::hub::Hub;
use crate::json::{Json, dict, list};
use crate::nodes::Registry;
use crate::stats::Executions;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// Whose prompt runs, and at which node it is.
#[derive(Debug)]
struct Serving {
    client: Client,
    node: Option<String>,
}

/// One ComfyUI behind its routes. Methods never block longer than a look at a folder.
pub(crate) struct Engine {
    pub(super) config: Arc<SimConfig>,
    pub(super) dirs: Dirs,
    pub(super) hub: Arc<dyn Hub>,
    pub(super) faults: Arc<dyn ExecutionFaults>,
    pub(super) executions: Arc<Executions>,
    pub(super) registry: Registry,
    pub(super) queue: PromptQueue,
    /// Set by /interrupt, looked at before each node and at each step.
    pub(super) interrupt: Arc<AtomicBool>,
    /// The number of the next prompt without one.
    pub(super) counter: AtomicI64,
    pub(super) process_end: CancellationToken,
    serving: Mutex<Serving>,
    stop: CancellationToken,
}

impl Engine {
    /// Makes the engine and its worker. The caller spawns the worker; it runs until [`Engine::stop`].
    pub(crate) fn start(
        config: Arc<SimConfig>,
        dirs: Dirs,
        hub: Arc<dyn Hub>,
        faults: Arc<dyn ExecutionFaults>,
        executions: Arc<Executions>,
    ) -> (Arc<Engine>, impl Future<Output = ()> + Send + 'static) {
        let engine = Arc::new(Engine {
            registry: Registry::new(config.clone(), &dirs),
            queue: PromptQueue::new(hub.clone()),
            config,
            dirs,
            hub,
            faults,
            executions,
            interrupt: Arc::default(),
            counter: AtomicI64::new(0),
            process_end: CancellationToken::new(),
            serving: Mutex::new(Serving { client: Client::Nobody, node: None }),
            stop: CancellationToken::new(),
        });
        let work = {
            let engine = engine.clone();
            async move {
                let stop = engine.stop.clone();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = worker::work(engine) => {}
                }
            }
        };
        (engine, work)
    }

    /// Ends the worker at its next wait, wherever it is.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Cancelled when a node ended the whole process (a crash): the simulator then drops everything.
    pub(crate) fn process_end(&self) -> CancellationToken {
        self.process_end.clone()
    }

    pub(super) fn now_serving(&self, client: Client) {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).client = client;
    }

    pub(super) fn now_executing(&self, node: Option<String>) {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).node = node;
    }

    /// The number in `exec_info.queue_remaining`.
    pub(crate) fn queue_remaining(&self) -> usize {
        self.queue.look().remaining()
    }

    /// The node that runs now, if its prompt belongs to that client: the second frame of a new socket.
    pub(crate) fn running_node_of(&self, client_id: &str) -> Option<String> {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.node.clone().filter(|_| serving.client.name() == Some(client_id))
    }

    /// `POST /prompt`, after the body was read as JSON.
    pub(crate) fn submit(&self, body: &Json) -> Answer {
        submit::submit(self, body)
    }

    /// `GET /prompt`.
    pub(crate) fn prompt_info(&self) -> Answer {
        Answer::Json(200, dict([("exec_info", dict([("queue_remaining", self.queue_remaining().into())]))]))
    }

    /// `GET /queue`.
    pub(crate) fn queue(&self) -> Answer {
        let (running, pending) = {
            let state = self.queue.look();
            (state.running.values().cloned().collect::<Vec<_>>(), state.pending.clone())
        };
        Answer::Json(
            200,
            dict([
                ("queue_running", list(running.iter().map(|item| item.shown()))),
                ("queue_pending", list(pending.iter().map(|item| item.shown()))),
            ]),
        )
    }

    /// `POST /queue`.
    pub(crate) fn post_queue(&self, body: &Json) -> Answer {
        clear_and_delete(
            body,
            || self.queue.clear_pending(),
            |id| match id {
                Json::Str(id) => self.queue.delete_pending(id).map_err(|_| Trouble),
                _ => Ok(()),
            },
        )
    }

    /// `POST /interrupt`; `None` for no body or one that is not JSON.
    pub(crate) fn interrupt(&self, body: Option<&Json>) -> Answer {
        if self.config.profile >= Profile::V0_3_64
            && let Some(body) = body
        {
            let Json::Dict(body) = body else {
                return Answer::Trouble;
            };
            if let Some(id) = body.get("prompt_id").filter(|id| id.is_truthy()) {
                let runs = self.queue.look().running.values().any(|item| id.as_str() == Some(&item.id));
                if !runs {
                    return Answer::Empty(200);
                }
            }
        }
        self.interrupt.store(true, Ordering::SeqCst);
        Answer::Empty(200)
    }

    /// `GET /history`, with the query's values as they came.
    pub(crate) fn history(&self, max_items: Option<&str>, offset: Option<&str>) -> Answer {
        let number = |text: Option<&str>| match text.map(int_of_text) {
            None => Ok(None),
            Some(Some(number)) => Ok(number.as_f64().map(|number| number as i64)),
            Some(None) => Err(Trouble),
        };
        let offset = offset.filter(|_| self.config.profile >= Profile::V0_3_64);
        let (Ok(most), Ok(offset)) = (number(max_items), number(offset)) else {
            return Answer::Trouble;
        };
        let entries: Vec<_> = {
            let state = self.queue.look();
            state.history.iter().map(|(id, finished)| (id.clone(), finished.clone())).collect()
        };
        let from = match (offset.unwrap_or(-1), most) {
            (..0, Some(most)) => (entries.len() as i64).saturating_sub(most),
            (offset, _) => offset,
        };
        let mut shown = crate::json::Dict::new();
        for (index, (id, finished)) in entries.into_iter().enumerate() {
            if (index as i64) < from {
                continue;
            }
            if !finished.serializable {
                return Answer::Trouble;
            }
            shown.insert(id, finished.shown());
            if most.is_some_and(|most| shown.len() as i64 >= most) {
                break;
            }
        }
        Answer::Json(200, Json::Dict(shown))
    }

    /// `GET /history/{id}`.
    pub(crate) fn history_one(&self, prompt_id: &str) -> Answer {
        let found = self.queue.look().history.get(prompt_id).cloned();
        match found {
            None => Answer::Json(200, Json::empty_dict()),
            Some(finished) if !finished.serializable => Answer::Trouble,
            Some(finished) => Answer::Json(200, dict([(prompt_id, finished.shown())])),
        }
    }

    /// `POST /history`.
    pub(crate) fn post_history(&self, body: &Json) -> Answer {
        clear_and_delete(
            body,
            || self.queue.look().history.clear(),
            |id| match id {
                Json::List(_) | Json::Dict(_) => Err(Trouble),
                Json::Str(id) => {
                    self.queue.look().history.shift_remove(id);
                    Ok(())
                }
                _ => Ok(()),
            },
        )
    }

    /// `GET /api/jobs`, with the decoded pairs of the query. Absent before 0.6.0: do not route to it.
    pub(crate) fn jobs(&self, query: &[(String, String)]) -> Answer {
        jobs::list(&self.queue, query)
    }

    /// `GET /api/jobs/{id}`.
    pub(crate) fn job(&self, prompt_id: &str) -> Answer {
        jobs::one(&self.queue, prompt_id)
    }

    /// `POST /free`.
    pub(crate) fn free(&self, body: &Json) -> Answer {
        let Json::Dict(body) = body else {
            return Answer::Trouble;
        };
        let wanted = |name: &str| body.get(name).is_some_and(Json::is_truthy);
        let flags = Flags { unload_models: wanted("unload_models"), free_memory: wanted("free_memory") };
        if flags != Flags::default() {
            self.queue.set_flags(flags);
        }
        Answer::Empty(200)
    }

    /// `GET /object_info` and `GET /object_info/{class}`.
    pub(crate) fn object_info(&self, class: Option<&str>) -> Answer {
        Answer::Json(200, self.registry.object_info(class))
    }
}

/// The body of `POST /queue` and `POST /history`: `clear` first, then everything under `delete`.
fn clear_and_delete(
    body: &Json,
    clear: impl FnOnce(),
    delete: impl Fn(&Json) -> Result<(), Trouble>,
) -> Answer {
    let act = || -> Result<(), Trouble> {
        if contains(body, "clear")? && body.get("clear").ok_or(Trouble)?.is_truthy() {
            clear();
        }
        if contains(body, "delete")? {
            match body.get("delete").ok_or(Trouble)? {
                Json::List(ids) => ids.iter().try_for_each(&delete)?,
                Json::Str(text) => {
                    text.chars().try_for_each(|letter| delete(&Json::Str(letter.to_string())))?;
                }
                Json::Dict(members) => members.keys().try_for_each(|id| delete(&Json::from(id)))?,
                _ => return Err(Trouble),
            }
        }
        Ok(())
    };
    act().map_or(Answer::Trouble, |()| Answer::Empty(200))
}
