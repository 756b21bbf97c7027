//! The file store holds the outputs of completed tasks, each once, and nothing else.

use super::{Evidence, Stored, Verdict, Violation};
use std::collections::BTreeMap;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    // By task: what its record names.
    let mut wanted: BTreeMap<&str, Vec<(u64, Option<&str>)>> = BTreeMap::new();
    for view in evidence.tasks.iter().filter_map(|seen| seen.view.as_ref()) {
        let files = view.files().iter().map(|file| (file.size, file.sha256.as_deref()));
        wanted.entry(&view.id).or_default().extend(files);
    }
    for stored in &evidence.stored {
        let named = owner(stored).and_then(|task| wanted.get_mut(task)).and_then(|files| {
            let file = (stored.size, Some(stored.sha256.as_str()));
            files.iter().position(|one| *one == file).map(|place| files.swap_remove(place))
        });
        if named.is_none() {
            let what = format!("the file {} ({} bytes) belongs to no record", stored.path, stored.size);
            let task = owner(stored).map(str::to_owned);
            verdict.violations.push(Violation { task, what });
        }
    }
    for (task, files) in wanted.iter().filter(|(_, files)| !files.is_empty()) {
        let what = format!("{} of its files are not in the file store", files.len());
        verdict.violations.push(Violation { task: Some((*task).to_owned()), what });
    }
}

/// The task of `outputs/TASK/…`.
fn owner(stored: &Stored) -> Option<&str> {
    stored.path.strip_prefix("outputs/")?.split('/').next()
}
