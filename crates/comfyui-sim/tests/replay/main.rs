//! Every recording of a real ComfyUI, played against the simulator: same requests, same answers.
//!
//! What may differ is listed in `volatile.rs`, what makes frames comparable in `frames.rs`, what a recording takes
//! for granted in `setup.rs`, and what is not replayed at the end of this file.
//!
//! The same tests run against a real ComfyUI when `REPLAY_SERVER` names a command that starts one (see `server.rs`),
//! which shows that the harness asks for nothing that the real one does not do. `video_helper_suite` needs
//! VideoHelperSuite, and all need the `Rig*` nodes.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod bodies;
mod compare;
mod facts;
mod frames;
mod http;
mod json;
mod names;
mod player;
mod recording;
mod requests;
mod server;
mod setup;
mod siblings;
mod sockets;
mod volatile;

/// Plays one recording and fails with a readable account of all differences.
async fn replay(name: &str) {
    let recording = recording::load(name);
    let differences = player::play(&recording).await;
    let account: Vec<String> =
        differences.iter().take(30).map(|difference| format!("  {difference}")).collect();
    assert!(
        differences.is_empty(),
        "{name}: {} differences from the recording\n{}",
        differences.len(),
        account.join("\n")
    );
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                replay(stringify!($name)).await;
            }
        )*

        /// The recordings that are played.
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

replays! {
    cache_scope
    cached_file_deleted
    client_id_variants
    cors_and_compression
    crash
    execution_error
    expand_block_async
    free
    history_states
    http_details
    input_overwritten
    interrupt
    jobs_errors
    nan_in_json
    object_info
    origin_host_cors
    outputs_kinds
    poison_client_id_list
    poison_client_id_object
    poison_duplicate_id_and_number
    poison_extra_pnginfo_text
    poison_number_nan
    poison_orphan_bad_link
    poison_orphan_cycle
    poison_orphan_inputs_null
    poison_orphan_without_inputs
    poison_preview_method
    priority
    progress_preview
    prompt_id_client_chosen
    queue_delete
    queue_running_pending
    restart
    shutdown_sigint
    submit_cached_no_client_id
    submit_cached_ws
    submit_ok_ws
    system_stats
    unserializable_ui
    unserializable_ui_no_client
    upload
    upload_name_with_folder
    upload_raw_multipart
    upload_too_large
    validation_errors
    version_0_3_30
    version_0_3_64
    version_0_7_0
    video_helper_suite
    view
    worker_dies_systemexit
    ws_drop
    ws_misc
    ws_same_client_id
}

/// Recordings that cannot be played, why, and where their facts are checked instead.
const NOT_REPLAYED: &[(&str, &str)] = &[
    ("load_1000", "sizes and times of answers without their bodies; see facts::load_1000_counts_and_shapes"),
    ("slow_reader", "measures memory and times; see facts::slow_reader_stops_everybodys_frames"),
    (
        "race_success_vs_history",
        "statistics; see facts::race_success_vs_history_entry_is_there_with_the_last_frames",
    ),
];

#[test]
fn every_recording_is_replayed_or_excused() {
    let mut unknown = Vec::new();
    for entry in std::fs::read_dir(recording::folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".json") else {
            continue;
        };
        let excused = NOT_REPLAYED.iter().any(|(excused, _)| *excused == name);
        if REPLAYED.contains(&name) == excused {
            unknown.push(name.to_owned());
        }
    }
    assert!(unknown.is_empty(), "neither or both replayed and excused: {unknown:?}");
}

/// The harness sees what it is there to see: one wrong answer, one wrong frame and one missing frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_difference_is_reported_where_it_is() {
    use recording::{AnswerBody, FrameKind, Outcome};
    let mut recording = recording::load("submit_ok_ws");
    let Outcome::Answer(answer) = &mut recording.exchanges[0].outcome else { panic!("no answer") };
    let AnswerBody::Json(body) = &mut answer.body else { panic!("no JSON") };
    body["number"] = serde_json::json!(0.0);
    let mut nodes = recording.frames.iter_mut().filter_map(|frame| match &mut frame.kind {
        FrameKind::Text(frame) if frame["type"] == "executing" => Some(&mut frame["data"]["display_node"]),
        _ => None,
    });
    *nodes.next().unwrap() = serde_json::json!("another");
    let success = |frame: &recording::Frame| matches!(&frame.kind, FrameKind::Text(frame) if frame["type"] == "execution_success");
    recording.frames.retain(|frame| !success(frame));

    let differences = player::play(&recording).await;
    let report: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let report = report.join("\n");
    for part in [
        "exchange 0 POST /prompt",
        "at /number\n    expected 0.0\n    got      0",
        "at /data/display_node",
        "expected \"another\"",
    ] {
        assert!(report.contains(part), "no {part:?} in\n{report}");
    }
    assert!(report.contains("\"execution_success\""), "the frame too many is named in\n{report}");
}
