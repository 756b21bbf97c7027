//! The contract on S3, and what only a server can do wrong.

use remuda_files::{Error, Files, Location};
use tokio::net::TcpListener;

use crate::s3_server::{BUCKET, KEY, S3Server, SECRET};
use crate::suite::{self, key, once, read};

#[tokio::test(flavor = "multi_thread")]
async fn s3_keeps_the_contract() {
    let server = S3Server::start().await;
    suite::run_all(&server.files()).await;
    assert!(server.unfinished().is_empty(), "{:?}", server.unfinished());
}

/// Two prefixes of one bucket are two stores.
#[tokio::test]
async fn prefixes_do_not_mix() {
    let server = S3Server::start().await;
    let (one, two) = (
        server.files(),
        Files::open(&server.location(&format!("s3://{BUCKET}/team/one2"))).expect("a store"),
    );
    let root = Files::open(&server.location(&format!("s3://{BUCKET}"))).expect("a store");
    let place = key("outputs/a/b");
    one.put(&place, once("one"), None).await.expect("it is stored");
    two.put(&place, once("two"), None).await.expect("it is stored");
    assert_eq!(read(&root, &key("team/one/outputs/a/b")).await.expect("below the root"), "one");
    assert_eq!(one.delete_all(&key("outputs")).await.expect("it goes"), 1);
    assert_eq!(read(&two, &place).await.expect("it stayed"), "two");
    let ids = [uuid::Uuid::from_u128(1), uuid::Uuid::from_u128(2)];
    one.check_installation(ids[0], false).await.expect("it is claimed");
    two.check_installation(ids[1], false).await.expect("it is claimed");
}

fn assert_no_secret(error: &Error, secret: &str) {
    let texts = [error.to_string(), format!("{error:?}")];
    for text in texts {
        assert!(text.contains(BUCKET) || text.contains("no-such-bucket"), "the bucket is named: {text}");
        assert!(!text.contains(secret) && !text.contains(KEY), "no credential is named: {text}");
    }
}

#[tokio::test]
async fn a_wrong_secret_is_denied_and_not_shown() {
    let server = S3Server::start().await;
    let wrong = "wrong-secret-77e1";
    let location: Location = format!("s3://{BUCKET}/x").parse().expect("a location");
    let location = location.with_settings(server.settings(wrong));
    assert_eq!(format!("{location} {location:?}"), format!("s3://{BUCKET}/x Location(s3://{BUCKET}/x)"));
    let files = Files::open(&location).expect("nothing is asked yet");
    assert_eq!(format!("{files:?}"), format!("Files(s3://{BUCKET}/x)"));

    let place = key("outputs/a/b");
    let errors = [
        files.put(&place, once("x"), None).await.map(drop),
        files.put(&place, once(vec![0; 6 << 20]), None).await.map(drop),
        files.put_content_addressed(once("x"), None).await.map(drop),
        files.get(&place, None).await.map(drop),
        files.size(&place).await.map(drop),
        files.delete(&place).await,
        files.delete_all(&place).await.map(drop),
        files.check_installation(uuid::Uuid::from_u128(1), false).await,
    ];
    for (n, error) in errors.into_iter().enumerate() {
        let error = error.expect_err("the secret is wrong");
        assert!(matches!(error, Error::Denied { .. }) && !error.is_temporary(), "{n}: {error:?}");
        assert_no_secret(&error, wrong);
    }
}

/// A missing bucket answers 404 like a missing file does, and must not be taken for one. Writes are left out: this server makes
/// the bucket that they name.
#[tokio::test]
async fn a_missing_bucket_is_not_an_empty_one() {
    let server = S3Server::start().await;
    let files = Files::open(&server.location("s3://no-such-bucket")).expect("nothing is asked yet");
    let place = key("outputs/a/b");
    let errors = [
        files.size(&place).await.map(drop),
        files.get(&place, None).await.map(drop),
        files.delete_all(&place).await.map(drop),
    ];
    for (n, error) in errors.into_iter().enumerate() {
        let error = error.expect_err(&format!("there is no bucket: {n}"));
        assert!(matches!(error, Error::Unavailable { .. }), "{n}: {error:?}");
        assert_no_secret(&error, SECRET);
    }
}

#[tokio::test]
async fn a_server_that_is_away_says_nothing_about_files() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let location: Location = format!("s3://{BUCKET}").parse().expect("a location");
    let files = Files::open(&location.with_settings([
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_ENDPOINT_URL", &format!("http://{address}")),
    ]))
    .expect("nothing is asked yet");
    let error = files.size(&key("a/b")).await.expect_err("nobody listens");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_temporary(), "{error:?}");
    assert_no_secret(&error, SECRET);
}

#[test]
fn bad_settings_are_told_without_their_values() {
    let location: Location = format!("s3://{BUCKET}").parse().expect("a location");
    for (settings, expected) in [
        (vec![("AWS_ACCESS_KEY_ID", KEY)], "SecretAccessKey"),
        (vec![("AWS_ENDPOINT_URL", "hush.example:9000")], "AWS_ENDPOINT_URL is not an http or https URL"),
        (
            vec![("AWS_ENDPOINT_URL_S3", "https://a:hush@example.org")],
            "AWS_ENDPOINT_URL_S3 holds credentials",
        ),
    ] {
        let error =
            Files::open(&location.clone().with_settings(settings)).expect_err("they are bad").to_string();
        assert!(error.contains(expected) && !error.contains("hush") && !error.contains(KEY), "{error}");
    }
}
