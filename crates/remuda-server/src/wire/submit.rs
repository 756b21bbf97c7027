//! What a submission says.

use std::collections::{BTreeMap, BTreeSet};

use comfyui::lenient::count_values;
use jiff::Timestamp;
use remuda_core::{JsonText, Priority, Requirements};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::options::TaskDefaults;
use crate::service::Draft;

/// The longest render that can be asked for: a week.
const MAX_TIMEOUT_S: i64 = 7 * 86_400;

/// The most retries that can be asked for.
const MAX_RETRIES: i64 = 100;

/// Names longer than this are refused.
const MAX_NAME: usize = 256;

/// The most labels that can be asked for. Tasks that ask for different things wait in different lanes, and each lane is kept
/// in memory and looked at: whoever submits chooses how many there are and how long.
const MAX_LABELS: usize = 64;

/// The most nodes, and the most models, that can be asked for.
const MAX_ASKED: usize = 256;

/// The most bytes that the names of all of them have together.
const MAX_REQUIRES: usize = 16 << 10;

/// The longest metadata, as text.
const MAX_METADATA: usize = 64 << 10;

/// The most values in it: every list of tasks has it.
const MAX_METADATA_VALUES: usize = 2_000;

/// One request to run a workflow. Unknown fields are refused.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmitTask {
    /// What you call the workflow. For lists and for your own use.
    #[serde(default)]
    #[schema(example = "text_to_image_v1", max_length = 256)]
    workflow_id: Option<String>,
    /// 0 (lowest) to 9 (highest), 5 when absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9, example = 5)]
    priority: Option<i64>,
    /// The workflow in ComfyUI's API format. It reaches ComfyUI byte for byte.
    #[schema(value_type = Object)]
    pub(crate) payload: Box<RawValue>,
    /// Uploaded files for inputs of nodes, by `node.input`: `{"10.image": "asset:<sha256>"}`, or the name of an upload.
    #[serde(default)]
    inputs: Option<BTreeMap<String, String>>,
    /// Labels that a worker must carry. The same as `requires.labels`.
    #[serde(default)]
    labels: Option<BTreeSet<String>>,
    /// What a worker must have. The nodes and models of the workflow are found automatically.
    #[serde(default)]
    requires: Option<Requires>,
    /// Do not start before this moment.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    not_before: Option<Timestamp>,
    /// When it must be done: a task that still waits or renders then fails.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline: Option<Timestamp>,
    /// How long it may render, in seconds, from the start of the render. 1800 when absent.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 604_800)]
    timeout_s: Option<i64>,
    /// How often a failed task is retried at most; after an exception or a lack of memory only once. 3 when absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 100)]
    max_retries: Option<i64>,
    /// Not supported yet: a submission with it is refused.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    webhook: Option<IgnoredAny>,
    /// Your own data, returned as it came. At most 64 KiB, and 2,000 values.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
}

/// What a worker must have.
#[derive(Debug, Default, Deserialize, serde::Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Requires {
    /// Labels.
    pub(crate) labels: BTreeSet<String>,
    /// Node classes.
    pub(crate) nodes: BTreeSet<String>,
    /// Model files.
    pub(crate) models: BTreeSet<String>,
}

impl From<Requirements> for Requires {
    fn from(requires: Requirements) -> Self {
        Self { labels: requires.labels, nodes: requires.nodes, models: requires.models }
    }
}

impl SubmitTask {
    /// Checks every field but the graph.
    pub(crate) fn check(self, defaults: &TaskDefaults, now: Timestamp) -> ApiResult<Draft> {
        if let Some(id) = &self.workflow_id {
            name("workflow_id", id)?;
        }
        let priority = match self.priority {
            Some(value) => {
                Priority::new(value).map_err(|error| ApiError::invalid("priority", error.to_string()))?
            }
            None => defaults.priority,
        };
        if self.webhook.is_some() {
            return Err(ApiError::invalid(
                "webhook",
                "webhooks are not possible yet; follow the task's events instead",
            ));
        }
        for (field, moment) in [("not_before", self.not_before), ("deadline", self.deadline)] {
            if moment.is_some_and(|moment| !(Timestamp::UNIX_EPOCH..LATEST).contains(&moment)) {
                let error = format!("{field} must be between 1970 and the year 9000");
                return Err(ApiError::invalid(field, error));
            }
        }
        let timeout_s = bounded("timeout_s", self.timeout_s, 1, MAX_TIMEOUT_S, defaults.timeout_s)?;
        let max_retries = bounded("max_retries", self.max_retries, 0, MAX_RETRIES, defaults.max_retries)?;
        if let Some(deadline) = self.deadline {
            if deadline <= now {
                return Err(ApiError::invalid("deadline", format!("deadline {deadline} has passed")));
            }
            if self.not_before.is_some_and(|start| start >= deadline) {
                return Err(ApiError::invalid("not_before", "not_before is not before deadline"));
            }
        }
        let requires = self.requires.unwrap_or_default();
        let mut labels = requires.labels;
        labels.extend(self.labels.unwrap_or_default());
        let requires = Requirements { labels, nodes: requires.nodes, models: requires.models };
        check_requires(&requires)?;
        let metadata = self.metadata.as_deref().map(read_metadata).transpose()?;
        Ok(Draft {
            workflow_id: self.workflow_id,
            priority,
            inputs: self.inputs.unwrap_or_default(),
            requires,
            not_before: self.not_before,
            deadline: self.deadline,
            timeout_s,
            max_retries,
            metadata,
            ..Draft::new(self.payload, defaults)
        })
    }
}

/// The beginning of the year 9000. Stores and their drivers do not agree on the last moments that can be told.
const LATEST: Timestamp = Timestamp::constant(221_845_392_000, 0);

/// Whether this much may be asked of a worker.
fn check_requires(requires: &Requirements) -> ApiResult<()> {
    let fields = [
        ("labels", &requires.labels, MAX_LABELS),
        ("requires.nodes", &requires.nodes, MAX_ASKED),
        ("requires.models", &requires.models, MAX_ASKED),
    ];
    for (field, names, most) in fields {
        if names.len() > most {
            let error = format!("{field} has {} entries; {most} are allowed", names.len());
            return Err(ApiError::invalid(field, error));
        }
        names.iter().try_for_each(|text| name(field, text))?;
    }
    if requires.size() > MAX_REQUIRES {
        let error = format!(
            "the names of labels, nodes and models have {} bytes together; at most {MAX_REQUIRES} are allowed",
            requires.size()
        );
        return Err(ApiError::invalid("requires", error));
    }
    Ok(())
}

/// Metadata, made of its text when that is known to be short.
fn read_metadata(raw: &RawValue) -> ApiResult<JsonText> {
    let bad = |error: String| ApiError::invalid("metadata", error);
    let text = raw.get();
    // Blanks between values are not kept.
    if text.len() > 2 * MAX_METADATA {
        return Err(bad(format!("metadata is longer than {MAX_METADATA} bytes")));
    }
    if count_values(text.as_bytes(), usize::MAX) > MAX_METADATA_VALUES {
        return Err(bad(format!("metadata has more than {MAX_METADATA_VALUES} values")));
    }
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    let kept = JsonText::from(value);
    if kept.get().len() > MAX_METADATA {
        return Err(bad(format!("metadata is longer than {MAX_METADATA} bytes")));
    }
    Ok(kept)
}

/// Whether a text can be a name. Not every store holds control characters.
pub(crate) fn name(field: &str, text: &str) -> ApiResult<()> {
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        let error = format!("{field} must have 1 to {MAX_NAME} bytes and no control characters");
        return Err(ApiError::invalid(field, error));
    }
    Ok(())
}

/// Whether a text has no control characters, which not every store holds.
pub(crate) fn printable(field: &str, text: &str) -> ApiResult<()> {
    if text.chars().any(char::is_control) {
        return Err(ApiError::invalid(field, format!("{field} has control characters")));
    }
    Ok(())
}

fn bounded(field: &str, value: Option<i64>, least: i64, most: i64, default: i32) -> ApiResult<i32> {
    let Some(value) = value else { return Ok(default) };
    match i32::try_from(value) {
        Ok(number) if (least..=most).contains(&value) => Ok(number),
        _ => Err(ApiError::invalid(field, format!("{field} is {value}; {least} to {most} are allowed"))),
    }
}
