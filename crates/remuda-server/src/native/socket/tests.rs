//! Stories, as data: what ComfyUI says, how it ended, and what the client is told.

use remuda_core::{
    AttemptNo, Dialect, Failure, FailureClass, NewTask, Origin, Status, Task, TaskResult, Timestamp,
};
use remuda_frames::{Frame, FrameKind};
use serde_json::{Value, json};

use super::story::{Story, Word};

/// What the client calls its prompt.
const NAME: &str = "the \"client's\"";

/// A task that has ended.
pub(crate) fn task(status: Status) -> Task {
    let new = NewTask::new(serde_json::value::to_raw_value(&json!({})).unwrap());
    let now = Timestamp::now();
    let mut task: Task = serde_json::from_value(json!({
        "id": new.id, "tenant": new.tenant, "workflow_id": null, "priority": 5, "status": status,
        "reason": null, "lane": "any", "affinity": null, "shape": 0, "cost_ms": 0, "rank": 0,
        "created_at": now, "run_at": now, "deadline": null, "started_at": now, "finished_at": now,
        "timeout_s": 1, "max_retries": 0, "failures": 0, "losses": 0, "attempt": 1, "fence": 1, "version": 3,
        "cancel_at": null, "worker": null, "avoid_worker": null, "avoid_until": null, "error": null,
        "result": null, "metadata": null,
    }))
    .unwrap();
    task.attempt = 1;
    task.origin = Some(Origin {
        dialect: Dialect::COMFYUI,
        external_id: Some(NAME.to_owned()),
        client: Some("a".to_owned()),
    });
    task
}

struct Teller {
    story: Story,
    task: Task,
    told: Vec<Word>,
}

impl Teller {
    fn new(status: Status) -> Self {
        let task = task(status);
        let mut story = Story::new(task.id, NAME.to_owned());
        story.listen(1, Some("0f0e0d0c-1111-4222-8333-444455556666".to_owned()));
        Self { story, task, told: Vec::new() }
    }

    fn say(&mut self, attempt: AttemptNo, kind: &str, data: Value) -> &mut Self {
        let what = FrameKind::Message { kind: kind.to_owned(), data: data.to_string() };
        self.story.hear(&Frame { task: self.task.id, attempt, what }, &mut self.told);
        self
    }

    fn picture(&mut self) -> &mut Self {
        let label = br#"{"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "image_type": "image/jpeg"}"#;
        let length = u32::try_from(label.len()).unwrap().to_be_bytes();
        let bytes = [&length[..], label, b"JPEG"].concat().into();
        let what = FrameKind::Binary { event: 4, bytes };
        self.story.hear(&Frame { task: self.task.id, attempt: 1, what }, &mut self.told);
        self
    }

    fn end(&mut self) -> Vec<Value> {
        let workflow = json!({"1": {"class_type": "First"}, "2": {"class_type": "Second"}}).to_string();
        self.story.end(&self.task, Some(&workflow), &mut self.told);
        self.heard()
    }

    fn heard(&mut self) -> Vec<Value> {
        let told = std::mem::take(&mut self.told).into_iter().map(|word| match word {
            Word::Text(text) => serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
            Word::Status => json!({"type": "status", "data": {}}),
            Word::Picture(picture) => {
                let kind = if picture.plain.is_some() { "plain picture" } else { "labelled picture" };
                json!({"type": kind, "data": {}})
            }
        });
        let told: Vec<Value> = told.collect();
        for word in &told {
            assert!(
                !word.to_string().contains("0f0e0d0c-1111-4222-8333-444455556666"),
                "ComfyUI's name reached the client: {word}"
            );
        }
        told
    }
}

fn kinds(told: &[Value]) -> Vec<&str> {
    told.iter().map(|word| word["type"].as_str().unwrap()).collect()
}

fn images(name: &str) -> Value {
    json!({"images": [{"filename": name, "subfolder": "", "type": "output"}]})
}

fn state(node: &str, state: &str) -> Value {
    json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "nodes": {node: {"value": 0.0, "state": state, "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666"}}})
}

fn executed(node: &str, output: Value) -> Value {
    json!({"node": node, "display_node": node, "output": output, "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666"})
}

fn executing(node: &str) -> Value {
    json!({"node": node, "display_node": node, "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666"})
}

fn render(teller: &mut Teller, attempt: AttemptNo) {
    let prompt = json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "timestamp": 7});
    teller
        .say(attempt, "execution_start", prompt.clone())
        .say(
            attempt,
            "execution_cached",
            json!({"nodes": [], "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "timestamp": 8}),
        )
        .say(attempt, "progress_state", state("1", "running"))
        .say(attempt, "executing", executing("1"))
        .say(attempt, "progress_state", state("1", "finished"))
        .say(attempt, "progress_state", state("2", "running"))
        .say(attempt, "executing", executing("2"))
        .say(attempt, "executed", executed("2", images("a.png")))
        .say(attempt, "progress_state", state("2", "finished"))
        .say(attempt, "execution_success", prompt)
        .say(
            attempt,
            "executing",
            json!({"node": null, "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666"}),
        );
}

/// The order of a recording of ComfyUI 0.7.0, from the second `status` on.
const RECORDED: [&str; 13] = [
    "status",
    "execution_start",
    "execution_cached",
    "progress_state",
    "executing",
    "progress_state",
    "progress_state",
    "executing",
    "executed",
    "progress_state",
    "execution_success",
    "status",
    "executing",
];

#[test]
fn a_picture_is_told_in_the_recorded_order_under_the_clients_name() {
    let mut teller = Teller::new(Status::Completed);
    teller.task.result =
        Some(TaskResult { outputs: json!({"2": images("a.png")}).into(), ..TaskResult::default() });
    render(&mut teller, 1);
    let told = teller.end();
    assert_eq!(kinds(&told), RECORDED);
    for word in told.iter().filter(|word| word["type"] != "status") {
        assert_eq!(word["data"]["prompt_id"], NAME, "{word}");
    }
    assert_eq!(told[3]["data"]["nodes"]["1"]["prompt_id"], NAME);
    let file = &told[8]["data"]["output"]["images"][0];
    assert_eq!(file["subfolder"], format!("remuda/{}", teller.task.id));
    assert_eq!(told[12]["data"]["node"], Value::Null);
}

#[test]
fn a_second_attempt_and_a_second_listener_look_like_a_slow_first_one() {
    let mut teller = Teller::new(Status::Completed);
    teller.task.result =
        Some(TaskResult { outputs: json!({"2": images("b.png")}).into(), ..TaskResult::default() });
    let begin = json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "timestamp": 1});
    teller.say(1, "execution_start", begin.clone()).say(1, "executed", executed("2", images("a.png")));
    teller.say(1, "executed", executed("1", json!({"text": ["x"]})));
    teller.story.listen(1, Some("0f0e0d0c-1111-4222-8333-444455556666".to_owned()));
    teller.say(1, "execution_start", begin).say(1, "executed", executed("1", json!({"text": ["x"]})));
    let first = teller.heard();
    assert_eq!(kinds(&first), ["status", "execution_start", "execution_cached", "executed"]);
    render(&mut teller, 2);
    teller.say(1, "executing", executing("9"));
    let told = teller.end();
    assert_eq!(kinds(&told), RECORDED[3..]);
    assert_eq!(told[5]["data"]["output"]["images"][0]["filename"], "b.png");
}

#[test]
fn what_was_not_heard_is_told_from_the_result() {
    let mut teller = Teller::new(Status::Completed);
    let outputs = json!({"2": images("a.png"), "7.0.1": {"text": ["x"]}});
    teller.task.result = Some(TaskResult { outputs: outputs.into(), ..TaskResult::default() });
    let told = teller.end();
    let expected = [
        "status",
        "execution_start",
        "execution_cached",
        "executed",
        "executed",
        "execution_success",
        "status",
        "executing",
    ];
    assert_eq!(kinds(&told), expected);
    assert_eq!(told[4]["data"]["display_node"], "7");
    assert_eq!(told[4]["data"]["output"], json!({"text": ["x"]}));
}

#[test]
fn files_that_nobody_can_read_are_not_told_of() {
    let mut teller = Teller::new(Status::Failed);
    let failure = Failure {
        node_id: Some("2".to_owned()),
        details: Some(
            json!({"node_type": "Second", "exception_type": "ValueError",
            "exception_message": "no\n", "traceback": ["line"]})
            .into(),
        ),
        ..Failure::new(FailureClass::Execution, "node 2 (Second) raised ValueError: no")
    };
    teller.task.error = Some(failure);
    teller.say(1, "execution_start", json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666"}));
    teller.say(1, "executing", executing("1")).say(1, "executed", executed("1", images("a.png")));
    teller.say(1, "executing", executing("2"));
    let told = teller.end();
    assert!(!kinds(&told).contains(&"executed"), "{told:?}");
    let error = &told[told.len() - 3];
    assert_eq!(error["type"], "execution_error");
    let data = &error["data"];
    assert_eq!((&data["node_id"], &data["node_type"]), (&json!("2"), &json!("Second")));
    assert_eq!((&data["exception_type"], &data["exception_message"]), (&json!("ValueError"), &json!("no\n")));
    assert_eq!((&data["traceback"], &data["executed"]), (&json!(["line"]), &json!(["1"])));
    for field in ["prompt_id", "current_inputs", "current_outputs", "timestamp"] {
        assert!(data.get(field).is_some(), "{field}");
    }
}

#[test]
fn comfyuis_own_words_of_the_same_error_are_used_and_a_blocked_branch_is_no_end() {
    let mut teller = Teller::new(Status::Failed);
    teller.task.error =
        Some(Failure { node_id: Some("2".to_owned()), ..Failure::new(FailureClass::Execution, "x") });
    teller.say(
        1,
        "execution_error",
        json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "exception_type": "ExecutionBlocked"}),
    );
    assert!(!teller.story.is_over());
    let words = json!({"prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "node_id": "2", "current_inputs": {"a": [1]}});
    teller.say(1, "execution_error", words);
    assert!(teller.story.is_over());
    let told = teller.end();
    let errors: Vec<_> = told.iter().filter(|word| word["type"] == "execution_error").collect();
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[1]["data"]["current_inputs"], json!({"a": [1]}));
}

#[test]
fn who_is_cancelled_is_interrupted_only_if_it_had_begun() {
    let mut teller = Teller::new(Status::Cancelled);
    assert_eq!(kinds(&teller.end()), ["status"]);
    let mut teller = Teller::new(Status::Cancelled);
    teller.say(1, "executing", executing("1")).say(1, "executing", executing("2"));
    let told = teller.end();
    assert_eq!(kinds(&told)[5..], ["execution_interrupted", "status", "executing"]);
    let data = &told[5]["data"];
    assert_eq!((&data["node_id"], &data["node_type"]), (&json!("2"), &json!("Second")));
    assert_eq!(data["executed"], json!(["1"]));
}

#[test]
fn pictures_come_before_their_step_with_labels_and_after_it_without() {
    let mut teller = Teller::new(Status::Completed);
    let step = |n: u32| json!({"value": n, "max": 3, "prompt_id": "0f0e0d0c-1111-4222-8333-444455556666", "node": "1"});
    teller.picture().say(1, "progress", step(1)).picture().picture().say(1, "own_kind", json!({"x": 1}));
    let expected = [
        "labelled picture",
        "progress",
        "plain picture",
        "labelled picture",
        "plain picture",
        "labelled picture",
        "plain picture",
        "own_kind",
    ];
    assert_eq!(kinds(&teller.heard()), expected);
}

#[test]
fn the_name_that_an_old_comfyui_chose_itself_is_replaced_and_no_other_word() {
    let mut teller = Teller::new(Status::Completed);
    let own = "0123456789abcdef0123456789abcdef";
    teller.say(1, "own_kind", json!({"prompt_id": "1", "value": 1}));
    teller.say(1, "progress", json!({"prompt_id": own, "value": 11, "max": 20, "node": "1"}));
    let told = teller.heard();
    assert_eq!(told[0]["data"], json!({"prompt_id": "1", "value": 1}));
    assert_eq!(told[1]["data"], json!({"prompt_id": NAME, "value": 11, "max": 20, "node": "1"}));
}

#[test]
fn a_long_output_is_told_at_the_end_and_not_taken_apart_before() {
    let values = vec![json!({"": 0}); 100_000];
    let mut teller = Teller::new(Status::Completed);
    let heard = teller.say(1, "executed", json!({"node": "7", "output": {"text": values}})).heard();
    let kinds: Vec<&str> = heard.iter().map(|word| word["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["status", "execution_start", "execution_cached"]);
    let outputs = json!({"7": {"text": values}});
    teller.task.result = Some(TaskResult { outputs: outputs.into(), ..TaskResult::default() });
    let told = teller.end();
    let executed: Vec<&Value> = told.iter().filter(|word| word["type"] == "executed").collect();
    assert_eq!(executed.len(), 1);
    assert_eq!(executed[0]["data"]["output"]["text"].as_array().unwrap().len(), values.len());
}

#[test]
fn what_waits_behind_a_held_message_is_bounded() {
    let mut teller = Teller::new(Status::Completed);
    teller.say(1, "executed", json!({"node": "7", "output": {"images": [{"filename": "a.png"}]}}));
    for n in 0..40 {
        teller.say(1, "progress_state", json!({"nodes": "x".repeat(1 << 20), "n": n}));
    }
    let behind: usize = teller.story.behind.iter().map(String::len).sum();
    assert!(behind < 3 << 20, "{behind}");
    assert!(teller.story.behind.back().is_some_and(|last| last.contains("39")));
}
