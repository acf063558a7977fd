//! Admission of leaders, and what other callers can do to it.

use super::super::HostMessage;
use std::os::fd::AsFd;

use super::*;

/// The bytes that come within a while.
fn hear(line: &mut Connection) -> Vec<HostMessage> {
    let (start, mut words) = (Instant::now(), Vec::new());
    while words.is_empty() && start.elapsed() < Duration::from_secs(20) {
        words = line.receive();
    }
    words
}

#[test]
fn leaders_meet_and_strangers_do_not_get_in() {
    let (listener, hub) = HubListener::bind().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    // One that says nothing, one that knows no secret.
    let _silent = TcpStream::connect(address).unwrap();
    TcpStream::connect(address).unwrap().write_all(&[7; HELLO]).unwrap();
    let (mut lines, mut leaders) = std::thread::scope(|scope| {
        let callers = [3, 2, 1].map(|host| scope.spawn(move || hub.greet(&address, host, TRY)));
        let lines = listener.admit(3, || Ok(false)).unwrap();
        (lines, callers.map(|caller| caller.join().unwrap()))
    });
    assert!(leaders[0].is_err(), "no such host");
    lines.sort_by_key(|line| line.host);
    assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), [1, 2]);
    for (line, leader) in lines.iter_mut().zip([2, 1]) {
        leaders[leader].as_mut().unwrap().send(&HostMessage::Leaving(leader));
        assert_eq!(hear(line), [HostMessage::Leaving(leader)]);
        line.send(&HostMessage::Finished);
        assert_eq!(hear(leaders[leader].as_mut().unwrap()), [HostMessage::Finished]);
    }
}

#[test]
fn a_door_that_is_not_the_hubs_is_not_entered() {
    let (stranger, other) = HubListener::bind().unwrap();
    let hub = HubAddress { secret: [9; KEY], ..other };
    let text = std::thread::scope(|scope| {
        let caller = scope.spawn(move || hub.call(1).unwrap_err().to_string());
        // It answers every caller, under a key of its own.
        drop(stranger.admit(2, || Ok(caller.is_finished())));
        caller.join().unwrap()
    });
    assert!(text.contains("somebody else answers"), "{text}");
}

#[test]
fn nobody_is_waited_for_who_has_told_that_it_failed() {
    let (listener, hub) = HubListener::bind().unwrap();
    let lines = std::thread::scope(|scope| {
        let one = scope.spawn(move || hub.call(1).unwrap());
        let lines = listener.admit(3, || Ok(one.is_finished())).unwrap();
        one.join().unwrap();
        lines
    });
    assert_eq!(lines.len(), 1);
}

#[test]
fn a_hub_out_of_reach_is_an_error_with_its_addresses() {
    let (listener, hub) = HubListener::bind().unwrap();
    drop(listener);
    let text = hub.call(1).unwrap_err().to_string();
    assert!(text.contains(&format!(":{}: ", hub.port)) && text.contains("refused"), "{text}");
    let nowhere = HubAddress { addresses: Zeroable::zeroed(), ..hub };
    assert!(nowhere.call(1).unwrap_err().to_string().contains("no address"));
}

#[test]
fn a_call_that_fails_names_the_interface_and_what_may_help() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let interface = |name: &str, addresses: &[&str]| HostInterface {
        name: name.into(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        bandwidth: 1e9,
    };
    let here =
        [interface("ib0", &["fd00::2"]), interface("eth0", &["10.0.0.2", "fd00::3"]), interface("lo", &["127.0.0.1"])];
    let told = |address, kind| mend(ip(address), kind, &here).unwrap_or_default();
    for kind in [ErrorKind::TimedOut, ErrorKind::ConnectionRefused] {
        let told = told("10.0.0.1", kind);
        assert!(told.contains("interface eth0 (10.0.0.2)"), "{told}");
        assert!(told.contains("`sudo iptables -I INPUT -p tcp -s 10.0.0.2 -j ACCEPT` on the host of rank 0"), "{told}");
    }
    assert!(told("fd00::1", ErrorKind::TimedOut).contains("`sudo ip6tables -I INPUT -p tcp -s fd00::2 -j ACCEPT`"));
    let route = told("10.0.0.1", ErrorKind::HostUnreachable);
    assert!(route.contains("`sudo ip route replace 10.0.0.1 dev eth0` on this host"), "{route}");
    assert_eq!(told("10.0.0.1", ErrorKind::Other), "");
    assert_eq!(mend(ip("10.0.0.1"), ErrorKind::TimedOut, &here[2..]), None, "no interface leads to other hosts");
}

/// A leader's side of the handshake, as far as its proof.
struct HalfWay {
    stream: TcpStream,
    hello: [u8; HELLO],
    proof: Vec<u8>,
}

impl HalfWay {
    fn call(hub: &HubAddress, host: u32) -> HalfWay {
        let nonce = random().unwrap();
        let hello = Hello { from: (host, 0), to: HUB_END, position: NOWHERE, nonce };
        let (mut dialing, hello) = Dialing::new(&hub.leaders_key(), hello);
        let (stream, answer) = challenged(hub, &hello);
        let Step::Done(_, proof) = dialing.take(&answer) else { panic!("the hub does not know the key") };
        HalfWay { stream, hello, proof }
    }
}

/// A connection on which those bytes were sent, and what the hub answered.
fn challenged(hub: &HubAddress, hello: &[u8]) -> (TcpStream, [u8; CHALLENGE + PROOF]) {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(hello).unwrap();
    let mut answer = [0; CHALLENGE + PROOF];
    stream.read_exact(&mut answer).unwrap();
    (stream, answer)
}

/// Whether the hub lets this caller in.
fn is_let_in(stream: &mut TcpStream) -> bool {
    stream.read_exact(&mut [0; connection::WELCOME]).is_ok()
}

#[test]
fn what_was_recorded_of_a_leader_lets_nobody_in() {
    let (listener, hub) = HubListener::bind().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.admit(2, || Ok(false)).unwrap());
        // A proof that was seen, but did not reach the hub: the host is still missing.
        let HalfWay { hello, proof, .. } = HalfWay::call(&hub, 1);
        let (mut replayed, _) = challenged(&hub, &hello);
        replayed.write_all(&proof).unwrap();
        assert!(!is_let_in(&mut replayed));
        let mut leader = hub.call(1).unwrap();
        let mut lines = admitted.join().unwrap();
        lines[0].send(&HostMessage::Leaving(0));
        assert_eq!(hear(&mut leader), [HostMessage::Leaving(0)]);
    });
}

#[test]
fn who_calls_for_a_host_and_proves_nothing_does_not_take_its_place() {
    let (listener, hub) = HubListener::bind().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.admit(2, || Ok(false)).unwrap());
        let _idle = HalfWay::call(&hub, 1);
        let mut wrong = HalfWay::call(&hub, 1);
        wrong.proof[7] ^= 1;
        wrong.stream.write_all(&wrong.proof).unwrap();
        assert!(!is_let_in(&mut wrong.stream));
        hub.call(1).unwrap();
        assert_eq!(admitted.join().unwrap().len(), 1);
    });
}

#[test]
fn of_two_leaders_of_one_host_one_is_let_in() {
    let (listener, hub) = HubListener::bind().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.admit(3, || Ok(false)).unwrap());
        // Both have a challenge before one has proved anything.
        let mut two = [HalfWay::call(&hub, 1), HalfWay::call(&hub, 1)];
        let let_in = two.each_mut().map(|HalfWay { stream, proof, .. }| {
            stream.write_all(proof).unwrap();
            is_let_in(stream)
        });
        assert_eq!(let_in, [true, false]);
        hub.call(2).unwrap();
        let lines = admitted.join().unwrap();
        assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), [1, 2]);
    });
}

#[test]
fn a_host_that_comes_late_is_let_in_and_the_others_keep_their_places() {
    let (listener, hub) = HubListener::bind().expect("a port");
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.admit(3, || Ok(false)).expect("it listens"));
        let mut early = hub.call(1).expect("the hub is there");
        // Later than a caller may take to prove who it is.
        std::thread::sleep(PATIENCE + GRACE);
        assert!(!admitted.is_finished(), "the hub waits for the third host");
        let late = hub.call(2).expect("the hub is still there");
        let mut lines = admitted.join().expect("no panic");
        lines.sort_by_key(|line| line.host);
        assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), [1, 2]);
        // The line of the host that came first has not been closed meanwhile.
        lines[0].send(&HostMessage::Finished);
        assert_eq!(hear(&mut early), [HostMessage::Finished]);
        assert!(!late.has_ended());
    });
}

#[test]
fn a_leader_that_hung_up_keeps_no_place() {
    let (listener, hub) = HubListener::bind().unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.admit(3, || Ok(false)).unwrap());
        let HalfWay { mut stream, proof, .. } = HalfWay::call(&hub, 1);
        stream.write_all(&proof).unwrap();
        drop(stream);
        let mut leader = hub.call(1).unwrap();
        hub.call(2).unwrap();
        let mut lines = admitted.join().unwrap();
        assert_eq!(lines.iter().map(|line| line.host).collect::<Vec<_>>(), [1, 2]);
        lines[0].send(&HostMessage::Leaving(0));
        assert_eq!(hear(&mut leader), [HostMessage::Leaving(0)]);
    });
}

#[test]
fn a_hub_whose_queue_is_full_is_called_again() {
    let (listener, mut hub) = HubListener::bind().unwrap();
    // One address: each is called for a while.
    hub.addresses = Zeroable::zeroed();
    hub.addresses[0] = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    rustix::net::listen(&listener.listener, 1).unwrap();
    // Strangers fill it: the kernel answers nobody else.
    let strangers: Vec<TcpStream> =
        std::iter::from_fn(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()).collect();
    assert!(strangers.len() < 10, "the queue has room for {}", strangers.len());
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| hub.call(1).map(drop));
        // Until its first call is over.
        std::thread::sleep(TRY + Duration::from_millis(500));
        let lines = listener.admit(2, || Ok(leader.is_finished())).unwrap();
        leader.join().unwrap().unwrap();
        assert_eq!(lines.len(), 1);
    });
}

#[test]
fn a_hub_that_answers_byte_by_byte_is_given_up_in_time() {
    let (one, mut other) = connection::tests::pair();
    let mut one = one;
    std::thread::scope(|scope| {
        let slow = scope.spawn(move || {
            while other.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let until = Instant::now() + Duration::from_millis(50);
        let error = read_until(&mut one, &mut [0; 1 << 20], until).unwrap_err();
        assert!(is_busy(&error), "{error}");
        drop(one);
        slow.join().unwrap();
    });
}

#[test]
fn silent_callers_are_held_in_a_bounded_number_and_the_oldest_goes_first() {
    const MOST: usize = 10;
    let (listener, hub) = HubListener::bind().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    let mut callers = VecDeque::new();
    // Some, a while later many more.
    let mut first = TcpStream::connect(address).unwrap();
    while callers.is_empty() {
        assert!(listener.accept(&mut callers, MOST).unwrap().is_none());
    }
    std::thread::sleep(GRACE);
    let others: Vec<TcpStream> = (0..5 * MOST).map(|_| TcpStream::connect(address).unwrap()).collect();
    let start = Instant::now();
    while callers.len() < MOST && start.elapsed() < Duration::from_secs(20) {
        listener.accept(&mut callers, MOST).unwrap();
    }
    for _ in 0..10 {
        let oldest = |callers: &VecDeque<Caller>| {
            callers.front().map(|caller| (caller.stream.peer_addr().unwrap(), caller.since)).expect("MOST are held")
        };
        let before = oldest(&callers);
        listener.accept(&mut callers, MOST).unwrap();
        assert!(callers.len() <= MOST, "{} callers", callers.len());
        assert!(oldest(&callers) == before || before.1.elapsed() >= GRACE, "a caller had no time");
    }
    // All have their turn, and are let go.
    while start.elapsed() < Duration::from_secs(20) && callers.iter().all(|caller| !is_from(caller, others.last())) {
        listener.accept(&mut callers, MOST).unwrap();
        assert!(callers.len() <= MOST, "{} callers", callers.len());
    }
    assert!(callers.iter().any(|caller| is_from(caller, others.last())), "the last is not in");
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the first is still held");
}

fn is_from(caller: &Caller, end: Option<&TcpStream>) -> bool {
    let port = |address: std::io::Result<SocketAddr>| address.ok().map(|address| address.port());
    end.is_some_and(|end| port(caller.stream.peer_addr()) == port(end.local_addr()))
}

/// Runs one of the tests below in a process of its own, whose limit on descriptors is no other test's. Gives what it is
/// called by, and what it says then.
fn in_a_process(test: &str) -> (HubAddress, impl FnOnce() -> String) {
    use std::io::BufRead;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg(format!("{}::{test}", module_path!().split_once("::").unwrap().1))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::io::Result::ok);
    let hex = lines.find_map(|line| Some(line.split_once("hub ")?.1.to_owned())).expect("it says where it listens");
    let bytes: Vec<u8> = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect();
    let end = move || {
        let text = lines.collect::<Vec<_>>().join("\n");
        child.wait().unwrap();
        text
    };
    (bytemuck::pod_read_unaligned(&bytes), end)
}

/// In the process: opens the listener, with a limit of so many descriptors from then on, and says where.
fn listener_with_few_descriptors(limit: u64) -> HubListener {
    let (listener, hub) = HubListener::bind().unwrap();
    let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    println!("hub {}", bytemuck::bytes_of(&hub).iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    listener
}

/// Ends what would go on for ever.
fn overdue(start: Instant) -> bool {
    start.elapsed() > Duration::from_secs(300)
}

#[test]
#[ignore = "the other process of a_flood_of_silent_callers_keeps_no_leader_out"]
fn hub_with_few_descriptors() {
    let (listener, start) = (listener_with_few_descriptors(40), Instant::now());
    println!("outcome {:?}", listener.admit(2, || Ok(overdue(start))).map(|lines| lines.len()));
}

#[test]
fn a_flood_of_silent_callers_keeps_no_leader_out() {
    let (hub, end) = in_a_process("hub_with_few_descriptors");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    // More than the descriptors of the hub, and new ones all the time.
    let mut held: VecDeque<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let over = std::sync::atomic::AtomicBool::new(false);
    let joined = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                held.extend(TcpStream::connect_timeout(&address, TRY));
                held.pop_front();
                std::thread::sleep(PAUSE);
            }
        });
        let joined = hub.call(1).map(drop);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        joined
    });
    let text = end();
    assert!(joined.is_ok() && text.contains("outcome Ok(1)"), "{joined:?}; the hub: {text}");
}

#[test]
#[ignore = "the other process of callers_that_hold_all_descriptors_are_let_go"]
fn hub_whose_callers_hold_all_descriptors() {
    let (listener, start) = (listener_with_few_descriptors(40), Instant::now());
    let (mut callers, mut first) = (VecDeque::new(), None);
    while start.elapsed() < Duration::from_secs(20) {
        // Alone, it lets nobody go because of `PATIENCE`; and far fewer call than it may hold.
        listener.accept(&mut callers, STRANGERS).expect("a shortage is no error");
        let oldest = callers.front().map(|caller: &Caller| caller.stream.peer_addr().unwrap());
        first = first.or(oldest);
        if oldest != first {
            return println!("outcome: {} are held, and the first is let go", callers.len());
        }
        sleep::nap(PAUSE);
    }
    println!("outcome: {} are held, and the first still is", callers.len());
}

#[test]
fn callers_that_hold_all_descriptors_are_let_go() {
    let (hub, end) = in_a_process("hub_whose_callers_hold_all_descriptors");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    // More than the descriptors of the hub; they say nothing, and stay.
    let held: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
    let text = end();
    assert!(text.contains("the first is let go"), "{text}");
    drop(held);
}

#[test]
#[ignore = "the other process of strangers_by_the_thousand_keep_no_leader_out"]
fn hub_among_thousands() {
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let (before, listener, start) = (tasks(), listener_with_few_descriptors(60), Instant::now());
    let admitted = listener.admit(2, || Ok(overdue(start))).map(|lines| lines.len());
    println!("outcome {admitted:?}, {} more threads", tasks() - before);
}

#[test]
fn strangers_by_the_thousand_keep_no_leader_out() {
    let (hub, end) = in_a_process("hub_among_thousands");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.port as u16));
    let own = Hello { from: (1, 0), to: HUB_END, position: NOWHERE, nonce: [1; NONCE] }.encode();
    let other = Hello { from: (9, 0), to: HUB_END, position: NOWHERE, nonce: [1; NONCE] }.encode();
    // What these callers send before they close: nothing, a part, all but the proof, a wrong proof with it, another host's, rubbish.
    let with_proof = [&own[..], &[7; PROOF]].concat();
    let words: [&[u8]; 6] = [&[], &own[..30], &own, &with_proof, &other, &[0xff; 500]];
    let mut held = VecDeque::new();
    for number in 0..4000 {
        if let Ok(mut stranger) = TcpStream::connect_timeout(&address, TRY) {
            // The hub may have hung up already.
            let _ = stranger.write_all(words[number % words.len()]);
            held.push_back(stranger);
        }
        // The last stay: more than the hub has descriptors for.
        if held.len() > 100 {
            held.pop_front();
        }
    }
    let joined = hub.call(1).map(drop);
    let text = end();
    assert!(joined.is_ok() && text.contains("outcome Ok(1), 0 more threads"), "{joined:?}; the hub: {text}");
}

#[test]
#[ignore = "the other process of a_hub_without_descriptors_goes_on_when_there_are_some"]
fn hub_without_descriptors_for_a_while() {
    let (listener, start) = (listener_with_few_descriptors(40), Instant::now());
    let mut taken: Vec<_> = std::iter::from_fn(|| std::io::stdin().as_fd().try_clone_to_owned().ok()).collect();
    let mut looks = 0;
    let admitted = listener.admit(2, || {
        looks += 1;
        if looks == 300 {
            taken.clear();
        }
        Ok(overdue(start))
    });
    println!("outcome {:?}", admitted.map(|lines| lines.len()));
}

#[test]
fn a_hub_without_descriptors_goes_on_when_there_are_some() {
    let (hub, end) = in_a_process("hub_without_descriptors_for_a_while");
    let joined = hub.call(1).map(drop);
    let text = end();
    assert!(joined.is_ok() && text.contains("outcome Ok(1)"), "{joined:?}; the hub: {text}");
}

#[test]
#[ignore = "the other process of a_hub_that_never_had_descriptors_says_so"]
fn hub_without_descriptors() {
    let listener = listener_with_few_descriptors(40);
    let _taken: Vec<_> = std::iter::from_fn(|| std::io::stdin().as_fd().try_clone_to_owned().ok()).collect();
    let mut looks = 0;
    let admitted = listener.admit(2, || {
        looks += 1;
        Ok(looks == 100)
    });
    println!("after {looks} looks: {:?}", admitted.map(|lines| lines.len()));
}

#[test]
fn a_hub_that_never_had_descriptors_says_so() {
    let text = in_a_process("hub_without_descriptors").1();
    assert!(text.contains("after 100 looks: Err(connecting the hosts: accept: Too many open files"), "{text}");
}
