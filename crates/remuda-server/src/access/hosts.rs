//! Before there are keys, requests must come from this machine and be meant for it.
//!
//! A page of some web site can make a browser on this machine send requests here. Its origin gives it away; and when
//! the site lets its own name point to 127.0.0.1, the host does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::{HeaderMap, Uri, header};
use url::Url;

use crate::error::ApiError;
use crate::options::ServerOptions;

/// Stands for all origins in the list of those that may use this server.
pub(crate) const ANY_ORIGIN: &str = "*";

/// Which names and origins are ours.
#[derive(Debug)]
pub(crate) struct Hosts {
    insecure: bool,
    names: BTreeSet<String>,
    origins: BTreeSet<String>,
    /// Origins of pages that are served by this installation, whatever a proxy in front of it makes of the host.
    own: BTreeSet<String>,
}

impl Hosts {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let urls = [&options.advertise, &options.public_url];
        let own = urls.into_iter().flatten().filter_map(|url| url.host_str().map(str::to_ascii_lowercase));
        let listed = options.allowed_hosts.iter().map(|name| name.to_ascii_lowercase());
        Self {
            insecure: options.insecure,
            own: urls.into_iter().flatten().map(|url| url.origin().ascii_serialization()).collect(),
            names: own.chain(listed).collect(),
            origins: options
                .cors_origins
                .iter()
                .map(|origin| origin.trim_end_matches('/').to_owned())
                .collect(),
        }
    }

    /// Whether a request without a key may pass while there are no keys.
    pub(crate) fn check(&self, peer: IpAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.insecure && !peer.to_canonical().is_loopback() {
            let error = "only this machine may use the server before the first key exists: make one with `remuda keys make`";
            return Err(ApiError::forbidden("loopback_only", error));
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
        // Also where everybody may ask: the browsers of everybody would.
        let known = self.is_ours(name_of(host)) || (self.insecure && is_local(name_of(host)));
        if !known {
            let error = format!(
                "this server is not called {:?}: name it with --allowed-host, or make a key",
                name_of(host).chars().take(80).collect::<String>()
            );
            return Err(ApiError::forbidden("foreign_host", error));
        }
        match headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("null")) {
            Some(origin) if !self.is_own_origin(origin, host) => {
                let error = format!(
                    "pages of {:?} may not use this server: list the origin with --cors-origin",
                    origin.chars().take(80).collect::<String>()
                );
                Err(ApiError::forbidden("foreign_origin", error))
            }
            _ => Ok(()),
        }
    }

    /// Whether a request whose key a browser added by itself comes from a page of ours. Without an origin it does not,
    /// unless programs that are no browsers show their keys in the same way (`strict`).
    pub(crate) fn check_page(&self, uri: &Uri, headers: &HeaderMap, strict: bool) -> Result<(), ApiError> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
        let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default());
        let ours = match headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("null")) {
            Some(origin) => {
                self.own.contains(origin) || self.origins.contains(origin) || is_of_host(origin, host)
            }
            None => site == Some("same-origin") || (!strict && site.is_none()),
        };
        if ours {
            return Ok(());
        }
        let error = "with a key that the browser keeps, only pages of this server may do this; send the key in a header";
        Err(ApiError::forbidden("foreign_origin", error))
    }

    /// Whether a browser may be given a key to keep: not for a link on a page of another site, which would make its visitors
    /// work under a key of its choice.
    pub(crate) fn check_login(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
        let host = text(header::HOST).or_else(|| uri.authority().map(|authority| authority.as_str()));
        let host = host.unwrap_or_default();
        let ours = |origin: &str| {
            self.own.contains(origin) || self.origins.contains(origin) || is_of_host(origin, host)
        };
        let referer = text(header::REFERER).map(|from| {
            Url::parse(from).map_or_else(|_| "null".to_owned(), |url| url.origin().ascii_serialization())
        });
        // What the browser says of itself, and the address before; on plain HTTP it says little.
        let fine = match headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default()) {
            Some("none" | "same-origin") => true,
            Some(_) => referer.as_deref().is_some_and(ours),
            None => true,
        } && text(header::ORIGIN).is_none_or(ours)
            && referer.as_deref().is_none_or(ours);
        if fine {
            return Ok(());
        }
        let error =
            "this link came from a page of another site: type the key in here, or open the link by itself";
        Err(ApiError::forbidden("foreign_origin", error))
    }

    fn is_ours(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        name == "localhost"
            || name.ends_with(".localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
            || self.names.contains(name)
    }

    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        if self.origins.contains(ANY_ORIGIN) || self.origins.contains(origin) {
            return true;
        }
        is_of_host(origin, host)
    }
}

/// Whether an origin names the host that was asked.
fn is_of_host(origin: &str, host: &str) -> bool {
    let Ok(url) = Url::parse(origin) else { return false };
    let Some(name) = url.host_str() else { return false };
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    !host.is_empty() && host.eq_ignore_ascii_case(&format!("{name}{port}"))
}

/// Whether a name cannot be one that somebody on the Internet made for us: an address, a name of one word, or one below a
/// name that is kept for private networks.
fn is_local(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let private = [".local", ".internal", ".lan", ".home.arpa"];
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || (!name.is_empty() && !name.contains('.') && !name.contains(':'))
        || private.iter().any(|ending| name.ends_with(ending))
}

/// A `Host` without its port.
fn name_of(host: &str) -> &str {
    match host.rfind(':') {
        // `[::1]:8080` has its last colon after the bracket; `[::1]` within.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn check(peer: &str, host: &str, origin: Option<&str>) -> Result<(), &'static str> {
        let hosts = Hosts {
            insecure: false,
            names: ["gpu.lan".to_owned()].into(),
            origins: ["https://app.example".to_owned()].into(),
            own: BTreeSet::new(),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        let uri = Uri::from_static("/api/v1/tasks");
        hosts.check(peer.parse().unwrap(), &uri, &headers).map_err(|error| error.body.code)
    }

    #[test]
    fn where_everybody_may_ask_names_of_others_still_count_for_nothing() {
        let hosts = Hosts {
            insecure: true,
            names: ["gpu.example".to_owned()].into(),
            origins: ["*".to_owned()].into(),
            own: BTreeSet::new(),
        };
        let check = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            headers.insert(header::ORIGIN, HeaderValue::from_str(&format!("http://{host}")).unwrap());
            let peer = "192.168.1.7".parse().unwrap();
            hosts.check(peer, &Uri::from_static("/prompt"), &headers).map_err(|error| error.body.code)
        };
        for host in
            ["192.168.1.2:8080", "[fd00::1]:8080", "remuda:8080", "box.local", "gpu.example", "localhost"]
        {
            assert_eq!(check(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "192.168.1.2.evil.example", ""] {
            assert_eq!(check(host), Err("foreign_host"), "{host}");
        }
    }

    #[test]
    fn what_a_browser_adds_by_itself_counts_only_for_our_own_pages() {
        let hosts = Hosts {
            insecure: false,
            names: BTreeSet::new(),
            origins: ["*".to_owned(), "https://app.example".to_owned()].into(),
            own: ["https://render.example".to_owned()].into(),
        };
        let check = |strict: bool, more: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("gpu.lan:8080"));
            for (name, value) in more {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            hosts.check_page(&Uri::from_static("/prompt"), &headers, strict).is_ok()
        };
        for origin in ["http://gpu.lan:8080", "https://render.example", "https://app.example"] {
            assert!(check(true, &[("origin", origin)]), "{origin}");
        }
        for origin in ["http://gpu.lan", "http://evil.example", "null", "http://gpu.lan:8081"] {
            assert!(!check(true, &[("origin", origin)]) && !check(false, &[("origin", origin)]), "{origin}");
        }
        assert!(check(true, &[("sec-fetch-site", "same-origin")]));
        assert!(!check(false, &[("sec-fetch-site", "cross-site")]));
        assert!(!check(true, &[]) && check(false, &[]));
    }

    #[test]
    fn only_this_machine_by_its_own_names_and_from_its_own_pages() {
        let here = "127.0.0.1";
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8080",
            "[::1]",
            "x.localhost",
            "gpu.lan:8080",
        ] {
            assert_eq!(check(here, host, None), Ok(()), "{host}");
        }
        assert_eq!(check("::1", "localhost", None), Ok(()));
        assert_eq!(check("::ffff:127.0.0.1", "localhost", None), Ok(()));
        assert_eq!(check("192.168.1.7", "localhost", None), Err("loopback_only"));
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", ""] {
            assert_eq!(check(here, host, None), Err("foreign_host"), "{host}");
        }
        assert_eq!(check(here, "localhost:8080", Some("http://localhost:8080")), Ok(()));
        assert_eq!(check(here, "localhost:8080", Some("https://app.example")), Ok(()));
        for origin in ["https://evil.example", "null", "http://localhost:3000", "file://"] {
            assert_eq!(check(here, "localhost:8080", Some(origin)), Err("foreign_origin"), "{origin}");
        }
    }
}
