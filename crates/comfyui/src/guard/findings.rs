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
        Self { options, report: Report::default(), spoilt: HashSet::new(), refused_whole: false, ranked: 0 }
    }

    /// Whether a further finding may rank names by similarity.
    pub(super) fn may_rank(&mut self) -> bool {
        self.ranked += 1;
        self.ranked <= MAX_RANKED
    }

    /// The server would refuse this input, if it looks at the node at all.
    pub(super) fn refuse(&mut self, node: &GraphNode<'_>, input: &str, kind: Kind, message: String) {
        let (severity, noticed) = match (node.validated, node.executed) {
            (true, _) => (Severity::Refused, Noticed::AtSubmission),
            (false, true) => (Severity::Suspicious, Noticed::AtRunTime),
            (false, false) => (Severity::Suspicious, Noticed::Never),
        };
        self.add(Some(node), Some(input), severity, noticed, kind, message);
    }

    /// The server would take this input, but hardly as it was meant.
    pub(super) fn suspect(
        &mut self,
        node: &GraphNode<'_>,
        input: &str,
        noticed: Noticed,
        kind: Kind,
        message: String,
    ) {
        let noticed = if node.executed { noticed } else { Noticed::Never };
        self.add(Some(node), Some(input), Severity::Suspicious, noticed, kind, message);
    }

    /// The server would not survive this.
    pub(super) fn kill(&mut self, node: &GraphNode<'_>, input: Option<&str>, kind: Kind, message: String) {
        self.add(Some(node), input, Severity::Kills, Noticed::Never, kind, message);
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
        self.report.add(Problem { kind, severity, noticed, node_id, class_type, input, message });
    }
}
