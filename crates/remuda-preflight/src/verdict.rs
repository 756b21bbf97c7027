//! Who could run a graph: a decision over values.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use comfyui::guard::{self, Kind, Options, Problem, Report, Severity};
use comfyui::object_info::{Dynamic, InputKind, InputSpec, has_model_ending};
use comfyui::{ObjectInfo, Workflow};
use remuda_core::{Requirements, Sha256};
use serde_json::{Map, Value};

use super::placements::UploadInputs;
use super::refusal::{Place, Refusal, RefusalKind};
use super::words::{self, Words};
use super::workers::KnownWorker;

/// How many warnings are passed on.
const MOST_WARNINGS: usize = 20;

/// How many workers are named in one line.
const MOST_WORKERS: usize = 20;

/// A graph and what is asked for it.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) workflow: Workflow,
    pub(super) asked: Requirements,
    pub(super) targets: Option<Vec<String>>,
    pub(super) strict: bool,
}

/// What was found of a graph that may be queued.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// What at least one worker lacks.
    pub(super) requires: Requirements,
    /// What the submitter should know.
    pub(super) warnings: Vec<String>,
    /// Inputs of classes that take uploaded files, as far as workers told.
    pub(super) upload_inputs: UploadInputs,
    /// The output nodes that will run.
    pub(super) outputs: Vec<String>,
    /// What is wrong on the way to outputs that will not run.
    pub(super) node_errors: Map<String, Value>,
    /// Its judgement rests on workers that have not said yet what they have.
    pub(super) unsure: bool,
    /// Every worker that could get the task has said what it has, and was looked at.
    pub(super) complete: bool,
}

impl Verdict {
    /// What a worker must have: what was asked for, and what was found. Nodes and models that every worker has are left out,
    /// whoever named them: tasks that any of these workers can run wait in one lane, and not in as many as there are ways
    /// to say so. What no worker was looked at for stays.
    pub(super) fn needed(&self, asked: &Requirements) -> Result<Requirements, Refusal> {
        let needed = if self.complete {
            Requirements { labels: asked.labels.clone(), ..Requirements::default() }
        } else {
            asked.clone()
        };
        let needed = needed.and(&self.requires);
        if needed.size() > Requirements::LONGEST {
            let message = format!(
                "the names of what a worker needs for the task have {} bytes together, and {} are possible: not every \
                 worker has so many of its nodes and models",
                needed.size(),
                Requirements::LONGEST
            );
            return Err(Refusal::new(RefusalKind::TooLarge, message));
        }
        Ok(needed)
    }
}

/// One description, shared by all workers that have it.
struct Judged<'a> {
    info: &'a ObjectInfo,
    workers: Vec<&'a KnownWorker>,
    report: Report,
    lacks: Requirements,
}

pub(super) fn judge(case: &Case, workers: &[KnownWorker]) -> Result<Verdict, Refusal> {
    let Case { workflow, asked, .. } = case;
    let able: Vec<&KnownWorker> =
        workers.iter().filter(|worker| asked.labels.is_subset(&worker.labels)).collect();
    let mut by_hash: BTreeMap<Sha256, (&ObjectInfo, Vec<&KnownWorker>)> = BTreeMap::new();
    for worker in able.iter().copied() {
        if let (Some(hash), Some(info)) = (worker.hash, &worker.info) {
            by_hash.entry(hash).or_insert_with(|| (info, Vec::new())).1.push(worker);
        }
    }
    if by_hash.is_empty() {
        return unseen(case, &able, workers);
    }

    let mut verdict = Verdict::default();
    let mut judged = Vec::new();
    // Files come after the check, so that lists of files say nothing yet.
    let options = Options { check_files: false, targets: case.targets.clone(), ..Options::default() };
    let classes: HashSet<String> =
        workflow.nodes().iter().filter_map(|node| Some(node.class_type()?.into_owned())).collect();
    let told = by_hash.values().map(|(info, workers)| (*info, workers.iter().any(|worker| worker.own)));
    verdict.upload_inputs = upload_inputs(&classes, told);
    let mut killed = None;
    for (info, workers) in by_hash.into_values() {
        let report = guard::check(workflow, Some(info), &options);
        // What kills one kills them all. Of a key's description alone that is no more than its word.
        if report.kills() {
            if workers.iter().any(|worker| worker.own) {
                return Err(refused(case, Some(info), &report, |_| true));
            }
            killed = Some((info, report));
            continue;
        }
        let lacks = lacks(&report, asked, info);
        judged.push(Judged { info, workers, report, lacks });
    }
    if judged.is_empty()
        && let Some((info, report)) = killed
    {
        return Err(refused(case, Some(info), &report, |_| true));
    }

    let of_judged: usize = judged.iter().map(|one| one.workers.len()).sum();
    verdict.complete = of_judged == able.len();
    verdict.requires = judged.iter().fold(Requirements::default(), |all, one| all.and(&one.lacks));
    let fitting: Vec<&Judged<'_>> = judged.iter().filter(|one| one.lacks.is_empty()).collect();
    // What these have may be all that is missing elsewhere.
    let unsure: Vec<&KnownWorker> = able.iter().copied().filter(|worker| worker.is_unsure()).collect();
    if fitting.is_empty() {
        if unsure.is_empty() {
            return Err(missing_everywhere(workflow, &judged));
        }
        verdict.warnings.push(format!(
            "no worker that is known has {}; it waits for {}, of which it is not yet known what it has",
            verdict.requires,
            named(&unsure)
        ));
        verdict.unsure = true;
        return Ok(verdict);
    }
    let hopeless = |one: &&Judged<'_>| {
        let sure = |problem: &Problem| sure(problem, one.info, case.strict);
        one.report.accepted_outputs.is_empty() && one.report.problems.iter().any(sure)
    };
    if fitting.iter().all(hopeless)
        && let Some(first) = fitting.first()
    {
        if !unsure.iter().any(|worker| worker.hash.is_some()) {
            let sure = |problem: &Problem| sure(problem, first.info, case.strict);
            return Err(refused(case, Some(first.info), &first.report, sure));
        }
        let requires = std::mem::take(&mut verdict.requires);
        let upload_inputs = std::mem::take(&mut verdict.upload_inputs);
        return Ok(Verdict { requires, upload_inputs, ..unseen(case, &able, workers)? });
    }
    // Where some workers would run more of it than others, those.
    let best = fitting.iter().max_by_key(|one| one.report.accepted_outputs.len());
    if let Some(best) = best {
        let report = &best.report;
        let findings = report.iter().take(MOST_WARNINGS);
        verdict.warnings.extend(findings.map(ToString::to_string));
        let more = report.iter().count().saturating_sub(MOST_WARNINGS) + report.unlisted;
        if more > 0 {
            verdict.warnings.push(format!("and {more} more findings"));
        }
        verdict.outputs.clone_from(&report.accepted_outputs);
        if report.accepted_outputs.is_empty() {
            verdict.outputs.clone_from(&report.refused_outputs);
        } else if !report.refused_outputs.is_empty() {
            let sure = report.problems.iter().filter(|problem| sure(problem, best.info, case.strict));
            verdict.node_errors = words::node_errors(workflow, Some(best.info), sure);
        }
    }
    Ok(verdict)
}

/// No description to go by: what the graph alone tells.
fn unseen(case: &Case, able: &[&KnownWorker], workers: &[KnownWorker]) -> Result<Verdict, Refusal> {
    let report = guard::check(&case.workflow, None, &Options::default());
    if !report.may_be_sent() {
        return Err(refused(case, None, &report, |_| true));
    }
    let warning = if workers.is_empty() {
        "no worker is known yet: the graph was not checked against one, and waits for the first".to_owned()
    } else if able.is_empty() {
        let labels: Vec<&str> = case.asked.labels.iter().map(String::as_str).collect();
        format!("no known worker has the labels {}: the task waits for one", labels.join(", "))
    } else {
        "no worker has said yet what it has: the graph was not checked against one".to_owned()
    };
    Ok(Verdict { warnings: vec![warning], unsure: true, ..Verdict::default() })
}

fn refused(
    case: &Case,
    info: Option<&ObjectInfo>,
    report: &Report,
    counts: impl Fn(&Problem) -> bool,
) -> Refusal {
    let worst: Vec<&Problem> = (report.problems.iter())
        .filter(|problem| problem.severity == Severity::Kills || counts(problem))
        .collect();
    let words = Words::of_problems(&case.workflow, info, worst.iter().copied(), String::new());
    Refusal::of_problems(worst, report.unlisted)
        .unwrap_or_else(|| Refusal::new(RefusalKind::Invalid, "every ComfyUI would refuse the graph"))
        .worded(words)
}

/// What no worker with this description would take. A value outside its list may be fine for a class with its own
/// validation, which a description does not show; ComfyUI's own classes have none beyond files.
fn sure(problem: &Problem, info: &ObjectInfo, strict: bool) -> bool {
    match problem.kind {
        Kind::NotAWorkflow
        | Kind::NodeNotObject
        | Kind::NoClassType
        | Kind::NoInputs
        | Kind::Doubled
        | Kind::BadLink
        | Kind::DanglingLink { .. }
        | Kind::NoSuchOutput { .. }
        | Kind::Cycle { .. }
        | Kind::ChainTooLong { .. }
        | Kind::NoOutputs
        | Kind::MissingInput => true,
        Kind::WrongType { .. }
        | Kind::OutOfRange
        | Kind::NotInList { .. }
        | Kind::TypeMismatch { .. }
        | Kind::MissingModel { .. } => strict && is_known(problem, info),
        _ => false,
    }
}

/// Whether the class at fault is one of ComfyUI's own, and the input names no file.
fn is_known(problem: &Problem, info: &ObjectInfo) -> bool {
    let class = problem.class_type.as_deref().and_then(|class| info.get(class));
    class.is_some_and(|class| {
        let input = problem.input.as_deref().and_then(|input| class.input(input));
        let own = class.python_module == "nodes" || class.python_module.starts_with("comfy_extras.");
        own && input.is_some_and(|input| input.upload.is_none())
    })
}

/// What a worker with this description lacks for the graph and for what was asked.
fn lacks(report: &Report, asked: &Requirements, info: &ObjectInfo) -> Requirements {
    let mut lacks = Requirements::default();
    for problem in &report.problems {
        match (&problem.kind, &problem.class_type) {
            (Kind::UnknownClass { .. }, Some(class)) => {
                lacks.nodes.insert(class.clone());
            }
            // A worker's list of models has files only; what else loaders offer is no requirement.
            (Kind::MissingModel { model, .. }, _) if has_model_ending(model) => {
                lacks.models.insert(model.clone());
            }
            _ => {}
        }
    }
    lacks.nodes.extend(asked.nodes.iter().filter(|class| !info.contains(class)).cloned());
    if !asked.models.is_empty() {
        let mut wanted: BTreeSet<&str> = asked.models.iter().map(String::as_str).collect();
        let choices = info.iter().flat_map(|node| &node.inputs).filter_map(|input| input.choices()).flatten();
        for name in choices.filter_map(Value::as_str).filter(|name| has_model_ending(name)) {
            wanted.remove(name);
        }
        lacks.models.extend(wanted.into_iter().map(str::to_owned));
    }
    lacks
}

/// Their names, if they are few.
fn named(workers: &[&KnownWorker]) -> String {
    let names: Vec<&str> = workers.iter().take(MOST_WORKERS).map(|worker| worker.id.as_str()).collect();
    match workers.len().saturating_sub(MOST_WORKERS) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn missing_everywhere(workflow: &Workflow, judged: &[Judged<'_>]) -> Refusal {
    let missing_on = |one: &Judged<'_>| format!("{} lacks {}", named(&one.workers), one.lacks);
    let found = judged.iter().find_map(|one| Some((one, one.report.missing_here().next()?)));
    let message = match found {
        Some((_, problem)) => format!("no worker can run it: {problem}"),
        None => "no worker has what the task requires".to_owned(),
    };
    let more: Vec<String> = judged.iter().map(missing_on).collect();
    let refusal = Refusal {
        place: found.and_then(|(_, problem)| Place::of(problem)),
        more: more.clone(),
        ..Refusal::new(RefusalKind::MissingEverywhere, message)
    };
    match found {
        Some((one, _)) => {
            let problems = one.report.missing_here();
            refusal.worded(Words::of_problems(workflow, Some(one.info), problems, more.join("\n")))
        }
        None => refusal,
    }
}

/// The inputs of these classes that take uploaded files. What the installation's own workers say of a class counts; the word
/// of keys only for classes that none of those has, and only where all of them agree: anybody with such a key could
/// otherwise have other people's texts taken for names of files.
fn upload_inputs<'a>(
    classes: &HashSet<String>,
    told: impl Iterator<Item = (&'a ObjectInfo, bool)>,
) -> UploadInputs {
    let mut found: HashMap<&String, (bool, HashSet<String>)> = HashMap::new();
    for (info, own) in told {
        for class in classes {
            let Some(described) = info.get(class) else { continue };
            let mut uploads = HashSet::new();
            note_uploads("", &described.inputs, &mut uploads);
            match found.get_mut(class) {
                Some((true, known)) if own => known.extend(uploads),
                Some((false, known)) if !own => known.retain(|input| uploads.contains(input)),
                Some((true, _)) => {}
                _ => drop(found.insert(class, (own, uploads))),
            }
        }
    }
    let found = found.into_iter().filter(|(_, (_, uploads))| !uploads.is_empty());
    found.map(|(class, (_, uploads))| (class.clone(), uploads)).collect()
}

/// Inputs that appear with the value of another have its name in front of theirs.
fn note_uploads(outer: &str, inputs: &[InputSpec], found: &mut HashSet<String>) {
    for input in inputs {
        if input.upload.is_some() {
            found.insert(format!("{outer}{}", input.name));
        }
        let InputKind::Dynamic(dynamic) = &input.kind else { continue };
        let outer = format!("{outer}{}.", input.name);
        match dynamic {
            Dynamic::Combo { options } => {
                options.iter().for_each(|(_, inputs)| note_uploads(&outer, inputs, found));
            }
            Dynamic::Slot { inputs, .. } => note_uploads(&outer, inputs, found),
            Dynamic::Grow { names, template, .. } if template.upload.is_some() => {
                found.extend(names.iter().map(|name| format!("{outer}{name}")));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn worker(name: &str, info: Option<&Value>) -> KnownWorker {
        let info = info.map(|info| Arc::new(ObjectInfo::from_slice(info.to_string().as_bytes()).unwrap()));
        KnownWorker {
            id: remuda_core::WorkerId::new(name).unwrap(),
            own: true,
            labels: BTreeSet::new(),
            starting: false,
            hash: Some(Sha256::of(name.as_bytes())),
            info,
            weight: 0,
        }
    }

    #[test]
    fn a_worker_whose_description_is_not_read_refuses_nothing() {
        let graph = json!({"1": {"class_type": "Save", "inputs": {}}});
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        let case = Case { workflow, asked: Requirements::default(), targets: None, strict: true };
        let other = worker("other", Some(&json!({"Tiny": {"output": [], "output_node": true}})));
        let strict =
            json!({"Save": {"input": {"required": {"x": ["INT"]}}, "output": [], "output_node": true}});
        let strict = worker("strict", Some(&strict));
        for known in [other, strict] {
            assert!(judge(&case, std::slice::from_ref(&known)).is_err(), "{}", known.id);
            let verdict = judge(&case, &[known, worker("unread", None)]).unwrap();
            assert!(verdict.unsure && !verdict.warnings.is_empty());
        }
    }

    #[test]
    fn what_every_worker_has_is_no_requirement() {
        let graph = json!({"1": {"class_type": "Save", "inputs": {}}});
        let save = json!({"input": {}, "output": [], "output_node": true});
        let info = json!({"Save": save, "Odd": save, "Even": save});
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let needed = |nodes: &[&str], workers: &[KnownWorker]| {
            let workflow = Workflow::parse(graph.to_string()).unwrap();
            let asked =
                Requirements { labels: names(&["gold"]), nodes: names(nodes), ..Requirements::default() };
            let case = Case { workflow, asked, targets: None, strict: false };
            judge(&case, workers).unwrap().needed(&case.asked)
        };
        let gold =
            |name: &str, info: Option<&Value>| KnownWorker { labels: names(&["gold"]), ..worker(name, info) };
        let full = gold("full", Some(&info));
        for nodes in [&["Odd"][..], &["Even"], &["Odd", "Even"], &[]] {
            let found = needed(nodes, std::slice::from_ref(&full)).unwrap();
            assert_eq!((found.labels, found.nodes), (names(&["gold"]), names(&[])), "{nodes:?}: one lane");
        }
        let part = gold("part", Some(&json!({"Save": save, "Even": save})));
        let found = needed(&["Odd", "Even"], &[full.clone(), part]).unwrap();
        assert_eq!(found.nodes, names(&["Odd"]), "what somebody lacks stays");
        let found = needed(&["Odd"], &[full.clone(), gold("silent", None)]).unwrap();
        assert_eq!(found.nodes, names(&["Odd"]), "nobody knows what the other has");
        assert_eq!(needed(&["Odd"], &[]).unwrap().nodes, names(&["Odd"]), "no worker is known");
        let long: Vec<String> = (0..300).map(|n| format!("{n:0256}")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert!(needed(&long, &[]).is_err(), "a lane has a length");
    }

    #[test]
    fn a_key_has_no_word_on_classes_of_the_installation() {
        let class =
            |uploads: bool| json!({"input": {"required": {"text": ["STRING", {"image_upload": uploads}]}}});
        let of = |classes: &[(&str, bool)]| {
            let classes: Map<String, Value> =
                classes.iter().map(|(name, uploads)| ((*name).to_owned(), class(*uploads))).collect();
            ObjectInfo::from_slice(Value::Object(classes).to_string().as_bytes()).unwrap()
        };
        let own = of(&[("Encode", false), ("Load", true)]);
        let liar = of(&[("Encode", true), ("Load", false), ("Theirs", true), ("Same", true)]);
        let other = of(&[("Theirs", false), ("Same", true)]);
        let classes = ["Encode", "Load", "Theirs", "Same"].map(str::to_owned).into();
        let text = HashSet::from(["text".to_owned()]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let all = [(&own, true), (&liar, false), (&other, false)];
            let found = upload_inputs(&classes, order.into_iter().map(|n| all[n]));
            let expected = ["Load", "Same"].map(|class| (class.to_owned(), text.clone())).into();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_word_of_a_key_kills_nothing_that_an_own_worker_would_run() {
        let graph = json!({"1": {"class_type": "Say", "inputs": {"text": "nan"}}});
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        let case = Case { workflow, asked: Requirements::default(), targets: None, strict: false };
        let say = |kind: &str| {
            let input = json!({"required": {"text": [kind, {}]}});
            json!({"Say": {"input": input, "output": [], "output_node": true}})
        };
        let own = worker("own", Some(&say("STRING")));
        let liar = KnownWorker { own: false, ..worker("liar", Some(&say("FLOAT"))) };
        assert!(judge(&case, std::slice::from_ref(&liar)).is_err());
        assert!(judge(&case, &[own, liar]).is_ok());
    }
}
