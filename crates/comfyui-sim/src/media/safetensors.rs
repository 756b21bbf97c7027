//! safetensors, the format of saved latents.

use super::random::Random;
use serde_json::{Map, Value, json};

/// A latent of `shape` filled from `seed`, with `metadata` in the header.
///
/// The tensors have the names that ComfyUI gives them. A shape without room in memory becomes an empty one.
pub fn encode(shape: [usize; 4], seed: u64, metadata: &[(&str, &str)]) -> Vec<u8> {
    let count = shape.iter().try_fold(1usize, |count, side| count.checked_mul(*side));
    let (shape, count) = match count.filter(|count| *count <= isize::MAX as usize / 16) {
        Some(count) => (shape, count),
        None => ([0; 4], 0),
    };
    let mut header = Map::new();
    if !metadata.is_empty() {
        let texts: Map<String, Value> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        header.insert("__metadata__".into(), Value::Object(texts));
    }
    header.insert(
        "latent_format_version_0".into(),
        json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    );
    header.insert(
        "latent_tensor".into(),
        json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}),
    );
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Vec::with_capacity(8 + header.len() + 4 * count);
    out.extend((header.len() as u64).to_le_bytes());
    out.extend(header);
    let mut random = Random::new(seed);
    for _ in 0..count {
        // 24 random bits between -1 and 1.
        let value = (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        out.extend(value.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_data_fit() {
        let file = encode([1, 4, 2, 3], 5, &[("prompt", "{}")]);
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        assert_eq!(header["latent_tensor"]["shape"], json!([1, 4, 2, 3]));
        assert_eq!(header["latent_tensor"]["data_offsets"], json!([0, 96]));
        assert_eq!(header["__metadata__"]["prompt"], "{}");
        assert_eq!(file.len(), 8 + length + 96);
        let values = file[8 + length..].chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        assert!(values.clone().all(|value| (-1.0..1.0).contains(&value)));
        assert!(values.clone().any(|value| value < 0.0) && values.clone().any(|value| value > 0.0));
    }

    #[test]
    fn a_shape_beyond_memory_is_empty() {
        let file = encode([usize::MAX, 2, 2, 2], 5, &[]);
        assert!(file.len() < 300);
    }
}
