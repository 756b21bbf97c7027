//! Who something is charged to.

use std::net::{IpAddr, Ipv6Addr};

use remuda_core::Tenant;

/// Where a guest comes from. Whoever has one IPv6 address has a whole network of them, so the network counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Address(IpAddr);

impl Address {
    /// The address, or the first one of its network.
    pub(crate) fn ip(self) -> IpAddr {
        self.0
    }

    /// `None` for this machine: a proxy on it brings everybody's requests.
    pub(crate) fn of(ip: IpAddr) -> Option<Self> {
        let ip = ip.to_canonical();
        (!ip.is_loopback()).then(|| Self::even_here(ip))
    }

    /// Also of this machine: for requests of a proxy on it that are to be capped together.
    pub(crate) fn even_here(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
            ip => Self(ip),
        }
    }
}

/// Who something is charged to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guest {
    /// `None`: another server of the installation.
    pub(crate) tenant: Option<Tenant>,
    /// `None`: this machine, or a proxy that does not say for whom it asks.
    pub(crate) address: Option<Address>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ipv6_network_is_one_address_and_this_machine_is_none() {
        let of = |text: &str| Address::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(here), None, "{here}");
        }
    }
}
