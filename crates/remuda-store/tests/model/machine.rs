//! The state machine test over a backend.

use std::marker::PhantomData;

use proptest::test_runner::Config;
use proptest_state_machine::StateMachineTest;
use remuda_store::conformance::Fixture;

use super::steps::{Step, Steps};
use super::world::World;

/// A backend.
pub(crate) trait Place: 'static {
    /// A fresh, empty place.
    fn fixture() -> impl Future<Output = impl Fixture>;
}

/// The test, for one backend.
pub(crate) struct Life<P>(PhantomData<P>);

impl<P: Place> StateMachineTest for Life<P> {
    type SystemUnderTest = (tokio::runtime::Runtime, World);
    type Reference = Steps;

    fn init_test(_: &usize) -> Self::SystemUnderTest {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let world = runtime.block_on(async { World::new(P::fixture().await).await });
        (runtime, world)
    }

    fn apply((runtime, mut world): Self::SystemUnderTest, _: &usize, step: Step) -> Self::SystemUnderTest {
        runtime.block_on(world.apply(step));
        (runtime, world)
    }

    fn check_invariants((runtime, world): &Self::SystemUnderTest, _: &usize) {
        runtime.block_on(world.check());
    }

    fn teardown((runtime, world): Self::SystemUnderTest, _: usize) {
        runtime.block_on(world.finish());
    }
}

/// This many lives, unless `PROPTEST_CASES` says otherwise.
pub(crate) fn config(cases: u32) -> Config {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = Config::default();
    let cases = if asked { default.cases } else { cases };
    // A failure is shown as the steps that lead to it; there is no file of old ones beside the tests.
    Config { cases, failure_persistence: None, max_shrink_iters: 300, ..default }
}
