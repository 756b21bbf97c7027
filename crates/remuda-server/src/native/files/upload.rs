//! `POST /upload/image` and `POST /upload/mask`: files that graphs read. They are kept here and put on whichever worker runs
//! the graph.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use remuda_core::Tenant;
use remuda_preflight::uploads::{kept_name, straight};
use serde_json::json;
use tokio::sync::Mutex;

use super::form::{self, Content, Form, Keep, Texts};
use super::mask::put_on;
use crate::access::SubmitCaller;
use crate::error::{ApiError, ApiResult};
use crate::routes;
use crate::service::{self, Brought};
use crate::state::AppState;

/// The longest name of a file or a folder, in bytes.
const MAX_NAME: usize = 255;

/// … and of all of them together.
const MAX_PATH: usize = 1024;

/// How many names are tried for a file whose name is taken.
const MOST_NAMES: u32 = 10_000;

/// How many of the first ones are looked at one after the other: a file that is there under one of them keeps it.
const LOOKED_AT: u32 = 50;

/// `POST /upload/image`
pub(super) async fn image(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    request: Request,
) -> ApiResult<Response> {
    let _permit = state.permits.upload()?;
    let form = match form::read(&state, &caller.tenant, request, Keep::Stored).await {
        Ok(form) => form,
        Err(refusal) => return Ok(refusal.into_response()),
    };
    let Form { image, room, texts } = form;
    let Content::Staged(staged) = image.content else {
        return Err(ApiError::internal("an upload was not kept"));
    };
    let mime = routes::mime(image.mime.as_deref(), &image.filename);
    name_it(&state, &caller.tenant, &texts, &image.filename, Brought { staged, room }, mime).await
}

/// `POST /upload/mask`
pub(super) async fn mask(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    request: Request,
) -> ApiResult<Response> {
    let _permit = state.permits.upload()?;
    let form = match form::read(&state, &caller.tenant, request, Keep::InMemory).await {
        Ok(form) => form,
        Err(refusal) => return Ok(refusal.into_response()),
    };
    let Form { image, room, texts } = form;
    let Content::InMemory(mask) = image.content else {
        return Err(ApiError::internal("a mask was not read"));
    };
    let original = texts.get("original_ref").unwrap_or_default();
    let Some(png) = put_on(&state, &caller.tenant, original, mask).await? else {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    };
    room.cover(png.len() as u64)?;
    let bytes = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(png))]);
    let staged = state.files.stage(bytes, None).await?;
    let brought = Brought { staged, room };
    name_it(&state, &caller.tenant, &texts, &image.filename, brought, "image/png".to_owned()).await
}

/// Makes an upload of what was kept, under the name that the form asks for or the next one that is free.
async fn name_it(
    state: &AppState,
    tenant: &Tenant,
    texts: &Texts,
    filename: &str,
    brought: Brought,
    mime: String,
) -> ApiResult<Response> {
    let refused = Ok(StatusCode::BAD_REQUEST.into_response());
    let kind = match texts.get("type") {
        None => "input",
        Some(kind @ ("input" | "temp" | "output")) => kind,
        Some(_) => return refused,
    };
    let overwrite = matches!(texts.get("overwrite"), Some("true" | "1"));
    let subfolder = texts.get("subfolder").unwrap_or_default();
    let Some(mut upload) = Named::new(subfolder, filename, kind) else { return refused };
    let mut same = false;
    // Until it is taken: each of two different files has its own name, and no graph gets the other one's.
    let _turn = if overwrite { None } else { Some(turn(tenant).lock_owned().await) };
    if !overwrite {
        // At two gateways in the same moment two may still take the same name; then the later one has it.
        while let Some(there) = state.store.asset_named(tenant, &upload.kept).await? {
            same = there.sha256 == brought.sha256();
            if same {
                break;
            }
            let next = if upload.number < LOOKED_AT {
                upload.next()
            } else {
                let mut search = Search::after(upload.number);
                loop {
                    match search.step() {
                        Step::Free(number) => break upload.with(number),
                        Step::Nothing => break None,
                        Step::Look(number) => {
                            let Some(named) = upload.with(number) else { break None };
                            let there = state.store.asset_named(tenant, &named.kept).await?;
                            search.saw(number, there.is_none());
                        }
                    }
                }
            };
            match next {
                Some(next) => upload = next,
                None => return refused,
            }
        }
    }
    if same {
        // What was damaged from outside is mended so.
        brought.staged.keep().await?;
    } else {
        service::keep(state, brought, upload.kept, mime).await?;
    }
    Ok(Json(json!({"name": upload.name, "subfolder": subfolder, "type": kind})).into_response())
}

/// Who looks for a free name for an upload of this tenant. Others have turns of their own.
fn turn(tenant: &Tenant) -> Arc<Mutex<()>> {
    /// When this many are remembered, those that nobody has are forgotten.
    const REMEMBERED: usize = 256;
    static TURNS: LazyLock<std::sync::Mutex<HashMap<Tenant, Weak<Mutex<()>>>>> =
        LazyLock::new(Default::default);
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(turn) = turns.get(tenant).and_then(Weak::upgrade) {
        return turn;
    }
    if turns.len() >= REMEMBERED {
        turns.retain(|_, turn| turn.strong_count() > 0);
    }
    let turn = Arc::default();
    turns.insert(tenant.clone(), Arc::downgrade(&turn));
    turn
}

/// Looks for a free number after one that is taken: in steps that grow, then between the last two of them. Where numbers were
/// left out it may not be the first one.
#[derive(Debug)]
struct Search {
    taken: u32,
    free: Option<u32>,
    step: u32,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Is this one free?
    Look(u32),
    /// This one is.
    Free(u32),
    /// None is.
    Nothing,
}

impl Search {
    fn after(taken: u32) -> Self {
        Self { taken, free: None, step: 1 }
    }

    fn step(&self) -> Step {
        match self.free {
            Some(free) if free - self.taken <= 1 => Step::Free(free),
            Some(free) => Step::Look(self.taken + (free - self.taken) / 2),
            None if self.taken >= MOST_NAMES => Step::Nothing,
            None => Step::Look((self.taken + self.step).min(MOST_NAMES)),
        }
    }

    fn saw(&mut self, number: u32, is_free: bool) {
        if is_free {
            self.free = Some(number);
        } else {
            (self.taken, self.step) = (number, self.step * 2);
        }
    }
}

/// A name for an upload.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    subfolder: &'a str,
    filename: &'a str,
    kind: &'a str,
    number: u32,
    /// What the client is told.
    name: String,
    /// What it is kept as.
    kept: String,
}

impl<'a> Named<'a> {
    /// `None` when it leaves the folder, or cannot be a name.
    fn new(subfolder: &'a str, filename: &'a str, kind: &'a str) -> Option<Self> {
        Self::numbered(subfolder, filename, kind, 0)
    }

    /// `name (1).ext`, `name (2).ext` and so on.
    fn next(&self) -> Option<Self> {
        self.with(self.number + 1)
    }

    fn with(&self, number: u32) -> Option<Self> {
        Self::numbered(self.subfolder, self.filename, self.kind, number)
    }

    fn numbered(subfolder: &'a str, filename: &'a str, kind: &'a str, number: u32) -> Option<Self> {
        let name = match number {
            0 => filename.to_owned(),
            _ => {
                let (stem, ending) = split_ending(filename);
                format!("{stem} ({number}){ending}")
            }
        };
        if subfolder.starts_with('/') || name.ends_with('/') || number > MOST_NAMES {
            return None;
        }
        let path = straight(format!("{subfolder}/{name}").trim_start_matches('/'))?;
        let fits = |part: &str| part.len() <= MAX_NAME;
        if path.is_empty() || path.len() > MAX_PATH || !path.split('/').all(fits) {
            return None;
        }
        let kept = kept_name(&path, kind);
        Some(Self { subfolder, filename, kind, number, name, kept })
    }
}

/// The ending includes its dot; dots at the start of the name do not count.
fn split_ending(name: &str) -> (&str, &str) {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let first = name[file..].find(|c| c != '.').map_or(name.len(), |at| file + at);
    match name[first..].rfind('.') {
        Some(dot) => name.split_at(first + dot),
        None => (name, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_number_is_found_in_few_looks() {
        let find = |taken: u32| {
            let (mut search, mut looks) = (Search::after(LOOKED_AT), 0);
            loop {
                match search.step() {
                    Step::Look(number) => search.saw(number, number > taken),
                    found => return (found, looks),
                }
                looks += 1;
            }
        };
        for taken in [50, 51, 52, 53, 99, 100, 5_000, 9_899, MOST_NAMES - 1] {
            let (found, looks) = find(taken);
            assert_eq!(found, Step::Free(taken + 1));
            assert!(looks < 30, "{looks} looks at {taken}");
        }
        assert_eq!(find(MOST_NAMES).0, Step::Nothing);
    }

    #[test]
    fn tenants_do_not_wait_for_each_other() {
        let tenants: Vec<Tenant> = (0..1_000).map(|n| Tenant::new(format!("t{n}")).unwrap()).collect();
        let held: Vec<_> = tenants.iter().map(|tenant| turn(tenant).try_lock_owned().unwrap()).collect();
        assert!(turn(&tenants[0]).try_lock_owned().is_err(), "one after the other of one tenant");
        drop(held);
        drop(turn(&tenants[0]).try_lock_owned().unwrap());
    }

    #[test]
    fn names_stay_below_their_folder() {
        let kept = |subfolder: &str, name: &str| Named::new(subfolder, name, "input").map(|named| named.kept);
        assert_eq!(kept("", "a.png").as_deref(), Some("a.png"));
        assert_eq!(kept("sub/deeper", "a.png").as_deref(), Some("sub/deeper/a.png"));
        assert_eq!(kept("sub/", "x/a.png").as_deref(), Some("sub/x/a.png"));
        assert_eq!(kept("sub", "../a.png").as_deref(), Some("a.png"), "as ComfyUI resolves it");
        let long = "n".repeat(300);
        for (subfolder, name) in [
            ("", "../evil.png"),
            ("../../etc", "a.png"),
            ("/tmp", "a.png"),
            ("", ".."),
            ("", "."),
            ("", "a/"),
            ("", &long),
        ] {
            assert_eq!(kept(subfolder, name), None, "{subfolder:?} {name:?}");
        }
        let temp = Named::new("s", "a.png", "temp").unwrap();
        assert_eq!(temp.kept, "s/a.png [temp]");
        let second = temp.next().unwrap().next().unwrap();
        assert_eq!((second.name.as_str(), second.kept.as_str()), ("a (2).png", "s/a (2).png [temp]"));
        assert_eq!(Named::new("", ".hidden", "input").unwrap().next().unwrap().name, ".hidden (1)");
    }
}
