//! Which hosts reach which other hosts, and by which addresses.

use super::finding::Finding;
use super::side::{Address, Outcome};

/// A host that calls, or is called.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    pub name: &'a str,
    pub addresses: &'a [Address],
}

/// The finding from one host's calls to another; `None` if each address was reached.
pub fn pair(from: End<'_>, to: End<'_>, outcomes: &[Outcome]) -> Option<Finding> {
    let what = "network";
    let tried: Vec<(&Address, &Outcome)> = to.addresses.iter().zip(outcomes).collect();
    let failed = tried.iter().filter(|(_, outcome)| !matches!(outcome, Outcome::Reached | Outcome::Own));
    let failed: Vec<(&Address, &Outcome)> = failed.copied().collect();
    let shown: Vec<String> = failed
        .iter()
        .map(|(address, outcome)| format!("{} ({}) {}", address.ip, address.interface, words(outcome)))
        .collect();
    let shown = shown.join(", ");
    let route = |address: &Address| {
        // By an interface of the same name if there is one.
        let same = from.addresses.iter().find(|own| own.interface == address.interface).or(from.addresses.first());
        let by = same.map_or("eth0", |own| own.interface.as_str());
        format!("sudo ip route replace {} dev {by}  # on {}", address.ip, from.name)
    };
    if let Some((reached, _)) = tried.iter().find(|(_, outcome)| **outcome == Outcome::Reached) {
        let (unreached, _) = failed.first()?;
        let found = format!("{} reaches {} at {} ({}), but {shown}", from.name, to.name, reached.ip, reached.interface);
        // The setting is one for all hosts.
        let is_common = from.addresses.iter().any(|own| own.interface == reached.interface);
        let mend = match is_common && reached.interface != unreached.interface {
            true => format!("export BELLWETHER_TCP_INTERFACE={}", reached.interface),
            false => route(unreached),
        };
        return Some(Finding::warning(what, found, mend));
    }
    let found = format!("{} does not reach {}: {shown}", from.name, to.name);
    Some(match failed.first() {
        None if to.addresses.is_empty() => Finding::error(
            what,
            format!("{} has no network interface that is up", to.name),
            format!("sudo ip link set eth0 up  # on {}", to.name),
        ),
        None => Finding::error(
            what,
            format!("{} and {} have the same addresses, and no other", from.name, to.name),
            format!("sudo ip address add ADDRESS/24 dev {}  # on {}", to.addresses[0].interface, to.name),
        ),
        Some((address, Outcome::NoRoute(_))) => Finding::error(what, found, route(address)),
        Some((address, Outcome::Other)) => Finding::error(
            what,
            found,
            format!("sudo ip address del {} dev {}  # on the wrong host", address.ip, address.interface),
        ),
        // A firewall that drops packets, or turns calls down.
        Some((address, _)) => {
            let own = from.addresses.iter().find(|own| own.ip.is_ipv6() == address.ip.is_ipv6());
            let own = own.map_or(from.name.to_owned(), |own| own.ip.to_string());
            let tool = if address.ip.is_ipv6() { "ip6tables" } else { "iptables" };
            Finding::error(what, found, format!("sudo {tool} -I INPUT -p tcp -s {own} -j ACCEPT  # on {}", to.name))
        }
    })
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Reached => "answers".into(),
        Outcome::Own => "is its own".into(),
        Outcome::Other => "is another host's".into(),
        Outcome::Refused => "refuses calls: a firewall, there or on the way, rejects them".into(),
        Outcome::Silent => "does not answer within 2 s: a firewall drops packets, or nothing leads there".into(),
        Outcome::NoRoute(error) => format!("cannot be sent to: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn address(interface: &str, ip: &str) -> Address {
        Address { interface: interface.into(), ip: ip.parse().unwrap() }
    }

    #[test]
    fn each_way_of_not_being_reached_has_its_mend() {
        let own = [address("eth0", "10.0.0.1")];
        let (a, both) = (End { name: "a", addresses: &own }, [address("eth0", "10.0.0.2"), address("ib0", "10.1.0.2")]);
        let two = End { name: "a", addresses: &[address("ib0", "10.1.0.1"), address("eth0", "10.0.0.1")] };
        let b = End { name: "b", addresses: &both };
        let of = |outcomes: [Outcome; 2]| {
            let finding = pair(a, b, &outcomes)?;
            Some((finding.state, finding.mend.unwrap()))
        };
        let error = |mend: &str| Some((State::Error, mend.to_owned()));
        assert_eq!(of([Outcome::Reached, Outcome::Reached]), None);
        assert_eq!(of([Outcome::Own, Outcome::Reached]), None, "a bridge that each host has");
        let warned = pair(two, b, &[Outcome::Silent, Outcome::Reached]).and_then(|finding| finding.mend);
        assert_eq!(warned.as_deref(), Some("export BELLWETHER_TCP_INTERFACE=ib0"));
        // Without that interface the caller could not use the setting.
        let mend = "sudo ip route replace 10.0.0.2 dev eth0  # on a".to_owned();
        assert_eq!(of([Outcome::Silent, Outcome::Reached]), Some((State::Warning, mend)));
        let firewall = "sudo iptables -I INPUT -p tcp -s 10.0.0.1 -j ACCEPT  # on b";
        assert_eq!(of([Outcome::Silent, Outcome::Silent]), error(firewall));
        assert_eq!(of([Outcome::Refused, Outcome::Own]), error(firewall));
        let route = Outcome::NoRoute("Network is unreachable".into());
        assert_eq!(of([route.clone(), route]), error("sudo ip route replace 10.0.0.2 dev eth0  # on a"));
        assert_eq!(
            of([Outcome::Other, Outcome::Own]),
            error("sudo ip address del 10.0.0.2 dev eth0  # on the wrong host")
        );
        assert_eq!(of([Outcome::Own, Outcome::Own]), error("sudo ip address add ADDRESS/24 dev eth0  # on b"));
    }
}
