//! Taking prompts in, whoever brings them.

use remuda_core::{Dialect, Idempotency, Origin, Priority, PromptExtra, Sha256, TaskId, Tenant, Timestamp};
use remuda_store::Glance;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::NativeError;
use super::lookup::is_native;
use crate::access::Caller;
use crate::native::names;
use crate::permits::Submission;
use crate::service::{self, Draft, Taken};
use crate::state::AppState;

/// What `front`, or a `number` below zero, asks for.
const URGENT: i64 = 9;

/// What a `number` asks for that is above all that were given.
const LATE: i64 = 1;

/// One prompt to take in.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// The name of the task to be, unless the same prompt came before.
    pub(crate) task: TaskId,
    /// The graph, byte for byte.
    pub(crate) workflow: Box<RawValue>,
    /// Which of the tenant's clients is told of it.
    pub(crate) client: Option<String>,
    /// What the client calls it, with the hash of its whole request: the same again is the same prompt.
    pub(crate) id: Option<(String, Sha256)>,
    /// Its place in the queue as the client wishes it.
    pub(crate) number: Option<f64>,
    /// Before everything that waits.
    pub(crate) front: bool,
    /// `extra_data`, which must be an object.
    pub(crate) extra_data: Option<Box<RawValue>>,
    /// `partial_execution_targets`.
    pub(crate) targets: Option<Vec<String>>,
    /// The id of the workflow that the graph was made from.
    pub(crate) workflow_id: Option<String>,
    /// Not after this moment.
    pub(crate) deadline: Option<Timestamp>,
    /// How urgent it is, whatever its number says.
    pub(crate) priority: Option<Priority>,
    /// How often it may fail and be tried again; not at all if absent.
    pub(crate) max_retries: Option<i32>,
}

impl Prompt {
    /// Nothing but a graph.
    pub(crate) fn new(workflow: Box<RawValue>) -> Self {
        Self {
            task: TaskId::new(),
            workflow,
            client: None,
            id: None,
            number: None,
            front: false,
            extra_data: None,
            targets: None,
            workflow_id: None,
            deadline: None,
            priority: None,
            max_retries: None,
        }
    }
}

/// A prompt that was taken in.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The task behind it, as the store gave it: it may be running already. A repeated submission gets the task of the
    /// first one, however far that is.
    pub(crate) seen: Glance,
    /// Whether the same prompt came before.
    pub(crate) before: bool,
    /// The number that its client is told.
    pub(crate) number: f64,
    /// What is wrong with outputs that will not run, while others will.
    pub(crate) node_errors: Map<String, Value>,
}

/// Checks a prompt and hands it to the store. When it returns, the prompt is durable, and its client's messages are kept.
/// The permit is for the body in memory, and ends with it.
pub(crate) async fn submit(
    state: &AppState,
    caller: &Caller,
    prompt: Prompt,
    permit: Submission,
) -> Result<Accepted, NativeError> {
    let (external_id, idempotency) = match prompt.id {
        Some((id, request)) => {
            let known = Idempotency { key: names::idempotency_key(&id), request };
            (Some(id), Some(known))
        }
        None => (None, None),
    };
    // What was taken in before was checked then, and what has changed since does not unmake it.
    if let Some((id, known)) = external_id.as_deref().zip(idempotency.as_ref())
        && let Some(before) = taken_in_before(state, caller, id, known).await?
    {
        return Ok(before);
    }
    let extra =
        PromptExtra { extra_data: prompt.extra_data, targets: prompt.targets, ..PromptExtra::default() };
    let draft = Draft {
        id: prompt.task,
        extra: Some(Box::new(extra)),
        strict: true,
        workflow_id: prompt.workflow_id,
        deadline: prompt.deadline,
        // As with one ComfyUI, an exception is shown at once. What a lost worker had under way is another matter.
        max_retries: prompt.max_retries.unwrap_or(0),
        idempotency,
        origin: Some(Origin { dialect: Dialect::COMFYUI, external_id, client: prompt.client }),
        ..Draft::new(prompt.workflow, &state.defaults)
    };
    let mut checked = service::check(state, caller, draft, &permit).await?;
    // After the check: what is refused has no number.
    let (number, priority) = number_and_priority(state, &caller.tenant, prompt.number, prompt.front).await?;
    checked.new.priority = prompt.priority.unwrap_or(priority);
    if let Some(extra) = &mut checked.new.input.extra {
        extra.number = number;
    }
    // Before the submission: its client is to hear of everything that happens to it.
    let has_client = checked.new.origin.as_ref().is_some_and(|origin| origin.client.is_some());
    let follow = has_client.then(|| state.changes.follow(checked.new.id));
    let Taken { seen, before, node_errors, .. } = service::submit(state, checked, permit).await?;
    match before {
        false => {
            state.desk.submitted(state, &seen.task, follow);
            Ok(Accepted { seen, before, number, node_errors })
        }
        true if is_native(&seen.task) => again(state, seen).await,
        // The key was one of another door.
        true => Err(NativeError::in_use()),
    }
}

/// The prompt that the same request made before.
async fn taken_in_before(
    state: &AppState,
    caller: &Caller,
    id: &str,
    known: &Idempotency,
) -> Result<Option<Accepted>, NativeError> {
    match service::submitted_before(state, caller, known).await? {
        None => Ok(None),
        Some(seen) if is_native(&seen.task) && names::prompt_id(&seen.task) == id => {
            again(state, seen).await.map(Some)
        }
        Some(_) => Err(NativeError::in_use()),
    }
}

async fn again(state: &AppState, seen: Glance) -> Result<Accepted, NativeError> {
    state.desk.submitted(state, &seen.task, None);
    let reading = state.permits.read().await?;
    let extra = service::input(state, seen.task.id).await?.and_then(|input| input.extra);
    let number = extra.map_or(0.0, |extra| extra.number);
    drop(reading);
    Ok(Accepted { seen, before: true, number, node_errors: Map::new() })
}

/// What the client is told, and what it means in our queue, where rank is not the client's to choose.
async fn number_and_priority(
    state: &AppState,
    tenant: &Tenant,
    number: Option<f64>,
    front: bool,
) -> Result<(f64, Priority), NativeError> {
    let priority = |value| Priority::new(value).unwrap_or(state.defaults.priority);
    Ok(match number {
        Some(number) if number < 0.0 => (number, priority(URGENT)),
        Some(number) if number > state.numbers.current(&*state.store, tenant).await? as f64 => {
            (number, priority(LATE))
        }
        Some(number) => (number, state.defaults.priority),
        None => {
            let next = state.numbers.next(&*state.store, tenant).await? as f64;
            if front { (-next, priority(URGENT)) } else { (next, state.defaults.priority) }
        }
    })
}
