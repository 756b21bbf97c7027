//! Whether a submission is taken in.

use crate::quota::{OverQuota, Quota, Usage};
use crate::{NewTask, Sha256, TaskId, Tenant, transition};

/// What a submission meets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Met<'a> {
    /// What its idempotency key made before, and of which request.
    pub by_key: Option<(Sha256, TaskId)>,
    /// Whose the task with its id is, if there is one.
    pub by_id: Option<&'a Tenant>,
    /// What its tenant has.
    pub has: Usage,
    /// Of how many different requirements its tenant has unfinished tasks, beside those that ask for nothing …
    pub lanes: u64,
    /// … and whether those of this one are among them, or it asks for nothing.
    pub in_lane: bool,
}

/// How much one tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of tasks that wait, and of bytes.
    pub quota: Quota,
    /// Of different requirements of unfinished tasks.
    pub lanes: u64,
}

/// What becomes of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is a new task.
    New,
    /// It was made before, and this is the task.
    Before(TaskId),
}

/// Why it is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its key was used for another request, or its id is that of another tenant's task.
    #[error("task {0} is in its way")]
    Conflict(TaskId),
    /// Its tenant has all that one may have.
    #[error(transparent)]
    OverQuota(#[from] OverQuota),
    /// One tenant may have no more different requirements than this.
    #[error(
        "unfinished tasks of this tenant ask for {0} different sets of labels, nodes and models already: wait until \
         some have ended, or ask for one of those"
    )]
    TooManyLanes(u64),
}

/// Decides. What was taken in before is told whatever its tenant has by now; after that the first of what is wrong counts, in
/// the order of [`Refusal`]. `bytes`: what the submission counts as.
///
/// A store that finds the task with the same id only when it writes the row asks again then; and before it refuses, it looks.
pub fn admit(new: &NewTask, bytes: i64, met: &Met<'_>, bounds: &Bounds) -> Result<Admission, Refusal> {
    if let Some(task) = transition::made_before(new, met.by_key, met.by_id).map_err(Refusal::Conflict)? {
        return Ok(Admission::Before(task));
    }
    bounds.quota.admit(met.has, Usage { waiting: 1, bytes })?;
    if !met.in_lane && met.lanes >= bounds.lanes {
        return Err(Refusal::TooManyLanes(bounds.lanes));
    }
    Ok(Admission::New)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::Idempotency;

    #[test]
    fn what_was_made_before_is_told_first_and_of_what_is_wrong_the_first() {
        let new = NewTask::new(RawValue::from_string("{}".to_owned()).unwrap());
        let request = Sha256::of(b"a");
        let keyed =
            NewTask { idempotency: Some(Idempotency { key: "k".to_owned(), request }), ..new.clone() };
        let (own, other) = (new.tenant.clone(), Tenant::new("other").unwrap());
        let before = TaskId::new();
        let bounds = Bounds { quota: Quota { waiting: 2, bytes: 100 }, lanes: 3 };
        let free = Met::default();
        let lanes = Met { lanes: 3, ..free };
        let bytes = Met { has: Usage { waiting: 1, bytes: 91 }, ..lanes };
        let full = Met { has: Usage { waiting: 2, bytes: 91 }, ..lanes };
        let cases = [
            (&new, free, Ok(Admission::New)),
            (&new, Met { lanes: 2, ..free }, Ok(Admission::New)),
            (&new, lanes, Err(Refusal::TooManyLanes(3))),
            (&new, Met { in_lane: true, ..lanes }, Ok(Admission::New)),
            (&new, bytes, Err(Refusal::OverQuota(OverQuota::Bytes(100)))),
            (&new, full, Err(Refusal::OverQuota(OverQuota::Waiting(2)))),
            (&new, Met { by_id: Some(&own), ..full }, Ok(Admission::Before(new.id))),
            (&new, Met { by_id: Some(&other), ..full }, Err(Refusal::Conflict(new.id))),
            // Without a key of its own it is not asked what the key made.
            (&new, Met { by_key: Some((request, before)), ..free }, Ok(Admission::New)),
            (&keyed, Met { by_key: Some((request, before)), ..full }, Ok(Admission::Before(before))),
            (
                &keyed,
                Met { by_key: Some((Sha256::of(b"b"), before)), ..full },
                Err(Refusal::Conflict(before)),
            ),
            (&keyed, Met { by_id: Some(&own), ..full }, Ok(Admission::Before(new.id))),
        ];
        for (n, (new, met, expected)) in cases.into_iter().enumerate() {
            assert_eq!(admit(new, 10, &met, &bounds), expected, "case {n}");
        }
    }
}
