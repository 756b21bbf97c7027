//! Pictures whose files are small and whose contents are not.

use anyhow::Result;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::io::Write;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    out.extend_from_slice(&crc.sum().to_be_bytes());
}

/// Zeros, compressed.
fn zeros(size: u64) -> Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    let piece = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        encoder.write_all(&piece[..now as usize])?;
        left -= now;
    }
    Ok(encoder.finish()?)
}

/// A PNG in RGBA of this size, all transparent, with these chunks before its pixels.
fn png(side: u32, more: &[([u8; 4], Vec<u8>)]) -> Result<Vec<u8>> {
    let mut out = SIGNATURE.to_vec();
    let mut header = Vec::new();
    header.extend_from_slice(&side.to_be_bytes());
    header.extend_from_slice(&side.to_be_bytes());
    header.extend_from_slice(&[8, 6, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    for (kind, data) in more {
        chunk(&mut out, kind, data);
    }
    let rows = u64::from(side) * (1 + 4 * u64::from(side));
    chunk(&mut out, b"IDAT", &zeros(rows)?);
    chunk(&mut out, b"IEND", &[]);
    Ok(out)
}

/// A small picture.
pub(crate) fn plain() -> Result<Vec<u8>> {
    png(16, &[])
}

/// A small picture with a text chunk that unpacks to this size.
pub(crate) fn text_bomb(kind: [u8; 4], size: u64) -> Result<Vec<u8>> {
    let packed = zeros(size)?;
    let mut data = b"prompt\0".to_vec();
    match &kind {
        b"iTXt" => data.extend_from_slice(&[1, 0, 0, 0]),
        _ => data.push(0),
    }
    data.extend_from_slice(&packed);
    png(16, &[(kind, data)])
}

/// A picture with very many pixels.
pub(crate) fn pixel_bomb(side: u32) -> Result<Vec<u8>> {
    png(side, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bombs_are_small() {
        assert!(text_bomb(*b"zTXt", 64 << 20).unwrap().len() < 100_000);
        assert!(plain().unwrap().starts_with(SIGNATURE));
    }
}
