//! Reports, until they are heard.

use std::time::Duration;

use tokio::time::sleep;
use tonic::Code;

use super::{Client, Host};
use crate::error::{Error, Result};
use crate::proto;
use crate::report::{Heard, Report};

impl Client {
    /// Sends a report once: to the host that delivered the task, or else to the one that the settings name.
    ///
    /// Heard means that the server has written it down. A report about an attempt that is over is heard as well: it is ignored
    /// later, and only [`Client::get_task_run`] tells.
    pub async fn report(&self, host: Option<&Host>, report: &Report) -> Result<Heard> {
        report.check()?;
        let host = host.unwrap_or(self.bootstrap());
        let message = report.message.clone();
        self.call_once(host, "ReportTask", message, &|mut stub, request| async move {
            stub.report_task(request).await
        })
        .await?;
        Ok(Heard::Yes)
    }

    /// Sends a report until the server has it, or says that the attempt is over. Waits through outages, however long;
    /// to give up, drop the future.
    ///
    /// Only a report that cannot be sent at all is an error: one that is too large, here or for the server.
    pub async fn report_until_heard(&self, host: Option<&Host>, report: &Report) -> Result<Heard> {
        let mut trying = Trying::default();
        let mut shrunk = None;
        loop {
            let sent = shrunk.as_ref().unwrap_or(report);
            // The host that delivered may be gone for good, and so may the one that the settings name: any host takes it.
            let targets = self.targets(host);
            let target = trying.tries as usize % targets.len();
            let error = match self.report(targets.get(target), sent).await {
                Ok(heard) => {
                    trying.told_end();
                    return Ok(heard);
                }
                Err(error) => error,
            };
            trying.tell(&error);
            match trying.next(&error, sent.message.log_output.is_some(), rand::random()) {
                Next::GiveUp => return Err(refused_for_good(error, sent)),
                Next::Shrink => shrunk = Some(report.without_log()),
                Next::Again(pause) => sleep(pause).await,
                Next::Ask(pause) => {
                    sleep(pause).await;
                    match self.standing(sent).await {
                        Some(Standing::Over(heard)) => return Ok(heard),
                        Some(Standing::Wanted) if trying.is_too_large(sent.size()) => {
                            match sent.message.log_output {
                                Some(_) => shrunk = Some(report.without_log()),
                                None => return Err(too_large(sent)),
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Who takes a report: who delivered the task, the host of the settings, and all others that are known.
    fn targets(&self, delivered: Option<&Host>) -> Vec<Host> {
        let mut known = self.inner.channels.known();
        known.sort_unstable();
        let mut targets: Vec<Host> = delivered.cloned().into_iter().collect();
        for host in std::iter::once(self.bootstrap().clone()).chain(known) {
            if !targets.contains(&host) {
                targets.push(host);
            }
        }
        targets
    }

    /// Whether the server still waits for the end of an attempt; nothing if that cannot be asked.
    pub(crate) async fn is_wanted(&self, id: &proto::TaskRunId, attempt: i32) -> Option<bool> {
        match self.get_task_run(id).await {
            Ok(run) => {
                let number = usize::try_from(attempt).ok()?;
                // What was just handed out may still look as if it waited.
                let open = |attempt: &proto::TaskAttempt| {
                    use proto::TaskStatus::{TaskPending, TaskRunning, TaskScheduled};
                    matches!(attempt.status(), TaskRunning | TaskScheduled | TaskPending)
                };
                Some(run.attempts.get(number).is_some_and(open))
            }
            Err(Error::NotFound { .. }) => Some(false),
            Err(_) => None,
        }
    }

    /// How the attempt of a report stands; nothing if that cannot be asked.
    async fn standing(&self, report: &Report) -> Option<Standing> {
        let Some(id) = &report.message.task_run_id else { return Some(Standing::Over(Heard::TooLate)) };
        match self.get_task_run(id).await {
            Ok(run) => Some(Standing::of(&run, report)),
            Err(Error::NotFound { .. }) => Some(Standing::Over(Heard::TooLate)),
            Err(_) => None,
        }
    }
}

/// How an attempt stands with the server.
#[derive(Debug, PartialEq)]
enum Standing {
    /// It waits for its report.
    Wanted,
    /// It is over.
    Over(Heard),
}

impl Standing {
    fn of(run: &proto::TaskRun, report: &Report) -> Self {
        let number = usize::try_from(report.attempt()).unwrap_or(usize::MAX);
        match run.attempts.get(number).map(proto::TaskAttempt::status) {
            Some(proto::TaskStatus::TaskRunning) => Self::Wanted,
            // Nobody but us reports this attempt: an answer was lost.
            Some(status) if status == report.message.status() => Self::Over(Heard::Yes),
            _ => Self::Over(Heard::TooLate),
        }
    }
}

/// The server takes nothing of this size.
fn refused_for_good(error: Error, report: &Report) -> Error {
    match error {
        Error::Exhausted { .. } => too_large(report),
        other => other,
    }
}

fn too_large(report: &Report) -> Error {
    let bytes = report.size();
    Error::TooLarge { what: "the report of a task".into(), bytes, limit: bytes.saturating_sub(1) }
}

/// What is done after a failed try.
#[derive(Debug, PartialEq)]
enum Next {
    /// Send again after a pause.
    Again(Duration),
    /// After a pause ask whether the attempt is over, and send again if not.
    Ask(Duration),
    /// Send without the log, at once.
    Shrink,
    /// It cannot be sent.
    GiveUp,
}

/// The tries so far.
#[derive(Debug, Default)]
struct Trying {
    tries: u32,
    /// Refusals that may mean that the attempt is over.
    doubts: u32,
    /// Refusals of the size, without anything left to leave out.
    too_large: u32,
    /// How often the server said that it wants the report, which it did not take.
    wanted: u32,
}

impl Trying {
    /// `chance` is a number from 0 to 1 that spreads the tries of many workers.
    fn next(&mut self, error: &Error, has_log: bool, chance: f64) -> Next {
        let pause = backoff(self.tries, chance);
        self.tries = self.tries.saturating_add(1);
        match error {
            Error::Exhausted { retry_after: Some(wait), .. } => {
                Next::Again((*wait).min(QUOTA) + pause.min(Duration::from_secs(1)))
            }
            Error::Exhausted { retry_after: None, .. } if has_log => Next::Shrink,
            Error::Exhausted { retry_after: None, .. } => {
                // It may still be a quota of a server that does not say how long to wait.
                self.too_large += 1;
                if self.too_large < 4 { Next::Again(pause) } else { Next::GiveUp }
            }
            Error::NotFound { .. } => self.doubt(pause),
            Error::Refused { code, .. } => match code {
                // An expired secret, a permission taken away: somebody may put it right.
                Code::Unauthenticated | Code::PermissionDenied => Next::Again(pause),
                _ => self.doubt(pause),
            },
            // A server that ended the attempt by itself, for a report that is too large, never answers.
            Error::Unavailable { .. } if self.tries > 2 => Next::Ask(pause),
            Error::Unavailable { .. } | Error::Token { .. } => Next::Again(pause),
            _ => Next::GiveUp,
        }
    }

    /// The server answers, but does not take the report: servers of 1.2 say of what is too large for them that they are away.
    fn is_too_large(&mut self, bytes: usize) -> bool {
        self.wanted += 1;
        bytes > SMALL && self.wanted.is_multiple_of(4)
    }

    fn doubt(&mut self, pause: Duration) -> Next {
        self.doubts += 1;
        if self.doubts < 2 { Next::Again(pause) } else { Next::Ask(pause) }
    }

    fn tell(&self, error: &Error) {
        match self.tries {
            0 => tracing::warn!(%error, "a report did not arrive; it is sent again until it does"),
            tries => tracing::debug!(tries, %error, "a report was not heard"),
        }
    }

    fn told_end(&self) {
        if self.tries > 0 {
            tracing::info!(tries = self.tries + 1, "the report arrived");
        }
    }
}

/// A report of this size is never too large.
const SMALL: usize = 64 * 1024;
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(15);
/// The longest wait that a server may ask for at once.
const QUOTA: Duration = Duration::from_secs(60);

/// Doubles up to 15 s, and is then shortened by up to a half.
fn backoff(tries: u32, chance: f64) -> Duration {
    let full = FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST);
    full.mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses as long as they can be.
    const FULL: f64 = 0.0;

    fn exhausted(retry_after: Option<Duration>) -> Error {
        Error::Exhausted { method: "ReportTask", message: String::new(), retry_after }
    }

    fn refused(code: Code) -> Error {
        Error::Refused { method: "ReportTask", code, message: String::new() }
    }

    fn away() -> Error {
        Error::Unavailable { host: "h:1".into(), reason: String::new() }
    }

    #[test]
    fn pauses_double_and_are_spread() {
        let pauses: Vec<u128> = (0..9).map(|tries| backoff(tries, 0.0).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000]);
        assert_eq!(backoff(1, 1.0).as_millis(), 100);
        assert_eq!(backoff(u32::MAX, 0.0), LONGEST);
    }

    #[test]
    fn an_outage_is_waited_out_however_long() {
        let mut trying = Trying::default();
        for _ in 0..2 {
            assert!(matches!(trying.next(&away(), true, FULL), Next::Again(_)));
        }
        for _ in 0..10_000 {
            assert!(matches!(trying.next(&away(), true, FULL), Next::Ask(_)));
        }
        assert_eq!(trying.next(&away(), true, FULL), Next::Ask(LONGEST));
        assert!(matches!(trying.next(&refused(Code::PermissionDenied), true, FULL), Next::Again(_)));
    }

    #[test]
    fn the_server_says_how_long_a_quota_takes() {
        let wait = Duration::from_millis(1500);
        let next = Trying::default().next(&exhausted(Some(wait)), true, FULL);
        assert_eq!(next, Next::Again(wait + FIRST));
    }

    #[test]
    fn what_is_too_large_loses_its_log_and_is_then_given_up() {
        let mut trying = Trying::default();
        assert_eq!(trying.next(&exhausted(None), true, FULL), Next::Shrink);
        for _ in 0..3 {
            assert!(matches!(trying.next(&exhausted(None), false, FULL), Next::Again(_)));
        }
        assert_eq!(trying.next(&exhausted(None), false, FULL), Next::GiveUp);
        let local = Error::TooLarge { what: String::new(), bytes: 2, limit: 1 };
        assert_eq!(Trying::default().next(&local, true, FULL), Next::GiveUp);
    }

    #[test]
    fn repeated_refusals_make_us_ask() {
        for error in [
            Error::NotFound { what: String::new() },
            refused(Code::InvalidArgument),
            refused(Code::Internal),
            refused(Code::Unknown),
        ] {
            let mut trying = Trying::default();
            assert!(matches!(trying.next(&error, true, FULL), Next::Again(_)), "{error}");
            assert!(matches!(trying.next(&away(), true, FULL), Next::Again(_)), "{error}");
            assert!(matches!(trying.next(&error, true, FULL), Next::Ask(_)), "{error}");
        }
    }

    #[test]
    fn a_server_that_wants_a_report_and_never_takes_it_finds_it_too_large() {
        let large = |trying: &mut Trying| (0..8).map(|_| trying.is_too_large(SMALL + 1)).collect::<Vec<_>>();
        let once_in_four = [false, false, false, true];
        assert_eq!(large(&mut Trying::default()), once_in_four.repeat(2));
        let mut trying = Trying::default();
        assert!((0..100).all(|_| !trying.is_too_large(SMALL)));
    }

    #[test]
    fn only_a_running_attempt_wants_its_report() {
        use proto::TaskStatus::{
            TaskFailed, TaskPending, TaskRunning, TaskScheduled, TaskSuccess, TaskTimeout,
        };
        let standing = |statuses: &[proto::TaskStatus], attempt: i32| {
            let attempt_of = |status: &proto::TaskStatus| proto::TaskAttempt {
                status: *status as i32,
                ..Default::default()
            };
            let run =
                proto::TaskRun { attempts: statuses.iter().map(attempt_of).collect(), ..Default::default() };
            let done = crate::Ending::Success(crate::Value::Null);
            Standing::of(&run, &Report::new(&proto::TaskRunId::default(), attempt, &done, None))
        };
        assert_eq!(standing(&[TaskRunning], 0), Standing::Wanted);
        assert_eq!(standing(&[TaskTimeout, TaskRunning], 1), Standing::Wanted);
        assert_eq!(standing(&[TaskSuccess], 0), Standing::Over(Heard::Yes));
        for statuses in [&[TaskTimeout, TaskRunning], &[TaskFailed, TaskSuccess]] {
            assert_eq!(standing(statuses, 0), Standing::Over(Heard::TooLate), "{statuses:?}");
        }
        for status in [TaskScheduled, TaskPending, TaskFailed] {
            assert_eq!(standing(&[status], 0), Standing::Over(Heard::TooLate), "{status:?}");
        }
        for unknown in [-1, 1] {
            assert_eq!(standing(&[TaskRunning], unknown), Standing::Over(Heard::TooLate));
        }
    }
}
