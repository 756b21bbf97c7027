//! Any body and any graph: an answer, never a panic, and a worker that comes to an end with it.

use super::Rig;
use crate::config::Profile;
use crate::json::{Dict, Json, dict};
use crate::nodes::Registry;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn any_json() -> impl Strategy<Value = Json> {
    let words =
        ["prompt", "inputs", "class_type", "1", "SaveImage", "client_id", "number", "extra_data", "", "x"];
    let word = prop::sample::select(words.to_vec()).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::Float),
        word.clone().prop_map(Json::Str),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::List),
            prop::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|pairs| Json::Dict(pairs.into_iter().collect())),
        ]
    })
}

/// Numbers to build a graph from, one after the other; the same numbers give the same graph.
struct Dice(Vec<u16>, usize);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.1 += 1;
        usize::from(self.0[self.1 % self.0.len()]) % sides.max(1)
    }
}

/// Values that no input likes.
fn junk(dice: &mut Dice) -> Json {
    match dice.roll(9) {
        0 => Json::Null,
        1 => Json::Bool(true),
        2 => Json::Float(f64::NAN),
        3 => Json::from(""),
        4 => Json::from("../.."),
        5 => Json::List(vec![Json::from("1"), Json::Int(7)]),
        6 => Json::List(vec![Json::Int(1)]),
        7 => dict([("__value__", Json::List(vec![Json::from("1"), Json::Int(0)]))]),
        _ => Json::BigInt("-123456789012345678901234567890123456789012".into()),
    }
}

/// A value that fits most of the time, and is small, so that nothing takes long.
fn value(dice: &mut Dice, kind: &Json, choices: Option<&[Json]>) -> Json {
    if let Some(choices) = choices {
        return choices.get(dice.roll(choices.len())).cloned().unwrap_or(Json::Null);
    }
    match kind.as_str() {
        Some("INT") => Json::from(dice.roll(40)),
        Some("FLOAT") => Json::Float(dice.roll(20) as f64 / 1000.0 + 0.01),
        Some("BOOLEAN") => Json::Bool(dice.roll(2) == 1),
        _ => Json::from(["a", "rig/b", "c%width%", "é"][dice.roll(4)]),
    }
}

/// A graph of described classes, mostly linked where the types fit.
fn graph(registry: &Registry, classes: &[String], dice: &mut Dice) -> Json {
    // Something of most types first, so that links can fit.
    let sources = [
        "EmptyImage",
        "EmptyLatentImage",
        "CheckpointLoaderSimple",
        "CLIPTextEncode",
        "EmptyAudio",
        "SolidMask",
        "CreateVideo",
        "RigSvg",
        "RigMesh",
    ];
    let mut chosen: Vec<String> = sources.map(str::to_owned).to_vec();
    for _ in 0..1 + dice.roll(10) {
        chosen.push(classes[dice.roll(classes.len())].clone());
    }
    chosen.push("SaveImage".to_owned());
    let mut nodes = Dict::new();
    for (at, class) in chosen.iter().enumerate() {
        let class = registry.get(class).unwrap();
        let mut inputs = Dict::new();
        for input in &class.inputs {
            if (!input.required && dice.roll(2) == 0) || dice.roll(40) == 0 {
                continue;
            }
            let filled = registry.fill(input);
            let fitting: Vec<(usize, usize)> = (0..chosen.len())
                .filter(|other| *other < at || dice.roll(12) == 0)
                .flat_map(|other| {
                    let returns = registry.get(&chosen[other]).unwrap().returns.clone();
                    returns.into_iter().enumerate().map(move |(slot, kind)| (other, slot, kind))
                })
                .filter(|(_, _, kind)| Some(kind.as_str()) == filled.type_name())
                .map(|(other, slot, _)| (other, slot))
                .collect();
            let value = if dice.roll(25) == 0 {
                junk(dice)
            } else if let Some((other, slot)) = fitting.get(dice.roll(fitting.len())) {
                Json::List(vec![Json::Str(other.to_string()), Json::from(*slot)])
            } else {
                value(dice, &filled.kind, filled.choices())
            };
            inputs.insert(input.name.clone(), value);
        }
        if dice.roll(30) == 0 {
            inputs.insert("unknown".into(), junk(dice));
        }
        let inputs = if dice.roll(60) == 0 { junk(dice) } else { Json::Dict(inputs) };
        nodes.insert(at.to_string(), dict([("class_type", Json::from(&class.name)), ("inputs", inputs)]));
    }
    Json::Dict(nodes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_body_gets_an_answer(bodies in prop::collection::vec(any_json(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let rig = Rig::new(Profile::V0_7_0);
            for body in &bodies {
                let _ = rig.engine.submit(body);
                let _ = (rig.engine.post_queue(body), rig.engine.post_history(body), rig.engine.free(body));
                let _ = rig.engine.interrupt(Some(body));
            }
        });
    }

    #[test]
    fn any_graph_comes_to_an_end(numbers in prop::collection::vec(any::<u16>(), 40..400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let rig = Rig::new(Profile::V0_7_0);
            let registry: Arc<Registry> = rig.registry();
            let classes: Vec<String> = registry.names().filter(|name| *name != "RigExit").map(str::to_owned).collect();
            let mut dice = Dice(numbers, 0);
            for _ in 0..4 {
                let body = dict([("prompt", graph(&registry, &classes, &mut dice)), ("client_id", "me".into())]);
                let _ = rig.engine.submit(&body);
            }
            let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
            while rig.engine.queue_remaining() > 0 && !rig.worker.is_finished() {
                assert!(tokio::time::Instant::now() < deadline, "the worker does not come to an end");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
