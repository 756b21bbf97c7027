//! Which claim a runner should have open at this moment.

use crate::runner::Stage;

/// The most attempts that are done at ComfyUI and still on their way to the file store or the source. Beyond it the
/// worker waits: what it left would pile up on its disk.
const MOST_DELIVERING: usize = 8;

/// A claim to have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// None.
    Nothing,
    /// For a worker that has nothing to render.
    Idle,
    /// One to queue behind what renders.
    Ahead,
}

/// Decides from the attempts under way. `may`: worker and source are well.
pub(crate) fn wish(may: bool, stages: impl IntoIterator<Item = Stage>) -> Wish {
    let (mut at_gpu, mut rendering, mut delivering) = (0_usize, 0_usize, 0_usize);
    for stage in stages {
        match stage {
            Stage::Preparing | Stage::Sent => at_gpu += 1,
            Stage::Rendering => {
                at_gpu += 1;
                rendering += 1;
            }
            Stage::Delivering => delivering += 1,
        }
    }
    match (at_gpu, rendering) {
        _ if !may || delivering >= MOST_DELIVERING => Wish::Nothing,
        (0, _) => Wish::Idle,
        (1, 1) => Wish::Ahead,
        _ => Wish::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stage::{Delivering, Preparing, Rendering, Sent};

    #[test]
    fn one_renders_one_waits_and_the_rest_is_delivered() {
        let check = |stages: &[Stage], expected| assert_eq!(wish(true, stages.iter().copied()), expected);
        check(&[], Wish::Idle);
        check(&[Delivering, Delivering], Wish::Idle);
        check(&[Preparing], Wish::Nothing);
        check(&[Sent], Wish::Nothing);
        check(&[Rendering, Delivering], Wish::Ahead);
        check(&[Rendering, Preparing], Wish::Nothing);
        check(&[Rendering, Sent], Wish::Nothing);
        check(&[Delivering; 8], Wish::Nothing);
        assert_eq!(wish(false, []), Wish::Nothing);
    }
}
