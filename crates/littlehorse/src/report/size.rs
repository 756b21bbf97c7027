//! What fits into a report.

/// The most that an error's message may have.
pub(super) const MESSAGE: usize = 64 * 1024;
/// The most that an exception's content may have.
pub(super) const CONTENT: usize = 512 * 1024;
/// What the fields around a log need at most.
const AROUND: usize = 16;
/// A log of which less would be left is left out.
const LEAST: usize = 256;

/// A message that fits.
pub(super) fn message(text: &str) -> String {
    cut(text, MESSAGE)
}

/// A log that fits into this many bytes with its field, if any of it does.
pub(super) fn fitted(log: &str, room: usize) -> Option<String> {
    let room = room.saturating_sub(AROUND);
    (log.len() <= room || room >= LEAST).then(|| cut(log, room))
}

/// The text in at most this many bytes: its middle gives way to a line that says so.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let marker = |left_out: usize| format!("\n… {left_out} bytes are left out here …\n");
    let half = most.saturating_sub(marker(text.len()).len()) / 2;
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    format!("{head}{}{tail}", marker(text.len() - head.len() - tail.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_left_alone() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(fitted("abc", 19).as_deref(), Some("abc"));
        assert_eq!(fitted("abc", 18), None);
    }

    #[test]
    fn the_middle_gives_way_between_characters() {
        let text: String = (0..400).map(|n| format!("{n}ä🐎")).collect();
        for most in 60..300 {
            let short = cut(&text, most);
            assert!(short.len() <= most && short.len() + 12 > most, "{most}: {}", short.len());
            assert!(short.starts_with("0ä") && short.ends_with("🐎"), "{short}");
            let (head, rest) = short.split_once("\n… ").unwrap();
            let (count, tail) = rest.split_once(" bytes are left out here …\n").unwrap();
            assert_eq!(head.len() + count.parse::<usize>().unwrap() + tail.len(), text.len());
        }
    }
}
