//! The picture that a person can read: which task made it, with what.

use super::Image;

/// What a picture says about the task that made it.
#[derive(Debug, Clone)]
pub struct Card<'a> {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The headline, for example the name of the checkpoint.
    pub title: &'a str,
    /// Small facts under the prompt, as `(label, value)`.
    pub lines: &'a [(&'a str, &'a str)],
    /// The prompt text, wrapped to the width.
    pub prompt: &'a str,
    /// Chooses the colours and the shape of the background, and is written out.
    pub seed: u64,
    /// How many steps of how many are done: a preview has less than all of them.
    pub step: Option<(u32, u32)>,
}

/// Draws a card.
pub fn draw(card: &Card<'_>) -> Image {
    let bytes = card.seed.to_le_bytes();
    Image::solid(card.width, card.height, [bytes[0], bytes[1], bytes[2]])
}
