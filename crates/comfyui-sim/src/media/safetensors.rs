//! safetensors, the format of saved latents.

/// A latent of `shape` filled from `seed`, with `metadata` (all texts) in the header.
pub fn encode(shape: [usize; 4], seed: u64, metadata: &[(&str, &str)]) -> Vec<u8> {
    let _ = (shape, seed, metadata);
    b"\x02\0\0\0\0\0\0\0{}".to_vec()
}
