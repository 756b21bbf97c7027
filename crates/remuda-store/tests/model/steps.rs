//! What can happen, and how often.

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use remuda_core::{FailureClass, Phase};

/// Processes that drive workers. The first one is the process that opened the store.
pub(crate) const OWNERS: usize = 3;
/// Workers that they compete for.
pub(crate) const WORKERS: usize = 3;

/// Numbers name things modulo how many there are, so that any shorter sequence makes sense, too.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Submit {
        tenant: usize,
        priority: i64,
        lane: usize,
        delay: Option<u64>,
        deadline: Option<u64>,
        retries: i32,
    },
    SubmitAgain {
        task: usize,
    },
    Claim {
        by: By,
        worker: usize,
        ahead: bool,
    },
    Beat {
        owner: usize,
        phase: Phase,
    },
    End {
        lease: usize,
        how: How,
    },
    GiveBack {
        lease: usize,
        learnt: bool,
    },
    Adopt {
        by: By,
        worker: usize,
        known: bool,
    },
    Acquire {
        owner: usize,
        worker: usize,
    },
    Release {
        owner: usize,
        worker: usize,
    },
    Cancel {
        task: usize,
    },
    Hasten {
        task: usize,
    },
    Tidy,
    Forget {
        task: usize,
    },
    Forward {
        seconds: u64,
    },
    Back {
        seconds: u64,
    },
    Restart,
}

/// Which process asks for something for a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    /// The one that holds it.
    Holder,
    /// This one, with what it believes to hold.
    Owner(usize),
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    Completed,
    /// With something done before, or nothing.
    Failed(FailureClass, bool),
    Cancelled,
}

/// How many tasks there are decides what can happen to them; nothing else is needed to draw steps.
#[derive(Debug)]
pub(crate) struct Steps;

impl ReferenceStateMachine for Steps {
    type State = usize;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<usize> {
        Just(0).boxed()
    }

    fn transitions(tasks: &usize) -> BoxedStrategy<Step> {
        let submit = (
            0..2_usize,
            prop_oneof![Just(5), 0..10_i64],
            0..4_usize,
            proptest::option::weighted(0.2, 1..90_u64),
            proptest::option::weighted(0.2, 1..200_u64),
            0..3_i32,
        );
        let submit = submit.prop_map(|(tenant, priority, lane, delay, deadline, retries)| Step::Submit {
            tenant,
            priority,
            lane,
            delay,
            deadline,
            retries,
        });
        if *tasks == 0 {
            return submit.boxed();
        }
        let how = prop_oneof![
            4 => Just(How::Completed),
            6 => (proptest::sample::select(FailureClass::ALL.to_vec()), any::<bool>())
                .prop_map(|(class, partial)| How::Failed(class, partial)),
            1 => Just(How::Cancelled),
        ];
        let phases = [Phase::Placing, Phase::Ahead, Phase::Submitted, Phase::Rendering, Phase::Collecting];
        let (owner, worker) = (|| 0..OWNERS, || 0..WORKERS);
        let by = || prop_oneof![4 => Just(By::Holder), 1 => owner().prop_map(By::Owner)];
        // Mostly what is new, sometimes what is long over.
        let recent = || prop_oneof![3 => 0..3_usize, 1 => 0..40_usize];
        prop_oneof![
            // Few enough that most of them come to an end.
            if *tasks < 14 { 8 } else { 1 } => submit,
            1 => recent().prop_map(|task| Step::SubmitAgain { task }),
            16 => (by(), worker(), proptest::bool::weighted(0.2))
                .prop_map(|(by, worker, ahead)| Step::Claim { by, worker, ahead }),
            5 => (owner(), proptest::sample::select(phases.to_vec()))
                .prop_map(|(owner, phase)| Step::Beat { owner, phase }),
            10 => (recent(), how).prop_map(|(lease, how)| Step::End { lease, how }),
            4 => (recent(), proptest::bool::weighted(0.3))
                .prop_map(|(lease, learnt)| Step::GiveBack { lease, learnt }),
            5 => (by(), worker(), any::<bool>())
                .prop_map(|(by, worker, known)| Step::Adopt { by, worker, known }),
            5 => (owner(), worker()).prop_map(|(owner, worker)| Step::Acquire { owner, worker }),
            1 => (owner(), worker()).prop_map(|(owner, worker)| Step::Release { owner, worker }),
            3 => recent().prop_map(|task| Step::Cancel { task }),
            2 => recent().prop_map(|task| Step::Hasten { task }),
            6 => Just(Step::Tidy),
            1 => recent().prop_map(|task| Step::Forget { task }),
            4 => (0..60_u64).prop_map(|seconds| Step::Forward { seconds }),
            2 => (0..60_u64).prop_map(|seconds| Step::Back { seconds }),
            1 => Just(Step::Restart),
        ]
        .boxed()
    }

    fn apply(tasks: usize, step: &Step) -> usize {
        tasks + usize::from(matches!(step, Step::Submit { .. }))
    }
}
