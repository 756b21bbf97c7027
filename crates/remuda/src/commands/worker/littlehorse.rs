//! `remuda worker --source littlehorse`: serving a task of a LittleHorse server.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use littlehorse::config::parse_properties;
use littlehorse::{Client, Config, Health};
use remuda_core::{OwnerId, WorkerId};
use remuda_files::Files;
use remuda_littlehorse::{LittleHorse, Options, Places};
use remuda_runner::source::Source;
use remuda_runner::source::journal::{Employer, JournalOptions, JournalSource, LeftReports};
use remuda_runner::{Herd, HerdOptions, WorkerConfig};
use tokio::time::Instant;

use crate::commands::BadInput;
use crate::config::Settings;
use crate::instance::{OR_SIMULATE, Owner, Simulators, comfyui_limits, result_limits, worker_configs};
use crate::process::Process;
use crate::stop::Stop;
use crate::ui;

/// How many tasks may be under way at once.
const SLOTS: &str = "LHW_NUM_WORKER_THREADS";

/// After the drain everything is called off; so long it may take until a ComfyUI that answers has stopped and the server has
/// heard it.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A ComfyUI that does not answer within this time then is not waited for.
const LAST_QUESTION: Duration = Duration::from_secs(2);

/// How long reports that were not heard yet are tried at the end. They are in the journal in any case.
const LAST_REPORTS: Duration = Duration::from_secs(3);

/// … when the server is known to be away.
const LAST_TRY: Duration = Duration::from_millis(500);

/// How the ComfyUIs are asked.
type Clients = BTreeMap<WorkerId, comfyui::Client>;

/// Runs until it is told to stop.
pub(super) async fn run(settings: Settings, mut stop: Stop, json: bool) -> anyhow::Result<ExitCode> {
    settings.log.install("info")?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let (places, sink) = places(&settings)?;
    let owner = Owner::take(&settings.server.data)?;
    let process = Process::start(&settings)?;
    let mut task = Task::read(&settings, owner.id)?;
    let client = Client::new(task.config.clone()).map_err(as_input)?;
    let simulators = Simulators::start(settings.workers.sim).await?;
    let workers = workers(&settings, &simulators)?;
    task.seat(workers.len());
    let folder = settings.server.data.join("littlehorse");
    let options = Options {
        task: task.name.clone(),
        options_task: task.with_options.clone(),
        timeout: settings.is_given("tasks.timeout").then_some(settings.tasks.timeout),
        graph: settings.graph.clone(),
        ..Options::new(places)
    };
    let ready = async {
        if !is_there(&workers).await {
            let employer = LittleHorse::for_reports(client.clone(), options.clone());
            // What ended before needs no ComfyUI to be told.
            let left = LeftReports::open(&folder, &employer).await?;
            let told = async {
                left.say(&employer).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                waited = wait_for_comfyui(&settings, &workers) => waited?,
                () = told => {}
            }
        }
        anyhow::Ok(Arc::new(LittleHorse::open(client, options).await.map_err(as_input)?))
    };
    let employer = tokio::select! {
        employer = ready => employer?,
        () = stop.requested() => return Ok(ExitCode::SUCCESS),
    };
    let clients: Clients =
        workers.iter().map(|worker| (worker.spec.id.clone(), worker.client.clone())).collect();
    let options = JournalOptions {
        folder: folder.clone(),
        owner: owner.id,
        slots: task.slots,
        workers: clients.clone().into_iter().collect(),
        sink,
    };
    let source = JournalSource::open(Arc::clone(&employer) as Arc<dyn Employer>, options).await?;
    let source = Arc::new(source);
    let options = process.equip(herd_options(&settings, owner.id));
    let herd = Herd::start(Arc::clone(&source) as Arc<dyn Source>, options);
    let names: Vec<String> = workers.iter().map(|worker| worker.spec.id.to_string()).collect();
    for worker in workers {
        herd.add(worker);
    }
    announce(&task, &names, json)?;
    stop.requested().await;
    tracing::info!(drain_s = settings.tasks.drain.as_secs(), "stopping; once more stops at once");
    let stopped = async {
        tokio::join!(employer.close(), end_all(&herd, &source, &clients, settings.tasks.drain));
        let away = matches!(employer.health(), Some(Health::Unhealthy(_)));
        let unsent = source.close(if away { LAST_TRY } else { LAST_REPORTS }).await;
        if unsent > 0 {
            tracing::warn!(unsent, "some reports were not heard; they are sent after the next start");
        }
        simulators.stop().await;
    };
    tokio::select! {
        () = stopped => Ok(ExitCode::SUCCESS),
        () = stop.requested() => Ok(ExitCode::FAILURE),
    }
}

/// Lets what renders end within the drain, and then stops it. What is at a ComfyUI that does not answer stays as it is, for
/// the next start.
async fn end_all(herd: &Herd, source: &JournalSource, clients: &Clients, drain: Duration) {
    let all = herd.stop(drain + LAST_WORDS);
    if tokio::time::timeout(drain, all).await.is_ok() {
        return;
    }
    source.call_off("the worker is stopping");
    tokio::select! {
        () = herd.stop(LAST_WORDS) => {}
        () = none_answers(herd, clients) => herd.stop(Duration::ZERO).await,
    }
}

/// Returns when no ComfyUI that has something of ours answers.
async fn none_answers(herd: &Herd, clients: &Clients) {
    loop {
        let asked = Instant::now();
        let workers = herd.status().workers.into_iter().filter(|worker| !worker.leases.is_empty());
        let asks = workers.filter_map(|worker| clients.get(&worker.spec.id)).map(async |client| {
            matches!(tokio::time::timeout(LAST_QUESTION, client.system_stats()).await, Ok(Ok(_)))
        });
        if !futures_util::future::join_all(asks).await.contains(&true) {
            return;
        }
        tokio::time::sleep_until(asked + LAST_QUESTION).await;
    }
}

fn announce(task: &Task, workers: &[String], json: bool) -> anyhow::Result<()> {
    let from = format!("littlehorse {}:{}", task.config.host, task.config.port);
    if json {
        ui::json(&serde_json::json!({
            "source": from, "task": task.name, "options_task": task.with_options, "slots": task.slots,
            "worker_id": task.config.worker_id, "workers": workers,
        }))
    } else {
        let more = task.with_options.as_ref().map_or_else(String::new, |name| format!(" and {name}"));
        ui::line(format_args!(
            "Serving {}{more} of {from} with {}. Ctrl-C stops it.",
            task.name,
            workers.join(", ")
        ))
    }
}

/// What is served, where.
struct Task {
    config: Config,
    name: String,
    /// The one with options, if it is served.
    with_options: Option<String>,
    slots: usize,
    /// Somebody said how many slots there are.
    seated: bool,
}

impl Task {
    /// Unless somebody said otherwise, there is a slot for each ComfyUI.
    fn seat(&mut self, comfyuis: usize) {
        if !self.seated {
            self.slots = comfyuis.max(1);
        } else if self.slots < comfyuis {
            tracing::warn!(
                slots = self.slots,
                comfyuis,
                "there are fewer slots than ComfyUIs: some of those will idle (LHW_NUM_WORKER_THREADS)"
            );
        }
    }

    /// From flags, variables and the file of settings; below them a properties file; below it the defaults.
    fn read(settings: &Settings, owner: OwnerId) -> anyhow::Result<Self> {
        let littlehorse = &settings.littlehorse;
        let properties = match &littlehorse.config {
            None => Vec::new(),
            Some(path) => {
                let bad = |reason: String| BadInput(format!("{}: {reason}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
                parse_properties(&text).map_err(bad)?
            }
        };
        let written = |name: &str| {
            // The last one counts, as in Java.
            properties.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let (host, port) = &littlehorse.host;
        let lookup = |name: &str| {
            let given = || {
                let found = littlehorse.given.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| value.clone()).or_else(|| written(name))
            };
            match (name, port) {
                ("LHC_API_HOST", _) if littlehorse.host_given => Some(host.clone()),
                ("LHC_API_PORT", Some(port)) if littlehorse.host_given => Some(port.to_string()),
                ("LHW_TASK_WORKER_ID", _) => given().or_else(|| Some(format!("remuda-{owner}"))),
                (SLOTS, _) => given().or_else(|| Some("1".to_owned())),
                _ => given(),
            }
        };
        let config = Config::from_lookup(lookup).map_err(as_input)?;
        let seated = littlehorse.given.iter().any(|(key, _)| *key == SLOTS) || written(SLOTS).is_some();
        let name = lookup("LHW_TASK_NAME").unwrap_or_else(|| remuda_littlehorse::contract::TASK.to_owned());
        let with_options = lookup("LHW_OPTIONS_TASK_NAME").filter(|name| !name.is_empty());
        if with_options.as_ref() == Some(&name) {
            let message = format!(
                "LHW_OPTIONS_TASK_NAME={name} is also LHW_TASK_NAME; a task has options, or it has none"
            );
            return Err(BadInput(message).into());
        }
        Ok(Self { slots: config.slots, seated, name, with_options, config })
    }
}

/// The same again will fail again.
fn as_input(error: littlehorse::Error) -> BadInput {
    BadInput(error.to_string())
}

/// Where results are: delivered where `--files` says, or else in ComfyUI's own folder, which must be known then.
fn places(settings: &Settings) -> anyhow::Result<(Places, Option<Files>)> {
    let location = &settings.files.url;
    match &settings.littlehorse.output_dir {
        _ if settings.is_given("files.url") => {}
        Some(folder) => return Ok((Places::Folder(folder.clone()), None)),
        // Simulated ones write into folders that go with them.
        None if settings.workers.sim > 0 => {}
        None => {
            let message = "COMFYUI_OUTPUT_DIR is not set: name the folder into which ComfyUI writes, as those who read the \
                           results see it; or say with --files (REMUDA_FILES) where results are delivered to";
            return Err(BadInput(message.to_owned()).into());
        }
    }
    let files = Files::open(location).with_context(|| format!("cannot use the file store {location}"))?;
    let base = location.to_string();
    let base = match base.strip_prefix("file:") {
        None => base,
        Some(folder) => {
            let folder = std::path::absolute(folder).with_context(|| format!("{folder} is not a path"))?;
            folder.display().to_string()
        }
    };
    Ok((Places::Sink(base), Some(files)))
}

/// The ComfyUIs, asked as the settings of this worker say.
fn workers(settings: &Settings, simulators: &Simulators) -> anyhow::Result<Vec<WorkerConfig>> {
    let littlehorse = &settings.littlehorse;
    let mut workers = worker_configs(settings, simulators, settings.worker.id.as_deref())?;
    if workers.is_empty() {
        let message = format!(
            "no ComfyUI to work with: set COMFYUI_BASE_URL, give one with --comfyui URL{OR_SIMULATE}"
        );
        return Err(BadInput(message).into());
    }
    for worker in &mut workers {
        worker.client = comfyui::Client::builder(&worker.spec.endpoint)
            .timeout(littlehorse.http_timeout)
            .retries(littlehorse.http_retries)
            .limits(comfyui_limits(settings))
            .build()?;
        let session = &mut worker.session;
        session.survey = littlehorse.poll_interval.max(Duration::from_millis(100));
        session.survey_blind = session.survey_blind.min(session.survey);
        session.unreachable_after = littlehorse.history_timeout;
    }
    Ok(workers)
}

fn herd_options(settings: &Settings, owner: OwnerId) -> HerdOptions {
    let mut options = HerdOptions::new(owner);
    options.results = result_limits(settings);
    options.timing.probe = settings.littlehorse.health_interval.max(Duration::from_millis(100));
    options.timing.unreachable = settings.littlehorse.history_timeout;
    options
}

/// Whether a ComfyUI answers at once.
async fn is_there(workers: &[WorkerConfig]) -> bool {
    for worker in workers {
        let answer = tokio::time::timeout(Duration::from_secs(1), worker.client.system_stats()).await;
        if matches!(answer, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// A worker that registers gets tasks, and their timeouts run: so a ComfyUI must be there first, one at least.
async fn wait_for_comfyui(settings: &Settings, workers: &[WorkerConfig]) -> anyhow::Result<()> {
    let littlehorse = &settings.littlehorse;
    let since = Instant::now();
    let mut told = false;
    let mut reason = String::new();
    loop {
        for worker in workers {
            let left = littlehorse.health_timeout.saturating_sub(since.elapsed()).max(Duration::from_secs(1));
            match tokio::time::timeout(left, worker.client.system_stats()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => reason = error.to_string(),
                // What was said before says more.
                Err(_) if reason.is_empty() => reason = "no answer".to_owned(),
                Err(_) => {}
            }
        }
        let names: Vec<&str> = workers.iter().map(|worker| worker.spec.endpoint.as_str()).collect();
        let names = names.join(", ");
        if since.elapsed() >= littlehorse.health_timeout {
            let waited = littlehorse.health_timeout.as_secs();
            anyhow::bail!("no ComfyUI answered at {names} within {waited} s: {reason}");
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(comfyui = names, reason, "ComfyUI does not answer yet; waiting for it");
        }
        tokio::time::sleep(littlehorse.health_interval.max(Duration::from_millis(100))).await;
    }
}
