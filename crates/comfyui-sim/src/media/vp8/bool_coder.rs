//! The arithmetic coder of VP8 (RFC 6386, section 7).

/// Codes single decisions, each the cheaper the better it was foreseen.
#[derive(Debug)]
pub(super) struct BoolEncoder {
    out: Vec<u8>,
    range: u32,
    bottom: u32,
    /// Shifts until the next whole byte.
    count: u32,
}

impl Default for BoolEncoder {
    fn default() -> Self {
        Self { out: Vec::new(), range: 255, bottom: 0, count: 24 }
    }
}

impl BoolEncoder {
    /// Codes a decision that is `false` with `probability` of 256.
    pub(super) fn put(&mut self, value: bool, probability: u8) {
        let split = 1 + (((self.range - 1) * u32::from(probability)) >> 8);
        if value {
            self.bottom += split;
            self.range -= split;
        } else {
            self.range = split;
        }
        while self.range < 128 {
            self.range <<= 1;
            // The sum may run over into bytes that are already written.
            if self.bottom >> 31 == 1 {
                self.carry();
            }
            self.bottom <<= 1;
            self.count -= 1;
            if self.count == 0 {
                self.out.push((self.bottom >> 24) as u8);
                self.bottom &= 0x00ff_ffff;
                self.count = 8;
            }
        }
    }

    /// Codes the `count` lowest bits of a number as even decisions.
    pub(super) fn literal(&mut self, value: u32, count: u32) {
        for bit in (0..count).rev() {
            self.put(value >> bit & 1 == 1, 128);
        }
    }

    fn carry(&mut self) {
        for byte in self.out.iter_mut().rev() {
            let (sum, over) = byte.overflowing_add(1);
            *byte = sum;
            if !over {
                break;
            }
        }
    }

    /// All bytes; enough even decisions push out what is still inside.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.literal(0, 32);
        self.out
    }
}
