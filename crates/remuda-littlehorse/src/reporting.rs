//! One try to tell the server how a task ended. The journal tries again, until it was heard.

use std::time::Duration;

use littlehorse::{Ending, Error, Heard, Host, Report};
use remuda_runner::source::foreign::{Delivery, DeliveryEnding, Reported};
use remuda_runner::source::{Result, SourceError};

use crate::delivery::Cookie;
use crate::ending;
use crate::oversight::{self, Look};
use crate::queue::{LittleHorse, now};

/// Input, output and log of a task together stay below this many bytes: the server's limit is 1,047,000.
const LARGEST_RECORD: usize = 900_000;

/// A report of this size is never too large.
const SMALL: usize = 100_000;

/// How long one try waits for a quota; after that the journal waits.
const QUOTA: Duration = Duration::from_secs(20);

/// How often a report was not heard, by a server that answered other questions meanwhile.
///
/// Servers say of a report that is too large for them that they are away. One that is away answers nothing else, either.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheard {
    /// The tries so far.
    tries: usize,
    /// How often the server said, right after it did not take the report, that it waits for one.
    wanted: u32,
}

impl Unheard {
    /// The log is left out from here on.
    const WITHOUT_LOG: u32 = 3;

    /// It is given up as too large from here on.
    const GIVEN_UP: u32 = 6;

    fn is_wanted(&mut self, bytes: usize) -> bool {
        self.wanted += u32::from(bytes > SMALL);
        self.wanted >= Self::WITHOUT_LOG
    }
}

/// What is left of a report that was too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// All of it is sent.
    Whole,
    /// Without its log.
    WithoutLog,
    /// Only that it is too large.
    Notice,
}

impl LittleHorse {
    /// Tells the server how a task ended, once.
    pub(crate) async fn send(
        &self,
        delivery: &Delivery,
        cookie: &Cookie,
        ended: &DeliveryEnding,
        whole: &Ending,
    ) -> Result<Reported> {
        let mut size = Size::Whole;
        let mut bytes = 0;
        let mut waited = Duration::ZERO;
        loop {
            let report = match size {
                Size::Whole => self.build(delivery, cookie, whole, true),
                Size::WithoutLog => self.build(delivery, cookie, whole, false),
                Size::Notice => {
                    self.build(delivery, cookie, &ending::too_large(outputs(ended), bytes), false)
                }
            };
            bytes = report.size();
            let error = match self.try_send(delivery, cookie, &report).await {
                Ok(Heard::Yes) => return Ok(Reported::Heard),
                Ok(Heard::TooLate) => return Ok(Reported::TooLate),
                Err(error) => error,
            };
            match &error {
                Error::TooLarge { .. } if size != Size::Notice => {
                    size = size.less();
                    continue;
                }
                // A small one is rather refused for a quota.
                Error::Exhausted { retry_after: None, .. }
                    if size == Size::Whole || (size == Size::WithoutLog && bytes > SMALL) =>
                {
                    size = size.less();
                    continue;
                }
                Error::Exhausted { retry_after: Some(pause), .. }
                    if self.client.config().wait_for_quota && waited + *pause <= QUOTA =>
                {
                    waited += *pause;
                    tokio::time::sleep(*pause).await;
                    continue;
                }
                _ => {}
            }
            match self.standing(delivery, cookie, &error).await {
                Standing::Withdrawn => return Ok(Reported::TooLate),
                Standing::Wanted if matches!(error, Error::Unavailable { .. }) && size != Size::Notice => {
                    let unheard = self
                        .notes
                        .of(&delivery.key, |notes| notes.unheard.is_wanted(bytes).then_some(notes.unheard));
                    match (unheard, size) {
                        (Some(_), Size::Whole) => size = Size::WithoutLog,
                        (Some(unheard), _) if unheard.wanted >= Unheard::GIVEN_UP => size = Size::Notice,
                        _ => return Err(SourceError::Unavailable(error.to_string())),
                    }
                }
                _ => return Err(SourceError::Unavailable(error.to_string())),
            }
        }
    }

    /// The report of a task.
    fn build(&self, delivery: &Delivery, cookie: &Cookie, ending: &Ending, log: bool) -> Report {
        let (text, stored) =
            self.notes.of(&delivery.key, |notes| (notes.log.with(&now(), &last_line(ending)), notes.stored));
        // The server keeps input, output and log in one record, and drops the record when it is too large.
        let fits = input_size(delivery) + text.len() + about(ending) < LARGEST_RECORD;
        let text = (log && fits).then_some(text.as_str());
        // What this process has left in an earlier attempt, the later one has observed: it is not counted twice.
        Report::new(&cookie.task_run(), delivery.attempt, ending, text)
            .with_checkpoints(cookie.observed.max(stored))
    }

    /// Once to who delivered it; to the others when that one is away, and first to another after each try in vain.
    async fn try_send(
        &self,
        delivery: &Delivery,
        cookie: &Cookie,
        report: &Report,
    ) -> std::result::Result<Heard, Error> {
        let mut hosts = hosts(cookie.host(), self.client.bootstrap(), self.assigned());
        let tries = self.notes.of(&delivery.key, |notes| {
            notes.unheard.tries += 1;
            notes.unheard.tries - 1
        });
        let first = tries % hosts.len();
        hosts.rotate_left(first);
        let mut answer = Err(Error::Closed);
        for host in &hosts {
            answer = self.client.report(Some(host), report).await;
            if !matches!(answer, Err(Error::Unavailable { .. })) {
                return answer;
            }
        }
        answer
    }

    /// Whether a report that was not taken is still wanted.
    async fn standing(&self, delivery: &Delivery, cookie: &Cookie, error: &Error) -> Standing {
        // Without a token nothing else can be asked, either.
        if matches!(error, Error::Token { .. }) {
            return Standing::Unknown;
        }
        let me = &self.client.config().worker_id;
        match self.client.get_task_run(&cookie.task_run()).await {
            Ok(run) if oversight::judge(&run, delivery.attempt, me) == Look::Ours => Standing::Wanted,
            Ok(_) | Err(Error::NotFound { .. }) => Standing::Withdrawn,
            Err(_) => Standing::Unknown,
        }
    }
}

/// Writes into the worker's own log how a task ended, now that the server knows it.
pub(crate) fn tell(delivery: &Delivery, ending: &Ending, reported: Reported, took: Option<Duration>) {
    let (task, attempt) = (&delivery.key, delivery.attempt);
    let took_s = took.map(|took| took.as_secs_f64());
    match (reported, ending) {
        (Reported::TooLate, _) => {
            tracing::warn!(task, attempt, took_s, "a task ended after LittleHorse had ceased to wait for it");
        }
        (Reported::Heard, Ending::Success(_)) => {
            tracing::info!(task, attempt, took_s, "a task is done");
        }
        (Reported::Heard, Ending::Failed { message }) => {
            tracing::warn!(task, attempt, took_s, why = message, "a task failed, and may be tried again");
        }
        (Reported::Heard, Ending::Exception { name, message, .. }) => {
            tracing::warn!(task, attempt, took_s, exception = name, why = message, "a task failed");
        }
        (Reported::Heard, Ending::BadInput { message } | Ending::BadOutput { message }) => {
            tracing::warn!(task, attempt, took_s, why = message, "a task failed");
        }
    }
}

/// What an ending says to people.
pub(crate) fn words(ending: &Ending) -> &str {
    match ending {
        Ending::Success(_) => "it went well",
        Ending::Failed { message }
        | Ending::Exception { message, .. }
        | Ending::BadInput { message }
        | Ending::BadOutput { message } => message,
    }
}

/// How an attempt stands with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It waits for its report.
    Wanted,
    /// It is over: nobody waits, or the report was heard and its answer lost.
    Withdrawn,
    /// That could not be asked.
    Unknown,
}

impl Size {
    fn less(self) -> Self {
        match self {
            Self::Whole => Self::WithoutLog,
            Self::WithoutLog | Self::Notice => Self::Notice,
        }
    }
}

/// Who takes a report: who delivered the task, the one of the settings, everybody who is assigned.
fn hosts(delivered: Host, bootstrap: &Host, assigned: Vec<Host>) -> Vec<Host> {
    let mut hosts = vec![delivered];
    for host in std::iter::once(bootstrap.clone()).chain(assigned) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}

/// The line that ends a log.
fn last_line(ending: &Ending) -> String {
    match ending {
        Ending::Success(_) => "workflow complete".to_owned(),
        Ending::Failed { message } | Ending::BadInput { message } | Ending::BadOutput { message } => {
            format!("failed: {message}")
        }
        Ending::Exception { name, message, content } => match content {
            littlehorse::Value::JsonObj(content) if content.len() <= 4096 => {
                format!("failed ({name}): {message}\n{content}")
            }
            _ => format!("failed ({name}): {message}"),
        },
    }
}

/// About how many bytes its input takes at the server, where files are base64.
fn input_size(delivery: &Delivery) -> usize {
    let files = delivery.files.iter().map(|file| file.bytes.len().div_ceil(3) * 4 + 100);
    delivery.workflow.get().len() + files.sum::<usize>()
}

/// About how many bytes it takes at the server.
fn about(ending: &Ending) -> usize {
    match ending {
        Ending::Success(littlehorse::Value::JsonObj(text)) => text.len(),
        Ending::Exception { message, content: littlehorse::Value::JsonObj(text), .. } => {
            message.len() + text.len()
        }
        _ => 8 << 10,
    }
}

fn outputs(ended: &DeliveryEnding) -> usize {
    match ended {
        DeliveryEnding::Ended(ended) => ended.result().map_or(0, |result| result.files.len()),
        DeliveryEnding::CalledOff { .. } | DeliveryEnding::Refused(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.to_owned(), port: 2023 }
    }

    #[test]
    fn everybody_is_asked_once_and_who_delivered_first() {
        let all = hosts(host("b"), &host("a"), vec![host("a"), host("b"), host("c")]);
        assert_eq!(all, [host("b"), host("a"), host("c")]);
        assert_eq!(hosts(host("a"), &host("a"), vec![]), [host("a")]);
    }

    #[test]
    fn only_a_large_report_is_suspected_of_being_too_large() {
        let mut unheard = Unheard::default();
        assert!((0..100).all(|_| !unheard.is_wanted(SMALL)));
        let suspected = (0..4).map(|_| unheard.is_wanted(SMALL + 1)).collect::<Vec<_>>();
        assert_eq!(suspected, [false, false, true, true]);
    }
}
