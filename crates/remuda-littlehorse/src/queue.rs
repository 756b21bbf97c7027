//! A LittleHorse server as a queue: tasks from its deliveries, reports from their ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use littlehorse::{
    Client, Delivery as Scheduled, Ending, Error, Health, Host, Intake, IntakeOptions, Report,
};
use remuda_core::WorkerId;
use remuda_frames::{Frame, FrameKind};
use remuda_preflight::GraphLimits;
use remuda_runner::source::Result;
use remuda_runner::source::foreign::{
    Delivery, DeliveryEnding, ForeignQueue, NextDelivery, Reported, Withdrawn,
};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::contract::{self, Contract};
use crate::delivery::{self, Cookie, Reading};
use crate::ending;
use crate::intakes::{Intakes, Kind};
use crate::notes::NoteBook;
use crate::output::Places;
use crate::oversight::{self, Look};
use crate::recognise;
use crate::reporting;

/// How many reports of tasks that came too late may wait to be heard.
const MOST_REFUSALS: usize = 256;

/// A task that waited here longer than this, because there was no slot for it, may not be ours any more.
const WAITED: Duration = Duration::from_secs(1);

/// How long the server may take to say so.
const QUESTION: Duration = Duration::from_secs(5);

/// How long a stop waits for reports of tasks that were not begun.
const CLOSING: Duration = Duration::from_secs(5);

/// Why a task that came too late is given back.
const STOPPING: &str = "the worker is stopping";

/// How tasks are served.
#[derive(Debug, Clone)]
pub struct Options {
    /// The TaskDef.
    pub task: String,
    /// The TaskDef with options, if one is served.
    pub options_task: Option<String>,
    /// Where the files of results are.
    pub places: Places,
    /// Ends a render that takes longer; without it only the task's own timeout counts.
    pub timeout: Option<Duration>,
    /// The pause between two heartbeats.
    pub heartbeat: Duration,
    /// How large graphs may be.
    pub graph: GraphLimits,
}

impl Options {
    /// The usual task, with its files in these places.
    pub fn new(places: Places) -> Self {
        Self {
            task: contract::TASK.to_owned(),
            options_task: None,
            places,
            timeout: None,
            heartbeat: Duration::from_secs(10),
            graph: GraphLimits::default(),
        }
    }
}

/// A LittleHorse server that gives work to this process.
#[derive(Debug)]
pub struct LittleHorse {
    pub(crate) client: Client,
    pub(crate) options: Options,
    /// Nothing, if it only reports.
    serving: Option<Serving>,
    pub(crate) notes: NoteBook,
    /// Whether the server has checkpoints.
    pub(crate) checkpoints: OnceCell<bool>,
    /// Reports of tasks that were not begun.
    refusals: TaskTracker,
    refusing: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// Where tasks come from.
#[derive(Debug)]
struct Serving {
    intakes: Intakes,
    contract: Contract,
}

/// A task that was taken; dropped, it is put back.
struct Taken<'a> {
    queue: &'a LittleHorse,
    intakes: &'a Intakes,
    kind: Kind,
    scheduled: Option<Scheduled>,
}

impl Taken<'_> {
    fn keep(mut self) -> Option<Scheduled> {
        self.scheduled.take()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(scheduled) = self.scheduled.take()
            && let Some(late) = self.intakes.put_back(scheduled, self.kind)
        {
            self.queue.refuse(late, Ending::Failed { message: STOPPING.to_owned() });
        }
    }
}

impl LittleHorse {
    /// Registers the tasks and begins to register the worker. Waits for a server that is away.
    ///
    /// # Errors
    /// When a TaskDef of another shape has the name, or the server refuses.
    pub async fn open(client: Client, options: Options) -> std::result::Result<Self, Error> {
        let contract = contract::register(&client, &options.task).await?;
        if let Some(task) = &options.options_task {
            contract::register_with_options(&client, task).await?;
        }
        let intake = |task: &String| {
            let intake = IntakeOptions { heartbeat: options.heartbeat, ..IntakeOptions::new(task) };
            Intake::open(client.clone(), intake)
        };
        let intakes = Intakes::new(intake(&options.task), options.options_task.as_ref().map(intake));
        Ok(Self::new(client, options, Some(Serving { intakes, contract })))
    }

    /// One that asks for nothing, and only tells how tasks ended that were delivered before.
    pub fn for_reports(client: Client, options: Options) -> Self {
        Self::new(client, options, None)
    }

    fn new(client: Client, options: Options, serving: Option<Serving>) -> Self {
        Self {
            client,
            options,
            serving,
            notes: NoteBook::default(),
            checkpoints: OnceCell::new(),
            refusals: TaskTracker::new(),
            refusing: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// How the workflow comes, if tasks are asked for.
    pub fn contract(&self) -> Option<Contract> {
        self.serving.as_ref().map(|serving| serving.contract)
    }

    /// How the worker stands with the cluster, if tasks are asked for: with several tasks, for whichever it stands worst.
    pub fn health(&self) -> Option<Health> {
        self.serving.as_ref().map(|serving| serving.intakes.health())
    }

    /// The hosts that are assigned to this worker.
    pub(crate) fn assigned(&self) -> Vec<Host> {
        self.serving.as_ref().map(|serving| serving.intakes.hosts()).unwrap_or_default()
    }

    /// Lets a task pass that came just now; one that waited here only if the server still wants it from us: its time ran, and
    /// its next attempt may be rendered elsewhere already.
    async fn still_ours(&self, intakes: &Intakes, scheduled: Scheduled, kind: Kind) -> Option<Scheduled> {
        if scheduled.at.elapsed() < WAITED {
            return Some(scheduled);
        }
        // Whoever asks may go away in the middle of the question.
        let taken = Taken { queue: self, intakes, kind, scheduled: Some(scheduled) };
        let over = match taken.scheduled.as_ref()?.task_run() {
            Ok(id) => match tokio::time::timeout(QUESTION, self.client.get_task_run(id)).await {
                Ok(Ok(run)) => {
                    let attempt = taken.scheduled.as_ref()?.attempt();
                    oversight::judge(&run, attempt, &self.client.config().worker_id) != Look::Ours
                }
                Ok(Err(Error::NotFound { .. })) => true,
                _ => false,
            },
            Err(_) => false,
        };
        let scheduled = taken.keep()?;
        if over {
            tracing::warn!(
                task = %scheduled.key(),
                attempt = scheduled.attempt(),
                waited_s = scheduled.at.elapsed().as_secs(),
                "a task waited here for a slot until its time was over; it is not begun"
            );
            return None;
        }
        Some(scheduled)
    }

    /// Reports a task that is not begun, until the server has heard it. Never waits: who asked may go away any time.
    fn refuse(&self, scheduled: Scheduled, ending: Ending) {
        let key = scheduled.key();
        let Ok(task) = scheduled.task_run().cloned() else {
            tracing::error!("a task without an id was delivered; its timeout will end it");
            return;
        };
        tracing::warn!(task = %key, attempt = scheduled.attempt(), why = reporting::words(&ending), "a task was not begun");
        if self.refusing.fetch_add(1, Ordering::Relaxed) >= MOST_REFUSALS {
            self.refusing.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(task = %key, "too many reports wait to be heard; the task's timeout will end it");
            return;
        }
        let report = Report::new(&task, scheduled.attempt(), &ending, None);
        let (client, stop, refusing) = (self.client.clone(), self.stop.clone(), Arc::clone(&self.refusing));
        self.refusals.spawn(async move {
            let told = client.report_until_heard(Some(&scheduled.host), &report);
            if let Some(Err(error)) = stop.run_until_cancelled(told).await {
                tracing::error!(task = %key, %error, "a report was refused");
            }
            refusing.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

#[async_trait]
impl ForeignQueue for LittleHorse {
    fn name(&self) -> String {
        recognise::name_of(self.client.config())
    }

    async fn recognises(&self, name: &str, delivery: &Delivery) -> bool {
        self.knows(name, delivery).await
    }

    async fn next(&self) -> Result<Delivery> {
        let timeout_s =
            self.options.timeout.map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        let Some(Serving { intakes, .. }) = &self.serving else { return std::future::pending().await };
        let reading = Reading {
            tenant: self.client.config().tenant.as_deref(),
            timeout_s,
            sink: matches!(self.options.places, Places::Sink(_)),
            graph: Some(&self.options.graph),
        };
        loop {
            // It fails only when it is closed: then nothing comes any more.
            let Ok((scheduled, kind)) = intakes.take().await else { return std::future::pending().await };
            let Some(scheduled) = self.still_ours(intakes, scheduled, kind).await else { continue };
            match delivery::read(&scheduled, kind, reading) {
                Ok(delivery) => {
                    tracing::info!(task = delivery.key, attempt = delivery.attempt, id = %delivery.task(), prompt_id = %delivery.prompt_id, "a task was delivered");
                    return Ok(delivery);
                }
                Err(ending) => {
                    let why = reporting::words(&ending);
                    tracing::warn!(task = %scheduled.key(), attempt = scheduled.attempt(), why, "a task cannot be begun");
                    match delivery::refused(&scheduled, reading.tenant, &ending) {
                        Some(delivery) => return Ok(delivery),
                        None => self.refuse(scheduled, *ending),
                    }
                }
            }
        }
    }

    async fn report(&self, delivery: &Delivery, ended: &DeliveryEnding) -> Result<Reported> {
        let Some(cookie) = Cookie::read(delivery) else {
            tracing::error!(task = delivery.key, "the journal does not say where the task came from");
            return Ok(Reported::TooLate);
        };
        let ending = ending::of(delivery, ended, &self.options.places);
        let since = self.notes.of(&delivery.key, |notes| notes.since);
        let reported = self.send(delivery, &cookie, ended, &ending).await?;
        reporting::tell(delivery, &ending, reported, since.map(|since| since.elapsed()));
        Ok(reported)
    }

    async fn back(&self) {
        let Some(Serving { intakes, .. }) = &self.serving else { return std::future::pending().await };
        intakes.until(|health| *health != Health::Healthy).await;
        intakes.until(|health| *health == Health::Healthy).await;
    }

    async fn watch(&self, delivery: &Delivery) -> Withdrawn {
        match Cookie::read(delivery) {
            Some(cookie) => self.watch_over(delivery, &cookie).await,
            None => std::future::pending().await,
        }
    }

    async fn watch_next(&self, delivery: &Delivery) -> NextDelivery {
        match Cookie::read(delivery) {
            Some(cookie) => self.watch_for_next(delivery, &cookie).await,
            None => std::future::pending().await,
        }
    }

    async fn close(&self) {
        let scheduled = match &self.serving {
            Some(serving) => serving.intakes.close().await,
            None => Vec::new(),
        };
        for scheduled in scheduled {
            self.refuse(scheduled, Ending::Failed { message: STOPPING.to_owned() });
        }
        self.refusals.close();
        if tokio::time::timeout(CLOSING, self.refusals.wait()).await.is_err() {
            tracing::warn!(
                "not every task that came too late could be given back; their timeouts will end them"
            );
        }
        self.stop.cancel();
    }

    fn is_away(&self) -> bool {
        matches!(self.health(), Some(Health::Unhealthy(_)))
    }

    fn gone(&self, delivery: &Delivery) {
        self.notes.drop(&delivery.key);
    }

    fn begun(&self, delivery: &Delivery, worker: &WorkerId, found: bool) {
        let prompt_id = delivery.prompt();
        self.notes.of(&delivery.key, |notes| {
            notes.begun = Some((prompt_id, worker.clone()));
            notes.since.get_or_insert_with(Instant::now);
            if found {
                let text =
                    format!("taken up at {worker} as prompt {prompt_id} (attempt {})", delivery.attempt);
                notes.log.line(&now(), &text);
            }
        });
    }

    fn sent(&self, delivery: &Delivery) {
        self.notes.of(&delivery.key, |notes| {
            if let Some((prompt_id, worker)) = &notes.begun {
                let text =
                    format!("submitted to {worker} as prompt {prompt_id} (attempt {})", delivery.attempt);
                notes.log.line(&now(), &text);
            }
        });
    }

    fn queued(&self, delivery: &Delivery, ahead: usize) {
        self.notes.of(&delivery.key, |notes| notes.log.queued(&now(), ahead));
    }

    fn frame(&self, delivery: &Delivery, frame: &Frame) {
        let FrameKind::Progress { fraction, node, value, max, nodes_done, nodes } = &frame.what else {
            return;
        };
        self.notes.of(&delivery.key, |notes| {
            notes.log.progress(Instant::now(), *fraction, |percent| {
                let step = match node {
                    Some(node) if *max > 1.0 => format!(", node {node} at {value:.0} of {max:.0}"),
                    Some(node) => format!(", node {node}"),
                    None => String::new(),
                };
                (now(), format!("{percent} % ({nodes_done} of {nodes} nodes done{step})"))
            });
        });
    }
}

/// The moment, as it stands before a line.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S").to_string()
}
