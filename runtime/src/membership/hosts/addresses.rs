//! Under which addresses other hosts may reach this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of this host's network interfaces that are up. That by which a host calls itself is only there if nothing else is:
/// elsewhere it leads to the caller.
pub(super) fn here() -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: writes a pointer to a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: an entry of the list, or its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        if entry.ifa_flags & libc::IFF_UP as u32 != 0 {
            // SAFETY: the list's own address, or none.
            found.extend(unsafe { address(entry.ifa_addr) });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list from above, freed once.
    unsafe { libc::freeifaddrs(first) };
    // Those that only reach a neighbour need the name of an interface there.
    found.retain(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    let outward: Vec<IpAddr> = found.iter().copied().filter(|address| !address.is_loopback()).collect();
    let mut found = if outward.is_empty() { found } else { outward };
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

/// # Safety
/// `address` is null or points to an address of the kind that it names.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                Some(IpAddr::V6(Ipv6Addr::from((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
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
