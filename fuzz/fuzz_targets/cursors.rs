//! Any bytes as the query of a list: cursors, limits, filters.

#![no_main]

use fuzz::{encoded, get};
use libfuzzer_sys::fuzz_target;

const LISTS: [(&str, &[&str]); 6] = [
    ("/api/v1/tasks", &["before", "limit", "status", "workflow_id"]),
    ("/history", &["max_items", "offset"]),
    ("/api/jobs", &["limit", "offset", "status", "sort_by", "sort_order", "workflow_id"]),
    ("/userdata", &["dir", "recurse", "full_info", "split"]),
    ("/v2/userdata", &["path"]),
    ("/view", &["filename", "type", "subfolder", "preview", "channel"]),
];

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let (route, names) = LISTS[usize::from(*first) % LISTS.len()];
    let values = rest.split(|byte| *byte == b'\n');
    let query: Vec<String> =
        names.iter().zip(values).map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    get(&format!("{route}?{}", query.join("&")), &[]);
    // And as it is, as far as it can be sent at all.
    get(&format!("{route}?{}", String::from_utf8_lossy(rest)), &[]);
});
