//! Watching over a task under way: is it still wanted, still from here, and where did its next attempt go?

use std::time::Duration;

use littlehorse::Error;
use littlehorse::proto::TaskRun;
use remuda_runner::source::foreign::{Delivery, NextDelivery, Withdrawn};
use tokio::time::Instant;

use crate::checkpoint;
use crate::delivery::{self, Cookie};
use crate::oversight::{self, Look};
use crate::queue::{LittleHorse, now};

/// How often it is tried to keep a checkpoint.
const CHECKPOINT_TRIES: u32 = 3;

/// The pause between two looks for the next attempt.
const PAUSE: Duration = Duration::from_secs(5);

/// An attempt that runs under the name of this worker, and did not come for this long, is lost. One that comes later is the
/// same attempt, and changes nothing.
const LOST: Duration = Duration::from_secs(3);

/// After this time somebody else may see whether the next attempt is still of interest.
const ROUND: Duration = Duration::from_secs(60);

/// What one look at a task showed.
enum Looked {
    Run(Box<TaskRun>),
    /// The server does not know it, for the second time.
    Absent,
    /// The server does not know it; it is to be asked again soon.
    Perhaps,
    /// It could not be asked.
    Unknown,
}

impl LittleHorse {
    /// Looks at a task, again and again, until it is not wanted from here any more.
    pub(crate) async fn watch_over(&self, delivery: &Delivery, cookie: &Cookie) -> Withdrawn {
        let me = &self.client.config().worker_id;
        let since = Instant::now();
        let (mut timeout, mut absent) = (None, false);
        let mut pause = oversight::FIRST;
        loop {
            tokio::time::sleep(pause).await;
            self.keep_checkpoint(delivery, cookie).await;
            self.read_checkpoint(delivery, cookie).await;
            match self.look(delivery, cookie, &mut absent).await {
                Looked::Run(run) => {
                    let seconds = u64::try_from(run.timeout_seconds).unwrap_or_default();
                    if timeout.is_none() && seconds > 0 {
                        let known = Duration::from_secs(seconds);
                        timeout = Some(known);
                        tell_timeout(delivery, known);
                    }
                    if let Look::Withdrawn(over) = oversight::judge(&run, delivery.attempt, me) {
                        self.tell_over(delivery, &over, timeout);
                        return over;
                    }
                }
                Looked::Absent => return self.tell_absent(delivery),
                Looked::Perhaps => {
                    pause = oversight::FIRST;
                    continue;
                }
                Looked::Unknown => {}
            }
            pause = oversight::pause(since.elapsed(), timeout);
        }
    }

    /// After the timeout of an attempt: looks where the next one goes. One that was handed to this worker and did not
    /// arrive would only run out of time, with its result in our hands.
    pub(crate) async fn watch_for_next(&self, delivery: &Delivery, cookie: &Cookie) -> NextDelivery {
        let me = &self.client.config().worker_id;
        let since = Instant::now();
        let mut absent = false;
        // The attempt that was handed to this worker, and since when that is known.
        let mut handed: Option<(i32, Instant)> = None;
        loop {
            tokio::time::sleep(if handed.is_some() { LOST } else { PAUSE }).await;
            match self.look(delivery, cookie, &mut absent).await {
                Looked::Run(run) => {
                    match oversight::judge(&run, delivery.attempt, me) {
                        Look::Ours | Look::Withdrawn(Withdrawn::Superseded) => {}
                        Look::Withdrawn(over) => {
                            self.tell_over(delivery, &over, None);
                            return NextDelivery::Withdrawn(over);
                        }
                    }
                    let newest = oversight::handed_to(&run, delivery.attempt, me);
                    handed = newest.map(|newest| match handed {
                        Some((before, at)) if before == newest => (before, at),
                        _ => (newest, Instant::now()),
                    });
                    if let Some((attempt, at)) = handed
                        && at.elapsed() >= LOST
                        && let Some(lost) = delivery::later(delivery, attempt, run.total_checkpoints)
                    {
                        let text = format!(
                            "attempt {attempt} was lost on its way to the worker, which goes on with it"
                        );
                        self.log(delivery, &text);
                        return NextDelivery::Lost(Box::new(lost));
                    }
                }
                Looked::Absent => return NextDelivery::Withdrawn(self.tell_absent(delivery)),
                Looked::Perhaps | Looked::Unknown => {}
            }
            // One that cannot be taken up, because the journal says too little, may run for ever.
            if since.elapsed() >= ROUND && handed.is_none_or(|(_, at)| at.elapsed() >= LOST) {
                return NextDelivery::Withdrawn(Withdrawn::Superseded);
            }
        }
    }

    /// A cluster that deals its tasks anew may have lost sight of one: `absent` says that it had just before.
    async fn look(&self, delivery: &Delivery, cookie: &Cookie, absent: &mut bool) -> Looked {
        match self.client.get_task_run(&cookie.task_run()).await {
            Ok(run) => {
                *absent = false;
                Looked::Run(Box::new(run))
            }
            Err(Error::NotFound { .. }) if *absent => Looked::Absent,
            Err(Error::NotFound { .. }) => {
                *absent = true;
                Looked::Perhaps
            }
            Err(error) => {
                tracing::debug!(task = delivery.key, %error, "the task could not be looked at");
                Looked::Unknown
            }
        }
    }

    /// Keeps where the prompt is, once, if the server can. Whether it worked changes nothing here.
    async fn keep_checkpoint(&self, delivery: &Delivery, cookie: &Cookie) {
        let begun = self.notes.of(&delivery.key, |notes| {
            let due = cookie.observed == 0 && notes.stored == 0 && notes.tries < CHECKPOINT_TRIES;
            let begun = notes.begun.clone().filter(|_| due);
            notes.tries += u32::from(begun.is_some());
            begun
        });
        let Some((prompt_id, worker)) = begun else { return };
        let able = self.checkpoints.get_or_try_init(async || {
            let version = self.client.server_version().await?;
            Ok::<_, Error>(checkpoint::are_there(&version))
        });
        if !matches!(able.await, Ok(true)) {
            return;
        }
        let request = checkpoint::request(cookie.task_run(), delivery.attempt, prompt_id, &worker);
        match self.client.put_checkpoint(request).await {
            // What this means is seen by the look at the task that follows.
            Ok(answer) if checkpoint::is_stop(answer.flow_control_continue_type) => {}
            Ok(_) => self.notes.of(&delivery.key, |notes| notes.stored = 1),
            Err(error) => tracing::debug!(task = delivery.key, %error, "no checkpoint was kept"),
        }
    }

    /// Tells where an earlier attempt was, once, if it was elsewhere: then it could not be looked for, and is rendered anew.
    async fn read_checkpoint(&self, delivery: &Delivery, cookie: &Cookie) {
        let here = self.notes.of(&delivery.key, |notes| {
            // What this process has left itself it knows.
            let due = cookie.observed > 0 && notes.stored == 0 && !notes.asked;
            notes.begun.clone().filter(|_| due && !std::mem::replace(&mut notes.asked, true))
        });
        let Some((_, here)) = here else { return };
        match self.client.get_checkpoint(checkpoint::id(cookie.task_run())).await {
            Ok(kept) => match checkpoint::read(&kept) {
                Some((prompt_id, there)) if there != here.to_string() => {
                    tracing::info!(task = delivery.key, prompt_id, there, "an earlier attempt was elsewhere");
                    self.log(delivery, &format!("an earlier attempt was at {there} as prompt {prompt_id}"));
                }
                _ => {}
            },
            Err(error) => tracing::debug!(task = delivery.key, %error, "the checkpoint could not be read"),
        }
    }

    fn log(&self, delivery: &Delivery, text: &str) {
        self.notes.of(&delivery.key, |notes| notes.log.line(&now(), text));
    }

    fn tell_absent(&self, delivery: &Delivery) -> Withdrawn {
        // It is deleted, or out of sight: nobody knows how it ended.
        let over = Withdrawn::Done("LittleHorse does not know the task any more".to_owned());
        self.tell_over(delivery, &over, None);
        over
    }

    fn tell_over(&self, delivery: &Delivery, over: &Withdrawn, timeout: Option<Duration>) {
        let why = match over {
            Withdrawn::Unwanted(why) | Withdrawn::Done(why) => why.as_str(),
            Withdrawn::Superseded => "its timeout passed",
            Withdrawn::Elsewhere => "another worker has it",
        };
        tracing::warn!(
            task = delivery.key,
            attempt = delivery.attempt,
            why,
            "the attempt is not this worker's any more"
        );
        // Of anything else nobody will hear any more.
        if *over == Withdrawn::Superseded {
            let limit = timeout.map_or_else(String::new, |timeout| format!(" of {} s", timeout.as_secs()));
            let text = format!(
                "the attempt's timeout{limit} passed; the render goes on for the next attempt (timeout_seconds of \
                 the task's node is too short for it)"
            );
            self.log(delivery, &text);
        }
    }
}

/// What is said once, when the timeout of the attempt is known.
fn tell_timeout(delivery: &Delivery, timeout: Duration) {
    if delivery.timeout_s.is_some_and(|own| u64::from(own) > timeout.as_secs()) {
        tracing::warn!(
            task = delivery.key,
            timeout_s = timeout.as_secs(),
            "LittleHorse's timeout of this task is shorter than ours: longer renders are tried again"
        );
    }
}
