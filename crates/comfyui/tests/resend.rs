//! A caller who must ask somebody before anything is sent decides about every later try itself.

use std::time::Duration;

use comfyui::{Client, Error, PromptRequest, Workflow};
use comfyui_sim::faults::Fault;
use comfyui_sim::{SimConfig, Simulator};

#[tokio::test]
async fn after_its_time_a_failed_submission_is_returned_and_not_sent_again() {
    let sim = Simulator::start(SimConfig::default()).await.unwrap();
    let client = Client::new(&sim.url()).unwrap();
    let graph = r#"{"1":{"class_type":"PreviewAny","inputs":{"source":"x"}}}"#;
    let request = PromptRequest::new(Workflow::parse(graph).unwrap());
    // Known before, so that only the submission itself meets the fault.
    client.capabilities().await.unwrap();

    sim.faults().add(Fault::reset().on("POST /prompt").times(1));
    let error = client.submit(&request.clone().resend_within(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { sent: false, .. }), "{error:?}");
    assert_eq!(sim.stats().executions_total, 0);

    // Without a bound the same trouble is nobody's business.
    sim.faults().add(Fault::reset().on("POST /prompt").times(1));
    client.submit(&request).await.unwrap();
    sim.shutdown().await;
}
