//! The nested elements of Matroska and WebM: an id, a size, contents.

/// Elements in the making.
#[derive(Debug, Default)]
pub(super) struct Elements(Vec<u8>);

/// A size of eight bytes that can be written before it is known.
const SIZE_BYTES: usize = 8;

impl Elements {
    /// An element with this id and what `contents` writes.
    pub(super) fn put(&mut self, id: u32, contents: impl FnOnce(&mut Self)) {
        self.id(id);
        let start = self.0.len() + SIZE_BYTES;
        self.0.extend([0; SIZE_BYTES]);
        contents(self);
        let size = (self.0.len() - start) as u64 | 1 << 56;
        self.0[start - SIZE_BYTES..start].copy_from_slice(&size.to_be_bytes());
    }

    /// An element that holds a whole number, in eight bytes so that it can be overwritten.
    pub(super) fn number(&mut self, id: u32, value: u64) {
        self.small(id, &value.to_be_bytes());
    }

    /// An element that holds a floating-point number.
    pub(super) fn float(&mut self, id: u32, value: f64) {
        self.small(id, &value.to_be_bytes());
    }

    /// An element that holds a text.
    pub(super) fn text(&mut self, id: u32, text: &str) {
        self.put(id, |out| out.bytes(text.as_bytes()));
    }

    /// An element of fewer than 127 bytes, whose size fits in one.
    fn small(&mut self, id: u32, contents: &[u8]) {
        self.id(id);
        self.0.push(0x80 | contents.len() as u8);
        self.0.extend_from_slice(contents);
    }

    /// Ids carry the mark of their length in themselves.
    fn id(&mut self, id: u32) {
        let bytes = id.to_be_bytes();
        self.0.extend_from_slice(&bytes[id.leading_zeros() as usize / 8..]);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Overwrites the value of a [`number`](Self::number) that began at `start`.
    pub(super) fn overwrite_number(&mut self, start: usize, id: u32, value: u64) {
        let from = start + 5 - id.leading_zeros() as usize / 8;
        self.0[from..from + 8].copy_from_slice(&value.to_be_bytes());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The elements that we write or read.
pub(super) mod id {
    pub(in super::super) const HEADER: u32 = 0x1a45_dfa3;
    pub(in super::super) const VERSION: u32 = 0x4286;
    pub(in super::super) const READ_VERSION: u32 = 0x42f7;
    pub(in super::super) const MAX_ID_LENGTH: u32 = 0x42f2;
    pub(in super::super) const MAX_SIZE_LENGTH: u32 = 0x42f3;
    pub(in super::super) const DOC_TYPE: u32 = 0x4282;
    pub(in super::super) const DOC_TYPE_VERSION: u32 = 0x4287;
    pub(in super::super) const DOC_TYPE_READ_VERSION: u32 = 0x4285;
    pub(in super::super) const SEGMENT: u32 = 0x1853_8067;
    pub(in super::super) const SEEK_HEAD: u32 = 0x114d_9b74;
    pub(in super::super) const SEEK: u32 = 0x4dbb;
    pub(in super::super) const SEEK_ID: u32 = 0x53ab;
    pub(in super::super) const SEEK_POSITION: u32 = 0x53ac;
    pub(in super::super) const INFO: u32 = 0x1549_a966;
    pub(in super::super) const TIMESTAMP_SCALE: u32 = 0x2a_d7b1;
    pub(in super::super) const DURATION: u32 = 0x4489;
    pub(in super::super) const MUXING_APP: u32 = 0x4d80;
    pub(in super::super) const WRITING_APP: u32 = 0x5741;
    pub(in super::super) const TRACKS: u32 = 0x1654_ae6b;
    pub(in super::super) const TRACK_ENTRY: u32 = 0xae;
    pub(in super::super) const TRACK_NUMBER: u32 = 0xd7;
    pub(in super::super) const TRACK_UID: u32 = 0x73c5;
    pub(in super::super) const TRACK_TYPE: u32 = 0x83;
    pub(in super::super) const LACING: u32 = 0x9c;
    pub(in super::super) const DEFAULT_DURATION: u32 = 0x23_e383;
    pub(in super::super) const CODEC_ID: u32 = 0x86;
    pub(in super::super) const CODEC_PRIVATE: u32 = 0x63a2;
    pub(in super::super) const CODEC_DELAY: u32 = 0x56aa;
    pub(in super::super) const SEEK_PRE_ROLL: u32 = 0x56bb;
    pub(in super::super) const VIDEO: u32 = 0xe0;
    pub(in super::super) const WIDTH: u32 = 0xb0;
    pub(in super::super) const HEIGHT: u32 = 0xba;
    pub(in super::super) const AUDIO: u32 = 0xe1;
    pub(in super::super) const SAMPLE_RATE: u32 = 0xb5;
    pub(in super::super) const CHANNELS: u32 = 0x9f;
    pub(in super::super) const TAGS: u32 = 0x1254_c367;
    pub(in super::super) const TAG: u32 = 0x7373;
    pub(in super::super) const TARGETS: u32 = 0x63c0;
    pub(in super::super) const SIMPLE_TAG: u32 = 0x67c8;
    pub(in super::super) const TAG_NAME: u32 = 0x45a3;
    pub(in super::super) const TAG_STRING: u32 = 0x4487;
    pub(in super::super) const CLUSTER: u32 = 0x1f43_b675;
    pub(in super::super) const TIMESTAMP: u32 = 0xe7;
    pub(in super::super) const SIMPLE_BLOCK: u32 = 0xa3;
    pub(in super::super) const CUES: u32 = 0x1c53_bb6b;
    pub(in super::super) const CUE_POINT: u32 = 0xbb;
    pub(in super::super) const CUE_TIME: u32 = 0xb3;
    pub(in super::super) const CUE_TRACK_POSITIONS: u32 = 0xb7;
    pub(in super::super) const CUE_TRACK: u32 = 0xf7;
    pub(in super::super) const CUE_CLUSTER_POSITION: u32 = 0xf1;
}
