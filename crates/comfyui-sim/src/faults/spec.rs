//! Faults as text: the JSON of `POST /sim/faults` and the flag `--fault`.

use super::{Fault, FaultKind, RouteFilterError};
use crate::config::UnknownProfile;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a text or a JSON object is no [`Fault`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// The JSON does not fit: an unknown field, an unknown kind, a wrong type.
    #[error("{0}")]
    Shape(String),
    /// A flag that is not `kind,key=value,...`.
    #[error("`{part}` in `{flag}` is not key=value")]
    Flag {
        /// The part in question.
        part: String,
        /// The whole flag.
        flag: String,
    },
    /// The route filter.
    #[error("field `on`: {0}")]
    Route(#[from] RouteFilterError),
    /// The version.
    #[error("field `version`: {0}")]
    Version(#[from] UnknownProfile),
    /// A field that this kind needs.
    #[error("{kind} needs the field `{field}`")]
    Missing {
        /// The kind.
        kind: KindName,
        /// The field.
        field: &'static str,
    },
    /// A field that means nothing for this kind.
    #[error("{kind} has no field `{field}`")]
    Meaningless {
        /// The kind.
        kind: KindName,
        /// The field.
        field: &'static str,
    },
    /// A value out of its range.
    #[error("field `{field}`: {value} is not {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// What was given.
        value: String,
        /// What would have been right.
        expected: &'static str,
    },
}

/// The kinds as they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KindName {
    /// [`FaultKind::Slow`]
    Slow,
    /// [`FaultKind::Hang`]
    Hang,
    /// [`FaultKind::Reset`]
    Reset,
    /// [`FaultKind::Error`]
    Error,
    /// [`FaultKind::HalfOpen`]
    HalfOpen,
    /// [`FaultKind::LoseAnswer`]
    LoseAnswer,
    /// [`FaultKind::ErrorAfter`]
    ErrorAfter,
    /// [`FaultKind::Garbage`]
    Garbage,
    /// [`FaultKind::CutAnswer`]
    CutAnswer,
    /// [`FaultKind::Endless`]
    Endless,
    /// [`FaultKind::GzipBomb`]
    GzipBomb,
    /// [`FaultKind::HugeObjectInfo`]
    HugeObjectInfo,
    /// [`FaultKind::HugeHistory`]
    HugeHistory,
    /// [`FaultKind::Trickle`]
    Trickle,
    /// [`FaultKind::FloodWebsocket`]
    FloodWebsocket,
    /// [`FaultKind::MuteWebsocket`]
    MuteWebsocket,
    /// [`FaultKind::DropWebsocket`]
    DropWebsocket,
    /// [`FaultKind::HalfOpenWebsocket`]
    HalfOpenWebsocket,
    /// [`FaultKind::Refuse`]
    Refuse,
    /// [`FaultKind::Restart`]
    Restart,
    /// [`FaultKind::Crash`]
    Crash,
    /// [`FaultKind::Version`]
    Version,
    /// [`FaultKind::ZombieWorker`]
    ZombieWorker,
    /// [`FaultKind::OutOfMemory`]
    OutOfMemory,
    /// [`FaultKind::DiskFull`]
    DiskFull,
    /// [`FaultKind::FilesGone`]
    FilesGone,
    /// [`FaultKind::StuckNode`]
    StuckNode,
    /// [`FaultKind::CrashInNode`]
    CrashInNode,
    /// [`FaultKind::SlowNodes`]
    SlowNodes,
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The flat object that people write. Which fields go with which kind is checked afterwards, so that the
/// error can name both.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultSpec {
    kind: KindName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    for_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after_frames: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    down_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frames: Option<u64>,
}

impl FaultSpec {
    fn empty(kind: KindName) -> Self {
        Self {
            kind,
            on: None,
            times: None,
            probability: None,
            seed: None,
            for_ms: None,
            delay_ms: None,
            status: None,
            after_frames: None,
            down_ms: None,
            factor: None,
            version: None,
            bytes: None,
            nodes: None,
            frames: None,
        }
    }

    /// Refuses the fields that belong to other kinds.
    fn check_fields(&self) -> Result<(), FaultError> {
        use KindName as K;
        let about_requests = !matches!(
            self.kind,
            K::FloodWebsocket
                | K::HugeObjectInfo
                | K::HugeHistory
                | K::MuteWebsocket
                | K::DropWebsocket
                | K::HalfOpenWebsocket
                | K::ZombieWorker
                | K::OutOfMemory
                | K::DiskFull
                | K::FilesGone
                | K::StuckNode
                | K::CrashInNode
                | K::SlowNodes
        );
        let once_and_at_once =
            self.on.is_none() && matches!(self.kind, K::Refuse | K::Restart | K::Crash | K::Version);
        let fields = [
            ("on", self.on.is_some(), about_requests),
            ("times", self.times.is_some(), !once_and_at_once),
            ("probability", self.probability.is_some(), !once_and_at_once),
            ("seed", self.seed.is_some(), self.probability.is_some()),
            ("delay_ms", self.delay_ms.is_some(), matches!(self.kind, K::Slow | K::Trickle)),
            (
                "bytes",
                self.bytes.is_some(),
                matches!(self.kind, K::Endless | K::GzipBomb | K::HugeHistory | K::FloodWebsocket),
            ),
            ("nodes", self.nodes.is_some(), self.kind == K::HugeObjectInfo),
            ("frames", self.frames.is_some(), self.kind == K::FloodWebsocket),
            ("status", self.status.is_some(), matches!(self.kind, K::Error | K::ErrorAfter | K::Endless)),
            (
                "after_frames",
                self.after_frames.is_some(),
                matches!(self.kind, K::MuteWebsocket | K::DropWebsocket | K::HalfOpenWebsocket),
            ),
            ("down_ms", self.down_ms.is_some(), matches!(self.kind, K::Restart | K::Crash)),
            ("factor", self.factor.is_some(), self.kind == K::SlowNodes),
            ("version", self.version.is_some(), self.kind == K::Version),
        ];
        match fields.iter().find(|(_, given, allowed)| *given && !*allowed) {
            Some((field, ..)) => Err(FaultError::Meaningless { kind: self.kind, field }),
            None => Ok(()),
        }
    }

    fn kind(&self) -> Result<FaultKind, FaultError> {
        use KindName as K;
        let missing = |field| FaultError::Missing { kind: self.kind, field };
        let status = self.status.unwrap_or(500);
        let after_frames = self.after_frames.unwrap_or(0);
        let down = self.down_ms.map(Duration::from_millis);
        Ok(match self.kind {
            K::Slow => FaultKind::Slow {
                delay: Duration::from_millis(self.delay_ms.ok_or_else(|| missing("delay_ms"))?),
            },
            K::Hang => FaultKind::Hang,
            K::Reset => FaultKind::Reset,
            K::Error => FaultKind::Error { status },
            K::HalfOpen => FaultKind::HalfOpen,
            K::LoseAnswer => FaultKind::LoseAnswer,
            K::ErrorAfter => FaultKind::ErrorAfter { status },
            K::Garbage => FaultKind::Garbage,
            K::CutAnswer => FaultKind::CutAnswer,
            K::Endless => FaultKind::Endless {
                status: self.status.unwrap_or(200),
                bytes: self.bytes.unwrap_or(8 << 30),
            },
            K::GzipBomb => FaultKind::GzipBomb { bytes: self.bytes.unwrap_or(8 << 30) },
            K::HugeObjectInfo => FaultKind::HugeObjectInfo { nodes: self.nodes.unwrap_or(200_000) },
            K::HugeHistory => FaultKind::HugeHistory { bytes: self.bytes.unwrap_or(300 << 20) },
            K::Trickle => FaultKind::Trickle { delay: Duration::from_millis(self.delay_ms.unwrap_or(1000)) },
            K::FloodWebsocket => FaultKind::FloodWebsocket {
                frames: self.frames.unwrap_or(1_000_000),
                bytes: self.bytes.unwrap_or(0),
            },
            K::MuteWebsocket => FaultKind::MuteWebsocket { after_frames },
            K::DropWebsocket => FaultKind::DropWebsocket { after_frames },
            K::HalfOpenWebsocket => FaultKind::HalfOpenWebsocket { after_frames },
            K::Refuse => FaultKind::Refuse,
            K::Restart => FaultKind::Restart { down: down.unwrap_or_default() },
            K::Crash => FaultKind::Crash { down },
            K::Version => {
                let version = self.version.as_deref().ok_or_else(|| missing("version"))?;
                FaultKind::Version { profile: version.parse()? }
            }
            K::ZombieWorker => FaultKind::ZombieWorker,
            K::OutOfMemory => FaultKind::OutOfMemory,
            K::DiskFull => FaultKind::DiskFull,
            K::FilesGone => FaultKind::FilesGone,
            K::StuckNode => FaultKind::StuckNode,
            K::CrashInNode => FaultKind::CrashInNode,
            K::SlowNodes => FaultKind::SlowNodes { factor: self.factor.ok_or_else(|| missing("factor"))? },
        })
    }
}

impl TryFrom<FaultSpec> for Fault {
    type Error = FaultError;

    fn try_from(spec: FaultSpec) -> Result<Self, FaultError> {
        spec.check_fields()?;
        let range = |field, value: String, expected| Err(FaultError::Range { field, value, expected });
        if let Some(probability) = spec.probability
            && !(0.0..=1.0).contains(&probability)
        {
            return range("probability", probability.to_string(), "between 0 and 1");
        }
        if let Some(status) = spec.status
            && !(400..=599).contains(&status)
            && !(spec.kind == KindName::Endless && status == 200)
        {
            return range("status", status.to_string(), "between 400 and 599");
        }
        if let Some(factor) = spec.factor
            && !(factor.is_finite() && factor >= 0.0)
        {
            return range("factor", factor.to_string(), "a finite number from 0");
        }
        // A second zombie after the cure would surprise; who wants it says so.
        let once = (spec.kind == KindName::ZombieWorker).then_some(1);
        Ok(Self {
            kind: spec.kind()?,
            on: spec.on.as_deref().map(str::parse).transpose()?,
            times: spec.times.or(once),
            probability: spec.probability,
            seed: spec.seed,
            lasting: spec.for_ms.map(Duration::from_millis),
        })
    }
}

impl From<&Fault> for FaultSpec {
    fn from(fault: &Fault) -> Self {
        use KindName as K;
        let ms = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut spec = match &fault.kind {
            FaultKind::Slow { delay } => Self { delay_ms: Some(ms(delay)), ..Self::empty(K::Slow) },
            FaultKind::Hang => Self::empty(K::Hang),
            FaultKind::Reset => Self::empty(K::Reset),
            FaultKind::Error { status } => Self { status: Some(*status), ..Self::empty(K::Error) },
            FaultKind::HalfOpen => Self::empty(K::HalfOpen),
            FaultKind::LoseAnswer => Self::empty(K::LoseAnswer),
            FaultKind::ErrorAfter { status } => Self { status: Some(*status), ..Self::empty(K::ErrorAfter) },
            FaultKind::Garbage => Self::empty(K::Garbage),
            FaultKind::CutAnswer => Self::empty(K::CutAnswer),
            FaultKind::Endless { status, bytes } => {
                Self { status: Some(*status), bytes: Some(*bytes), ..Self::empty(K::Endless) }
            }
            FaultKind::GzipBomb { bytes } => Self { bytes: Some(*bytes), ..Self::empty(K::GzipBomb) },
            FaultKind::HugeObjectInfo { nodes } => {
                Self { nodes: Some(*nodes), ..Self::empty(K::HugeObjectInfo) }
            }
            FaultKind::HugeHistory { bytes } => Self { bytes: Some(*bytes), ..Self::empty(K::HugeHistory) },
            FaultKind::Trickle { delay } => Self { delay_ms: Some(ms(delay)), ..Self::empty(K::Trickle) },
            FaultKind::FloodWebsocket { frames, bytes } => {
                Self { frames: Some(*frames), bytes: Some(*bytes), ..Self::empty(K::FloodWebsocket) }
            }
            FaultKind::MuteWebsocket { after_frames } => {
                Self { after_frames: Some(*after_frames), ..Self::empty(K::MuteWebsocket) }
            }
            FaultKind::DropWebsocket { after_frames } => {
                Self { after_frames: Some(*after_frames), ..Self::empty(K::DropWebsocket) }
            }
            FaultKind::HalfOpenWebsocket { after_frames } => {
                Self { after_frames: Some(*after_frames), ..Self::empty(K::HalfOpenWebsocket) }
            }
            FaultKind::Refuse => Self::empty(K::Refuse),
            FaultKind::Restart { down } => Self { down_ms: Some(ms(down)), ..Self::empty(K::Restart) },
            FaultKind::Crash { down } => Self { down_ms: down.as_ref().map(ms), ..Self::empty(K::Crash) },
            FaultKind::Version { profile } => {
                Self { version: Some(profile.version().to_owned()), ..Self::empty(K::Version) }
            }
            FaultKind::ZombieWorker => Self::empty(K::ZombieWorker),
            FaultKind::OutOfMemory => Self::empty(K::OutOfMemory),
            FaultKind::DiskFull => Self::empty(K::DiskFull),
            FaultKind::FilesGone => Self::empty(K::FilesGone),
            FaultKind::StuckNode => Self::empty(K::StuckNode),
            FaultKind::CrashInNode => Self::empty(K::CrashInNode),
            FaultKind::SlowNodes { factor } => Self { factor: Some(*factor), ..Self::empty(K::SlowNodes) },
        };
        spec.on = fault.on.as_ref().map(ToString::to_string);
        spec.times = fault.times;
        spec.probability = fault.probability;
        spec.seed = fault.seed;
        spec.for_ms = fault.lasting.as_ref().map(ms);
        spec
    }
}

impl Fault {
    /// Reads the object that `POST /sim/faults` takes, for example
    /// `{"kind": "lose_answer", "on": "POST /prompt", "times": 1}`.
    pub fn from_json(value: serde_json::Value) -> Result<Self, FaultError> {
        if !value.is_object() {
            return Err(FaultError::Shape(format!("a fault is an object, not {value}")));
        }
        serde_json::from_value::<FaultSpec>(value)
            .map_err(|error| FaultError::Shape(error.to_string()))?
            .try_into()
    }

    /// The same object again.
    pub fn to_json(&self) -> serde_json::Value {
        // A struct of texts and numbers always has a JSON form.
        serde_json::to_value(FaultSpec::from(self)).unwrap_or_default()
    }
}

/// The form of the flag: `kind` or `kind,key=value,...`.
///
/// ```
/// use comfyui_sim::faults::Fault;
///
/// let fault: Fault = "lose_answer,on=POST /prompt,times=1".parse()?;
/// assert_eq!(fault, Fault::lose_answer().on("POST /prompt").times(1));
/// # Ok::<(), comfyui_sim::faults::FaultError>(())
/// ```
impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(flag: &str) -> Result<Self, FaultError> {
        let mut parts = flag.split(',').map(str::trim);
        let mut object = serde_json::Map::new();
        object.insert("kind".to_owned(), parts.next().unwrap_or_default().into());
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| FaultError::Flag { part: part.to_owned(), flag: flag.to_owned() })?;
            let (key, value) = (key.trim(), value.trim());
            let texts = ["on", "version"];
            let value = match serde_json::from_str(value) {
                Ok(number @ serde_json::Value::Number(_)) if !texts.contains(&key) => number,
                _ => value.into(),
            };
            object.insert(key.to_owned(), value);
        }
        Self::from_json(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use serde_json::json;

    #[test]
    fn json_and_builder_mean_the_same() {
        let pairs = [
            (json!({"kind": "hang"}), Fault::hang()),
            (
                json!({"kind": "lose_answer", "on": "POST /prompt", "times": 1}),
                Fault::lose_answer().on("POST /prompt").times(1),
            ),
            (
                json!({"kind": "error", "probability": 0.5, "seed": 3, "status": 503, "for_ms": 40}),
                Fault::error(503).probability(0.5).seed(3).lasting(Duration::from_millis(40)),
            ),
            (json!({"kind": "version", "version": "0.3.30"}), Fault::version(Profile::V0_3_30)),
            (json!({"kind": "crash", "down_ms": 5}), Fault::crash().down_for(Duration::from_millis(5))),
            (json!({"kind": "slow_nodes", "factor": 2.5, "times": 1}), Fault::slow_nodes(2.5).times(1)),
            (json!({"kind": "zombie_worker"}), Fault::zombie_worker()),
            (json!({"kind": "endless", "on": "GET /queue"}), Fault::endless().on("GET /queue")),
            (json!({"kind": "endless", "status": 500}), Fault::endless_error(500)),
            (json!({"kind": "gzip_bomb"}), Fault::gzip_bomb()),
            (json!({"kind": "huge_object_info", "nodes": 7}), Fault::huge_object_info(7)),
            (json!({"kind": "huge_history", "bytes": 9}), Fault::huge_history(9)),
            (json!({"kind": "trickle", "delay_ms": 3}), Fault::trickle(Duration::from_millis(3))),
            (json!({"kind": "flood_websocket", "frames": 5}), Fault::flood_websocket(5)),
            (json!({"kind": "flood_websocket", "frames": 5, "bytes": 2}), Fault::flood_pictures(5, 2)),
        ];
        for (json, fault) in pairs {
            assert_eq!(Fault::from_json(json.clone()).unwrap(), fault, "{json}");
            assert_eq!(Fault::from_json(fault.to_json()).unwrap(), fault, "{json}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let check = |json: serde_json::Value, expected: &str| {
            let message = Fault::from_json(json.clone()).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        };
        check(json!({"kind": "hnag"}), "unknown variant `hnag`");
        check(json!({"kind": "hang", "tims": 1}), "unknown field `tims`");
        check(json!({"times": 1}), "missing field `kind`");
        check(json!({"kind": "slow"}), "slow needs the field `delay_ms`");
        check(json!({"kind": "hang", "status": 500}), "hang has no field `status`");
        check(json!({"kind": "restart", "times": 2}), "restart has no field `times`");
        check(json!({"kind": "stuck_node", "on": "/prompt"}), "stuck_node has no field `on`");
        check(json!({"kind": "hang", "on": "prompt"}), "field `on`: `prompt` is no route");
        check(json!({"kind": "hang", "probability": 1.5}), "1.5 is not between 0 and 1");
        check(json!({"kind": "error", "status": 200}), "200 is not between 400 and 599");
        check(json!({"kind": "version", "version": "9"}), "there are 0.3.30, 0.3.64 and 0.7.0");
        check(json!([]), "a fault is an object, not []");
    }

    #[test]
    fn flags_are_read() {
        let fault: Fault = "slow,delay_ms=20,on=GET /history/*,probability=0.5,seed=1".parse().unwrap();
        let expected = Fault::slow(Duration::from_millis(20)).on("GET /history/*").probability(0.5).seed(1);
        assert_eq!(fault, expected);
        assert_eq!("version,version=0.3.30".parse::<Fault>().unwrap(), Fault::version(Profile::V0_3_30));
        assert!(matches!("hang,now".parse::<Fault>(), Err(FaultError::Flag { .. })));
        assert!("".parse::<Fault>().is_err());
    }
}
