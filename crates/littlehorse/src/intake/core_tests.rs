use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SHORTLY: Duration = Duration::from_millis(50);

fn host(n: u16) -> Host {
    Host { name: "h".to_owned(), port: n }
}

fn core(hosts: &[u16]) -> Core<&'static str, u32> {
    let mut core = Core::new(SHORTLY);
    core.assign(hosts.iter().copied().map(host).collect());
    core
}

/// The same, and nothing waited at the hosts when they were asked the last time.
fn dry_core(hosts: &[u16]) -> Core<&'static str, u32> {
    let mut core = core(hosts);
    core.hosts.values_mut().for_each(|host| host.dry = true);
    core
}

/// The stream of the only step.
fn only(steps: &[Step]) -> StreamId {
    match steps {
        [Step::Open(id, _) | Step::Ask(id) | Step::HalfClose(id) | Step::Drop(id)] => *id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_asked_unless_somebody_waits() {
    let now = Instant::now();
    let mut core = core(&[1]);
    assert_eq!(core.plan(now), []);
    core.want("a");
    let stream = only(&core.plan(now));
    assert_eq!(core.plan(now), []);
    assert_eq!(core.arrived(stream, 7, now), Some(("a", 7)));
    assert_eq!(core.plan(now), []);
    core.want("b");
    assert_eq!(core.plan(now), [Step::Ask(stream)]);
}

#[test]
fn every_host_is_asked_and_the_others_are_closed_when_one_delivers() {
    let mut now = Instant::now();
    let mut core = dry_core(&[1, 2]);
    core.want("a");
    let steps = core.plan(now);
    let [Step::Open(first, _), Step::Open(second, _)] = steps[..] else { panic!("{steps:?}") };
    now += SHORTLY;
    assert_eq!(core.arrived(first, 1, now), Some(("a", 1)));
    assert_eq!(core.plan(now), [Step::HalfClose(second)]);
    // One more was on its way: it waits here and is taken first.
    assert_eq!(core.arrived(second, 2, now), None);
    assert_eq!(core.plan(now), []);
    assert_eq!(core.first_in_line(), Some(2));
    // The half-closed stream is not asked again.
    core.want("b");
    let steps = core.plan(now);
    assert!(matches!(steps[..], [Step::Ask(id), Step::Open(..)] if id == first), "{steps:?}");
    assert!(!core.ended(second, now, 0.5), "it was to end");
    assert_eq!(core.failures(&host(2)), 0);
}

#[test]
fn hosts_that_may_have_tasks_waiting_are_asked_in_turn() {
    let mut now = Instant::now();
    let mut core = core(&[1, 2]);
    core.want("a");
    let first = only(&core.plan(now));
    assert_eq!(core.wake_at(), Some(now + SHORTLY));
    now += Duration::from_millis(1);
    // It answers at once: the other one is not asked for anything, and is the next to be asked.
    assert_eq!(core.arrived(first, 1, now), Some(("a", 1)));
    assert_eq!(core.plan(now), []);
    core.want("b");
    let steps = core.plan(now);
    let [Step::Open(second, to)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(*to, host(2));
    // Nothing waits there: after a moment the first one is asked as well.
    now = core.wake_at().unwrap();
    assert_eq!(core.plan(now), [Step::Ask(first)]);
    assert_eq!(core.arrived(first, 2, now), Some(("b", 2)));
    assert_eq!(core.plan(now), [Step::HalfClose(*second)]);
    // From now on the one with nothing is asked without waiting for its turn, and nobody waits for it.
    core.want("c");
    let steps = core.plan(now);
    assert!(matches!(&steps[..], [Step::Ask(id), Step::Open(_, to)] if *id == first && *to == host(2)));
}

#[test]
fn a_dropped_call_withdraws_its_request_a_moment_later() {
    let now = Instant::now();
    let mut core = core(&[1]);
    let id = core.want("a");
    let stream = only(&core.plan(now));
    core.unwant(id, now);
    assert_eq!(core.plan(now), []);
    // The next call came in time: the request is its request.
    let id = core.want("b");
    assert_eq!(core.plan(now), []);
    core.unwant(id, now);
    let later = core.wake_at().unwrap();
    assert!(later <= now + SURPLUS);
    assert_eq!(core.plan(later), [Step::HalfClose(stream)]);
    assert_eq!(core.wake_at(), None);
}

#[test]
fn a_broken_connection_is_one_failure_and_is_opened_again_after_a_pause() {
    let now = Instant::now();
    let mut core = core(&[1]);
    core.want("a");
    core.want("b");
    let steps = core.plan(now);
    let [Step::Open(first, _), Step::Open(second, _)] = steps[..] else { panic!("{steps:?}") };
    assert!(core.ended(first, now, 0.5));
    assert!(core.ended(second, now, 0.5));
    assert_eq!(core.failures(&host(1)), 1);
    assert_eq!(core.plan(now), []);
    let at = core.wake_at().unwrap();
    assert_eq!(at, now + Duration::from_millis(100));
    assert_eq!(core.plan(at).len(), 2);
    assert_eq!(core.wake_at(), None);
}

#[test]
fn pauses_grow_while_a_host_fails_and_begin_anew_after_it_worked() {
    let mut now = Instant::now();
    let mut core = core(&[1]);
    core.want("a");
    let mut pauses = Vec::new();
    for lived in [0, 0, 0, 5000, 0] {
        let stream = only(&core.plan(now));
        now += Duration::from_millis(lived);
        core.ended(stream, now, 0.5);
        let at = core.wake_at().unwrap();
        pauses.push((at - now).as_millis());
        now = at;
    }
    assert_eq!(pauses, [100, 200, 400, 100, 200]);
}

#[test]
fn empty_answers_are_asked_again_at_once_unless_they_pour() {
    let mut now = Instant::now();
    let mut core = core(&[1]);
    core.want("a");
    let stream = only(&core.plan(now));
    for _ in 0..EMPTY_AT_ONCE {
        core.empty(stream, now);
        assert_eq!(core.plan(now), [Step::Ask(stream)]);
    }
    core.empty(stream, now);
    assert_eq!(core.plan(now), []);
    let at = core.wake_at().unwrap();
    assert_eq!(core.plan(at), [Step::Ask(stream)]);
    now = at + CLOSE_TOGETHER;
    core.empty(stream, now);
    assert_eq!(core.plan(now), [Step::Ask(stream)]);
}

#[test]
fn a_host_that_fails_again_and_again_is_trouble_until_it_has_worked_for_a_while() {
    let mut now = Instant::now();
    let mut core = dry_core(&[1, 2]);
    core.want("a");
    let mut streams: Vec<StreamId> = Vec::new();
    for n in 0..TROUBLE {
        assert_eq!(core.trouble(now), None, "{n} failures");
        let opened = core.plan(now).into_iter().filter_map(|step| match step {
            Step::Open(id, of) if of == host(2) => Some(id),
            _ => None,
        });
        streams.extend(opened);
        core.ended(streams.pop().unwrap(), now, 0.5);
        now = core.wake_at().unwrap();
    }
    assert_eq!(core.trouble(now), Some(&host(2)));
    assert_eq!(core.plan(now).len(), 1);
    assert_eq!(core.trouble(now + OVER), None);
}

#[test]
fn a_host_that_is_taken_away_is_half_closed_and_read_on() {
    let now = Instant::now();
    let mut core = core(&[1]);
    core.want("a");
    let old = only(&core.plan(now));
    assert_eq!(core.assign(vec![host(2)]), (vec![host(2)], vec![host(1)]));
    let steps = core.plan(now);
    assert!(matches!(&steps[..], [Step::HalfClose(id), Step::Open(_, to)] if *id == old && *to == host(2)));
    assert_eq!(core.arrived(old, 5, now), Some(("a", 5)));
}

#[test]
fn half_closed_streams_do_not_pile_up() {
    let now = Instant::now();
    let mut core = dry_core(&[1, 2]);
    let (mut open, mut let_go) = (0, Vec::new());
    for n in 0..1000 {
        core.want("a");
        // The first host delivers, the second one is half-closed.
        let steps = core.plan(now);
        open += steps.iter().filter(|step| matches!(step, Step::Open(..))).count();
        let first = steps.iter().find_map(|step| match step {
            Step::Open(id, of) if *of == host(1) => Some(*id),
            Step::Ask(id) => Some(*id),
            _ => None,
        });
        core.arrived(first.unwrap(), n, now + SHORTLY);
        let dropped = core.plan(now).into_iter().filter_map(|step| match step {
            Step::Drop(id) => Some(id),
            _ => None,
        });
        let_go.extend(dropped);
    }
    assert_eq!(open, 1001);
    assert_eq!(let_go.len(), 1000 - MOST_DRAINING);
    assert!(let_go.is_sorted(), "the oldest first");
}

#[test]
fn closing_withdraws_everything_and_keeps_what_arrives() {
    let now = Instant::now();
    let mut core = dry_core(&[1, 2]);
    core.want("a");
    let steps = core.plan(now);
    let [Step::Open(first, _), Step::Open(second, _)] = steps[..] else { panic!("{steps:?}") };
    core.arrived(first, 1, now);
    core.plan(now);
    core.want("b");
    assert_eq!(core.close(), ["b"]);
    assert_eq!(core.plan(now), [Step::Drop(first)]);
    assert!(!core.is_quiet());
    core.arrived(second, 2, now);
    core.ended(second, now, 0.5);
    assert!(core.is_quiet());
    assert_eq!(core.leftovers(), [2]);
}

/// What can happen to an intake.
#[derive(Debug, Clone)]
enum Happening {
    Want,
    Unwant(usize),
    Deliver(usize),
    /// The same, and the call that gets it has just been dropped.
    Miss(usize),
    /// A host delivers on a stream that was half-closed.
    Late(usize),
    Empty(usize),
    Break(usize),
    Assign(Vec<u16>),
    Wait(u64),
    Take,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => Just(Happening::Want),
        1 => (0..8usize).prop_map(Happening::Unwant),
        4 => (0..8usize).prop_map(Happening::Deliver),
        1 => (0..8usize).prop_map(Happening::Miss),
        1 => (0..8usize).prop_map(Happening::Late),
        1 => (0..8usize).prop_map(Happening::Empty),
        1 => (0..8usize).prop_map(Happening::Break),
        1 => proptest::collection::vec(1..4u16, 0..3).prop_map(Happening::Assign),
        2 => (0..2000u64).prop_map(Happening::Wait),
        1 => Just(Happening::Take),
    ]
}

/// The other side: streams as hosts see them.
#[derive(Default)]
struct World {
    asked: BTreeMap<StreamId, Host>,
    idle: BTreeMap<StreamId, Host>,
    draining: BTreeMap<StreamId, Host>,
}

impl World {
    fn carry_out(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Open(id, host) => assert!(self.asked.insert(id, host).is_none()),
                Step::Ask(id) => {
                    let host = self.idle.remove(&id).expect("only an idle stream is asked");
                    self.asked.insert(id, host);
                }
                Step::HalfClose(id) => {
                    let host = self.asked.remove(&id).expect("only a request is withdrawn");
                    self.draining.insert(id, host);
                }
                Step::Drop(id) => assert!(self.idle.remove(&id).is_some(), "only an idle stream is dropped"),
            }
        }
    }
}

fn nth<T: Clone>(of: &BTreeMap<StreamId, T>, n: usize) -> Option<StreamId> {
    of.keys().nth(n % of.len().max(1)).copied()
}

proptest! {
    /// Whatever happens: every assigned host is asked for what is wanted (unless it has to wait), nobody for more (but for
    /// a moment after a dropped call), and every delivery is handed over once or kept.
    #[test]
    fn demand_is_met_and_no_delivery_is_lost(happenings in proptest::collection::vec(happening(), 1..120)) {
        let mut now = Instant::now();
        let mut core: Core<u32, u32> = Core::new(SHORTLY);
        let mut world = World::default();
        let mut waiting: Vec<(WaiterId, u32)> = Vec::new();
        let (mut callers, mut deliveries) = (0, 0);
        let mut handed: BTreeSet<u32> = BTreeSet::new();
        let mut hosts: BTreeSet<Host> = BTreeSet::new();
        for happening in happenings {
            let given = match happening {
                Happening::Want => {
                    if let Some(delivery) = core.first_in_line() {
                        prop_assert!(handed.insert(delivery));
                    } else {
                        callers += 1;
                        waiting.push((core.want(callers), callers));
                    }
                    None
                }
                Happening::Unwant(n) => {
                    if !waiting.is_empty() {
                        let (id, _) = waiting.remove(n % waiting.len());
                        core.unwant(id, now);
                    }
                    None
                }
                Happening::Deliver(n) => nth(&world.asked, n).and_then(|id| {
                    let host = world.asked.remove(&id)?;
                    world.idle.insert(id, host);
                    deliveries += 1;
                    core.arrived(id, deliveries, now)
                }),
                Happening::Miss(n) => nth(&world.asked, n).and_then(|id| {
                    let host = world.asked.remove(&id)?;
                    world.idle.insert(id, host);
                    deliveries += 1;
                    let (caller, delivery) = core.arrived(id, deliveries, now)?;
                    waiting.retain(|(_, waits)| *waits != caller);
                    core.given_back(delivery)
                }),
                Happening::Late(n) => nth(&world.draining, n).and_then(|id| {
                    deliveries += 1;
                    core.arrived(id, deliveries, now)
                }),
                Happening::Empty(n) => {
                    if let Some(id) = nth(&world.asked, n) {
                        let host = world.asked.remove(&id).unwrap();
                        world.idle.insert(id, host);
                        core.empty(id, now);
                    }
                    None
                }
                Happening::Break(n) => {
                    let all: BTreeMap<StreamId, ()> =
                        [&world.asked, &world.idle, &world.draining].iter().flat_map(|of| of.keys()).map(|id| (*id, ())).collect();
                    if let Some(id) = nth(&all, n) {
                        for of in [&mut world.asked, &mut world.idle, &mut world.draining] {
                            of.remove(&id);
                        }
                        core.ended(id, now, 0.5);
                    }
                    None
                }
                Happening::Assign(of) => {
                    hosts = of.into_iter().map(host).collect();
                    core.assign(hosts.iter().cloned().collect());
                    None
                }
                Happening::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    None
                }
                Happening::Take => {
                    if let Some(delivery) = core.first_in_line() {
                        prop_assert!(handed.insert(delivery));
                    }
                    None
                }
            };
            if let Some((caller, delivery)) = given {
                let at = waiting.iter().position(|(_, waits)| *waits == caller);
                prop_assert_eq!(at, Some(0), "the call that waits longest gets it");
                waiting.remove(0);
                prop_assert!(handed.insert(delivery));
            }
            world.carry_out(core.plan(now));
            prop_assert_eq!(core.plan(now), vec![], "one plan is enough");
            let surplus = core.surplus_until.is_some();
            for host in &hosts {
                let asked = world.asked.values().filter(|of| *of == host).count();
                let pauses = core.hosts[host].not_before.is_some();
                prop_assert!(asked <= waiting.len() || surplus, "{} asked, {} wanted", asked, waiting.len());
                let turn = core.hosts.iter().any(|(of, state)| {
                    !state.dry && world.asked.values().any(|asked| asked == of) && of != host
                });
                prop_assert!(asked >= waiting.len() || pauses || turn, "{} asked, {} wanted", asked, waiting.len());
                prop_assert!(asked >= waiting.len() || core.wake_at().is_some(), "nobody wakes it");
            }
            for of in world.asked.values() {
                prop_assert!(hosts.contains(of), "a host is asked that is not ours");
            }
        }
        // Left alone, every host is asked for what is wanted, and nobody for more.
        while let Some(at) = core.wake_at() {
            prop_assert!(at > now, "it has been planned for");
            now = at;
            world.carry_out(core.plan(now));
        }
        for host in &hosts {
            let asked = world.asked.values().filter(|of| *of == host).count();
            prop_assert_eq!(asked, waiting.len());
        }
        // Everything that came is handed over or still here.
        let left: BTreeSet<u32> = core.leftovers().into_iter().collect();
        prop_assert!(handed.is_disjoint(&left));
        prop_assert_eq!(handed.len() + left.len(), deliveries as usize);
    }
}
