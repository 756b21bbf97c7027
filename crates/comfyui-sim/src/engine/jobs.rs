//! `/api/jobs`: one shape for what is pending, running and finished.

use super::Answer;
use super::convert::int_of_text;
use super::queue::{Finished, Item, PromptQueue};
use super::validate::Trouble;
use crate::json::{Dict, Json, dict};
use std::cmp::Ordering;

const STATES: [&str; 4] = ["pending", "in_progress", "completed", "failed"];

/// What a request for the list asks for.
struct Wish {
    states: Option<Vec<String>>,
    workflow: Option<String>,
    by_duration: bool,
    ascending: bool,
    limit: Option<usize>,
    offset: usize,
}

impl Wish {
    fn read(query: &[(String, String)]) -> Result<Wish, String> {
        let get = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let states = get("status").filter(|text| !text.is_empty()).map(|text| {
            let parts = text.split(',').map(|part| part.trim().to_lowercase());
            parts.filter(|part| !part.is_empty()).collect::<Vec<_>>()
        });
        let unknown: Vec<&str> =
            states.iter().flatten().map(String::as_str).filter(|state| !STATES.contains(state)).collect();
        if !unknown.is_empty() {
            return Err(format!(
                "Invalid status value(s): {}. Valid values: {}",
                unknown.join(", "),
                STATES.join(", ")
            ));
        }
        let by = get("sort_by").unwrap_or("created_at").to_lowercase();
        if !["created_at", "execution_duration"].contains(&by.as_str()) {
            return Err("sort_by must be 'created_at' or 'execution_duration'".into());
        }
        let order = get("sort_order").unwrap_or("desc").to_lowercase();
        if !["asc", "desc"].contains(&order.as_str()) {
            return Err("sort_order must be 'asc' or 'desc'".into());
        }
        let whole = |name: &str| match get(name) {
            None => Ok(None),
            Some(text) => match int_of_text(text).as_ref().and_then(Json::as_f64) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{name} must be an integer")),
            },
        };
        let limit = match whole("limit")? {
            Some(limit) if limit <= 0.0 => return Err("limit must be a positive integer".into()),
            limit => limit.map(|limit| limit as usize),
        };
        Ok(Wish {
            states,
            workflow: get("workflow_id").filter(|text| !text.is_empty()).map(str::to_owned),
            by_duration: by == "execution_duration",
            ascending: order == "asc",
            limit,
            offset: whole("offset")?.unwrap_or(0.0).max(0.0) as usize,
        })
    }

    fn wants(&self, state: &str) -> bool {
        self.states.as_ref().is_none_or(|states| states.iter().any(|wanted| wanted == state))
    }
}

pub(super) fn list(queue: &PromptQueue, query: &[(String, String)]) -> Answer {
    let wish = match Wish::read(query) {
        Ok(wish) => wish,
        Err(error) => return Answer::Json(400, dict([("error", error.into())])),
    };
    collect(queue, &wish).unwrap_or(Answer::Trouble)
}

fn collect(queue: &PromptQueue, wish: &Wish) -> Result<Answer, Trouble> {
    let (running, pending, history) = {
        let state = queue.look();
        let running: Vec<_> = state.running.values().cloned().collect();
        (running, state.pending.clone(), state.history.values().cloned().collect::<Vec<_>>())
    };
    let mut jobs = Vec::new();
    for (items, state) in [(&running, "in_progress"), (&pending, "pending")] {
        if wish.wants(state) {
            for item in items {
                jobs.push(waiting(item, state)?);
            }
        }
    }
    for finished in &history {
        if wish.wants(state_of(finished)) {
            jobs.push(ended(finished)?);
        }
    }
    if let Some(workflow) = &wish.workflow {
        jobs.retain(|job| job.get("workflow_id").and_then(Json::as_str) == Some(workflow));
    }
    jobs.sort_by(|left, right| {
        let (left, right) = (sort_key(left, wish.by_duration), sort_key(right, wish.by_duration));
        let order = left.partial_cmp(&right).unwrap_or(Ordering::Equal);
        if wish.ascending { order } else { order.reverse() }
    });
    let total = jobs.len();
    let shown: Vec<Json> =
        jobs.into_iter().skip(wish.offset).take(wish.limit.unwrap_or(usize::MAX)).map(Json::Dict).collect();
    let pagination = dict([
        ("offset", wish.offset.into()),
        ("limit", wish.limit.into()),
        ("total", total.into()),
        ("has_more", (wish.offset + shown.len() < total).into()),
    ]);
    Ok(Answer::Json(200, dict([("jobs", Json::List(shown)), ("pagination", pagination)])))
}

fn sort_key(job: &Dict, by_duration: bool) -> f64 {
    let number = |name: &str| job.get(name).and_then(Json::as_f64).unwrap_or(0.0);
    if !by_duration {
        return number("create_time");
    }
    let (start, end) = (number("execution_start_time"), number("execution_end_time"));
    if start != 0.0 && end != 0.0 { end - start } else { 0.0 }
}

pub(super) fn one(queue: &PromptQueue, id: &str) -> Answer {
    let state = queue.look();
    if let Some(finished) = state.history.get(id).cloned() {
        drop(state);
        return whole(&finished).unwrap_or(Answer::Trouble);
    }
    let running = state.running.values().find(|item| item.id == id).map(|item| (item, "in_progress"));
    let found =
        running.or_else(|| state.pending.iter().find(|item| item.id == id).map(|item| (item, "pending")));
    match found {
        Some((item, state)) => {
            waiting(item, state).map_or(Answer::Trouble, |job| Answer::Json(200, Json::Dict(job)))
        }
        None => Answer::Json(404, dict([("error", "Job not found".into())])),
    }
}

/// A job with all that is known about it.
fn whole(finished: &Finished) -> Result<Answer, Trouble> {
    if !finished.serializable {
        return Err(Trouble);
    }
    let mut job = ended(finished)?;
    job.insert("outputs".into(), finished.outputs.clone());
    job.insert("execution_status".into(), finished.status.clone());
    let workflow = dict([
        ("prompt", finished.item.prompt.clone()),
        ("extra_data", Json::Dict(finished.item.extra_data.clone())),
    ]);
    job.insert("workflow".into(), workflow);
    Ok(Answer::Json(200, Json::Dict(job)))
}

/// The id of the workflow inside `extra_pnginfo`. Whatever stands in the way there is a 500 for everybody.
fn workflow_id(item: &Item) -> Result<Json, Trouble> {
    let empty = Json::empty_dict();
    let info = item.extra_data.get("extra_pnginfo").unwrap_or(&empty).as_dict().ok_or(Trouble)?;
    let workflow = info.get("workflow").unwrap_or(&empty).as_dict().ok_or(Trouble)?;
    Ok(workflow.get("id").cloned().unwrap_or(Json::Null))
}

/// Members in order, without those that are null.
fn pruned<const N: usize>(members: [(&str, Json); N]) -> Dict {
    members
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn waiting(item: &Item, state: &str) -> Result<Dict, Trouble> {
    Ok(pruned([
        ("id", Json::from(&item.id)),
        ("status", state.into()),
        ("priority", item.number.clone()),
        ("create_time", item.extra_data.get("create_time").cloned().unwrap_or(Json::Null)),
        ("outputs_count", Json::Int(0)),
        ("workflow_id", workflow_id(item)?),
    ]))
}

fn state_of(finished: &Finished) -> &'static str {
    match finished.status.get("status_str").and_then(Json::as_str) {
        Some("error") => "failed",
        _ => "completed",
    }
}

fn ended(finished: &Finished) -> Result<Dict, Trouble> {
    let item = &finished.item;
    let (mut start, mut end, mut error) = (Json::Null, Json::Null, Json::Null);
    for message in finished.status.get("messages").and_then(Json::as_list).unwrap_or_default() {
        let Some([event, data]) = message.as_list() else {
            continue;
        };
        let time = data.get("timestamp").cloned().unwrap_or(Json::Null);
        match event.as_str() {
            Some("execution_start") => start = time,
            Some("execution_success" | "execution_interrupted") => end = time,
            Some("execution_error") => (end, error) = (time, data.clone()),
            _ => {}
        }
    }
    let (count, preview) = summary(&finished.outputs);
    Ok(pruned([
        ("id", Json::from(&item.id)),
        ("status", state_of(finished).into()),
        ("priority", item.number.clone()),
        ("create_time", item.extra_data.get("create_time").cloned().unwrap_or(Json::Null)),
        ("execution_start_time", start),
        ("execution_end_time", end),
        ("execution_error", error),
        ("outputs_count", count.into()),
        ("preview_output", preview),
        ("workflow_id", workflow_id(item)?),
    ]))
}

/// How many files (and other objects) there are, and the one to show: of type output if possible.
fn summary(outputs: &Json) -> (usize, Json) {
    let mut count = 0;
    let mut fallback = Json::Null;
    let mut best = Json::Null;
    for (node, members) in outputs.as_dict().into_iter().flatten() {
        for (kind, items) in members.as_dict().into_iter().flatten() {
            if kind == "animated" {
                continue;
            }
            for item in items.as_list().unwrap_or_default().iter().filter_map(Json::as_dict) {
                count += 1;
                if !best.is_null() || !previewable(kind, item) {
                    continue;
                }
                let mut shown = item.clone();
                shown.insert("nodeId".into(), node.into());
                shown.insert("mediaType".into(), kind.into());
                if item.get("type").and_then(Json::as_str) == Some("output") {
                    best = Json::Dict(shown);
                } else if fallback.is_null() {
                    fallback = Json::Dict(shown);
                }
            }
        }
    }
    (count, if best.is_null() { fallback } else { best })
}

fn previewable(kind: &str, item: &Dict) -> bool {
    let text = |name: &str| item.get(name).and_then(Json::as_str).unwrap_or_default();
    let format = text("format");
    let file = text("filename").to_lowercase();
    ["images", "video", "audio"].contains(&kind)
        || ["video/", "audio/"].iter().any(|start| format.starts_with(start))
        || [".obj", ".fbx", ".gltf", ".glb"].iter().any(|ending| file.ends_with(ending))
}
