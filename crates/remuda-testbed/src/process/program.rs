//! A program that is started, watched, killed, stopped and continued.

use super::lines::Lines;
use crate::keeper::Keeper;
use crate::signal;
use crate::wait;
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How much of the output an error repeats.
const TAIL: usize = 40;
/// How long the last lines of a program that has ended may take, on a machine that does a lot besides.
const LAST_LINES: Duration = Duration::from_secs(30);
/// After this long without a line it is asked whether the program is still there.
const QUIET: Duration = Duration::from_millis(100);

/// A program did not do what a test waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It could not be started, asked or signalled.
    #[error("cannot {what} {program}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The name of the program.
        program: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The line did not come, and it will not: the program has ended.
    #[error("{program} ended ({status}) without a line with `{pattern}`; its output:{tail}")]
    Ended {
        /// The name of the program.
        program: String,
        /// How it ended.
        status: String,
        /// What was looked for.
        pattern: String,
        /// The end of its output.
        tail: String,
    },
    /// It took too long.
    #[error("waited {waited:?} for {what} of {program}; its output:{tail}")]
    Late {
        /// The name of the program.
        program: String,
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
        /// The end of its output.
        tail: String,
    },
}

/// A running program: real process, real signals, its output kept.
///
/// It leads a process group of its own: what it starts is stopped and killed with it, and goes when it ends. When the value is dropped, or
/// this process ends in whatever way, it is killed. When it is dropped by a panic, its output is printed.
///
/// ```
/// use remuda_testbed::process::Program;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut program = Program::start("sh", ["-c", "echo ready on port $PORT; exec sleep 60"], [("PORT", "7")])?;
/// let line = program.wait_line("ready on", Duration::from_secs(10)).await?;
/// assert_eq!(line, "ready on port 7");
/// program.term()?;
/// assert!(!program.wait_exit(Duration::from_secs(10)).await?.success());
/// # Ok::<(), remuda_testbed::process::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    lines: Lines,
    keeper: Keeper,
}

impl Program {
    /// Starts a program with arguments, and with variables in addition to those of this process.
    pub fn start<A: AsRef<OsStr>, K: AsRef<OsStr>, V: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Program, Error> {
        let mut command = Command::new(program);
        command.args(arguments).envs(variables);
        Program::spawn(command)
    }

    /// Starts a command prepared by the caller; its outputs and its process group are set here.
    pub fn spawn(mut command: Command) -> Result<Program, Error> {
        let path = PathBuf::from(command.get_program());
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let failed = |what| {
            let program = name.clone();
            move |source| Error::Io { what, program, source }
        };
        let mut keeper = Keeper::new("KILL", None).map_err(failed("start a keeper for"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed("start"))?;
        let watched = keeper.watch(-i64::from(child.id()));
        let lines = Lines::new();
        let read = child.stdout.take().map_or(Ok(()), |output| lines.read(output));
        let read = read.and_then(|()| child.stderr.take().map_or(Ok(()), |output| lines.read(output)));
        let started = Program { name: name.clone(), child, status: None, lines, keeper };
        watched.and(read).map_err(failed("watch"))?;
        Ok(started)
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The latest lines of both outputs, oldest first.
    pub fn output(&self) -> Vec<String> {
        self.lines.all()
    }

    /// The first line of either output that contains the text, now or within this time.
    ///
    /// Lines printed before the call count. A program that ends without it is an error at once.
    pub async fn wait_line(&mut self, pattern: &str, within: Duration) -> Result<String, Error> {
        let mut news = self.lines.news();
        let mut from = 0;
        let mut ended = false;
        // One look that lasts until the line is there, or cannot come any more; the deadline cuts it off.
        let found = wait::until(pattern, within, async || {
            loop {
                news.mark_unchanged();
                match self.lines.find(pattern, from) {
                    Ok(line) => return Some(Ok(line)),
                    // Everything that was printed had been read before this look.
                    Err(_) if ended => return Some(Err(())),
                    Err(next) => from = next,
                }
                let quiet = tokio::time::timeout(QUIET, news.changed()).await.is_err();
                ended = quiet && !matches!(self.exited(), Ok(None)) && self.lines.is_whole();
            }
        });
        match found.await {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(())) => Err(Error::Ended {
                status: self.exited()?.map_or_else(|| "unknown".to_owned(), |status| status.to_string()),
                program: self.name.clone(),
                pattern: pattern.to_owned(),
                tail: self.lines.tail(TAIL),
            }),
            Err(late) => Err(self.late(format!("a line with `{pattern}`"), late.waited)),
        }
    }

    /// Kills it and what it has started: no chance to clean up.
    pub fn kill_9(&mut self) -> Result<(), Error> {
        self.send_all(Signal::SIGKILL)
    }

    /// Asks it to end, as a service manager does.
    pub fn term(&mut self) -> Result<(), Error> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        signal::send(self.id(), Signal::SIGTERM).map_err(self.failed("signal"))
    }

    /// Stops it in its tracks: connections stay open, nothing answers. See [`cont`](Program::cont).
    pub fn stop(&mut self) -> Result<(), Error> {
        self.send_all(Signal::SIGSTOP)
    }

    /// Lets a stopped program go on.
    pub fn cont(&mut self) -> Result<(), Error> {
        self.send_all(Signal::SIGCONT)
    }

    /// Waits until it has ended, and what it printed is there.
    pub async fn wait_exit(&mut self, within: Duration) -> Result<ExitStatus, Error> {
        let ended = wait::until("the end", within, async || self.exited().transpose()).await;
        let status = ended.unwrap_or_else(|late| Err(self.late("the end".to_owned(), late.waited)))?;
        // A process that left its group may hold the outputs open for ever.
        let _ = tokio::time::timeout(LAST_LINES, self.lines.whole()).await;
        Ok(status)
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(self.failed("ask"))?;
            if self.status.is_some() {
                // What it leaves behind goes with it, at once: its number may belong to another from now on.
                signal::send_group(self.id(), Signal::SIGKILL).map_err(self.failed("signal"))?;
                self.keeper.watch(0).map_err(self.failed("watch"))?;
            }
        }
        Ok(self.status)
    }

    /// The memory it has in use (resident set), from `/proc`.
    pub fn rss_bytes(&self) -> Result<u64, Error> {
        let file = Path::new("/proc").join(self.id().to_string()).join("status");
        let text = std::fs::read_to_string(file).map_err(self.failed("read the memory of"))?;
        let kilobytes = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        let kilobytes: Option<u64> = kilobytes;
        let missing = || std::io::Error::other("it has ended");
        Ok(kilobytes.ok_or_else(missing).map_err(self.failed("read the memory of"))? * 1024)
    }

    fn send_all(&mut self, which: Signal) -> Result<(), Error> {
        // Once it is reaped its number may belong to another.
        if self.exited()?.is_some() {
            return Ok(());
        }
        signal::send_group(self.id(), which).map_err(self.failed("signal"))
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let program = self.name.clone();
        move |source| Error::Io { what, program, source }
    }

    fn late(&self, what: String, waited: Duration) -> Error {
        Error::Late { program: self.name.clone(), what, waited, tail: self.lines.tail(TAIL) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = signal::send_group(self.child.id(), Signal::SIGKILL);
            let _ = self.child.wait();
            let _ = self.keeper.watch(0);
        }
        if std::thread::panicking() {
            self.print();
        }
    }
}

impl Program {
    #[allow(clippy::print_stderr, reason = "a failing test shows what its programs said")]
    fn print(&self) {
        eprintln!("--- output of {} (process {}):", self.name, self.child.id());
        for line in self.lines.all() {
            eprintln!("  {line}");
        }
    }
}
