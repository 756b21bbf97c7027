//! The check of a whole graph: the shape of its nodes first, then links and values.

use crate::object_info::ObjectInfo;
use crate::workflow::Workflow;

use super::findings::Findings;
use super::graph::{Graph, GraphNode};
use super::known::Known;
use super::nearest::similar;
use super::report::{Kind, Noticed, Report, Severity};
use super::{Options, inputs, links, values};

/// How many similar class names are suggested.
const SUGGESTED: usize = 3;

pub(super) fn check(workflow: &Workflow, info: Option<&ObjectInfo>, options: &Options) -> Report {
    let mut known = Known::default();
    let graph = Graph::new(workflow.nodes(), info, options.targets.as_deref(), &mut known);
    let mut findings = Findings::new(options);
    doubled(&graph, &mut findings);
    for node in &graph.nodes {
        shape(node, info, &mut findings);
        non_finite(node, &mut findings);
        links::check_node(&graph, node, &mut known, &mut findings);
        if let (Some(described), Some(all)) = (node.info, info) {
            inputs::check_node(node, described, all, &mut known, &mut findings);
        }
    }
    links::check_paths(&graph, &mut findings);
    if graph.described {
        no_outputs(&graph, &mut findings);
        verdict(&graph, &mut findings);
    }
    findings.report
}

fn doubled(graph: &Graph<'_>, findings: &mut Findings<'_>) {
    for (at, input) in &graph.doubled {
        let node = graph.nodes.get(*at);
        let (severity, message) = match input {
            None => (
                Severity::Refused,
                "the id stands more than once; ComfyUI would silently run only the last one",
            ),
            Some(_) => (Severity::Suspicious, "stands more than once; only the last value counts"),
        };
        let message = message.to_owned();
        findings.add(node, input.as_deref(), severity, Noticed::Never, Kind::Doubled, message);
    }
}

/// What makes a node a node: an object with a class and inputs.
fn shape(node: &GraphNode<'_>, info: Option<&ObjectInfo>, findings: &mut Findings<'_>) {
    let mut refuse = |kind, message: String| {
        findings.refused_whole = true;
        findings.add(Some(node), None, Severity::Refused, Noticed::AtSubmission, kind, message);
    };
    if !node.node.is_object() {
        return refuse(Kind::NodeNotObject, "is not an object with class_type and inputs".to_owned());
    }
    match (&node.class, node.node.field("class_type"), info) {
        (None, None, _) => refuse(Kind::NoClassType, "has no class_type".to_owned()),
        (None, Some(_), _) => refuse(Kind::NoClassType, "has a class_type that is not a text".to_owned()),
        (Some(class), _, Some(info)) if node.info.is_none() => {
            let ranked = findings.may_rank(info.len());
            let names = info.iter().take(ranked).map(|known| known.class.as_str());
            let nearest = similar(class, names, SUGGESTED);
            let hint = match nearest.as_slice() {
                [] => String::new(),
                names => format!("; did you mean {}?", names.join(" or ")),
            };
            findings.refused_whole = true;
            let message = format!("there is no class {class} here{hint}");
            let kind = Kind::UnknownClass { nearest };
            findings.add(Some(node), None, Severity::Refused, Noticed::AtSubmission, kind, message);
        }
        _ => {}
    }
    if node.inputs.is_none() {
        let what = match node.node.field("inputs") {
            None => "has no inputs",
            Some(_) => "has inputs that are not an object",
        };
        let message =
            format!("{what}; one such node can end the server's only worker; write \"inputs\": {{}}");
        // Where an output needs the node, validation stumbles over it first.
        findings.spoilt.insert(node.node.id().to_owned());
        findings.kill(node, None, Kind::NoInputs, message);
    }
}

/// Numbers in valid JSON that Python reads as infinity. Bare words never get into a [`Workflow`].
fn non_finite(node: &GraphNode<'_>, findings: &mut Findings<'_>) {
    for input in node.inputs.iter().flatten() {
        if values::overflows(input.input.raw.get()) {
            let message = format!("holds a number too large for a float; {}", inputs::NON_FINITE_HARM);
            let name = Some(input.input.name.as_ref());
            findings.kill(node, name, Kind::NonFinite, message);
        }
    }
}

fn no_outputs(graph: &Graph<'_>, findings: &mut Findings<'_>) {
    // An unknown class may be an output node elsewhere, and is a finding of its own.
    if !graph.outputs.is_empty() || findings.refused_whole {
        return;
    }
    let any = graph.nodes.iter().any(|node| node.info.is_some_and(|info| info.output_node));
    let message = match any {
        true => "none of the targets is an output node, so nothing would be run",
        false => "the graph has no output node (such as SaveImage or PreviewImage), so nothing would be run",
    };
    findings.refused_whole = true;
    let (severity, noticed) = (Severity::Refused, Noticed::AtSubmission);
    findings.add(None, None, severity, noticed, Kind::NoOutputs, message.to_owned());
}

/// Which outputs the server would run.
fn verdict(graph: &Graph<'_>, findings: &mut Findings<'_>) {
    let bad: Vec<bool> = (graph.nodes.iter())
        .map(|node| findings.refused_whole || findings.spoilt.contains(node.node.id()))
        .collect();
    (findings.report.accepted_outputs, findings.report.refused_outputs) = graph.split_outputs(&bad);
}
