//! The example of the page on sources, as it stands there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use remuda_core::transition::Ending;
use remuda_runner::source::foreign::DeliveryEnding;

use super::{example, lifecycle};
use crate::config::{Settings, Sources, WorkerFlags};
use crate::stop::Stop;

const PAGE: &str = include_str!("../../../../../docs/add-a-source.md");
const EXAMPLE: &str = include_str!("example.rs");
const LIST: &str = include_str!("mod.rs");

/// Generous, because machines can be slow and busy.
const BOUND: Duration = Duration::from_secs(120);

#[derive(Debug, Parser)]
struct Worker {
    #[command(flatten)]
    flags: WorkerFlags,
}

fn settings(data: &Path) -> Settings {
    let data = data.display().to_string();
    let worker = Worker::try_parse_from(["worker", "--sim", "1", "--data", &data]).expect("flags");
    let env: BTreeMap<&str, &str> = BTreeMap::new();
    let sources = Sources { flags: &worker.flags.0, env: &env, dir: data.into() };
    Settings::load(&sources).expect("settings")
}

fn end(inbox: &Path, name: &str) -> Option<DeliveryEnding> {
    let text = std::fs::read(inbox.join(name)).ok()?;
    Some(serde_json::from_slice(&text).expect("an ending"))
}

#[test]
fn the_page_has_the_example_and_names_the_line() {
    assert!(PAGE.contains(EXAMPLE), "docs/add-a-source.md does not have commands/worker/example.rs as it is");
    let list = LIST.lines().find(|line| line.contains("static SOURCES")).expect("the list");
    assert!(PAGE.contains(list), "docs/add-a-source.md does not have the list of sources as it is: {list}");
}

/// From the settings to the end beside the graph.
#[tokio::test]
async fn the_example_renders_what_is_in_its_folder() {
    let data = tempfile::tempdir().expect("a folder");
    let inbox = data.path().join("inbox");
    std::fs::create_dir(&inbox).expect("the inbox");
    let graph = r#"{
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 1, "color": 7}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "cat"}}
    }"#;
    std::fs::write(inbox.join("cat.json"), graph).expect("a graph");
    std::fs::write(inbox.join("torn.json"), "{\"1\": ").expect("half a graph");
    let stop = Stop::listen().expect("signals");
    let work = lifecycle::run_worker::<example::Folder>(settings(data.path()), stop, false);
    let ended = async {
        loop {
            if let (Some(cat), Some(torn)) = (end(&inbox, "cat.result"), end(&inbox, "torn.result")) {
                return (cat, torn);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (cat, torn) = tokio::select! {
        stopped = work => panic!("it stopped: {stopped:?}"),
        ended = tokio::time::timeout(BOUND, ended) => ended.expect("in time"),
    };
    let DeliveryEnding::Ended(Ending::Completed { result, .. }) = cat else { panic!("{cat:?}") };
    assert!(result.files[0].filename.starts_with("cat"), "{result:?}");
    assert!(matches!(torn, DeliveryEnding::Refused(_)), "{torn:?}");
}
