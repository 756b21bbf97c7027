//! Why a graph is not queued.

use std::fmt;

use comfyui::guard::{self, Severity};
use comfyui::workflow::WorkflowError;

use super::words::Words;

/// How many further findings are told.
const MOST_LINES: usize = 20;

/// What is wrong with a graph, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// It is not a graph in API format.
    NotAGraph,
    /// It is what the frontend saves.
    UiFormat,
    /// It has no nodes.
    Empty,
    /// It is larger than the settings allow.
    TooLarge,
    /// It would kill the ComfyUI that runs it.
    Dangerous,
    /// Every ComfyUI would refuse it.
    Invalid,
    /// Every known worker lacks a node or a model of it.
    MissingEverywhere,
    /// A file that it names, or the place where one should go, is not there.
    BadInput,
}

impl RefusalKind {
    /// The stable name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAGraph => "not_a_graph",
            Self::UiFormat => "ui_format",
            Self::Empty => "empty_graph",
            Self::TooLarge => "graph_too_large",
            Self::Dangerous => "dangerous_graph",
            Self::Invalid => "invalid_graph",
            Self::MissingEverywhere => "missing_everywhere",
            Self::BadInput => "bad_input",
        }
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where in a graph something is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The node.
    pub node_id: String,
    /// Its class.
    pub class_type: Option<String>,
    /// Its input.
    pub input: Option<String>,
}

impl Place {
    pub(crate) fn of(problem: &guard::Problem) -> Option<Box<Self>> {
        let node_id = problem.node_id.clone()?;
        Some(Box::new(Self { node_id, class_type: problem.class_type.clone(), input: problem.input.clone() }))
    }
}

/// One clear reason, with the node where there is one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people: what is wrong, and what to do.
    pub message: String,
    /// The node to blame.
    pub place: Option<Box<Place>>,
    /// Further findings, one line each, and where what is missing.
    pub more: Vec<String>,
    /// The limit that it exceeds, by the name of its setting.
    pub limit: Option<&'static str>,
    pub(super) words: Option<Box<Words>>,
}

impl Refusal {
    /// Without a node.
    pub(crate) fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), place: None, more: Vec::new(), limit: None, words: None }
    }

    /// At one input of one node.
    pub(crate) fn at(kind: RefusalKind, node: &str, input: &str, message: impl fmt::Display) -> Self {
        Self {
            place: Some(Box::new(Place {
                node_id: node.to_owned(),
                class_type: None,
                input: Some(input.to_owned()),
            })),
            ..Self::new(kind, format!("node {node} input {input}: {message}"))
        }
    }

    /// It is larger than the setting `limit` allows.
    pub(crate) fn too_large(limit: &'static str, message: impl fmt::Display) -> Self {
        let message = format!("{message} (the limit is {limit})");
        Self { limit: Some(limit), ..Self::new(RefusalKind::TooLarge, message) }
    }

    /// From what a check found: the worst first, the others as further lines. `None` when it found nothing.
    /// `unlisted` more were only counted.
    pub(crate) fn of_problems<'a>(
        problems: impl IntoIterator<Item = &'a guard::Problem>,
        unlisted: usize,
    ) -> Option<Self> {
        let mut problems = problems.into_iter();
        let first = problems.next()?;
        let kind = match first.severity {
            Severity::Kills => RefusalKind::Dangerous,
            Severity::Refused | Severity::Suspicious => RefusalKind::Invalid,
        };
        let mut more: Vec<String> = problems.by_ref().take(MOST_LINES).map(ToString::to_string).collect();
        let unlisted = problems.count() + unlisted;
        if unlisted > 0 {
            more.push(format!("and {unlisted} more"));
        }
        let (message, place) = (first.to_string(), Place::of(first));
        Some(Self { place, more, ..Self::new(kind, message) })
    }
}

impl Refusal {
    /// How ComfyUI itself would say it.
    pub fn words(&self) -> Words {
        self.words.as_deref().cloned().unwrap_or_else(|| Words::of_refusal(self))
    }

    /// With what ComfyUI itself would say.
    pub(crate) fn worded(mut self, words: Words) -> Self {
        self.words = Some(Box::new(words));
        self
    }
}

impl From<WorkflowError> for Refusal {
    fn from(error: WorkflowError) -> Self {
        if let WorkflowError::TooLarge(error) = &error {
            let mut refusal = Self::too_large(crate::limits::setting(error.limit), error);
            let place = |node: &String| Place { node_id: node.clone(), class_type: None, input: None };
            refusal.place = error.node.as_ref().map(place).map(Box::new);
            return refusal;
        }
        let kind = match error {
            WorkflowError::UiFormat | WorkflowError::WrappedUiFormat { .. } => RefusalKind::UiFormat,
            WorkflowError::Empty => RefusalKind::Empty,
            _ => RefusalKind::NotAGraph,
        };
        Self::new(kind, error.to_string())
    }
}

/// Why a check has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The graph is refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] remuda_store::Error),
    /// It could not be computed.
    #[error("the graph was not checked: {0}")]
    NotDone(#[from] remuda_pool::NotDone),
}
