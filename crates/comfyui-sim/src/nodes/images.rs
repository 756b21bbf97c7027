//! Pictures and masks: made, loaded, changed, saved.

use super::call::{Call, Returned, borrowed, listed, quoted};
use super::files;
use super::value::{Value, size_of};
use crate::engine::{Exception, Frame, Preview, Raised};
use crate::json::{Json, dict, list};
use crate::media::{Channel, Image, Scaling, decode, png};
use std::path::Path;
use std::sync::Arc;

/// More than this in one picture is refused as a lack of memory.
const MOST_PIXELS: u64 = 1 << 26;

type Batch = Arc<Vec<Arc<Image>>>;

/// A batch of one.
pub(super) fn one(image: Image) -> Value {
    Value::Images(Arc::new(vec![Arc::new(image)]))
}

fn each(images: &Batch, change: impl Fn(&Image) -> Image) -> Vec<Arc<Image>> {
    // Batches often repeat one picture; it is changed once.
    let mut last: Option<(&Arc<Image>, Arc<Image>)> = None;
    images
        .iter()
        .map(|image| match &last {
            Some((before, after)) if Arc::ptr_eq(before, image) => after.clone(),
            _ => {
                let after = Arc::new(change(image));
                last = Some((image, after.clone()));
                after
            }
        })
        .collect()
}

fn check_size(width: u32, height: u32) -> Result<(), Raised> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels <= MOST_PIXELS {
        return Ok(());
    }
    let message = format!(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
         allocate {} bytes. Error code 12 (Cannot allocate memory)",
        pixels * 12
    );
    Err(Exception::new("RuntimeError", message).into())
}

pub(super) fn empty(call: &Call<'_>) -> Result<Returned, Raised> {
    let (width, height) = (call.size("width")?, call.size("height")?);
    check_size(width, height)?;
    let color = call.count("color")?;
    let image = Arc::new(Image::solid(width, height, [(color >> 16) as u8, (color >> 8) as u8, color as u8]));
    let batch = vec![image; call.batch("batch_size")?];
    Ok(Returned::values([Value::Images(Arc::new(batch))]))
}

/// The wanted size, with a side of 0 following from the other one.
fn wanted_size(call: &Call<'_>, old: (u32, u32)) -> Result<(u32, u32), Raised> {
    let follow = |known: u32, from: u32, other: u32| {
        ((f64::from(other) * f64::from(known) / f64::from(from.max(1))).round_ties_even() as u32).max(1)
    };
    let (width, height) = match (call.size("width")?, call.size("height")?) {
        (0, 0) => old,
        (0, height) => (follow(height, old.1, old.0), height),
        (width, 0) => (width, follow(width, old.0, old.1)),
        both => both,
    };
    check_size(width, height)?;
    Ok((width, height))
}

pub(super) fn scale(call: &Call<'_>) -> Result<Returned, Raised> {
    let images = call.images("image")?;
    let (old_width, old_height) = size_of(&images);
    let (width, height) = wanted_size(call, (old_width as u32, old_height as u32))?;
    let method = Scaling::from_name(&call.text("upscale_method")?);
    let crop = call.text("crop")? == "center";
    let scaled = each(&images, |image| {
        if crop {
            image.crop_center(width, height).scale(width, height, method)
        } else {
            image.scale(width, height, method)
        }
    });
    Ok(Returned::values([Value::Images(Arc::new(scaled))]))
}

pub(super) fn scale_by(call: &Call<'_>) -> Result<Returned, Raised> {
    let factor = call.float("scale_by")?;
    let method = Scaling::from_name(&call.text("upscale_method")?);
    scaled_by(&call.images("image")?, factor, method)
}

fn scaled_by(images: &Batch, factor: f64, method: Scaling) -> Result<Returned, Raised> {
    let (width, height) = size_of(images);
    let side = |old: usize| (old as f64 * factor).round_ties_even() as u32;
    let (old, (width, height)) = ((width, height), (side(width), side(height)));
    if width == 0 || height == 0 {
        let message = format!(
            "Input and output sizes should be greater than 0, but got input (H: {}, W: {}) output (H: {height}, W: \
             {width})",
            old.1, old.0
        );
        return Err(Exception::new("RuntimeError", message).into());
    }
    check_size(width, height)?;
    let scaled = each(images, |image| image.scale(width, height, method));
    Ok(Returned::values([Value::Images(Arc::new(scaled))]))
}

pub(super) async fn upscale(call: &Call<'_>) -> Result<Returned, Raised> {
    let factor = match call.get("upscale_model") {
        Some(Value::UpscaleModel(factor)) => *factor,
        _ => 4,
    };
    let images = call.images("image")?;
    call.run.pause(call.run.config.step).await;
    call.run.step(call.node, 1, 1, None)?;
    scaled_by(&images, f64::from(factor), Scaling::from_name("bilinear"))
}

pub(super) fn invert(call: &Call<'_>) -> Result<Returned, Raised> {
    Ok(Returned::values([Value::Images(Arc::new(each(&call.images("image")?, Image::invert)))]))
}

pub(super) fn join(call: &Call<'_>) -> Result<Returned, Raised> {
    let (first, second) = (call.images("image1")?, call.images("image2")?);
    let (width, height) = size_of(&first);
    let (width, height) = (width as u32, height as u32);
    let fitted = each(&second, |image| {
        if (image.width(), image.height()) == (width, height) {
            return image.clone();
        }
        image.crop_center(width, height).scale(width, height, Scaling::from_name("bilinear"))
    });
    Ok(Returned::values([Value::Images(Arc::new(first.iter().cloned().chain(fitted).collect()))]))
}

/// The picture behind a name, or what Pillow says about it.
fn open(call: &Call<'_>, input: &str) -> Result<Image, Raised> {
    let name = call.text(input)?;
    let (path, bytes) = call.read(&name).map_err(in_pillow)?;
    decode::any(&bytes).map_err(|_| in_pillow(unidentified(&path).into()))
}

fn unidentified(path: &Path) -> Exception {
    Exception::new("PIL.UnidentifiedImageError", format!("cannot identify image file {}", quoted(path)))
}

fn in_pillow(raised: Raised) -> Raised {
    let Raised::Exception(exception) = raised else {
        return raised;
    };
    let frames = [
        Frame::comfy("nodes.py", 1660, "load_image"),
        Frame::comfy("node_helpers.py", 31, "pillow"),
        Frame::at("/srv/venv/lib/python3.11/site-packages/PIL/Image.py", 3730, "open"),
    ];
    exception.raised_in(frames).into()
}

/// A channel as a mask; transparency counts from the other end.
fn mask_of(image: &Image, channel: Channel) -> Image {
    let mask = image.channel(channel);
    if channel == Channel::Alpha { mask.invert() } else { mask }
}

pub(super) fn load(call: &Call<'_>) -> Result<Returned, Raised> {
    let image = open(call, "image")?;
    let mask = match image.alpha() {
        Some(_) => mask_of(&image, Channel::Alpha),
        None => Image::solid(64, 64, [0; 3]),
    };
    Ok(Returned::values([one(image.without_alpha()), Value::Masks(Arc::new(vec![Arc::new(mask)]))]))
}

fn channel_of(call: &Call<'_>) -> Result<Channel, Raised> {
    Ok(match call.text("channel")?.as_str() {
        "red" => Channel::Red,
        "green" => Channel::Green,
        "blue" => Channel::Blue,
        _ => Channel::Alpha,
    })
}

pub(super) fn load_mask(call: &Call<'_>) -> Result<Returned, Raised> {
    let mask = mask_of(&open(call, "image")?, channel_of(call)?);
    Ok(Returned::values([Value::Masks(Arc::new(vec![Arc::new(mask)]))]))
}

pub(super) fn to_mask(call: &Call<'_>) -> Result<Returned, Raised> {
    let channel = channel_of(call)?;
    let masks = each(&call.images("image")?, |image| image.channel(channel));
    Ok(Returned::values([Value::Masks(Arc::new(masks))]))
}

pub(super) fn from_mask(call: &Call<'_>) -> Result<Returned, Raised> {
    Ok(Returned::values([Value::Images(call.masks("mask")?)]))
}

pub(super) fn solid_mask(call: &Call<'_>) -> Result<Returned, Raised> {
    let (width, height) = (call.size("width")?, call.size("height")?);
    check_size(width, height)?;
    let shade = (call.float("value")? * 255.0).clamp(0.0, 255.0) as u8;
    let mask = Arc::new(Image::solid(width, height, [shade; 3]));
    Ok(Returned::values([Value::Masks(Arc::new(vec![mask]))]))
}

/// Writes a batch as PNG files and lists them.
async fn write_all(
    call: &Call<'_>,
    images: &Batch,
    prefix: &str,
    kind: &str,
    metadata: Vec<(String, String)>,
) -> Result<Json, Raised> {
    let root = if kind == "temp" { &call.run.dirs.temp } else { &call.run.dirs.output };
    let (width, height) = size_of(images);
    let place = files::place(prefix, root, width as u32, height as u32)?;
    let metadata = Arc::new(metadata);
    let mut listing = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let file = place.file(index, "png");
        let (image, metadata) = (image.clone(), metadata.clone());
        call.write(place.folder.join(&file), move || Ok(png::encode(&image, &borrowed(&metadata)))).await?;
        listing.push(listed(&file, &place.subfolder, kind));
    }
    Ok(Json::List(listing))
}

pub(super) async fn save(call: &Call<'_>) -> Result<Returned, Raised> {
    let images = call.images("images")?;
    let prefix = call.text("filename_prefix")?;
    // The folder is looked for before the metadata are, so a bad prefix is told first.
    let (width, height) = size_of(&images);
    files::place(&prefix, &call.run.dirs.output, width as u32, height as u32)?;
    let listing = write_all(call, &images, &prefix, "output", call.metadata()?).await?;
    Ok(Returned::ui(dict([("images", listing)])))
}

pub(super) async fn preview(call: &Call<'_>) -> Result<Returned, Raised> {
    let images = call.images("images")?;
    let listing = write_all(call, &images, &call.kept_temp_prefix(), "temp", call.metadata()?).await?;
    Ok(Returned::ui(dict([("images", listing)])))
}

pub(super) async fn preview_mask(call: &Call<'_>) -> Result<Returned, Raised> {
    let masks = call.masks("mask")?;
    if !call.class.newer {
        let listing = write_all(call, &masks, &call.kept_temp_prefix(), "temp", call.metadata()?).await?;
        return Ok(Returned::ui(dict([("images", listing)])));
    }
    let listing = write_all(call, &masks, &call.temp_prefix(), "temp", Vec::new()).await?;
    Ok(Returned::ui(dict([("images", listing), ("animated", list([false]))])))
}

/// Sends its pictures over the socket and leaves nothing else.
pub(super) async fn save_to_socket(call: &Call<'_>) -> Result<Returned, Raised> {
    let images = call.images("images")?;
    for (index, image) in images.iter().enumerate() {
        let preview = Preview { image: png::encode(image, &[]), jpeg: false };
        call.run.step(call.node, index as u64, images.len() as u64, Some(preview))?;
        tokio::task::yield_now().await;
    }
    Ok(Returned::default())
}
