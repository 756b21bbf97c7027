//! Calls ffmpeg and ffprobe, and takes every complaint of theirs for a failure.

use serde_json::Value;
use std::io::ErrorKind;
use std::process::{Command, Output};

/// A file on disk for as long as the test looks at it.
pub(crate) struct File(tempfile::NamedTempFile);

impl File {
    /// Writes `bytes` to a file with this ending.
    pub(crate) fn new(ending: &str, bytes: &[u8]) -> Self {
        let file = tempfile::Builder::new().suffix(&format!(".{ending}")).tempfile().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Self(file)
    }

    /// What ffmpeg makes of the file with these output options.
    pub(crate) fn decode(&self, options: &[&str]) -> Vec<u8> {
        let mut command = Command::new("ffmpeg");
        command.args(["-v", "error", "-xerror", "-nostdin", "-i"]).arg(self.0.path()).args(options).arg("-");
        run(&mut command).stdout
    }

    /// All frames as RGB.
    pub(crate) fn rgb24(&self) -> Vec<u8> {
        // Neither doubled nor dropped, whatever their times say; exact where a conversion is needed.
        self.decode(&["-map", "0:v:0", "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24"])
    }

    /// All samples, 16 bits little-endian.
    pub(crate) fn samples(&self) -> Vec<u8> {
        self.decode(&["-map", "0:a:0", "-f", "s16le"])
    }

    /// What ffprobe knows, after it read the whole file.
    pub(crate) fn probe(&self) -> Probe {
        let mut command = Command::new("ffprobe");
        let options = ["-v", "error", "-count_frames", "-show_streams", "-show_format", "-of", "json"];
        command.args(options).arg(self.0.path());
        Probe(serde_json::from_slice(&run(&mut command).stdout).unwrap())
    }
}

/// The answer of ffprobe.
pub(crate) struct Probe(Value);

impl Probe {
    /// The first stream of a kind, `video` or `audio`.
    pub(crate) fn stream(&self, kind: &str) -> &Value {
        let streams = self.0["streams"].as_array().unwrap();
        streams
            .iter()
            .find(|stream| stream["codec_type"] == kind)
            .unwrap_or_else(|| panic!("no {kind}: {}", self.0))
    }

    /// Codec, width, height and counted frames of the video.
    pub(crate) fn video(&self) -> (String, u64, u64, u64) {
        let video = self.stream("video");
        let frames = video["nb_read_frames"].as_str().unwrap().parse().unwrap();
        let codec = video["codec_name"].as_str().unwrap().to_owned();
        (codec, video["width"].as_u64().unwrap(), video["height"].as_u64().unwrap(), frames)
    }

    /// Length of the whole file in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.0["format"]["duration"].as_str().unwrap().parse().unwrap()
    }

    /// A text in the metadata of the file, or else of its first stream.
    pub(crate) fn tag(&self, key: &str) -> Option<&str> {
        let tags = [&self.0["format"]["tags"], &self.0["streams"][0]["tags"]];
        let same = |name: &str| name.eq_ignore_ascii_case(key);
        tags.into_iter()
            .filter_map(Value::as_object)
            .find_map(|tags| tags.iter().find(|(name, _)| same(name)).and_then(|(_, value)| value.as_str()))
    }
}

/// A file that ffmpeg makes from its own sources.
pub(crate) fn generate(sources: &[&str], ending: &str, options: &[&str]) -> Vec<u8> {
    let file = File::new(ending, &[]);
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-nostdin", "-y"]);
    for source in sources {
        command.args(["-f", "lavfi", "-i", source]);
    }
    run(command.args(options).arg(file.0.path()));
    std::fs::read(file.0.path()).unwrap()
}

/// Fails unless two pictures differ by no more than `most` per value on average.
#[track_caller]
pub(crate) fn assert_near(decoded: &[u8], expected: &[u8], most: f64) {
    assert_eq!(decoded.len(), expected.len(), "number of bytes");
    let sum: u64 = decoded.iter().zip(expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = sum as f64 / expected.len() as f64;
    assert!(mean <= most, "mean difference {mean}");
}

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{} is missing: install it, on Debian with `apt-get install ffmpeg`", program.display())
        }
        other => other.unwrap(),
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{command:?}: {}\n{complaints}", output.status);
    output
}
