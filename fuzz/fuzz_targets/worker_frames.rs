//! Any bytes as the live frames of a sidecar: whole, and in pieces. Both readings agree.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use remuda_sidecar::frames::{Decoder, decode, encode};

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(Bytes::copy_from_slice(bytes));
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    let mut bad = false;
    for piece in bytes.chunks(1 + bytes.first().map_or(0, |byte| usize::from(byte % 61))) {
        decoder.feed(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => found.push(Box::new(frame)),
                Ok(None) => break,
                Err(_) => {
                    bad = true;
                    break;
                }
            }
        }
        if bad {
            break;
        }
    }
    if let Ok(whole) = whole {
        assert!(
            !bad && whole.iter().eq(found.iter().map(|frame| &**frame)),
            "pieces are read otherwise than the whole"
        );
        let (again, taken) = encode(&found);
        assert!(taken <= found.len());
        assert!(decode(again).is_ok());
    }
});
