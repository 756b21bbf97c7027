//! Any bytes as the headers by which a request says for whom it is and where it comes from. Before there are keys, only
//! what is meant for this machine is answered.

#![no_main]

use fuzz::get;
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;

const NAMES: [&str; 7] = [
    "host",
    "origin",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-for",
    "sec-fetch-site",
    "cookie",
];

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|byte| *byte == b'\n');
    let headers: Vec<(&'static str, &[u8])> =
        NAMES.into_iter().zip(lines).filter(|(_, value)| !value.is_empty()).collect();
    for target in ["/api/v1/tasks", "/?token=x"] {
        let Some(answer) = get(target, &headers) else { return };
        if answer.status == 200
            && let Some((_, host)) = headers.iter().find(|(name, _)| *name == "host")
        {
            let host = String::from_utf8_lossy(host).to_ascii_lowercase();
            // What follows the last colon is a port, or a part of an address of the sixth version, or a trick.
            let name = match host.rsplit_once(':') {
                Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
                _ => host.as_str(),
            };
            let name = name.trim_end_matches('.');
            let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
            let ours = name == "localhost"
                || name.ends_with(".localhost")
                || address.is_ok_and(|address| address.to_canonical().is_loopback());
            assert!(ours, "a request for {host:?} was answered");
        }
    }
});
