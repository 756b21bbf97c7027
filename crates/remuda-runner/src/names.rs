//! What a worker is called: the same ComfyUI has the same name for every process that may ask it.

use std::net::IpAddr;

use remuda_core::{IdError, Sha256, WorkerId};
use url::{Host, Url};

/// The name of the ComfyUI at this address.
///
/// An address that other hosts can reach is its own name, spelt in one way. A loopback address means another ComfyUI on
/// every host, so the host's identity stands in its place: nobody asks a loopback endpoint of another host.
///
/// ```
/// use remuda_runner::worker_id_for;
/// let name = |url: &str, host: &str| worker_id_for(url, host).unwrap().to_string();
/// assert_eq!(name("http://GPU-3:8188/", "a"), "gpu-3:8188");
/// assert_eq!(name("gpu-3:8188", "b"), "gpu-3:8188");
/// assert_eq!(name("https://pod.example.com/comfy/", "a"), "https/pod.example.com:443/comfy");
/// assert_eq!(name("http://127.0.0.1:8188", "a"), name("http://localhost:8188/", "a"));
/// assert_ne!(name("http://127.0.0.1:8188", "a"), name("http://127.0.0.1:8188", "b"));
/// ```
///
/// # Errors
/// When the address is not one of http or https.
pub fn worker_id_for(url: &str, host_id: &str) -> Result<WorkerId, IdError> {
    let wrong = |why| IdError { what: "address of a ComfyUI", value: url.chars().take(80).collect(), why };
    let text = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let url = Url::parse(&text).map_err(|_| wrong("it is not an address"))?;
    let (Some(host), Some(port), "http" | "https") = (url.host(), url.port_or_known_default(), url.scheme())
    else {
        return Err(wrong("only http and https are spoken"));
    };
    let host = if is_loopback(&host) {
        host_id.to_owned()
    } else {
        host.to_string().trim_end_matches('.').to_ascii_lowercase()
    };
    let scheme = if url.scheme() == "https" { "https/" } else { "" };
    let path = url.path().trim_end_matches('/');
    let name: String = format!("{scheme}{host}:{port}{path}")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._:@/-".contains(c) { c } else { '_' })
        .collect();
    if name.len() <= 128 {
        return WorkerId::new(name);
    }
    let hash = Sha256::of(name.as_bytes()).to_string();
    WorkerId::new(format!("{}-{}", &name[..100], &hash[..16]))
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
        Host::Ipv4(address) => address.is_loopback() || address.is_unspecified(),
        Host::Ipv6(address) => {
            address.is_unspecified() || IpAddr::from(*address).to_canonical().is_loopback()
        }
    }
}

/// What tells this host from others: the machine id where there is one, else its name. Short, and not the machine id
/// itself, which is not for others to see.
pub fn host_id() -> String {
    let read = |path: &str| {
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let name = read("/proc/sys/kernel/hostname").or_else(|| std::env::var("HOSTNAME").ok());
    // Containers made from one image share its machine id, and have names of their own.
    let both =
        format!("{}/{}", read("/etc/machine-id").unwrap_or_default(), name.as_deref().unwrap_or_default());
    let hash = Sha256::of(format!("remuda host {both}").as_bytes()).to_string();
    let shown: String = name
        .unwrap_or_else(|| "host".to_owned())
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c.to_ascii_lowercase() } else { '-' })
        .take(40)
        .collect();
    format!("{shown}-{}", &hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_loopback_is_this_host() {
        for url in [
            "127.0.0.1:8188",
            "http://localhost:8188",
            "http://[::1]:8188/",
            "http://127.8.0.1:8188",
            "http://0.0.0.0:8188",
        ] {
            assert_eq!(worker_id_for(url, "box").unwrap().as_str(), "box:8188", "{url}");
        }
    }

    #[test]
    fn odd_addresses_are_named_or_refused() {
        assert!(worker_id_for("ftp://gpu/x", "box").is_err());
        assert!(worker_id_for("", "box").is_err());
        assert_eq!(worker_id_for("http://[2001:db8::1]:81", "x").unwrap().as_str(), "_2001:db8::1_:81");
        let long = format!("http://h/{}", "x".repeat(300));
        assert!(worker_id_for(&long, "box").unwrap().as_str().len() <= 128);
        assert!(host_id().len() < 60);
        assert!(worker_id_for("http://localhost:1", &host_id()).is_ok());
    }
}
