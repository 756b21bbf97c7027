//! `POST /prompt`.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri};
use remuda_core::Sha256;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

use super::{Accepted, NativeError, Prompt, submit};
use crate::access::SubmitCaller;
use crate::extract::{MOST_VALUES, few_values, read_body_with};
use crate::native::names;
use crate::state::AppState;

/// The longest `client_id`.
const MAX_CLIENT: usize = 256;

/// How much of a refused value an error repeats.
const SHOWN: usize = 120;

type Refused<T> = Result<T, NativeError>;

/// Takes a prompt in: `{prompt, client_id?, prompt_id?, number?, front?, extra_data?, partial_execution_targets?}`.
pub(super) async fn prompt(
    State(state): State<AppState>,
    SubmitCaller(caller): SubmitCaller,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Refused<Response> {
    let (most, time) = (state.limits.body, state.limits.body_time);
    let (bytes, permit) = read_body_with(&headers, body, most, time, state.permits.submission()).await?;
    let size = bytes.len();
    let read = move || read(&bytes);
    let mut prompt =
        state.compute_admitted("reading a prompt", &caller.tenant, &permit, size, read).await??;
    if prompt.client.is_none() {
        prompt.client = client_in(&uri);
    }
    let accepted = submit(&state, &caller, prompt, permit).await?;
    let Accepted { seen, number, node_errors, .. } = accepted;
    let id = names::prompt_id(&seen.task);
    Ok(Json(json!({"prompt_id": id, "number": shown(number), "node_errors": node_errors})).into_response())
}

/// Whole numbers as such.
pub(super) fn shown(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        return (number as i64).into();
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// The fields as they came.
#[derive(Deserialize)]
struct Fields {
    #[serde(default, deserialize_with = "present")]
    prompt: Option<Box<RawValue>>,
    #[serde(default)]
    client_id: Option<Value>,
    #[serde(default)]
    prompt_id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    number: Option<Value>,
    #[serde(default)]
    front: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    extra_data: Option<Box<RawValue>>,
    #[serde(default)]
    partial_execution_targets: Option<Value>,
}

/// Null is not the same as nothing.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What of `extra_data` is looked at. The rest of it stays text.
#[derive(Deserialize)]
struct Extra<'a> {
    #[serde(borrow, default)]
    client_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    extra_pnginfo: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    workflow: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct PageGraph<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

/// Reads a body, whatever its content type says.
pub(crate) fn read(bytes: &[u8]) -> Refused<Prompt> {
    let malformed =
        |details: String| NativeError::refused("invalid_request", "The request cannot be read", details);
    let text = std::str::from_utf8(bytes).map_err(|error| malformed(format!("not UTF-8: {error}")))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if !text.starts_with('{') {
        return Err(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) if text.starts_with(['[', '"']) => NativeError::no_prompt(),
            Ok(_) => malformed("the body must be a JSON object".to_owned()),
            Err(error) => malformed(format!("not JSON: {error}")),
        });
    }
    few_values(text.as_bytes(), MOST_VALUES)?;
    let fields: Fields =
        serde_json::from_str(text).map_err(|error| malformed(format!("not JSON: {error}")))?;
    let Some(workflow) = fields.prompt else { return Err(NativeError::no_prompt()) };
    if workflow.get() == "[]" {
        return Err(NativeError::refused("prompt_no_outputs", "Prompt has no outputs", ""));
    }
    let extra = fields.extra_data.as_deref().map(read_extra).transpose()?;
    let (hidden, workflow_id) = extra.unwrap_or_default();
    let client = read_client(match (fields.client_id, hidden) {
        (Some(client), _) => Some(client),
        (None, Some(hidden)) => Some(plain(hidden).ok_or_else(bad_client)?),
        (None, None) => None,
    })?;
    let id = read_id(fields.prompt_id)?.map(|id| (id, Sha256::of(bytes)));
    Ok(Prompt {
        client,
        id,
        number: fields.number.as_ref().map(read_number).transpose()?,
        front: fields.front.is_some_and(|front| is_true(&front)),
        targets: read_targets(fields.partial_execution_targets)?,
        extra_data: fields.extra_data,
        workflow_id,
        ..Prompt::new(workflow)
    })
}

/// The client and the id of the workflow in `extra_data`, in which some things would make a ComfyUI's answers fail for
/// everybody.
fn read_extra(raw: &RawValue) -> Refused<(Option<&RawValue>, Option<String>)> {
    let bad =
        |details: &str| NativeError::refused("invalid_extra_data", "extra_data cannot be taken", details);
    if !raw.get().starts_with('{') {
        return Err(bad("extra_data must be an object"));
    }
    let extra: Extra<'_> = serde_json::from_str(raw.get()).map_err(|error| bad(&error.to_string()))?;
    let workflow = match extra.extra_pnginfo {
        None => None,
        Some(info) if info.get().starts_with('{') => {
            let info: Info<'_> = serde_json::from_str(info.get()).map_err(|error| bad(&error.to_string()))?;
            info.workflow
        }
        Some(_) => return Err(bad("extra_data.extra_pnginfo must be an object")),
    };
    if workflow.is_some_and(|workflow| !workflow.get().starts_with('{')) {
        return Err(bad("extra_data.extra_pnginfo.workflow must be an object"));
    }
    Ok((extra.client_id, workflow.and_then(workflow_id)))
}

/// The id of the workflow that a page made the graph from.
fn workflow_id(workflow: &RawValue) -> Option<String> {
    let PageGraph { id } = serde_json::from_str(workflow.get()).ok()?;
    let id: String = serde_json::from_str(id?.get()).ok()?;
    crate::wire::name("workflow_id", &id).is_ok().then_some(id)
}

/// A value that is neither a list nor an object.
fn plain(raw: &RawValue) -> Option<Value> {
    (!raw.get().starts_with(['[', '{'])).then(|| serde_json::from_str(raw.get()).ok()).flatten()
}

/// A client's name. What is neither text nor plain value would end a ComfyUI.
fn read_client(client: Option<Value>) -> Refused<Option<String>> {
    let text = match client {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text,
        Some(plain @ (Value::Bool(_) | Value::Number(_))) => plain.to_string(),
        Some(Value::Array(_) | Value::Object(_)) => return Err(bad_client()),
    };
    if text.is_empty() {
        return Ok(None);
    }
    if is_client(&text) { Ok(Some(text)) } else { Err(bad_client()) }
}

fn is_client(text: &str) -> bool {
    text.len() <= MAX_CLIENT && !text.chars().any(char::is_control)
}

fn bad_client() -> NativeError {
    let details =
        format!("client_id must be a text of at most {MAX_CLIENT} bytes without control characters");
    NativeError::refused("invalid_client_id", "client_id cannot be taken", details)
}

/// `?clientId=`, where some client libraries put it.
fn client_in(uri: &Uri) -> Option<String> {
    let query = url::form_urlencoded::parse(uri.query()?.as_bytes());
    let found = query.into_iter().find(|(name, _)| name == "clientId" || name == "client_id");
    found.map(|(_, value)| value.into_owned()).filter(|text| !text.is_empty() && is_client(text))
}

fn read_id(id: Option<Value>) -> Refused<Option<String>> {
    let text = match id {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text,
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => String::new(),
    };
    if names::is_prompt_id(&text) {
        return Ok(Some(text));
    }
    let details = "prompt_id must be a text of 1 to 200 bytes without control characters, best a UUID";
    Err(NativeError::refused("invalid_prompt_id", "prompt_id cannot be taken", details))
}

fn read_number(number: &Value) -> Refused<f64> {
    let read = match number {
        Value::Number(number) => number.as_f64(),
        Value::Bool(one) => Some(f64::from(u8::from(*one))),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    read.filter(|number| number.is_finite()).ok_or_else(|| {
        let shown: String = number.to_string().chars().take(SHOWN).collect();
        let details = format!("{shown} is not a finite number");
        NativeError::refused("invalid_number", "number cannot be taken", details)
    })
}

fn read_targets(targets: Option<Value>) -> Refused<Option<Vec<String>>> {
    let bad = || {
        let details = "a list of node ids";
        NativeError::refused("invalid_targets", "partial_execution_targets cannot be taken", details)
    };
    match targets {
        None | Some(Value::Null) => Ok(None),
        // How many there may be is checked with the graph.
        Some(Value::Array(list)) => {
            // A number is never equal to the id of a node, which is a text.
            Ok(Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect()))
        }
        Some(_) => Err(bad()),
    }
}

/// As Python sees it, whatever it is and without making it.
pub(super) fn is_true(value: &RawValue) -> bool {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'[' | b'{') => !text.get(1..text.len() - 1).unwrap_or_default().trim().is_empty(),
        Some(b'"') => text != "\"\"",
        Some(b'n' | b'f') | None => false,
        Some(b't') => true,
        Some(_) => text.parse() != Ok(0.0_f64),
    }
}
