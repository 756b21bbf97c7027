//! POST /prompt behind its JSON.

use super::convert::to_float;
use super::queue::Item;
use super::run::now_ms;
use super::validate::{Trouble, contains, validate};
use super::{Answer, Engine};
use crate::config::Profile;
use crate::json::{Dict, Json, dict};
use crate::stats::graph_digest;
use std::sync::atomic::Ordering;

/// Members of `extra_data` that later versions take out of sight.
pub(super) const SECRETS: [&str; 2] = ["auth_token_comfy_org", "api_key_comfy_org"];

pub(super) fn submit(engine: &Engine, body: &Json) -> Answer {
    accept(engine, body).unwrap_or(Answer::Trouble)
}

fn accept(engine: &Engine, body: &Json) -> Result<Answer, Trouble> {
    let received_us = engine.executions.now_us();
    let profile = engine.config.profile;
    let number = number(engine, body)?;
    if !contains(body, "prompt")? {
        let error = dict([
            ("type", "no_prompt".into()),
            ("message", "No prompt provided".into()),
            ("details", "No prompt provided".into()),
            ("extra_info", Json::empty_dict()),
        ]);
        return Ok(refusal(error, Dict::new()));
    }
    let submitted = body.get("prompt").ok_or(Trouble)?;
    let mut prompt = submitted.clone();
    let id = match body.get("prompt_id").filter(|_| profile >= Profile::V0_3_64) {
        Some(id) => id.str(),
        None => uuid::Uuid::new_v4().to_string(),
    };
    let targets = body.get("partial_execution_targets").filter(|_| profile >= Profile::V0_3_64);
    let verdict = validate(&engine.registry, &engine.dirs, profile, &mut prompt, targets)?;
    let mut extra_data = body.get("extra_data").cloned().unwrap_or_else(Json::empty_dict);
    if let Some(client) = body.get("client_id") {
        extra_data.as_dict_mut().ok_or(Trouble)?.insert("client_id".into(), client.clone());
    }
    if let Some(error) = verdict.refusal {
        return Ok(refusal(error, verdict.node_errors));
    }
    let Json::Dict(mut extra_data) = extra_data else {
        return Err(Trouble);
    };
    let mut sensitive = Dict::new();
    if profile >= Profile::V0_7_0 {
        for secret in SECRETS {
            if let Some(value) = extra_data.shift_remove(secret) {
                sensitive.insert(secret.to_owned(), value);
            }
        }
        extra_data.insert("create_time".into(), now_ms().into());
    }
    let answer = dict([
        ("prompt_id", Json::from(&id)),
        ("number", number.clone()),
        ("node_errors", Json::Dict(verdict.node_errors)),
    ]);
    let item = Item {
        number,
        id,
        prompt,
        extra_data,
        outputs: verdict.outputs,
        sensitive,
        digest: graph_digest(submitted),
        received_us,
    };
    engine.queue.put(item).map_err(|_| Trouble)?;
    Ok(Answer::Json(200, answer))
}

fn refusal(error: Json, node_errors: Dict) -> Answer {
    Answer::Json(400, dict([("error", error), ("node_errors", Json::Dict(node_errors))]))
}

/// The priority: the client's own as a float, or the counter, which also refused prompts move on.
fn number(engine: &Engine, body: &Json) -> Result<Json, Trouble> {
    if contains(body, "number")? {
        return to_float(body.get("number").ok_or(Trouble)?).map_err(|_| Trouble);
    }
    let front = contains(body, "front")? && body.get("front").ok_or(Trouble)?.is_truthy();
    let count = engine.counter.fetch_add(1, Ordering::SeqCst);
    Ok(Json::from(if front { -count } else { count }))
}
