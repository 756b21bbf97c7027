//! The log that ComfyUI's frontend shows, and who follows it.

use crate::config::SimConfig;
use crate::host::Life;
use crate::hub::{Hub, Outgoing};
use crate::json::{Json, dict, list};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// As many entries as the real one keeps.
const ENTRIES: usize = 300;

/// The last lines of one life.
#[derive(Debug, Default)]
pub(crate) struct Log {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    followers: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Entry {
    time: String,
    text: String,
}

impl Entry {
    fn json(&self) -> Json {
        dict([("t", Json::from(&self.time)), ("m", Json::from(&self.text))])
    }
}

impl Log {
    /// The log of a life that begins.
    pub(crate) fn started(config: &SimConfig, addr: SocketAddr) -> Self {
        let log = Self::default();
        let version = config.profile.version();
        for line in [
            format!("ComfyUI version: {version}\n"),
            "This is a simulator: no model is ever loaded.\n".to_owned(),
            "Starting server\n\n".to_owned(),
            format!("To see the GUI go to: http://{addr}\n"),
        ] {
            log.push(line);
        }
        log
    }

    /// All of it as one text.
    pub(crate) fn text(&self) -> String {
        let line = |entry: &Entry| format!("{} - {}", entry.time, entry.text);
        self.state().entries.iter().map(line).collect()
    }

    /// All entries.
    pub(crate) fn entries(&self) -> Json {
        list(self.state().entries.iter().map(Entry::json))
    }

    /// Starts or ends the following of a client.
    pub(crate) fn follow(&self, client: &str, on: bool) {
        let mut state = self.state();
        if on {
            state.followers.insert(client.to_owned());
        } else {
            state.followers.remove(client);
        }
    }

    fn push(&self, text: String) -> Entry {
        let entry = Entry { time: timestamp(SystemTime::now()), text };
        let mut state = self.state();
        if state.entries.len() == ENTRIES {
            state.entries.pop_front();
        }
        state.entries.push_back(entry.clone());
        entry
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Life {
    /// Writes a line into the log and sends it to those who follow it and still have a socket.
    pub(crate) fn log(&self, line: &str) {
        let entry = self.log.push(format!("{line}\n"));
        let followers = {
            let mut state = self.log.state();
            state.followers.retain(|client| self.sockets.has(client));
            state.followers.clone()
        };
        for client in followers {
            let data = dict([("entries", list([entry.json()])), ("size", Json::Null)]);
            self.sockets.send(Outgoing::Text { event: "logs", data }, Some(&client));
        }
    }
}

/// A time as Python's `isoformat` writes it, in UTC.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// The date of a day since 1970, by counting years that begin in March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::timestamp;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_are_written_as_python_does() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000");
        assert_eq!(at(1_794_733_760), "2026-11-15T09:09:20.000000");
    }
}
