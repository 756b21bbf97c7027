//! What is thought of a worker, from what happened to it.

use std::collections::VecDeque;
use std::time::Duration;

use remuda_core::Health;
use tokio::time::Instant;

/// When a worker rests.
#[derive(Debug, Clone, PartialEq)]
pub struct QuarantineRules {
    /// This many crashes or losses …
    pub losses: usize,
    /// … within this time send it to rest.
    pub within: Duration,
    /// The first rest; every further one is twice as long, until a task completes.
    pub rest: Duration,
    /// The longest rest.
    pub longest: Duration,
}

impl Default for QuarantineRules {
    fn default() -> Self {
        Self {
            losses: 3,
            within: Duration::from_secs(600),
            rest: Duration::from_secs(30),
            longest: Duration::from_secs(1800),
        }
    }
}

/// Whether the worker answers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// Never asked.
    Unknown,
    Answers,
    /// Its socket closed: it gets nothing until it has answered again.
    Doubtful,
    Silent(String),
}

/// The state of one worker. Takes facts, gives a judgement.
#[derive(Debug)]
pub(crate) struct Condition {
    rules: QuarantineRules,
    reach: Reach,
    /// Why its worker thread is thought to be dead.
    zombie: Option<String>,
    losses: VecDeque<Instant>,
    /// What the last of them was.
    last_loss: String,
    rests: u32,
    resting_until: Option<Instant>,
    /// Why it was put aside for an answer that was larger than it may be, and until when.
    aside: Option<(Instant, String)>,
    /// Prompts of ours without a lease that do not leave its queue.
    late: usize,
    /// Another worker of this process is the same ComfyUI.
    twin: Option<String>,
    draining: bool,
}

impl Condition {
    pub(crate) fn new(rules: QuarantineRules) -> Self {
        Self {
            rules,
            reach: Reach::Unknown,
            zombie: None,
            losses: VecDeque::new(),
            last_loss: String::new(),
            rests: 0,
            resting_until: None,
            aside: None,
            late: 0,
            twin: None,
            draining: false,
        }
    }

    /// It was looked over from the ground up, or answered a question.
    pub(crate) fn answered(&mut self) {
        self.reach = Reach::Answers;
    }

    /// Its socket closed.
    pub(crate) fn hung_up(&mut self) {
        if self.reach == Reach::Answers {
            self.reach = Reach::Doubtful;
        }
    }

    /// It did not answer.
    pub(crate) fn silent(&mut self, why: String) {
        self.reach = Reach::Silent(why);
    }

    /// It takes prompts and runs none.
    pub(crate) fn died(&mut self, why: String) {
        self.zombie = Some(why);
    }

    /// It was restarted, or runs prompts all the same.
    pub(crate) fn revived(&mut self) {
        self.zombie = None;
    }

    /// How many prompts of ours without a lease are in its queue.
    pub(crate) fn late(&mut self, prompts: usize) {
        self.late = prompts;
    }

    /// Another name for a ComfyUI that this process drives already.
    pub(crate) fn twin_of(&mut self, other: Option<String>) {
        self.twin = other;
    }

    /// A task crashed or was lost here.
    pub(crate) fn lost_one(&mut self, now: Instant, why: &str) {
        why.clone_into(&mut self.last_loss);
        self.losses.push_back(now);
        while self.losses.front().is_some_and(|first| now - *first > self.rules.within) {
            self.losses.pop_front();
        }
        if self.losses.len() >= self.rules.losses {
            self.losses.clear();
            self.resting_until = Some(now + self.next_rest());
        }
    }

    /// The next rest; each is twice as long as the one before.
    fn next_rest(&mut self) -> Duration {
        let rest = self.rules.rest.saturating_mul(1 << self.rests.min(16)).min(self.rules.longest);
        self.rests += 1;
        rest
    }

    /// It answered with more than it may. Until when it is left alone.
    pub(crate) fn excess(&mut self, now: Instant, why: String) -> Instant {
        let until = match &self.aside {
            // Several answers of the same kind are one reason.
            Some((until, _)) if *until > now => *until,
            _ => now + self.next_rest(),
        };
        self.aside = Some((until, why));
        until
    }

    /// Whether it is put aside.
    pub(crate) fn is_aside(&self, now: Instant) -> bool {
        self.aside.as_ref().is_some_and(|(until, _)| *until > now)
    }

    /// A task completed here.
    pub(crate) fn completed(&mut self) {
        self.losses.clear();
        self.rests = 0;
    }

    /// It takes no more work.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) fn is_zombie(&self) -> bool {
        self.zombie.is_some()
    }

    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.reach, Reach::Silent(_))
    }

    /// When it should be looked at again without anything having happened.
    pub(crate) fn wakes(&self, now: Instant) -> Option<Instant> {
        let aside = self.aside.as_ref().map(|(until, _)| *until);
        [self.resting_until, aside].into_iter().flatten().filter(|until| *until > now).min()
    }

    /// Whether it may get tasks, and the judgement with its reason. `busy`: it has something to render.
    pub(crate) fn judge(&self, now: Instant, busy: bool) -> (Health, Option<String>) {
        if self.draining {
            return (Health::Draining, None);
        }
        if let Some((until, why)) = self.aside.as_ref().filter(|(until, _)| *until > now) {
            let reason = format!("{why}; it is asked again in {} s", (*until - now).as_secs() + 1);
            return (Health::Quarantined, Some(reason));
        }
        match &self.reach {
            Reach::Unknown => return (Health::Starting, None),
            Reach::Silent(why) => return (Health::Unreachable, Some(why.clone())),
            Reach::Doubtful => return (Health::Unreachable, Some("its websocket closed".to_owned())),
            Reach::Answers => {}
        }
        if let Some(other) = &self.twin {
            let reason = format!("it is the same ComfyUI as worker {other}; remove one of the two");
            return (Health::Quarantined, Some(reason));
        }
        if let Some(why) = &self.zombie {
            return (Health::Zombie, Some(why.clone()));
        }
        if let Some(until) = self.resting_until.filter(|until| *until > now) {
            let reason = format!(
                "{} tasks crashed or were lost here within {} minutes; it gets the next in {} s; the last one: {}",
                self.rules.losses,
                self.rules.within.as_secs() / 60,
                (until - now).as_secs() + 1,
                self.last_loss
            );
            return (Health::Quarantined, Some(reason));
        }
        match (self.late, busy) {
            (0, false) => (Health::Healthy, None),
            (0, true) => (Health::Busy, None),
            (late, _) => {
                (Health::Busy, Some(format!("waits for {late} prompts that were stopped and still run")))
            }
        }
    }

    /// Whether it may get tasks.
    pub(crate) fn may_claim(&self, now: Instant) -> bool {
        self.late == 0 && self.judge(now, false).0.is_usable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition() -> Condition {
        let mut condition = Condition::new(QuarantineRules::default());
        condition.answered();
        condition
    }

    fn health(condition: &Condition, now: Instant) -> Health {
        condition.judge(now, false).0
    }

    #[test]
    fn a_closed_socket_stops_it_at_once_and_an_answer_brings_it_back() {
        let now = Instant::now();
        let mut condition = Condition::new(QuarantineRules::default());
        assert_eq!(health(&condition, now), Health::Starting);
        condition.hung_up();
        assert_eq!(health(&condition, now), Health::Starting);
        condition.answered();
        assert!(condition.may_claim(now));
        assert_eq!(condition.judge(now, true).0, Health::Busy);
        condition.hung_up();
        assert!(!condition.may_claim(now));
        condition.silent("connection refused".into());
        assert_eq!(condition.judge(now, true), (Health::Unreachable, Some("connection refused".into())));
        condition.answered();
        assert!(condition.may_claim(now));
    }

    #[test]
    fn three_losses_in_ten_minutes_are_a_growing_rest() {
        let mut now = Instant::now();
        let mut condition = condition();
        for _ in 0..2 {
            condition.lost_one(now, "it broke");
        }
        now += Duration::from_secs(601);
        condition.lost_one(now, "it broke");
        assert_eq!(health(&condition, now), Health::Healthy, "the first two are too long ago");
        let mut rest = |condition: &mut Condition| {
            for _ in 0..3 {
                condition.lost_one(now, "it broke");
            }
            let until = condition.wakes(now).expect("it rests");
            assert_eq!(health(condition, now), Health::Quarantined);
            let rest = until - now;
            now = until;
            assert!(condition.may_claim(now));
            rest.as_secs()
        };
        assert_eq!(rest(&mut condition), 30);
        assert_eq!(rest(&mut condition), 60);
        condition.completed();
        assert_eq!(rest(&mut condition), 30);
        for _ in 0..10 {
            rest(&mut condition);
        }
        assert_eq!(rest(&mut condition), 1800);
    }

    #[test]
    fn an_answer_that_is_too_large_puts_it_aside_for_longer_each_time() {
        let mut now = Instant::now();
        let mut condition = Condition::new(QuarantineRules::default());
        for rest in [30, 60, 120] {
            let until = condition.excess(now, "the answer is too large".into());
            assert_eq!((until - now).as_secs(), rest);
            assert_eq!(condition.excess(now + Duration::from_secs(1), "again".into()), until, "once");
            let (health, reason) = condition.judge(now, false);
            assert_eq!(health, Health::Quarantined, "even one that never answered well");
            assert!(reason.unwrap().starts_with("again; it is asked again in "));
            assert!(!condition.may_claim(now) && condition.wakes(now) == Some(until));
            now = until;
            condition.answered();
            assert!(condition.may_claim(now));
        }
    }

    #[test]
    fn a_zombie_takes_nothing_until_it_is_revived() {
        let now = Instant::now();
        let mut condition = condition();
        condition.died("nothing runs".into());
        assert_eq!(health(&condition, now), Health::Zombie);
        condition.answered();
        assert!(!condition.may_claim(now), "answering is not living");
        condition.revived();
        assert!(condition.may_claim(now));
    }

    #[test]
    fn late_prompts_keep_it_busy_and_a_drain_ends_all() {
        let now = Instant::now();
        let mut condition = condition();
        condition.late(1);
        assert_eq!(health(&condition, now), Health::Busy);
        assert!(!condition.may_claim(now));
        condition.late(0);
        condition.drain();
        assert_eq!(health(&condition, now), Health::Draining);
        assert!(!condition.may_claim(now));
    }
}
