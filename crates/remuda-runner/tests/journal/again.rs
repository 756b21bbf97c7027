//! The same work is delivered more than once: it is rendered once.

use comfyui::{PromptRequest, Whereabouts, Workflow};
use comfyui_sim::Simulator;
use remuda_runner::source::foreign::{Delivery, Withdrawn};
use serde_json::{Value, json};

use super::rig::*;

/// A prompt that another process sent under the id of this task.
async fn sent_before(sim: &Simulator, delivery: &Delivery, graph: &Value) -> comfyui::Client {
    let client = comfyui::Client::new(&sim.url()).unwrap();
    let workflow = Workflow::parse(graph.to_string()).unwrap();
    client.submit(&PromptRequest::new(workflow).with_id(delivery.prompt_id)).await.unwrap();
    client
}

async fn ended(client: &comfyui::Client, delivery: &Delivery) {
    let id = delivery.prompt_id.into();
    until("the prompt to end", async || matches!(client.find(&id).await, Ok(Whereabouts::Ended(_)))).await;
}

#[tokio::test]
async fn a_delivery_of_what_runs_here_gets_its_end() {
    let (mut rig, sim) = (Rig::new(), sim().await);
    rig.slots = 2;
    let process = rig.start(&[&sim]).await;
    let held = hold(&sim);
    let first = delivery("twice", &picture());
    rig.queue.give(&first);
    rendering(&sim, 1).await;
    rig.queue.give(&again(&first, 1));
    until("it to be delivered again", async || rig.queue.waiting() == 0).await;
    held.release();
    let reports = rig.queue.heard(1).await;
    assert_eq!(
        (reports[0].0.attempt, &reports[0].0.cookie["attempt"]),
        (1, &json!(1)),
        "the newest hears it"
    );
    assert_eq!(reports[0].0.sent_as, Some(first.prompt_id));
    result(&reports[0].1);
    assert_eq!(process.stop().await, 0);
    assert_eq!((sim.stats().executions_total, rig.queue.reports().len()), (1, 1));
    sim.shutdown().await;
}

#[tokio::test]
async fn a_delivery_of_what_ended_well_is_answered_at_once() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let first = delivery("twice", &picture());
    rig.queue.give(&first);
    rig.queue.heard(1).await;
    // ComfyUI would have to be asked, if it were not known.
    sim.crash().await;
    rig.queue.give(&again(&first, 1));
    let reports = rig.queue.heard(2).await;
    assert_eq!(reports[1].0.attempt, 1);
    let names =
        |n: usize| result(&reports[n].1).files.iter().map(|file| file.filename.clone()).collect::<Vec<_>>();
    assert_eq!(names(0), names(1));
    until("the journal to be empty", async || rig.journal().is_empty()).await;
    process.kill();
    sim.shutdown().await;
}

#[tokio::test]
async fn what_runs_at_one_of_two_is_adopted_there() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let held = hold(&two);
    let graph = picture();
    let delivery = again(&delivery("elsewhere", &graph), 1);
    sent_before(&two, &delivery, &graph).await;
    rendering(&two, 1).await;
    let process = rig.start(&[&one, &two]).await;
    rig.queue.give(&delivery);
    until("it to be found", async || !rig.queue.begun().is_empty()).await;
    held.release();
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!(of.sent_as, Some(delivery.prompt_id));
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!(rig.queue.begun(), [("elsewhere".to_owned(), worker_id(&two))]);
    assert_eq!((one.stats().executions_total, two.stats().executions_total), (0, 1));
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn what_ended_well_before_is_reported_without_another_render() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let graph = picture();
    let delivery = again(&delivery("done", &graph), 2);
    let client = sent_before(&one, &delivery, &graph).await;
    ended(&client, &delivery).await;
    let process = rig.start(&[&one, &two]).await;
    rig.queue.give(&delivery);
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!((one.stats().executions_total, two.stats().executions_total), (1, 0));
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn what_ended_badly_before_is_rendered_under_the_second_id() {
    let (rig, sim) = (Rig::new(), sim().await);
    let delivery = again(&delivery("bad", &picture()), 1);
    let client = sent_before(&sim, &delivery, &endless()).await;
    rendering(&sim, 1).await;
    client.cancel(&delivery.prompt_id.into(), BOUND).await.unwrap();
    ended(&client, &delivery).await;
    let process = rig.start(&[&sim]).await;
    rig.queue.give(&delivery);
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!(of.sent_as, Some(delivery.second_prompt_id), "the report says under which id it is there");
    assert_eq!(result(&ending).files.len(), 1);
    let entry = client.history(&delivery.second_prompt_id.into()).await.unwrap();
    assert!(entry.is_some());
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_runs_under_the_second_id_of_the_delivery_before_is_adopted() {
    let (rig, sim) = (Rig::new(), sim().await);
    let graph = picture();
    let first = delivery("third", &graph);
    // Another process had the first two deliveries: one was stopped, the other runs under its second id.
    let client = sent_before(&sim, &first, &endless()).await;
    rendering(&sim, 1).await;
    client.cancel(&first.prompt_id.into(), BOUND).await.unwrap();
    ended(&client, &first).await;
    let second = again(&first, 1);
    let held = hold(&sim);
    sent_before(&sim, &Delivery { prompt_id: second.second_prompt_id, ..second.clone() }, &graph).await;
    rendering(&sim, 2).await;
    let process = rig.start(&[&sim]).await;
    rig.queue.give(&Delivery { earlier: vec![(1, second.second_prompt_id)], ..again(&first, 2) });
    until("it to be found", async || !rig.queue.begun().is_empty()).await;
    held.release();
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!((of.attempt, of.sent_as), (2, Some(second.second_prompt_id)));
    assert_eq!(result(&ending).files.len(), 1);
    assert_eq!(sim.stats().executions_total, 2, "the one that was stopped, and the one that was adopted");
    process.stop().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn what_is_nowhere_is_sent_under_the_first_id_once_everybody_was_asked() {
    let (rig, one, two) = (Rig::new(), sim().await, sim().await);
    let process = rig.start(&[&one, &two]).await;
    until("it to ask", async || rig.queue.asking() == 1).await;
    two.crash().await;
    let delivery = again(&delivery("nowhere", &picture()), 1);
    rig.queue.give(&delivery);
    until("it to be looked for", async || process.source.counts().0 == 1).await;
    until("the first to have answered", async || rig.journal().len() == 1).await;
    assert!(rig.queue.begun().is_empty(), "it may run where nobody answers");
    two.restart().await;
    let (of, ending) = rig.queue.heard(1).await.remove(0);
    assert_eq!(of.sent_as, Some(delivery.prompt_id));
    result(&ending);
    assert_eq!(one.stats().executions_total + two.stats().executions_total, 1);
    process.stop().await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn a_retry_that_comes_before_the_report_is_answered_is_a_task_of_its_own() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let mut first = delivery("slow", &endless());
    first.timeout_s = Some(1);
    let mut second = again(&first, 1);
    second.timeout_s = None;
    rig.queue.retry_as(&second);
    rig.queue.give(&first);
    let (_, ending) = rig.queue.heard(1).await.remove(0);
    assert!(format!("{ending:?}").contains("Timeout"), "{ending:?}");
    rendering(&sim, 2).await;
    until("the retry to run", async || {
        sim.stats().by_prompt.contains_key(&second.second_prompt_id.to_string())
    })
    .await;
    rig.queue.say("slow", Withdrawn::Unwanted("enough".to_owned()));
    until("it to be stopped", async || process.source.counts() == (0, 0)).await;
    assert_eq!(process.stop().await, 0);
    assert_eq!(rig.queue.reports().len(), 1);
    assert!(rig.journal().is_empty());
    sim.shutdown().await;
}
