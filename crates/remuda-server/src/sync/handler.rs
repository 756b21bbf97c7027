//! The handler itself.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use remuda_core::{Status, Task, Timestamp};
use tokio::time::Instant;

use super::accept::Accept;
use super::answer::{self, Form, PromptResult};
use super::error::{SyncError, SyncErrorBody};
use super::guard::Guard;
use super::request::{self, PromptSync, Query, Wanted};
use super::wait::{self, Waited};
use crate::access::SubmitCaller;
use crate::extract::{ApiQuery, read_body_with};
use crate::native::names;
use crate::native::prompts::{self, Accepted};
use crate::service;
use crate::share::Visit;
use crate::state::AppState;

/// How much later than the request's own time the stored deadline is: it is for a gateway that died, and a living one
/// cancels first.
const GRACE: Duration = Duration::from_secs(2);

/// Run a prompt and wait for its end.
///
/// The answer comes when the render has ended. `images` lists every file with its address, or with the file itself as
/// base64. With `Accept: image/png` (or `image/*`, `video/*`, `audio/*`) the answer is the bytes of the first such file.
///
/// When a client hangs up, or its time is over, its prompt is cancelled, also at ComfyUI, unless it said
/// `on_disconnect=keep`. Then the prompt goes on, and the answer after the timeout is 202 with the `prompt_id` to ask for
/// later.
#[utoipa::path(
    post, path = "/prompt_sync", tag = "synchronous",
    params(
        Query,
        ("Accept" = Option<String>, Header, description = "`application/json` (when absent), or the media types of the file that you want."),
    ),
    request_body = PromptSync,
    responses(
        (status = 200, description = "What the prompt left, or the file that `Accept` asks for", body = PromptResult),
        (status = 202, description = "The time is over, and the prompt goes on because you said `keep`"),
        (status = 400, description = "ComfyUI refused the graph, or its execution failed", body = SyncErrorBody),
        (status = 406, description = "The prompt left nothing that `Accept` wants", body = SyncErrorBody),
        (status = 408, description = "The time is over; the prompt is cancelled", body = SyncErrorBody),
        (status = 409, description = "The `prompt_id` was used for another body", body = SyncErrorBody),
        (status = 413, description = "The body is too large", body = SyncErrorBody),
        (status = 422, description = "The request is malformed", body = SyncErrorBody),
        (status = 429, description = "Your share is used up, or the tenant has reached a limit: `limit` names it", body = SyncErrorBody),
        (status = 500, description = "Something went wrong inside the server", body = SyncErrorBody),
        (status = 503, description = "No ComfyUI is usable, the store does not answer, or the server is busy; see `Retry-After`", body = SyncErrorBody),
    ),
)]
pub(super) async fn prompt_sync(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    ApiQuery(query): ApiQuery<Query>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, SyncError> {
    let (received, clock) = (Instant::now(), Timestamp::now());
    let permit = state.permits.sync()?;
    let (most, time) = (state.limits.body, state.limits.body_time);
    let (bytes, reading) = read_body_with(&headers, body, most, time, state.permits.submission()).await?;
    let (size, options) = (bytes.len(), state.sync.clone());
    let read = move || request::read(&bytes, &query, &options);
    let Wanted { mut prompt, base64, mut keep, timeout } =
        state.compute_admitted("reading a prompt", &caller.tenant, &reading, size, read).await??;
    let until = received + timeout;
    let form = Form { accept: Accept::of(&headers), base64 };
    prompt.deadline = if keep { None } else { clock.checked_add(timeout + GRACE).ok() };

    // Before the submission: nothing that happens to the task may be missed.
    let mut guard = Guard::new(&state, prompt.task, !keep);
    let mut follow = state.changes.follow(prompt.task);
    let accepted = prompts::submit(&state, &caller, prompt, reading).await;
    let Accepted { seen, before, node_errors, .. } = match accepted.map_err(SyncError::from) {
        Ok(accepted) => accepted,
        Err(error) => {
            if error.is_refusal() {
                guard.disarm();
            }
            return Err(error);
        }
    };
    if before {
        // Somebody else may wait for it; who asks again only looks.
        guard.disarm();
        keep = true;
        follow = state.changes.follow_late(seen.task.id);
    }

    let prompt_id = names::prompt_id(&seen.task);
    let named = |error: SyncError| error.prompt_id(prompt_id.as_str());
    let patience = (!keep).then_some(state.sync.patience);
    let waited = wait::for_end(&state, seen, &mut follow, until, patience).await;
    let seen = match waited.map_err(|error| named(error.into()))? {
        Waited::Ended(seen) => {
            guard.disarm();
            seen
        }
        Waited::Stopping(_) => {
            // Its deadline is stored with it.
            guard.disarm();
            return Err(named(SyncError::stopping()));
        }
        Waited::TimeOver(seen) | Waited::NobodyThere(seen) if keep => {
            let detail = format!("the prompt goes on after {} s; ask for it later", timeout.as_secs_f64());
            return Ok(answer::later(&seen.task, &detail));
        }
        Waited::NobodyThere(seen) => {
            let seen =
                wait::cancel(&state, seen.task.id, &mut follow).await.map_err(|error| named(error.into()))?;
            guard.disarm();
            if seen.task.status != Status::Completed {
                let detail =
                    "no worker is usable: /health and /api/v1/workers say why; the prompt is cancelled";
                return Err(named(SyncError::connection(detail)));
            }
            seen
        }
        Waited::TimeOver(seen) => {
            let seen =
                wait::cancel(&state, seen.task.id, &mut follow).await.map_err(|error| named(error.into()))?;
            guard.disarm();
            // It may have ended well at the last moment.
            if seen.task.status != Status::Completed {
                return Err(named(SyncError::timeout(over(&seen.task, timeout))));
            }
            seen
        }
    };
    match seen.task.status {
        Status::Completed => {
            answer::success(&state, seen, node_errors, received.elapsed(), &form, permit).await
        }
        Status::Failed => {
            let whole = service::whole(&state, &Visit::guest(), seen).await;
            let (task, _counted) = whole.map_err(|error| named(error.into()))?;
            let left = answer::left(&state, &task).await.map_err(|error| named(error.into()))?;
            Err(named(SyncError::failed(task.error.as_ref()).left(left)))
        }
        _ => Err(named(SyncError::cancelled())),
    }
}

/// What became of a prompt whose time was over.
fn over(task: &Task, timeout: Duration) -> String {
    let what = if task.status.is_terminal() {
        "it is cancelled"
    } else {
        "it was told to stop, and stops after the node that runs now"
    };
    format!("the prompt was not done after {} s; {what}", timeout.as_secs_f64())
}
