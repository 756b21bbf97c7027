//! Every kind of file that the simulator writes is decoded by the real ffmpeg, without a single complaint.
//!
//! Lossless kinds must come back pixel by pixel, the others nearly so; sizes, frame counts and durations must be
//! what was asked for. Without ffmpeg these tests fail: a file that nobody decoded proves nothing.

#![allow(clippy::unwrap_used, reason = "the helpers of a test stop where they cannot go on")]

#[path = "media_ffmpeg/tool.rs"]
mod tool;

use comfyui_sim::media::{self, Audio, Card, Image, card};
use tool::{File, assert_near};

/// Frames with text, gradients and noise, each another.
fn frames(width: u32, height: u32, count: u32) -> Vec<Image> {
    let draw = |index: u32| {
        let prompt = "a lighthouse in a storm";
        let (title, lines) = ("flux1-dev-fp8.safetensors", &[("sampler", "euler")]);
        let (seed, step) = (u64::from(index / 2), Some((index, count)));
        card::draw(&Card { width, height, title, lines, prompt, seed, step })
    };
    (0..count).map(draw).collect()
}

/// A tone on the left, another on the right.
fn two_tones(sample_rate: u32, seconds: f64) -> Audio {
    let [left, right] = [440.0, 660.0].map(|frequency| Audio::sine(sample_rate, 1, seconds, frequency));
    Audio::new(sample_rate, vec![left.channels()[0].clone(), right.channels()[0].clone()]).unwrap()
}

fn samples_i16(audio: &Audio) -> Vec<u8> {
    let to_i16 = |sample: f32| (sample * 32767.0).round() as i16;
    (0..audio.len())
        .flat_map(|index| {
            audio.channels().iter().flat_map(move |channel| to_i16(channel[index]).to_le_bytes())
        })
        .collect()
}

const METADATA: &[(&str, &str)] =
    &[("prompt", "{\"1\": {\"class_type\": \"Ü\"}}"), ("workflow", "{\"nodes\": []}")];

#[test]
fn still_pictures() {
    for (width, height) in [(256, 256), (64, 64), (333, 77), (1, 1)] {
        let image = frames(width, height, 4).remove(1);
        let png = File::new("png", &media::png::encode(&image, METADATA));
        assert_eq!(png.rgb24(), image.pixels(), "png {width}x{height}");
        let webp = File::new("webp", &media::webp::encode_still(&image, METADATA).unwrap());
        assert_eq!(webp.rgb24(), image.pixels(), "webp {width}x{height}");
        let jpeg = File::new("jpg", &media::jpeg::encode(&image, 95).unwrap());
        assert_near(&jpeg.rgb24(), image.pixels(), 9.0);
    }
}

#[test]
fn alpha_channels() {
    let image = frames(90, 50, 4).remove(1);
    let alpha: Vec<u8> = (0..90 * 50).map(|index| (index % 251) as u8).collect();
    let image = image.with_alpha(alpha.clone()).unwrap();
    for (ending, file) in [
        ("png", media::png::encode(&image, &[])),
        ("webp", media::webp::encode_still(&image, METADATA).unwrap()),
    ] {
        let rgba = File::new(ending, &file).decode(&["-f", "rawvideo", "-pix_fmt", "rgba"]);
        assert!(rgba.iter().skip(3).step_by(4).eq(&alpha), "{ending}");
    }
}

#[test]
fn animations() {
    let frames = frames(200, 120, 7);
    let all: Vec<u8> = frames.iter().flat_map(|frame| frame.pixels().to_vec()).collect();
    let apng = File::new("apng", &media::apng::encode(&frames, 8.0, METADATA).unwrap());
    assert_eq!(apng.probe().video(), ("apng".into(), 200, 120, 7));
    assert_eq!(apng.rgb24(), all);
    let gif = File::new("gif", &media::gif::encode(&frames, 8.0).unwrap());
    assert_eq!(gif.probe().video(), ("gif".into(), 200, 120, 7));
    assert!((gif.probe().seconds() - 7.0 / 8.0).abs() < 0.02);
    assert_near(&gif.rgb24(), &all, 16.0);
}

/// The ffmpeg of Debian 12 does not read animated WebP, so each frame is taken out and shown to it alone.
#[test]
fn animated_webp() {
    let frames = frames(120, 80, 3);
    let file = media::webp::encode_animated(&frames, 8.0, METADATA).unwrap();
    let chunks = riff_chunks(&file[12..]);
    let names: Vec<&[u8]> = chunks.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [&b"VP8X"[..], b"ANIM", b"ANMF", b"ANMF", b"ANMF", b"EXIF"]);
    for (frame, (_, contents)) in frames.iter().zip(&chunks[2..]) {
        let picture = &contents[16..];
        let mut still = b"RIFF".to_vec();
        still.extend((picture.len() as u32 + 4).to_le_bytes());
        still.extend(b"WEBP");
        still.extend(picture);
        assert_eq!(File::new("webp", &still).rgb24(), frame.pixels());
    }
}

/// Names and contents of the chunks side by side.
fn riff_chunks(mut bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut chunks = Vec::new();
    while bytes.len() >= 8 {
        let size = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        chunks.push((&bytes[..4], &bytes[8..8 + size]));
        bytes = &bytes[8 + size.next_multiple_of(2)..];
    }
    assert!(bytes.is_empty());
    chunks
}

#[test]
fn sounds() {
    for sample_rate in [8_000, 44_100, 96_000, 11_111] {
        for audio in [two_tones(sample_rate, 1.37), Audio::silence(sample_rate, 1, 0.7)] {
            let seconds = audio.seconds();
            let flac = File::new("flac", &media::flac::encode(&audio, METADATA).unwrap());
            assert_eq!(flac.samples(), samples_i16(&audio), "flac at {sample_rate}");
            let wav = File::new("wav", &media::wav::encode(&audio).unwrap());
            assert_eq!(wav.samples(), samples_i16(&audio), "wav at {sample_rate}");
            let mp3 = File::new("mp3", &media::mp3::encode(&audio, METADATA).unwrap());
            let opus = File::new("opus", &media::opus::encode(&audio, METADATA).unwrap());
            for (name, file) in [("flac", &flac), ("mp3", &mp3), ("opus", &opus)] {
                let probe = file.probe();
                assert_eq!(probe.stream("audio")["codec_name"], name);
                assert_eq!(probe.stream("audio")["channels"], audio.channels().len());
                assert_eq!(probe.tag("prompt"), Some(METADATA[0].1), "{name}");
                assert_eq!(probe.tag("workflow"), Some(METADATA[1].1), "{name}");
                let rate: f64 = probe.stream("audio")["sample_rate"].as_str().unwrap().parse().unwrap();
                let decoded = file.samples().len() as f64 / (2 * audio.channels().len()) as f64 / rate;
                assert!(
                    (decoded - seconds).abs() < 0.001,
                    "{name} at {sample_rate}: {decoded} of {seconds} s"
                );
                // MP3 counts whole frames, with what players cut off at both ends.
                let surplus = probe.seconds() - seconds;
                let most = if name == "mp3" { 2400.0 / rate } else { 0.01 };
                assert!((-0.001..most).contains(&surplus), "{name}: {surplus} s more than {seconds} s");
            }
        }
    }
}

/// Films in MP4: sizes, times, sound and metadata.
#[test]
fn mp4() {
    for (width, height, count, fps) in
        [(64, 64, 5, 8.0), (200, 120, 30, 24.0), (33, 17, 3, 29.97), (512, 512, 2, 0.5)]
    {
        let frames = frames(width, height, count);
        let seconds = f64::from(count) / fps;
        let audio = two_tones(22_050, seconds + 1.0);
        for audio in [None, Some(&audio)] {
            let file = File::new("mp4", &media::mp4::encode(&frames, fps, audio, METADATA).unwrap());
            let (width, height) = (width.next_multiple_of(2), height.next_multiple_of(2));
            let probe = file.probe();
            assert_eq!(probe.video(), ("h264".into(), width.into(), height.into(), count.into()));
            assert!((probe.seconds() - seconds).abs() < 0.01, "{} of {seconds} s", probe.seconds());
            assert_eq!(probe.tag("prompt"), Some(METADATA[0].1));
            assert_eq!(probe.tag("workflow"), Some(METADATA[1].1));
            let grown: Vec<u8> = frames.iter().flat_map(|frame| grow(frame).pixels().to_vec()).collect();
            assert_near(&file.rgb24(), &grown, 6.0);
            if let Some(audio) = audio {
                assert_eq!(probe.stream("audio")["codec_name"], "flac");
                let length = (22_050.0 * seconds).ceil() as usize;
                assert_eq!(file.samples(), samples_i16(&audio.first(length)));
            }
        }
    }
}

/// Films in WebM.
#[test]
fn webm() {
    for (width, height, count, fps) in
        [(64, 64, 5, 8.0), (200, 120, 30, 12.0), (33, 17, 3, 29.97), (512, 512, 2, 0.5)]
    {
        let frames = frames(width, height, count);
        let seconds = f64::from(count) / fps;
        let audio = two_tones(44_100, seconds);
        for audio in [None, Some(&audio)] {
            let file = File::new("webm", &media::webm::encode(&frames, fps, audio, METADATA).unwrap());
            let probe = file.probe();
            assert_eq!(probe.video(), ("vp8".into(), width.into(), height.into(), count.into()));
            assert!((probe.seconds() - seconds).abs() < 0.03, "{} of {seconds} s", probe.seconds());
            assert_eq!(probe.tag("prompt"), Some(METADATA[0].1));
            assert_eq!(probe.tag("workflow"), Some(METADATA[1].1));
            let all: Vec<u8> = frames.iter().flat_map(|frame| frame.pixels().to_vec()).collect();
            assert_near(&file.rgb24(), &all, 9.0);
            if audio.is_some() {
                assert_eq!(probe.stream("audio")["codec_name"], "opus");
                let decoded = file.samples().len() as f64 / 4.0 / 48_000.0;
                assert!((decoded - seconds).abs() < 0.03, "{decoded} of {seconds} s");
            }
        }
    }
}

/// What others wrote is known, too: the sizes, rates and lengths that a node asks for.
#[test]
fn files_of_ffmpeg_are_known() {
    let tone = "sine=frequency=440:sample_rate=44100:duration=2";
    for (ending, options) in [
        ("mp4", &["-c:v", "mpeg4", "-c:a", "aac"][..]),
        ("mp4", &["-c:v", "mpeg4", "-c:a", "aac", "-movflags", "faststart"]),
        ("mov", &["-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "-c:a", "pcm_s16le"]),
        ("mkv", &["-c:v", "mpeg4", "-c:a", "flac"]),
        ("webm", &["-c:v", "libvpx", "-c:a", "libopus"]),
        ("mkv", &["-c:v", "mpeg4", "-c:a", "flac", "-live", "1"]),
    ] {
        let file = tool::generate(&["testsrc=size=96x64:rate=15:duration=2", tone], ending, options);
        let info = media::probe::video(&file).unwrap();
        assert_eq!(
            (info.width, info.height, info.frames, info.has_audio),
            (96, 64, 30, true),
            "{ending} {options:?}"
        );
        assert!((info.fps - 15.0).abs() < 0.01, "{ending} {options:?}: {info:?}");
        // A stream that was written live does not know its length.
        if !options.contains(&"-live") {
            let sound = media::probe::audio(&file).unwrap();
            assert!((sound.seconds - 2.0).abs() < 0.1, "{ending} {options:?}: {sound:?}");
            assert_eq!(sound.channels, 1, "{ending} {options:?}");
        }
    }
    let gif = tool::generate(&["testsrc=size=96x64:rate=10:duration=1"], "gif", &[]);
    let info = media::probe::video(&gif).unwrap();
    assert_eq!((info.width, info.height, info.frames, info.fps), (96, 64, 10, 10.0));
    for (ending, options) in [
        ("wav", &[][..]),
        ("flac", &[]),
        ("mp3", &[]),
        ("mp3", &["-write_xing", "0", "-id3v2_version", "0"]),
        ("ogg", &["-c:a", "libvorbis"]),
        ("opus", &[]),
        ("m4a", &[]),
    ] {
        let file = tool::generate(&[tone], ending, options);
        let info = media::probe::audio(&file).unwrap();
        assert!((info.seconds - 2.0).abs() < 0.1, "{ending} {options:?}: {info:?}");
        assert_eq!(info.channels, 1, "{ending} {options:?}");
        let rate = if ending == "opus" { 48_000 } else { 44_100 };
        assert_eq!(info.sample_rate, rate, "{ending} {options:?}");
    }
}

/// Uploads come in all formats: what is read from them is what ffmpeg reads.
#[test]
fn pictures_of_ffmpeg_are_read() {
    for (ending, options, most) in [
        ("png", &["-pix_fmt", "rgb48be"][..], 0.5),
        ("png", &["-pix_fmt", "pal8"], 0.0),
        ("jpg", &["-q:v", "2"], 4.0),
        ("jpg", &["-q:v", "2", "-pix_fmt", "yuvj444p"], 1.0),
        ("jpg", &["-q:v", "2", "-pix_fmt", "gray"], 1.0),
        ("webp", &["-lossless", "1", "-pix_fmt", "bgra"], 0.0),
        // ffmpeg enlarges the colours otherwise than libwebp, which we follow.
        ("webp", &["-quality", "95"], 10.0),
        ("bmp", &["-pix_fmt", "bgr24"], 0.0),
        ("bmp", &["-pix_fmt", "pal8"], 0.0),
        ("gif", &[], 0.0),
    ] {
        let options = [options, &["-frames:v", "1"]].concat();
        let file = tool::generate(&["testsrc=size=97x61:rate=1:duration=1"], ending, &options);
        let image = media::decode::any(&file).unwrap();
        assert_eq!((image.width(), image.height()), (97, 61), "{ending} {options:?}");
        println!("{ending} {options:?}");
        assert_near(image.pixels(), &File::new(ending, &file).rgb24(), most);
    }
}

/// The picture with even sides: where one is odd, the last pixel is repeated.
fn grow(image: &Image) -> Image {
    let (width, height) = (image.width().next_multiple_of(2), image.height().next_multiple_of(2));
    let mut grown = Image::solid(width, height, [0; 3]);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        grown.set_pixel(x, y, image.pixel(x.min(image.width() - 1), y.min(image.height() - 1)));
    }
    grown
}
