//! A worker around task functions.

/// Serves one TaskDef with a function.
#[derive(Debug)]
pub struct Worker {}

/// What a task function knows of its task.
#[derive(Debug)]
pub struct TaskContext {}

/// How a task function fails.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The server may try again.
    #[error("{0}")]
    Failed(String),
}
