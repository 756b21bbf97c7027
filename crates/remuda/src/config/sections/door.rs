//! `[server]`: what one guest may take, and how long it may keep others waiting.

use std::time::Duration;

use remuda_server::{Limits, Network};
use remuda_store::DocumentLimits;

use crate::config::error::ConfigError;
use crate::config::resolve::Resolved;
use crate::config::setting::{Program, Setting, Shape, flag};
use crate::config::values::{Size, Span};

const SERVE: &[Program] = &[Program::Serve];

static TRUSTED_PROXIES: Setting = Setting {
    name: "server.trusted_proxies",
    env: &["REMUDA_TRUSTED_PROXIES"],
    flags: &[flag("trusted-proxy", "ADDR", SERVE)],
    shape: Shape::Networks,
    help: "Addresses or networks of proxies whose X-Forwarded-For or Forwarded is believed",
    ..Setting::BASE
};

static MEMORY: Setting = Setting {
    name: "server.memory",
    env: &["REMUDA_MEMORY"],
    default: "256MiB",
    shape: Shape::Size,
    range: (16 << 20, 1 << 40),
    help: "How many bytes of request bodies and answers may be in memory at once, at least four times server.body_limit; beyond that the largest users get 503",
    ..Setting::BASE
};

static CONNECTIONS: Setting = Setting {
    name: "server.connections",
    env: &["REMUDA_CONNECTIONS"],
    default: "8192",
    shape: Shape::Number,
    range: (16, 1_000_000),
    help: "How many connections there may be; beyond that the longest idle ones are closed",
    ..Setting::BASE
};

static CONNECTIONS_PER_ADDRESS: Setting = Setting {
    name: "server.connections_per_address",
    env: &["REMUDA_CONNECTIONS_PER_ADDRESS"],
    default: "2048",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many of these one address may have; this machine and trusted proxies are exempt",
    ..Setting::BASE
};

static RATE: Setting = Setting {
    name: "server.rate",
    env: &["REMUDA_RATE"],
    default: "20000",
    shape: Shape::Number,
    range: (0, 10_000_000),
    help: "How many requests one tenant or one address may send in a second; 0 means no limit",
    ..Setting::BASE
};

static SUBMISSIONS: Setting = Setting {
    name: "server.submissions",
    env: &["REMUDA_SUBMISSIONS"],
    default: "128",
    shape: Shape::Number,
    range: (1, 65_536),
    help: "How many submissions may be read at once; one tenant gets at most three quarters of this limit and of the following ones",
    ..Setting::BASE
};

static UPLOADS: Setting = Setting {
    name: "server.uploads",
    env: &["REMUDA_UPLOADS"],
    default: "128",
    shape: Shape::Number,
    range: (1, 65_536),
    help: "How many uploads may be under way",
    ..Setting::BASE
};

static DELIVERIES: Setting = Setting {
    name: "server.deliveries",
    env: &["REMUDA_DELIVERIES"],
    default: "512",
    shape: Shape::Number,
    range: (1, 65_536),
    help: "How many result files sidecars may deliver at once; further ones wait",
    ..Setting::BASE
};

static DOWNLOADS: Setting = Setting {
    name: "server.downloads",
    env: &["REMUDA_DOWNLOADS"],
    default: "1024",
    shape: Shape::Number,
    range: (1, 65_536),
    help: "How many files and long lists may be sent at once",
    ..Setting::BASE
};

static WAITING: Setting = Setting {
    name: "server.waiting",
    env: &["REMUDA_WAITING"],
    default: "8192",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many event streams, websockets and waiting requests there may be",
    ..Setting::BASE
};

static FEED_READERS: Setting = Setting {
    name: "server.feed_readers",
    env: &["REMUDA_FEED_READERS"],
    default: "512",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many readers of all events (/api/v1/events) one tenant may have at one server",
    ..Setting::BASE
};

static SIDECARS: Setting = Setting {
    name: "server.sidecars",
    env: &["REMUDA_SIDECARS"],
    default: "16384",
    shape: Shape::Number,
    range: (1, 1_000_000),
    help: "How many claims and beats of sidecars may wait at once",
    ..Setting::BASE
};

static HEAD_TIME: Setting = Setting {
    name: "server.head_time",
    env: &["REMUDA_HEAD_TIME"],
    default: "30s",
    shape: Shape::Duration,
    range: (1, 3_600),
    help: "How long a client may take for the head of a request, and how long a connection may be idle",
    ..Setting::BASE
};

static BODY_TIME: Setting = Setting {
    name: "server.body_time",
    env: &["REMUDA_BODY_TIME"],
    default: "1m",
    shape: Shape::Duration,
    range: (1, 86_400),
    help: "How long a client may take for a body, and between two pieces of an upload",
    ..Setting::BASE
};

static BODY_RATE: Setting = Setting {
    name: "server.body_rate",
    env: &["REMUDA_BODY_RATE"],
    default: "1KiB",
    shape: Shape::Size,
    range: (0, 1 << 30),
    help: "How many bytes per second an upload must bring, averaged over server.body_time",
    ..Setting::BASE
};

static WRITE_TIME: Setting = Setting {
    name: "server.write_time",
    env: &["REMUDA_WRITE_TIME"],
    default: "30s",
    shape: Shape::Duration,
    range: (1, 3_600),
    help: "How long a client may read nothing of its answer before it is cut off",
    ..Setting::BASE
};

static SOCKET_MESSAGES: Setting = Setting {
    name: "server.socket_messages",
    env: &["REMUDA_SOCKET_MESSAGES"],
    default: "1200",
    shape: Shape::Number,
    range: (10, 1_000_000),
    help: "How many messages one websocket may send in a minute",
    ..Setting::BASE
};

static DOCUMENTS: Setting = Setting {
    name: "server.documents",
    env: &["REMUDA_DOCUMENTS"],
    default: "20000",
    shape: Shape::Number,
    range: (1, 10_000_000),
    help: "How many settings and files of user data one tenant may keep",
    ..Setting::BASE
};

static DOCUMENT_BYTES: Setting = Setting {
    name: "server.document_bytes",
    env: &["REMUDA_DOCUMENT_BYTES"],
    default: "1GiB",
    shape: Shape::Size,
    range: (1 << 20, 1 << 40),
    help: "How many bytes these may take together",
    ..Setting::BASE
};

pub(super) const SETTINGS: &[&Setting] = &[
    &TRUSTED_PROXIES,
    &MEMORY,
    &CONNECTIONS,
    &CONNECTIONS_PER_ADDRESS,
    &RATE,
    &SUBMISSIONS,
    &UPLOADS,
    &DELIVERIES,
    &DOWNLOADS,
    &WAITING,
    &FEED_READERS,
    &SIDECARS,
    &HEAD_TIME,
    &BODY_TIME,
    &BODY_RATE,
    &WRITE_TIME,
    &SOCKET_MESSAGES,
    &DOCUMENTS,
    &DOCUMENT_BYTES,
];

/// What one guest may take.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    /// Proxies that are believed: `REMUDA_TRUSTED_PROXIES`, none.
    pub(crate) trusted_proxies: Vec<Network>,
    /// How many documents one tenant may keep, and how many bytes.
    pub(crate) documents: DocumentLimits,
    limits: Limits,
}

impl Door {
    pub(in crate::config) fn read(from: &Resolved) -> Result<Self, ConfigError> {
        let span =
            |setting: &Setting| from.get::<Span, _>(setting).map(|Span(time): Span| -> Duration { time });
        let size = |setting: &Setting| from.get::<Size, _>(setting).map(|size| size.0);
        let limits = Limits {
            memory: size(&MEMORY)?,
            connections: from.get(&CONNECTIONS)?,
            connections_per_address: from.get(&CONNECTIONS_PER_ADDRESS)?,
            rate: from.get(&RATE)?,
            submissions: from.get(&SUBMISSIONS)?,
            uploads: from.get(&UPLOADS)?,
            deliveries: from.get(&DELIVERIES)?,
            downloads: from.get(&DOWNLOADS)?,
            waiting: from.get(&WAITING)?,
            feed_readers: from.get(&FEED_READERS)?,
            sidecars: from.get(&SIDECARS)?,
            head_time: span(&HEAD_TIME)?,
            body_time: span(&BODY_TIME)?,
            body_rate: size(&BODY_RATE)?,
            write_time: span(&WRITE_TIME)?,
            messages: from.get(&SOCKET_MESSAGES)?,
            ..Limits::default()
        };
        Ok(Self {
            trusted_proxies: from.list(&TRUSTED_PROXIES)?,
            documents: DocumentLimits { count: from.get(&DOCUMENTS)?, bytes: size(&DOCUMENT_BYTES)? },
            limits,
        })
    }

    /// The limits of a server for which this many files may be open: most of them are connections.
    pub(crate) fn limits(&self, open_files: Option<u64>) -> Limits {
        let mut limits = self.limits.clone();
        if let Some(files) = open_files {
            let most = usize::try_from(files / 4 * 3).unwrap_or(usize::MAX);
            limits.connections = limits.connections.min(most.max(16));
        }
        limits
    }
}
