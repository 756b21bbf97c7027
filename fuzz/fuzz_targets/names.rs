//! Any bytes as names in paths: user data, settings, extensions, templates, uploads.

#![no_main]

use axum::body::Body;
use fuzz::{answer, encoded, get, post};
use http::Request;
use libfuzzer_sys::fuzz_target;

const ROUTES: [&str; 12] = [
    "/userdata/",
    "/settings/",
    "/extensions/",
    "/templates/",
    "/workflow_templates/x/",
    "/models/",
    "/view_metadata/",
    "/object_info/",
    "/history/",
    "/api/jobs/",
    "/api/v1/tasks/",
    "/api/v1/assets/",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, name)) = bytes.split_first() else { return };
    let name = encoded(name);
    get(&format!("{}{name}", ROUTES[usize::from(*first) % ROUTES.len()]), &[]);
    let file = format!("/userdata/{name}");
    if post(&file, "application/json", b"{}".to_vec()).is_some_and(|answer| answer.status == 200) {
        let read = get(&file, &[]).expect("it was a target before");
        assert_eq!((read.status, read.body.as_slice()), (200, &b"{}"[..]), "what was written cannot be read");
        if let Ok(delete) = Request::delete(&file).body(Body::empty()) {
            answer(delete);
        }
    }
    post(&format!("/api/v1/assets?filename={name}"), "application/octet-stream", b"x".to_vec());
});
