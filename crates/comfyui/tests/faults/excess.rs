//! A server that sends more than anybody should have to take.

use comfyui::{FileRef, JobsQuery, Limits, Upload, Workflow};

use super::*;

/// Small bounds, so that the tests move little.
fn limits() -> Limits {
    Limits { answer: 1 << 20, object_info: 8 << 20, history: 2 << 20, file: 1 << 20, ..Limits::default() }
}

fn client_of(server: &Server) -> Client {
    Client::builder(&server.url).timeout(BOUND).retries(0).limits(limits()).build().unwrap()
}

/// What every route says.
async fn answers(client: &Client) -> Vec<(&'static str, Error)> {
    let id = PromptId::random();
    let ids = [id.clone()];
    let mut found = Vec::new();
    macro_rules! ask {
        ($($name:literal: $call:expr),* $(,)?) => {$(
            let answer = tokio::time::timeout(BOUND, $call).await.expect("an answer in time");
            match answer {
                Err(error) => found.push(($name, error)),
                Ok(_) => panic!("{} was taken", $name),
            }
        )*};
    }
    let file = || FileRef::output("x.png");
    let fetched = async { client.view(&file()).await?.bytes(usize::MAX).await };
    ask! {
        "system_stats": client.system_stats(),
        "features": client.features(),
        "object_info": client.object_info(),
        "object_info_bytes": client.object_info_bytes(),
        "object_info_of": client.object_info_of("SaveImage"),
        "models": client.models("checkpoints"),
        "model_folders": client.model_folders(),
        "embeddings": client.embeddings(),
        "extensions": client.extensions(),
        "settings": client.settings(),
        "setting": client.setting("x"),
        "history": client.history(&id),
        "history_page": client.history_page(None, None),
        "queue": client.queue(),
        "queue_remaining": client.queue_remaining(),
        "jobs": client.jobs(&JobsQuery::default()),
        "job": client.job(&id),
        "find": client.find(&ids[0]),
        "list_userdata": client.list_userdata("workflows"),
        "get_userdata": client.get_userdata("x.json"),
        "view": fetched,
        "upload": client.upload(Upload::from_bytes("x.bin", "x")),
        "submit": client.submit(&nap(0.0)),
    }
    found
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off_on_every_route() {
    let server = server().await;
    let sim = server.sim();
    let client = client_of(&server);
    for fault in [Fault::endless(), Fault::gzip_bomb()] {
        sim.faults().add(fault.clone());
        for (route, error) in answers(&client).await {
            assert!(error.is_too_large(), "{route} under {fault:?}: {error}");
        }
        sim.faults().clear();
    }
    // The page of an error is a status, whatever its length.
    sim.faults().add(Fault::endless_error(500));
    for (route, error) in answers(&client).await {
        assert!(matches!(error, Error::Status { .. }), "{route}: {error}");
    }
    sim.faults().clear();
    client.system_stats().await.expect("the same client goes on");
    server.stop().await;
}

#[tokio::test]
async fn the_default_bounds_take_the_real_answers_and_refuse_two_hundred_thousand_nodes() {
    let server = server().await;
    let sim = server.sim();
    let client = Client::new(&server.url).unwrap();
    assert!(client.object_info().await.unwrap().len() > 10);
    sim.faults().add(Fault::huge_object_info(1_000));
    assert!(client.object_info().await.unwrap().len() > 1_000, "a large installation");
    sim.faults().clear();
    sim.faults().add(Fault::huge_object_info(200_000));
    let error = client.object_info_bytes().await.unwrap_err();
    assert!(
        matches!(error, Error::TooLarge { limit, .. } if limit == Limits::default().object_info),
        "{error}"
    );
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_has_a_time_of_its_own() {
    let server = server().await;
    let sim = server.sim();
    let limits = Limits { slowest: 1 << 30, ..limits() };
    let timeout = Duration::from_secs(2);
    let client = Client::builder(&server.url).retries(0).timeout(timeout).limits(limits).build().unwrap();
    let placed = client.upload(Upload::from_bytes("x.bin", vec![7; 4096])).await.unwrap();
    sim.faults().add(Fault::trickle(Duration::from_millis(50)));
    let error = tokio::time::timeout(BOUND, client.system_stats()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let fetched = async { client.view(&placed).await?.bytes(1 << 20).await };
    let error = tokio::time::timeout(BOUND, fetched).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "a file may be slow, but not that slow: {error}");
    server.stop().await;
}

#[tokio::test]
async fn a_history_entry_that_is_too_large_is_the_end_of_its_prompt_and_of_no_other() {
    let server = server().await;
    let sim = server.sim();
    let session = Session::open(client_of(&server), SessionOptions::default()).await.unwrap();
    let fault = sim.faults().add(Fault::huge_history(300 << 20));
    let watch = session.submit(nap(0.0)).await.unwrap();
    let outcome = tokio::time::timeout(BOUND, watch.outcome()).await.expect("an end");
    assert!(matches!(outcome, Outcome::TooLarge { limit: 2_097_152, unit: "bytes", .. }), "{outcome:?}");
    sim.faults().remove(fault);
    session.submit(nap(0.0)).await.unwrap().finish().await.expect("the next is fine");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_flood_on_the_socket_is_read_slowly_and_prompts_end_all_the_same() {
    let server = server().await;
    let sim = server.sim();
    let limits = Limits { frames_per_second: 50, ..Limits::default() };
    let client = Client::builder(&server.url).limits(limits).build().unwrap();
    let options = SessionOptions { survey: Duration::from_millis(500), ..SessionOptions::default() };
    for fault in [Fault::flood_websocket(5_000_000), Fault::flood_pictures(2_000, 4 << 20)] {
        let session = Session::open(client.clone(), options.clone()).await.unwrap();
        sim.faults().add(fault);
        let mut watch = session.submit(nap(0.0)).await.unwrap();
        let mut events = 0;
        let end = async {
            loop {
                match watch.next().await {
                    Some(Event::Finished(outcome)) => break outcome,
                    Some(_) => events += 1,
                    None => break Outcome::GaveUp(GaveUp::SessionClosed),
                }
            }
        };
        let outcome = tokio::time::timeout(BOUND, end).await.expect("an end by asking");
        assert!(matches!(outcome, Outcome::Succeeded(_)), "{outcome:?}");
        assert!(events < 5_000, "{events} events of others");
        session.close().await;
        sim.faults().clear();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_counts_however_much_it_repeats() {
    let server = server().await;
    let client = client_of(&server);
    for (values, is_told) in [(10, true), (300_000, false), (900_000, false)] {
        let many = r#"{"":0},"#.repeat(values);
        let graph = format!(
            r#"{{"1": {{"class_type": "EmptyImage", "inputs": {{"width": {{"k": [{many}0]}}, "height": 16,
                "batch_size": 1, "color": 1}}}},
                "2": {{"class_type": "SaveImage", "inputs": {{"images": ["1", 0], "filename_prefix": "x"}}}}}}"#
        );
        let request = PromptRequest::new(Workflow::parse(graph).expect("a graph"));
        let error = client.submit(&request).await.expect_err("a number is wanted");
        let Error::Refused(refusal) = &error else { panic!("{values} values: {error}") };
        assert_eq!(refusal.node_errors.contains_key("1"), is_told, "{values} values");
        assert!(error.to_string().len() < 10_000);
    }
    server.stop().await;
}
