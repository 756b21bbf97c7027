//! Checks of links: their shape, where they lead, and whether the types fit.

use crate::workflow::Input;

use super::findings::Findings;
use super::graph::{Graph, GraphInput, GraphNode};
use super::known::Known;
use super::report::{Kind, Noticed, Severity};
use super::types;

/// Chains longer than this are refused. ComfyUI follows links by recursion: at 972 nodes validation gives up, and at
/// some 985 the worker thread dies when validation saw shorter stretches only (measured with 0.7.0 on Python 3.11).
pub(super) const MAX_CHAIN: usize = 900;

/// Checks every list among the inputs of a node.
pub(super) fn check_node<'a>(
    graph: &Graph<'a>,
    node: &GraphNode<'a>,
    known: &mut Known<'a>,
    findings: &mut Findings<'_>,
) {
    for input in node.inputs.iter().flatten().filter(|input| input.input.is_list()) {
        check_link(graph, node, input, known, findings);
    }
}

fn check_link<'a>(
    graph: &Graph<'a>,
    node: &GraphNode<'a>,
    input: &GraphInput<'a>,
    known: &mut Known<'a>,
    findings: &mut Findings<'_>,
) {
    let name = input.input.name.as_ref();
    let Some(link) = &input.link else {
        let message = bad_link(&input.input);
        match input.declared {
            // Such a list is no link to the server, which does not read it here anyway.
            Some(false) => findings.suspect(node, name, Noticed::Never, Kind::BadLink, message),
            _ => findings.refuse(node, name, Kind::BadLink, message),
        }
        return;
    };
    let to = link.node.clone().into_owned();
    let Some(target) = input.target.map(|target| &graph.nodes[target]) else {
        let kind = Kind::DanglingLink { to: to.clone() };
        let message = format!("links to node {to}, which is not in the graph");
        if node.executed && (input.declared == Some(false) || !node.validated) {
            // Validation does not look here, and the worker does not survive the search for the node.
            let message =
                format!("{message}; the class has no such input, so the server notices too late and dies");
            findings.kill(node, Some(name), kind, message);
        } else {
            findings.refuse(node, name, kind, message);
        }
        return;
    };
    let Some(info) = target.info else { return };
    let count = info.outputs.len();
    // Python counts negative indices from the end.
    let from_end = i64::try_from(count).unwrap_or(i64::MAX);
    let index = if link.slot < 0 { link.slot.saturating_add(from_end) } else { link.slot };
    let output = usize::try_from(index).ok().and_then(|index| info.outputs.get(index));
    let Some(output) = output else {
        let message = match count {
            0 => format!("links to output {} of node {to} ({}), which has no outputs", link.slot, info.class),
            _ => format!(
                "links to output {} of node {to} ({}), which has outputs 0 to {}",
                link.slot,
                info.class,
                count - 1
            ),
        };
        let kind = Kind::NoSuchOutput { to, slot: link.slot };
        match input.declared {
            Some(false) => findings.suspect(node, name, Noticed::AtRunTime, kind, message),
            _ => findings.refuse(node, name, kind, message),
        }
        return;
    };
    let Some(expected) = input.expected.and_then(|at| node.expected.get(at)) else { return };
    if !known.fits(output, &expected.spec.kind) {
        let received = match &output.choices {
            Some(_) => "a list of choices".to_owned(),
            None => output.kind.clone(),
        };
        let expected = types::name(&expected.spec.kind);
        let message =
            format!("takes {expected}, but output {} of node {to} ({}) is {received}", link.slot, info.class);
        let kind = Kind::TypeMismatch { received, expected };
        findings.refuse(node, name, kind, message);
    }
}

/// What is wrong with a list that is no link, and what to write instead.
fn bad_link(input: &Input<'_>) -> String {
    let parts: Vec<serde_json::Value> = serde_json::from_str(input.raw.get()).unwrap_or_default();
    match parts.as_slice() {
        [node, slot] if node.is_number() && slot.is_u64() => {
            format!("links to node {node} by number; node ids are texts: write [\"{node}\", {slot}]")
        }
        [node, slot] if node.is_string() => {
            format!("links to node {node}, but the output {slot} is not a whole number")
        }
        _ => "a list is read as a link [\"node id\", output number], which this is not; wrap a value that is a list \
              as {\"__value__\": [...]}"
            .to_owned(),
    }
}

/// Finds cycles and chains that are too long.
pub(super) fn check_paths(graph: &Graph<'_>, findings: &mut Findings<'_>) {
    let (cycles, longest) = graph.cycles_and_chain();
    for cycle in cycles {
        let Some(first) = cycle.first().map(|&at| &graph.nodes[at]) else {
            continue;
        };
        let mut path: Vec<String> = cycle.iter().map(|&at| graph.nodes[at].node.id().to_owned()).collect();
        path.push(first.node.id().to_owned());
        let message = format!("depends on itself: {}", shorten(&path).join(" → "));
        let kind = Kind::Cycle { path };
        // Where validation follows all the links, the answer is a refusal without a word about the cycle.
        let followed = |(place, &at): (usize, &usize)| {
            let next = Some(cycle[(place + 1) % cycle.len()]);
            let node = &graph.nodes[at];
            let declared = |input: &GraphInput<'_>| input.target == next && input.declared != Some(false);
            node.validated && node.inputs.iter().flatten().any(declared)
        };
        let noticed =
            if cycle.iter().enumerate().all(followed) { Noticed::AtSubmission } else { Noticed::AtRunTime };
        let (severity, noticed) = match cycle.iter().any(|&at| graph.nodes[at].executed) {
            true => (Severity::Refused, noticed),
            false => (Severity::Suspicious, Noticed::Never),
        };
        findings.add(Some(first), None, severity, noticed, kind, message);
    }
    if let Some((at, length)) = longest.filter(|(_, length)| *length > MAX_CHAIN) {
        let message = format!(
            "ends a chain of {length} nodes; from some {MAX_CHAIN} on the server cannot follow and its worker dies"
        );
        let kind = Kind::ChainTooLong { length };
        findings.kill(&graph.nodes[at], None, kind, message);
    }
}

/// A path that a person can still read.
fn shorten(path: &[String]) -> Vec<&str> {
    match path {
        [first @ .., last] if path.len() > 12 => {
            let shown = first.iter().take(10).map(String::as_str);
            shown.chain(["…", last.as_str()]).collect()
        }
        _ => path.iter().map(String::as_str).collect(),
    }
}
