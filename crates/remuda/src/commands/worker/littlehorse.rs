//! `remuda worker --source littlehorse`: serving a task of a LittleHorse server.

mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use littlehorse::config::parse_properties;
use littlehorse::{Client, Config};
use remuda_core::OwnerId;
use remuda_files::Files;
use remuda_littlehorse::{LittleHorse, Options, Places};
use remuda_runner::source::Source;
use remuda_runner::{HerdOptions, WorkerConfig};
use serde_json::json;

use self::settings::LittleHorseSettings;
use super::WorkerSource;
use super::foreign::{self, ForeignConnection, Terms};
use super::lifecycle::{Around, Connected, Serve, run_worker};
use crate::commands::BadInput;
use crate::config::Settings;
use crate::instance::{OR_SIMULATE, Simulators, comfyui_limits, result_limits, worker_configs};

pub(super) const SOURCE: WorkerSource = WorkerSource {
    name: "littlehorse",
    settings: settings::SETTINGS,
    run: |settings, stop, json| Box::pin(run_worker::<Worker>(settings, stop, json)),
};

/// How many tasks may be under way at once.
const SLOTS: &str = "LHW_NUM_WORKER_THREADS";

/// What this process is called at the server.
const WORKER_ID: &str = "LHW_TASK_WORKER_ID";

/// A worker for a LittleHorse server.
struct Worker {
    own: LittleHorseSettings,
    task: Task,
    places: Places,
    sink: Option<Files>,
}

impl Serve for Worker {
    type Connection = ForeignConnection;

    fn read(settings: &Settings) -> anyhow::Result<Self> {
        let own = LittleHorseSettings::read(&settings.found)?;
        let (places, sink) = places(settings, &own)?;
        let task = Task::read(&own)?;
        Ok(Self { own, task, places, sink })
    }

    fn workers(&self, settings: &Settings, simulators: &Simulators) -> anyhow::Result<Vec<WorkerConfig>> {
        workers(settings, &self.own, simulators)
    }

    async fn connect(self, around: &Around) -> anyhow::Result<Connected<ForeignConnection>> {
        let Around { settings, owner, workers, .. } = around;
        let Self { own, mut task, places, sink } = self;
        task.seat(workers.len());
        task.call(owner.id);
        let client = Client::new(task.config.clone()).map_err(as_input)?;
        let options = Options {
            task: task.name.clone(),
            options_task: task.with_options.clone(),
            timeout: settings.is_given("tasks.timeout").then_some(settings.tasks.timeout),
            graph: settings.graph.clone(),
            ..Options::new(places)
        };
        let terms = Terms {
            folder: SOURCE.name,
            slots: task.slots,
            sink,
            patience: own.health_timeout,
            pause: own.health_interval,
        };
        let reporting = || LittleHorse::for_reports(client.clone(), options.clone());
        let open =
            async || anyhow::Ok(LittleHorse::open(client.clone(), options.clone()).await.map_err(as_input)?);
        let connection = foreign::connect(around, terms, reporting, open).await?;
        let from = format!("littlehorse {}:{}", task.config.host, task.config.port);
        let more = task.with_options.as_ref().map_or_else(String::new, |name| format!(" and {name}"));
        Ok(Connected {
            source: Arc::clone(&connection.source) as Arc<dyn Source>,
            herd: herd_options(settings, &own, owner.id),
            line: format!("Serving {}{more} of {from} with {{workers}}.", task.name),
            json: json!({
                "source": from, "task": task.name, "options_task": task.with_options, "slots": task.slots,
                "worker_id": task.config.worker_id,
            }),
            connection,
        })
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
    /// Somebody said what the worker is called.
    called: bool,
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

    /// Unless somebody said otherwise, the worker is called after the owner of the data directory.
    fn call(&mut self, owner: OwnerId) {
        if !self.called {
            self.config.worker_id = format!("remuda-{owner}");
        }
    }

    /// From flags, variables and the file of settings; below them a properties file; below it the defaults.
    fn read(own: &LittleHorseSettings) -> anyhow::Result<Self> {
        let properties = match &own.config {
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
        let (host, port) = &own.host;
        let lookup = |name: &str| {
            let given = || {
                let found = own.given.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| value.clone()).or_else(|| written(name))
            };
            match (name, port) {
                ("LHC_API_HOST", _) if own.host_given => Some(host.clone()),
                ("LHC_API_PORT", Some(port)) if own.host_given => Some(port.to_string()),
                (SLOTS, _) => given().or_else(|| Some("1".to_owned())),
                _ => given(),
            }
        };
        let config = Config::from_lookup(lookup).map_err(as_input)?;
        let seated = own.given.iter().any(|(key, _)| *key == SLOTS) || written(SLOTS).is_some();
        let called = lookup(WORKER_ID).is_some_and(|id| !id.is_empty());
        let name = lookup("LHW_TASK_NAME").unwrap_or_else(|| remuda_littlehorse::contract::TASK.to_owned());
        let with_options = lookup("LHW_OPTIONS_TASK_NAME").filter(|name| !name.is_empty());
        if with_options.as_ref() == Some(&name) {
            let message = format!(
                "LHW_OPTIONS_TASK_NAME={name} is also LHW_TASK_NAME; a task has options, or it has none"
            );
            return Err(BadInput(message).into());
        }
        Ok(Self { slots: config.slots, seated, called, name, with_options, config })
    }
}

/// The same again will fail again.
fn as_input(error: littlehorse::Error) -> BadInput {
    BadInput(error.to_string())
}

/// Where results are: delivered where `--files` says, or else in ComfyUI's own folder, which must be known then.
fn places(settings: &Settings, own: &LittleHorseSettings) -> anyhow::Result<(Places, Option<Files>)> {
    let location = &settings.files.url;
    match &own.output_dir {
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
fn workers(
    settings: &Settings,
    own: &LittleHorseSettings,
    simulators: &Simulators,
) -> anyhow::Result<Vec<WorkerConfig>> {
    let mut workers = worker_configs(settings, simulators, settings.worker.id.as_deref())?;
    if workers.is_empty() {
        let message = format!(
            "no ComfyUI to work with: set COMFYUI_BASE_URL, give one with --comfyui URL{OR_SIMULATE}"
        );
        return Err(BadInput(message).into());
    }
    for worker in &mut workers {
        worker.client = comfyui::Client::builder(&worker.spec.endpoint)
            .timeout(own.http_timeout)
            .retries(own.http_retries)
            .limits(comfyui_limits(settings))
            .build()?;
        let session = &mut worker.session;
        session.survey = own.poll_interval.max(Duration::from_millis(100));
        session.survey_blind = session.survey_blind.min(session.survey);
        session.unreachable_after = own.history_timeout;
    }
    Ok(workers)
}

fn herd_options(settings: &Settings, own: &LittleHorseSettings, owner: OwnerId) -> HerdOptions {
    let mut options = HerdOptions::new(owner);
    options.results = result_limits(settings);
    options.timing.probe = own.health_interval.max(Duration::from_millis(100));
    options.timing.unreachable = own.history_timeout;
    options
}
