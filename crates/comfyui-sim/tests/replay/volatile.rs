//! What may differ between a recording and a replay, and why. Everything not named here must be equal.

/// How two values that may differ are compared all the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Both are milliseconds since 1970.
    Clock,
    /// Same JSON type.
    Type,
    /// Lists with the same elements in any order; objects with the same keys in any order.
    AnyOrder,
    /// Python tracebacks through the same functions of the same files.
    Traceback,
}

/// One thing that may differ.
pub struct Volatile {
    /// Path inside an answer or a frame; `*` is one step, a leading `**` any number of steps.
    pub path: &'static str,
    pub rule: Rule,
    pub why: &'static str,
}

/// Everything inside JSON that may differ.
pub const VOLATILE: &[Volatile] = &[
    Volatile { path: "**/timestamp", rule: Rule::Clock, why: "the clock" },
    Volatile { path: "**/create_time", rule: Rule::Clock, why: "the clock" },
    Volatile { path: "**/execution_start_time", rule: Rule::Clock, why: "the clock" },
    Volatile { path: "**/execution_end_time", rule: Rule::Clock, why: "the clock" },
    Volatile { path: "**/executed", rule: Rule::AnyOrder, why: "comes from a Python set of texts" },
    Volatile { path: "**/current_outputs", rule: Rule::AnyOrder, why: "comes from a Python set of texts" },
    Volatile { path: "queue_running/*/4", rule: Rule::AnyOrder, why: "comes from a Python set of texts" },
    Volatile { path: "queue_pending/*/4", rule: Rule::AnyOrder, why: "comes from a Python set of texts" },
    Volatile { path: "*/prompt/4", rule: Rule::AnyOrder, why: "comes from a Python set of texts" },
    Volatile { path: "**/outputs", rule: Rule::AnyOrder, why: "in the order of execution, see siblings.rs" },
    Volatile { path: "*/meta", rule: Rule::AnyOrder, why: "in the order of execution, see siblings.rs" },
    Volatile {
        path: "node_errors/*/errors",
        rule: Rule::AnyOrder,
        why: "inputs are checked in the order of a Python set",
    },
    Volatile {
        path: "**/traceback",
        rule: Rule::Traceback,
        why: "names lines of ComfyUI's and the test nodes' sources",
    },
    Volatile { path: "system/ram_total", rule: Rule::Type, why: "the machine" },
    Volatile { path: "system/ram_free", rule: Rule::Type, why: "the machine" },
    Volatile { path: "system/python_version", rule: Rule::Type, why: "the machine" },
    Volatile { path: "system/pytorch_version", rule: Rule::Type, why: "the machine" },
    Volatile { path: "system/installed_templates_version", rule: Rule::Type, why: "the machine" },
    Volatile { path: "system/argv", rule: Rule::Type, why: "the command line with the port" },
    Volatile { path: "devices/*/vram_total", rule: Rule::Type, why: "the machine" },
    Volatile { path: "devices/*/vram_free", rule: Rule::Type, why: "the machine" },
    Volatile { path: "devices/*/torch_vram_total", rule: Rule::Type, why: "the machine" },
    Volatile { path: "devices/*/torch_vram_free", rule: Rule::Type, why: "the machine" },
];

/// Headers whose values may differ; only their presence is compared.
pub const VOLATILE_HEADERS: &[(&str, &str)] = &[
    ("etag", "made of the time and size of the file"),
    ("last-modified", "the clock"),
    ("content-length", "checked against the body that came with it instead"),
];

/// The rule for that path, if it may differ.
pub fn rule_for(path: &[String]) -> Option<Rule> {
    VOLATILE.iter().find(|volatile| matches(volatile.path, path)).map(|volatile| volatile.rule)
}

fn matches(pattern: &str, path: &[String]) -> bool {
    let (steps, path) = match pattern.strip_prefix("**/") {
        Some(steps) => {
            let count = steps.split('/').count();
            if path.len() < count {
                return false;
            }
            (steps, &path[path.len() - count..])
        }
        None => (pattern, path),
    };
    steps.split('/').count() == path.len()
        && steps.split('/').zip(path).all(|(step, actual)| step == "*" || step == actual)
}

#[test]
fn every_rule_is_needed_and_explained() {
    let mut unused: Vec<&str> = VOLATILE.iter().map(|volatile| volatile.path).collect();
    for entry in std::fs::read_dir(crate::recording::folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".json") else {
            continue;
        };
        for exchange in crate::recording::load(name).exchanges {
            if let crate::recording::Outcome::Answer(answer) = exchange.outcome
                && let crate::recording::AnswerBody::Json(body) = answer.body
            {
                each_path(&mut Vec::new(), &body, &mut |path| {
                    unused.retain(|pattern| !matches(pattern, path))
                });
            }
        }
    }
    assert_eq!(unused, Vec::<&str>::new(), "no recorded answer has such a path");
    assert!(VOLATILE.iter().all(|volatile| !volatile.why.is_empty()));
}

#[cfg(test)]
fn each_path(path: &mut Vec<String>, value: &serde_json::Value, visit: &mut impl FnMut(&[String])) {
    visit(path);
    let mut inner = |step: String, value: &serde_json::Value| {
        path.push(step);
        each_path(path, value, visit);
        path.pop();
    };
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| inner(key.clone(), value)),
        serde_json::Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, value)| inner(index.to_string(), value))
        }
        _ => {}
    }
}
