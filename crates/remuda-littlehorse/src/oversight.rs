//! Whether the server still wants a task from this process.

use std::time::Duration;

use littlehorse::proto::{TaskRun, TaskStatus};
use remuda_runner::source::foreign::Withdrawn;

/// The first look comes so late that most short renders are over before it.
pub(crate) const FIRST: Duration = Duration::from_secs(1);

/// The usual pause between two looks.
const PAUSE: Duration = Duration::from_secs(15);

/// After the timeout of the attempt the server needs a moment to notice.
const AFTER_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause between two looks after the timeout.
const PAUSE_LATE: Duration = Duration::from_secs(2);

/// What a look at the task shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The attempt is this worker's.
    Ours,
    /// It is not, or not any more.
    Withdrawn(Withdrawn),
}

/// Judges what the server knows of a task whose attempt `attempt` was handed to the worker `me`.
pub(crate) fn judge(run: &TaskRun, attempt: i32, me: &str) -> Look {
    let number = usize::try_from(attempt).unwrap_or_default();
    let Some(ours) = run.attempts.get(number) else {
        return Look::Withdrawn(Withdrawn::Done("the server does not know this attempt any more".to_owned()));
    };
    // What was just handed out may still look as if it waited.
    if is_open(ours.status) {
        return Look::Ours;
    }
    let newest = run.attempts.last().filter(|_| run.attempts.len() > number + 1);
    match newest {
        Some(newest) => match status(newest.status) {
            Some(TaskStatus::TaskRunning) if newest.task_worker_id == me => {
                Look::Withdrawn(Withdrawn::Superseded)
            }
            Some(TaskStatus::TaskRunning) => Look::Withdrawn(Withdrawn::Elsewhere),
            Some(TaskStatus::TaskScheduled | TaskStatus::TaskPending) => {
                Look::Withdrawn(Withdrawn::Superseded)
            }
            // All so far are over, and another one will come.
            _ if is_open(run.status) => Look::Withdrawn(Withdrawn::Superseded),
            _ => closed(run),
        },
        None if is_open(run.status) => Look::Withdrawn(Withdrawn::Superseded),
        None => closed(run),
    }
}

/// The newest attempt of a task, if it is later than this one and runs under the name of the worker `me`.
pub(crate) fn handed_to(run: &TaskRun, attempt: i32, me: &str) -> Option<i32> {
    let newest = run.attempts.last()?;
    let number = i32::try_from(run.attempts.len()).ok()? - 1;
    let ours = status(newest.status) == Some(TaskStatus::TaskRunning) && newest.task_worker_id == me;
    (ours && number > attempt).then_some(number)
}

fn closed(run: &TaskRun) -> Look {
    let word = status(run.status).map_or("over", |status| status.as_str_name());
    let mut all = run.attempts.iter().map(|attempt| attempt.status).chain([run.status]);
    // Its files are where ours are: ours may be those, when this process was killed right after it had told its end.
    if all.any(|number| status(number) == Some(TaskStatus::TaskSuccess)) {
        return Look::Withdrawn(Withdrawn::Done(format!("LittleHorse has its result ({word})")));
    }
    Look::Withdrawn(Withdrawn::Unwanted(format!("LittleHorse has given the task up ({word})")))
}

fn status(number: i32) -> Option<TaskStatus> {
    TaskStatus::try_from(number).ok()
}

fn is_open(number: i32) -> bool {
    let open = [TaskStatus::TaskScheduled, TaskStatus::TaskRunning, TaskStatus::TaskPending];
    status(number).is_some_and(|status| open.contains(&status))
}

/// How long until the next look, `elapsed` after the delivery of an attempt that may take `timeout`: right after the
/// timeout, and until then, and after it, in regular pauses.
pub(crate) fn pause(elapsed: Duration, timeout: Option<Duration>) -> Duration {
    let Some(timeout) = timeout else { return PAUSE };
    match (timeout + AFTER_TIMEOUT).checked_sub(elapsed) {
        Some(left) if !left.is_zero() => PAUSE.min(left),
        // Servers before 1.1.1 never end a second attempt.
        _ if elapsed > timeout + PAUSE * 4 => PAUSE,
        _ => PAUSE_LATE,
    }
}

#[cfg(test)]
mod tests {
    use TaskStatus::{
        TaskException, TaskFailed, TaskPending, TaskRunning, TaskScheduled, TaskSuccess, TaskTimeout,
    };
    use littlehorse::proto::TaskAttempt;

    use super::*;

    fn run(of: TaskStatus, attempts: &[(TaskStatus, &str)]) -> TaskRun {
        let attempts = attempts.iter().map(|(status, worker)| TaskAttempt {
            status: (*status).into(),
            task_worker_id: (*worker).to_owned(),
            ..TaskAttempt::default()
        });
        TaskRun { status: of.into(), attempts: attempts.collect(), ..TaskRun::default() }
    }

    fn look(of: TaskStatus, attempts: &[(TaskStatus, &str)], attempt: i32) -> Look {
        judge(&run(of, attempts), attempt, "me")
    }

    #[test]
    fn an_attempt_that_runs_is_ours() {
        assert_eq!(look(TaskRunning, &[(TaskRunning, "me")], 0), Look::Ours);
        assert_eq!(look(TaskScheduled, &[(TaskScheduled, "")], 0), Look::Ours, "not told yet");
        assert_eq!(look(TaskRunning, &[(TaskTimeout, "other"), (TaskRunning, "me")], 1), Look::Ours);
    }

    #[test]
    fn after_its_timeout_another_attempt_may_come() {
        let superseded = Look::Withdrawn(Withdrawn::Superseded);
        assert_eq!(look(TaskRunning, &[(TaskTimeout, "me"), (TaskScheduled, "")], 0), superseded);
        assert_eq!(look(TaskPending, &[(TaskTimeout, "me")], 0), superseded, "it waits for its delay");
        assert_eq!(look(TaskRunning, &[(TaskTimeout, "me"), (TaskRunning, "me")], 0), superseded);
        let elsewhere = Look::Withdrawn(Withdrawn::Elsewhere);
        assert_eq!(look(TaskRunning, &[(TaskTimeout, "me"), (TaskRunning, "other")], 0), elsewhere);
    }

    #[test]
    fn an_attempt_that_was_handed_to_this_worker_is_seen() {
        let handed = |attempts: &[(TaskStatus, &str)]| handed_to(&run(TaskRunning, attempts), 0, "me");
        assert_eq!(handed(&[(TaskTimeout, "me"), (TaskRunning, "me")]), Some(1));
        assert_eq!(handed(&[(TaskTimeout, "me"), (TaskTimeout, "me"), (TaskRunning, "me")]), Some(2));
        assert_eq!(handed(&[(TaskRunning, "me")]), None, "that is this one");
        assert_eq!(handed(&[(TaskTimeout, "me"), (TaskRunning, "other")]), None);
        assert_eq!(handed(&[(TaskTimeout, "me"), (TaskScheduled, "")]), None);
        assert_eq!(handed(&[(TaskTimeout, "me"), (TaskTimeout, "me")]), None);
    }

    #[test]
    fn while_the_task_is_open_another_attempt_will_come() {
        let over = [(TaskTimeout, "me"), (TaskTimeout, "me")];
        assert_eq!(look(TaskPending, &over, 0), Look::Withdrawn(Withdrawn::Superseded));
    }

    #[test]
    fn what_was_given_up_is_not_wanted() {
        for (of, attempts) in [
            (TaskTimeout, &[(TaskTimeout, "me")][..]),
            (TaskFailed, &[(TaskTimeout, "me"), (TaskFailed, "other")]),
            (TaskException, &[(TaskException, "me")]),
        ] {
            assert!(
                matches!(look(of, attempts, 0), Look::Withdrawn(Withdrawn::Unwanted(_))),
                "{of:?} {attempts:?}"
            );
        }
    }

    #[test]
    fn what_somebody_has_told_the_end_of_is_done() {
        for (of, attempts) in [
            (TaskSuccess, &[(TaskTimeout, "me"), (TaskSuccess, "other")][..]),
            // Told by this worker, before it was killed.
            (TaskSuccess, &[(TaskSuccess, "me")]),
            // Not known at all.
            (TaskRunning, &[]),
        ] {
            assert!(
                matches!(look(of, attempts, 0), Look::Withdrawn(Withdrawn::Done(_))),
                "{of:?} {attempts:?}"
            );
        }
    }

    #[test]
    fn looks_come_after_the_timeout_and_regularly() {
        let seconds = Duration::from_secs_f64;
        let timeout = Some(seconds(60.0));
        assert_eq!(pause(seconds(1.0), None), seconds(15.0));
        assert_eq!(pause(seconds(1.0), timeout), seconds(15.0));
        assert_eq!(pause(seconds(50.0), timeout), seconds(10.5));
        assert_eq!(pause(seconds(60.5), timeout), seconds(2.0));
        assert_eq!(pause(seconds(600.0), timeout), seconds(15.0));
        assert_eq!(pause(seconds(1.0), Some(seconds(1.0))), seconds(0.5));
    }
}
