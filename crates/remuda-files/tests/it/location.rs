//! What may stand behind `--files`.

#![allow(clippy::expect_used, reason = "a helper that fails ends its test")]

use remuda_files::Location;

fn check(text: &str, shown: &str) {
    let location: Location = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(location.to_string(), shown, "{text}");
    assert_eq!(location.to_string().parse::<Location>().expect("it is read back"), location);
    assert_eq!(location.is_directory(), shown.starts_with("file:"));
}

#[test]
fn places_are_understood() {
    check("data", "file:data");
    check("/var/lib/remuda", "file:/var/lib/remuda");
    check("./a:b", "file:./a:b");
    check(r"C:\data", r"file:C:\data");
    check("file:data/files", "file:data/files");
    check("file:/data", "file:/data");
    check("file:///data", "file:/data");
    check("s3://bucket", "s3://bucket");
    check("s3://bucket/", "s3://bucket");
    check("s3://my.bucket-1/a/b/", "s3://my.bucket-1/a/b");
    check("S3://bucket/Team A", "s3://bucket/Team A");
}

#[test]
fn mistakes_are_told_with_the_way_out_and_without_secrets() {
    for (text, expected) in [
        ("", "write file:DIR"),
        ("file:", "names no directory"),
        ("file://hush/data", "names a host"),
        ("gs://hush", "not built in yet"),
        ("az://hush", "not built in yet"),
        ("https://key:hush@example.org/bucket", "AWS_ENDPOINT_URL"),
        ("ftp://key:hush@example.org", "unknown kind of store"),
        ("s3:bucket", "s3://bucket/prefix"),
        ("s3://", "bucket's name"),
        ("s3://Bucket", "bucket's name"),
        ("s3://key:hush@bucket", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket?secret=hush", "settings do not belong here"),
        ("s3://bucket/../other", "prefix"),
        ("s3://bucket/a//b", "prefix"),
    ] {
        let error = text.parse::<Location>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("hush") || text.starts_with("file:"), "{text}: {error}");
    }
}
