//! The picture that a person can read: which task made it, with what.
//!
//! ```text
//! title               the checkpoint
//! prompt prompt       as large as fits
//! prompt
//! label  value        facts, seed and step
//! ==========----      how far the sampler is
//! ```

use super::random::Random;
use super::{Image, font};

/// What a picture says about the task that made it.
#[derive(Debug, Clone)]
pub struct Card<'a> {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The headline, for example the name of the checkpoint.
    pub title: &'a str,
    /// Small facts under the prompt, as `(label, value)`; the first ones go when there is no room.
    pub lines: &'a [(&'a str, &'a str)],
    /// The prompt text, wrapped to the width.
    pub prompt: &'a str,
    /// Chooses the colours and the shape of the background, and is written out.
    pub seed: u64,
    /// How many steps of how many are done: a preview has less than all of them, and shows as much noise.
    pub step: Option<(u32, u32)>,
}

const WHITE: [u8; 3] = [255, 255, 255];
const PALE: [u8; 3] = [198, 206, 220];

/// Draws a card.
///
/// ```
/// use comfyui_sim::media::card::{self, Card};
///
/// let prompt = "a lighthouse in a storm";
/// let card = Card { width: 64, height: 64, title: "flux1", lines: &[], prompt, seed: 7, step: Some((20, 20)) };
/// assert_eq!(card::draw(&card).width(), 64);
/// ```
pub fn draw(card: &Card<'_>) -> Image {
    let mut random = Random::new(card.seed);
    let mut image = gradient(card.width, card.height, &mut random);
    for _ in 0..4 {
        disc(&mut image, &mut random);
    }
    if let Some((done, total)) = card.step.filter(|(done, total)| done < total) {
        noise(&mut image, 130 - 130 * u64::from(done) / u64::from(total), &mut random);
    }
    write_texts(&mut image, card);
    image
}

fn write_texts(image: &mut Image, card: &Card<'_>) {
    let (width, height) = (image.width(), image.height());
    let unit = ((width.min(height.saturating_mul(8) / 5) + 128) / 256).clamp(1, 64);
    let small = width.min(height) < 160;
    let margin = if small { 2 } else { 9 * unit };
    let line = unit * if small { font::GLYPH_HEIGHT + 1 } else { font::LINE };
    let columns = columns(width.saturating_sub(2 * margin), unit);
    let bar = if card.step.is_none() {
        0
    } else if small {
        2
    } else {
        4 * unit
    };

    let footer = footer(card, columns, height / 2 / line);
    let bar_top = height.saturating_sub(margin + bar);
    let footer_top = bar_top.saturating_sub(line * footer.len() as u32 + unit);
    let title = if small { String::new() } else { shorten(&font::plain(card.title), columns) };
    let header_height = if title.is_empty() { 0 } else { 2 * margin + font::GLYPH_HEIGHT * unit };

    shade(image, 0, header_height);
    shade(image, footer_top.saturating_sub(margin), height);
    text(image, margin, margin, unit, &title, WHITE);
    for (index, (label, value)) in footer.iter().enumerate() {
        let top = footer_top + line * index as u32;
        let end = text(image, margin, top, unit, label, PALE);
        text(image, end, top, unit, value, WHITE);
    }
    let (done, total) = card.step.unwrap_or((1, 1));
    progress_bar(image, [margin, bar_top, width.saturating_sub(2 * margin), bar], done, total);

    let top = header_height + margin;
    let room = [width.saturating_sub(2 * margin), footer_top.saturating_sub(top + margin)];
    prompt(image, margin, top, room, unit, &font::plain(card.prompt));
}

/// The facts as `(label, value)` in lines of at most `columns`, at most `most` of them.
fn footer(card: &Card<'_>, columns: usize, most: u32) -> Vec<(String, String)> {
    let seed = card.seed.to_string();
    let step = card.step.map(|(done, total)| format!("{done}/{total}"));
    let facts = card.lines.iter().copied().chain([("seed", seed.as_str())]);
    let facts: Vec<_> = facts.chain(step.as_deref().map(|step| ("step", step))).collect();
    let pad = facts.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0) + 2;
    let mut lines = Vec::new();
    for (label, value) in facts {
        let (label, value) = (font::plain(label), font::plain(value));
        if pad + value.chars().count() <= columns {
            lines.push((format!("{label:pad$}"), value));
        } else if label.chars().count() + 1 + value.chars().count() <= columns {
            lines.push((format!("{label} "), value));
        } else if label == "seed" {
            // The seed tells two pictures apart, so it is the one fact that is never cut.
            let digits: Vec<char> = value.chars().collect();
            lines.extend(digits.chunks(columns).map(|part| (String::new(), part.iter().collect())));
        } else {
            lines.push((String::new(), shorten(&value, columns)));
        }
    }
    let surplus = lines.len().saturating_sub(most.max(1) as usize);
    lines.split_off(surplus)
}

/// The prompt in the largest of a few sizes in which it fits; if none, cut off with an ellipsis.
fn prompt(image: &mut Image, left: u32, top: u32, room: [u32; 2], unit: u32, prompt: &str) {
    let layout = |scale: u32| {
        let lines = wrap(prompt, columns(room[0], scale));
        let fits =
            lines.len() as u64 * u64::from(scale * font::LINE) <= u64::from(room[1]) + u64::from(2 * scale);
        (fits, lines)
    };
    let longest = prompt.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
    for scale in (unit..=3 * unit).rev() {
        let (fits, lines) = layout(scale);
        if fits && longest <= columns(room[0], scale) {
            return paragraph(image, left, top, scale, &lines);
        }
    }
    let (_, mut lines) = layout(unit);
    let most = (room[1] + 2 * unit) / (unit * font::LINE);
    if lines.len() > most as usize {
        lines.truncate(most as usize);
        if let Some(last) = lines.last_mut() {
            *last = shorten(&format!("{last}..."), columns(room[0], unit));
        }
    }
    paragraph(image, left, top, unit, &lines);
}

fn paragraph(image: &mut Image, left: u32, top: u32, scale: u32, lines: &[String]) {
    let shadow = scale.div_ceil(2);
    for (index, line) in lines.iter().enumerate() {
        let top = top + index as u32 * scale * font::LINE;
        text(image, left + shadow, top + shadow, scale, line, [16, 18, 26]);
        text(image, left, top, scale, line, WHITE);
    }
}

/// How many characters of a size stand side by side, at least 1.
fn columns(width: u32, scale: u32) -> usize {
    // The last character needs no gap behind it.
    (((width + scale) / (font::ADVANCE * scale)).max(1)) as usize
}

fn shorten(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let dots = if columns > 6 { "..." } else { "" };
    text.chars().take(columns - dots.len()).chain(dots.chars()).collect()
}

fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let mut word: Vec<char> = word.chars().collect();
        if let Some(line) = lines.last_mut().filter(|_| used + 1 + word.len() <= columns) {
            line.push(' ');
            line.extend(&word);
            used += 1 + word.len();
            continue;
        }
        while word.len() > columns {
            lines.push(word.drain(..columns).collect());
        }
        used = word.len();
        lines.push(word.into_iter().collect());
    }
    lines
}

/// Writes one line and returns where the next character would start.
fn text(image: &mut Image, left: u32, top: u32, scale: u32, text: &str, rgb: [u8; 3]) -> u32 {
    let mut left = left;
    for character in text.chars() {
        for (y, x) in (0..font::GLYPH_HEIGHT).flat_map(|y| (0..font::GLYPH_WIDTH).map(move |x| (y, x))) {
            if font::ink(character, x, y) {
                fill(image, [left + x * scale, top + y * scale, scale, scale], rgb, 256);
            }
        }
        left += font::ADVANCE * scale;
    }
    left
}

/// Mixes `[left, top, width, height]` with a colour, by `weight` of 256.
fn fill(image: &mut Image, area: [u32; 4], rgb: [u8; 3], weight: u32) {
    let [left, top, width, height] = area;
    let right = left.saturating_add(width).min(image.width());
    let keep = 256 - weight;
    let [red, green, blue] = rgb.map(|value| u32::from(value) * weight);
    for y in top..top.saturating_add(height).min(image.height()) {
        for pixel in image.row_mut(y, left, right).chunks_exact_mut(3) {
            // Written out, since tests draw without optimisation.
            pixel[0] = ((pixel[0] as u32 * keep + red) >> 8) as u8;
            pixel[1] = ((pixel[1] as u32 * keep + green) >> 8) as u8;
            pixel[2] = ((pixel[2] as u32 * keep + blue) >> 8) as u8;
        }
    }
}

fn shade(image: &mut Image, top: u32, bottom: u32) {
    let width = image.width();
    fill(image, [0, top, width, bottom.saturating_sub(top)], [12, 14, 22], 150);
}

fn progress_bar(image: &mut Image, area: [u32; 4], done: u32, total: u32) {
    let [left, top, width, height] = area;
    let share = u64::from(done.min(total)) * u64::from(width) / u64::from(total.max(1));
    fill(image, area, WHITE, 50);
    fill(image, [left, top, share as u32, height], WHITE, 220);
}

/// Four corner colours, related in hue and dark enough for white text.
fn gradient(width: u32, height: u32, random: &mut Random) -> Image {
    let mut image = Image::solid(width, height, [0; 3]);
    let hue = random.below(360) as i32;
    let turn = if random.below(2) == 0 { 1 } else { -1 };
    let mut corner = |degrees: i32, lightness: i32| {
        let wobble = random.below(30) as i32;
        hsl((hue + turn * (degrees + wobble)).rem_euclid(360), 62, lightness)
    };
    let corners = [corner(0, 47), corner(30, 36), corner(50, 36), corner(85, 24)];
    let (last_x, last_y) = (image.width().max(2) as i32 - 1, image.height().max(2) as i32 - 1);
    for y in 0..image.height() {
        // In 1/65536 of a step: where the row begins, and how much it changes from pixel to pixel.
        let side = |top: [i32; 3], bottom: [i32; 3]| -> [i64; 3] {
            let part =
                |channel: usize| i64::from(bottom[channel] - top[channel]) * i64::from(y) / i64::from(last_y);
            std::array::from_fn(|channel| (i64::from(top[channel]) + part(channel)) << 8)
        };
        let (mut value, right) = (side(corners[0], corners[2]), side(corners[1], corners[3]));
        let change: [i64; 3] =
            std::array::from_fn(|channel| (right[channel] - value[channel]) / i64::from(last_x));
        let end = image.width();
        for pixel in image.row_mut(y, 0, end).chunks_exact_mut(3) {
            pixel[0] = (value[0] >> 16) as u8;
            pixel[1] = (value[1] >> 16) as u8;
            pixel[2] = (value[2] >> 16) as u8;
            value[0] += change[0];
            value[1] += change[1];
            value[2] += change[2];
        }
    }
    image
}

/// A colour in 1/256 of a step per channel, so that gradients stay smooth.
fn hsl(hue: i32, saturation: i32, lightness: i32) -> [i32; 3] {
    let spread = saturation * lightness.min(100 - lightness) / 100;
    [0, 8, 4].map(|offset| {
        // 12 sections of the colour circle, in units of 1/30.
        let place = (offset * 30 + hue) % 360;
        let slope = (place - 90).min(270 - place).clamp(-30, 30);
        (lightness * 30 - spread * slope) * 255 * 256 / 3000
    })
}

/// A large pale disc somewhere, perhaps reaching over the border.
fn disc(image: &mut Image, random: &mut Random) {
    let (width, height) = (f64::from(image.width()), f64::from(image.height()));
    let mut share = || random.below(1 << 16) as f64 / f64::from(1 << 16);
    let (centre_x, centre_y) = (share() * width, share() * height);
    let radius = (0.12 + 0.33 * share()) * width.min(height);
    let weight = 14 + (share() * 18.0) as u32;
    for y in (centre_y - radius).max(0.0) as u32..((centre_y + radius).ceil() as u32).min(image.height()) {
        let across = f64::from(y) + 0.5 - centre_y;
        let half = (radius * radius - across * across).max(0.0).sqrt();
        let (from, to) = ((centre_x - half).max(0.0), (centre_x + half).max(0.0));
        let (left, right) = (from.ceil() as u32, to as u32);
        fill(image, [left, y, right.saturating_sub(left), 1], WHITE, weight);
        let soften = |covered: f64| (f64::from(weight) * covered) as u32;
        if left > 0 && left <= right {
            fill(image, [left - 1, y, 1, 1], WHITE, soften(f64::from(left) - from));
        }
        if left <= right {
            fill(image, [right, y, 1, 1], WHITE, soften(to - f64::from(right)));
        }
    }
}

/// Coarse noise as of an unfinished picture; `weight` of 256.
fn noise(image: &mut Image, weight: u64, random: &mut Random) {
    let cell = (image.width().max(image.height()) / 64).max(1);
    for top in (0..image.height()).step_by(cell as usize) {
        for left in (0..image.width()).step_by(cell as usize) {
            let bits = random.next();
            let rgb = [bits as u8, (bits >> 8) as u8, (bits >> 16) as u8].map(|value| value / 2 + 20);
            fill(image, [left, top, cell, cell], rgb, weight as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(width: u32, height: u32, prompt: &'static str, seed: u64) -> Card<'static> {
        Card { width, height, title: "model", lines: &[("cfg", "7.0")], prompt, seed, step: Some((20, 20)) }
    }

    #[test]
    fn equal_cards_are_equal_and_every_fact_shows() {
        let picture = draw(&card(128, 96, "a cat", 7));
        assert_eq!((picture.width(), picture.height()), (128, 96));
        assert_eq!(picture, draw(&card(128, 96, "a cat", 7)));
        assert_ne!(picture, draw(&card(128, 96, "a dog", 7)));
        assert_ne!(picture, draw(&card(128, 96, "a cat", 8)));
        assert_ne!(picture, draw(&Card { step: Some((3, 20)), ..card(128, 96, "a cat", 7) }));
    }

    #[test]
    fn any_size_and_text_can_be_drawn() {
        let long = "x".repeat(5000);
        for (width, height) in [(0, 0), (1, 1), (1, 900), (900, 1), (7, 13), (64, 64), (33, 2)] {
            for prompt in ["", " ", "漢字 \n\t\u{0}", &long] {
                let card = Card {
                    width,
                    height,
                    title: &long,
                    lines: &[("", ""), ("a", "b")],
                    prompt,
                    seed: u64::MAX,
                    step: Some((9, 0)),
                };
                assert_eq!(draw(&card).width(), width.max(1));
            }
        }
    }

    #[test]
    fn words_wrap_and_long_ones_break() {
        assert_eq!(wrap("a bb  ccc dddddddd", 4), ["a bb", "ccc", "dddd", "dddd"]);
        assert_eq!(shorten("abcdefghij", 8), "abcde...");
        assert_eq!(footer(&card(64, 64, "", 12_345_678_901), 6, 9).len(), 4);
    }
}
