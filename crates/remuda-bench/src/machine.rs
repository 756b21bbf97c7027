//! Where it was measured: a number without its machine means nothing.

use std::path::Path;

use serde_json::{Value, json};

/// This machine, and how busy it was.
#[derive(Debug)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    file_system: String,
    load_before: String,
    load_after: String,
}

impl Machine {
    /// Looks at it.
    pub(crate) fn look() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let kib: f64 =
            memory.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or_default();
        Machine {
            processor: value(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib / 1024.0 / 1024.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&std::env::temp_dir(), &read("/proc/self/mounts")),
            load_before: load(),
            load_after: String::new(),
        }
    }

    /// At the end of the run.
    pub(crate) fn after(self) -> Machine {
        Machine { load_after: load(), ..self }
    }

    pub(crate) fn text(&self) -> String {
        let Machine { processor, cores, memory_gib, kernel, file_system, load_before, load_after } = self;
        let warning = match file_system.as_str() {
            "tmpfs" => "\nData are written to memory here (tmpfs): set TMPDIR to a folder on a disk.",
            _ => "",
        };
        format!(
            "{processor}, {cores} cores, {memory_gib:.0} GiB, Linux {kernel}, data on {file_system}; \
             load {load_before} before, {load_after} after{warning}"
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "processor": self.processor, "cores": self.cores, "memory_gib": self.memory_gib,
            "kernel": self.kernel, "file_system": self.file_system,
            "load_before": self.load_before, "load_after": self.load_after,
        })
    }
}

/// Of the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

fn file_system(folder: &Path, mounts: &str) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        folder.starts_with(at).then_some((at.len(), kind))
    });
    // The deepest of those that hold the folder; of two at the same place the later one is seen.
    mounted.max_by_key(|&(depth, _)| depth).map_or("?", |(_, kind)| kind).to_owned()
}
