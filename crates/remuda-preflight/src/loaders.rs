//! Which nodes read files: those that are known, and those whose names say so.

/// Where a loader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// A name in the input folder, where `[output]` and `[temp]` lead to the others.
    Input,
    /// A name in the output folder, where everybody's results are.
    Output,
    /// Any path of the worker's host, relative to where ComfyUI was started.
    Host,
}

/// Loaders whose descriptions do not say that they read files, or not from where.
pub(super) const LOADERS: [(&str, &str, Reads); 44] = [
    // ComfyUI's own.
    ("LoadImage", "image", Reads::Input),
    ("LoadImageMask", "image", Reads::Input),
    ("LoadImageOutput", "image", Reads::Output),
    ("LoadLatent", "latent", Reads::Input),
    ("LoadAudio", "audio", Reads::Input),
    ("LoadVideo", "file", Reads::Input),
    ("Load3D", "model_file", Reads::Input),
    ("Load3DAnimation", "model_file", Reads::Input),
    ("LoadImageSetNode", "images", Reads::Input),
    ("LoadImageSetFromFolderNode", "folder", Reads::Input),
    ("LoadImageTextSetFromFolderNode", "folder", Reads::Input),
    ("LoadImageDataSetFromFolder", "folder", Reads::Input),
    ("LoadImageTextDataSetFromFolder", "folder", Reads::Input),
    // Data sets for training are kept beside the results.
    ("LoadTrainingDataset", "folder_name", Reads::Output),
    // VideoHelperSuite. Its loaders with `Path` open what they are given.
    ("VHS_LoadVideo", "video", Reads::Input),
    ("VHS_LoadVideoFFmpeg", "video", Reads::Input),
    ("VHS_LoadAudioUpload", "audio", Reads::Input),
    ("VHS_LoadImages", "directory", Reads::Input),
    ("VHS_LoadVideoPath", "video", Reads::Host),
    ("VHS_LoadVideoFFmpegPath", "video", Reads::Host),
    ("VHS_LoadImagePath", "image", Reads::Host),
    ("VHS_LoadImagesPath", "directory", Reads::Host),
    ("VHS_LoadAudio", "audio_file", Reads::Host),
    // WAS Node Suite.
    ("Image Load", "image_path", Reads::Host),
    ("Load Image Batch", "path", Reads::Host),
    ("Load Text File", "file_path", Reads::Host),
    ("Text Load Line From File", "file_path", Reads::Host),
    ("Load Cache", "latent_path", Reads::Host),
    // Inspire Pack.
    ("LoadImage //Inspire", "image", Reads::Input),
    ("LoadImagesFromDir //Inspire", "directory", Reads::Host),
    ("LoadImageListFromDir //Inspire", "directory", Reads::Host),
    ("LoadPromptsFromDir //Inspire", "prompt_dir", Reads::Host),
    ("LoadPromptsFromFile //Inspire", "prompt_file", Reads::Host),
    // KJNodes.
    ("LoadAndResizeImage", "image", Reads::Input),
    ("LoadImagesFromFolderKJ", "folder", Reads::Host),
    ("LoadVideosFromFolder", "video", Reads::Host),
    // Names that several packs use.
    ("LoadImageFromPath", "image", Reads::Host),
    ("LoadImagesFromPath", "path", Reads::Host),
    ("LoadVideoFromPath", "video", Reads::Host),
    ("LoadAudioFromPath", "audio", Reads::Host),
    ("LoadImagesFromDirectory", "directory", Reads::Host),
    ("JWImageLoadRGB", "path", Reads::Host),
    ("JWImageLoadRGBA", "path", Reads::Host),
    ("easy loadImagesForLoop", "directory", Reads::Host),
];

/// Words in the name of a class that reads something.
const READERS: [&str; 10] =
    ["load", "loads", "loader", "loaders", "read", "reads", "reader", "import", "imports", "importer"];

/// What is opened. `Open` alone is part of many names, such as OpenAI and OpenPose.
const OPENED: [&str; 12] = [
    "file",
    "files",
    "image",
    "images",
    "video",
    "audio",
    "text",
    "document",
    "path",
    "dir",
    "directory",
    "folder",
];

/// Words in the name of a class that writes, sends or fetches.
const OTHERS: [&str; 8] =
    ["upload", "uploads", "uploader", "download", "downloads", "downloader", "save", "saver"];

/// Words in the name of an input that says where something is.
const PLACES: [&str; 17] = [
    "glob",
    "pattern",
    "path",
    "paths",
    "dir",
    "dirs",
    "directory",
    "directories",
    "folder",
    "folders",
    "file",
    "files",
    "filename",
    "filenames",
    "filepath",
    "filepaths",
    "location",
];

/// Whether a class that is not listed reads files, as far as its name says: `SomebodysImageLoader`, not `SpreadPayload`.
pub(super) fn reads_by_its_name(class: &str) -> bool {
    let words = words(class);
    let among = |word: &String, known: &[&str]| known.contains(&word.as_str());
    if words.iter().any(|word| among(word, &OTHERS)) {
        return false;
    }
    let pairs = || words.iter().zip(words.iter().skip(1));
    words.iter().any(|word| among(word, &READERS) || word.starts_with("load"))
        || pairs().any(|(word, next)| word == "from" && among(next, &PLACES))
        || pairs().any(|(word, next)| word == "open" && among(next, &OPENED))
        || words.iter().any(|word| word == "fromfile")
        || words.last().is_some_and(|word| word == "open")
}

/// Whether the name of an input says that its text is a place.
pub(super) fn names_a_place(input: &str) -> bool {
    words(input).iter().any(|word| PLACES.contains(&word.as_str()))
}

/// The words of a name, in lower case: what is between blanks, signs and digits, and where the case changes.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = name.chars().peekable();
    let mut before = None;
    while let Some(c) = characters.next() {
        if !c.is_alphabetic() {
            words.push(std::mem::take(&mut word));
            before = None;
            continue;
        }
        // `loadImage`, and the last capital of `RGBImage`.
        let begins = c.is_uppercase()
            && (before.is_some_and(char::is_lowercase)
                || before.is_some_and(char::is_uppercase)
                    && characters.peek().is_some_and(|next| next.is_lowercase()));
        if begins {
            words.push(std::mem::take(&mut word));
        }
        word.extend(c.to_lowercase());
        before = Some(c);
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_words() {
        assert_eq!(words("JWImageLoadRGB"), ["jw", "image", "load", "rgb"]);
        assert_eq!(words("easy loadImages_3x//Inspire"), ["easy", "load", "images", "x", "inspire"]);
        assert_eq!(words("OpenAIChat2"), ["open", "ai", "chat"]);
        assert!(words("").is_empty());
    }

    #[test]
    fn only_whole_words_say_that_a_class_reads() {
        for class in [
            "SomebodysImageLoader",
            "My Load Image",
            "loadimage_pro",
            "ReadTextFile",
            "CSVReader",
            "ImportMesh",
            "OpenFile",
            "TextFromFile",
            "ImagesFromFolder",
            "Video Open",
        ] {
            assert!(reads_by_its_name(class), "{class}");
        }
        for class in [
            "UploadToS3",
            "ImageUploader",
            "HFDownloader",
            "DownloadAndLoadModel",
            "PayloadBuilder",
            "OpenAIChat",
            "OpenPosePreprocessor",
            "ThreadPool",
            "SpreadNoise",
            "SaveAndLoad",
            "Reroute",
        ] {
            assert!(!reads_by_its_name(class), "{class}");
        }
        for input in ["path", "file_path", "filePath", "filename", "Input Directory", "dir1", "folder"] {
            assert!(names_a_place(input), "{input}");
        }
        for input in ["profile", "direction", "pathology", "dirty", "text"] {
            assert!(!names_a_place(input), "{input}");
        }
    }
}
