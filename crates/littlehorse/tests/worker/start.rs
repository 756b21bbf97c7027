//! How workers begin, or say why not.

use littlehorse::{Error, Health, NewTaskDef, TaskContext, Type, Value, Worker};
use littlehorse_double::Method;

use crate::rig::*;

async fn echo(_: TaskContext, workflow: Value) -> Result<Value, littlehorse::TaskError> {
    Ok(workflow)
}

#[tokio::test]
async fn a_registered_task_def_is_served_by_its_name() {
    let double = start().await;
    double.put_task_def("default", littlehorse_double::json_task(TASK)).unwrap();
    let worker = Running::start(Worker::new(client(&double), TASK, echo));
    output(&json(&double, "wfrun-1", "{}")).await;
    assert_eq!(double.journal().calls(Method::PutTaskDef), 0);
    worker.stop().await;
}

#[tokio::test]
async fn registering_twice_is_fine_and_registering_another_is_not() {
    let double = start().await;
    for _ in 0..2 {
        let worker = Running::start(Worker::new(client(&double), json_task(), echo).register());
        soon(double.until_parked(0, 1)).await;
        worker.stop().await;
    }
    let other = NewTaskDef::new(TASK).input("text", Type::Str).returns(Type::Str);
    for worker in [
        Worker::new(client(&double), other.clone(), echo).register(),
        Worker::new(client(&double), other, echo),
    ] {
        let error = soon(worker.run()).await.unwrap_err();
        let Error::Differs { registered, wanted, .. } = &error else { panic!("{error}") };
        assert_eq!(registered, "(workflow: JSON_OBJ) -> JSON_OBJ");
        assert_eq!(wanted, "(text: STR) -> STR");
    }
}

#[tokio::test]
async fn a_task_def_that_is_not_there_is_told() {
    let double = start().await;
    let error = soon(Worker::new(client(&double), TASK, echo).run()).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let error = soon(Worker::new(client(&double), TASK, echo).register().run()).await.unwrap_err();
    assert!(error.to_string().contains("NewTaskDef"), "{error}");
}

#[tokio::test]
async fn a_function_that_does_not_fit_is_told_before_the_first_task() {
    let double = start().await;
    double.put_task_def("default", littlehorse_double::json_task(TASK)).unwrap();
    let two = |_: TaskContext, _: Value, _: Value| async { Ok(()) };
    let error = soon(Worker::new(client(&double), TASK, two).run()).await.unwrap_err();
    assert!(error.to_string().ends_with("it takes 2 inputs, and the TaskDef has 1"), "{error}");
    let text = |_: TaskContext, _: String| async { Ok(()) };
    let error = soon(Worker::new(client(&double), TASK, text).run()).await.unwrap_err();
    assert!(error.to_string().ends_with("`workflow` is JSON_OBJ"), "{error}");
    assert_eq!(double.journal().calls(Method::RegisterTaskWorker), 0);
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let double = start().await;
    double.down(0).await.unwrap();
    let worker = Worker::new(client(&double), json_task(), echo).register();
    let mut health = worker.health();
    let worker = Running::start(worker);
    soon(health.wait_for(|health| matches!(health, Health::Unhealthy(_)))).await.unwrap();
    double.up(0).unwrap();
    soon(health.wait_for(|health| *health == Health::Healthy)).await.unwrap();
    output(&json(&double, "wfrun-1", "{}")).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_still_waits_for_the_server_can_be_stopped() {
    let double = start().await;
    double.down(0).await.unwrap();
    let worker = Worker::new(client(&double), json_task(), echo).register();
    let mut health = worker.health();
    let worker = Running::start(worker);
    soon(health.wait_for(|health| matches!(health, Health::Unhealthy(_)))).await.unwrap();
    worker.stop().await;
}
