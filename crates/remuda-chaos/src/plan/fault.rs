//! What goes wrong. Each lane of faults has a deck of cards that is shuffled again when all of them were played.

use crate::dice::Dice;
use crate::options::{Options, Scenario};
use std::fmt;
use std::time::Duration;

/// What happens to a server or a sidecar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FleetFault {
    /// Killed without warning, and started again after a while.
    Kill { down: Duration },
    /// Stopped in its tracks for longer than its leases, and continued.
    Stop { time: Duration },
    /// Asked to end, as for a new version, and started again.
    Term,
}

/// What happens to a ComfyUI.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SimFault {
    /// The process is killed: queue and history are gone.
    Kill { down: Duration },
    /// The simulated process dies inside the real one: the same, and its counts go on.
    Crash { down: Duration },
    /// Asked to restart.
    Restart,
    /// The simulated process ends in the middle of a prompt.
    CrashInNode,
    /// Its worker thread dies with the next prompt; somebody notices and restarts it.
    Zombie { time: Duration },
    /// One of the simulator's own faults, in its own words.
    Own { name: &'static str, fields: Vec<(&'static str, OwnField)> },
}

/// A value of a field of a simulator's own fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OwnField {
    Number(u64),
    Text(&'static str),
}

/// What happens to PostgreSQL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StoreFault {
    /// Crashes, and is started again after a while.
    Away { time: Duration },
    /// Keeps its connections and answers nothing.
    Frozen { time: Duration },
}

/// What happens to a connection: a server's to PostgreSQL, or a sidecar's to its server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NetFault {
    /// All connections are reset; new ones work.
    Cut,
    /// Packets vanish for a while.
    Stalled { time: Duration },
    /// Connections are reset, and new ones refused for a while.
    Refused { time: Duration },
}

/// Anything that goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    Server(FleetFault),
    Sidecar(FleetFault),
    Sim(SimFault),
    Store(StoreFault),
    Net(NetFault),
}

impl fmt::Display for Fault {
    /// The kind, as it is counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fleet = |fault: &FleetFault| match fault {
            FleetFault::Kill { .. } => "kill -9",
            FleetFault::Stop { .. } => "SIGSTOP",
            FleetFault::Term => "SIGTERM",
        };
        match self {
            Fault::Server(fault) => write!(f, "server {}", fleet(fault)),
            Fault::Sidecar(fault) => write!(f, "sidecar {}", fleet(fault)),
            Fault::Sim(SimFault::Kill { .. }) => f.write_str("ComfyUI kill -9"),
            Fault::Sim(SimFault::Crash { .. }) => f.write_str("ComfyUI crash"),
            Fault::Sim(SimFault::Restart) => f.write_str("ComfyUI restart"),
            Fault::Sim(SimFault::CrashInNode) => f.write_str("ComfyUI crash in a node"),
            Fault::Sim(SimFault::Zombie { .. }) => f.write_str("ComfyUI zombie"),
            Fault::Sim(SimFault::Own { name, .. }) => write!(f, "ComfyUI {name}"),
            Fault::Store(StoreFault::Away { .. }) => f.write_str("PostgreSQL away"),
            Fault::Store(StoreFault::Frozen { .. }) => f.write_str("PostgreSQL frozen"),
            Fault::Net(NetFault::Cut) => f.write_str("network cut"),
            Fault::Net(NetFault::Stalled { .. }) => f.write_str("network stalled"),
            Fault::Net(NetFault::Refused { .. }) => f.write_str("network refused"),
        }
    }
}

/// The cards of one lane.
#[derive(Debug)]
pub(crate) struct Deck {
    make: fn(&Options, &mut Dice) -> Vec<Fault>,
    cards: Vec<Fault>,
    pub(crate) dice: Dice,
}

impl Deck {
    fn new(options: &Options, lane: &str, make: fn(&Options, &mut Dice) -> Vec<Fault>) -> Deck {
        let dice = Dice::new(options.seed).fork(lane);
        Deck { make, cards: Vec::new(), dice }
    }

    /// For servers and sidecars.
    pub(crate) fn fleet(options: &Options) -> Deck {
        Deck::new(options, "fleet", fleet)
    }

    /// For ComfyUIs.
    pub(crate) fn sims(options: &Options) -> Deck {
        Deck::new(options, "sims", sims)
    }

    /// For PostgreSQL.
    pub(crate) fn store(options: &Options) -> Deck {
        Deck::new(options, "store", store)
    }

    /// For connections.
    pub(crate) fn nets(options: &Options) -> Deck {
        Deck::new(options, "nets", nets)
    }

    /// The next card; `None` if the lane has nothing to break.
    pub(crate) fn draw(&mut self, options: &Options) -> Option<Fault> {
        if self.cards.is_empty() {
            self.cards = (self.make)(options, &mut self.dice);
            self.dice.shuffle(&mut self.cards);
        }
        self.cards.pop()
    }
}

fn fleet(options: &Options, dice: &mut Dice) -> Vec<Fault> {
    let soon = |dice: &mut Dice| FleetFault::Kill { down: dice.millis(Duration::ZERO, options.lease / 2) };
    // Others may take its tasks from one lease on, and do so half a lease later at the latest.
    let beyond = |dice: &mut Dice| dice.millis(options.lease * 5 / 4, options.lease * 2);
    // Nobody else reaches a sidecar's ComfyUI; what it renders is given up after one and a half leases.
    let within = |dice: &mut Dice| dice.millis(options.lease * 3 / 4, options.lease * 5 / 4);
    let mut cards = vec![
        Fault::Server(soon(dice)),
        Fault::Server(soon(dice)),
        Fault::Server(FleetFault::Kill { down: beyond(dice) }),
        Fault::Server(FleetFault::Stop { time: beyond(dice) }),
        Fault::Server(FleetFault::Stop { time: beyond(dice) }),
        Fault::Server(FleetFault::Term),
        Fault::Sidecar(soon(dice)),
        Fault::Sidecar(FleetFault::Stop { time: within(dice) }),
        Fault::Sidecar(FleetFault::Kill { down: options.lease * 2 }),
        Fault::Sidecar(FleetFault::Term),
    ];
    if options.scenario == Scenario::Sqlite {
        // There is only one server: what stops it stops everything, so there is less to learn from it.
        cards.remove(2);
    }
    cards
}

fn own(name: &'static str, fields: &[(&'static str, OwnField)]) -> Fault {
    Fault::Sim(SimFault::Own { name, fields: fields.to_vec() })
}

fn sims(options: &Options, dice: &mut Dice) -> Vec<Fault> {
    use OwnField::{Number, Text};
    let down = |dice: &mut Dice| dice.millis(Duration::from_millis(100), options.lease);
    let a_while = |dice: &mut Dice| Number(dice.between(500, options.lease.as_millis() as u64 * 2));
    let few = |dice: &mut Dice| Number(dice.between(1, 3));
    let mut cards = vec![
        Fault::Sim(SimFault::Kill { down: down(dice) }),
        Fault::Sim(SimFault::Crash { down: down(dice) }),
        Fault::Sim(SimFault::Restart),
        own("refuse", &[("for_ms", a_while(dice))]),
        own("mute_websocket", &[("for_ms", a_while(dice))]),
        own("drop_websocket", &[("times", few(dice))]),
        own("half_open_websocket", &[("times", few(dice)), ("after_frames", Number(dice.between(0, 9)))]),
        own("lose_answer", &[("on", Text("POST /prompt")), ("times", few(dice))]),
        own("lose_answer", &[("on", Text("POST /prompt")), ("times", few(dice))]),
        own("error_after", &[("on", Text("POST /prompt")), ("times", few(dice))]),
        own("cut_answer", &[("on", Text("POST /prompt")), ("times", few(dice))]),
        own("reset", &[("on", Text("POST /prompt")), ("times", few(dice))]),
        own("half_open", &[("on", Text("GET /queue")), ("times", Number(1))]),
        own("cut_answer", &[("on", Text("GET /history/*")), ("times", few(dice))]),
        own("error", &[("on", Text("GET /history/*")), ("times", few(dice))]),
        own("lose_answer", &[("on", Text("GET /view")), ("times", few(dice))]),
        own("cut_answer", &[("on", Text("GET /view")), ("times", few(dice))]),
        own("slow", &[("delay_ms", Number(dice.between(50, 1500))), ("for_ms", a_while(dice))]),
        own("out_of_memory", &[("times", few(dice))]),
        Fault::Sim(SimFault::CrashInNode),
        Fault::Sim(SimFault::Zombie { time: dice.millis(options.lease, options.lease * 2) }),
    ];
    if options.rest > PATIENCE {
        // The prompt may still be on its way: a runner looks for it for a minute before it gives it up.
        cards.push(own("half_open", &[("on", Text("POST /prompt")), ("times", Number(1))]));
    }
    cards
}

/// A run that waits for the end no longer than this has no time for faults that take a minute each.
const PATIENCE: Duration = Duration::from_secs(180);

fn store(options: &Options, dice: &mut Dice) -> Vec<Fault> {
    if options.scenario == Scenario::Sqlite {
        return Vec::new();
    }
    let time = |dice: &mut Dice| dice.millis(Duration::from_millis(500), options.lease * 2);
    vec![
        Fault::Store(StoreFault::Away { time: time(dice) }),
        Fault::Store(StoreFault::Away { time: Duration::ZERO }),
        Fault::Store(StoreFault::Frozen { time: time(dice) }),
    ]
}

fn nets(options: &Options, dice: &mut Dice) -> Vec<Fault> {
    let time = |dice: &mut Dice| dice.millis(Duration::from_millis(500), options.lease * 5 / 4);
    vec![
        Fault::Net(NetFault::Cut),
        Fault::Net(NetFault::Stalled { time: time(dice) }),
        Fault::Net(NetFault::Refused { time: time(dice) }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_every_kind_comes_before_one_comes_again() {
        let options = |seed| Options::short("remuda", Scenario::Postgres, seed);
        let drawn = |seed, count| {
            let mut deck = Deck::sims(&options(seed));
            (0..count).filter_map(|_| deck.draw(&options(seed))).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1, 60), drawn(1, 60));
        assert_ne!(drawn(1, 60), drawn(2, 60));
        let mut names: Vec<String> = drawn(3, 21).iter().map(ToString::to_string).collect();
        let mut deck =
            sims(&options(3), &mut Dice::new(0)).iter().map(ToString::to_string).collect::<Vec<_>>();
        names.sort();
        deck.sort();
        assert_eq!(names, deck);
    }

    #[test]
    fn without_postgresql_nothing_happens_to_it() {
        let options = Options::short("remuda", Scenario::Sqlite, 1);
        assert_eq!(Deck::store(&options).draw(&options), None);
        assert!(Deck::nets(&options).draw(&options).is_some());
    }
}
