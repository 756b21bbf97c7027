//! One process of the installation, which is started again with the same arguments as often as it is killed.

use anyhow::{Context, Result, bail};
use remuda_testbed::process::Program;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Leads both outputs into a file, and then is the program: signals reach it, and nothing has to be read.
const LOGGED: &str = r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#;
/// How long a start may take, a store that is away included.
const READY: Duration = Duration::from_secs(180);
/// As a service manager does after a failed start.
const AGAIN: Duration = Duration::from_millis(300);

/// One process of the installation.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) log: PathBuf,
    remuda: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// Answers 200 when it is up; a process without one is up when it runs.
    ready: Option<String>,
    program: Option<Program>,
    /// Ends that nobody asked for.
    pub(crate) surprises: Vec<String>,
}

impl Part {
    pub(crate) fn new(remuda: &Path, folder: &Path, name: &str, arguments: &[&str]) -> Part {
        Part {
            name: name.to_owned(),
            log: folder.join(format!("{name}.log")),
            remuda: remuda.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            variables: Vec::new(),
            ready: None,
            program: None,
            surprises: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Part {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Arguments that come after those it has.
    pub(crate) fn and(mut self, arguments: impl IntoIterator<Item = String>) -> Part {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn ready_at(mut self, url: impl Into<String>) -> Part {
        self.ready = Some(url.into());
        self
    }

    /// Starts it and waits until it is ready. One that ends instead is started again, as a service manager would.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            self.launch()?;
            if self.came_up(deadline).await? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} did not get ready in {READY:?}; its log is {}", self.name, self.log.display());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn launch(&mut self) -> Result<()> {
        let log = self.log.display().to_string();
        let remuda = self.remuda.display().to_string();
        let words = ["-c", LOGGED, "sh", &log, &remuda].map(str::to_owned);
        let words = words.into_iter().chain(self.arguments.iter().cloned());
        let program = Program::start("sh", words, self.variables.clone());
        self.program = Some(program.with_context(|| format!("cannot start {}", self.name))?);
        Ok(())
    }

    /// Whether it is ready; not, if it ended first or the time is over.
    async fn came_up(&mut self, deadline: Instant) -> Result<bool> {
        let Some(url) = self.ready.clone() else { return Ok(true) };
        let http = reqwest::Client::builder().timeout(Duration::from_secs(2)).build()?;
        while Instant::now() < deadline {
            if self.has_ended()? {
                return Ok(false);
            }
            if http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(false)
    }

    fn has_ended(&mut self) -> Result<bool> {
        match &mut self.program {
            Some(program) => Ok(program.exited()?.is_some()),
            None => Ok(true),
        }
    }

    /// Whether it is there; one that has ended by itself is noted, once.
    pub(crate) fn is_alive(&mut self) -> Result<bool> {
        let Some(program) = &mut self.program else { return Ok(false) };
        let Some(status) = program.exited()? else { return Ok(true) };
        self.program = None;
        self.surprises.push(format!("{} ended by itself ({status})", self.name));
        Ok(false)
    }

    pub(crate) async fn kill(&mut self) -> Result<()> {
        if let Some(mut program) = self.program.take() {
            program.kill_9()?;
            program.wait_exit(READY).await?;
        }
        Ok(())
    }

    /// Asks it to end; the error is that it did not, or not well.
    pub(crate) async fn end(&mut self, within: Duration) -> Result<()> {
        if let Some(mut program) = self.program.take() {
            program.term()?;
            let status = program.wait_exit(within).await?;
            if !status.success() {
                bail!("{} was asked to end and ended with {status}", self.name);
            }
        }
        Ok(())
    }

    pub(crate) fn stop(&mut self) -> Result<()> {
        self.program.as_mut().map_or(Ok(()), |program| Ok(program.stop()?))
    }

    pub(crate) fn cont(&mut self) -> Result<()> {
        self.program.as_mut().map_or(Ok(()), |program| Ok(program.cont()?))
    }
}
