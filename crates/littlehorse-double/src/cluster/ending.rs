//! How attempts end: by a report, by their timeout, or because a test says so.

use serde_json::Value as Json;

use super::timers::Timer;
use super::{Cluster, RunKey, State};
use crate::gson::rewritten;
use crate::options::NewRun;
use crate::proto::report_task_run::Result as Reported;
use crate::proto::type_definition::DefinedType;
use crate::proto::variable_value::Value;
use crate::proto::{
    LhErrorType, LhTaskError, ReportTaskRun, TaskDef, TaskStatus, VariableType, VariableValue, task_attempt,
};
use crate::run::{RunState, Seen};

impl Cluster {
    pub(crate) fn schedule(&self, new: NewRun) -> (RunKey, crate::proto::TaskRunId) {
        let held = new.held;
        let (tenant, run) = RunState::new(new, self.clock.timestamp());
        let id = run.id().clone();
        let key = RunKey::new(&tenant, &id);
        let mut state = self.state();
        let attempt = run.latest();
        state.runs.insert(key.clone(), run);
        if !held {
            self.begin(&mut state, &key, attempt);
        }
        drop(state);
        self.look_at_timers();
        self.tell();
        (key, id)
    }

    /// A report came: it is written down, and soon read. One of an attempt that does not run changes nothing.
    pub(crate) fn report(&self, tenant: &str, report: ReportTaskRun) {
        if self.options.applied_after.is_zero() {
            return self.apply(tenant, report);
        }
        let when = self.clock.now() + self.options.applied_after;
        self.state().timers.set(when, Timer::Apply(tenant.to_owned(), Box::new(report)));
        self.look_at_timers();
    }

    pub(super) fn apply(&self, tenant: &str, report: ReportTaskRun) {
        let Some(key) = report.task_run_id.as_ref().map(|id| RunKey::new(tenant, id)) else { return };
        let mut state = self.state();
        let (at, now) = (self.clock.now(), self.clock.timestamp());
        let def = state.runs.get(&key).and_then(|run| state.task_def(tenant, run.task())).cloned();
        let Some(run) = state.runs.get_mut(&key) else { return };
        let runs = run.latest() == report.attempt_number && run.status() == TaskStatus::TaskRunning;
        let judgement = judged(def.as_ref(), &report).filter(|_| runs);
        run.reports.push(Seen { report: report.clone(), heard: judgement.is_some(), at });
        if let Some((status, result)) = judgement {
            run.end(status, result, report.log_output, report.time.or(Some(now)));
            self.go_on(&mut state, &key);
        }
        drop(state);
        self.look_at_timers();
        self.tell();
    }

    pub(super) fn time_out(&self, state: &mut State, key: &RunKey, attempt: i32) {
        let now = self.clock.timestamp();
        let Some(run) = state.runs.get_mut(key) else { return };
        if run.latest() != attempt || run.status() != TaskStatus::TaskRunning {
            return;
        }
        run.end(TaskStatus::TaskTimeout, None, None, Some(now));
        self.go_on(state, key);
    }

    /// The latest attempt runs out of time now.
    pub(crate) fn time_out_now(&self, key: &RunKey) {
        let mut state = self.state();
        let attempt = state.runs.get(key).map_or(0, RunState::latest);
        self.time_out(&mut state, key, attempt);
        drop(state);
        self.look_at_timers();
        self.tell();
    }

    /// Another attempt, if there may be one.
    fn go_on(&self, state: &mut State, key: &RunKey) {
        let now = self.clock.timestamp();
        let Some(run) = state.runs.get_mut(key) else { return };
        let again = matches!(run.status(), TaskStatus::TaskFailed | TaskStatus::TaskTimeout);
        if !again || run.attempts_left() <= 0 {
            return;
        }
        let pause = run.pause();
        let attempt = run.add_attempt(now);
        match pause {
            Some(pause) => {
                run.set_status(TaskStatus::TaskPending);
                state.timers.set(self.clock.now() + pause, Timer::Begin(key.clone(), attempt));
            }
            None => self.begin(state, key, attempt),
        }
    }

    /// Changes a run as if something happened elsewhere.
    pub(crate) fn change(&self, key: &RunKey, change: impl FnOnce(&mut RunState)) {
        let mut state = self.state();
        if let Some(run) = state.runs.get_mut(key) {
            change(run);
        }
        drop(state);
        self.tell();
    }

    pub(crate) fn remove(&self, key: &RunKey) {
        let mut state = self.state();
        state.dealing.withdraw(key);
        state.runs.remove(key);
        drop(state);
        self.tell();
    }
}

/// What a report makes of an attempt; nothing, if the server cannot digest it: then the attempt goes on.
fn judged(
    def: Option<&TaskDef>,
    report: &ReportTaskRun,
) -> Option<(TaskStatus, Option<task_attempt::Result>)> {
    let status = TaskStatus::try_from(report.status).ok()?;
    let result = report.result.clone().map(|result| match result {
        Reported::Output(value) => task_attempt::Result::Output(stored(value)),
        Reported::Error(error) => task_attempt::Result::Error(error),
        Reported::Exception(exception) => task_attempt::Result::Exception(exception),
    });
    let problem = match (status, &report.result) {
        (TaskStatus::TaskSuccess, Some(Reported::Output(value))) => def.and_then(|def| misfit(def, value)),
        (TaskStatus::TaskException, Some(Reported::Exception(_))) => None,
        (TaskStatus::TaskSuccess | TaskStatus::TaskException, _) => return None,
        _ => None,
    };
    match problem {
        None => Some((status, result)),
        Some(message) => {
            let error = LhTaskError { r#type: LhErrorType::VarSubError as i32, message };
            Some((TaskStatus::TaskOutputSerdeError, Some(task_attempt::Result::Error(error))))
        }
    }
}

/// What is wrong with an output.
fn misfit(def: &TaskDef, value: &VariableValue) -> Option<String> {
    let wanted = def.return_type.as_ref()?.return_type.as_ref()?.defined_type.as_ref()?;
    let DefinedType::PrimitiveType(wanted) = wanted else { return None };
    let wanted = VariableType::try_from(*wanted).ok()?;
    let value = value.value.as_ref()?;
    let parsed = |text: &str| serde_json::from_str::<Json>(text).ok();
    match (wanted, value) {
        (VariableType::JsonObj, Value::JsonObj(text)) => {
            let good = parsed(text).is_some_and(|json| json.is_object());
            (!good).then(|| "Error deserializing JSON Obj".to_owned())
        }
        (VariableType::JsonArr, Value::JsonArr(text)) => {
            let good = parsed(text).is_some_and(|json| json.is_array());
            (!good).then(|| "Error deserializing JSON Arr".to_owned())
        }
        (VariableType::Double, Value::Double(_))
        | (VariableType::Bool, Value::Bool(_))
        | (VariableType::Str, Value::Str(_))
        | (VariableType::Int, Value::Int(_))
        | (VariableType::Bytes, Value::Bytes(_))
        | (VariableType::WfRunId, Value::WfRunId(_))
        | (VariableType::Timestamp, Value::UtcTimestamp(_)) => None,
        _ => Some(format!(
            "Task output incompatible with declared return type: \
             Value of type {} is not compatible with expected type {}",
            type_of(value),
            wanted.as_str_name()
        )),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::JsonObj(_) => "JSON_OBJ",
        Value::JsonArr(_) => "JSON_ARR",
        Value::Double(_) => "DOUBLE",
        Value::Bool(_) => "BOOL",
        Value::Str(_) => "STR",
        Value::Int(_) => "INT",
        Value::Bytes(_) => "BYTES",
        Value::WfRunId(_) => "WF_RUN_ID",
        Value::UtcTimestamp(_) => "TIMESTAMP",
        Value::Struct(_) => "STRUCT",
        Value::Array(_) => "ARRAY",
        Value::Map(_) => "MAP",
    }
}

/// JSON that goes through the server is written anew.
fn stored(value: VariableValue) -> VariableValue {
    let value = value.value.map(|value| match value {
        Value::JsonObj(text) => Value::JsonObj(rewritten(&text)),
        Value::JsonArr(text) => Value::JsonArr(rewritten(&text)),
        other => other,
    });
    VariableValue { value }
}
