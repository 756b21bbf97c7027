//! Who asks, what it said, and whether it still may.

use axum::extract::{FromRequest, FromRequestParts, Request};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use remuda_core::{KeyId, Lease, LeaseRef, OwnerId, TaskId, Tenant};
use remuda_pool::Work;
use remuda_sidecar as sidecar;
use remuda_store::Error as StoreError;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::bounds;
use crate::access::{Caller, WorkerCaller};
use crate::compute::held;
use crate::error::{ApiError, ApiResult};
use crate::extract::{read_body, read_json_of};
use crate::state::AppState;

/// A process elsewhere that drives workers. Its key has the scope `worker`.
#[derive(Debug, Clone)]
pub(super) struct Sidecar {
    /// Who it is here: made of its key and the id that it tells.
    pub(super) owner: OwnerId,
    /// The id that it tells.
    told: OwnerId,
    /// Its key; all zeros before there are keys.
    pub(super) key: KeyId,
    /// Whose key that is.
    pub(super) tenant: Tenant,
}

impl FromRequestParts<AppState> for Sidecar {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let WorkerCaller(caller) = WorkerCaller::from_request_parts(parts, state).await?;
        let told = owner(&parts.headers)?;
        let key = caller.key_id().unwrap_or(KeyId(Uuid::nil()));
        let owner = state.live.owners.of(&*state.store, key, told).await?;
        tracing::trace!(tenant = %caller.tenant, %key, %owner, path = parts.uri.path(), "a sidecar asks");
        Ok(Self { owner, told, key, tenant: caller.tenant })
    }
}

impl Sidecar {
    /// An owner as the sidecar knows it: itself by the id that it tells, all others as nobody.
    pub(super) fn shown(&self, owner: OwnerId) -> OwnerId {
        if owner == self.owner { self.told } else { OwnerId(Uuid::nil()) }
    }
}

/// The process that asks, as it says.
pub(super) fn owner(headers: &HeaderMap) -> ApiResult<OwnerId> {
    let wrong = |error: String| ApiError::bad_request("bad_owner", error).field(sidecar::OWNER);
    let owner = headers.get(sidecar::OWNER);
    let owner = owner
        .ok_or_else(|| wrong(format!("the header {} must name the process that asks", sidecar::OWNER)))?;
    owner.to_str().unwrap_or_default().parse().map_err(|error| wrong(format!("{error}")))
}

/// What a sidecar can say, and how much of it. Values take up to a hundred times the room of their text.
pub(super) trait Sayable: DeserializeOwned + Send + 'static {
    const BYTES: usize = sidecar::LARGEST_REPORT;
    const VALUES: usize = 300_000;

    /// Cuts it down to what is kept. Called beside the runtime, as this takes time where much was said.
    fn tame(&mut self, _most_files: usize) {}
}

impl Sayable for sidecar::Acquire {}
impl Sayable for sidecar::Release {}
impl Sayable for sidecar::Adopt {}
impl Sayable for sidecar::Harm {}
impl Sayable for sidecar::GiveBack {}

impl Sayable for sidecar::Beat {
    fn tame(&mut self, _most_files: usize) {
        bounds::once(&mut self.leases, |beat| beat.lease);
        bounds::once(&mut self.workers, |beat| beat.id.clone());
    }
}

impl Sayable for sidecar::End {
    fn tame(&mut self, most_files: usize) {
        bounds::ending(&mut self.ending, most_files);
    }
}

/// The names of all that a worker has are many, and nothing but names.
impl Sayable for sidecar::Claim {
    const BYTES: usize = sidecar::LARGEST_REQUEST;
    const VALUES: usize = 200_000;

    fn tame(&mut self, _most_files: usize) {
        bounds::loaded(&mut self.loaded);
    }
}

/// What a sidecar said, as JSON.
pub(super) struct Said<T>(pub(super) T);

impl<T: Sayable> FromRequest<AppState> for Said<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let limit = T::BYTES as u64;
        let bytes = read_body(&parts.headers, body, limit, state.limits.body_time).await?;
        let kind = parts.headers.get(header::CONTENT_TYPE).cloned();
        // Sidecars take turns by their keys, so that one with much to say is not in the way of the others. Not refused:
        // leases depend on it.
        let key = parts.extensions.get::<Caller>().and_then(Caller::key_id);
        let lane = key.map_or_else(|| "sidecars".to_owned(), |key| key.to_string());
        let work = Work::new("reading what a worker says", lane, bytes.len()).patient().holding(held());
        let most_files = state.graph.output_files;
        let read = state.pool.run(work, move || {
            let mut said: T = read_json_of(kind.as_ref(), &bytes, T::VALUES)?;
            said.tame(most_files);
            Ok::<_, ApiError>(said)
        });
        read.await.map_err(ApiError::from)?.map(Self)
    }
}

/// What a failed request about a lease means to a sidecar: a task that was forgotten, or that ended, is not its any more.
pub(super) fn of_lease(error: StoreError) -> ApiError {
    match error {
        StoreError::NotFound { .. } | StoreError::Finished(_) => StoreError::Fenced.into(),
        error => error.into(),
    }
}

/// The lease, if it is the sidecar's at this moment.
pub(super) async fn current(state: &AppState, sidecar: &Sidecar, lease: LeaseRef) -> ApiResult<Lease> {
    match state.store.lease(lease.task).await.map_err(of_lease)? {
        Some(found) if found.fence == lease.fence && found.owner == sidecar.owner => Ok(found),
        _ => Err(StoreError::Fenced.into()),
    }
}

/// A task brought back more than a task may: to ask again does not help. `limit` is the name of the setting.
pub(super) fn too_much(task: TaskId, limit: &'static str, error: String) -> ApiError {
    let mut new = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "over_limit", error).task(task);
    new.body.limit = Some(limit);
    new
}

/// A file of a result that was not delivered under the lease that reports it.
pub(super) fn foreign_file(key: &str) -> ApiError {
    let key: String = key.chars().take(120).collect();
    let error = format!("the result names the file {key}, which was not delivered under this lease");
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "foreign_file", error).field("ending.result.files")
}
