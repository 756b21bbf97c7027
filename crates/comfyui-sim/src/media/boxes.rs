//! The nested boxes of MP4: a size, a name, contents.

/// A file of boxes in the making.
#[derive(Debug, Default)]
pub(super) struct Boxes(Vec<u8>);

impl Boxes {
    /// A box with this name and what `contents` writes.
    pub(super) fn put(&mut self, name: &[u8; 4], contents: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(name);
        contents(self);
        let size = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&size.to_be_bytes());
    }

    /// Ends the box that began at `start` with eight bytes of size and name.
    ///
    /// If it became too large for the four bytes of its size, it takes over the empty box before it.
    pub(super) fn close_large(&mut self, start: usize) {
        let size = self.0.len() - start;
        match u32::try_from(size) {
            Ok(size) => self.0[start..start + 4].copy_from_slice(&size.to_be_bytes()),
            Err(_) => {
                let name = [1u32.to_be_bytes(), [b'm', b'd', b'a', b't']].concat();
                self.0[start - 8..start].copy_from_slice(&name);
                self.0[start..start + 8].copy_from_slice(&(size as u64 + 8).to_be_bytes());
            }
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u32s(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.0.extend(value.to_be_bytes()));
    }

    pub(super) fn u64s(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.0.extend(value.to_be_bytes()));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The version and flags with which many boxes begin.
pub(super) fn full(out: &mut Boxes, version: u8, flags: u32) {
    out.u32s(&[u32::from(version) << 24 | flags]);
}
