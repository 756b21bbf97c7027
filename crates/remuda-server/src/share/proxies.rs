//! Proxies in front of the server that are believed when they say for whom they ask.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::HeaderMap;

use super::guest::Address;

/// One address, or a network: `10.0.0.5`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

/// It is not the address of a machine or a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or network; write one such as 10.0.0.5, 10.0.0.0/8 or fd00::/8")]
pub struct BadNetwork(String);

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let bad = || BadNetwork(text.chars().take(60).collect());
        let (base, bits) = match text.trim().split_once('/') {
            Some((base, bits)) => (base, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text.trim(), None),
        };
        let base: IpAddr = base.parse().map_err(|_| bad())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most { Err(bad()) } else { Ok(Self { base, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl Network {
    fn contains(&self, ip: IpAddr) -> bool {
        match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                u32::from(base) & mask == u32::from(ip) & mask
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                u128::from(base) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }
}

/// Proxies that are believed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proxies(Vec<Network>);

impl Proxies {
    pub(crate) fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(ip))
    }

    /// Whose connection this is, for the bounds on connections. `None`: this machine's, or a trusted proxy's.
    pub(crate) fn connection(&self, peer: IpAddr) -> Option<Address> {
        if self.trusts(peer) { None } else { Address::of(peer) }
    }

    /// Who asks. A trusted proxy is asked for whom it asks, and so is the trusted proxy before it; what the last of them says of
    /// a stranger counts, and what the stranger said itself does not. A proxy writes one of the two headers and may pass the
    /// other on as the stranger wrote it: where they disagree neither is believed, and the proxy's own address counts. So does the
    /// address of a proxy that says for whom it asks in words that cannot be read, such as `unknown`: what stands before them
    /// may be the stranger's own.
    pub(crate) fn asks(&self, peer: IpAddr, headers: &HeaderMap) -> Option<Address> {
        if !self.trusts(peer) {
            return Address::of(peer);
        }
        let usual = self.last_stranger(headers, "x-forwarded-for", forwarded);
        let standard = self.last_stranger(headers, "forwarded", |element| {
            element.split(';').find_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                name.trim().eq_ignore_ascii_case("for").then(|| forwarded(value))?
            })
        });
        let said = match (usual, standard) {
            (Some(usual), Some(standard)) if usual != standard => return Some(Address::even_here(peer)),
            (usual, standard) => usual.or(standard)?,
        };
        match said {
            Walk::Stranger(ip) => Address::of(ip),
            Walk::Unreadable(proxy) => Some(Address::even_here(proxy.unwrap_or(peer))),
            Walk::Trusted => None,
        }
    }

    /// The last address in a header that is no trusted proxy's. `None`: there is no such header.
    fn last_stranger(
        &self,
        headers: &HeaderMap,
        name: &str,
        read: impl Fn(&str) -> Option<IpAddr>,
    ) -> Option<Walk> {
        let mut values = headers.get_all(name).iter().rev().peekable();
        values.peek()?;
        // What is no text cannot be read either.
        let said = values.flat_map(|value| value.to_str().unwrap_or_default().rsplit(','));
        let mut last = None;
        for element in said {
            match read(element).map(|ip| ip.to_canonical()) {
                Some(ip) if self.trusts(ip) => last = Some(ip),
                Some(ip) => return Some(Walk::Stranger(ip)),
                None => return Some(Walk::Unreadable(last)),
            }
        }
        Some(Walk::Trusted)
    }
}

/// Where a header leads, from its last address to its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// To somebody who is no trusted proxy.
    Stranger(IpAddr),
    /// To something that is no address. The trusted proxy behind it, unless that is the peer itself.
    Unreadable(Option<IpAddr>),
    /// To trusted proxies only.
    Trusted,
}

/// An address as proxies write it: with quotes, brackets or a port, or without.
fn forwarded(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']')?.0.parse().ok();
    }
    text.rsplit_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn asks(trusted: &[&str], peer: &str, said: &[(&'static str, &'static str)]) -> Option<Address> {
        let proxies = Proxies::new(trusted.iter().map(|text| text.parse().unwrap()).collect());
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        proxies.asks(peer.parse().unwrap(), &headers)
    }

    fn ip(text: &str) -> Option<Address> {
        Address::of(text.parse().unwrap())
    }

    #[test]
    fn only_trusted_proxies_are_believed_and_only_what_they_added() {
        let xff = "x-forwarded-for";
        assert_eq!(asks(&[], "192.0.2.1", &[(xff, "198.51.100.9")]), ip("192.0.2.1"));
        assert_eq!(asks(&["10.0.0.0/8"], "10.1.2.3", &[(xff, "198.51.100.9")]), ip("198.51.100.9"));
        // The first was written by the stranger itself.
        let two = [(xff, "203.0.113.1, 198.51.100.9, 10.0.0.7")];
        assert_eq!(asks(&["10.0.0.0/8"], "10.1.2.3", &two), ip("198.51.100.9"));
        let apart = [(xff, "203.0.113.1"), (xff, "198.51.100.9")];
        assert_eq!(asks(&["10.0.0.0/8"], "::ffff:10.1.2.3", &apart), ip("198.51.100.9"));
        let standard = [("forwarded", "for=\"[2001:db8::1]:443\";proto=https, for=198.51.100.9:80")];
        assert_eq!(asks(&["127.0.0.1"], "127.0.0.1", &standard), ip("198.51.100.9"));
        assert_eq!(asks(&["127.0.0.1"], "127.0.0.1", &[]), None);
    }

    #[test]
    fn what_stands_before_an_unreadable_word_is_not_believed() {
        let (xff, standard) = ("x-forwarded-for", "forwarded");
        let asks =
            |said: &[(&'static str, &'static str)]| asks(&["10.0.0.0/8", "127.0.0.1"], "10.1.2.3", said);
        for word in ["unknown", "unix:", "", "_hidden"] {
            let said: &'static str = format!("203.0.113.1, {word}").leak();
            assert_eq!(asks(&[(xff, said)]), ip("10.1.2.3"), "{word:?}");
            assert_eq!(asks(&[(xff, "203.0.113.1"), (xff, said)]), ip("10.1.2.3"), "{word:?}");
        }
        assert_eq!(asks(&[(xff, "203.0.113.1, unknown, 10.0.0.7")]), ip("10.0.0.7"));
        assert_eq!(asks(&[(xff, "unknown, 198.51.100.9")]), ip("198.51.100.9"));
        assert_eq!(asks(&[(standard, "for=203.0.113.1, for=unknown;proto=https")]), ip("10.1.2.3"));
        assert_eq!(asks(&[(standard, "for=203.0.113.1, proto=https")]), ip("10.1.2.3"));
        // Nor does one behind a proxy on this machine get out of the caps that way.
        let proxies = Proxies::new(vec!["127.0.0.1".parse().unwrap()]);
        let headers = [(HeaderName::from_static(xff), HeaderValue::from_static("nonsense"))];
        assert!(proxies.asks("127.0.0.1".parse().unwrap(), &headers.into_iter().collect()).is_some());
    }

    #[test]
    fn headers_that_disagree_are_not_believed() {
        let (xff, standard) = ("x-forwarded-for", "forwarded");
        let here =
            |said: &[(&'static str, &'static str)]| asks(&["10.0.0.0/8", "127.0.0.1"], "10.1.2.3", said);
        assert_eq!(here(&[(xff, "203.0.113.1"), (standard, "for=198.51.100.9")]), ip("10.1.2.3"));
        assert_eq!(here(&[(xff, "nonsense"), (standard, "for=198.51.100.9")]), ip("10.1.2.3"));
        assert_eq!(here(&[(xff, "198.51.100.9"), (standard, "for=198.51.100.9:80")]), ip("198.51.100.9"));
        // Nor does a stranger behind a proxy on this machine get out of the caps that way.
        let both = [(xff, "203.0.113.1"), (standard, "for=198.51.100.9")];
        assert!(asks(&["127.0.0.1"], "127.0.0.1", &both).is_some());
    }

    #[test]
    fn networks_are_read_and_nonsense_is_refused() {
        for text in ["10.0.0.5", "10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "::1"] {
            assert!(text.parse::<Network>().is_ok(), "{text}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "example.org", "10.0.0.0/x"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("198.51.100.9".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
    }
}
