//! What a check found.

use std::fmt;

/// What would come of sending it.
///
/// ```
/// use comfyui::guard::Severity;
///
/// assert!(Severity::Kills > Severity::Refused && Severity::Refused > Severity::Suspicious);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Accepted, but likely not what was meant.
    Suspicious,
    /// Refused by the server, wholly or for one output; accepted and then sure to fail; or so ambiguous that
    /// nobody can say what would run.
    Refused,
    /// Would kill the server or its only worker, or make answers unreadable for everybody. Never to be sent.
    Kills,
}

/// When ComfyUI itself would notice.
///
/// ```
/// use comfyui::guard::{Noticed, check_client_id};
/// use serde_json::json;
///
/// assert_eq!(check_client_id(&json!({})).unwrap().noticed, Noticed::Never);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Noticed {
    /// The answer to the submission says so, though not always as clearly.
    AtSubmission,
    /// Only when the prompt runs.
    AtRunTime,
    /// Never: it is accepted silently, or the server is gone before it could say anything.
    Never,
}

/// What was found, for programs; [`Problem::message`] is for people.
///
/// ```
/// use comfyui::guard::{Kind, Options, check};
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(
///     r#"{"1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
///         "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}}}"#,
/// )?;
/// let report = check(&workflow, None, &Options::default());
/// assert!(matches!(&report.problems[0].kind, Kind::Cycle { path } if path == &["1", "2", "1"]));
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// The text is no graph in API format, or the request holds none.
    NotAWorkflow,
    /// A node is not an object.
    NodeNotObject,
    /// `class_type` is missing or not a text.
    NoClassType,
    /// `inputs` is missing or not an object.
    NoInputs,
    /// A node id, or the name of an input, stands twice in the text.
    Doubled,
    /// A number that is not finite: bare `NaN` or `Infinity`, or one too large for a float.
    NonFinite,
    /// A list that is no link `["node id", output number]`.
    BadLink,
    /// A link to a node that is not in the graph.
    DanglingLink {
        /// The id of the node linked to.
        to: String,
    },
    /// A link to an output that the other node does not have.
    NoSuchOutput {
        /// The id of the node linked to.
        to: String,
        /// The index that the link names.
        slot: i64,
    },
    /// A link between an output and an input of different types.
    TypeMismatch {
        /// The type of the output.
        received: String,
        /// The type of the input.
        expected: String,
    },
    /// Nodes that depend on themselves.
    Cycle {
        /// The ids along the links, the first one repeated at the end.
        path: Vec<String>,
    },
    /// A chain of nodes so long that the server's worker dies of it.
    ChainTooLong {
        /// How many nodes follow one another.
        length: usize,
    },
    /// The server has no such class.
    UnknownClass {
        /// Classes with similar names, nearest first.
        nearest: Vec<String>,
    },
    /// Nothing would be run: no output node, or none among the targets.
    NoOutputs,
    /// A required input is not given.
    MissingInput,
    /// An input that the class does not have.
    UnknownInput,
    /// A value that is not of the declared type.
    WrongType {
        /// The declared type.
        expected: String,
    },
    /// A number below the smallest or above the largest allowed.
    OutOfRange,
    /// A model file that the server does not have.
    MissingModel {
        /// The model folder, where it is known.
        folder: Option<String>,
        /// The file asked for.
        model: String,
        /// What the server has instead, nearest names first, up to [`Options::listed`](super::Options::listed).
        available: Vec<String>,
        /// How many it has altogether.
        total: usize,
    },
    /// An input file that the server does not have.
    MissingFile {
        /// The file asked for.
        file: String,
    },
    /// A value that is not among the choices.
    NotInList {
        /// The choices, nearest first, up to [`Options::listed`](super::Options::listed).
        available: Vec<String>,
    },
    /// `client_id` of the request.
    ClientId,
    /// `prompt_id` of the request.
    PromptId,
    /// `number` of the request.
    Number,
    /// `extra_data` of the request.
    ExtraData,
    /// `partial_execution_targets` of the request.
    Targets,
}

/// One finding.
///
/// ```
/// use comfyui::guard::{Options, Severity, check};
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"4": {"class_type": "SaveImage", "inputs": {"images": ["9", 0]}}}"#)?;
/// let problem = &check(&workflow, None, &Options::default()).problems[0];
/// assert_eq!(problem.severity, Severity::Refused);
/// assert_eq!(problem.to_string(), "node 4 (SaveImage) input images: links to node 9, which is not in the graph");
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What was found.
    pub kind: Kind,
    /// What would come of sending it.
    pub severity: Severity,
    /// When ComfyUI itself would notice.
    pub noticed: Noticed,
    /// The node, where one is to blame.
    pub node_id: Option<String>,
    /// The class of that node.
    pub class_type: Option<String>,
    /// The input of that node.
    pub input: Option<String>,
    /// What is wrong and, where possible, what to do about it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = &self.node_id {
            write!(f, "node {node}")?;
            if let Some(class) = &self.class_type {
                write!(f, " ({class})")?;
            }
            if let Some(input) = &self.input {
                write!(f, " input {input}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

/// Everything a check found.
///
/// ```
/// use comfyui::guard::{Options, check};
/// use comfyui::workflow::Workflow;
///
/// let workflow = Workflow::parse(r#"{"1": {"class_type": "SaveImage"}}"#)?;
/// let report = check(&workflow, None, &Options::default());
/// assert!(!report.may_be_sent() && report.kills());
/// println!("{report}");
/// # Ok::<(), comfyui::workflow::WorkflowError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// What stands in the way of sending: findings that kill or that the server refuses, the worst first.
    pub problems: Vec<Problem>,
    /// What is accepted but likely wrong.
    pub warnings: Vec<Problem>,
    /// The output nodes that the server would run, as far as the check can tell. Empty without node descriptions.
    ///
    /// When this is not empty although there are problems, the server would accept the prompt in part.
    pub accepted_outputs: Vec<String>,
    /// The output nodes that the server would leave out because of a problem.
    pub refused_outputs: Vec<String>,
    /// How many findings are not in the lists, because there are many of their kind in them already.
    pub unlisted: usize,
}

impl Report {
    /// Whether nothing stands in the way of sending.
    pub fn may_be_sent(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether sending would do lasting harm to the server.
    pub fn kills(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Kills)
    }

    /// Problems and warnings together, in this order.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().chain(&self.warnings)
    }

    /// Node classes and models that this server lacks; another server may have them.
    ///
    /// ```
    /// use comfyui::guard::{Options, check};
    /// use comfyui::object_info::ObjectInfo;
    /// use comfyui::workflow::Workflow;
    ///
    /// let here = ObjectInfo::from_slice(br#"{"SaveImage": {"output_node": true}}"#)?;
    /// let workflow = Workflow::parse(r#"{"1": {"class_type": "SaveImag", "inputs": {}}}"#)?;
    /// let report = check(&workflow, Some(&here), &Options::default());
    /// assert_eq!(report.missing_here().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn missing_here(&self) -> impl Iterator<Item = &Problem> {
        self.iter()
            .filter(|problem| matches!(problem.kind, Kind::UnknownClass { .. } | Kind::MissingModel { .. }))
    }

    /// Files a finding where its severity says.
    pub(super) fn add(&mut self, problem: Problem) {
        match problem.severity {
            Severity::Suspicious => self.warnings.push(problem),
            Severity::Refused | Severity::Kills => self.problems.push(problem),
        }
    }

    /// Puts the worst first and leaves the order of the text otherwise.
    pub(super) fn sorted(mut self) -> Self {
        self.problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
        self
    }
}

/// One finding per line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<_> = self.iter().map(ToString::to_string).collect();
        if self.unlisted > 0 {
            lines.push(format!("and {} more", self.unlisted));
        }
        f.write_str(&lines.join("\n"))
    }
}
