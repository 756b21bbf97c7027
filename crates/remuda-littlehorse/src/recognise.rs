//! Whose tasks the journal has: by the names of servers and tenants, and by what a server knows.
//!
//! A server has no name of its own, and many addresses. Under another address it is known by what it knows.

use std::time::Duration;

use littlehorse::proto::TaskRun;
use littlehorse::{Config, Error};
use remuda_runner::source::foreign::Delivery;

use crate::delivery::Cookie;
use crate::queue::LittleHorse;

/// The first word of every name.
const KIND: &str = "littlehorse";

/// How long the server may take to say whether it knows a task.
const QUESTION: Duration = Duration::from_secs(5);

/// What a server and its tenant are called in the journal. Earlier versions had the name of the task behind it.
pub(crate) fn name_of(config: &Config) -> String {
    format!("{KIND} {}:{} {}", config.host, config.port, tenant(config))
}

fn tenant(config: &Config) -> &str {
    config.tenant.as_deref().unwrap_or("default")
}

/// The tenant in a name.
fn tenant_in(name: &str) -> Option<&str> {
    let mut words = name.split(' ');
    let (kind, _address) = (words.next()?, words.next()?);
    words.next().filter(|_| kind == KIND)
}

/// Whether the attempt was handed to the worker `me`. Another server may have a task of the same name: who starts a run may
/// choose its id.
fn is_handed_to(run: &TaskRun, attempt: i32, me: &str) -> bool {
    let attempt = usize::try_from(attempt).ok().and_then(|number| run.attempts.get(number));
    attempt.is_some_and(|attempt| attempt.task_worker_id == me)
}

impl LittleHorse {
    /// Whether a task that is in the journal under another name came from this server.
    pub(crate) async fn knows(&self, name: &str, delivery: &Delivery) -> bool {
        let config = self.client.config();
        let Some(cookie) = Cookie::read(delivery).filter(|_| tenant_in(name) == Some(tenant(config))) else {
            return false;
        };
        let task = cookie.task_run();
        let why = match tokio::time::timeout(QUESTION, self.client.get_task_run(&task)).await {
            Ok(Ok(run)) => return is_handed_to(&run, delivery.attempt, &config.worker_id),
            Ok(Err(Error::NotFound { .. })) => return false,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", QUESTION.as_secs()),
        };
        tracing::warn!(
            task = delivery.key,
            why,
            "the server could not be asked whether it knows a task of the journal"
        );
        false
    }
}

#[cfg(test)]
mod tests {
    use littlehorse::proto::TaskAttempt;

    use super::*;

    #[test]
    fn the_tenant_is_in_names_old_and_new() {
        for (name, tenant) in [
            ("littlehorse localhost:2023 default", Some("default")),
            ("littlehorse 127.0.0.1:2023 acme execute-comfyui-workflow", Some("acme")),
            ("littlehorse localhost:2023", None),
            ("postgres localhost:5432 default", None),
            ("", None),
        ] {
            assert_eq!(tenant_in(name), tenant, "{name}");
        }
    }

    #[test]
    fn only_what_was_handed_to_this_worker_is_known() {
        let attempt =
            |worker: &str| TaskAttempt { task_worker_id: worker.to_owned(), ..TaskAttempt::default() };
        let run = TaskRun { attempts: vec![attempt("other"), attempt("me")], ..TaskRun::default() };
        let handed = [-1, 0, 1, 2].map(|number| is_handed_to(&run, number, "me"));
        assert_eq!(handed, [false, false, true, false]);
    }
}
