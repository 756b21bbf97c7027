//! How much of the store one tenant may have.
//!
//! Stores keep a tenant's [`Usage`] as counters, which change with its tasks and in the same transactions, so that a submission
//! is admitted or refused without anything being counted.

use crate::{JsonText, TaskInput, TaskResult};

/// The files of one result count as no more than this: 64 TiB. Their sizes are what a worker says.
const MOST_FILES: i64 = 1 << 46;

/// What one tenant has in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its tasks that wait, for whatever reason.
    pub waiting: i64,
    /// The bytes of its tasks and assets: what [`TaskInput::stored_bytes`] and [`TaskResult::stored_bytes`] say of every task
    /// that is kept, and every asset once, under however many names.
    pub bytes: i64,
}

/// How much one tenant may have at once. 0 is any amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Tasks that wait.
    pub waiting: u64,
    /// Bytes of tasks and assets.
    pub bytes: u64,
}

/// What there would be too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverQuota {
    /// Tasks that wait.
    #[error("{0} tasks of this tenant wait already: wait until some have begun, or cancel some")]
    Waiting(u64),
    /// Bytes.
    #[error(
        "the tasks and assets of this tenant would take more than {0} bytes: delete assets that are not needed, \
         or wait until old tasks are removed"
    )]
    Bytes(u64),
}

impl Quota {
    /// Neither is limited.
    pub const NONE: Self = Self { waiting: 0, bytes: 0 };

    /// Whether anything is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether a tenant that has this much may have that much more. What is there already stays, even when it is too much.
    ///
    /// ```
    /// use remuda_core::quota::{OverQuota, Quota, Usage};
    /// let quota = Quota { waiting: 2, bytes: 0 };
    /// let one = Usage { waiting: 1, bytes: 1 << 40 };
    /// assert_eq!(quota.admit(one, one), Ok(()));
    /// assert_eq!(quota.admit(Usage { waiting: 2, bytes: 0 }, one), Err(OverQuota::Waiting(2)));
    /// ```
    pub fn admit(&self, has: Usage, more: Usage) -> Result<(), OverQuota> {
        if more.waiting > 0 && self.waiting > 0 && over(has.waiting, more.waiting, self.waiting) {
            return Err(OverQuota::Waiting(self.waiting));
        }
        if more.bytes > 0 && self.bytes > 0 && over(has.bytes, more.bytes, self.bytes) {
            return Err(OverQuota::Bytes(self.bytes));
        }
        Ok(())
    }

    /// How many bytes a tenant may still bring.
    pub fn room(&self, has: Usage) -> u64 {
        match self.bytes {
            0 => u64::MAX,
            most => most.saturating_sub(u64::try_from(has.bytes).unwrap_or(0)),
        }
    }

    /// Whether a tenant that has this much may also have that much more, whatever others add in the meantime.
    pub fn is_far_from(&self, has: Usage, room: Usage) -> bool {
        let far = |has: i64, room: i64, most: u64| most == 0 || !over(has, room, most);
        far(has.waiting, room.waiting, self.waiting) && far(has.bytes, room.bytes, self.bytes)
    }
}

fn over(has: i64, more: i64, most: u64) -> bool {
    u64::try_from(has.saturating_add(more)).is_ok_and(|sum| sum > most)
}

fn bytes(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

impl TaskInput {
    /// What it counts as: its graph, what is kept of its `extra_data`, and the submitter's own `metadata`.
    pub fn stored_bytes(&self, metadata: Option<&JsonText>) -> i64 {
        let extra = self.extra.as_deref();
        let data = extra.and_then(|extra| extra.extra_data.as_deref()).map_or(0, |data| bytes(data.get()));
        let sealed = extra.and_then(|extra| extra.envelope.as_ref()).map_or(0, |sealed| sealed.len() as i64);
        bytes(self.workflow.get()) + data + sealed + metadata.map_or(0, |metadata| bytes(metadata.get()))
    }
}

impl TaskResult {
    /// What it counts as: what the nodes reported, and its files.
    pub fn stored_bytes(&self) -> i64 {
        let files = self.files.iter().fold(0_i64, |sum, file| sum.saturating_add(file.size.max(0)));
        let errors = self.node_errors.as_ref().map_or(0, |errors| bytes(errors.get()));
        bytes(self.outputs.get()) + errors + files.min(MOST_FILES)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::{NewTask, OutputFile, PromptExtra, Sha256};

    fn usage(waiting: i64, bytes: i64) -> Usage {
        Usage { waiting, bytes }
    }

    #[test]
    fn what_is_asked_for_counts_and_what_is_there_stays() {
        let quota = Quota { waiting: 3, bytes: 100 };
        let admit = |has, more| quota.admit(has, more);
        assert_eq!(admit(usage(2, 60), usage(1, 40)), Ok(()));
        assert_eq!(admit(usage(3, 60), usage(1, 40)), Err(OverQuota::Waiting(3)));
        assert_eq!(admit(usage(2, 61), usage(1, 40)), Err(OverQuota::Bytes(100)));
        // Counters that concurrent transactions keep may be seen below zero for a moment.
        assert_eq!(admit(usage(-1, -1), usage(1, 100)), Ok(()));
        // A file takes no place in the queue, and nothing takes no room.
        assert_eq!(admit(usage(9, 60), usage(0, 40)), Ok(()));
        assert_eq!(admit(usage(9, 600), usage(0, 0)), Ok(()));
        assert_eq!(admit(usage(0, i64::MAX), usage(1, 1)), Err(OverQuota::Bytes(100)));
        assert_eq!(Quota::NONE.admit(usage(i64::MAX, i64::MAX), usage(1, 1)), Ok(()));
        assert_eq!((quota.room(usage(9, 60)), quota.room(usage(0, 101))), (40, 0));
        assert_eq!(Quota::NONE.room(usage(0, 101)), u64::MAX);
        assert!(
            quota.is_far_from(usage(1, 50), usage(2, 50))
                && Quota::NONE.is_far_from(usage(9, 9), usage(9, 9))
        );
        assert!(
            !quota.is_far_from(usage(1, 50), usage(3, 50)) && !quota.is_far_from(usage(1, 50), usage(2, 51))
        );
    }

    #[test]
    fn a_task_counts_as_its_texts_and_files() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let mut input = NewTask::new(raw(r#"{"1":{}}"#)).input;
        assert_eq!(input.stored_bytes(None), 8);
        let extra_data = Some(raw(r#"{"é":1}"#));
        let extra = PromptExtra { extra_data, envelope: Some(vec![0; 5]), ..PromptExtra::default() };
        input.extra = Some(Box::new(extra));
        assert_eq!(input.stored_bytes(Some(&serde_json::json!([17]).into())), 8 + 8 + 5 + 4);
        let file = |size| OutputFile {
            n: 0,
            key: String::new(),
            filename: String::new(),
            subfolder: String::new(),
            node_id: String::new(),
            output: String::new(),
            file_type: String::new(),
            mime: String::new(),
            size,
            sha256: Sha256::of(b""),
        };
        let outputs = || JsonText::from(serde_json::json!({}));
        let files = vec![file(1000), file(-7)];
        let result =
            TaskResult { files, outputs: outputs(), node_errors: Some(outputs()), execution_ms: None };
        assert_eq!(result.stored_bytes(), 1004);
        let result = TaskResult { files: vec![file(i64::MAX), file(i64::MAX)], ..result };
        assert_eq!(result.stored_bytes(), (1 << 46) + 4);
    }
}
