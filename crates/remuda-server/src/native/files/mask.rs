//! A mask over a picture: the alpha of the one goes into a copy of the other.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{HeaderMap, Method, StatusCode};
use remuda_core::Tenant;
use remuda_files::FileKey;
use serde::Deserialize;

use super::find::{self, Named};
use super::{picture, rooms};
use crate::error::{ApiError, ApiResult};
use crate::share::{PATIENCE, Pass, Visit};
use crate::state::AppState;

/// `original_ref`: the picture that the mask is for.
#[derive(Debug, Deserialize)]
struct Original {
    filename: String,
    #[serde(default)]
    subfolder: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

/// The picture that `original` names with the alpha of `mask`, as PNG. `None`: one of them is no picture, or not there,
/// or their sizes differ.
pub(super) async fn put_on(
    state: &AppState,
    tenant: &Tenant,
    original: &str,
    mask: Bytes,
) -> ApiResult<Option<Vec<u8>>> {
    let Ok(original) = serde_json::from_str::<Original>(original) else { return Ok(None) };
    let folder = original.subfolder.as_deref().unwrap_or_default();
    let Ok(named) = Named::read(&original.filename, folder, original.kind.as_deref()) else {
        return Ok(None);
    };
    let Some(turn) = rooms::line_up(tenant).await else { return Ok(None) };
    let Some((bytes, counted)) = read(state, tenant, &named).await? else { return Ok(None) };
    // A worker may have been slow to send it, so the room is asked for only now.
    let Some(room) = turn.whole_room().await else { return Ok(None) };
    let work = move || {
        let _counted = counted;
        picture::decode(&bytes)?.with_alpha_of(&picture::decode(&mask)?)?.encode()
    };
    Ok(picture::on_a_thread(room, work).await)
}

/// The picture, and the memory that it takes.
async fn read(state: &AppState, tenant: &Tenant, named: &Named) -> ApiResult<Option<(Bytes, Pass)>> {
    let guest = Visit::guest();
    let count = async |bytes: u64| {
        let counted = state.memory.wait(&guest, bytes, PATIENCE).await;
        counted.map_err(|_| ApiError::no_memory())
    };
    if let Some(kept) = find::kept(state, tenant, named).await? {
        let counted = count(u64::try_from(kept.file.size).unwrap_or(0).min(picture::LARGEST)).await?;
        let content = state.files.get(&FileKey::parse(&kept.file.key)?, None).await?;
        return match content.bytes(picture::LARGEST).await {
            Ok(bytes) => Ok(Some((bytes, counted))),
            Err(remuda_files::Error::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        };
    }
    let Some((workers, query)) = find::at_workers(state, tenant, named, None).await? else { return Ok(None) };
    for worker in workers {
        let headers = HeaderMap::new();
        let asked = state.catalogue.ask.stream(&worker, Method::GET, &["view"], Some(&query), &headers);
        let Ok(answer) = asked.await else { continue };
        if answer.status() != StatusCode::OK {
            continue;
        }
        let mut all = BytesMut::new();
        let mut counted = count(0).await?;
        let mut pieces = answer.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let Ok(piece) = piece else { return Ok(None) };
            if all.len() + piece.len() > usize::try_from(picture::LARGEST).unwrap_or(usize::MAX) {
                return Ok(None);
            }
            counted.join(count(piece.len() as u64).await?);
            all.extend_from_slice(&piece);
        }
        return Ok(Some((all.freeze(), counted)));
    }
    Ok(None)
}
