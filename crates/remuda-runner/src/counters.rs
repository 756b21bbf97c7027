//! What a herd counts, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the start of the process.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: Count,)*
        }

        /// The counts at one moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct CountersSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The counts now.
            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Tasks that were claimed.
    claimed,
    /// Attempts that ended with a result.
    completed,
    /// Attempts that ended badly.
    failed,
    /// Attempts that were stopped because their task was cancelled.
    cancelled,
    /// Tasks that went back before ComfyUI began.
    given_back,
    /// Attempts that were taken over from before a restart or from another process.
    adoptions,
    /// Adopted attempts that ComfyUI surely did not know and that were sent again.
    resubmissions,
    /// Prompts of ours without a lease that were found in a ComfyUI's queue and stopped. One that had begun is a render
    /// for nothing.
    late_prompts_stopped,
    /// Late prompts that had begun: GPU work that was done twice or for nothing.
    repeats,
    /// Reports that changed nothing because the lease was somebody else's by then.
    fenced_reports,
    /// Leases that did not come back from a beat.
    leases_lost,
    /// Beats that failed.
    beats_failed,
    /// Files that were stored.
    files_delivered,
    /// Their bytes.
    bytes_delivered,
}

/// One count.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
