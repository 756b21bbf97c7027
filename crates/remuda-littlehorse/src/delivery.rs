//! From a task that the server scheduled to a delivery, and from a delivery's cookie back to the task at the server.

use comfyui::workflow::Limits;
use littlehorse::proto::{TaskRunId, WfRunId};
use littlehorse::{Delivery as Scheduled, Ending, Host};
use remuda_preflight::GraphLimits;
use remuda_runner::source::foreign::Delivery;
use serde::{Deserialize, Serialize};

use crate::ids;
use crate::input;
use crate::intakes::Kind;
use crate::options::{self, TaskOptions};
use crate::refusal;

/// What is needed to report: survives a restart in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cookie {
    /// The ids of the workflow run and its parents, outermost first.
    run: Vec<String>,
    /// The task in it.
    guid: String,
    /// Who delivered it.
    host: String,
    port: u16,
    /// How many checkpoints earlier attempts have left.
    #[serde(default)]
    pub(crate) observed: i32,
    /// Which work it is: of this the ids of its prompts are made. Journals of earlier versions do not have it.
    #[serde(default)]
    work: Option<String>,
}

impl Cookie {
    fn of(task: &TaskRunId, host: &Host, observed: i32, work: String) -> Self {
        let mut run = Vec::new();
        let mut next = task.wf_run_id.as_ref();
        while let Some(id) = next {
            run.push(id.id.clone());
            next = id.parent_wf_run_id.as_deref();
        }
        run.reverse();
        let (guid, host, port) = (task.task_guid.clone(), host.name.clone(), host.port);
        Self { run, guid, host, port, observed, work: Some(work) }
    }

    /// From a task; one that somebody else wrote has none.
    pub(crate) fn read(delivery: &Delivery) -> Option<Self> {
        Cookie::deserialize(&delivery.cookie).ok()
    }

    /// The task's name at the server.
    pub(crate) fn task_run(&self) -> TaskRunId {
        let wf_run_id = self.run.iter().fold(None, |parent, id| {
            Some(WfRunId { id: id.clone(), parent_wf_run_id: parent.map(Box::new) })
        });
        TaskRunId { wf_run_id, task_guid: self.guid.clone() }
    }

    /// Who delivered it.
    pub(crate) fn host(&self) -> Host {
        Host { name: self.host.clone(), port: self.port }
    }
}

/// How deliveries are read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reading<'a> {
    pub(crate) tenant: Option<&'a str>,
    /// The worker's own limit.
    pub(crate) timeout_s: Option<u32>,
    /// Files are delivered somewhere.
    pub(crate) sink: bool,
    /// How large graphs may be, if not as usual.
    pub(crate) graph: Option<&'a GraphLimits>,
}

/// What a delivery asks for; or how it ends, because that makes no sense.
pub(crate) fn read(scheduled: &Scheduled, kind: Kind, reading: Reading<'_>) -> Result<Delivery, Box<Ending>> {
    let bad = |error: littlehorse::Error| Box::new(Ending::BadInput { message: error.to_string() });
    let task = scheduled.task_run().map_err(bad)?;
    let input = scheduled.input(0).map_err(bad)?;
    let limits = reading.graph.map_or_else(Limits::default, GraphLimits::workflow);
    let workflow = input::workflow(&input, &limits)?;
    let options = match kind {
        Kind::Plain => TaskOptions::default(),
        Kind::WithOptions => options::read(&scheduled.input(1).map_err(bad)?, &workflow, reading.sink)?,
    };
    let key = scheduled.key();
    let attempt = scheduled.attempt();
    let observed = scheduled.task.total_observed_checkpoints;
    let work = ids::work(reading.tenant, &key, workflow.get(), options.text.as_deref());
    let ids = ids::ids(&work, attempt);
    let cookie = Cookie::of(task, &scheduled.host, observed, work);
    Ok(Delivery {
        key: key.to_string(),
        attempt,
        prompt_id: ids.first,
        second_prompt_id: ids.second,
        earlier: ids.earlier,
        workflow,
        again: attempt > 0 || observed > 0,
        timeout_s: [reading.timeout_s, options.timeout_s].into_iter().flatten().min(),
        files: options.files,
        folder: options.folder,
        cookie: serde_json::to_value(cookie).unwrap_or_default(),
        sent_as: None,
        refused: None,
    })
}

/// A delivery that makes no sense, as a task that is over: only this is to be said of it. None, if it has no name to be
/// reported by.
pub(crate) fn refused(scheduled: &Scheduled, tenant: Option<&str>, ending: &Ending) -> Option<Delivery> {
    let task = scheduled.task_run().ok()?;
    let (key, attempt) = (scheduled.key(), scheduled.attempt());
    let observed = scheduled.task.total_observed_checkpoints;
    let work = ids::work(tenant, &key, "", None);
    let ids = ids::ids(&work, attempt);
    let cookie = Cookie::of(task, &scheduled.host, observed, work);
    Some(Delivery {
        key: key.to_string(),
        attempt,
        prompt_id: ids.first,
        second_prompt_id: ids.second,
        earlier: Vec::new(),
        workflow: serde_json::value::to_raw_value(&serde_json::Map::new()).ok()?,
        again: false,
        timeout_s: None,
        files: Vec::new(),
        folder: None,
        cookie: serde_json::to_value(cookie).ok()?,
        sent_as: None,
        refused: Some(refusal::to_json(ending)?),
    })
}

/// The task of a later attempt, as if it had been delivered; none, if the journal does not say enough.
pub(crate) fn later(delivery: &Delivery, attempt: i32, observed: i32) -> Option<Delivery> {
    let cookie = Cookie { observed, ..Cookie::read(delivery)? };
    let ids = ids::ids(cookie.work.as_deref()?, attempt);
    Some(Delivery {
        attempt,
        prompt_id: ids.first,
        second_prompt_id: ids.second,
        earlier: ids.earlier,
        again: true,
        cookie: serde_json::to_value(cookie).ok()?,
        sent_as: None,
        ..delivery.clone()
    })
}

#[cfg(test)]
mod tests {
    use littlehorse::proto::{ScheduledTask, VarNameAndVal, VariableValue, variable_value};

    use super::*;

    fn task_run() -> TaskRunId {
        let parent = WfRunId { id: "parent".into(), parent_wf_run_id: None };
        let run = WfRunId { id: "child".into(), parent_wf_run_id: Some(Box::new(parent)) };
        TaskRunId { wf_run_id: Some(run), task_guid: "0-3".into() }
    }

    fn scheduled(attempt: i32, workflow: &str) -> Scheduled {
        let value = VariableValue { value: Some(variable_value::Value::JsonObj(workflow.to_owned())) };
        let input = VarNameAndVal { var_name: "workflow".into(), value: Some(value), masked: false };
        let task = ScheduledTask {
            task_run_id: Some(task_run()),
            attempt_number: attempt,
            variables: vec![input],
            ..ScheduledTask::default()
        };
        let host = Host { name: "lh-1".into(), port: 2023 };
        Scheduled { task, host, at: tokio::time::Instant::now() }
    }

    fn plain(scheduled: &Scheduled) -> Result<Delivery, Box<Ending>> {
        read(scheduled, Kind::Plain, Reading::default())
    }

    const GRAPH: &str = r#"{"1": {"class_type": "A", "inputs": {}}}"#;

    #[test]
    fn the_task_is_found_again_from_the_cookie() {
        let delivery = plain(&scheduled(0, GRAPH)).unwrap();
        let text = serde_json::to_string(&delivery).unwrap();
        let cookie = Cookie::read(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(cookie.task_run(), task_run());
        assert_eq!(cookie.host(), Host { name: "lh-1".into(), port: 2023 });
    }

    #[test]
    fn a_later_attempt_is_the_same_work_and_is_looked_for() {
        let (first, second) = (plain(&scheduled(0, GRAPH)), plain(&scheduled(1, GRAPH)));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((&first.key, first.prompt_id), (&second.key, second.prompt_id));
        assert_eq!((first.again, second.again), (false, true));
        assert_eq!(first.key, "parent_child/0-3");
        assert_eq!(first.workflow.get(), GRAPH);
    }

    #[test]
    fn a_later_attempt_that_did_not_come_is_as_if_it_had() {
        let mut third = scheduled(3, GRAPH);
        third.task.total_observed_checkpoints = 1;
        let came = plain(&third).unwrap();
        let first = plain(&scheduled(0, GRAPH)).unwrap();
        let made = later(&Delivery { sent_as: Some(first.prompt_id), ..first.clone() }, 3, 1).unwrap();
        assert_eq!(serde_json::to_value(&made).unwrap(), serde_json::to_value(&came).unwrap());
        let mut old = first;
        old.cookie.as_object_mut().unwrap().remove("work");
        assert!(later(&old, 3, 1).is_none());
    }

    #[test]
    fn checkpoints_of_earlier_attempts_make_it_looked_for() {
        let mut scheduled = scheduled(0, GRAPH);
        scheduled.task.total_observed_checkpoints = 1;
        assert!(plain(&scheduled).unwrap().again);
    }

    #[test]
    fn without_an_input_there_is_no_delivery() {
        let mut scheduled = scheduled(0, GRAPH);
        scheduled.task.variables.clear();
        assert!(matches!(*plain(&scheduled).unwrap_err(), Ending::BadInput { .. }));
        // A kind of value that is not known here is not null.
        let value = Some(VariableValue::default());
        scheduled.task.variables = vec![VarNameAndVal { var_name: "workflow".into(), value, masked: false }];
        assert!(matches!(*plain(&scheduled).unwrap_err(), Ending::BadInput { .. }));
    }

    #[test]
    fn options_make_other_work_and_the_shorter_limit_counts() {
        let with = |options: &str, own: Option<u32>| {
            let mut scheduled = scheduled(0, GRAPH);
            let value = VariableValue { value: Some(variable_value::Value::JsonObj(options.to_owned())) };
            let input = VarNameAndVal { var_name: "options".into(), value: Some(value), masked: false };
            scheduled.task.variables.push(input);
            read(&scheduled, Kind::WithOptions, Reading { timeout_s: own, ..Reading::default() }).unwrap()
        };
        let delivery = with(r#"{"timeout_s": 20}"#, Some(60));
        assert_eq!(delivery.timeout_s, Some(20));
        assert_eq!(with(r#"{"timeout_s": 20}"#, Some(10)).timeout_s, Some(10));
        assert_eq!(with("{}", None).timeout_s, None);
        assert_eq!(delivery.prompt_id, with(r#"{"timeout_s": 20}"#, None).prompt_id);
        assert_ne!(delivery.prompt_id, with(r#"{"timeout_s": 21}"#, None).prompt_id);
    }

    #[test]
    fn a_task_with_options_that_comes_without_them_is_told() {
        let ended = *read(&scheduled(0, GRAPH), Kind::WithOptions, Reading::default()).unwrap_err();
        assert!(matches!(&ended, Ending::BadInput { message } if message.contains("input 1")), "{ended:?}");
    }
}
