//! Any bytes as a picture: uploaded, shown, and used as a mask and as what a mask is laid upon.

#![no_main]

use fuzz::{form, get, post};
use libfuzzer_sys::fuzz_target;

const FORM: &str = "multipart/form-data; boundary=b";

fuzz_target!(|bytes: &[u8]| {
    post("/upload/image", FORM, form(("overwrite", "true"), "fuzz.png", bytes));
    get("/view?filename=fuzz.png&type=input&channel=rgb", &[]);
    get("/view?filename=fuzz.png&type=input&preview=webp;50", &[]);
    let reference = r#"{"filename":"fuzz.png","type":"input","subfolder":""}"#;
    post("/upload/mask", FORM, form(("original_ref", reference), "mask.png", bytes));
});
