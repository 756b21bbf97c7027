//! What can go wrong in the worker on request. Who decides it lives elsewhere; the engine only asks.

use tokio_util::sync::CancellationToken;

/// Source of the faults of executions.
pub(crate) trait ExecutionFaults: Send + Sync {
    /// Asked once for every prompt, when the worker takes it from the queue; what is answered is spent.
    fn for_prompt(&self, prompt_id: &str) -> PromptFaults;
}

/// What goes wrong with one prompt. The default is nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptFaults {
    /// The worker thread ends before the first node: the prompt stays in `queue_running` for ever.
    pub(crate) worker_dies: bool,
    /// The first sampler (or else the first output node) raises `torch.OutOfMemoryError`.
    pub(crate) out_of_memory: bool,
    /// Whatever writes a file raises `OSError: [Errno 28] No space left on device`.
    pub(crate) disk_full: bool,
    /// The files are deleted before the history entry appears.
    pub(crate) files_gone: bool,
    /// The first node that is executed hangs until this token is cancelled.
    pub(crate) hang: Option<CancellationToken>,
    /// The process ends in the first node that is executed.
    pub(crate) crash: bool,
    /// Every wait takes this many times as long; `None` is once.
    pub(crate) slow_factor: Option<f64>,
}
