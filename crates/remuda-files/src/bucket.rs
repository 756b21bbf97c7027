//! The client for a bucket of S3, or of a store that speaks its language.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use url::Url;

use crate::error::{Error, Result};

/// The values that must never be shown.
pub(crate) fn secrets(settings: &BTreeMap<String, String>) -> Vec<String> {
    let names = ["secret_access_key", "session_token", "token", "sse_customer_key_base64"];
    names.iter().filter_map(|name| settings.get(*name).cloned()).collect()
}

/// Makes the client for a bucket. Nothing is asked of the server yet.
pub(crate) fn open(name: &str, bucket: &str, settings: &BTreeMap<String, String>) -> Result<AmazonS3> {
    let bad = |reason: String| Error::BadLocation { location: name.to_owned(), reason };
    // A transfer may take as long as it moves. A request that stands still is given up.
    let client = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout_disabled()
        .with_read_timeout(Duration::from_secs(90));
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(3),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout: Duration::from_secs(60),
    };
    let mut builder =
        AmazonS3Builder::new().with_client_options(client).with_retry(retry).with_bucket_name(bucket);
    for (setting, value) in settings {
        // The environment holds settings for other tools too, and the bucket is named by the location.
        match format!("aws_{setting}").parse() {
            Ok(AmazonS3ConfigKey::Bucket) | Err(_) => {}
            Ok(key) => builder = builder.with_config(key, value),
        }
    }
    // In the order in which object_store takes them.
    let endpoint = ["endpoint_url_s3", "endpoint_url", "endpoint"]
        .into_iter()
        .find_map(|name| settings.get_key_value(name));
    if let Some((setting, endpoint)) = endpoint {
        let variable = format!("AWS_{}", setting.to_ascii_uppercase());
        let url = Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(url) = url else { return Err(bad(format!("{variable} is not an http or https URL"))) };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad(format!(
                "{variable} holds credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )));
        }
        builder = builder.with_allow_http(url.scheme() == "http");
    }
    // The messages of the builder name settings, not values; a value that cannot be parsed is the one exception.
    builder.build().map_err(|error| bad(error.to_string()))
}
