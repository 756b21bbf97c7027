//! Taking prompts in, whoever brings them.

use remuda_core::{
    Dialect, Idempotency, NewTask, Origin, Priority, PromptExtra, Sha256, Task, TaskId, TaskInput, Tenant,
    Timestamp,
};
use remuda_runner::preflight::Question;
use remuda_store::Submitted;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::NativeError;
use crate::native::names;
use crate::permits::Submission;
use crate::routes::hand_in;
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
    pub(crate) task: Task,
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
    tenant: &Tenant,
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
    let question = Question {
        tenant: tenant.clone(),
        workflow: prompt.workflow,
        extra_data: prompt.extra_data,
        inputs: Default::default(),
        pinned: Vec::new(),
        requires: Default::default(),
        targets: prompt.targets.clone(),
        strict: true,
        held: Some(permit.held()),
    };
    let cleared = match state.preflight.check(question).await {
        Ok(cleared) => cleared,
        // What was taken in before was checked then, and what has changed since does not unmake it.
        Err(refused) => {
            let known = external_id.as_deref().zip(idempotency.as_ref());
            let Some((id, known)) = known else { return Err(refused.into()) };
            let before = taken_in_before(state, tenant, id, known).await?;
            return before.ok_or_else(|| refused.into());
        }
    };
    let (number, priority) = number_and_priority(state, tenant, prompt.number, prompt.front).await?;
    let extra = PromptExtra {
        extra_data: cleared.extra_data,
        targets: prompt.targets,
        number,
        outputs: cleared.outputs,
        ..PromptExtra::default()
    };
    let input = TaskInput {
        workflow: cleared.workflow,
        placements: cleared.placements,
        requires: cleared.requires,
        extra: Some(Box::new(extra)),
    };
    let new = NewTask {
        id: prompt.task,
        tenant: tenant.clone(),
        workflow_id: prompt.workflow_id,
        priority: prompt.priority.unwrap_or(priority),
        input,
        affinity: cleared.affinity,
        shape: cleared.shape,
        not_before: None,
        deadline: prompt.deadline,
        timeout_s: state.defaults.timeout_s,
        // As with one ComfyUI, an exception is shown at once. What a lost worker had under way is another matter.
        max_retries: prompt.max_retries.unwrap_or(0),
        metadata: None,
        retry_of: None,
        idempotency,
        origin: Some(Origin { dialect: Dialect::Comfyui, external_id, client: prompt.client }),
    };
    // Before the submission: its client is to hear of everything that happens to it.
    let has_client = new.origin.as_ref().is_some_and(|origin| origin.client.is_some());
    let follow = has_client.then(|| state.changes.follow(new.id));
    let submitted = hand_in(state, new).await.map_err(|error| match error.status {
        http::StatusCode::CONFLICT => in_use(),
        _ => error.into(),
    })?;
    drop(permit);
    match submitted {
        Submitted::New(task) => {
            state.desk.submitted(state, &task, follow);
            Ok(Accepted { task, before: false, number, node_errors: cleared.node_errors })
        }
        Submitted::Before(task) if task.origin.is_some() => again(state, task).await,
        // The key was one of the task API.
        Submitted::Before(_) => Err(in_use()),
    }
}

/// The prompt that the same request made before.
async fn taken_in_before(
    state: &AppState,
    tenant: &Tenant,
    id: &str,
    known: &Idempotency,
) -> Result<Option<Accepted>, NativeError> {
    let Some((request, task)) = state.store.submitted(tenant, &known.key).await? else { return Ok(None) };
    let task = state.store.task(task).await?.filter(|task| names::prompt_id(task) == id);
    match task {
        Some(task) if request == known.request => again(state, task).await.map(Some),
        _ => Err(in_use()),
    }
}

async fn again(state: &AppState, task: Task) -> Result<Accepted, NativeError> {
    state.desk.submitted(state, &task, None);
    let reading = state.permits.read().await?;
    let extra = state.store.input(task.id).await?.and_then(|input| input.extra);
    let number = extra.map_or(0.0, |extra| extra.number);
    drop(reading);
    Ok(Accepted { task, before: true, number, node_errors: Map::new() })
}

fn in_use() -> NativeError {
    NativeError::refused(
        "invalid_prompt_id",
        "prompt_id is in use",
        "another prompt has this prompt_id; leave it out, or send a fresh UUID",
    )
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
