//! Which of our crates may use which: dependencies point downwards only.
//!
//! `comfyui`, `comfyui-sim` and `littlehorse` are for everybody, also outside this repository; they use
//! none of our other crates. Tests, examples and benches are free: the client is tested with the simulator.

use super::Findings;
use super::repository::Repository;
use super::workspace::Package;

/// Our crates, each with those of ours that it may use. A crate that is not here has no place yet.
const MAY_USE: &[(&str, &[&str])] = &[
    ("comfyui", &[]),
    ("comfyui-sim", &[]),
    ("littlehorse", &[]),
    ("littlehorse-double", &[]),
    ("remuda-core", &[]),
    ("remuda-store", &["remuda-core"]),
    ("remuda-files", &[]),
    ("remuda-pool", &[]),
    ("remuda-testbed", &[]),
    ("remuda-attack", &["remuda-testbed"]),
    ("remuda-chaos", &["remuda-testbed"]),
    (
        "remuda-bench",
        &["remuda-core", "remuda-store", "remuda-testbed", "comfyui", "comfyui-sim", "littlehorse-double"],
    ),
    ("remuda-frames", &["remuda-core"]),
    ("remuda-sidecar", &["remuda-core", "remuda-frames", "remuda-store"]),
    ("remuda-preflight", &["remuda-core", "remuda-store", "remuda-pool", "comfyui"]),
    (
        "remuda-runner",
        &[
            "remuda-core",
            "remuda-store",
            "remuda-files",
            "remuda-pool",
            "remuda-frames",
            "remuda-preflight",
            "remuda-sidecar",
            "comfyui",
        ],
    ),
    (
        "remuda-littlehorse",
        &["remuda-core", "remuda-runner", "remuda-frames", "remuda-preflight", "comfyui", "littlehorse"],
    ),
    ("remuda-fleet", &["remuda-core", "remuda-store", "remuda-runner"]),
    (
        "remuda-server",
        &[
            "remuda-core",
            "remuda-store",
            "remuda-files",
            "remuda-pool",
            "remuda-frames",
            "remuda-preflight",
            "remuda-sidecar",
            "remuda-runner",
            "comfyui",
        ],
    ),
    (
        "remuda",
        &[
            "remuda-core",
            "remuda-store",
            "remuda-files",
            "remuda-pool",
            "remuda-frames",
            "remuda-preflight",
            "remuda-sidecar",
            "remuda-runner",
            "remuda-littlehorse",
            "remuda-fleet",
            "remuda-server",
            "comfyui",
            "comfyui-sim",
            "littlehorse",
        ],
    ),
    // Built before everything else, so it cannot wait for any of them.
    ("xtask", &[]),
];

pub(super) fn check(repository: &Repository) -> Findings {
    let members: Vec<&Package> = repository.workspace.members().collect();
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    Findings {
        problems: members.iter().flat_map(|member| problems(member, &names)).collect(),
        seen: format!("{} crates of ours", members.len()),
        ..Findings::default()
    }
}

fn problems(package: &Package, ours: &[&str]) -> Vec<String> {
    let name = package.name.as_str();
    let Some((_, may_use)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
        return vec![format!(
            "{name} is not in the table of xtask/src/tidy/direction.rs: say what it may use"
        )];
    };
    let uses = package.dependencies.iter().filter(|dependency| !dependency.dev);
    let wrong =
        uses.filter(|used| ours.contains(&used.name.as_str()) && !may_use.contains(&used.name.as_str()));
    wrong.map(|used| format!("{name} may not depend on {}", used.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workspace::Dependency;
    use super::*;

    fn found(name: &str, used: &str, dev: bool) -> usize {
        let dependency = Dependency { name: used.to_owned(), dev };
        let package = Package { name: name.to_owned(), dependencies: vec![dependency], ..Package::default() };
        problems(&package, &["comfyui", "comfyui-sim", "remuda", "stray"]).len()
    }

    #[test]
    fn libraries_use_each_other_in_tests_only() {
        assert_eq!(found("comfyui", "comfyui-sim", false), 1);
        assert_eq!(found("comfyui", "comfyui-sim", true), 0);
        assert_eq!(found("comfyui-sim", "comfyui", false), 1);
        assert_eq!(found("comfyui", "serde", false), 0);
        assert_eq!(found("remuda", "comfyui", false), 0);
        assert_eq!(found("stray", "serde", false), 1);
    }
}
