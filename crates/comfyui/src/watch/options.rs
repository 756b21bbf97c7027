//! How a session looks after its prompts, and the bounds that follow.

use std::time::Duration;

use crate::ids::ClientId;
use crate::outputs::Limits;

/// Settings of a [`crate::Session`].
///
/// With the defaults a watch ends, after its prompt did, within
///
/// | when | bound |
/// |---|---|
/// | the socket works, and the prompt was submitted through it | milliseconds |
/// | the prompt is somebody else's | `survey_blind` + one request |
/// | the socket is dropped or refused | `survey_blind` + one request |
/// | the socket is mute, or TCP is half open | `survey` + one request |
/// | the prompt was deleted, or the server restarted | `survey` + 1 s, once the server answers |
/// | the server's worker thread is dead | `survey` + `worker_dead_after` + 1 s |
/// | a node is stuck, or the worker died in it | `stalled_after` + `survey` |
/// | the server does not answer at all | `survey` + `look_timeout` + `unreachable_after` |
/// | the prompt runs longer than its own limit | that limit, see [`crate::Session::watch_for`] |
///
/// ```
/// use comfyui::SessionOptions;
/// use std::time::Duration;
/// let options = SessionOptions { survey: Duration::from_secs(2), ..SessionOptions::default() };
/// assert_eq!(options.survey_blind, Duration::from_secs(1));
/// ```
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Name to connect under; fresh by default. Not one that another process may use.
    pub client_id: Option<ClientId>,
    /// Pause between two looks at the server's queue while the socket works.
    pub survey: Duration,
    /// The same while it does not.
    pub survey_blind: Duration,
    /// How long one such request may take.
    pub look_timeout: Duration,
    /// A worker that has pending prompts and runs nothing for this long is dead.
    pub worker_dead_after: Duration,
    /// A running prompt of which nothing is heard or seen for this long is stuck, or its worker died in it; what waits
    /// behind it waits for ever. A render with one silent node, or a render of somebody else, looks the same: keep it
    /// above the longest.
    pub stalled_after: Duration,
    /// A server that cannot be asked for this long is given up.
    pub unreachable_after: Duration,
    /// How long the server may take to greet a new socket.
    pub greeting: Duration,
    /// Pause between pings.
    pub ping: Duration,
    /// A socket without any sign of life for this long is given up.
    pub silence: Duration,
    /// Longest pause between two attempts to connect.
    pub longest_backoff: Duration,
    /// Whether files of cached nodes are looked for after a success: an earlier run made them, and somebody may have
    /// cleaned the folder since.
    pub check_cached_files: bool,
    /// How many events wait for a slow reader.
    pub buffer: usize,
    /// How much a prompt may leave. One that left more ends as [`crate::Outcome::TooMany`].
    pub outputs: Limits,
}

/// What one watch wants.
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchOptions {
    /// It gives up after this time. That does not stop the prompt: see [`crate::Client::cancel`].
    pub limit: Option<Duration>,
    /// It also gets every frame of the prompt as it came, as [`crate::Event::Raw`]: for who passes them on.
    pub raw: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            client_id: None,
            survey: Duration::from_secs(5),
            survey_blind: Duration::from_secs(1),
            look_timeout: Duration::from_secs(10),
            worker_dead_after: Duration::from_secs(10),
            stalled_after: Duration::from_secs(30 * 60),
            unreachable_after: Duration::from_secs(60),
            greeting: Duration::from_secs(5),
            ping: Duration::from_secs(10),
            silence: Duration::from_secs(25),
            longest_backoff: Duration::from_secs(10),
            check_cached_files: true,
            buffer: 1024,
            outputs: Limits::default(),
        }
    }
}
