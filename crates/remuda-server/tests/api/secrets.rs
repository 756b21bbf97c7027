//! Keys of paid nodes: they reach whoever renders, and are shown to nobody.

use remuda_core::FailureClass;
use remuda_store::Keyring;

use crate::support::{GRAPH, Gateway, Ground, JsonText as _, json};

const SECRET: &str = "sk-0123456789";

fn prompt() -> String {
    format!(
        r#"{{"prompt": {GRAPH}, "client_id": "c", "extra_data": {{"seen": 1, "api_key_comfy_org": "{SECRET}", "myPassword": "{SECRET}"}}}}"#
    )
}

#[tokio::test]
async fn a_secret_reaches_the_worker_and_no_answer() {
    let gateway = Gateway::start().await;
    let submitted = json(gateway.post("/prompt").json_text(&prompt()).send().await.unwrap(), 200).await;
    let id = submitted["prompt_id"].as_str().unwrap().to_owned();
    let paths = [
        format!("/api/v1/tasks/{id}"),
        "/api/v1/tasks".to_owned(),
        "/queue".to_owned(),
        "/history".to_owned(),
        format!("/history/{id}"),
        "/api/jobs".to_owned(),
        format!("/api/jobs/{id}"),
        "/metrics".to_owned(),
    ];
    let hidden = async |when: &str| {
        for path in &paths {
            let answer = gateway.get(path).send().await.unwrap();
            assert!(
                answer.status().is_success() || path.contains("/jobs/"),
                "{path} {when}: {}",
                answer.status()
            );
            assert!(!answer.text().await.unwrap().contains(SECRET), "{path} {when}");
        }
    };
    hidden("while it waits").await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    let extra = claim.input.extra.clone().unwrap().extra_data.unwrap();
    assert!(extra.get().contains(SECRET) && extra.get().contains("\"myPassword\""), "{extra}");
    assert!(!format!("{claim:?}").contains(SECRET));
    hidden("while it runs").await;
    worker.fail(&claim, FailureClass::Validation, "refused").await;
    hidden("at its end").await;
    let shown = gateway.get(&format!("/history/{id}")).send().await.unwrap();
    assert!(shown.text().await.unwrap().contains("\"seen\":1"), "the rest is shown");
    let input = gateway.store().input(claim.task.id).await.unwrap().unwrap();
    assert_eq!(input.extra.unwrap().extra_data.unwrap().get(), "{\"seen\":1}", "the rest is kept");

    let retry = gateway.post(&format!("/api/v1/tasks/{id}/retry")).send().await.unwrap();
    let refused = json(retry, 409).await;
    assert_eq!(refused["code"], "secret_gone");
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("api_key_comfy_org") && error.contains("submit it again"), "{error}");
}

#[tokio::test]
async fn without_a_secret_key_they_are_refused_by_name() {
    let ground = Ground::with(|options| options.secrets = Keyring::default()).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let refused = json(gateway.post("/prompt").json_text(&prompt()).send().await.unwrap(), 400).await;
    assert_eq!(refused["error"]["type"], "secret_key_needed");
    let details = refused["error"]["details"].as_str().unwrap();
    assert!(details.contains("extra_data.api_key_comfy_org") && details.contains("--secret-key-file"));
    assert!(!refused.to_string().contains(SECRET));
    let sync = gateway.post("/prompt_sync").json_text(&prompt()).send().await.unwrap();
    assert!([400, 422].contains(&sync.status().as_u16()), "{}", sync.status());
    assert!(sync.text().await.unwrap().contains("--secret-key-file"));
    assert_eq!(gateway.store().counts(None).await.unwrap().pending, 0);
}
