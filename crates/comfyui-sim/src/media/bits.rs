//! Bits one by one, the highest of a byte first, as H.264, FLAC and JPEG want them.

/// Collects bits into bytes.
#[derive(Debug, Default)]
pub(super) struct BitWriter {
    bytes: Vec<u8>,
    /// Bits not yet in `bytes`, the last one lowest.
    pending: u64,
    /// How many of them, below 8 between calls.
    count: u32,
}

impl BitWriter {
    /// Appends the `count` lowest bits of `value`, at most 32.
    pub(super) fn put(&mut self, value: u32, count: u32) {
        debug_assert!(count <= 32);
        let value = u64::from(value) & ((1 << count) - 1);
        self.pending = (self.pending << count) | value;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.pending >> self.count) as u8);
        }
        self.pending &= (1 << self.count) - 1;
    }

    /// Appends zeros up to the next whole byte.
    pub(super) fn align(&mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }

    /// Appends whole bytes; the writer must stand at the border of one.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        debug_assert_eq!(self.count, 0);
        self.bytes.extend_from_slice(bytes);
    }

    /// The whole bytes so far.
    pub(super) fn whole(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes, the last one filled up with zeros.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.align();
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_packed_from_the_top() {
        let mut bits = BitWriter::default();
        bits.put(0b101, 3);
        bits.put(0xffff_ffff, 32);
        bits.put(0, 0);
        bits.put(0xfe, 1);
        assert_eq!(bits.finish(), [0b1011_1111, 0xff, 0xff, 0xff, 0b1110_0000]);
    }
}
