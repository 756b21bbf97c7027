//! A journal that an earlier version has left.

use std::path::Path;

use super::rig::*;

/// What the worker for LittleHorse of 9dcd97c left when it was killed: an end that nobody had heard, and a render under way
/// at a ComfyUI that is not there any more. Only the name of that and the length of its steps were changed.
const LEFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-9dcd97c");

/// The queue that it was for.
const QUEUE: &str = "littlehorse 127.0.0.1:36763 default";

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test]
async fn a_journal_of_an_earlier_version_is_taken_up() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    rig.queue = TestQueue::named(QUEUE);
    copy(Path::new(LEFT), &rig.folder());
    assert_eq!(rig.journal().len(), 2);
    let process = rig.start(&[&sim]).await;
    let mut reports = rig.queue.heard(2).await;
    reports.sort_by(|(one, _), (other, _)| one.key.cmp(&other.key));
    let [(first, ended), (second, rendered)] = reports.as_slice() else { panic!("{reports:?}") };
    // What was not heard is said as it was, to whom it was to be said.
    assert_eq!((first.key.as_str(), first.attempt), ("order-1/0-1", 0));
    assert_eq!(first.cookie["run"], serde_json::json!(["order-1"]));
    assert_eq!(first.sent_as, Some(first.prompt_id));
    assert_eq!(result(ended).files[0].subfolder, "fox");
    // What rendered where nobody is any more is looked for, and done here.
    assert_eq!((second.key.as_str(), result(rendered).files.len()), ("order-2/0-1", 1));
    assert_eq!(sim.stats().executions_total, 1);
    until("the journal to be empty", async || rig.journal().is_empty()).await;
    assert_eq!(process.stop().await, 0);
    sim.shutdown().await;
}
