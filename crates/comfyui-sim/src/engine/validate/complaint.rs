//! The words of a refusal, and the places in ComfyUI's sources that its exceptions name.

use crate::config::Profile;
use crate::engine::{Exception, Frame};
use crate::json::{Dict, Json, dict, list};
use crate::nodes::FilledInput;

/// Longer lists of choices are not repeated in an error.
const SHOWN_CHOICES: usize = 20;

pub(super) fn frame(line: u32, function: &str) -> Frame {
    Frame::comfy("execution.py", line, function)
}

/// The way from the validation into the own check of a class.
pub(super) fn own_check_frames(line: u32, newer: bool) -> Vec<Frame> {
    let mut frames = vec![
        frame(965, "validate_inputs"),
        frame(line, "_async_map_node_over_list"),
        frame(291, "process_inputs"),
    ];
    if newer {
        frames.push(Frame::comfy("comfy_api/internal/__init__.py", 149, "wrapped_func"));
    }
    frames
}

pub(super) fn raised(kind: &str, message: impl Into<String>, line: u32) -> Exception {
    Exception::new(kind, message).raised_in([frame(line, "validate_inputs")])
}

pub(super) fn complaint(kind: &str, message: &str, details: String, extra_info: Json) -> Json {
    dict([
        ("type", kind.into()),
        ("message", message.into()),
        ("details", details.into()),
        ("extra_info", extra_info),
    ])
}

/// The input that an error is about.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) name: &'a str,
    pub(super) config: &'a FilledInput,
}

impl Place<'_> {
    pub(super) fn info<const N: usize>(&self, more: [(&str, Json); N]) -> Json {
        self.info_with(self.config.config(), more)
    }

    fn info_with<const N: usize>(&self, config: Json, more: [(&str, Json); N]) -> Json {
        let mut info = Dict::new();
        info.insert("input_name".into(), self.name.into());
        info.insert("input_config".into(), config);
        info.extend(more.map(|(key, value)| (key.to_owned(), value)));
        Json::Dict(info)
    }

    pub(super) fn not_converted(&self, value: &Json, message: &str) -> Json {
        complaint(
            "invalid_input_type",
            &format!(
                "Failed to convert an input value to a {} value",
                self.config.type_name().unwrap_or_default()
            ),
            format!("{}, {}, {message}", self.name, value.str()),
            self.info([("received_value", value.clone()), ("exception_message", message.into())]),
        )
    }

    /// Limits and choices.
    pub(super) fn check_value(&self, value: &Json, profile: Profile) -> Option<Json> {
        use std::cmp::Ordering::{Greater, Less};
        let limits = [
            ("min", Less, "value_smaller_than_min", "smaller than min"),
            ("max", Greater, "value_bigger_than_max", "bigger than max"),
        ];
        for (option, wrong, kind, words) in limits {
            if let Some(limit) = self.config.options.get(option)
                && value.compare_numbers(limit) == Some(wrong)
            {
                return Some(complaint(
                    kind,
                    &format!("Value {} {words} of {}", value.str(), limit.str()),
                    self.name.to_owned(),
                    self.info([("received_value", value.clone())]),
                ));
            }
        }
        // Only 0.7.0 looks into the newer notation of choices.
        if self.config.type_name().is_some() && profile < Profile::V0_7_0 {
            return None;
        }
        let choices = self.config.choices()?;
        if choices.iter().any(|choice| choice.python_eq(value)) {
            return None;
        }
        let (shown, config) = if choices.len() > SHOWN_CHOICES {
            (format!("(list of length {})", choices.len()), Json::Null)
        } else {
            (list(choices.iter().cloned()).str(), self.config.config())
        };
        Some(complaint(
            "value_not_in_list",
            "Value not in list",
            format!("{}: '{}' not in {shown}", self.name, value.str()),
            self.info_with(config, [("received_value", value.clone())]),
        ))
    }
}
