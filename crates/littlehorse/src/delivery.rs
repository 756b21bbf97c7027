//! A task that was handed to this worker.

use std::fmt;

use crate::client::Host;
use crate::error::{Error, Result};
use crate::proto;
use crate::value::Value;

/// A piece of work, whichever attempt: the same for every delivery of it.
///
/// Written as the ids of the workflow run and its parents, outermost first, joined by `_`, then `/` and the task's guid.
/// Unique within a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey(String);

impl TaskKey {
    /// Of a task run.
    pub fn of(id: &proto::TaskRunId) -> Self {
        let path = id.wf_run_id.as_ref().map(wf_run_path).unwrap_or_default();
        Self(format!("{path}/{}", id.task_guid))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The ids of a workflow run and its parents, outermost first.
pub(crate) fn wf_run_path(id: &proto::WfRunId) -> String {
    let mut ids = vec![id.id.as_str()];
    let mut next = id.parent_wf_run_id.as_deref();
    while let Some(parent) = next {
        ids.push(&parent.id);
        next = parent.parent_wf_run_id.as_deref();
    }
    ids.reverse();
    ids.join("_")
}

/// The workflow run of a path. Ids have no `_` of their own.
pub(crate) fn wf_run_from_path(path: &str) -> proto::WfRunId {
    let mut run: Option<proto::WfRunId> = None;
    for id in path.split('_') {
        run = Some(proto::WfRunId { id: id.to_owned(), parent_wf_run_id: run.map(Box::new) });
    }
    run.unwrap_or_default()
}

/// A task that was handed to this worker: its timeout runs.
#[derive(Clone)]
pub struct Delivery {
    /// The task as it came.
    pub task: proto::ScheduledTask,
    /// Who handed it out.
    pub host: Host,
    /// When it arrived here.
    pub at: tokio::time::Instant,
}

/// An input of a task.
#[derive(Clone, PartialEq)]
pub struct Input {
    /// Its name; for people, since inputs are taken by their place.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// It must not be shown.
    pub masked: bool,
}

impl fmt::Debug for Delivery {
    /// Without the inputs: some of them must not be shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("key", &self.key().as_str())
            .field("attempt", &self.attempt())
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value: &dyn fmt::Debug = if self.masked { &"(masked)" } else { &self.value };
        f.debug_struct("Input").field("name", &self.name).field("value", value).finish()
    }
}

impl Delivery {
    /// Which piece of work it is.
    pub fn key(&self) -> TaskKey {
        self.task.task_run_id.as_ref().map_or_else(|| TaskKey(String::new()), TaskKey::of)
    }

    /// Its name at the server.
    pub fn task_run(&self) -> Result<&proto::TaskRunId> {
        let named = self.task.task_run_id.as_ref().filter(|id| id.wf_run_id.is_some());
        named.ok_or_else(|| Error::value("a delivered task", "has no id"))
    }

    /// Which attempt, from 0.
    pub fn attempt(&self) -> i32 {
        self.task.attempt_number
    }

    /// How many inputs it has.
    pub fn inputs(&self) -> usize {
        self.task.variables.len()
    }

    /// How many bytes its inputs have. The server keeps them in one record with output and log.
    pub fn size(&self) -> usize {
        self.task.variables.iter().map(prost::Message::encoded_len).sum()
    }

    /// The n-th input, from 0. One of a kind that this crate does not know is an error, not null.
    pub fn input(&self, n: usize) -> Result<Input> {
        let Some(input) = self.task.variables.get(n) else {
            let reason = format!("is not there: the task came with {}", self.inputs());
            return Err(Error::value(format!("input {n}"), reason));
        };
        let value =
            Value::try_from(input.value.clone().unwrap_or_default()).map_err(|error| match error {
                Error::Value { reason, .. } => {
                    Error::value(format!("input {n} ({})", input.var_name), reason)
                }
                other => other,
            })?;
        Ok(Input { name: input.var_name.clone(), value, masked: input.masked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ids: &[&str]) -> proto::WfRunId {
        wf_run_from_path(&ids.join("_"))
    }

    fn delivery() -> Delivery {
        let variable = |name: &str, text: &str, masked| proto::VarNameAndVal {
            var_name: name.into(),
            value: Some(Value::from(text).into()),
            masked,
        };
        Delivery {
            task: proto::ScheduledTask {
                task_run_id: Some(proto::TaskRunId {
                    wf_run_id: Some(run(&["run-1"])),
                    task_guid: "0-1".into(),
                }),
                attempt_number: 2,
                variables: vec![variable("a", "seen", false), variable("b", "s3cr3t", true)],
                ..Default::default()
            },
            host: Host { name: "h".into(), port: 1 },
            at: tokio::time::Instant::now(),
        }
    }

    #[test]
    fn the_key_is_written_as_java_does() {
        let id =
            proto::TaskRunId { wf_run_id: Some(run(&["top", "middle", "leaf"])), task_guid: "0-3".into() };
        let leaf = id.wf_run_id.as_ref().unwrap();
        assert_eq!(leaf.id, "leaf");
        assert_eq!(leaf.parent_wf_run_id.as_ref().unwrap().id, "middle");
        assert_eq!(TaskKey::of(&id).as_str(), "top_middle_leaf/0-3");
        assert_eq!(delivery().key().to_string(), "run-1/0-1");
    }

    #[test]
    fn inputs_are_taken_by_their_place() {
        let delivery = delivery();
        let input = delivery.input(0).unwrap();
        assert_eq!((input.name.as_str(), &input.value), ("a", &Value::from("seen")));
        let missing = delivery.input(2).unwrap_err().to_string();
        assert_eq!(missing, "input 2: is not there: the task came with 2");
    }

    #[test]
    fn masked_inputs_are_not_shown() {
        let delivery = delivery();
        assert_eq!(delivery.input(1).unwrap().value, Value::from("s3cr3t"));
        let shown = format!("{delivery:?} {:?} {:?}", delivery.input(0).unwrap(), delivery.input(1).unwrap());
        assert!(shown.contains("seen") && !shown.contains("s3cr3t"), "{shown}");
    }

    #[test]
    fn a_task_without_an_id_is_an_error() {
        let mut delivery = delivery();
        delivery.task.task_run_id = None;
        assert!(delivery.task_run().is_err());
    }
}
