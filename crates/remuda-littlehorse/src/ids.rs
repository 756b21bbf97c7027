//! The ids of prompts: the same for every delivery of the same work, here and in every other process.

use littlehorse::TaskKey;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The namespace of all ids that are made here: UUIDv5 of `https://littlehorse.io/execute-comfyui-workflow` in the
/// namespace of URLs. It never changes: a worker of a later version must find the prompts of an earlier one.
pub const NAMESPACE: Uuid = Uuid::from_u128(0x5215_0f87_d295_5a43_a824_acdf_783b_48c7);

/// The tenant of a server that nobody named one to.
const DEFAULT_TENANT: &str = "default";

/// How many attempts before the present one are looked for by their second ids.
const EARLIER: i32 = 8;

/// The ids of a piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    /// Under which it goes to ComfyUI: of tenant, task and workflow. The workflow is in it because a workflow run that was
    /// deleted and begun again under its old id must not get the old pictures.
    pub(crate) first: Uuid,
    /// Under which it goes there when a prompt of the first id ended badly: with the attempt in it.
    pub(crate) second: Uuid,
    /// The second ids of attempts before this one; the first attempt never has one.
    pub(crate) earlier: Vec<(i32, Uuid)>,
}

/// Which work it is, as text. With other options it is other work, too.
pub(crate) fn work(tenant: Option<&str>, key: &TaskKey, workflow: &str, options: Option<&str>) -> String {
    let tenant = tenant.filter(|tenant| !tenant.is_empty()).unwrap_or(DEFAULT_TENANT);
    let mut digest = Sha256::new_with_prefix(workflow.as_bytes());
    if let Some(options) = options {
        // No text of a workflow goes on after its last bracket: the border is where it is.
        digest.update(options.as_bytes());
    }
    let hash = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    // Neither tenants nor ids have a line break in them.
    format!("{tenant}\n{key}\n{hash}")
}

/// The ids of an attempt of this work.
pub(crate) fn ids(work: &str, attempt: i32) -> Ids {
    let second = |attempt: i32| Uuid::new_v5(&NAMESPACE, format!("{work}\n{attempt}").as_bytes());
    let earlier = attempt.saturating_sub(EARLIER).max(1)..attempt;
    Ids {
        first: Uuid::new_v5(&NAMESPACE, work.as_bytes()),
        second: second(attempt),
        earlier: earlier.map(|attempt| (attempt, second(attempt))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use littlehorse::proto::{TaskRunId, WfRunId};

    use super::*;

    fn ids(tenant: Option<&str>, key: &TaskKey, workflow: &str, options: Option<&str>, attempt: i32) -> Ids {
        super::ids(&work(tenant, key, workflow, options), attempt)
    }

    fn key(run: &str, guid: &str) -> TaskKey {
        let wf_run_id = Some(WfRunId { id: run.to_owned(), parent_wf_run_id: None });
        TaskKey::of(&TaskRunId { wf_run_id, task_guid: guid.to_owned() })
    }

    #[test]
    fn the_namespace_is_what_it_says() {
        let name = b"https://littlehorse.io/execute-comfyui-workflow";
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::NAMESPACE_URL, name));
    }

    /// These ids are in the histories of ComfyUIs out there: they must not change.
    #[test]
    fn ids_stay_what_they_are() {
        let ids = ids(None, &key("order-7", "0-1"), "{}", None, 0);
        assert_eq!(ids.first.to_string(), "766db61a-da15-5aa5-bca3-9d9fe2c46463");
        assert_eq!(ids.second.to_string(), "c2183d58-c5ed-5520-8049-6543ce59891f");
    }

    #[test]
    fn the_second_ids_of_attempts_before_are_known_to_the_next() {
        let of = |attempt| ids(None, &key("order-7", "0-1"), "{}", None, attempt);
        assert_eq!((of(0).earlier, of(1).earlier), (vec![], vec![]));
        assert_eq!(of(3).earlier, [(1, of(1).second), (2, of(2).second)]);
        assert_eq!(of(1000).earlier.len(), 8);
    }

    #[test]
    fn everything_that_makes_another_piece_of_work_makes_another_id() {
        let base = ids(None, &key("a", "0-1"), "{}", None, 0);
        assert_eq!(base, ids(Some("default"), &key("a", "0-1"), "{}", None, 0));
        for other in [
            ids(Some("acme"), &key("a", "0-1"), "{}", None, 0),
            ids(None, &key("b", "0-1"), "{}", None, 0),
            ids(None, &key("a", "0-2"), "{}", None, 0),
            ids(None, &key("a", "0-1"), "{ }", None, 0),
            ids(None, &key("a", "0-1"), "{}", Some("{}"), 0),
            ids(None, &key("a", "0-1"), "{}", Some(r#"{"timeout_s":1}"#), 0),
        ] {
            assert_ne!(base.first, other.first);
            assert_ne!(base.second, other.second);
        }
        let later = ids(None, &key("a", "0-1"), "{}", None, 1);
        assert_eq!(base.first, later.first, "another attempt is the same work");
        assert_ne!(base.second, later.second);
        assert_ne!(base.first, base.second);
    }
}
