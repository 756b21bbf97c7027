//! Doors through which the table of growth reaches what nobody else calls alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use comfyui::guard::Report;
use comfyui::{ObjectInfo, Workflow};
use remuda_core::Sha256;

use crate::limits::GraphLimits;
use crate::verdict::{self, Case};
use crate::workers::KnownWorker;
use crate::{Refusal, Words, fingerprint, paths, placements, words};

pub(super) fn fingerprints(workflow: &Workflow) -> (Option<i64>, i64) {
    (fingerprint::affinity(workflow), fingerprint::shape(workflow))
}

pub(super) fn named<'a>(workflow: &Workflow, inputs: impl IntoIterator<Item = (&'a str, &'a str)>) -> usize {
    let inputs: BTreeMap<String, String> =
        inputs.into_iter().map(|(place, value)| (place.to_owned(), value.to_owned())).collect();
    let limits = GraphLimits { name_length: 1 << 20, files: 1 << 20, ..GraphLimits::default() };
    let named = placements::Named::of(workflow, &inputs, Vec::new(), &Default::default(), &limits);
    named.map_or(0, |named| named.different().len())
}

pub(super) fn judged(workflow: &Workflow, info: &ObjectInfo) -> Result<usize, Refusal> {
    let case = Case { workflow: workflow.clone(), asked: Default::default(), targets: None, strict: true };
    let worker = KnownWorker {
        id: remuda_core::WorkerId::new("w").unwrap(),
        own: true,
        labels: Default::default(),
        starting: false,
        hash: Some(Sha256::of(b"x")),
        info: Some(Arc::new(info.clone())),
        weight: 0,
    };
    verdict::judge(&case, &[worker]).map(|verdict| verdict.warnings.len())
}

pub(super) fn words(workflow: &Workflow, info: &ObjectInfo, report: &Report) -> Words {
    std::hint::black_box(words::node_errors(workflow, Some(info), report.iter()));
    Words::of_problems(workflow, Some(info), report.iter(), String::new())
}

pub(super) fn paths_checked(workflow: &Workflow) -> Result<(), Refusal> {
    paths::check(workflow, &Default::default(), &[], &["/mnt/nas".to_owned()])
}
