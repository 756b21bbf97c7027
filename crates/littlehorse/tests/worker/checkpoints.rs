//! What is done once, whatever becomes of the attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use littlehorse::{TaskContext, TaskError, Value as Own, Worker};
use littlehorse_double::proto::TaskStatus;
use littlehorse_double::proto::variable_value::Value;
use littlehorse_double::{Double, Fault, Method, NewRun};
use serde_json::{Value as Json, json};

use crate::rig::*;

/// A worker that makes two checkpoints and fails between them at the first attempt. Counts how often each was made.
fn worker(double: &Double, made: &Arc<[AtomicUsize; 2]>) -> Worker {
    let made = Arc::clone(made);
    let task = move |context: TaskContext, _: Own| {
        let made = Arc::clone(&made);
        async move {
            let made = &made;
            let first: Json = context
                .checkpoint(|log| async move {
                    log.log("submitted");
                    made[0].fetch_add(1, Ordering::SeqCst);
                    Ok(json!({"prompt_id": "pid-1"}))
                })
                .await?;
            if context.attempt() == 0 {
                return Err(TaskError::failed("lost after checkpoint"));
            }
            let second: String = context
                .checkpoint(|_| async move {
                    made[1].fetch_add(1, Ordering::SeqCst);
                    Ok("second".to_owned())
                })
                .await?;
            Ok(json!({"prompt_id": first["prompt_id"], "outputs": [second]}))
        }
    };
    Worker::new(client(double), json_task(), task).register()
}

#[tokio::test]
async fn a_later_attempt_reads_back_what_an_earlier_one_did() {
    let double = start().await;
    let made = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let worker = Running::start(worker(&double, &made));
    let run = double.schedule(NewRun::json("wfrun-1", "{}").attempts(2));
    let ended = soon(run.ended()).await;
    assert_eq!(ended.status(), TaskStatus::TaskSuccess, "{ended:?}");
    assert_eq!([made[0].load(Ordering::SeqCst), made[1].load(Ordering::SeqCst)], [1, 1]);
    let kept = run.checkpoints();
    let values: Vec<_> = kept.iter().map(|kept| kept.value.clone().unwrap().value.unwrap()).collect();
    assert_eq!(
        values,
        [Value::JsonObj(r#"{"prompt_id":"pid-1"}"#.to_owned()), Value::Str("second".to_owned())]
    );
    assert!(kept[0].logs.as_deref().unwrap().ends_with("] submitted"));
    assert_eq!(kept[1].logs.as_deref(), Some(""));
    let totals: Vec<i32> = double.journal().reports().iter().map(|report| report.total_checkpoints).collect();
    assert_eq!(totals, [1, 2]);
    assert!(double.journal().reports()[0].log_output.is_none(), "the checkpoint has its own log");
    worker.stop().await;
}

#[tokio::test]
async fn a_checkpoint_whose_answer_was_lost_is_not_kept_twice() {
    let double = start().await;
    let made = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    double.inject(Method::PutCheckpoint, Fault::DoneThenRefuse(tonic::Status::unavailable("lost")), 1);
    double.inject(Method::PutCheckpoint, Fault::Refuse(tonic::Status::unavailable("not now")), 1);
    double.inject(Method::GetCheckpoint, Fault::Refuse(tonic::Status::unavailable("not now")), 1);
    let worker = Running::start(worker(&double, &made));
    let run = double.schedule(NewRun::json("wfrun-1", "{}").attempts(2));
    assert_eq!(soon(run.ended()).await.status(), TaskStatus::TaskSuccess);
    assert_eq!(run.checkpoints().len(), 2);
    assert_eq!([made[0].load(Ordering::SeqCst), made[1].load(Ordering::SeqCst)], [1, 1]);
    worker.stop().await;
}

#[tokio::test]
async fn an_attempt_that_the_server_has_given_up_ends_without_a_report() {
    let double = start().await;
    let made = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let given_up = double.schedule(NewRun::json("wfrun-1", "{}"));
    given_up.stop_checkpoints();
    let worker = Running::start(worker(&double, &made).slots(1));
    // The next one shows that the place is free.
    let next = double.schedule(NewRun::json("wfrun-2", "{}").attempts(2));
    assert_eq!(soon(next.ended()).await.status(), TaskStatus::TaskSuccess);
    assert!(given_up.reports().is_empty());
    assert_eq!(given_up.task_run().unwrap().status(), TaskStatus::TaskRunning);
    worker.stop().await;
}

#[tokio::test]
async fn a_checkpoint_that_is_too_large_is_told_before_it_is_sent() {
    let double = start().await;
    let task = |context: TaskContext, _: Own| async move {
        context.checkpoint(|_| async { Ok("x".repeat(1_000_000)) }).await?;
        Ok(json!({}))
    };
    let worker = Running::start(Worker::new(client(&double), json_task(), task).register());
    let message = error(&json(&double, "wfrun-1", "{}"), TaskStatus::TaskFailed).await;
    assert!(message.starts_with("checkpoint 0 has 1000"), "{message}");
    assert_eq!(double.journal().calls(Method::PutCheckpoint), 0);
    worker.stop().await;
}
