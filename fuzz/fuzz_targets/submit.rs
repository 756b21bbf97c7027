//! Any bytes as the body of a submission, in both APIs.

#![no_main]

use fuzz::post;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let routes =
        ["/api/v1/tasks", "/prompt", "/queue", "/history", "/interrupt", "/api/jobs/cancel", "/settings"];
    post(routes[usize::from(*first) % routes.len()], "application/json", body.to_vec());
});
