//! `GET /api/v1/tasks/{id}/outputs/{n}`.

use crate::support::{Gateway, json};

#[tokio::test]
async fn a_file_comes_whole_in_part_and_not_at_all() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let path = format!("/api/v1/tasks/{id}/outputs/0");
    let error = json(gateway.get(&path).send().await.unwrap(), 404).await;
    assert_eq!(error["code"], "no_such_output");

    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    let file = worker.complete(&claim, b"0123456789").await;
    let whole = gateway.get(&path).send().await.unwrap();
    assert_eq!(whole.status(), 200);
    let headers = whole.headers().clone();
    let etag = format!("\"{}\"", file.sha256);
    assert_eq!(headers["etag"], etag.as_str());
    assert_eq!(headers["content-type"], "image/png");
    assert_eq!(headers["content-length"], "10");
    assert_eq!(headers["accept-ranges"], "bytes");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert!(
        headers["content-disposition"].to_str().unwrap().starts_with("inline; filename=\"blue_00001_.png\"")
    );
    assert_eq!(whole.bytes().await.unwrap(), "0123456789");

    let head = gateway.request(reqwest::Method::HEAD, &path).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &headers["content-length"])
    );

    for (range, bytes, place) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
    ] {
        let part = gateway.get(&path).header("range", range).send().await.unwrap();
        assert_eq!(part.status(), 206);
        assert_eq!(part.headers()["content-range"], place);
        assert_eq!(part.headers()["content-length"], bytes.len().to_string().as_str());
        assert_eq!(part.bytes().await.unwrap(), bytes);
    }
    let beyond = gateway.get(&path).header("range", "bytes=10-").send().await.unwrap();
    assert_eq!(beyond.headers()["content-range"], "bytes */10");
    assert_eq!(json(beyond, 416).await["code"], "bad_range");
    let known = gateway.get(&path).header("if-none-match", &etag).send().await.unwrap();
    assert_eq!(known.status(), 304);
    let other =
        gateway.get(&path).header("range", "bytes=0-3").header("if-range", "\"other\"").send().await.unwrap();
    assert_eq!((other.status().as_u16(), other.bytes().await.unwrap().len()), (200, 10));

    let error = json(gateway.get(&format!("/api/v1/tasks/{id}/outputs/1")).send().await.unwrap(), 404).await;
    assert_eq!(error["code"], "no_such_output");
    let error = json(gateway.get(&format!("/api/v1/tasks/{id}/outputs/x")).send().await.unwrap(), 400).await;
    assert_eq!(error["code"], "malformed_id");
}

#[tokio::test]
async fn a_file_that_has_gone_is_told_without_paths() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    let file = worker.complete(&claim, b"x").await;
    gateway.ground.files.delete(&file.key.parse().unwrap()).await.unwrap();
    let answer = gateway.get(&format!("/api/v1/tasks/{id}/outputs/0")).send().await.unwrap();
    let error = json(answer, 404).await;
    assert_eq!(error["code"], "file_missing");
    assert!(!error.to_string().contains(&file.key));
}
