//! Which inputs a class expects of one particular node.
//!
//! Most classes always expect the same. V3 classes may have inputs that depend on what is given: a choice that
//! brings inputs of its own, or a row that grows.

use std::borrow::Cow;

use crate::object_info::{Dynamic, InputKind, InputSpec, NodeInfo, Section};
use crate::workflow::Input;

use super::known::{Known, Lookup};

/// One input that the class expects.
pub(super) struct Expected<'a> {
    /// Its full name in the node, `outer.inner` for the inner ones.
    pub(super) name: Cow<'a, str>,
    pub(super) spec: &'a InputSpec,
    pub(super) required: bool,
}

/// The inputs that the server would look for, whatever a node gives; None when it depends on that.
pub(super) fn expected_always<'a>(info: &'a NodeInfo) -> Option<Vec<Expected<'a>>> {
    let specs = info.inputs.iter().filter(|spec| spec.section != Section::Hidden);
    let expect = |spec: &'a InputSpec| match spec.kind {
        InputKind::Dynamic(_) => None,
        _ => Some(Expected {
            name: Cow::Borrowed(&spec.name),
            spec,
            required: spec.section == Section::Required,
        }),
    };
    specs.map(expect).collect()
}

/// The inputs that the server would look for, given the inputs of a node.
pub(super) fn expected<'a>(
    info: &'a NodeInfo,
    given: &[Input<'_>],
    known: &mut Known<'a>,
) -> Vec<Expected<'a>> {
    let given = Given { inputs: given, names: Lookup::new(given.iter().map(|input| input.name.as_ref())) };
    let mut found = Vec::new();
    expand(&info.inputs, "", &given, known, &mut found);
    found
}

/// The inputs of a node, by name.
struct Given<'g> {
    inputs: &'g [Input<'g>],
    names: Lookup<'g>,
}

/// Descriptions nest as deep as the JSON they were read from, which its reader has bounded.
fn expand<'a>(
    specs: &'a [InputSpec],
    prefix: &str,
    given: &Given<'_>,
    known: &mut Known<'a>,
    found: &mut Vec<Expected<'a>>,
) {
    for spec in specs.iter().filter(|spec| spec.section != Section::Hidden) {
        let name = match prefix {
            "" => Cow::Borrowed(spec.name.as_str()),
            prefix => Cow::Owned(format!("{prefix}{}", spec.name)),
        };
        let required = spec.section == Section::Required;
        let InputKind::Dynamic(dynamic) = &spec.kind else {
            found.push(Expected { name, spec, required });
            continue;
        };
        let inner = format!("{name}.");
        match dynamic {
            Dynamic::Combo { options } => {
                let value = given.names.find(&name).and_then(|at| given.inputs[at].value());
                let chosen = value.and_then(|value| known.option(options, &value));
                if let Some(inputs) = chosen {
                    expand(inputs, &inner, given, known, found);
                    found.push(Expected { name, spec, required });
                }
            }
            Dynamic::Grow { names, min, template } => {
                for (at, member) in names.iter().enumerate() {
                    let name = format!("{inner}{member}");
                    if given.names.find(&name).is_some() {
                        found.push(Expected { name: name.into(), spec: template, required: at < *min });
                    }
                }
            }
            Dynamic::Slot { inputs, .. } => {
                if given.names.find(&name).is_some() {
                    expand(inputs, &inner, given, known, found);
                    found.push(Expected { name, spec, required });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object_info::ObjectInfo;
    use crate::workflow::Workflow;

    #[test]
    fn dynamic_inputs_follow_what_is_given() {
        let described = json!({"X": {"input": {"required": {
            "plain": ["INT"],
            "how": ["COMFY_DYNAMICCOMBO_V3", {"options": [
                {"key": "size", "inputs": {"required": {"w": ["INT"]}, "optional": {"h": ["INT"]}}},
                {"key": "none", "inputs": {}}]}],
            "row": ["COMFY_AUTOGROW_V3", {"template": {
                "input": {"required": {"image": ["IMAGE"]}}, "prefix": "image", "min": 1, "max": 9}}],
        }}}});
        let info = ObjectInfo::from_slice(described.to_string().as_bytes()).unwrap();
        let info = info.get("X").unwrap();
        let names = |inputs: Value| {
            let workflow = Workflow::parse(json!({"1": {"inputs": inputs}}).to_string()).unwrap();
            let given = workflow.nodes()[0].inputs().unwrap();
            let found = expected(info, &given, &mut Known::default());
            found.into_iter().map(|one| (one.name.into_owned(), one.required)).collect::<Vec<_>>()
        };
        let plain = [("plain".to_owned(), true)];
        assert_eq!(names(json!({})), plain);
        assert_eq!(names(json!({"how": "other", "how.w": 1})), plain);
        assert_eq!(
            names(json!({"how": "size", "row.image0": ["2", 0], "row.image3": ["2", 0]})),
            [
                ("plain", true),
                ("how.w", true),
                ("how.h", false),
                ("how", true),
                ("row.image0", true),
                ("row.image3", false)
            ]
            .map(|(name, required)| (name.to_owned(), required))
        );
        let mut known = Known::default();
        assert!(known.is_part_of_dynamic(info, "row.image77") && known.is_part_of_dynamic(info, "how"));
        assert!(!known.is_part_of_dynamic(info, "rows") && !known.is_part_of_dynamic(info, "plain"));
    }
}
