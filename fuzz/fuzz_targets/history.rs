//! Any bytes as what the server tells about prompts: history, queue, jobs.

#![no_main]

use comfyui::{HistoryEntry, JobsPage, Outcome, Queue, lenient};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::collections::BTreeMap;

fuzz_target!(|bytes: &[u8]| {
    let history = lenient::from_slice::<BTreeMap<String, HistoryEntry>>(bytes);
    // Numbers beyond every float are legal in the raw parts of an entry and not in a `Value`.
    let written = lenient::from_slice::<Value>(bytes);
    if let (Ok(history), Ok(written)) = (history, written) {
        for (id, entry) in history {
            judge(entry, &written[&id]);
        }
    }
    if let Ok(queue) = lenient::from_slice::<Queue>(bytes) {
        assert_eq!(queue.in_order().len(), queue.pending.len());
    }
    let _ = lenient::from_slice::<JobsPage>(bytes);
});

/// Success needs both signs of it, whatever else the entry says.
fn judge(entry: HistoryEntry, written: &Value) {
    let _ = (entry.outputs(), entry.cached_nodes(), entry.duration_ms());
    if let Outcome::Succeeded(_) = Outcome::judge(entry) {
        let status = &written["status"];
        let events = status["messages"].as_array().into_iter().flatten().map(|message| &message[0]);
        assert_eq!(status["completed"], true);
        assert!(events.into_iter().any(|event| event == "execution_success"), "{status}");
    }
}
