//! The journal cannot be written.

use std::path::PathBuf;

use littlehorse_double::NewRun;

use crate::rig::{all_heard, env, gives_up, idle, journal};
use crate::stage::{Stage, ended, graph, output, until};
use crate::support::{PATIENCE, text};

#[tokio::test]
async fn without_a_place_for_its_journal_a_worker_does_not_start() {
    let stage = Stage::new().await;
    std::fs::write(stage.dir.path().join("littlehorse"), "in the way").unwrap();
    let failed = gives_up(stage.dir.path(), env(&stage)).await;
    assert!(!failed.status.success(), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("cannot make the folder") && said.contains("littlehorse/journal"), "{said}");
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_begun() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    // Nothing can be written below a file.
    let folder = stage.dir.path().join("littlehorse/journal");
    let aside = stage.dir.path().join("littlehorse/aside");
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 50).to_string()));
    worker.program.wait_line("the journal cannot be written", PATIENCE).await.unwrap();
    assert_eq!(stage.sim.executions().await, 0);
    assert!(run.reports().is_empty());
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
    all_heard(stage.dir.path()).await;
}

#[tokio::test]
async fn a_result_that_a_full_disk_does_not_take_is_still_reported() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(2, 100).to_string()));
    stage.rendering().await;
    // Nothing else is written of it before it ends.
    let noted =
        |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"rendering\""));
    until("the journal to know that it renders", async || journal(stage.dir.path()).iter().any(noted)).await;
    stage.double.down(0).await.unwrap();
    // From here on there is no room for its file.
    let file = journal(stage.dir.path()).pop().expect("the file of the job");
    std::os::unix::fs::symlink("/dev/full", file.with_extension("tmp")).unwrap();
    stage.sim.release().await;
    worker.program.wait_line("cannot be written to the journal", PATIENCE).await.unwrap();
    idle(stage.sim.url()).await;
    stage.double.up(0).unwrap();
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}
