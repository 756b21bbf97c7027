//! Tasks that bring processes down. Nobody but the process itself counts how often: its queue does not.

use remuda_core::FailureClass;
use remuda_core::transition::Ending;
use remuda_pool::{HarmBook, Incident, IncidentKind};
use remuda_runner::source::foreign::{Delivery, DeliveryEnding};

use super::rig::*;

/// What a process finds after it died in the middle of work on a task's graph.
fn death(of: &Delivery, at_us: i64) -> Incident {
    Incident { task: of.task().0, kind: IncidentKind::Death, what: "editing a graph".to_owned(), at_us }
}

#[tokio::test]
async fn a_task_that_brought_the_process_down_twice_is_not_begun_again() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    let data = tempfile::tempdir().unwrap();
    let (harmful, unlucky) = (delivery("harmful", &picture()), delivery("unlucky", &picture()));
    // One process after the other writes down why it died.
    HarmBook::open(data.path()).unwrap().add([death(&harmful, 1), death(&unlucky, 2)]).unwrap();
    HarmBook::open(data.path()).unwrap().add([death(&harmful, 3)]).unwrap();
    rig.harm = HarmBook::open(data.path()).unwrap();
    let process = rig.start(&[&sim]).await;

    rig.queue.give(&harmful);
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    let DeliveryEnding::Ended(Ending::Failed { failure, .. }) = ending else { panic!("{ending:?}") };
    assert_eq!((of.key.as_str(), failure.class), ("harmful", FailureClass::Harmful));
    let details = failure.details.expect("what is known");
    let details = details.read();
    assert_eq!(details["harm"].as_array().map(Vec::len), Some(2), "{details}");
    assert_eq!(sim.stats().executions_total, 0, "it was not sent");
    let known = HarmBook::open(data.path()).unwrap().all();
    assert_eq!(known, [death(&unlucky, 2)], "what was answered for is forgotten, also on the disk");

    // Once is not enough: the process may have died of something else.
    rig.queue.give(&unlucky);
    let (of, ending) = rig.queue.heard(2).await.remove(1);
    assert_eq!((of.key.as_str(), result(&ending).files.len()), ("unlucky", 1));
    assert_eq!(process.stop().await, 0);
    sim.shutdown().await;
}
