//! `POST /api/v1/assets` and `GET /api/v1/assets/{sha256}`.

use remuda_core::{Scope, Sha256};
use reqwest::multipart::{Form, Part};

use crate::support::{Gateway, Ground, JsonText as _, json};

#[tokio::test]
async fn a_file_is_known_by_its_content_and_its_name() {
    let gateway = Gateway::start().await;
    let bytes = b"\x89PNG not really".as_slice();
    let upload = || gateway.post("/api/v1/assets?filename=C%3A%5Cpictures%5Ccat.png").body(bytes).send();
    let asset = json(upload().await.unwrap(), 201).await;
    let sha256 = Sha256::of(bytes).to_string();
    assert_eq!(asset["sha256"], sha256);
    assert_eq!(asset["id"], format!("asset:{sha256}"));
    assert_eq!(
        (&asset["filename"], &asset["mime"], &asset["size"]),
        (&"cat.png".into(), &"image/png".into(), &15.into())
    );
    // Again: the same file, no second copy.
    assert_eq!(json(upload().await.unwrap(), 201).await["sha256"], sha256);
    let url = asset["url"].as_str().unwrap();
    let back = gateway.get(url).header("range", "bytes=1-3").send().await.unwrap();
    assert_eq!(back.status(), 206);
    assert_eq!(back.headers()["etag"], format!("\"{sha256}\"").as_str());
    assert_eq!(back.bytes().await.unwrap(), "PNG");
}

#[tokio::test]
async fn a_form_may_bring_one_file() {
    let gateway = Gateway::start().await;
    let file =
        |name: &'static str| Part::bytes(b"abc".as_slice()).file_name(name).mime_str("image/webp").unwrap();
    let form = Form::new().text("type", "input").part("image", file("dog.webp"));
    let asset = json(gateway.post("/api/v1/assets").multipart(form).send().await.unwrap(), 201).await;
    assert_eq!((&asset["filename"], &asset["mime"]), (&"dog.webp".into(), &"image/webp".into()));
    let large = Form::new().part("film", Part::bytes(vec![7; 5 << 20]).file_name("film.mp4"));
    let asset = json(gateway.post("/api/v1/assets").multipart(large).send().await.unwrap(), 201).await;
    assert_eq!((&asset["size"], &asset["mime"]), (&(5 << 20).into(), &"video/mp4".into()));
    let two = Form::new().part("a", file("a.webp")).part("b", file("b.webp"));
    let error = json(gateway.post("/api/v1/assets").multipart(two).send().await.unwrap(), 400).await;
    assert!(error["error"].as_str().unwrap().contains("more than one"), "{error}");
    let none = Form::new().text("a", "b");
    json(gateway.post("/api/v1/assets").multipart(none).send().await.unwrap(), 400).await;
}

#[tokio::test]
async fn what_is_too_large_or_badly_named_leaves_nothing() {
    let gateway = Gateway::start_with(|options| options.limits.asset = 1000).await;
    let chunks: Vec<Result<Vec<u8>, std::io::Error>> = (0..20).map(|_| Ok(vec![7; 100])).collect();
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    let error = json(gateway.post("/api/v1/assets").body(body).send().await.unwrap(), 413).await;
    assert_eq!(error["code"], "too_large");
    let error = json(gateway.post("/api/v1/assets?filename=..").body("x").send().await.unwrap(), 422).await;
    assert_eq!(error["field"], "filename");
    let error = json(gateway.post("/api/v1/assets?name=x").body("x").send().await.unwrap(), 422).await;
    assert_eq!(error["field"], "name");
}

#[tokio::test]
async fn a_task_finds_its_files_by_content_by_name_and_by_request_and_nobody_elses() {
    let ground = Ground::new().await;
    let (mine, yours) = (
        ground.key("mine", &[Scope::Submit, Scope::Read]).await,
        ground.key("yours", &[Scope::Submit, Scope::Read]).await,
    );
    let gateway = Gateway::on(ground, |_| {}).await;
    let cat = json(
        gateway.post("/api/v1/assets?filename=cat.png").bearer_auth(&mine).body("cat").send().await.unwrap(),
        201,
    )
    .await;
    let dog = json(
        gateway.post("/api/v1/assets?filename=dog.png").bearer_auth(&mine).body("dog").send().await.unwrap(),
        201,
    )
    .await;
    let body = format!(
        r#"{{"inputs": {{"3.image": "{}"}}, "payload": {{
            "1": {{"class_type": "LoadImage", "inputs": {{"image": "cat.png"}}}},
            "2": {{"class_type": "Anything", "inputs": {{"file": "{}"}}}},
            "3": {{"class_type": "LoadImage", "inputs": {{"image": "on-the-worker.png"}}}},
            "4": {{"class_type": "LoadImage", "inputs": {{"image": "only-there.png"}}}}}}}}"#,
        dog["id"].as_str().unwrap(),
        dog["id"].as_str().unwrap(),
    );
    let task =
        json(gateway.post("/api/v1/tasks").bearer_auth(&mine).json_text(&body).send().await.unwrap(), 201)
            .await;
    let path = format!("/api/v1/tasks/{}", task["id"].as_str().unwrap());
    let task = json(gateway.get(&path).bearer_auth(&mine).send().await.unwrap(), 200).await;
    let placed: Vec<(&str, &str)> = task["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| (input["node_id"].as_str().unwrap(), input["sha256"].as_str().unwrap()))
        .collect();
    let (cat, dog) = (cat["sha256"].as_str().unwrap(), dog["sha256"].as_str().unwrap());
    assert_eq!(placed, [("1", cat), ("2", dog), ("3", dog)]);

    let foreign =
        json(gateway.post("/api/v1/tasks").bearer_auth(&yours).json_text(&body).send().await.unwrap(), 422)
            .await;
    assert_eq!((&foreign["code"], &foreign["node_id"]), (&"bad_input".into(), &"3".into()));
    let error = gateway.get(&format!("/api/v1/assets/{dog}")).bearer_auth(&yours).send().await.unwrap();
    assert_eq!(error.status(), 404);
}

#[tokio::test]
async fn a_deleted_file_makes_room_and_one_that_is_needed_stays() {
    let ground = Ground::with(|options| options.quota.bytes = 2_000).await;
    let (one, other) = (
        ground.key("one", &[Scope::Submit, Scope::Read]).await,
        ground.key("other", &[Scope::Submit, Scope::Read]).await,
    );
    let gateway = Gateway::on(ground, |_| {}).await;
    let bytes = vec![7; 1_000];
    let sha256 = Sha256::of(&bytes);
    let path = format!("/api/v1/assets/{sha256}");
    let upload = |key: &str, name: &str| {
        gateway.post(&format!("/api/v1/assets?filename={name}")).bearer_auth(key).body(bytes.clone()).send()
    };
    let delete = |key: &str| gateway.delete(&path).bearer_auth(key).send();
    let file = gateway.ground.dir.path().join(format!("files/assets/{}/{sha256}", &sha256.to_string()[..2]));
    for (key, name) in [(&one, "a.png"), (&other, "b.png")] {
        json(upload(key, name).await.unwrap(), 201).await;
    }
    let body = format!(
        r#"{{"inputs": {{"1.image": "asset:{sha256}"}},
            "payload": {{"1": {{"class_type": "LoadImage", "inputs": {{"image": "x"}}}},
                         "2": {{"class_type": "PreviewImage", "inputs": {{"images": ["1", 0]}}}}}}}}"#
    );
    let submit = || gateway.post("/api/v1/tasks").bearer_auth(&one).json_text(&body).send();
    let task = json(submit().await.unwrap(), 201).await["id"].as_str().unwrap().to_owned();
    let refused = json(delete(&one).await.unwrap(), 409).await;
    assert_eq!((&refused["code"], &refused["task"]), (&"asset_in_use".into(), &task.as_str().into()));

    // Another tenant's tasks are no reason, and its file is its own.
    assert_eq!(delete(&other).await.unwrap().status(), 204);
    assert_eq!(json(delete(&other).await.unwrap(), 404).await["code"], "not_found");
    assert!(file.exists(), "another tenant has the same content");

    let task = format!("/api/v1/tasks/{task}");
    json(gateway.delete(&task).bearer_auth(&one).send().await.unwrap(), 200).await;
    assert_eq!(delete(&one).await.unwrap().status(), 204);
    assert!(!file.exists());
    assert_eq!(gateway.get(&path).bearer_auth(&one).send().await.unwrap().status(), 404);
    let again = gateway.post(&format!("{task}/retry")).bearer_auth(&one).send().await.unwrap();
    assert_eq!(json(again, 409).await["code"], "asset_gone");
    json(submit().await.unwrap(), 422).await;
    json(upload(&one, "a.png").await.unwrap(), 201).await;
    assert!(file.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_uploads_and_deletes_takes_nothing_from_others_with_the_same_bytes() {
    const ROUNDS: usize = 25;
    let gateway = Gateway::start().await;
    let scopes = [Scope::Submit, Scope::Read];
    let (alice, mallory) =
        (gateway.ground.key("alice", &scopes).await, gateway.ground.key("mallory", &scopes).await);
    let (bytes, content) = (b"what both have".as_slice(), Sha256::of(b"what both have"));
    let upload = |key: &str, name: usize| {
        gateway.post(&format!("/api/v1/assets?filename={name}.png")).bearer_auth(key).body(bytes).send()
    };
    let path = format!("/api/v1/assets/{content}");
    let delete = |key: &str| gateway.delete(&path).bearer_auth(key).send();
    let loops: Vec<_> = (0..4)
        .map(|name| {
            let post = gateway
                .post(&format!("/api/v1/assets?filename={name}.png"))
                .bearer_auth(&mallory)
                .body(bytes);
            let gone = gateway.delete(&path).bearer_auth(&mallory);
            tokio::spawn(async move {
                loop {
                    for request in [&post, &gone] {
                        drop(request.try_clone().unwrap().send().await);
                    }
                }
            })
        })
        .collect();
    for round in 0..ROUNDS {
        let answers = futures_util::future::join_all((0..4).map(|name| upload(&alice, name))).await;
        let kept = answers.into_iter().filter(|answer| answer.as_ref().unwrap().status() == 201).count();
        assert!(kept > 0, "nothing is kept in round {round}");
        // Somebody may have it in his hands for a moment, to see whether it has a name.
        let there =
            remuda_testbed::wait::until("what is kept to be there", crate::support::BOUND, async || {
                let answer = gateway.get(&path).bearer_auth(&alice).send().await.unwrap();
                if answer.status() == 200 { Ok(()) } else { Err(answer.status().to_string()) }
            });
        there.await.unwrap();
        assert_eq!(delete(&alice).await.unwrap().status(), 204);
    }
    loops.iter().for_each(tokio::task::JoinHandle::abort);
}
