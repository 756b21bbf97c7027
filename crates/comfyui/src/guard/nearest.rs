//! Which names come nearest to one that is not there.

/// How similar a name has to be to be worth suggesting.
const SIMILAR: f64 = 0.85;

/// How many characters of a name are compared. Comparing takes time with the product of both lengths.
const COMPARED: usize = 96;

/// The names ordered by how near they come to the one asked for, at most `limit` of them.
pub(super) fn nearest<'a>(
    asked: &str,
    names: impl IntoIterator<Item = &'a str>,
    limit: usize,
) -> Vec<String> {
    ranked(asked, names).into_iter().take(limit).map(|(_, name)| name.to_owned()).collect()
}

/// Only the names that are similar to the one asked for, nearest first.
pub(super) fn similar<'a>(
    asked: &str,
    names: impl IntoIterator<Item = &'a str>,
    limit: usize,
) -> Vec<String> {
    let near = ranked(asked, names).into_iter().take_while(|(score, _)| *score >= SIMILAR);
    near.take(limit).map(|(_, name)| name.to_owned()).collect()
}

fn ranked<'a>(asked: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<(f64, &'a str)> {
    let asked = bare(asked);
    let score = |name: &'a str| (strsim::jaro_winkler(&asked, &bare(name)), name);
    let mut ranked: Vec<_> = names.into_iter().map(score).collect();
    ranked.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    ranked
}

/// The file name alone, in lower case: the same model often lies in another folder elsewhere, or its path has
/// backslashes because the workflow was made on Windows.
fn bare(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    name.chars().take(COMPARED).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_in_another_folder_comes_first() {
        let have = ["flux1-dev.safetensors", "flux/FLUX1-dev-fp8.safetensors", "sd15.ckpt"];
        assert_eq!(nearest("unet\\flux1-dev-fp8.safetensors", have, 2)[0], have[1]);
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let have = ["KSampler", "KSamplerAdvanced", "SaveImage"];
        assert_eq!(similar("KSamplr", have, 1), ["KSampler"]);
        assert!(similar("VHS_VideoCombine", have, 3).is_empty());
    }
}
