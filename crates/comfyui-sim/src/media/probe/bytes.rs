//! Numbers at places that may not exist.

/// Bytes that are read at given places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    pub(super) fn u16(self, at: usize) -> Option<u32> {
        self.array(at).map(u16::from_be_bytes).map(u32::from)
    }

    pub(super) fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    pub(super) fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_be_bytes)
    }

    pub(super) fn u16_little(self, at: usize) -> Option<u32> {
        self.array(at).map(u16::from_le_bytes).map(u32::from)
    }

    pub(super) fn u32_little(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64_little(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Everything from a place on; nothing beyond the end.
    pub(super) fn from(self, at: usize) -> Self {
        Self(self.0.get(at..).unwrap_or_default())
    }

    /// Up to `length` bytes from a place on, fewer at the end.
    pub(super) fn part(self, at: usize, length: usize) -> &'a [u8] {
        let rest = self.from(at).0;
        &rest[..length.min(rest.len())]
    }
}
