//! What custom nodes bring along for the page: scripts, translations, templates, subgraphs.
//!
//! All of it comes from the workers that this process drives, taken together: of two that say different things under one
//! name, the first counts.

use std::collections::{BTreeSet, HashSet};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::ask::Driven;
use super::pass::pass_on;
use crate::access::ReadCaller;
use crate::error::ApiResult;
use crate::extract::ApiPath;
use crate::state::AppState;

/// Scripts below it belong to the page itself: a worker's are of another version of it.
const OF_THE_PAGE: &str = "/extensions/core/";

/// `GET /extensions`: the scripts of the custom nodes of all workers.
pub(super) async fn extensions(
    State(state): State<AppState>,
    _: ReadCaller,
) -> ApiResult<Json<BTreeSet<String>>> {
    let driven = state.fleet.ask.driven(&*state.store).await?;
    let asked = state.fleet.ask.all(&driven, &["extensions"]).await;
    let lists = asked.given.iter().filter_map(|(_, list)| list.as_array());
    let scripts = lists.flatten().filter_map(Value::as_str);
    Ok(Json(scripts.filter(|path| !path.starts_with(OF_THE_PAGE)).map(str::to_owned).collect()))
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
    let driven = state.fleet.ask.driven(&*state.store).await?;
    let asked = state.fleet.ask.all(&driven, &["extensions"]).await;
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
async fn united(state: &AppState, segments: &[&str]) -> ApiResult<Value> {
    let driven = state.fleet.ask.driven(&*state.store).await?;
    let asked = state.fleet.ask.all(&driven, segments).await;
    let mut whole = Value::Object(Map::new());
    for (_, answer) in &asked.given {
        unite(&mut whole, answer, 0);
    }
    Ok(whole)
}

/// Adds what is not there yet: members of objects, also of inner ones, and of lists.
fn unite(whole: &mut Value, further: &Value, depth: usize) {
    match (whole, further) {
        (Value::Object(whole), Value::Object(further)) if depth < 16 => {
            for (name, value) in further {
                match whole.get_mut(name) {
                    Some(known) => unite(known, value, depth + 1),
                    None => drop(whole.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(whole), Value::Array(further)) => {
            // By their texts: lists of a worker have any length, and comparing each with each takes for ever.
            let mut known: HashSet<String> = whole.iter().map(Value::to_string).collect();
            whole.extend(further.iter().filter(|value| known.insert(value.to_string())).cloned());
        }
        _ => {}
    }
}

/// `GET /i18n`: translations of custom nodes.
pub(super) async fn translations(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    Ok(Json(united(&state, &["i18n"]).await?))
}

/// `GET /workflow_templates`: templates of custom nodes, by module.
pub(super) async fn templates(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    Ok(Json(united(&state, &["workflow_templates"]).await?))
}

/// `GET /workflow_templates/{module}/{path}`: a template of a custom node, or a picture of one.
pub(super) async fn template(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath((module, path)): ApiPath<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let driven = state.fleet.ask.driven(&*state.store).await?;
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
    let driven = state.fleet.ask.driven(&*state.store).await?;
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
pub(super) async fn subgraphs(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    Ok(Json(united(&state, &["global_subgraphs"]).await?))
}

/// `GET /global_subgraphs/{id}`: null where there is none, as a ComfyUI says it.
pub(super) async fn subgraph(
    State(state): State<AppState>,
    _: ReadCaller,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Json<Value>> {
    let driven = state.fleet.ask.driven(&*state.store).await?;
    let listed = state.fleet.ask.all(&driven, &["global_subgraphs"]).await;
    let holders = listed.given.iter().filter(|(_, all)| all.get(&id).is_some()).map(|(worker, _)| worker);
    let holders: Vec<Driven> =
        holders.filter_map(|id| driven.iter().find(|worker| worker.id == *id).cloned()).collect();
    let asked = state.fleet.ask.all(&holders, &["global_subgraphs", &id]).await;
    let found = asked.given.into_iter().map(|(_, subgraph)| subgraph).find(|subgraph| !subgraph.is_null());
    Ok(Json(found.map_or(Value::Null, |subgraph| (*subgraph).clone())))
}

/// `GET /node_replacements`: no worker knows any that this version could tell.
pub(super) async fn replacements(_: ReadCaller) -> Json<Value> {
    Json(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_united_to_their_depth_and_the_first_counts() {
        let mut whole = json!({"en": {"a": "1", "list": ["x"]}});
        unite(&mut whole, &json!({"en": {"a": "2", "b": "3", "list": ["x", "y"]}, "fr": {}, "en2": 1}), 0);
        assert_eq!(whole, json!({"en": {"a": "1", "list": ["x", "y"], "b": "3"}, "fr": {}, "en2": 1}));
    }
}
