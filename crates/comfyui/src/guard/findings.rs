//! Collecting findings with the node they belong to.

use std::collections::{HashMap, HashSet};
use std::mem::Discriminant;

use super::Options;
use super::graph::GraphNode;
use super::report::{Kind, Noticed, Problem, Report, Severity};

/// How many findings get a list of similar names; ranking is work, and nobody reads more.
const MAX_RANKED: usize = 30;

/// How many names are ranked altogether: lists may be long.
const MAX_NAMES: usize = 65_536;

/// How many findings of one kind and severity are told one by one. Of the others only the number is kept.
const MAX_OF_A_KIND: usize = 200;

/// How many different classes and models that are not there are told beyond that: others may have them.
const MAX_MISSING: usize = 1_000;

/// The longest message; graphs and descriptions may hold texts of any length.
const MAX_MESSAGE: usize = 2_000;

pub(super) struct Findings<'a> {
    pub(super) options: &'a Options,
    pub(super) report: Report,
    /// The ids of nodes whose outputs the server would leave out.
    pub(super) spoilt: HashSet<String>,
    /// Whether the server would refuse the prompt as a whole.
    pub(super) refused_whole: bool,
    ranked: usize,
    names: usize,
    counts: HashMap<(Severity, Discriminant<Kind>), usize>,
    missing: HashSet<String>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(options: &'a Options) -> Self {
        Self {
            options,
            report: Report::default(),
            spoilt: HashSet::new(),
            refused_whole: false,
            ranked: 0,
            names: MAX_NAMES,
            counts: HashMap::new(),
            missing: HashSet::new(),
        }
    }

    /// How many names a further finding may rank by similarity; `wanted` are there.
    pub(super) fn may_rank(&mut self, wanted: usize) -> usize {
        self.ranked += 1;
        if self.ranked > MAX_RANKED {
            return 0;
        }
        let granted = wanted.min(self.names);
        self.names -= granted;
        granted
    }

    /// Whether a finding is told, or only counted.
    fn is_told(&mut self, severity: Severity, kind: &Kind, class: Option<&str>) -> bool {
        let count = self.counts.entry((severity, std::mem::discriminant(kind))).or_default();
        *count += 1;
        let missing = match kind {
            Kind::UnknownClass { .. } => class,
            Kind::MissingModel { model, .. } => Some(model.as_str()),
            _ => None,
        };
        let told = *count <= MAX_OF_A_KIND;
        // Whoever looks for another server needs every name once.
        let Some(name) = missing.filter(|_| self.missing.len() < MAX_MISSING + MAX_OF_A_KIND) else {
            return told;
        };
        if self.missing.contains(name) {
            return told;
        }
        self.missing.insert(name.to_owned())
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
        if severity >= Severity::Refused
            && noticed == Noticed::AtSubmission
            && let Some(node) = node.filter(|node| !self.spoilt.contains(node.node.id()))
        {
            self.spoilt.insert(node.node.id().to_owned());
        }
        if !self.is_told(severity, &kind, node.and_then(|node| node.class.as_deref())) {
            self.report.unlisted += 1;
            return;
        }
        let message = cut(message);
        let node_id = node.map(|node| node.node.id().to_owned());
        let class_type = node.and_then(|node| node.class.as_deref()).map(str::to_owned);
        let input = input.map(str::to_owned);
        self.report.add(Problem { kind, severity, noticed, node_id, class_type, input, message });
    }
}

/// A message that is not longer than anybody reads.
fn cut(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push('…');
    }
    message
}
