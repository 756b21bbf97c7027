//! Arbitrary JSON for property tests.

use proptest::prelude::*;
use serde_json::Value;

/// Any JSON, whose keys and texts are often among the given words, so that it comes near to what is read.
pub(crate) fn json(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let text = move || {
        prop_oneof![
            4 => prop::sample::select(words).prop_map(str::to_owned),
            1 => ".{0,6}",
        ]
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..5).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}
