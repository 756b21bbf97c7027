//! Which descriptions of workers are kept parsed: read beside all requests, one at a time, within one budget.
//!
//! A parsed description takes many times its text, and anybody who may bring workers may bring descriptions. Those of the
//! installation's own workers come first, then those of each key in turns. What finds no room stays unread: then nobody
//! can say what the worker has, which refuses nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comfyui::{ObjectInfo, lenient};
use remuda_core::{KeyId, Sha256, Timestamp, Worker, WorkerId};
use remuda_store::WorkerStore;
use tokio::sync::Notify;

/// How much text of descriptions is kept parsed. One key has a quarter of it.
pub const MOST_TEXT: usize = 48 << 20;

/// How many JSON values of descriptions are kept parsed. One key has a quarter of them.
pub const MOST_VALUES: usize = 3_000_000;

/// How many JSON values one description may have that a process elsewhere brings.
pub const MOST_SIDECAR_VALUES: usize = 500_000;

/// How many descriptions are kept parsed: every graph is checked against each. One key has a quarter of them.
const MOST: usize = 64;

/// The part of all that one key may have.
const SHARE: usize = 4;

/// How long a check waits for what is being read.
const PATIENCE: Duration = Duration::from_secs(2);

/// It waits for the same key's once in this time, or new descriptions would hold up everybody.
const AGAIN: Duration = Duration::from_secs(60);

/// How long a reading is kept that nobody wants any more, if there is room for it: workers that go back and forth between
/// two descriptions would have both read again and again.
const KEPT: Duration = Duration::from_secs(60);

/// How many such readings there are.
const MOST_KEPT: usize = 256;

/// What was not there is looked for again after this.
const RETRY: Duration = Duration::from_secs(5);

/// After how many seconds of silence a worker of a key takes no room.
const SILENT: i64 = 3600;

/// Whose room a description takes: a key's, or that of the installation.
type Share = Option<KeyId>;

/// How large a description is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    text: usize,
    values: usize,
    count: usize,
}

impl Size {
    const ALL: Self = Self { text: MOST_TEXT, values: MOST_VALUES, count: MOST };
    const OF_KEY: Self = Self { text: MOST_TEXT / SHARE, values: MOST_VALUES / SHARE, count: MOST / SHARE };

    fn of(json: &str) -> Self {
        let values = lenient::count_values(json.as_bytes(), usize::MAX);
        Self { text: json.len(), values, count: 1 }
    }

    fn less(self, other: Self) -> Option<Self> {
        Some(Self {
            text: self.text.checked_sub(other.text)?,
            values: self.values.checked_sub(other.values)?,
            count: self.count.checked_sub(other.count)?,
        })
    }
}

/// What is left of the room.
struct Room {
    all: Size,
    keys: HashMap<KeyId, Size>,
}

impl Room {
    fn new() -> Self {
        Self { all: Size::ALL, keys: HashMap::new() }
    }

    /// Takes this much, if there is room for it.
    fn take(&mut self, share: Share, size: Size) -> bool {
        let Some(all) = self.all.less(size) else { return false };
        if let Some(key) = share {
            let left = self.keys.entry(key).or_insert(Size::OF_KEY);
            let Some(less) = left.less(size) else { return false };
            *left = less;
        }
        self.all = all;
        true
    }

    /// Whether anything more could fit.
    fn is_open(&self, share: Share) -> bool {
        let theirs = share.and_then(|key| self.keys.get(&key));
        self.all.count > 0 && theirs.is_none_or(|left| left.count > 0)
    }
}

/// What is known of a description.
#[derive(Debug)]
enum Reading {
    Parsed(Arc<ObjectInfo>, Size),
    /// There was no room for it.
    Left(Size),
    /// It was not there, at this moment.
    Absent(Instant),
    /// It is no description.
    Unreadable,
}

#[derive(Debug, Default)]
struct Inner {
    /// What is to be read, the most important first.
    order: Vec<(Sha256, Share)>,
    /// What nobody wants any more, and since when; the newest first.
    retired: Vec<(Sha256, Share, Instant)>,
    known: HashMap<Sha256, Reading>,
    /// When checks began to wait for a key's.
    waits: HashMap<KeyId, Instant>,
}

impl Inner {
    fn want(&mut self, order: Vec<(Sha256, Share)>) {
        let now = Instant::now();
        let wanted: HashSet<Sha256> = order.iter().map(|(hash, _)| *hash).collect();
        let keys: HashSet<KeyId> = order.iter().filter_map(|(_, share)| *share).collect();
        let before = std::mem::replace(&mut self.order, order).into_iter();
        let mut retired: Vec<_> = before.map(|(hash, share)| (hash, share, now)).collect();
        retired.append(&mut self.retired);
        retired.retain(|(hash, ..)| !wanted.contains(hash));
        retired.truncate(MOST_KEPT);
        let kept: HashSet<Sha256> = retired.iter().map(|(hash, ..)| *hash).collect();
        self.retired = retired;
        self.known.retain(|hash, _| wanted.contains(hash) || kept.contains(hash));
        // Also of keys without workers: whoever comes back would be waited for again.
        self.waits.retain(|key, began| keys.contains(key) || began.elapsed() < AGAIN);
    }

    /// Lets go of what has no room any more; what is to be read, the most important first.
    fn missing(&mut self) -> Vec<(Sha256, Share)> {
        let mut room = Room::new();
        let mut missing = Vec::new();
        for &(hash, share) in &self.order {
            let wanted = match self.known.get(&hash) {
                None => room.is_open(share),
                Some(Reading::Unreadable) => false,
                Some(Reading::Absent(at)) => at.elapsed() > RETRY,
                Some(&Reading::Left(size)) => room.take(share, size),
                Some(&Reading::Parsed(_, size)) => {
                    if !room.take(share, size) {
                        self.known.insert(hash, Reading::Left(size));
                    }
                    false
                }
            };
            if wanted {
                missing.push((hash, share));
            }
        }
        let known = &mut self.known;
        self.retired.retain(|&(hash, share, since)| {
            let keeps = since.elapsed() < KEPT
                && match known.get(&hash) {
                    Some(&Reading::Parsed(_, size)) => room.take(share, size),
                    Some(Reading::Left(_) | Reading::Unreadable) => true,
                    Some(Reading::Absent(_)) | None => false,
                };
            if !keeps {
                known.remove(&hash);
            }
            keeps
        });
        missing
    }

    /// What is left for this description when all that are more important have what they need.
    fn fits(&self, hash: Sha256, size: Size) -> bool {
        let mut room = Room::new();
        for &(other, share) in &self.order {
            if other == hash {
                return room.take(share, size);
            }
            if let Some(Reading::Parsed(_, size) | Reading::Left(size)) = self.known.get(&other) {
                room.take(share, *size);
            }
        }
        false
    }

    /// Until when a check waits for these: for those of keys only while nothing else is known. What is not read refuses
    /// nothing, and a key that brings new ones all the time would hold up everybody.
    fn patience(&mut self, missing: &[(Sha256, Share)], from: Instant) -> Option<Instant> {
        let now = Instant::now();
        let is_parsed =
            |(hash, _): &(Sha256, Share)| matches!(self.known.get(hash), Some(Reading::Parsed(..)));
        let blind = !self.order.iter().any(is_parsed);
        let waited_for = missing.iter().filter(|(_, share)| share.is_none() || blind);
        let until = waited_for.map(|(_, share)| match share {
            None => from + PATIENCE,
            Some(key) => {
                let began = self.waits.entry(*key).or_insert(now);
                if began.elapsed() > AGAIN {
                    *began = now;
                }
                *began + PATIENCE
            }
        });
        until.max().filter(|until| *until > now).map(|until| until.min(from + PATIENCE))
    }
}

/// The descriptions that were read, and those that are to be.
#[derive(Debug)]
pub(super) struct Readings {
    store: Arc<dyn WorkerStore>,
    inner: Mutex<Inner>,
    /// One reads at a time.
    reader: Arc<tokio::sync::Mutex<()>>,
    read: Notify,
}

impl Readings {
    pub(super) fn new(store: Arc<dyn WorkerStore>) -> Self {
        Self { store, inner: Mutex::default(), reader: Arc::default(), read: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A description and the length of its text, if it is read.
    pub(super) fn get(&self, hash: Sha256) -> Option<(Arc<ObjectInfo>, usize)> {
        match self.lock().known.get(&hash)? {
            Reading::Parsed(info, size) => Some((Arc::clone(info), size.text)),
            _ => None,
        }
    }

    /// From now on these count, in this order. All others are forgotten after a while.
    pub(super) fn want(&self, order: Vec<(Sha256, Share)>) {
        self.lock().want(order);
    }

    /// Has everything read that is missing, and waits for it as long as a check may.
    pub(super) async fn settle(self: &Arc<Self>) {
        let from = Instant::now();
        loop {
            let mut read = std::pin::pin!(self.read.notified());
            read.as_mut().enable();
            let until = {
                let mut inner = self.lock();
                let missing = inner.missing();
                if missing.is_empty() {
                    return;
                }
                inner.patience(&missing, from)
            };
            self.begin();
            let Some(until) = until else { return };
            // The one that reads may just have found nothing left to do.
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
            drop(tokio::time::timeout(left, read).await);
        }
    }

    /// Reads what is missing, unless somebody does.
    fn begin(self: &Arc<Self>) {
        let Ok(turn) = Arc::clone(&self.reader).try_lock_owned() else { return };
        let readings = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = turn;
            loop {
                let next = readings.lock().missing().first().copied();
                let Some((hash, _)) = next else { break };
                readings.read(hash).await;
                readings.read.notify_waiters();
            }
        });
    }

    async fn read(self: &Arc<Self>, hash: Sha256) {
        let reading = match self.store.object_info(hash).await {
            Ok(Some(json)) => {
                let readings = Arc::clone(self);
                let parse = move || readings.parse(hash, &json);
                // Only a runtime that ends cancels such work.
                tokio::task::spawn_blocking(parse).await.unwrap_or(Reading::Unreadable)
            }
            Ok(None) => Reading::Absent(Instant::now()),
            Err(error) => {
                tracing::debug!(%hash, %error, "an object_info could not be read from the store");
                Reading::Absent(Instant::now())
            }
        };
        self.lock().known.insert(hash, reading);
    }

    fn parse(&self, hash: Sha256, json: &str) -> Reading {
        let size = Size::of(json);
        if !self.lock().fits(hash, size) {
            tracing::debug!(%hash, size.text, size.values, "there is no room for an object_info");
            return Reading::Left(size);
        }
        match ObjectInfo::from_slice(json.as_bytes()) {
            Ok(info) => Reading::Parsed(Arc::new(info), size),
            Err(error) => {
                tracing::warn!(%hash, %error, "an object_info in the store is not readable");
                Reading::Unreadable
            }
        }
    }
}

/// Whose descriptions are to be read, the most important first: of workers that are there before others, of the
/// installation's own before those of keys, and of keys in turns.
pub(super) fn order(
    workers: &[Worker],
    keys: &HashMap<WorkerId, KeyId>,
    now: Timestamp,
) -> Vec<(Sha256, Share)> {
    let mut ordered = Vec::new();
    let mut seen = HashSet::new();
    for alive in [true, false] {
        let mut shares: BTreeMap<Share, Vec<(&Worker, Sha256)>> = BTreeMap::new();
        for worker in workers {
            let share = keys.get(&worker.spec.id).copied();
            let silent = now.as_second().saturating_sub(worker.last_active_at.as_second()) > SILENT;
            let is_alive = worker.until >= now && worker.report.health.is_usable();
            let Some(hash) = worker.report.object_info else { continue };
            if is_alive == alive && !(silent && share.is_some()) {
                shares.entry(share).or_default().push((worker, hash));
            }
        }
        for theirs in shares.values_mut() {
            // Whoever was there first stays: what changes with every beat would have them read again and again.
            if alive {
                theirs.sort_by_key(|(worker, _)| worker.created_at);
            } else {
                theirs.sort_by_key(|(worker, _)| std::cmp::Reverse(worker.last_active_at));
            }
        }
        let own = shares.remove(&None).unwrap_or_default();
        ordered.extend(own.into_iter().filter_map(|(_, hash)| seen.insert(hash).then_some((hash, None))));
        let longest = shares.values().map(Vec::len).max().unwrap_or(0);
        for turn in 0..longest {
            let theirs = shares.iter().filter_map(|(share, theirs)| Some((theirs.get(turn)?.1, *share)));
            ordered.extend(theirs.filter(|(hash, _)| seen.insert(*hash)));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use remuda_core::{Fence, Health, OwnerId, WorkerReport, WorkerSpec};
    use uuid::Uuid;

    use super::*;

    const NOW: i64 = 100_000;

    fn worker(name: &str, health: Health, last: i64) -> Worker {
        let moment = |second| Timestamp::from_second(second).unwrap();
        Worker {
            spec: WorkerSpec {
                id: WorkerId::new(name).unwrap(),
                endpoint: "http://gpu:8188".to_owned(),
                name: None,
                labels: Default::default(),
            },
            report: WorkerReport { health, object_info: Some(hash(name)), ..WorkerReport::default() },
            owner: OwnerId(Uuid::nil()),
            fence: Fence(1),
            until: moment(last + 30),
            created_at: moment(0),
            last_active_at: moment(last),
        }
    }

    fn hash(name: &str) -> Sha256 {
        Sha256::of(name.as_bytes())
    }

    fn inner(order: Vec<(Sha256, Share)>) -> Inner {
        Inner { order, ..Inner::default() }
    }

    #[test]
    fn keys_take_turns_behind_the_own_workers() {
        let (a, b) = (KeyId(Uuid::from_u128(1)), KeyId(Uuid::from_u128(2)));
        let workers = [
            worker("a1", Health::Healthy, NOW),
            worker("a2", Health::Busy, NOW),
            worker("a3", Health::Unreachable, NOW - 10),
            worker("a4", Health::Healthy, NOW - 2 * SILENT),
            worker("b1", Health::Healthy, NOW),
            worker("own1", Health::Healthy, NOW),
            worker("own2", Health::Healthy, NOW - 2 * SILENT),
        ];
        let keys = [("a1", a), ("a2", a), ("a3", a), ("a4", a), ("b1", b)];
        let keys = keys.map(|(name, key)| (WorkerId::new(name).unwrap(), key)).into();
        let found: Vec<Sha256> = order(&workers, &keys, Timestamp::from_second(NOW).unwrap())
            .into_iter()
            .map(|(hash, _)| hash)
            .collect();
        assert_eq!(found, ["own1", "a1", "b1", "a2", "own2", "a3"].map(hash));
    }

    #[test]
    fn one_key_has_a_quarter_and_gives_way_to_own_workers() {
        let key = Some(KeyId(Uuid::from_u128(1)));
        let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let mut inner = inner(names.iter().map(|name| (hash(name), key)).collect());
        let parsed = |size| Reading::Parsed(Arc::default(), size);
        let small = Size { text: 1, values: 1, count: 1 };
        for name in &names {
            inner.known.insert(hash(name), parsed(small));
        }
        inner.order.push((hash("own"), None));
        assert_eq!(inner.missing(), [(hash("own"), None)]);
        let kept = inner.known.values().filter(|reading| matches!(reading, Reading::Parsed(..))).count();
        assert_eq!(kept, MOST / SHARE);
        assert!(inner.fits(hash("own"), Size { text: MOST_TEXT / 2, values: MOST_VALUES / 2, count: 1 }));
        assert!(!inner.fits(hash("own"), Size { text: 1, values: MOST_VALUES, count: 1 }));
        // Of values, too.
        let large = Size { text: 1, values: MOST_SIDECAR_VALUES, count: 1 };
        assert!(
            inner.fits(hash("0"), large) && !inner.fits(hash("1"), Size { values: MOST_VALUES / 3, ..large })
        );
    }

    #[test]
    fn nobody_waits_for_the_same_key_again_and_again() {
        let key = KeyId(Uuid::from_u128(1));
        let mut inner = Inner::default();
        let now = Instant::now();
        let theirs = [(hash("a"), Some(key))];
        assert!(inner.patience(&theirs, now).is_some());
        inner.waits.insert(key, now.checked_sub(PATIENCE).unwrap());
        assert!(inner.patience(&theirs, now).is_none());
        assert!(inner.patience(&[(hash("b"), None), theirs[0]], now).is_some());
    }

    #[test]
    fn what_is_known_already_is_enough_not_to_wait_for_a_key() {
        let key = Some(KeyId(Uuid::from_u128(1)));
        let mut inner = inner(vec![(hash("own"), None), (hash("theirs"), key)]);
        let now = Instant::now();
        let missing = inner.missing();
        assert!(inner.patience(&missing, now).is_some());
        let small = Size { text: 1, values: 1, count: 1 };
        inner.known.insert(hash("own"), Reading::Parsed(Arc::default(), small));
        let missing = inner.missing();
        assert_eq!(missing, [(hash("theirs"), key)]);
        assert!(inner.patience(&missing, now).is_none());
    }

    #[test]
    fn what_comes_back_within_a_minute_is_not_read_again() {
        let key = Some(KeyId(Uuid::from_u128(1)));
        let small = Size { text: 1, values: 1, count: 1 };
        let mut inner = Inner::default();
        for _ in 0..3 {
            for name in ["a", "b"] {
                inner.want(vec![(hash(name), key)]);
                for (hash, _) in inner.missing() {
                    assert!(!inner.known.contains_key(&hash));
                    inner.known.insert(hash, Reading::Parsed(Arc::default(), small));
                }
            }
            assert_eq!((inner.known.len(), inner.retired.len()), (2, 1));
        }
        // It is the first to go when there is no room, and goes after a while.
        let large = Size { text: MOST_TEXT / SHARE, ..small };
        inner.known.insert(hash("b"), Reading::Parsed(Arc::default(), large));
        assert!(inner.missing().is_empty());
        assert_eq!((inner.known.len(), inner.retired.len()), (1, 0));
    }
}
