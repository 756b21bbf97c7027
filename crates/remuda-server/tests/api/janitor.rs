//! Housekeeping.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::FailureClass;
use remuda_files::FileKey;
use remuda_server::janitor::{Janitor, JanitorOptions};
use remuda_store::{Clock as _, ManualClock};
use remuda_testbed::wait;
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Gateway, Ground};

fn options(gateway: &Gateway) -> JanitorOptions {
    let ground = &gateway.ground;
    let linger = Duration::ZERO;
    JanitorOptions { linger, ..JanitorOptions::new(ground.store.clone(), ground.files.clone(), ground.owner) }
}

#[tokio::test]
async fn a_scheduled_task_becomes_claimable_when_its_moment_has_come() {
    let clock = Arc::new(ManualClock::default());
    let ground = Ground::with(|options| options.clock = Some(clock.clone())).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let hour = Duration::from_secs(3600);
    let id = gateway.submit_with(&format!("\"not_before\": \"{}\",", clock.now() + hour)).await;
    assert_eq!(gateway.task(&id).await["reason"], "scheduled");
    let stop = CancellationToken::new();
    let janitor = tokio::spawn(Janitor::new(options(&gateway)).run(stop.clone()));
    let worker = gateway.worker().await;
    gateway.store().tidy().await.unwrap();
    assert!(worker.claim_within(Duration::ZERO).await.is_none(), "its moment has not come");
    clock.advance(hour);
    let claim = worker.claim().await;
    assert_eq!(claim.task.id.to_string(), id);
    stop.cancel();
    janitor.await.unwrap();
}

#[tokio::test]
async fn files_of_lost_attempts_go_and_those_of_the_result_stay_until_the_record_goes() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let files = &gateway.ground.files;
    let first = worker.claim().await;
    let left = FileKey::output(first.task.id.0, 1, 1, 0, "half.png");
    let bytes = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"half"))]);
    files.put(&left, bytes, None).await.unwrap();
    worker.fail(&first, FailureClass::Crash, "the ComfyUI died").await;
    let second = crate::support::Worker::join(&gateway.ground, "gpu-2", None).await;
    let claim = second.claim().await;
    let kept = second.complete(&claim, b"whole").await;

    let janitor = Janitor::new(JanitorOptions { retention: None, ..options(&gateway) });
    janitor.sweep_once().await.unwrap();
    assert_eq!(files.size(&left).await.unwrap(), None);
    assert_eq!(files.size(&kept.key.parse().unwrap()).await.unwrap(), Some(5));
    assert!(gateway.store().unswept(10).await.unwrap().is_empty());

    let young = Janitor::new(options(&gateway));
    young.sweep_once().await.unwrap();
    assert_eq!(gateway.task(&id).await["status"], "completed");
    let old = Janitor::new(JanitorOptions { retention: Some(Duration::ZERO), ..options(&gateway) });
    let gone = async || {
        old.sweep_once().await.unwrap();
        (gateway.get(&format!("/api/v1/tasks/{id}")).send().await.unwrap().status() == 404).then_some(())
    };
    wait::until("the record to be forgotten", BOUND, gone).await.unwrap();
    assert_eq!(files.size(&kept.key.parse().unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn while_the_files_are_away_everything_else_is_tidied() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    worker.leave().await;
    // As a volume that is not mounted: what is there is no folder.
    let (there, away) = (gateway.ground.dir.path().join("files"), gateway.ground.dir.path().join("away"));
    std::fs::rename(&there, &away).unwrap();
    std::fs::write(&there, b"").unwrap();
    let old =
        JanitorOptions { retention: Some(Duration::ZERO), silence: Duration::ZERO, ..options(&gateway) };
    let janitor = Janitor::new(old);
    let store = gateway.store();
    let tidied = async || {
        janitor.sweep_once().await.expect_err("the files are away");
        let ends = store.feed_ends().await.unwrap();
        let empty = store.feed(None, ends.first, 10).await.unwrap().items.is_empty();
        (empty && store.workers().await.unwrap().is_empty()).then_some(())
    };
    wait::until("the feed and the workers to be tidied", BOUND, tidied).await.unwrap();
    assert_eq!(gateway.task(&id).await["status"], "completed", "its files may still be there");

    std::fs::remove_file(&there).unwrap();
    std::fs::rename(&away, &there).unwrap();
    janitor.sweep_once().await.unwrap();
    assert!(store.task(id.parse().unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn workers_that_nobody_drives_any_more_are_forgotten_and_others_stay() {
    let gateway = Gateway::start().await;
    let gone = gateway.worker().await;
    let driven = crate::support::Worker::join(&gateway.ground, "gpu-2", None).await;
    gone.leave().await;
    let names = async || {
        let workers = gateway.store().workers().await.unwrap();
        workers.iter().map(|worker| worker.spec.id.clone()).collect::<Vec<_>>()
    };
    Janitor::new(options(&gateway)).sweep_once().await.unwrap();
    assert_eq!(names().await, [gone.id.clone(), driven.id.clone()], "not for an hour");
    let janitor = Janitor::new(JanitorOptions { silence: Duration::ZERO, ..options(&gateway) });
    let forgotten = async || {
        janitor.sweep_once().await.unwrap();
        (names().await.len() == 1).then_some(())
    };
    wait::until("the worker to be forgotten", BOUND, forgotten).await.unwrap();
    assert_eq!(names().await, [driven.id]);
}

#[tokio::test]
async fn uploads_that_no_tenant_has_go_when_they_are_old() {
    let gateway = Gateway::start().await;
    let files = &gateway.ground.files;
    let left = |bytes: &'static [u8]| {
        let bytes = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(bytes))]);
        files.put_content_addressed(bytes, None)
    };
    // As a server leaves it that dies before it has named it.
    let (unnamed, _) = left(b"unnamed").await.unwrap();
    let (named, _) = left(b"named").await.unwrap();
    let upload = gateway.post("/api/v1/assets?filename=x.png").body("named");
    assert_eq!(upload.send().await.unwrap().status(), 201);

    let at_once = || JanitorOptions { uploads_every: Duration::ZERO, ..options(&gateway) };
    Janitor::new(at_once()).sweep_once().await.unwrap();
    assert!(files.size(&unnamed).await.unwrap().is_some(), "somebody may be about to name it");
    Janitor::new(JanitorOptions { unnamed: Duration::ZERO, ..at_once() }).sweep_once().await.unwrap();
    assert_eq!(files.size(&unnamed).await.unwrap(), None);
    assert!(files.size(&named).await.unwrap().is_some());
}
