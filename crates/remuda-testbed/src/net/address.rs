//! Addresses with another port in them.

use std::net::Ipv4Addr;
use url::Url;

/// An address that has no place to put a host and a port.
#[derive(Debug, thiserror::Error)]
#[error("`{url}` cannot be led through another port: {why}")]
pub struct AddressError {
    /// What was given.
    pub url: String,
    /// What is wrong with it.
    pub why: String,
}

/// Host and port of an address, as [`Proxy::start`](super::Proxy::start) takes them.
///
/// ```
/// assert_eq!(remuda_testbed::net::target("postgres://me@127.0.0.1:7000/db")?, "127.0.0.1:7000");
/// assert_eq!(remuda_testbed::net::target("http://localhost/x")?, "localhost:80");
/// # Ok::<(), remuda_testbed::net::AddressError>(())
/// ```
pub fn target(url: &str) -> Result<String, AddressError> {
    let parsed = parse(url)?;
    let port =
        parsed.port_or_known_default().or_else(|| parsed.scheme().starts_with("postgres").then_some(5432));
    match (parsed.host_str(), port) {
        (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err(wrong(url, "it names no host and port")),
    }
}

/// The same address at a port on 127.0.0.1.
pub(crate) fn at_port(url: &str, port: u16) -> Result<String, AddressError> {
    let mut parsed = parse(url)?;
    let host = parsed.set_host(Some(&Ipv4Addr::LOCALHOST.to_string()));
    host.map_err(|error| wrong(url, &error.to_string()))?;
    parsed.set_port(Some(port)).map_err(|()| wrong(url, "it cannot have a port"))?;
    Ok(parsed.to_string())
}

fn parse(url: &str) -> Result<Url, AddressError> {
    Url::parse(url).map_err(|error| wrong(url, &error.to_string()))
}

fn wrong(url: &str, why: &str) -> AddressError {
    AddressError { url: url.to_owned(), why: why.to_owned() }
}
