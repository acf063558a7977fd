//! Under which addresses other hosts may reach this one.

use std::net::{IpAddr, Ipv4Addr};

use crate::membership::interfaces;

/// Addresses of this host's network interfaces that are up. That by which a host calls itself is only there if nothing else is:
/// elsewhere it leads to the caller.
pub(super) fn here() -> Vec<IpAddr> {
    let found: Vec<IpAddr> = interfaces::here().into_iter().flat_map(|interface| interface.addresses).collect();
    let outward: Vec<IpAddr> = found.iter().copied().filter(|address| !address.is_loopback()).collect();
    let mut found = if outward.is_empty() { found } else { outward };
    if found.is_empty() {
        found.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_host_has_an_address_and_calls_itself_by_it_only_if_it_has_no_other() {
        let found = super::here();
        assert!(!found.is_empty());
        assert!(found.iter().all(|address| address.is_loopback() == found[0].is_loopback()), "{found:?}");
    }
}
