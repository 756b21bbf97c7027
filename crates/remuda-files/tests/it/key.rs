//! Keys: what is let through, and what becomes of names that strangers chose.

use std::path::{Component, Path};

use proptest::prelude::*;
use remuda_files::{Error, FileKey};
use uuid::Uuid;

/// Any text, with a liking for what hurts.
fn hostile() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<String>(),
        "[a-zA-Z0-9._ -]{0,260}",
        "\\PC{0,100}",
        prop::sample::select(vec![
            "..", ".", "/", "\\", "\0", "\n", " ", "con", "NUL", "com1", "LPT¹", ".png", ":", "#1", "%2e%2e",
            "~", "\u{202e}", "猫", "e\u{301}", "\u{fffd}", "|", "<>", "?", "*", "\"", "AUX .txt", "-rf",
            "$HOME", "\u{85}",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// What every store needs of a key.
fn assert_safe(key: &FileKey) {
    let text = key.as_str();
    assert_eq!(&FileKey::parse(text).unwrap_or_else(|error| panic!("{error}")), key);
    assert!(
        Path::new(text).components().all(|component| matches!(component, Component::Normal(_))),
        "{text:?}"
    );
    assert!(!text.contains(['\\', ':', '<', '>', '"', '|', '?', '*', '#', '%', '\0']), "{text:?}");
    assert!(!text.chars().any(char::is_control), "{text:?}");
    for segment in text.split('/') {
        assert!((1..=200).contains(&segment.len()), "{text:?}");
        assert!(!segment.starts_with('.') && !segment.ends_with(['.', ' ']), "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_name_becomes_one_safe_segment(name in hostile(), attempt: u32, fence: u64, n: u32) {
        let task = Uuid::from_u128(7);
        let folder = FileKey::outputs_of_attempt(task, attempt, fence);
        let output = FileKey::output(task, attempt, fence, n, &name);
        let joined = folder.join_name(&name).expect("there is room");
        let before = format!("{folder}/");
        for key in [&output, &joined] {
            assert_safe(key);
            prop_assert_eq!(key.as_str().strip_suffix(key.name()), Some(before.as_str()));
        }
        let number = format!("{n:03}-");
        prop_assert!(output.name().starts_with(&number));
        prop_assert!(folder.as_str().starts_with(FileKey::outputs_of(task).as_str()));
        // What was made safe once stays as it is.
        prop_assert_eq!(folder.join_name(joined.name()).expect("there is room"), joined);
    }

    #[test]
    fn what_is_parsed_is_safe_and_unchanged(text in hostile()) {
        match FileKey::parse(&text) {
            Ok(key) => {
                assert_safe(&key);
                prop_assert_eq!(key.as_str(), &text);
                let json = serde_json::to_string(&key).expect("json");
                prop_assert_eq!(serde_json::from_str::<FileKey>(&json).expect("a key"), key);
            }
            Err(error) => {
                let bad_key = matches!(error, Error::BadKey { .. });
                prop_assert!(bad_key);
                prop_assert!(error.to_string().len() < 4000);
                serde_json::from_str::<FileKey>(&serde_json::to_string(&text).expect("json")).expect_err("the same rule");
            }
        }
    }
}

#[test]
fn names_stay_recognisable() {
    let folder = FileKey::parse("a").expect("a key");
    for (name, expected) in [
        ("ComfyUI_00001_.png", "ComfyUI_00001_.png"),
        ("größe 猫 (2).webp", "größe 猫 (2).webp"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        (".env", "_env"),
        ("", "file"),
        (" .. ", "file"),
        ("nul.txt", "_nul.txt"),
        ("con .png", "_con .png"),
        ("constant.png", "constant.png"),
        ("a#1", "a_1"),
    ] {
        assert_eq!(folder.join_name(name).expect("a key").name(), expected, "{name:?}");
    }
}

#[test]
fn long_names_keep_their_extension() {
    let key = FileKey::output(Uuid::nil(), 1, 2, 3, &format!("{}.safetensors", "猫".repeat(200)));
    assert!(key.name().starts_with("003-猫") && key.name().ends_with("猫.safetensors"), "{key}");
    assert!(key.name().len() > 195, "{key}");
    let cut_to_a_device = format!("con{}x.png", " ".repeat(300));
    let key = FileKey::parse("a").expect("a key").join_name(&cut_to_a_device).expect("a key");
    assert_eq!(key.name(), "_con.png");
}

#[test]
fn what_leads_elsewhere_is_refused() {
    for text in [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/./b",
        "a\\b",
        "C:/a",
        "a\0b",
        "a/.hidden",
        ".remuda-installation",
        "a/nul",
        "a/b. ",
        "a/b#1",
        "~/a?",
    ] {
        let error = FileKey::parse(text).expect_err(text);
        assert!(matches!(error, Error::BadKey { .. }), "{text}");
    }
    assert!(FileKey::parse(&"a".repeat(201)).is_err());
    assert!(FileKey::parse(&vec!["a"; 500].join("/")).is_err());
}
