//! What custom nodes bring along for the page: scripts, translations, templates, subgraphs.
//!
//! All of it comes from the workers that this process drives, taken together: of two that say different things under one
//! name, the first counts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::pass::pass_on;
use crate::access::ReadCaller;
use crate::error::{ApiError, ApiResult};
use crate::extract::ApiPath;
use crate::state::AppState;
use remuda_runner::ask::{Answers, Driven};

/// Scripts below it belong to the page itself: a worker's are of another version of it.
const OF_THE_PAGE: &str = "/extensions/core/";

/// How long a united text is believed. The answers it is made of are kept for some time already.
const FRESH: Duration = Duration::from_secs(10);

/// … and one that lacks a worker's answer.
const PARTIAL: Duration = Duration::from_secs(3);

/// How many bytes of answers are united. What goes beyond it is left out.
const MOST_UNITED: usize = 8 << 20;

/// The last answers of routes that unite what workers say, as they are sent.
#[derive(Debug, Default)]
pub(super) struct Texts(Mutex<HashMap<&'static str, Arc<Text>>>);

/// One of them: whoever comes while it is made waits for it.
#[derive(Debug)]
struct Text {
    begun: Instant,
    workers: Vec<Driven>,
    /// And whether all workers answered.
    made: OnceCell<(Bytes, bool)>,
}

impl Text {
    fn is_fresh(&self) -> bool {
        let complete = self.made.get().is_none_or(|(_, complete)| *complete);
        self.begun.elapsed() < if complete { FRESH } else { PARTIAL }
    }
}

impl Texts {
    fn of(&self, question: &'static str, workers: &[Driven]) -> Arc<Text> {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts.get(question)
            && text.is_fresh()
            && text.workers == workers
        {
            return Arc::clone(text);
        }
        let text = Text { begun: Instant::now(), workers: workers.to_vec(), made: OnceCell::new() };
        let text = Arc::new(text);
        texts.insert(question, Arc::clone(&text));
        text
    }
}

/// What all workers answer to a question, made into one by `unite`: beside the runtime, and once for all who ask.
async fn together<T: Serialize + 'static>(
    state: &AppState,
    question: &'static str,
    unite: fn(&Answers) -> T,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let text = state.catalogue.texts.of(question, &driven);
    let make = || async {
        let asked = state.catalogue.ask.all(&driven, &[question]).await;
        let (complete, weight) = (asked.silent.is_empty(), asked.weight);
        let write = move || serde_json::to_vec(&unite(&asked)).map(Bytes::from);
        let written = state.catalogue.ask.digest(weight, write).await;
        // Nothing that the caller sent.
        let written = written.map_err(|_| ApiError::busy("answers of workers"))?;
        Ok::<_, ApiError>((written.map_err(|error| ApiError::internal(error.to_string()))?, complete))
    };
    let (written, _) = text.made.get_or_try_init(make).await?;
    Ok(json_text(written.clone()))
}

fn json_text(text: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// `GET /extensions`: the scripts of the custom nodes of all workers.
pub(super) async fn extensions(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Response> {
    together(&state, "extensions", scripts).await
}

fn scripts(asked: &Answers) -> BTreeSet<String> {
    let lists = asked.given.iter().filter_map(|(_, list)| list.as_array());
    let scripts = lists.flatten().filter_map(Value::as_str);
    scripts.filter(|path| is_ours_to_serve(path)).map(str::to_owned).collect()
}

/// Whether the page would get this script from us. One from elsewhere would run with the rights of whoever opened the page,
/// and not even be the worker's own.
fn is_ours_to_serve(path: &str) -> bool {
    let plain = !path.contains(['\\', '?', '#']) && !path.chars().any(char::is_control);
    let upwards = path.split('/').any(|part| matches!(part, "." | ".."));
    path.starts_with("/extensions/") && !path.starts_with(OF_THE_PAGE) && plain && !upwards
}

/// `GET /extensions/{path}`: a file of the page itself, or of a custom node, from a worker that has that custom node.
pub(super) async fn extension(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath(path): ApiPath<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult<Response> {
    if let Some(frontend) = &state.frontend
        && let Some(file) = frontend.file(&method, &uri, &headers).await
    {
        return Ok(file);
    }
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let asked = state.catalogue.ask.all(&driven, &["extensions"]).await;
    // The list has scripts only; pictures and styles lie beside them.
    let own = path.split('/').next().unwrap_or_default();
    let beginning = format!("/extensions/{own}/");
    let has = |worker: &Driven| {
        asked.given.iter().any(|(id, list)| {
            let mut scripts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            *id == worker.id && scripts.any(|script| script.starts_with(&beginning))
        })
    };
    let (mut likely, others): (Vec<Driven>, Vec<Driven>) = driven.into_iter().partition(has);
    likely.extend(others);
    let segments: Vec<&str> = std::iter::once("extensions").chain(path.split('/')).collect();
    pass_on(&state, &likely, &method, &segments, None, &headers).await
}

/// Objects of all workers in one.
fn united(asked: &Answers) -> Value {
    let mut whole = Value::Object(Map::new());
    let mut room = MOST_UNITED;
    for (_, answer) in &asked.given {
        unite(&mut whole, answer, 0, &mut room);
    }
    whole
}

/// Adds what is not there yet: members of objects, also of inner ones, and of lists, as long as there is room.
fn unite(whole: &mut Value, further: &Value, depth: usize, room: &mut usize) {
    match (whole, further) {
        (Value::Object(whole), Value::Object(further)) if depth < 16 => {
            for (name, value) in further {
                match whole.get_mut(name) {
                    Some(known) => unite(known, value, depth + 1, room),
                    None if fits(name.len() + 4 + length(value), room) => {
                        whole.insert(name.clone(), value.clone());
                    }
                    None => {}
                }
            }
        }
        (Value::Array(whole), Value::Array(further)) => {
            // By their texts: lists of a worker have any length, and comparing each with each takes for ever.
            let mut known: HashSet<String> = whole.iter().map(Value::to_string).collect();
            for value in further {
                let text = value.to_string();
                let size = text.len();
                if known.insert(text) && fits(size, room) {
                    whole.push(value.clone());
                }
            }
        }
        _ => {}
    }
}

fn fits(size: usize, room: &mut usize) -> bool {
    let left = room.checked_sub(size);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// About how long the text of a value is.
fn length(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            2 + members.iter().map(|(name, value)| name.len() + 4 + length(value)).sum::<usize>()
        }
        Value::Array(values) => 2 + values.iter().map(|value| 1 + length(value)).sum::<usize>(),
        Value::String(text) => text.len() + 2,
        _ => 8,
    }
}

/// `GET /i18n`: translations of custom nodes.
pub(super) async fn translations(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Response> {
    together(&state, "i18n", united).await
}

/// `GET /workflow_templates`: templates of custom nodes, by module.
pub(super) async fn templates(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Response> {
    together(&state, "workflow_templates", united).await
}

/// `GET /workflow_templates/{module}/{path}`: a template of a custom node, or a picture of one.
pub(super) async fn template(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath((module, path)): ApiPath<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let segments: Vec<&str> =
        ["api", "workflow_templates", &module].into_iter().chain(path.split('/')).collect();
    pass_on(&state, &driven, &method, &segments, None, &headers).await
}

/// `GET /templates/{path}`: the templates that come with ComfyUI, from a worker. A fleet without any has an empty index.
pub(super) async fn core_template(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath(path): ApiPath<String>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let segments: Vec<&str> = std::iter::once("templates").chain(path.split('/')).collect();
    let answer = pass_on(&state, &driven, &method, &segments, None, &headers).await?;
    if answer.status() != StatusCode::NOT_FOUND {
        return Ok(answer);
    }
    Ok(match path.as_str() {
        "index_logo.json" => Json(json!({})).into_response(),
        index if index.starts_with("index") && index.ends_with(".json") => Json(json!([])).into_response(),
        _ => answer,
    })
}

/// `GET /global_subgraphs`: subgraphs of custom nodes, by id.
pub(super) async fn subgraphs(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Response> {
    together(&state, "global_subgraphs", united).await
}

/// `GET /global_subgraphs/{id}`: null where there is none, as a ComfyUI says it.
pub(super) async fn subgraph(
    State(state): State<AppState>,
    ReadCaller(caller): ReadCaller,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Response> {
    let driven = state.catalogue.ask.driven(&*state.store).await?;
    let listed = state.catalogue.ask.all(&driven, &["global_subgraphs"]).await;
    let holders = listed.given.iter().filter(|(_, all)| all.get(&id).is_some()).map(|(worker, _)| worker);
    let holders: Vec<Driven> =
        holders.filter_map(|id| driven.iter().find(|worker| worker.id == *id).cloned()).collect();
    let asked = state.catalogue.ask.all(&holders, &["global_subgraphs", &id]).await;
    let weight = asked.weight;
    let found = asked.given.into_iter().map(|(_, subgraph)| subgraph).find(|subgraph| !subgraph.is_null());
    let write = move || serde_json::to_vec(found.as_deref().unwrap_or(&Value::Null));
    let written = state.compute("writing a subgraph", &caller.tenant, weight, write).await?;
    Ok(json_text(written.map_err(|error| ApiError::internal(error.to_string()))?.into()))
}

/// `GET /node_replacements`: no worker knows any that this version could tell.
pub(super) async fn replacements(_: ReadCaller) -> Json<Value> {
    Json(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_come_from_us_or_not_at_all() {
        assert!(is_ours_to_serve("/extensions/ComfyUI-Manager/js/a.b.js"));
        let elsewhere =
            ["//evil.example/x.js", "http://evil.example/x.js", "javascript:alert(1)", "x.js", ""];
        let disguised =
            ["/\\evil.example/x.js", "/extensions/../api/x", "/extensions/a/..\\x", "/extensions/a?b"];
        for path in
            elsewhere.iter().chain(&disguised).chain(&["/extensions/core/a.js", "/extensions/a\n/b.js"])
        {
            assert!(!is_ours_to_serve(path), "{path:?}");
        }
    }

    #[test]
    fn objects_are_united_to_their_depth_and_the_first_counts() {
        let mut whole = json!({"en": {"a": "1", "list": ["x"]}});
        let mut room = 100;
        let further = json!({"en": {"a": "2", "b": "3", "list": ["x", "y"]}, "fr": {}, "en2": 1});
        unite(&mut whole, &further, 0, &mut room);
        let united = json!({"en": {"a": "1", "list": ["x", "y"], "b": "3"}, "fr": {}, "en2": 1});
        assert_eq!(whole, united);
        unite(&mut whole, &json!({"large": "x".repeat(100)}), 0, &mut room);
        assert_eq!(whole, united, "there is no room for it");
    }
}
