//! What travels along the links: as little as the pictures, sounds and films at the end need.

use super::tensor;
use crate::json::Json;
use crate::media::{Audio, Image};
use std::sync::Arc;

/// One value between nodes.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A number, a text, a bool, or nothing.
    Plain(Json),
    /// A batch of pictures of one size, at least one.
    Images(Arc<Vec<Arc<Image>>>),
    /// A batch of grey pictures of one size, at least one.
    Masks(Arc<Vec<Arc<Image>>>),
    /// What a sampler works on.
    Latent(Arc<Latent>),
    /// A model that was loaded, with what was changed about it.
    Model(Arc<Model>),
    /// A text encoder, named after its file.
    Clip(Arc<Model>),
    /// A decoder.
    Vae,
    /// A prompt.
    Conditioning(Arc<str>),
    /// A control net.
    ControlNet,
    /// An upscaler: how many times it enlarges.
    UpscaleModel(u32),
    /// Sound.
    Audio(Arc<Audio>),
    /// A film.
    Video(Arc<Video>),
    /// A drawing whose colours follow a seed.
    Svg(u64),
    /// A body.
    Mesh,
    /// What was learned about a film, as an object.
    Info(Arc<Json>),
    /// Whatever needs this value is not executed, with a message for the user or silently.
    Blocked(Option<Arc<str>>),
}

/// A model with its alterations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model {
    /// The file it came from.
    pub(crate) file: String,
    /// Files of the alterations, in order.
    pub(crate) loras: Vec<String>,
}

/// A latent image, described by what will be seen of it.
#[derive(Debug, Clone)]
pub(crate) struct Latent {
    /// Size of the decoded picture.
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) batch: u32,
    /// Channels of the tensor.
    pub(crate) channels: usize,
    /// The picture it was made from.
    pub(crate) source: Option<Arc<Vec<Arc<Image>>>>,
    /// How it was sampled last.
    pub(crate) sampled: Option<Arc<Sampled>>,
}

/// One run of a sampler.
#[derive(Debug, Clone)]
pub(crate) struct Sampled {
    pub(crate) prompt: String,
    pub(crate) seed: u64,
    pub(crate) steps: u32,
    pub(crate) cfg: f64,
    pub(crate) sampler: String,
    pub(crate) scheduler: String,
    pub(crate) model: Model,
}

/// A film: pictures, speed, sound.
#[derive(Debug, Clone)]
pub(crate) struct Video {
    pub(crate) frames: Arc<Vec<Arc<Image>>>,
    pub(crate) fps: f64,
    pub(crate) audio: Option<Arc<Audio>>,
    /// The file it was read from, which is saved again as it is.
    pub(crate) source: Option<Arc<Vec<u8>>>,
}

impl Value {
    /// How an error message shows it: plain values as they are, everything else as Python's `str`.
    pub(crate) fn shown(&self) -> Json {
        match self {
            Value::Plain(json) => match json {
                Json::List(_) | Json::Dict(_) => Json::Str(json.str()),
                plain => plain.clone(),
            },
            other => Json::Str(other.text()),
        }
    }

    /// Python's `str` of it, near enough.
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Plain(json) => json.str(),
            Value::Images(images) => {
                let (width, height) = size_of(images);
                let area = width * height * 3;
                tensor::text(&[images.len(), height, width, 3], &|at| {
                    f32::from(images[at / area].pixels()[at % area]) / 255.0
                })
            }
            Value::Masks(masks) => {
                let (width, height) = size_of(masks);
                let area = width * height;
                tensor::text(&[masks.len(), height, width], &|at| {
                    f32::from(masks[at / area].pixels()[at % area * 3]) / 255.0
                })
            }
            Value::Latent(latent) => {
                let shape = latent.shape();
                format!("{{'samples': {}}}", tensor::text(&shape, &|_| 0.0))
            }
            Value::Model(_) => object("comfy.model_patcher.ModelPatcher"),
            Value::Clip(_) => object("comfy.sd.CLIP"),
            Value::Vae => object("comfy.sd.VAE"),
            Value::Conditioning(_) => {
                format!("[[{}, {{'pooled_output': None}}]]", tensor::text(&[1, 77, 768], &|_| 0.0))
            }
            Value::ControlNet => object("comfy.controlnet.ControlNet"),
            Value::UpscaleModel(_) => object("spandrel.ImageModelDescriptor"),
            Value::Audio(audio) => {
                let length = audio.len();
                let waveform = tensor::text(&[1, audio.channels().len(), length], &|at| {
                    audio.channels()[at / length][at % length]
                });
                format!("{{'waveform': {waveform}, 'sample_rate': {}}}", audio.sample_rate())
            }
            Value::Video(_) => object("comfy_api.latest._input_impl.video_types.VideoFromComponents"),
            Value::Svg(_) => object("comfy_api.latest._util.image_types.SVG"),
            Value::Mesh => object("comfy_api.latest._util.geometry_types.MESH"),
            Value::Info(info) => info.str(),
            Value::Blocked(_) => object("comfy_execution.graph_utils.ExecutionBlocker"),
        }
    }
}

impl Latent {
    /// The shape of the tensor.
    pub(crate) fn shape(&self) -> [usize; 4] {
        let side = |pixels: u32| (pixels / 8).max(1) as usize;
        [self.batch as usize, self.channels, side(self.height), side(self.width)]
    }
}

/// Width and height of a batch.
pub(crate) fn size_of(images: &[Arc<Image>]) -> (usize, usize) {
    images.first().map_or((1, 1), |image| (image.width() as usize, image.height() as usize))
}

fn object(class: &str) -> String {
    format!("<{class} object at 0x7f0000000000>")
}
