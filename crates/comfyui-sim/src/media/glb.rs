//! glTF binary: a cube.

use super::tags;
use serde_json::{Map, Value, json};

/// A cube, with `metadata` under `asset.extras` as ComfyUI keeps them.
pub fn encode(metadata: &[(&str, &str)]) -> Vec<u8> {
    let buffer = buffer();
    let mut json = description(metadata, buffer.len()).to_string().into_bytes();
    // Both parts are filled up to whole words, the text with spaces.
    json.resize(json.len().next_multiple_of(4), b' ');
    let total = 12 + 8 + json.len() + 8 + buffer.len();
    let mut out = b"glTF\x02\0\0\0".to_vec();
    out.extend((total as u32).to_le_bytes());
    for (name, part) in [(b"JSON", &json), (b"BIN\0", &buffer)] {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(name);
        out.extend(part);
    }
    out
}

/// Corners in the order of their bits: x lowest.
const CORNERS: u32 = 8;
/// Two triangles for each side, seen from outside against the clock.
const TRIANGLES: [[u32; 3]; 12] = [
    [0, 2, 1],
    [1, 2, 3],
    [4, 5, 6],
    [5, 7, 6],
    [0, 1, 4],
    [1, 5, 4],
    [2, 6, 3],
    [3, 6, 7],
    [0, 4, 2],
    [2, 4, 6],
    [1, 3, 5],
    [3, 7, 5],
];
const POSITIONS_LENGTH: u32 = CORNERS * 12;
const INDICES_LENGTH: u32 = 12 * 12;

fn buffer() -> Vec<u8> {
    let mut buffer = Vec::new();
    for corner in 0..CORNERS {
        for bit in 0..3 {
            let place: f32 = if corner >> bit & 1 == 1 { 0.5 } else { -0.5 };
            buffer.extend(place.to_le_bytes());
        }
    }
    TRIANGLES.as_flattened().iter().for_each(|index| buffer.extend(index.to_le_bytes()));
    buffer
}

fn description(metadata: &[(&str, &str)], length: usize) -> Value {
    const FLOAT: u32 = 5126;
    const UNSIGNED_INT: u32 = 5125;
    const VERTICES: u32 = 34962;
    const INDICES: u32 = 34963;
    const TRIANGLE_LIST: u32 = 4;
    let mut asset = json!({"version": "2.0", "generator": tags::VENDOR});
    if !metadata.is_empty() {
        let extras: Map<String, Value> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        asset["extras"] = Value::Object(extras);
    }
    json!({
        "asset": asset,
        "buffers": [{"byteLength": length}],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": POSITIONS_LENGTH, "target": VERTICES},
            {"buffer": 0, "byteOffset": POSITIONS_LENGTH, "byteLength": INDICES_LENGTH, "target": INDICES},
        ],
        "accessors": [
            {
                "bufferView": 0, "byteOffset": 0, "componentType": FLOAT, "count": CORNERS, "type": "VEC3",
                "max": [0.5, 0.5, 0.5], "min": [-0.5, -0.5, -0.5],
            },
            {
                "bufferView": 1, "byteOffset": 0, "componentType": UNSIGNED_INT, "count": 3 * TRIANGLES.len(),
                "type": "SCALAR",
            },
        ],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1, "mode": TRIANGLE_LIST}]}],
        "nodes": [{"mesh": 0}],
        "scenes": [{"nodes": [0]}],
        "scene": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_where_the_header_says() {
        let file = encode(&[("prompt", "{\"ü\": 1}")]);
        let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!((&file[..4], number(4), number(8)), (&b"glTF"[..], 2, file.len()));
        let json = &file[20..20 + number(12)];
        let value: Value = serde_json::from_slice(json).unwrap();
        assert_eq!(value["asset"]["extras"]["prompt"], "{\"ü\": 1}");
        let bin = 20 + json.len();
        assert_eq!(bin % 4, 0);
        assert_eq!(value["buffers"][0]["byteLength"], number(bin));
        assert_eq!(number(bin), (POSITIONS_LENGTH + INDICES_LENGTH) as usize);
        assert_eq!(file.len(), bin + 8 + number(bin));
    }

    #[test]
    fn every_side_of_the_cube_looks_outwards() {
        let corner = |index: u32| [0, 1, 2].map(|bit| if index >> bit & 1 == 1 { 1 } else { -1 });
        for triangle in TRIANGLES {
            let [a, b, c] = triangle.map(corner);
            let edge = |from: [i32; 3], to: [i32; 3]| [0, 1, 2].map(|axis| to[axis] - from[axis]);
            let (u, v) = (edge(a, b), edge(a, c));
            let normal = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
            let outwards: i32 = normal
                .iter()
                .zip([0, 1, 2].map(|axis| a[axis] + b[axis] + c[axis]))
                .map(|(n, m)| n * m)
                .sum();
            assert!(outwards > 0, "{triangle:?}");
        }
    }
}
