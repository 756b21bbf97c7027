//! `/interrupt` and `/free`.

use axum::extract::State;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use remuda_core::Status;
use remuda_store::OriginOrder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::list::of;
use super::queue::{cancel, done};
use super::request::is_true;
use super::{NativeError, find};
use crate::access::{AdminCaller, SubmitCaller};
use crate::error::ApiError;
use crate::extract::SmallBody;
use crate::service;
use crate::state::AppState;

/// How many running prompts are looked at to find the one that runs longest.
const MOST_RUNNING: u32 = 1000;

/// How many workers are told at once.
const AT_ONCE: usize = 16;

/// The longest body: it says little.
const LONGEST: usize = 64 << 10;

/// What is to stop.
#[derive(Debug, Default, Deserialize)]
struct Interrupt<'a> {
    #[serde(borrow, default)]
    prompt_id: Option<&'a RawValue>,
}

/// What is to be freed.
#[derive(Debug, Default, Deserialize)]
struct Free<'a> {
    #[serde(borrow, default)]
    unload_models: Option<&'a RawValue>,
    #[serde(borrow, default)]
    free_memory: Option<&'a RawValue>,
}

fn short(body: &[u8]) -> Result<(), NativeError> {
    if body.len() > LONGEST {
        return Err(ApiError::too_large("the body", LONGEST as u64).into());
    }
    Ok(())
}

/// `POST /interrupt`: stops the prompt that is named, if it runs; without a name the one of this tenant that runs longest.
/// Nobody else's.
pub(super) async fn interrupt(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    SmallBody(body): SmallBody,
) -> Result<Response, NativeError> {
    // What is not JSON counts as nothing, as it always did.
    short(&body)?;
    let body: Interrupt<'_> = serde_json::from_slice(&body).unwrap_or_default();
    let named = body.prompt_id.filter(|id| is_true(id));
    let task = match named {
        Some(id) => match serde_json::from_str::<String>(id.get()) {
            Ok(id) => find(&state, &caller.tenant, &id).await?,
            Err(_) => None,
        },
        None => {
            let query = of(&caller.tenant, &[Status::Running], OriginOrder::OldestFirst, MOST_RUNNING);
            let running = service::list_origin(&state, &query).await?.tasks;
            let uncalled = running.into_iter().filter(|task| task.cancel_at.is_none());
            uncalled.min_by_key(|task| (task.started_at, task.id))
        }
    };
    if let Some(task) = task.filter(|task| task.status == Status::Running) {
        cancel(&state, &caller, task).await?;
    }
    Ok(done())
}

/// `POST /free`: tells the workers that this process drives to unload models, or also to forget results.
pub(super) async fn free(
    State(state): State<AppState>,
    _: AdminCaller,
    SmallBody(body): SmallBody,
) -> Result<Response, NativeError> {
    short(&body)?;
    let wish: Free<'_> = serde_json::from_slice(&body).map_err(|error| {
        NativeError::refused("invalid_request", "The request cannot be read", error.to_string())
    })?;
    let unload = wish.unload_models.is_some_and(is_true);
    let forget = wish.free_memory.is_some_and(is_true);
    let workers = state.catalogue.ask.driven(&*state.store).await?;
    let state = &state;
    let told = stream::iter(workers).map(|worker| async move {
        if let Err(error) = state.catalogue.ask.free(&worker, unload, forget).await {
            tracing::warn!(worker = %worker.id, %error, "a worker could not be told to free its memory");
        }
    });
    told.buffer_unordered(AT_ONCE).collect::<()>().await;
    Ok(done())
}
