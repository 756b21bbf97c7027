//! What a client is to be told, in order, and how far each of its sockets has read.
//!
//! Texts wait for a client that is away or slow, up to a bound; then the oldest are forgotten. Pictures wait for sockets
//! that are open, and are the first to go.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use axum::extract::ws::{Message, Utf8Bytes};
use bytes::Bytes;

use super::shelf::Shelf;

/// How many texts may wait for a client …
pub(super) const TEXTS: usize = 1000;

/// … and how many bytes of them.
const TEXT_BYTES: usize = 4 << 20;

/// How many bytes of pictures may wait for a slow reader …
const PICTURE_BYTES: usize = 32 << 20;

/// … and how many pictures.
const PICTURES: usize = 256;

/// How many texts wait when the tenant's mailboxes are full together …
const FEW_TEXTS: usize = 64;

/// … and how many bytes of texts, and of pictures.
const FEW_BYTES: usize = 64 << 10;

/// The place of something in the mailbox; grows for ever.
pub(super) type Place = u64;

/// Names one reader.
pub(super) type ReaderId = u64;

/// A picture, or another binary message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Picture {
    /// For sockets that said that they understand what is written about a picture.
    pub(super) labelled: Option<Bytes>,
    /// For the others.
    pub(super) plain: Option<Bytes>,
    /// Whether the next one makes it worthless.
    pub(super) fleeting: bool,
}

impl Picture {
    fn size(&self) -> usize {
        // When both are there they share their bytes, or nearly so.
        self.labelled.as_ref().or(self.plain.as_ref()).map_or(0, Bytes::len)
    }
}

#[derive(Debug)]
enum Item {
    Text(Utf8Bytes),
    Picture(Picture),
    /// Read by all who wanted it, or dropped.
    Gone,
}

#[derive(Debug)]
struct Reader {
    /// Everything before was handed to its connection …
    sent: Place,
    /// … and this much arrived at the other end.
    arrived: Place,
}

/// What a client is to be told.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    items: VecDeque<Item>,
    /// The place of the first item.
    first: Place,
    texts: usize,
    text_bytes: usize,
    /// The places of the pictures.
    pictures: VecDeque<Place>,
    picture_bytes: usize,
    readers: HashMap<ReaderId, Reader>,
    last_reader: ReaderId,
    /// What came before this place arrived at a socket that has left.
    left_at: Place,
    /// Where the bytes of the whole tenant are counted.
    shelf: Arc<Shelf>,
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.shelf.remove(self.text_bytes + self.picture_bytes);
    }
}

impl Mailbox {
    /// An empty one, whose bytes are counted there.
    pub(super) fn new(shelf: Arc<Shelf>) -> Self {
        let mut new = Self::default();
        new.shelf = shelf;
        new
    }

    /// The place of what comes next.
    pub(super) fn end(&self) -> Place {
        self.first + self.items.len() as Place
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    pub(super) fn push(&mut self, text: String) {
        self.texts += 1;
        self.text_bytes += text.len();
        self.shelf.add(text.len());
        self.items.push_back(Item::Text(text.into()));
        let (texts, bytes) = if self.shelf.is_full() { (FEW_TEXTS, FEW_BYTES) } else { (TEXTS, TEXT_BYTES) };
        while self.texts > texts || (self.text_bytes > bytes && self.texts > 1) {
            self.drop_first();
        }
    }

    /// Pictures are for who looks.
    pub(super) fn show(&mut self, picture: Picture) {
        if self.readers.is_empty() {
            return;
        }
        self.pictures.push_back(self.end());
        self.picture_bytes += picture.size();
        self.shelf.add(picture.size());
        self.items.push_back(Item::Picture(picture));
        let bytes = if self.shelf.is_full() { FEW_BYTES } else { PICTURE_BYTES };
        while self.pictures.len() > PICTURES || (self.picture_bytes > bytes && self.pictures.len() > 1) {
            let newest = self.pictures.len() - 1;
            let fleeting = |place: &Place| match self.item(*place) {
                Some(Item::Picture(picture)) => picture.fleeting,
                _ => true,
            };
            let at = self.pictures.iter().take(newest).position(fleeting).unwrap_or(0);
            let Some(place) = self.pictures.get(at).copied() else { break };
            self.drop_picture(place);
        }
    }

    /// A socket comes: it reads from where the last one of this client stopped, as far as that is known and still there.
    pub(super) fn join(&mut self) -> (ReaderId, Place) {
        // One that is silently dead still counts as a reader, and has not got what it was sent.
        let slowest = self.readers.values().map(|reader| reader.arrived).min();
        let from = slowest.unwrap_or(0).max(self.left_at).max(self.first);
        self.last_reader += 1;
        self.readers.insert(self.last_reader, Reader { sent: from, arrived: from });
        (self.last_reader, from)
    }

    /// A socket leaves. `whole`: everything that was sent to it arrived.
    pub(super) fn leave(&mut self, id: ReaderId, whole: bool) {
        if let Some(reader) = self.readers.remove(&id) {
            self.left_at = self.left_at.max(if whole { reader.sent } else { reader.arrived });
        }
        if self.readers.is_empty() {
            for place in std::mem::take(&mut self.pictures) {
                self.drop_picture(place);
            }
        }
        self.forget();
    }

    /// What was sent before this place arrived.
    pub(super) fn arrived(&mut self, id: ReaderId, place: Place) {
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.arrived = reader.arrived.max(place.min(reader.sent));
            self.forget();
        }
    }

    /// The place behind what was sent to a reader.
    pub(super) fn sent(&self, id: ReaderId) -> Place {
        self.readers.get(&id).map_or(0, |reader| reader.sent)
    }

    /// The next message for a reader.
    pub(super) fn next(&mut self, id: ReaderId, labelled: bool) -> Option<Message> {
        loop {
            let first = self.first;
            let reader = self.readers.get_mut(&id)?;
            let place = reader.sent.max(first);
            let message = match self.items.get(usize::try_from(place - first).ok()?)? {
                Item::Text(text) => Some(Message::Text(text.clone())),
                Item::Picture(Picture { labelled: Some(bytes), .. }) if labelled => {
                    Some(Message::Binary(bytes.clone()))
                }
                Item::Picture(Picture { plain: Some(bytes), .. }) if !labelled => {
                    Some(Message::Binary(bytes.clone()))
                }
                Item::Picture(_) | Item::Gone => None,
            };
            reader.sent = place + 1;
            if self.readers.values().all(|reader| reader.sent > place) {
                self.drop_picture(place);
            }
            if message.is_some() {
                return message;
            }
        }
    }

    fn item(&self, place: Place) -> Option<&Item> {
        self.items.get(usize::try_from(place.checked_sub(self.first)?).ok()?)
    }

    fn drop_picture(&mut self, place: Place) {
        let Some(at) = place.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()) else { return };
        let Some(item @ Item::Picture(_)) = self.items.get_mut(at) else { return };
        if let Item::Picture(picture) = std::mem::replace(item, Item::Gone) {
            self.picture_bytes -= picture.size();
            self.shelf.remove(picture.size());
        }
        self.pictures.retain(|known| *known != place);
    }

    fn drop_first(&mut self) {
        self.drop_picture(self.first);
        if let Some(item) = self.items.pop_front() {
            self.first += 1;
            if let Item::Text(text) = item {
                self.texts -= 1;
                self.text_bytes -= text.len();
                self.shelf.remove(text.len());
            }
        }
    }

    /// What everybody has is not kept.
    fn forget(&mut self) {
        let slowest = self.readers.values().map(|reader| reader.arrived).min();
        let kept_from = slowest.unwrap_or(self.left_at);
        while self.first < kept_from && !self.items.is_empty() {
            self.drop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mailbox: &mut Mailbox, id: ReaderId, labelled: bool) -> Vec<String> {
        let read = std::iter::from_fn(|| mailbox.next(id, labelled));
        read.map(|message| String::from_utf8_lossy(&message.into_data()).into_owned()).collect()
    }

    fn picture(name: &'static str, fleeting: bool) -> Picture {
        let bytes = Bytes::from_static(name.as_bytes());
        Picture { labelled: Some(bytes.clone()), plain: Some(bytes), fleeting }
    }

    #[test]
    fn who_comes_back_gets_what_did_not_arrive_and_nothing_twice() {
        let mut mailbox = Mailbox::default();
        mailbox.push("0".to_owned());
        let (first, _) = mailbox.join();
        assert_eq!(all(&mut mailbox, first, false), ["0"], "what came before the first socket");
        mailbox.push("1".to_owned());
        assert_eq!(all(&mut mailbox, first, false), ["1"]);
        mailbox.leave(first, true);
        mailbox.push("2".to_owned());
        mailbox.show(picture("nobody looks", false));
        let (second, _) = mailbox.join();
        assert_eq!(all(&mut mailbox, second, false), ["2"]);
        mailbox.push("3".to_owned());
        mailbox.push("4".to_owned());
        assert_eq!(all(&mut mailbox, second, false), ["3", "4"]);
        mailbox.arrived(second, 4);
        // It is dead, and nobody knows yet.
        let (third, _) = mailbox.join();
        assert_eq!(all(&mut mailbox, third, false), ["4"]);
        mailbox.leave(third, true);
        mailbox.leave(second, false);
        let (fourth, _) = mailbox.join();
        assert!(all(&mut mailbox, fourth, false).is_empty());
        mailbox.push("5".to_owned());
        assert_eq!(all(&mut mailbox, fourth, false), ["5"]);
        mailbox.arrived(fourth, 6);
        assert!(mailbox.items.is_empty() && mailbox.texts == 0 && mailbox.text_bytes == 0);
    }

    #[test]
    fn two_sockets_get_the_same_and_pictures_as_they_understand_them() {
        let mut mailbox = Mailbox::default();
        let (one, _) = mailbox.join();
        let (two, _) = mailbox.join();
        let labelled = Bytes::from_static(b"labelled");
        let plain = Bytes::from_static(b"plain");
        mailbox.show(Picture { labelled: Some(labelled), plain: None, fleeting: true });
        mailbox.push("step".to_owned());
        mailbox.show(Picture { labelled: None, plain: Some(plain), fleeting: true });
        assert_eq!(all(&mut mailbox, one, true), ["labelled", "step"]);
        assert_eq!(all(&mut mailbox, two, false), ["step", "plain"]);
        assert!(mailbox.pictures.is_empty() && mailbox.picture_bytes == 0);
    }

    #[test]
    fn a_slow_reader_costs_a_bounded_amount_and_keeps_results_longest() {
        let mut mailbox = Mailbox::default();
        let (slow, _) = mailbox.join();
        mailbox.show(picture("result", false));
        for n in 0..10 * PICTURES {
            mailbox.show(picture("preview", true));
            assert!(mailbox.pictures.len() <= PICTURES, "{n}");
        }
        let read = all(&mut mailbox, slow, false);
        assert_eq!((read.len(), read[0].as_str()), (PICTURES, "result"));
        for n in 0..3 * TEXTS {
            mailbox.push(n.to_string());
        }
        assert_eq!(mailbox.texts, TEXTS);
        let read = all(&mut mailbox, slow, false);
        assert_eq!((read.len(), read[0].as_str()), (TEXTS, "2000"));
        for _ in 0..3 {
            mailbox.push("x".repeat(TEXT_BYTES / 2));
        }
        assert!(mailbox.text_bytes <= TEXT_BYTES);
        assert_eq!(all(&mut mailbox, slow, false).len(), 2);
    }

    #[test]
    fn many_mailboxes_of_a_tenant_cost_a_bounded_amount_together() {
        let shelf = Arc::new(Shelf::default());
        let mut mailboxes: Vec<Mailbox> = (0..100).map(|_| Mailbox::new(Arc::clone(&shelf))).collect();
        for mailbox in &mut mailboxes {
            for n in 0..100 {
                mailbox.push(format!("{n}{}", "x".repeat(20 << 10)));
            }
        }
        let kept: usize = mailboxes.iter().map(|mailbox| mailbox.text_bytes).sum();
        assert!(kept < 64 << 20, "{kept} bytes");
        assert!(mailboxes.iter().all(|mailbox| mailbox.texts > 0), "everybody has the last news");
        assert!(shelf.is_full());
        drop(mailboxes);
        assert!(!shelf.is_full());
    }
}
