//! Which outputs may be linked to which inputs.

use crate::object_info::{Dynamic, InputKind, OutputSpec};

/// The type whose meaning only the frontend works out; the server lets it pass.
const MATCH_TYPE: &str = "COMFY_MATCHTYPE_V3";

/// Whether ComfyUI would accept the link: equal types, `*` on either side, or one common member of comma lists.
pub(super) fn fits(output: &OutputSpec, input: &InputKind) -> bool {
    let anything = |kind: &str| kind == MATCH_TYPE || kind.split(',').any(|part| part.trim() == "*");
    if anything(&output.kind) {
        return true;
    }
    match input {
        InputKind::Any | InputKind::Dynamic(_) => true,
        // A list of choices in place of a type is compared as a whole.
        InputKind::Choice { options, classic: true } => output.choices.as_ref() == Some(options),
        _ if output.choices.is_some() => matches!(input, InputKind::Choice { .. }),
        _ => {
            let expected = name(input);
            let parts =
                |kind: &'_ str| kind.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
            let received = parts(&output.kind);
            anything(&expected) || parts(&expected).iter().any(|part| received.contains(part))
        }
    }
}

/// The type of an input as ComfyUI writes it.
pub(super) fn name(input: &InputKind) -> String {
    match input {
        InputKind::Int => "INT",
        InputKind::Float => "FLOAT",
        InputKind::String => "STRING",
        InputKind::Boolean => "BOOLEAN",
        InputKind::Choice { .. } => "COMBO",
        InputKind::Any => "*",
        InputKind::Link(kind) | InputKind::Dynamic(Dynamic::Slot { kind, .. }) => kind,
        InputKind::Dynamic(_) => "dynamic",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object_info::ObjectInfo;

    #[test]
    fn comfyuis_rules_hold() {
        let fits = |output: serde_json::Value, input: serde_json::Value| {
            let described = json!({"X": {"input": {"required": {"a": input}}, "output": [output]}});
            let info = ObjectInfo::from_slice(described.to_string().as_bytes()).unwrap();
            let node = info.get("X").unwrap();
            super::fits(&node.outputs[0], &node.inputs[0].kind)
        };
        assert!(fits(json!("IMAGE"), json!(["IMAGE"])));
        assert!(!fits(json!("LATENT"), json!(["IMAGE"])));
        assert!(fits(json!("*"), json!(["IMAGE"])) && fits(json!("IMAGE"), json!(["*"])));
        assert!(
            fits(json!("STRING,BOOLEAN"), json!(["INT, STRING"])) && !fits(json!("INT"), json!(["FLOAT"]))
        );
        assert!(
            fits(json!("COMFY_MATCHTYPE_V3"), json!(["IMAGE"])) && fits(json!("IMAGE"), json!([MATCH_TYPE]))
        );
        assert!(fits(json!("IMAGE"), json!(["STRING,*"])));
        assert!(fits(json!("COMBO"), json!(["COMBO", {"options": ["a"]}])));
        assert!(fits(json!(["a"]), json!(["COMBO", {"options": ["b"]}])));
        assert!(fits(json!(["a"]), json!([["a"]])) && !fits(json!(["a"]), json!([["b"]])));
        assert!(!fits(json!("COMBO"), json!([["a"]])) && !fits(json!("STRING"), json!([["a"]])));
        assert!(!fits(json!(["a"]), json!(["STRING"])));
    }
}
