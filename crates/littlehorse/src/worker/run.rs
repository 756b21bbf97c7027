//! The life of a worker: asking as long as there are places, running, reporting, stopping.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::context::TaskContext;
use super::function::{AnyFn, Called};
use super::slots::{Place, Slots};
use super::{Worker, fit};
use crate::client::Client;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::intake::Intake;
use crate::proto;
use crate::report::{Ending, Heard, Report};
use crate::task_def::Type;

/// How long the last reports may take, after the grace.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A task that waited here for this long, because there was no place for it, may not be ours any more.
const WAITED: Duration = Duration::from_secs(2);
/// How long the server may take to say so.
const QUESTION: Duration = Duration::from_secs(5);
const STOPPING: &str = "the worker is stopping";

/// What every running task needs.
struct Shop {
    client: Client,
    function: Arc<dyn AnyFn>,
    returns: Option<Type>,
    /// The worker was asked to stop.
    stopping: CancellationToken,
    /// The grace is over.
    over: CancellationToken,
}

/// Serves until `stop` ends.
pub(super) async fn serve(
    worker: &Worker,
    def: &proto::TaskDef,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) {
    let shop = Arc::new(Shop {
        client: worker.client.clone(),
        function: Arc::clone(&worker.function),
        returns: fit::returns(def),
        stopping: CancellationToken::new(),
        over: CancellationToken::new(),
    });
    let intake = Intake::open_with(worker.client.clone(), worker.intake.clone(), worker.health.clone());
    let shared = worker.shared.clone().unwrap_or_else(|| Slots::new(worker.slots));
    let mut changes = shared.changes();
    let mut running = JoinSet::new();
    let mut takes = Takes::default();
    loop {
        changes.mark_unchanged();
        let free = worker.slots.saturating_sub(running.len()).min(shared.free());
        takes.resize(free, || intake.take());
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(done) = running.join_next() => tell_broken(done),
            taken = takes.next() => {
                // Fails only when the intake is closed, and that is done below.
                let Ok(delivery) = taken else { break };
                let place = shared.try_enter();
                running.spawn(one(Arc::clone(&shop), delivery, shared.clone(), place));
            }
            // The sender lives as long as `shared`.
            _ = changes.changed() => {}
        }
    }
    drop(takes);
    finish(&shop, worker.grace, &intake, running).await;
}

/// Stops: what arrived too late is given back, what runs may end within the grace.
async fn finish(shop: &Arc<Shop>, grace: Duration, intake: &Intake, mut running: JoinSet<()>) {
    let until = Instant::now() + grace;
    shop.stopping.cancel();
    for delivery in intake.close().await {
        let shop = Arc::clone(shop);
        running.spawn(async move { shop.report(&delivery, &stopping(), None, 0).await });
    }
    if timeout_at(until, all_done(&mut running)).await.is_ok() {
        return;
    }
    tracing::warn!(tasks = running.len(), "the grace period is over: the tasks that still run are given up");
    shop.over.cancel();
    if timeout(LAST_WORDS, all_done(&mut running)).await.is_err() {
        tracing::error!(tasks = running.len(), "the server did not hear how these tasks ended");
    }
    running.shutdown().await;
}

async fn all_done(running: &mut JoinSet<()>) {
    while let Some(done) = running.join_next().await {
        tell_broken(done);
    }
}

fn tell_broken(done: Result<(), tokio::task::JoinError>) {
    if let Err(error) = done {
        tracing::error!(%error, "a task of the worker itself broke");
    }
}

fn stopping() -> Ending {
    Ending::Failed { message: STOPPING.to_owned() }
}

/// Runs a task and reports how it ended. Its place is taken until that is heard.
async fn one(shop: Arc<Shop>, delivery: Delivery, slots: Slots, place: Option<Place>) {
    let delivery = Arc::new(delivery);
    let context = match TaskContext::new(shop.client.clone(), Arc::clone(&delivery), shop.stopping.clone()) {
        Ok(context) => context,
        Err(error) => {
            tracing::error!(%error, host = %delivery.host, "the server sent a task that cannot be reported");
            return;
        }
    };
    // Several workers share the places, and the task of another one was faster.
    let place = match place {
        Some(place) => Some(place),
        None => tokio::select! {
            place = slots.enter() => place,
            () = shop.stopping.cancelled() => None,
        },
    };
    let ending = match place {
        Some(_) if shop.is_over(&delivery).await => None,
        Some(_) => shop.run(context.clone(), &delivery).await,
        None => Some(stopping()),
    };
    match ending {
        Some(ending) => {
            let log = context.log_so_far();
            shop.report(&delivery, &ending, log.as_deref(), context.checkpoints()).await;
        }
        None => tracing::info!(task = %context.key(), "the server has given this attempt up"),
    }
}

impl Shop {
    /// Whether the time of a task that waited here is over: its next attempt may run elsewhere already. Whoever cannot be
    /// asked has not said so.
    async fn is_over(&self, delivery: &Delivery) -> bool {
        if delivery.at.elapsed() < WAITED {
            return false;
        }
        let Ok(id) = delivery.task_run() else { return false };
        let wanted = timeout(QUESTION, self.client.is_wanted(id, delivery.attempt())).await;
        wanted == Ok(Some(false))
    }

    /// Runs the function. Nothing when nobody wants to hear how it ended.
    async fn run(&self, context: TaskContext, delivery: &Delivery) -> Option<Ending> {
        let call = async { self.function.call(context, delivery, self.returns).await };
        let called = tokio::select! {
            biased;
            called = AssertUnwindSafe(call).catch_unwind() => called,
            () = self.over.cancelled() => return Some(stopping()),
        };
        match called {
            Ok(Called::Output(value)) => Some(Ending::Success(value)),
            Ok(Called::BadOutput(message)) => Some(Ending::BadOutput { message }),
            Ok(Called::Failed(error)) => error.ending(),
            Err(panic) => Some(Ending::Failed { message: format!("the task panicked: {}", words(&*panic)) }),
        }
    }

    async fn report(&self, delivery: &Delivery, ending: &Ending, log: Option<&str>, checkpoints: i32) {
        let Ok(task_run) = delivery.task_run() else { return };
        let task = delivery.key();
        let report = |ending: &Ending| {
            Report::new(task_run, delivery.attempt(), ending, log)
                .beside(delivery.size())
                .with_checkpoints(checkpoints)
        };
        let mut heard = self.client.report_until_heard(Some(&delivery.host), &report(ending)).await;
        if let Err(error @ Error::TooLarge { .. }) = &heard {
            let ending = Ending::BadOutput { message: error.to_string() };
            heard = self.client.report_until_heard(Some(&delivery.host), &report(&ending)).await;
        }
        match heard {
            Ok(Heard::Yes) => tracing::debug!(%task, attempt = delivery.attempt(), "reported"),
            Ok(Heard::TooLate) => {
                tracing::warn!(%task, attempt = delivery.attempt(), "the attempt was over before it was reported");
            }
            Err(error) => tracing::error!(%task, %error, "the end of the task cannot be reported"),
        }
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}

/// Calls that wait for a task.
type Take<'a> = Pin<Box<dyn Future<Output = Result<Delivery>> + Send + 'a>>;

#[derive(Default)]
struct Takes<'a> {
    calls: Vec<Take<'a>>,
}

impl<'a> Takes<'a> {
    /// Waits with this many calls. Those that are too many are dropped: they give back what they have.
    fn resize<F: Future<Output = Result<Delivery>> + Send + 'a>(&mut self, to: usize, call: impl Fn() -> F) {
        self.calls.truncate(to);
        while self.calls.len() < to {
            self.calls.push(Box::pin(call()));
        }
    }

    /// The first that ends; never, if none waits.
    async fn next(&mut self) -> Result<Delivery> {
        let calls = &mut self.calls;
        let (n, taken) = poll_fn(|context| {
            for (n, call) in calls.iter_mut().enumerate() {
                if let Poll::Ready(taken) = call.as_mut().poll(context) {
                    return Poll::Ready((n, taken));
                }
            }
            Poll::Pending
        })
        .await;
        drop(calls.remove(n));
        taken
    }
}
