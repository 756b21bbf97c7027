//! Tells one client what happens to its prompts: all of them, wherever they came in and wherever they run.
//!
//! One task does it for all prompts of a client. Those that wait cost an entry in a map; only those that run are listened
//! to. It asks the store only about what it was told of: what other processes did, and prompts that came in at other servers,
//! it hears from the one look of `crate::feed`.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use remuda_core::{Dialect, Status, Task, TaskId, Version};
use remuda_frames::Frame;
use remuda_store::{OriginOrder, OriginQuery};
use tokio::time::Instant;

use super::client::{Client, Prompt};
use super::listen::Listener;
use super::story::{Story, Word};
use super::words;
use crate::changes::Group;
use crate::state::AppState;

/// How often to look whether anything was forgotten. It costs the store nothing, unless there is something to look at.
const OFTEN: Duration = Duration::from_secs(1);

/// The same for a client without a socket.
const SELDOM: Duration = Duration::from_secs(15);

/// How long news of ComfyUI are waited for that come later than the end that the store knows.
const GRACE: Duration = Duration::from_millis(300);

/// How many changes are looked at before frames have their turn.
const CHANGES: usize = 64;

/// How many frames are passed on before changes have their turn.
const FRAMES: usize = 256;

/// How many prompts are read at once.
const PAGE: u32 = 500;

/// How many running prompts of a client are looked for when nothing was heard.
const RUNNING: u32 = 500;

/// Why the narrator woke up.
enum Woken {
    /// A prompt came in, a socket came or left, or something happened to a prompt.
    News,
    /// Something was heard; `None` when that is over.
    Heard(TaskId, Option<Arc<Frame>>),
    /// Time to look.
    Late,
    Stop,
}

/// A prompt that runs, or did.
struct Told {
    story: Story,
    listener: Option<Listener>,
    /// It is listened to here; whether it runs here is not known yet.
    early: bool,
    /// Whether it runs, as was last seen.
    runs: bool,
    /// Whether ComfyUI began to work on it, heard or not.
    began: bool,
    /// How it ended, and until when it is listened to nevertheless.
    ended: Option<(Box<Task>, Instant)>,
}

/// What is known of a prompt.
struct Known {
    /// What the client calls it.
    name: String,
    /// The task was looked at as it was then; what is older is no news.
    version: Version,
}

struct Narrator {
    state: AppState,
    client: Arc<Client>,
    group: Group,
    /// Every prompt that has not ended.
    prompts: HashMap<TaskId, Known>,
    told: HashMap<TaskId, Told>,
    /// Could not be looked at; the next time they will be.
    again: HashSet<TaskId>,
    /// The number of prompts that have not ended is to be told.
    changed: bool,
    /// That number, as it was when prompts were last looked at.
    counted: Option<i64>,
    look_at: Instant,
}

/// Tells one client what happens to its prompts, until nobody would miss it.
pub(super) async fn run(state: AppState, client: Arc<Client>) {
    let group = state.changes.group();
    let mut narrator = Narrator {
        state,
        client,
        group,
        prompts: HashMap::new(),
        told: HashMap::new(),
        again: HashSet::new(),
        changed: false,
        counted: None,
        look_at: Instant::now(),
    };
    loop {
        match narrator.wait().await {
            Woken::Stop => return,
            Woken::News => {}
            Woken::Heard(task, frame) => narrator.hear(task, frame),
            Woken::Late => {
                if narrator.look().await {
                    return;
                }
            }
        }
        narrator.turn().await;
    }
}

impl Narrator {
    async fn wait(&mut self) -> Woken {
        let ending = self.told.values().filter_map(|told| told.ended.as_ref().map(|(_, until)| *until)).min();
        let late = ending.map_or(self.look_at, |ending| ending.min(self.look_at));
        let told = &mut self.told;
        let heard = poll_fn(|cx| {
            for (task, told) in told.iter_mut() {
                if let Some(listener) = &mut told.listener
                    && let Poll::Ready(frame) = listener.poll(cx)
                {
                    return Poll::Ready((*task, frame));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            () = self.state.stop.cancelled() => Woken::Stop,
            () = self.client.poke.notified() => Woken::News,
            () = self.group.news() => Woken::News,
            (task, frame) = heard => Woken::Heard(task, frame),
            () = tokio::time::sleep_until(late) => Woken::Late,
        }
    }

    /// Everything that there is to do, a bounded amount at a time.
    async fn turn(&mut self) {
        self.counted = None;
        for prompt in self.client.take_fresh() {
            self.know(prompt);
        }
        if self.changed {
            self.tell_remaining().await;
        }
        for (task, news) in self.group.take(CHANGES) {
            let Some(known) = self.prompts.get(&task) else { continue };
            match news.ended {
                Some(ended) => self.see(Arc::unwrap_or_clone(ended)).await,
                None if news.is_known(known.version) => {}
                None => self.look_at_task(task).await,
            }
        }
        self.hear_ready();
        self.tell_ends().await;
        if self.changed {
            self.tell_remaining().await;
        }
        if self.client.has_socket() {
            self.look_at = self.look_at.min(Instant::now() + OFTEN);
        }
    }

    fn know(&mut self, prompt: Prompt) {
        let Prompt { task, name, messages, since } = prompt;
        if self.prompts.contains_key(&task) {
            return;
        }
        let version = since.as_ref().map_or(0, |(version, _)| *version);
        self.prompts.insert(task, Known { name: name.clone(), version });
        if let Some((attempt, messages)) = messages {
            let told = self.told.entry(task).or_insert_with(|| Told::new(task, name));
            told.story.listen(attempt, None);
            (told.listener, told.early, told.runs) = (Some(Listener::of(messages)), true, true);
        }
        match since {
            // From here on the group has the news; what came before is in the follower.
            Some((version, follow)) => {
                self.group.add_known(task);
                if !follow.known().is_known(version) {
                    self.group.add(task);
                }
            }
            // The first news is that it is to be looked at: something may have happened to it by now.
            None => self.group.add(task),
        }
        self.changed = true;
    }

    fn forget(&mut self, task: TaskId) {
        self.prompts.remove(&task);
        self.told.remove(&task);
        self.again.remove(&task);
        self.group.remove(task);
    }

    async fn look_at_task(&mut self, id: TaskId) {
        // Both at once: when the prompt has ended, the number is what its client waits for.
        let (found, counted) = tokio::join!(self.state.store.task(id), self.client.unfinished(&self.state));
        self.counted = counted.ok();
        match found {
            Ok(Some(task)) => self.see(task).await,
            Ok(None) => {
                self.forget(id);
                self.changed = true;
            }
            Err(error) => {
                tracing::debug!(task = %id, %error, "a client's prompt could not be looked at");
                self.again.insert(id);
            }
        }
    }

    async fn see(&mut self, task: Task) {
        let id = task.id;
        let Some(known) = self.prompts.get_mut(&id) else { return };
        known.version = known.version.max(task.version);
        let name = known.name.clone();
        match task.status {
            Status::Pending => {
                if let Some(told) = self.told.get_mut(&id) {
                    (told.listener, told.runs) = (None, false);
                }
            }
            Status::Running => {
                let told = self.told.entry(id).or_insert_with(|| Told::new(id, name));
                told.runs = true;
                if task.cancel_at.is_some() && !told.began && !told.story.has_begun() {
                    // The socket to ComfyUI may be down, and whoever runs it knows nevertheless whether it began.
                    let lease = self.state.store.lease(id).await;
                    told.began =
                        lease.is_ok_and(|lease| lease.is_some_and(|lease| lease.rendering_since.is_some()));
                }
                let current = told.story.attempt() == task.attempt;
                if told.listener.is_some() && current && !told.early {
                    return;
                }
                // Before anything is asked: ComfyUI may be quick. If it runs elsewhere, nothing is said here.
                let early = told.listener.take().filter(|_| told.early && current);
                let begun = early.is_some();
                let early = early.unwrap_or_else(|| Listener::here(&self.state, id, task.attempt));
                told.early = false;
                match Listener::find(&self.state, id, early).await {
                    Ok(Some(found)) => {
                        if begun && found.here && found.attempt == task.attempt {
                            told.story.call(found.prompt);
                        } else {
                            told.story.listen(found.attempt, Some(found.prompt));
                        }
                        told.listener = Some(found.listener);
                    }
                    // It ended in this moment, or the store is away; then it is looked at again.
                    Ok(None) | Err(_) => drop(self.again.insert(id)),
                }
            }
            Status::Completed | Status::Failed | Status::Cancelled => {
                let told = self.told.entry(id).or_insert_with(|| Told::new(id, name));
                if told.listener.is_none() && task.attempt > 0 && !told.story.is_over() {
                    // It was so fast that nobody saw it run, and what was said of it is still there.
                    told.story.listen(task.attempt, None);
                    told.listener = Listener::afterwards(&self.state, id, task.attempt);
                }
                told.ended.get_or_insert_with(|| (Box::new(task), Instant::now() + GRACE));
            }
        }
    }

    fn hear(&mut self, task: TaskId, frame: Option<Arc<Frame>>) {
        let Some(told) = self.told.get_mut(&task) else { return };
        let Some(frame) = frame else {
            told.listener = None;
            return;
        };
        let mut words = Vec::new();
        let node = told.story.node.clone();
        told.story.hear(&frame, &mut words);
        if node != told.story.node {
            self.client.set_node(told.story.node.clone());
        }
        // While it runs it has not ended.
        let remaining = self.client.remaining().max(1);
        self.tell(words, remaining);
    }

    /// Passes on what was said already.
    fn hear_ready(&mut self) {
        let tasks: Vec<TaskId> = self.told.keys().copied().collect();
        for task in tasks {
            for _ in 0..FRAMES {
                let listener = self.told.get_mut(&task).and_then(|told| told.listener.as_mut());
                let Some(frame) = listener.and_then(Listener::ready) else { break };
                self.hear(task, Some(frame));
            }
        }
    }

    /// Tells the ends of those of which nothing more is to be heard.
    async fn tell_ends(&mut self) {
        let now = Instant::now();
        let over = |told: &Told| match &told.ended {
            Some((task, until)) => {
                let heard_all = told.story.is_over() && told.story.attempt() >= task.attempt;
                heard_all || told.listener.is_none() || *until <= now
            }
            None => false,
        };
        let ended: Vec<TaskId> =
            self.told.iter().filter(|(_, told)| over(told)).map(|(task, _)| *task).collect();
        if ended.is_empty() {
            return;
        }
        let mut ends = Vec::new();
        for id in ended {
            let Some(mut told) = self.told.remove(&id) else { continue };
            let Some((task, _)) = told.ended.take() else { continue };
            let bad = task.status != Status::Completed;
            // Without the graph there is a little less to say.
            let input = if bad { self.state.store.input(id).await.ok().flatten() } else { None };
            let size = task.text_bytes() + input.as_ref().map_or(0, |input| input.workflow.get().len());
            let (tenant, at) = (task.tenant.clone(), task.finished_at);
            let tell = move || {
                let mut words = Vec::new();
                if told.began && task.status == Status::Cancelled {
                    told.story.begin(&mut words);
                }
                let workflow = input.as_ref().map(|input| input.workflow.get());
                told.story.end(&task, workflow, &mut words);
                words
            };
            match self.state.compute_of("telling an end", &tenant, id, size, tell).await {
                Ok(words) => ends.push((at, words)),
                Err(error) => error.note(),
            }
            self.forget(id);
        }
        // As they ended.
        ends.sort_by_key(|(at, _)| *at);
        let node = self.told.values().find_map(|told| told.story.node.clone());
        self.client.set_node(node);
        // The prompt may have ended between the two looks; then the number is too large.
        let certain = self.counted.take().filter(|counted| *counted == 0 || !self.prompts.is_empty());
        let remaining = match certain {
            Some(counted) => counted.max(self.untold()),
            None => self.remaining().await,
        };
        self.client.set_remaining(remaining);
        self.client.stir();
        for (_, words) in ends {
            self.tell(words, remaining);
        }
        // It was told with each end.
        self.client.others_stirred();
        self.changed = false;
    }

    fn tell(&self, words: Vec<Word>, remaining: i64) {
        for word in words {
            match word {
                Word::Text(text) => self.client.tell(text),
                Word::Picture(picture) => self.client.show(picture),
                Word::Status => self.client.tell(words::status(remaining, None)),
            }
        }
    }

    async fn tell_remaining(&mut self) {
        let remaining = self.remaining().await;
        self.client.set_remaining(remaining);
        self.client.tell(words::status(remaining, None));
        self.client.others_stirred();
        self.changed = false;
    }

    /// How many of the client's prompts have not ended, as far as it was told: the number of those that are left does
    /// not run ahead of their ends.
    async fn remaining(&mut self) -> i64 {
        let untold = self.untold();
        self.client.unfinished(&self.state).await.map_or(untold, |unfinished| unfinished.max(untold))
    }

    /// Known prompts whose end was not told.
    fn untold(&self) -> i64 {
        i64::try_from(self.prompts.len()).unwrap_or(i64::MAX)
    }

    /// Looks for what was not heard of. Whether nobody needs the narrator any more.
    async fn look(&mut self) -> bool {
        if self.look_at > Instant::now() {
            // Only an end was due.
            return false;
        }
        for task in std::mem::take(&mut self.again) {
            self.group.add(task);
        }
        for (task, told) in &self.told {
            // Whoever passed on what was said of it is gone; or nothing was said of it here, so it may run elsewhere.
            let unheard = told.listener.is_none() || (told.early && !told.story.has_begun());
            if told.ended.is_none() && told.runs && unheard {
                self.group.add(*task);
            }
        }
        if self.client.take_doubt() {
            self.search().await;
        }
        // Others of the tenant have news, and pages look at all of its prompts when they are told anything.
        if self.client.has_socket() && self.client.others_stirred() {
            self.client.tell(words::status(self.client.remaining(), None));
        }
        let pause = if self.client.has_socket() { OFTEN } else { SELDOM };
        self.look_at = Instant::now() + pause;
        self.prompts.is_empty() && self.state.desk.retire(&self.client)
    }

    /// Looks for prompts that it was not told of, and for what happened to those that it knows.
    async fn search(&mut self) {
        let known = self.untold();
        let Ok(remaining) = self.client.unfinished(&self.state).await else {
            self.client.doubt();
            return;
        };
        self.changed |= remaining.max(known) != self.client.remaining();
        if remaining != known {
            self.list(&[Status::Pending, Status::Running]).await;
        } else if known > 0 {
            self.list(&[Status::Running]).await;
        }
    }

    /// Reads the client's prompts: unknown ones are known then, and those that are not where they were are looked at.
    async fn list(&mut self, statuses: &[Status]) {
        let all = statuses.len() > 1;
        let mut query = OriginQuery {
            tenant: self.client.tenant.clone(),
            dialect: Dialect::COMFYUI,
            client: Some(self.client.id.clone()),
            statuses: statuses.to_vec(),
            workflow_id: None,
            order: OriginOrder::OldestFirst,
            offset: 0,
            limit: if all { PAGE } else { RUNNING },
        };
        let mut listed = HashSet::new();
        loop {
            let Ok(page) = self.state.store.list_origin(&query).await else {
                self.client.doubt();
                return;
            };
            let count = u32::try_from(page.tasks.len()).unwrap_or(u32::MAX);
            for task in page.tasks {
                listed.insert(task.id);
                let unheard = task.status == Status::Running && !self.told.contains_key(&task.id);
                if self.prompts.contains_key(&task.id) && unheard {
                    self.group.add(task.id);
                }
                self.know(Prompt::known(&task));
            }
            query.offset = query.offset.saturating_add(count);
            if !all || count < query.limit {
                break;
            }
        }
        let missing = |task: &&TaskId| !listed.contains(*task);
        if all {
            self.prompts.keys().filter(missing).for_each(|task| self.group.add(*task));
        } else {
            let running = self.told.iter().filter(|(_, told)| told.ended.is_none()).map(|(task, _)| task);
            running.filter(missing).for_each(|task| self.group.add(*task));
        }
    }
}

impl Told {
    fn new(task: TaskId, name: String) -> Self {
        Self {
            story: Story::new(task, name),
            listener: None,
            early: false,
            runs: false,
            ended: None,
            began: false,
        }
    }
}
