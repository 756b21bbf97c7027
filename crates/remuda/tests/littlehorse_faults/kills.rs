//! Two workers that share nothing are killed at random moments.

use std::collections::BTreeMap;
use std::time::Duration;

use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Double, NewRun, Options, Run};
use tempfile::TempDir;

use crate::rig::all_heard;
use crate::stage::{ended, graph, output, start};
use crate::support::Running;

const TASKS: u64 = 100;
const KILLS: u32 = 24;
/// How long an attempt may take.
const ATTEMPT: Duration = Duration::from_secs(6);

/// Numbers that look like chance, the same ones for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// A worker with a ComfyUI of its own.
struct Side {
    sim: Running,
    dir: TempDir,
    worker: Option<Running>,
}

impl Side {
    async fn new(double: &Double) -> Self {
        let mut side = Self { sim: Running::sim(1).await, dir: tempfile::tempdir().unwrap(), worker: None };
        side.start(double).await;
        side
    }

    async fn start(&mut self, double: &Double) {
        let port = double.port(0).to_string();
        let env = [
            ("LHC_API_HOST", "127.0.0.1"),
            ("LHC_API_PORT", port.as_str()),
            ("COMFYUI_BASE_URL", self.sim.url()),
            ("COMFYUI_OUTPUT_DIR", "/out"),
        ];
        self.worker = Some(start(self.dir.path(), &[], &env).await);
    }

    fn kill(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.program.kill_9().unwrap();
        }
    }

    /// How often each prompt was executed.
    async fn executions(&self) -> BTreeMap<String, u64> {
        let stats = self.sim.get("/sim/stats").await;
        let prompts = stats["by_prompt"].as_object().unwrap().iter();
        prompts.map(|(id, count)| (id.clone(), count.as_u64().unwrap())).collect()
    }
}

#[tokio::test]
async fn every_task_ends_and_is_rendered_once_whoever_is_killed_when() {
    let seed = std::env::var("REMUDA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut chance = Chance(seed);
    let double = Double::start(Options::default()).await.unwrap();
    let mut sides = [Side::new(&double).await, Side::new(&double).await];
    let runs: Vec<Run> = (0..TASKS)
        .map(|n| {
            let graph = graph(n, 100 + chance.below(500));
            let new = NewRun::json(format!("order-{n}"), graph.to_string());
            double.schedule(new.attempts(50).timeout(ATTEMPT))
        })
        .collect();
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(chance.below(1200))).await;
        let side = &mut sides[usize::try_from(chance.below(2)).unwrap()];
        side.kill();
        if chance.below(4) == 0 {
            double.cut(0);
        }
        // Mostly back at once; now and then dead for longer than an attempt may take.
        let dead = if chance.below(10) == 0 { ATTEMPT } else { Duration::ZERO };
        tokio::time::sleep(dead + Duration::from_millis(chance.below(600))).await;
        side.start(&double).await;
    }
    let mut executions = BTreeMap::<String, u64>::new();
    let mut tasks = Vec::new();
    for run in &runs {
        tasks.push(ended(run).await);
    }
    for side in &sides {
        all_heard(side.dir.path()).await;
        for (id, count) in side.executions().await {
            *executions.entry(id).or_default() += count;
        }
    }
    let (mut late, mut again) = (0, Vec::new());
    for task in &tasks {
        let prompt = output(task)["prompt_id"].as_str().unwrap().to_owned();
        let count = executions.remove(&prompt).unwrap_or(0);
        // Its delivery was on its way to a process that was killed, or its worker was dead for too long.
        let timed_out = task.attempts.iter().any(|attempt| attempt.status() == TaskStatus::TaskTimeout);
        late += u32::from(timed_out);
        match count {
            1 => {}
            // The next attempt went to the other worker, which cannot ask this one's ComfyUI.
            2.. if timed_out => again.push(prompt),
            _ => panic!("{count} executions without a reason: {task:?}"),
        }
    }
    println!(
        "seed {seed}: {TASKS} tasks, {KILLS} kills; {late} had an attempt that timed out, {} were rendered again by the \
         other worker because of that",
        again.len()
    );
    assert!(executions.is_empty(), "executed under other ids: {executions:?}");
}
