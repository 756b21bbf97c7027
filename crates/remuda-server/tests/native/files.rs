//! `/upload` and `/view`: what goes in is found again, by its owner, wherever it is needed.

use remuda_core::Scope;
use reqwest::multipart::{Form, Part};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use crate::rig::Ranch;
use crate::support::{self, Gateway, Ground};

const BOTH: [Scope; 2] = [Scope::Submit, Scope::Read];

/// A picture of two pixels; the second one shows through.
fn png(colour: u8, alpha: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, 2, 1);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&[colour, 2, 3, 255, 4, 5, 6, alpha]).unwrap();
    writer.finish().unwrap();
    out
}

fn pixels(file: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
    let mut data = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut data).unwrap();
    data.truncate(frame.buffer_size());
    data
}

fn form(name: &str, bytes: &[u8], fields: &[(&str, &str)]) -> Form {
    let file = Part::bytes(bytes.to_vec()).file_name(name.to_owned());
    fields.iter().fold(Form::new().part("image", file), |form, (name, value)| {
        form.text((*name).to_owned(), (*value).to_owned())
    })
}

async fn upload(gateway: &Gateway, name: &str, bytes: &[u8], fields: &[(&str, &str)]) -> Value {
    let answer = gateway.post("/upload/image").multipart(form(name, bytes, fields)).send().await.unwrap();
    support::json(answer, 200).await
}

async fn view(gateway: &Gateway, query: &str) -> Response {
    gateway.get(&format!("/view?{query}")).send().await.unwrap()
}

#[tokio::test]
async fn different_files_that_come_at_once_under_one_name_get_names_of_their_own() {
    let gateway = Gateway::start().await;
    let uploads = (0..8u8).map(async |n| {
        let told = upload(&gateway, "same.png", &[n], &[]).await;
        let name = told["name"].as_str().unwrap();
        let query: String =
            url::form_urlencoded::Serializer::new(String::new()).append_pair("filename", name).finish();
        (n, query)
    });
    for (n, query) in futures_util::future::join_all(uploads).await {
        let kept = view(&gateway, &format!("{query}&type=input")).await.bytes().await.unwrap();
        assert_eq!(kept[..], [n], "{query}");
    }
}

#[tokio::test]
async fn names_of_uploads_are_given_as_recorded() {
    let gateway = Gateway::start().await;
    let told =
        |name: &str, subfolder: &str, kind: &str| json!({"name": name, "subfolder": subfolder, "type": kind});
    for (bytes, fields, expected) in [
        (&b"one"[..], vec![], told("a.png", "", "input")),
        (b"one", vec![], told("a.png", "", "input")),
        (b"two", vec![], told("a (1).png", "", "input")),
        (b"two", vec![], told("a (1).png", "", "input")),
        (b"two", vec![("overwrite", "true")], told("a.png", "", "input")),
        (b"one", vec![("overwrite", "1")], told("a.png", "", "input")),
        (b"two", vec![("overwrite", "True")], told("a (1).png", "", "input")),
        (b"one", vec![("subfolder", "sub/deeper")], told("a.png", "sub/deeper", "input")),
        (b"tmp", vec![("type", "temp")], told("a.png", "", "temp")),
        (b"out", vec![("type", "output")], told("a.png", "", "output")),
        (b"", vec![], told("a (2).png", "", "input")),
    ] {
        assert_eq!(upload(&gateway, "a.png", bytes, &fields).await, expected, "{fields:?}");
    }
    for (query, expected) in [
        ("filename=a.png&type=input", &b"one"[..]),
        ("filename=a%20(1).png&type=input", b"two"),
        ("filename=a.png&type=input&subfolder=sub/deeper", b"one"),
        ("filename=a.png&type=temp", b"tmp"),
        ("filename=a.png", b"out"),
        ("filename=a.png%20%5Btemp%5D&type=input", b"tmp"),
    ] {
        let answer = view(&gateway, query).await;
        assert_eq!(answer.status(), 200, "{query}");
        assert!(!answer.headers()["content-disposition"].to_str().unwrap().contains("attachment"));
        assert_eq!(answer.bytes().await.unwrap(), expected, "{query}");
    }
}

#[tokio::test]
async fn bad_uploads_are_refused_and_leave_nothing() {
    let gateway = Gateway::start_with(|options| options.limits.asset = 1000).await;
    for fields in [[("subfolder", "../../etc")], [("subfolder", "/tmp")], [("type", "elsewhere")]] {
        let answer =
            gateway.post("/upload/image").multipart(form("a.png", b"x", &fields)).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{fields:?}");
        assert_eq!(answer.bytes().await.unwrap(), &b""[..]);
    }
    let raw = |disposition: &str| {
        let body =
            format!("--RIG\r\nContent-Disposition: form-data; {disposition}\r\n\r\nDATA\r\n--RIG--\r\n");
        let post =
            gateway.post("/api/upload/image").header("content-type", "multipart/form-data; boundary=RIG");
        post.body(body).send()
    };
    for disposition in [
        "name=\"image\"; filename=\"../evil.png\"",
        "name=\"image\"; filename=\"\"",
        "name=\"image\"",
        "name=\"file\"; filename=\"x.png\"",
    ] {
        assert_eq!(raw(disposition).await.unwrap().status(), 400, "{disposition}");
    }
    let named = support::json(raw("name=\"image\"; filename=\"/имя.png\"").await.unwrap(), 200).await;
    assert_eq!(named["name"], "имя.png");
    let json = gateway.post("/upload/image").header("content-type", "application/json").body("{}");
    assert_eq!(json.send().await.unwrap().status(), 400);
    assert_eq!(gateway.post("/upload/image").send().await.unwrap().status(), 400);
    let large =
        gateway.post("/upload/image").multipart(form("big.bin", &[0; 2000], &[])).send().await.unwrap();
    assert_eq!(large.status(), 413);
    assert_eq!(large.text().await.unwrap(), "Maximum request body size 1000 exceeded.");
    assert_eq!(view(&gateway, "filename=big.bin&type=input").await.status(), 404);
}

#[tokio::test]
async fn names_that_name_nothing_are_told_apart_as_recorded() {
    let gateway = Gateway::start().await;
    for (query, status) in [
        ("filename=missing.png", 404),
        ("", 404),
        ("filename=", 400),
        ("filename=a.png&type=nowhere", 400),
        ("filename=..%2F..%2Fetc%2Fpasswd", 400),
        ("filename=%2Fetc%2Fpasswd", 400),
        ("filename=a..b.png", 400),
        ("filename=passwd&subfolder=..%2F..%2Fetc", 403),
        ("filename=passwd&subfolder=%2Fetc", 403),
        ("filename=x.png&subfolder=remuda%2F00000000-0000-0000-0000-000000000000", 404),
    ] {
        let answer = view(&gateway, query).await;
        assert_eq!(answer.status().as_u16(), status, "{query}");
        assert_eq!(answer.bytes().await.unwrap(), &b""[..], "{query}");
    }
    // Nothing that a browser would run comes out as what it is.
    upload(&gateway, "page.html", b"<script>", &[]).await;
    upload(&gateway, "pic.svg", b"<svg/>", &[]).await;
    for (name, kind) in [("page.html", "application/octet-stream"), ("pic.svg", "image/svg+xml")] {
        let answer = view(&gateway, &format!("filename={name}&type=input")).await;
        assert_eq!(answer.headers()["content-type"], kind);
        assert!(answer.headers()["content-disposition"].to_str().unwrap().starts_with("attachment"));
        assert!(answer.headers().contains_key("content-security-policy"));
    }
}

#[tokio::test]
async fn parts_and_channels_of_a_file_can_be_had() {
    let gateway = Gateway::start().await;
    let file = png(9, 77);
    upload(&gateway, "p.png", &file, &[]).await;
    let whole = view(&gateway, "filename=p.png&type=input").await;
    assert_eq!(whole.headers()["content-type"], "image/png");
    let etag = whole.headers()["etag"].clone();
    let again =
        gateway.get("/view?filename=p.png&type=input").header("if-none-match", etag).send().await.unwrap();
    assert_eq!(again.status(), 304);
    let part =
        gateway.get("/view?filename=p.png&type=input").header("range", "bytes=1-3").send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(part.bytes().await.unwrap(), &b"PNG"[..]);
    let head =
        gateway.request(reqwest::Method::HEAD, "/view?filename=p.png&type=input").send().await.unwrap();
    assert_eq!(head.headers()["content-length"], file.len().to_string().as_str());
    let rgb = view(&gateway, "filename=p.png&type=input&channel=rgb").await.bytes().await.unwrap();
    assert_eq!(pixels(&rgb), [9, 2, 3, 4, 5, 6]);
    let alpha = view(&gateway, "filename=p.png&type=input&channel=a").await.bytes().await.unwrap();
    assert_eq!(pixels(&alpha), [0, 0, 0, 255, 0, 0, 0, 77]);
    // A preview is the picture itself.
    let preview = view(&gateway, "filename=p.png&type=input&preview=webp;90").await;
    assert_eq!(preview.bytes().await.unwrap(), file);
    let masked =
        form("mask.png", &png(0, 12), &[("original_ref", r#"{"filename": "p.png", "type": "input"}"#)]);
    let told = support::json(gateway.post("/upload/mask").multipart(masked).send().await.unwrap(), 200).await;
    assert_eq!(told, json!({"name": "mask.png", "subfolder": "", "type": "input"}));
    let masked = view(&gateway, "filename=mask.png&type=input").await.bytes().await.unwrap();
    assert_eq!(pixels(&masked), [9, 2, 3, 255, 4, 5, 6, 12]);
    let nowhere = form("mask.png", &png(0, 12), &[("original_ref", r#"{"filename": "missing.png"}"#)]);
    let refused = gateway.post("/upload/mask").multipart(nowhere).send().await.unwrap();
    assert_eq!(refused.status(), 400);
}

#[tokio::test]
async fn a_tenant_sees_only_its_own_files() {
    let ground = Ground::new().await;
    let mine = ground.key("mine", &BOTH).await;
    let yours = ground.key("yours", &BOTH).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let post = gateway.post("/upload/image").bearer_auth(&mine).multipart(form("a.png", b"mine", &[]));
    assert_eq!(post.send().await.unwrap().status(), 200);
    let get = |key: &str| gateway.get(&format!("/view?filename=a.png&type=input&token={key}")).send();
    assert_eq!(get(&mine).await.unwrap().bytes().await.unwrap(), &b"mine"[..]);
    assert_eq!(get(&yours).await.unwrap().status(), 404);
    let post = gateway.post("/upload/image").bearer_auth(&yours).multipart(form("a.png", b"yours", &[]));
    assert_eq!(support::json(post.send().await.unwrap(), 200).await["name"], "a.png", "its name is free");
}

fn load(image: &str) -> Value {
    json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "inverted"}},
    })
}

/// The query for the first file of an output node.
fn query_of(entry: &Value, node: &str) -> String {
    let file = &entry["outputs"][node]["images"][0];
    let text = |name: &str| file[name].as_str().unwrap_or_else(|| panic!("{entry}")).to_owned();
    format!("filename={}&subfolder={}&type={}", text("filename"), text("subfolder"), text("type"))
}

#[tokio::test]
async fn what_is_uploaded_or_made_can_be_read_by_graphs_and_seen_after_its_worker_is_gone() {
    let mut ranch = Ranch::start(1).await;
    upload(&ranch.gateway, "a.png", &png(10, 255), &[("subfolder", "sub")]).await;
    upload(&ranch.gateway, "t.png", &png(20, 255), &[("type", "temp")]).await;
    let mut last = String::new();
    for (name, expected) in [("sub/a.png", 245), ("sub/a.png [input]", 245), ("t.png [temp]", 235)] {
        let entry = ranch.entry(&ranch.prompt(&load(name)).await).await;
        last = query_of(&entry, "3");
        let answer = view(&ranch.gateway, &last).await;
        assert_eq!(answer.status(), 200, "{name}: {last}");
        let picture = answer.bytes().await.unwrap();
        assert_eq!(pixels(&picture)[0], expected, "{name}");
    }
    // What a task made is read by the next one, by the name under which it is shown.
    let named: std::collections::HashMap<_, _> = url::form_urlencoded::parse(last.as_bytes()).collect();
    let made = format!("{}/{} [output]", named["subfolder"], named["filename"]);
    let entry = ranch.entry(&ranch.prompt(&load(&made)).await).await;
    let again = view(&ranch.gateway, &query_of(&entry, "3")).await.bytes().await.unwrap();
    assert_eq!(pixels(&again)[0], 20, "inverted twice");
    // An input of the worker's own is had from there; what was put there for tasks is nobody's to see.
    for folder in ["", "remuda"] {
        let own = form("own.png", &png(30, 255), &[("subfolder", folder)]);
        let there = format!("{}/upload/image", ranch.sims[0].url());
        assert_eq!(ranch.gateway.http.post(there).multipart(own).send().await.unwrap().status(), 200);
    }
    let own = view(&ranch.gateway, "filename=own.png&type=input").await;
    assert_eq!(own.headers()["content-type"], "image/png");
    assert_eq!(pixels(&own.bytes().await.unwrap())[0], 30);
    for folder in ["remuda", "./remuda/", "REMUDA", "x/../remuda"] {
        let placed = format!("filename=own.png&type=input&subfolder={folder}");
        assert_eq!(view(&ranch.gateway, &placed).await.status(), 404, "{folder}");
    }
    // Nor is what lies in its other folders, however the name is put.
    let temp = form("temp.png", &png(30, 255), &[("type", "temp")]);
    let there = format!("{}/upload/image", ranch.sims[0].url());
    assert_eq!(ranch.gateway.http.post(there).multipart(temp).send().await.unwrap().status(), 200);
    for name in ["temp.png%20%5Btemp%5D", "temp.png%20%5Btemp%5D%20%5Binput%5D"] {
        let named = format!("filename={name}&type=input");
        assert_eq!(view(&ranch.gateway, &named).await.status(), 404, "{name}");
    }
    let sim = ranch.sims.remove(0);
    sim.shutdown().await;
    assert_eq!(view(&ranch.gateway, &last).await.status(), StatusCode::OK);
    ranch.stop().await;
}
