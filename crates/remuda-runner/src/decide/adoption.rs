//! What to do with an attempt that was under way when its holder went.

use remuda_core::{Failure, FailureClass, Phase};

/// Whether the ComfyUI that answers is the one that the attempt was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sameness {
    /// Its identity file says so.
    Same,
    /// Its identity file says otherwise, or is gone.
    Other,
    /// Nothing was known of the former one.
    Unknown,
}

impl Sameness {
    /// Compares what was known with what was found.
    pub(crate) fn of(known: Option<&str>, found: &str) -> Self {
        match known {
            None => Self::Unknown,
            Some(known) if known == found => Self::Same,
            Some(_) => Self::Other,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// It is there: follow it to its end, or collect what it left.
    Follow,
    /// It surely never came: send it, under the same prompt id.
    Send,
    /// It is gone.
    Lost(Box<Failure>),
}

/// Decides after two looks. `there`: whether the prompt is in ComfyUI's queue or history.
pub(crate) fn decide(phase: Phase, same: Sameness, there: bool) -> Step {
    let lost = |class, message: &str| Step::Lost(Box::new(Failure::new(class, message)));
    match (there, same, phase) {
        (true, _, _) => Step::Follow,
        (false, Sameness::Other, _) => {
            lost(FailureClass::Crash, "another ComfyUI answers at its worker's address by now")
        }
        (false, Sameness::Unknown, _) => lost(
            FailureClass::Lost,
            "ComfyUI does not know it, and whether it is the ComfyUI that was asked cannot be shown",
        ),
        // It was seen there once, so its absence means that the ComfyUI forgot it.
        (false, Sameness::Same, Phase::Rendering | Phase::Collecting) => {
            lost(FailureClass::Crash, "ComfyUI was restarted and forgot it")
        }
        (false, Sameness::Same, Phase::Placing | Phase::Ahead | Phase::Submitted) => Step::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_surely_never_came_is_sent_again() {
        let phases = [Phase::Placing, Phase::Ahead, Phase::Submitted, Phase::Rendering, Phase::Collecting];
        for phase in phases {
            for same in [Sameness::Same, Sameness::Other, Sameness::Unknown] {
                assert_eq!(decide(phase, same, true), Step::Follow);
                let sent = decide(phase, same, false) == Step::Send;
                assert_eq!(sent, same == Sameness::Same && phase < Phase::Rendering, "{phase} {same:?}");
            }
        }
    }

    #[test]
    fn a_loss_costs_the_task_no_retry() {
        for same in [Sameness::Same, Sameness::Other, Sameness::Unknown] {
            let Step::Lost(failure) = decide(Phase::Rendering, same, false) else { panic!() };
            assert!(failure.class.is_loss());
        }
    }

    #[test]
    fn identities_are_compared() {
        assert_eq!(Sameness::of(Some("a"), "a"), Sameness::Same);
        assert_eq!(Sameness::of(Some("a"), "b"), Sameness::Other);
        assert_eq!(Sameness::of(None, "b"), Sameness::Unknown);
    }
}
