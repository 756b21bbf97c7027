//! The key between the servers of an installation, looked for in what they write.

use crate::stage::Stage;
use anyhow::Result;
use futures_util::{StreamExt, stream};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

/// A route that only another server of the installation may ask.
const INTERNAL: &str = "/internal/v1/frames/5a5a5a5a-0000-4000-8000-000000000001";
/// How many digits the key has.
const DIGITS: usize = 64;
/// How many guesses come from one address: more would be answered slowly.
const FROM_ONE: usize = 10;
/// How many are tried at the same time.
const LANES: usize = 8;

/// Nobody outside knows the key, so everything in the files and the log that has its form is tried: none of it may open
/// the door between servers.
pub(super) async fn at_rest(stage: &Stage) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    gather(&stage.data, &mut found);
    digits(&std::fs::read(&stage.log)?, "the log", &mut found);
    // The row of former releases is always there: whoever finds nothing has not looked.
    anyhow::ensure!(!found.is_empty(), "no text of {DIGITS} digits is in any file of the data directory");
    let found: Vec<(String, String)> = found.into_iter().collect();
    let some: Vec<Vec<(String, String)>> = found.chunks(FROM_ONE).map(<[_]>::to_vec).collect();
    let tried = stream::iter(some.into_iter().enumerate()).map(|(n, some)| from_one(stage, n, some));
    let tried: Vec<Result<Vec<String>>> = tried.buffer_unordered(LANES).collect().await;
    let wrong: Vec<Vec<String>> = tried.into_iter().collect::<Result<_>>()?;
    Ok(wrong.concat())
}

/// Tries a few from an address of their own.
async fn from_one(stage: &Stage, n: usize, some: Vec<(String, String)>) -> Result<Vec<String>> {
    let [.., high, low] = n.to_be_bytes();
    let from = IpAddr::V4(Ipv4Addr::new(127, 1, high, low.max(1)));
    let http = reqwest::Client::builder().local_address(from).timeout(Duration::from_secs(30)).build()?;
    let mut wrong = Vec::new();
    for (key, place) in some {
        let status = http.get(stage.url(INTERNAL)).bearer_auth(key).send().await?.status().as_u16();
        if status != 401 {
            wrong.push(format!("a text in {place} opens the door between servers: {status}"));
        }
    }
    Ok(wrong)
}

/// What every file below a folder holds.
fn gather(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, found);
        } else if let Ok(content) = std::fs::read(&path) {
            digits(&content, &entry.file_name().to_string_lossy(), found);
        }
    }
}

/// Every run of lower hexadecimal digits that is long enough: a neighbour in a database may end or begin with such too.
fn digits(content: &[u8], place: &str, found: &mut BTreeSet<(String, String)>) {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    for run in content.split(|byte| !is_digit(byte)).filter(|run| run.len() >= DIGITS) {
        let mut ends = vec![&run[..DIGITS], &run[run.len() - DIGITS..]];
        ends.dedup();
        for end in ends {
            found.insert((String::from_utf8_lossy(end).into_owned(), place.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_between_other_bytes() {
        let key = "0123456789abcdef".repeat(4);
        let mut found = BTreeSet::new();
        digits(format!("\u{1}xyz{key}").as_bytes(), "a file", &mut found);
        digits(format!("{}abc{key}", "0".repeat(70)).as_bytes(), "another", &mut found);
        digits(b"0123456789abcdef", "too short", &mut found);
        assert!(found.contains(&(key.clone(), "a file".to_owned())));
        assert!(found.contains(&(key, "another".to_owned())));
        assert!(found.iter().all(|(_, place)| place != "too short"));
    }
}
