//! Names of files: where inputs are found, and what the next saved file is called.

use crate::engine::{Dirs, Exception, Frame};
use crate::json::Json;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The input of a class that names a file and is checked by the class itself, with the word for such a file.
pub(crate) fn named_by(class: &str) -> Option<(&'static str, &'static str)> {
    match class {
        "LoadImage" | "LoadImageMask" => Some(("image", "image")),
        "LoadAudio" => Some(("audio", "audio")),
        "LoadVideo" => Some(("file", "video")),
        "VHS_LoadVideo" => Some(("video", "video")),
        _ => None,
    }
}

/// The file that a name means: `name [output]` and `name [temp]` leave the input folder.
pub(crate) fn annotated(dirs: &Dirs, name: &str) -> PathBuf {
    let (folder, name) = if let Some(name) = name.strip_suffix("[output]") {
        (&dirs.output, name)
    } else if let Some(name) = name.strip_suffix("[temp]") {
        (&dirs.temp, name)
    } else if let Some(name) = name.strip_suffix("[input]") {
        (&dirs.input, name)
    } else {
        return dirs.input.join(name);
    };
    // One more letter goes with the mark: the space in front of it.
    let mut letters = name.chars();
    letters.next_back();
    folder.join(letters.as_str())
}

/// What the change check of a class says about its inputs; `None` for classes without one.
///
/// Whatever fails there counts as NaN: changed every time.
pub(crate) fn change_mark(class: &str, dirs: &Dirs, input: impl Fn(&str) -> Option<Json>) -> Option<Json> {
    if class == "SaveImageWebsocket" {
        return Some(Json::List(vec![Json::Float(seconds(SystemTime::now()))]));
    }
    let (name, _) = named_by(class)?;
    let path = input(name).and_then(|value| value.as_str().map(|name| annotated(dirs, name)));
    let mark = path.and_then(|path| match class {
        "LoadVideo" => fs::metadata(path).ok()?.modified().ok().map(|time| Json::Float(seconds(time))),
        _ => fs::read(path)
            .ok()
            .map(|bytes| Json::Str(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())),
    });
    Some(mark.map_or(Json::Float(f64::NAN), |mark| Json::List(vec![mark])))
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Where the next files of a node go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The folder, which exists.
    pub(crate) folder: PathBuf,
    /// The folder below output or temp, as the history shows it.
    pub(crate) subfolder: String,
    /// The name without counter and ending.
    pub(crate) name: String,
    /// The number of the next file.
    pub(crate) counter: u64,
}

impl Place {
    /// The name of an only file: here the number of the picture is not replaced.
    pub(crate) fn only_file(&self, ending: &str) -> String {
        format!("{}_{:05}_.{ending}", self.name, self.counter)
    }

    /// `name_00001_.ext`, with `%batch_num%` replaced.
    pub(crate) fn file(&self, index: usize, ending: &str) -> String {
        let name = self.name.replace("%batch_num%", &index.to_string());
        format!("{name}_{:05}_.{ending}", self.counter + index as u64)
    }
}

/// Finds the place for a prefix, as ComfyUI does: patterns replaced, folders made, one more than the highest
/// number there.
pub(crate) fn place(prefix: &str, root: &Path, width: u32, height: u32) -> Result<Place, Exception> {
    let prefix =
        if prefix.contains('%') { replace_patterns(prefix, width, height) } else { prefix.to_owned() };
    let normal = normalize(&prefix);
    let (subfolder, name) = match normal.rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), name.to_owned()),
        Some((subfolder, name)) => (subfolder.to_owned(), name.to_owned()),
        None => (String::new(), normal.clone()),
    };
    // A relative base folder must not make every prefix look like one that leaves it.
    let root = &std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let folder = absolute(&root.join(&subfolder));
    if !folder.starts_with(root) {
        let common: PathBuf = root
            .components()
            .zip(folder.components())
            .take_while(|(left, right)| left == right)
            .map(|(left, _)| left)
            .collect();
        let message = format!(
            "**** ERROR: Saving image outside the output folder is not allowed.\n full_output_folder: {}\n         \
             output_dir: {}\n         commonpath: {}",
            folder.display(),
            root.display(),
            common.display()
        );
        return Err(Exception::new("Exception", message).raised_in([Frame::comfy(
            "folder_paths.py",
            464,
            "get_save_image_path",
        )]));
    }
    // Python counts letters of the prefix as it was given, which differs after a trailing slash.
    let given = prefix.rsplit('/').next().unwrap_or_default().chars().count();
    let counter = match fs::read_dir(&folder) {
        Ok(entries) => {
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            names.filter_map(|file| number_of(&file, &name, given)).max().map_or(1, |highest| highest + 1)
        }
        Err(_) => {
            fs::create_dir_all(&folder).map_err(|error| os_error(&error, &folder))?;
            1
        }
    };
    Ok(Place { folder, subfolder, name, counter })
}

/// The number in a file name that begins with `name_`; 0 if there is none.
fn number_of(file: &str, name: &str, given: usize) -> Option<u64> {
    let cut = file.char_indices().nth(given + 1).map_or(file.len(), |(at, _)| at);
    let (start, rest) = file.split_at(cut);
    if start.strip_suffix('_')? != name {
        return None;
    }
    Some(rest.split('_').next().and_then(|digits| digits.trim().parse().ok()).unwrap_or(0))
}

/// An exception for a failed file operation, with Python's wording.
pub(crate) fn os_error(error: &std::io::Error, path: &Path) -> Exception {
    let quoted = crate::json::repr_str(&path.display().to_string());
    let number = error.raw_os_error().unwrap_or(5);
    let (kind, words) = match number {
        2 => ("FileNotFoundError", "No such file or directory"),
        13 => ("PermissionError", "Permission denied"),
        20 => ("NotADirectoryError", "Not a directory"),
        21 => ("IsADirectoryError", "Is a directory"),
        28 => ("OSError", "No space left on device"),
        36 => ("OSError", "File name too long"),
        _ => ("OSError", "Input/output error"),
    };
    Exception::new(kind, format!("[Errno {number}] {words}: {quoted}"))
}

fn replace_patterns(prefix: &str, width: u32, height: u32) -> String {
    let now = Clock::now();
    prefix
        .replace("%width%", &width.to_string())
        .replace("%height%", &height.to_string())
        .replace("%year%", &now.year.to_string())
        .replace("%month%", &format!("{:02}", now.month))
        .replace("%day%", &format!("{:02}", now.day))
        .replace("%hour%", &format!("{:02}", now.second_of_day / 3600))
        .replace("%minute%", &format!("{:02}", now.second_of_day / 60 % 60))
        .replace("%second%", &format!("{:02}", now.second_of_day % 60))
}

/// Date and time of day in UTC.
struct Clock {
    year: i64,
    month: u64,
    day: u64,
    second_of_day: u64,
}

impl Clock {
    fn now() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Clock::at(since)
    }

    /// The proleptic Gregorian date of a moment: years counted from March, in eras of 400.
    fn at(seconds: u64) -> Clock {
        let days = seconds / 86_400 + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        Clock {
            year: (year_of_era + era * 400 + u64::from(month <= 2)) as i64,
            month,
            day: day_of_year - (153 * march_month + 2) / 5 + 1,
            second_of_day: seconds % 86_400,
        }
    }
}

/// Python's `os.path.normpath`.
fn normalize(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// An absolute path without `.` and `..`, without asking the file system.
fn absolute(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_after_the_highest_number() {
        let root = tempfile::tempdir().unwrap();
        let next = |prefix: &str| place(prefix, root.path(), 32, 16).unwrap();
        assert_eq!(next("a/img").file(0, "png"), "img_00001_.png");
        for name in ["img_00007_.png", "img_00003_.webp", "img_x_.png", "image_00099_.png", "img2_00050_.png"]
        {
            fs::write(root.path().join("a").join(name), b"").unwrap();
        }
        let found = next("a/img");
        assert_eq!((found.file(0, "png").as_str(), found.subfolder.as_str()), ("img_00008_.png", "a"));
        assert_eq!(found.file(2, "png"), "img_00010_.png");
        assert_eq!(next("a//./b/../img").counter, 8);
        assert_eq!(next("b%batch_num%-%width%x%height%").file(1, "png"), "b1-32x16_00002_.png");
    }

    #[test]
    fn a_relative_base_folder_is_as_good_as_any() {
        let here = std::env::current_dir().unwrap();
        let base = tempfile::tempdir_in(&here).unwrap();
        let relative = Path::new(".").join(base.path().strip_prefix(&here).unwrap());
        let found = place("a/b", &relative, 1, 1).unwrap();
        assert_eq!((found.folder, found.subfolder.as_str()), (base.path().join("a"), "a"));
    }

    #[test]
    fn prefixes_that_leave_the_folder_are_refused() {
        let root = Path::new("/srv/comfyui-data/output");
        let error = place("../outside", root, 1, 1).unwrap_err();
        assert_eq!(
            error.message,
            "**** ERROR: Saving image outside the output folder is not allowed.\n full_output_folder: \
             /srv/comfyui-data\n         output_dir: /srv/comfyui-data/output\n         commonpath: /srv/comfyui-data"
        );
        assert!(place("/etc/passwd", root, 1, 1).is_err());
        assert!(place("a/../../x", root, 1, 1).is_err());
    }

    #[test]
    fn annotations_choose_the_folder() {
        let dirs = Dirs::below(Path::new("/base"));
        assert_eq!(annotated(&dirs, "a/b.png"), Path::new("/base/input/a/b.png"));
        assert_eq!(annotated(&dirs, "b.png [output]"), Path::new("/base/output/b.png"));
        assert_eq!(annotated(&dirs, "b.png [temp]"), Path::new("/base/temp/b.png"));
    }

    #[test]
    fn dates_are_right() {
        for (seconds, date) in
            [(0, (1970, 1, 1)), (951_782_400, (2000, 2, 29)), (1_794_726_343, (2026, 11, 15))]
        {
            let clock = Clock::at(seconds);
            assert_eq!((clock.year, clock.month, clock.day), date);
        }
    }
}
