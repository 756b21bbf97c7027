//! The handle the routes hold, and the worker behind it.

use super::{Answer, Dirs, ExecutionFaults};
use crate::config::SimConfig;
use crate::hub::Hub;
use crate::json::{Json, dict, list};
use crate::stats::Executions;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// One ComfyUI behind its routes. Methods never block longer than a look at a folder.
pub(crate) struct Engine {
    process_end: CancellationToken,
}

impl Engine {
    /// Makes the engine and its worker. The caller spawns the worker; it runs until [`Engine::stop`].
    pub(crate) fn start(
        _config: Arc<SimConfig>,
        _dirs: Dirs,
        _hub: Arc<dyn Hub>,
        _faults: Arc<dyn ExecutionFaults>,
        _executions: Arc<Executions>,
    ) -> (Arc<Engine>, impl Future<Output = ()> + Send + 'static) {
        let engine = Arc::new(Engine {
            process_end: CancellationToken::new(),
        });
        (engine, async {})
    }

    /// Ends the worker at its next wait, wherever it is.
    pub(crate) fn stop(&self) {}

    /// Cancelled when a node ended the whole process (a crash): the simulator then drops everything.
    pub(crate) fn process_end(&self) -> CancellationToken {
        self.process_end.clone()
    }

    /// The number in `exec_info.queue_remaining`.
    pub(crate) fn queue_remaining(&self) -> usize {
        0
    }

    /// The node that runs now, if its prompt belongs to that client: the second frame of a new socket.
    pub(crate) fn running_node_of(&self, _client_id: &str) -> Option<String> {
        None
    }

    /// `POST /prompt`, after the body was read as JSON.
    pub(crate) fn submit(&self, _body: &Json) -> Answer {
        Answer::Trouble
    }

    /// `GET /prompt`.
    pub(crate) fn prompt_info(&self) -> Answer {
        Answer::Json(
            200,
            dict([(
                "exec_info",
                dict([("queue_remaining", self.queue_remaining().into())]),
            )]),
        )
    }

    /// `GET /queue`.
    pub(crate) fn queue(&self) -> Answer {
        Answer::Json(
            200,
            dict([
                ("queue_running", list::<Json>([])),
                ("queue_pending", list::<Json>([])),
            ]),
        )
    }

    /// `POST /queue`.
    pub(crate) fn post_queue(&self, _body: &Json) -> Answer {
        Answer::Empty(200)
    }

    /// `POST /interrupt`; `None` for no body or one that is not JSON.
    pub(crate) fn interrupt(&self, _body: Option<&Json>) -> Answer {
        Answer::Empty(200)
    }

    /// `GET /history`, with the query's values as they came.
    pub(crate) fn history(&self, _max_items: Option<&str>, _offset: Option<&str>) -> Answer {
        Answer::Json(200, Json::empty_dict())
    }

    /// `GET /history/{id}`.
    pub(crate) fn history_one(&self, _prompt_id: &str) -> Answer {
        Answer::Json(200, Json::empty_dict())
    }

    /// `POST /history`.
    pub(crate) fn post_history(&self, _body: &Json) -> Answer {
        Answer::Empty(200)
    }

    /// `GET /api/jobs`, with the decoded pairs of the query. Absent before 0.6.0: do not route to it.
    pub(crate) fn jobs(&self, _query: &[(String, String)]) -> Answer {
        Answer::Trouble
    }

    /// `GET /api/jobs/{id}`.
    pub(crate) fn job(&self, _prompt_id: &str) -> Answer {
        Answer::Trouble
    }

    /// `POST /free`.
    pub(crate) fn free(&self, _body: &Json) -> Answer {
        Answer::Empty(200)
    }

    /// `GET /object_info` and `GET /object_info/{class}`.
    pub(crate) fn object_info(&self, _class: Option<&str>) -> Answer {
        Answer::Json(200, Json::empty_dict())
    }
}
