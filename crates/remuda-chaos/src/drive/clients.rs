//! Clients: each submits a task, waits for its end, and takes the next. A server that does not answer costs
//! them another try, with the same idempotency key, at the next server.

use super::stage::Stage;
use crate::api::{Answer, Api, EventView, TaskView, is_terminal};
use crate::options::Options;
use crate::plan::Job;
use anyhow::Result;
use reqwest::Method;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(150);
const LOOK: Duration = Duration::from_millis(250);

/// What became of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancel {
    NotAsked,
    /// Confirmed: it must end as cancelled.
    Promised,
    /// Refused, because it had ended.
    TooLate,
    /// An answer was lost, so either may have happened.
    Unknown,
}

/// What a client saw of one task.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) job: Job,
    /// The ids that submissions with its key were answered with.
    pub(crate) ids: BTreeSet<String>,
    /// Answers that a correct request must not get.
    pub(crate) refusals: Vec<String>,
    pub(crate) cancel: Cancel,
    /// Its events as they were followed, in the order in which they came.
    pub(crate) live: Option<Vec<EventView>>,
    /// The end that the client saw.
    pub(crate) end: Option<String>,
}

/// Runs all clients until every task has ended, or nobody waits any longer.
pub(crate) async fn clients(api: &Api, options: &Options, plan: &[Job], stage: &Stage) -> Vec<Story> {
    let next = AtomicUsize::new(0);
    let one = async |client: usize| {
        let mut stories = Vec::new();
        while let Some(job) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut client = Client { api, stage, server: client + job.number };
            stories.push(client.story(job.clone()).await);
            stage.one_ended();
        }
        stories
    };
    let all = (0..options.clients).map(one);
    futures_util::future::join_all(all).await.into_iter().flatten().collect()
}

struct Client<'a> {
    api: &'a Api,
    stage: &'a Stage,
    /// Where the next request goes.
    server: usize,
}

impl Client<'_> {
    async fn story(&mut self, job: Job) -> Story {
        let mut story = Story {
            ids: BTreeSet::new(),
            refusals: Vec::new(),
            cancel: Cancel::NotAsked,
            live: None,
            end: None,
            job,
        };
        let mut other = Client { api: self.api, stage: self.stage, server: self.server + 1 };
        let again = async {
            match story.job.twice {
                true => other.submit(&story.job).await,
                false => None,
            }
        };
        let (first, second) = tokio::join!(self.submit(&story.job), again);
        self.stage.one_accepted();
        for answer in [first, second].into_iter().flatten() {
            match answer {
                Ok(id) => {
                    story.ids.insert(id);
                }
                Err(refusal) => story.refusals.push(refusal),
            }
        }
        let Some(id) = story.ids.first().cloned() else { return story };
        let follow = story.job.follow;
        let mut canceller = Client { api: self.api, stage: self.stage, server: self.server + 1 };
        let cancel = async {
            match story.job.cancel_after {
                Some(after) => canceller.cancel(&id, after).await,
                None => (Cancel::NotAsked, None),
            }
        };
        let watch = async {
            if follow {
                let live = self.follow(&id).await;
                let end =
                    live.last().filter(|event| is_terminal(&event.kind)).map(|event| event.kind.clone());
                (Some(live), end)
            } else {
                (None, self.wait(&id).await)
            }
        };
        let ((cancel, refusal), (live, end)) = tokio::join!(cancel, watch);
        (story.cancel, story.live, story.end) = (cancel, live, end);
        story.refusals.extend(refusal);
        story
    }

    /// `None` when the time is over.
    async fn again<T>(&mut self, mut attempt: impl AsyncFnMut(usize) -> Option<T>) -> Option<T> {
        let stage = self.stage;
        let tries = async {
            loop {
                if let Some(done) = attempt(self.server).await {
                    return done;
                }
                self.server += 1;
                tokio::time::sleep(PAUSE).await;
            }
        };
        stage.give_up.run_until_cancelled(tries).await
    }

    async fn submit(&mut self, job: &Job) -> Option<Result<String, String>> {
        let (api, key, body) = (self.api, job.key(), job.body());
        self.again(async |server| match api.submit(server, &key, &body).await {
            Ok(answer) if (200..300).contains(&answer.status) => {
                let view: Result<TaskView> = answer.json();
                Some(view.map(|view| view.id).map_err(|error| format!("submission: {error:#}")))
            }
            Ok(answer) if answer.is_temporary() => None,
            Ok(answer) => Some(Err(unexpected("submission", &answer))),
            Err(_) => None,
        })
        .await
    }

    async fn cancel(&mut self, id: &str, after: Duration) -> (Cancel, Option<String>) {
        tokio::time::sleep(after).await;
        let (api, path) = (self.api, format!("/api/v1/tasks/{id}"));
        let mut doubt = false;
        let done = self.again(async |server| match api.ask(server, Method::DELETE, &path).await {
            Ok(answer) if answer.status == 200 || answer.status == 202 => Some((Cancel::Promised, None)),
            // Our own request before, whose answer was lost, may have ended it.
            Ok(answer) if answer.status == 409 && doubt => Some((Cancel::Unknown, None)),
            Ok(answer) if answer.status == 409 => Some((Cancel::TooLate, None)),
            Ok(answer) if !answer.is_temporary() => {
                Some((Cancel::Unknown, Some(unexpected("cancellation", &answer))))
            }
            Ok(_) | Err(_) => {
                doubt = true;
                None
            }
        });
        done.await.unwrap_or((Cancel::Unknown, None))
    }

    /// Asks again and again until it has ended.
    async fn wait(&mut self, id: &str) -> Option<String> {
        let (api, path) = (self.api, format!("/api/v1/tasks/{id}"));
        self.again(async |server| {
            // The server is changed after every look that found no end; that is as good as any other.
            tokio::time::sleep(LOOK).await;
            let view: TaskView = api.ask(server, Method::GET, &path).await.ok()?.json().ok()?;
            view.is_terminal().then_some(view.status)
        })
        .await
    }

    /// Follows its events, over as many connections and servers as it takes.
    async fn follow(&mut self, id: &str) -> Vec<EventView> {
        let api = self.api;
        let mut seen: Vec<EventView> = Vec::new();
        let found = self.again(async |server| {
            let after = seen.last().map_or(0, |event| event.n);
            let _ = api.events(server, id, after, |event| seen.push(event)).await;
            seen.last().filter(|event| is_terminal(&event.kind)).map(|_| ())
        });
        found.await;
        seen
    }
}

fn unexpected(what: &str, answer: &Answer) -> String {
    format!("{what} was answered with {}: {}", answer.status, answer.text())
}
