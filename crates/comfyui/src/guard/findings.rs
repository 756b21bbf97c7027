//! Collecting findings with the node they belong to.

use std::collections::HashSet;

use super::Options;
use super::graph::GraphNode;
use super::report::{Kind, Noticed, Problem, Report, Severity};

/// How many findings get a list of similar names; ranking is work, and nobody reads more.
const MAX_RANKED: usize = 30;

pub(super) struct Findings<'a> {
    pub(super) options: &'a Options,
    pub(super) report: Report,
    /// The ids of nodes whose outputs the server would leave out.
    pub(super) spoilt: HashSet<String>,
    /// Whether the server would refuse the prompt as a whole.
    pub(super) refused_whole: bool,
    ranked: usize,
}

impl<'a> Findings<'a> {
    pub(super) fn new(options: &'a Options) -> Self {
        Self {
            options,
            report: Report::default(),
            spoilt: HashSet::new(),
            refused_whole: false,
            ranked: 0,
        }
    }

    /// Whether a further finding may rank names by similarity.
    pub(super) fn may_rank(&mut self) -> bool {
        self.ranked += 1;
        self.ranked <= MAX_RANKED
    }

    /// A finding about the input of a node, weighed by whether the server would look at that node at all.
    pub(super) fn input(
        &mut self,
        node: &GraphNode<'_>,
        input: &str,
        severity: Severity,
        noticed: Noticed,
        kind: Kind,
        message: String,
    ) {
        let (severity, noticed) = match (node.validated, node.executed) {
            (true, _) => (severity, noticed),
            (false, true) => (Severity::Suspicious, Noticed::AtRunTime),
            (false, false) => (Severity::Suspicious, Noticed::Never),
        };
        self.add(Some(node), Some(input), severity, noticed, kind, message);
    }

    pub(super) fn add(
        &mut self,
        node: Option<&GraphNode<'_>>,
        input: Option<&str>,
        severity: Severity,
        noticed: Noticed,
        kind: Kind,
        message: String,
    ) {
        let node_id = node.map(|node| node.node.id().to_owned());
        if severity >= Severity::Refused && noticed == Noticed::AtSubmission {
            self.spoilt.extend(node_id.clone());
        }
        let class_type = node.and_then(|node| node.class.as_deref()).map(str::to_owned);
        let input = input.map(str::to_owned);
        self.report.add(Problem {
            kind,
            severity,
            noticed,
            node_id,
            class_type,
            input,
            message,
        });
    }
}
