//! Which inputs a class expects of one particular node.
//!
//! Most classes always expect the same. V3 classes may have inputs that depend on what is given: a choice that
//! brings inputs of its own, or a row that grows.

use serde_json::Value;

use crate::object_info::{Dynamic, InputKind, InputSpec, NodeInfo, Section};
use crate::workflow::Input;

use super::values::python_equal;

/// One input that the class expects.
pub(super) struct Expected<'a> {
    /// Its full name in the node, `outer.inner` for the inner ones.
    pub(super) name: String,
    pub(super) spec: &'a InputSpec,
    pub(super) required: bool,
}

/// The inputs that the server would look for, given the inputs of a node.
pub(super) fn expected<'a>(info: &'a NodeInfo, given: &[Input<'_>]) -> Vec<Expected<'a>> {
    let mut found = Vec::new();
    expand(&info.inputs, "", given, &mut found);
    found
}

/// Whether a name belongs to a dynamic input of the class, also where the server would not look for it.
pub(super) fn is_part_of_dynamic(info: &NodeInfo, name: &str) -> bool {
    let dynamic = info.inputs.iter().filter(|input| matches!(input.kind, InputKind::Dynamic(_)));
    let belongs = |input: &InputSpec| {
        name.strip_prefix(input.name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    dynamic.into_iter().any(belongs)
}

/// Descriptions nest as deep as the JSON they were read from, which its reader has bounded.
fn expand<'a>(specs: &'a [InputSpec], prefix: &str, given: &[Input<'_>], found: &mut Vec<Expected<'a>>) {
    for spec in specs.iter().filter(|spec| spec.section != Section::Hidden) {
        let name = format!("{prefix}{}", spec.name);
        let required = spec.section == Section::Required;
        let InputKind::Dynamic(dynamic) = &spec.kind else {
            found.push(Expected { name, spec, required });
            continue;
        };
        let inner = format!("{name}.");
        match dynamic {
            Dynamic::Combo { options } => {
                let Some(value) = value_of(given, &name) else {
                    continue;
                };
                let chosen = options.iter().find(|(key, _)| python_equal(key, &value));
                if let Some((_, inputs)) = chosen {
                    expand(inputs, &inner, given, found);
                    found.push(Expected { name, spec, required });
                }
            }
            Dynamic::Grow { names, min, template } => {
                for (at, member) in names.iter().enumerate() {
                    let name = format!("{inner}{member}");
                    if given.iter().any(|input| input.name == name) {
                        found.push(Expected { name, spec: template, required: at < *min });
                    }
                }
            }
            Dynamic::Slot { inputs, .. } => {
                if given.iter().any(|input| input.name == name) {
                    expand(inputs, &inner, given, found);
                    found.push(Expected { name, spec, required });
                }
            }
        }
    }
}

fn value_of(given: &[Input<'_>], name: &str) -> Option<Value> {
    given.iter().find(|input| input.name == name)?.value()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            let found = expected(info, &given);
            found.into_iter().map(|one| (one.name, one.required)).collect::<Vec<_>>()
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
        assert!(is_part_of_dynamic(info, "row.image77") && is_part_of_dynamic(info, "how"));
        assert!(!is_part_of_dynamic(info, "rows") && !is_part_of_dynamic(info, "plain"));
    }
}
