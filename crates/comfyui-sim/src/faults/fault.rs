//! One fault, written so that a test reads like its story.

use super::{RouteFilter, RouteFilterError};
use crate::Profile;
use std::time::Duration;

/// Something that goes wrong: what, where, how often, for how long.
///
/// ```
/// use comfyui_sim::faults::Fault;
/// use std::time::Duration;
///
/// // The prompt is queued, and the client never hears of it.
/// let lost = Fault::lose_answer().on("POST /prompt").times(1);
/// // One history question in ten fails, the same ones in every run.
/// let flaky = Fault::error(500).on("GET /history/*").probability(0.1).seed(7);
/// // The whole process is gone for two seconds, and forgets everything.
/// let gone = Fault::crash().down_for(Duration::from_secs(2));
/// # let _ = (lost, flaky, gone);
/// ```
///
/// Without [`times`](Self::times) a fault about requests, sockets or prompts hits all of them until it is
/// removed or its [`duration`](Self::lasting) is over; only a zombie worker happens once. A fault about the
/// process (restart, crash, refused connections, another version) happens once and at once, or with
/// [`on`](Self::on) each time such a request has been processed.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub(super) kind: FaultKind,
    pub(super) on: Option<RouteFilter>,
    pub(super) times: Option<u32>,
    pub(super) probability: Option<f64>,
    pub(super) seed: Option<u64>,
    pub(super) lasting: Option<Duration>,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// The request waits before it is processed.
    Slow {
        /// How long.
        delay: Duration,
    },
    /// The request is neither processed nor answered; the connection stays open.
    Hang,
    /// The connection is reset, the request is not processed.
    Reset,
    /// The request is not processed and answered with ComfyUI's error page.
    Error {
        /// The HTTP status.
        status: u16,
    },
    /// From this request on the connection swallows everything and says nothing, as when the machine behind it
    /// lost its power.
    HalfOpen,
    /// The request is processed, then the connection is reset without an answer.
    LoseAnswer,
    /// The request is processed, and answered with ComfyUI's error page all the same.
    ErrorAfter {
        /// The HTTP status.
        status: u16,
    },
    /// The request is processed; the answer is status 200 with something that is not JSON.
    Garbage,
    /// The request is processed; the connection is reset in the middle of the answer's body.
    CutAnswer,
    /// The request is not processed; the answer has this status and a body that goes on and on.
    Endless {
        /// The HTTP status, also 200.
        status: u16,
        /// The body ends after this many bytes.
        bytes: u64,
    },
    /// The request is not processed; the answer is a small gzip body that unpacks to blanks, and never closes.
    GzipBomb {
        /// How many bytes it unpacks to.
        bytes: u64,
    },
    /// `/object_info` has this many more nodes.
    HugeObjectInfo {
        /// How many; 100,000 of them are 60 MB.
        nodes: u64,
    },
    /// An entry of the history has a text of this length among its outputs. Other answers stay as they are.
    HugeHistory {
        /// How long.
        bytes: u64,
    },
    /// The request is processed; the answer's body comes byte by byte.
    Trickle {
        /// The pause before each byte.
        delay: Duration,
    },
    /// Sockets send frames that nobody asked for as fast as they are taken.
    FloodWebsocket {
        /// How many.
        frames: u64,
        /// Bytes of each, as pictures; 0 is small texts about a prompt that nobody knows.
        bytes: u64,
    },
    /// The socket stays open and answers pings, but sends no frames any more.
    MuteWebsocket {
        /// Frames that still get through first.
        after_frames: u64,
    },
    /// The socket's connection is reset.
    DropWebsocket {
        /// Frames that still get through first.
        after_frames: u64,
    },
    /// The socket stays open, but nothing goes through it any more in either direction, not even pings.
    HalfOpenWebsocket {
        /// Frames that still get through first.
        after_frames: u64,
    },
    /// All connections are reset and new ones are refused, while the queue goes on behind the closed door.
    Refuse,
    /// As SIGTERM and a new start: queue, history, counter, cache and temp files are gone, input and output stay.
    Restart {
        /// How long the port refuses connections.
        down: Duration,
    },
    /// As a killed process: all connections are reset, the port refuses.
    Crash {
        /// Start again after this time; without it the simulator stays down until it is revived.
        down: Option<Duration>,
    },
    /// Restarts as another version of ComfyUI.
    Version {
        /// Which one.
        profile: Profile,
    },
    /// The worker thread ends with the next prompt: everything answers, nothing is executed any more, and that
    /// prompt stays in `queue_running` for ever.
    ZombieWorker,
    /// A prompt fails with `torch.OutOfMemoryError`.
    OutOfMemory,
    /// A prompt that saves, or an upload, fails with `No space left on device`.
    DiskFull,
    /// A prompt's files are deleted before its history entry appears.
    FilesGone,
    /// A node of the prompt hangs until the fault is removed or the process ends.
    StuckNode,
    /// The process ends in the middle of a prompt.
    CrashInNode,
    /// Everything in a prompt takes longer.
    SlowNodes {
        /// How many times as long.
        factor: f64,
    },
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { kind, on: None, times: None, probability: None, seed: None, lasting: None }
    }

    /// [`FaultKind::Slow`].
    pub fn slow(delay: Duration) -> Self {
        Self::new(FaultKind::Slow { delay })
    }

    /// [`FaultKind::Hang`].
    pub fn hang() -> Self {
        Self::new(FaultKind::Hang)
    }

    /// [`FaultKind::Reset`].
    pub fn reset() -> Self {
        Self::new(FaultKind::Reset)
    }

    /// [`FaultKind::Error`].
    pub fn error(status: u16) -> Self {
        Self::new(FaultKind::Error { status })
    }

    /// [`FaultKind::HalfOpen`].
    pub fn half_open() -> Self {
        Self::new(FaultKind::HalfOpen)
    }

    /// [`FaultKind::LoseAnswer`].
    pub fn lose_answer() -> Self {
        Self::new(FaultKind::LoseAnswer)
    }

    /// [`FaultKind::ErrorAfter`].
    pub fn error_after(status: u16) -> Self {
        Self::new(FaultKind::ErrorAfter { status })
    }

    /// [`FaultKind::Garbage`].
    pub fn garbage() -> Self {
        Self::new(FaultKind::Garbage)
    }

    /// [`FaultKind::CutAnswer`].
    pub fn cut_answer() -> Self {
        Self::new(FaultKind::CutAnswer)
    }

    /// [`FaultKind::Endless`] with status 200 and 8 GiB.
    pub fn endless() -> Self {
        Self::new(FaultKind::Endless { status: 200, bytes: 8 << 30 })
    }

    /// [`FaultKind::Endless`] as the page of an error.
    pub fn endless_error(status: u16) -> Self {
        Self::new(FaultKind::Endless { status, bytes: 8 << 30 })
    }

    /// [`FaultKind::GzipBomb`] of 8 GiB.
    pub fn gzip_bomb() -> Self {
        Self::new(FaultKind::GzipBomb { bytes: 8 << 30 })
    }

    /// [`FaultKind::HugeObjectInfo`].
    pub fn huge_object_info(nodes: u64) -> Self {
        Self::new(FaultKind::HugeObjectInfo { nodes })
    }

    /// [`FaultKind::HugeHistory`].
    pub fn huge_history(bytes: u64) -> Self {
        Self::new(FaultKind::HugeHistory { bytes })
    }

    /// [`FaultKind::Trickle`].
    pub fn trickle(delay: Duration) -> Self {
        Self::new(FaultKind::Trickle { delay })
    }

    /// [`FaultKind::FloodWebsocket`] with texts: hits open sockets at once, and those that are opened later.
    pub fn flood_websocket(frames: u64) -> Self {
        Self::new(FaultKind::FloodWebsocket { frames, bytes: 0 })
    }

    /// [`FaultKind::FloodWebsocket`] with pictures of this size.
    pub fn flood_pictures(frames: u64, bytes: u64) -> Self {
        Self::new(FaultKind::FloodWebsocket { frames, bytes })
    }

    /// [`FaultKind::MuteWebsocket`]: hits open sockets at once, and those that are opened later.
    pub fn mute_websocket() -> Self {
        Self::new(FaultKind::MuteWebsocket { after_frames: 0 })
    }

    /// [`FaultKind::DropWebsocket`]: hits open sockets at once, and those that are opened later.
    pub fn drop_websocket() -> Self {
        Self::new(FaultKind::DropWebsocket { after_frames: 0 })
    }

    /// [`FaultKind::HalfOpenWebsocket`]: hits open sockets at once, and those that are opened later.
    pub fn half_open_websocket() -> Self {
        Self::new(FaultKind::HalfOpenWebsocket { after_frames: 0 })
    }

    /// [`FaultKind::Refuse`]: until the fault is removed, or as long as [`lasting`](Self::lasting) says.
    pub fn refuse_connections() -> Self {
        Self::new(FaultKind::Refuse)
    }

    /// [`FaultKind::Restart`].
    pub fn restart() -> Self {
        Self::new(FaultKind::Restart { down: Duration::ZERO })
    }

    /// [`FaultKind::Crash`].
    pub fn crash() -> Self {
        Self::new(FaultKind::Crash { down: None })
    }

    /// [`FaultKind::Version`].
    pub fn version(profile: Profile) -> Self {
        Self::new(FaultKind::Version { profile })
    }

    /// [`FaultKind::ZombieWorker`], once.
    pub fn zombie_worker() -> Self {
        Self::new(FaultKind::ZombieWorker).times(1)
    }

    /// [`FaultKind::OutOfMemory`].
    pub fn out_of_memory() -> Self {
        Self::new(FaultKind::OutOfMemory)
    }

    /// [`FaultKind::DiskFull`].
    pub fn disk_full() -> Self {
        Self::new(FaultKind::DiskFull)
    }

    /// [`FaultKind::FilesGone`].
    pub fn files_gone() -> Self {
        Self::new(FaultKind::FilesGone)
    }

    /// [`FaultKind::StuckNode`].
    pub fn stuck_node() -> Self {
        Self::new(FaultKind::StuckNode)
    }

    /// [`FaultKind::CrashInNode`].
    pub fn crash_in_node() -> Self {
        Self::new(FaultKind::CrashInNode)
    }

    /// [`FaultKind::SlowNodes`].
    pub fn slow_nodes(factor: f64) -> Self {
        Self::new(FaultKind::SlowNodes { factor })
    }

    /// Only requests for this route, such as `"POST /prompt"`.
    ///
    /// # Panics
    /// When `route` is no [`RouteFilter`]; a script with a typing error should not pass as a test. Use
    /// [`try_on`](Self::try_on) for routes that come from outside.
    #[must_use]
    #[track_caller]
    pub fn on(self, route: &str) -> Self {
        match self.try_on(route) {
            Ok(fault) => fault,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`on`](Self::on), with an error for a bad route.
    pub fn try_on(mut self, route: &str) -> Result<Self, RouteFilterError> {
        self.on = Some(route.parse()?);
        Ok(self)
    }

    /// At most this many times.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Each chance is taken with this probability, between 0 and 1.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = Some(probability);
        self
    }

    /// Seed of the probability; without it the simulator's own seed and the number of the fault decide.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The fault is over after this time.
    #[must_use]
    pub fn lasting(mut self, duration: Duration) -> Self {
        self.lasting = Some(duration);
        self
    }

    /// Frames that a socket still sends before it is hit. Means nothing for other faults.
    #[must_use]
    pub fn after_frames(mut self, frames: u64) -> Self {
        if let FaultKind::MuteWebsocket { after_frames }
        | FaultKind::DropWebsocket { after_frames }
        | FaultKind::HalfOpenWebsocket { after_frames } = &mut self.kind
        {
            *after_frames = frames;
        }
        self
    }

    /// How long a restart or a crash keeps the port closed. Means nothing for other faults.
    #[must_use]
    pub fn down_for(mut self, duration: Duration) -> Self {
        match &mut self.kind {
            FaultKind::Restart { down } => *down = duration,
            FaultKind::Crash { down } => *down = Some(duration),
            _ => {}
        }
        self
    }

    /// What goes wrong.
    pub fn kind(&self) -> &FaultKind {
        &self.kind
    }

    /// Whether it ends by itself.
    pub(crate) fn ends(&self) -> bool {
        self.lasting.is_some()
    }
}
