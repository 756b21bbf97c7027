//! Any text as the key of a file, and as the name of an output: no key leaves its folder.

#![no_main]

use libfuzzer_sys::fuzz_target;
use remuda_files::FileKey;
use uuid::Uuid;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(key) = FileKey::parse(&text) {
        stays(&key);
        if let Ok(joined) = key.join_name(&text) {
            stays(&joined);
        }
    }
    let task = Uuid::nil();
    let output = FileKey::output(task, 1, 2, 3, &text);
    stays(&output);
    let folder = format!("{}/", FileKey::outputs_of_attempt(task, 1, 2));
    assert!(output.as_str().starts_with(&folder), "{output} is not in {folder}");
    assert_eq!(
        output.as_str().matches('/').count(),
        folder.matches('/').count(),
        "{output} is not straight in {folder}"
    );
    assert!(FileKey::parse(output.as_str()).is_ok(), "{output} cannot be read back");
});

fn stays(key: &FileKey) {
    let key = key.as_str();
    assert!(!key.starts_with('/') && !key.contains('\\') && !key.contains('\0'), "{key:?}");
    assert!(!key.split('/').any(|part| part.is_empty() || part == "." || part == ".."), "{key:?}");
}
