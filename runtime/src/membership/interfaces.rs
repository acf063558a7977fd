//! The network interfaces of this host.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes a second where the system does not tell. Chosen: 10 Gbit/s.
const BANDWIDTH: f64 = 1.25e9;

/// A network interface that is up.
#[derive(Debug, Clone, PartialEq)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its addresses that others can reach, IPv4 first: at least one.
    pub addresses: Vec<IpAddr>,
    /// Bytes a second.
    pub bandwidth: f64,
}

impl HostInterface {
    /// Whether it leads to this host only.
    pub fn is_loopback(&self) -> bool {
        self.addresses.iter().all(IpAddr::is_loopback)
    }
}

/// The interfaces of this host that are up: the fastest first, the loopback interface last.
pub fn here() -> Vec<HostInterface> {
    let mut first = std::ptr::null_mut();
    // SAFETY: writes a pointer to a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut found: Vec<HostInterface> = Vec::new();
    let mut next = first;
    // SAFETY: an entry of the list, or its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the list's own address, or none; the name ends with a zero.
        let (address, name) = unsafe { (address(entry.ifa_addr), CStr::from_ptr(entry.ifa_name)) };
        let name = name.to_string_lossy().into_owned();
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // Leave out link-local addresses: a peer would have to add the name of its own interface.
        let is_far = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let Some(address) = address.filter(is_far).filter(|_| is_up) else { continue };
        match found.iter_mut().find(|interface| interface.name == name) {
            Some(interface) => interface.addresses.push(address),
            None => found.push(HostInterface { bandwidth: bandwidth(&name), name, addresses: vec![address] }),
        }
    }
    // SAFETY: the list from above, freed once.
    unsafe { libc::freeifaddrs(first) };
    found.iter_mut().for_each(|interface| interface.addresses.sort_by_key(IpAddr::is_ipv6));
    sort(&mut found);
    found
}

/// The fastest first, of equal ones in the order of their names, and the loopback interface last.
fn sort(interfaces: &mut [HostInterface]) {
    interfaces.sort_by(|a, b| {
        a.is_loopback().cmp(&b.is_loopback()).then(b.bandwidth.total_cmp(&a.bandwidth)).then(a.name.cmp(&b.name))
    });
}

fn bandwidth(name: &str) -> f64 {
    // Megabits a second; less than nothing where there is no cable.
    let told = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok();
    let megabits = told.and_then(|text| text.trim().parse::<f64>().ok()).filter(|megabits| *megabits > 0.0);
    megabits.map_or(BANDWIDTH, |megabits| megabits * 125e3)
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
    use super::*;

    #[test]
    fn the_fastest_interface_is_the_first() {
        let interface = |name: &str, last, gigabits: f64| HostInterface {
            name: name.into(),
            addresses: vec![IpAddr::V4(Ipv4Addr::new(if name == "lo" { 127 } else { 10 }, 0, 0, last))],
            bandwidth: gigabits * 125e6,
        };
        let mut found =
            [interface("lo", 1, 100.0), interface("a", 2, 1.0), interface("c", 3, 40.0), interface("b", 4, 40.0)];
        for _ in 0..found.len() {
            found.rotate_left(1);
            sort(&mut found);
            assert_eq!(found.each_ref().map(|one| one.name.as_str()), ["b", "c", "a", "lo"]);
        }
    }

    #[test]
    fn a_host_has_interfaces_and_the_loopback_is_the_last() {
        let found = here();
        assert!(found.iter().is_sorted_by_key(HostInterface::is_loopback) && !found.is_empty(), "{found:?}");
        assert!(found.iter().all(|interface| interface.bandwidth > 0.0 && !interface.addresses.is_empty()));
    }
}
