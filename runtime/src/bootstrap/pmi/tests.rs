//! Exchanges against servers over a socket pair: some serve, some close, lie or stay silent.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::entries::Entries;
use super::pmi1::{self, Pmi1};
use super::pmi2::{self, Pmi2};
use super::pmix::Pmix;
use super::wire::{LONGEST, Wire};
use super::{Exchange, Kind};
use crate::bootstrap::meeting::machine::Machine;
use crate::bootstrap::meeting::{self, Carrier, Outcome};
use crate::bootstrap::surroundings::{check_size, is_one};
use crate::error::{Error, Result};
use crate::settings::Settings;

/// The time that a server has to answer.
const LIMIT: Duration = Duration::from_secs(20);
/// How long to wait for a server that does not answer.
const SHORT: Duration = Duration::from_millis(100);

fn wire(kind: Kind, limit: Duration) -> (Wire, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    (Wire::new(kind, ours.into(), limit), theirs)
}

/// The state that the servers of a job share: keys with values, and the fence.
struct Space {
    size: usize,
    longest: usize,
    values: Mutex<HashMap<String, String>>,
    /// How often a rank has entered a fence.
    entered: Mutex<usize>,
    moved: Condvar,
}

impl Space {
    fn new(size: usize, longest: usize) -> Arc<Space> {
        let (entered, moved) = (Mutex::default(), Condvar::new());
        Arc::new(Space { size, longest, values: Mutex::default(), entered, moved })
    }

    /// Waits for all ranks, for as long as a test may take.
    fn fence(&self) {
        let mut entered = self.entered.lock().expect("no server panicked");
        *entered += 1;
        let all = entered.div_ceil(self.size) * self.size;
        self.moved.notify_all();
        let waited = self.moved.wait_timeout_while(entered, 2 * LIMIT, |entered| *entered < all);
        drop(waited.expect("no server panicked"));
    }

    fn put(&self, key: &str, value: &str) -> bool {
        assert!(key.len() < 64 && value.len() < self.longest, "{key}={value}");
        self.values.lock().expect("no server panicked").insert(key.into(), value.into()).is_none()
    }

    fn get(&self, key: &str) -> Option<String> {
        self.values.lock().expect("no server panicked").get(key).cloned()
    }
}

/// Serves PMI-1 to one rank, until it says that it ends.
fn serve_pmi1(space: &Space, socket: UnixStream) {
    let mut lines = BufReader::new(socket.try_clone().expect("one more")).lines();
    while let Some(Ok(line)) = lines.next() {
        let fields: HashMap<&str, &str> = line.split(' ').filter_map(|field| field.split_once('=')).collect();
        let answer = match fields["cmd"] {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_maxes" => format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={}", space.longest),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7_0".into(),
            "put" if fields["kvsname"] == "kvs_7_0" && space.put(fields["key"], fields["value"]) => {
                "cmd=put_result rc=0 msg=success".into()
            }
            "put" => "cmd=put_result rc=-1 msg=duplicate key".into(),
            "get" => match space.get(fields["key"]) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
            },
            "barrier_in" => {
                space.fence();
                "cmd=barrier_out rc=0".into()
            }
            "finalize" => "cmd=finalize_ack rc=0".into(),
            other => panic!("PMI-1 has no {other}"),
        };
        // A byte at a time, as a socket may bring them.
        format!("{answer}\n").bytes().for_each(|byte| (&socket).write_all(&[byte]).expect("the rank reads"));
        if fields["cmd"] == "finalize" {
            break;
        }
    }
}

/// Serves PMI-2 to one rank, until it says that it ends.
fn serve_pmi2(space: &Space, rank: usize, socket: UnixStream) {
    let mut reader = BufReader::new(socket.try_clone().expect("one more"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("the rank begins");
    assert_eq!(line, "cmd=init pmi_version=2 pmi_subversion=0\n");
    (&socket).write_all(b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n").expect("the rank reads");
    let mut header = [0; 6];
    while reader.read_exact(&mut header).is_ok() {
        let length: usize = std::str::from_utf8(&header).expect("digits").trim().parse().expect("a number");
        let mut message = vec![0; length];
        reader.read_exact(&mut message).expect("as long as it says");
        let message = String::from_utf8(message).expect("text");
        let fields: HashMap<&str, &str> = message.split(';').filter_map(|field| field.split_once('=')).collect();
        let answer = match fields["cmd"] {
            "fullinit" => {
                assert_eq!((fields["pmijobid"], fields["threaded"]), ("7.0", "FALSE"));
                format!("rc=0;pmi-version=2;pmi-subversion=0;rank={rank};size={};appnum=-1;", space.size)
            }
            "job-getid" => "rc=0;jobid=7.0;".into(),
            "kvs-put" => format!("rc={};", i32::from(!space.put(fields["key"], fields["value"]))),
            "kvs-get" => match space.get(fields["key"]) {
                Some(value) => format!("rc=0;flag=TRUE;value={value};"),
                None => "rc=0;flag=FALSE;".into(),
            },
            "kvs-fence" => {
                space.fence();
                "rc=0;".into()
            }
            "finalize" => "rc=0;".into(),
            other => panic!("PMI-2 has no {other}"),
        };
        let answer = format!("cmd={}-response;{answer}", fields["cmd"]);
        write!(&socket, "{:6}{answer}", answer.len()).expect("the rank reads");
        if fields["cmd"] == "finalize" {
            break;
        }
    }
}

/// A message of PMI-2.
fn long(text: &str) -> String {
    format!("{:6}{text}", text.len())
}

fn begin_pmi2(wire: Wire) -> Result<Pmi2> {
    Pmi2::begin(wire, |name| (name == "PMI_JOBID").then(|| "7.0".into()))
}

/// Runs `rank` as each rank of a job, over an exchange with values of at most `longest` bytes. A server's panic is the test's.
fn job<R: Send>(
    kind: Kind,
    size: usize,
    longest: usize,
    each: impl Fn(usize, &mut dyn Exchange) -> R + Sync,
) -> Vec<R> {
    let space = Space::new(size, longest);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (wire, theirs) = wire(kind, LIMIT);
                let (space, each) = (Arc::clone(&space), &each);
                scope.spawn(move || match kind {
                    Kind::Pmi1 => serve_pmi1(&space, theirs),
                    _ => serve_pmi2(&space, rank, theirs),
                });
                scope.spawn(move || {
                    let mut exchange: Box<dyn Exchange> = match kind {
                        Kind::Pmi1 => Box::new(Pmi1::begin(wire, rank, size).expect("it is served")),
                        _ => Box::new(begin_pmi2(wire).expect("it is served")),
                    };
                    assert_eq!((exchange.rank(), exchange.size()), (rank, size));
                    let result = each(rank, &mut *exchange);
                    exchange.leave(LIMIT).expect("it is served");
                    result
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    })
}

#[test]
fn ranks_learn_of_their_hosts_and_of_each_other() {
    // A value of 64 bytes takes an entry of many parts.
    for (kind, longest) in [(Kind::Pmi1, 1024), (Kind::Pmi1, 64), (Kind::Pmi2, 1024)] {
        for size in [1, 2, 3, 5] {
            let told = job(kind, size, longest, |rank, exchange| {
                let mut entries = Entries::new(exchange, LIMIT);
                // Dealt out to two hosts by turns.
                let hosts = entries.hosts(&Machine::here(Some(["even", "odd"][rank % 2]))).expect("it is served");
                assert_eq!((0..size).map(|other| hosts.nodes.of(other)).collect::<Vec<_>>(), of_turns(size));
                assert_eq!(hosts.local, (rank % 2..size).step_by(2).collect::<Vec<_>>());
                let others = if rank < 2 { hosts.local.len() - 1 } else { 0 };
                assert_eq!(hosts.pids, vec![std::process::id(); others]);
                let mut word = [0u64; 100];
                word[99] = if rank == 0 { u64::MAX } else { 3 };
                entries.broadcast(&mut word).expect("it is served");
                assert_eq!((word[0], word[99]), (0, u64::MAX));
                let mut word = rank as u64;
                entries.broadcast_on_host(&hosts, &mut word).expect("it is served");
                assert_eq!(word as usize, rank % 2);
                let well = Outcome::of(&Ok(()));
                assert!(entries.agree(&well, |_| ()).expect("it is served").is_none());
                let mine = if rank == size - 1 { Outcome::saying("no room here") } else { well };
                let (of, outcome) = entries.agree(&mine, |_| ()).expect("it is served").expect("one complains");
                (of, String::from_utf8_lossy(outcome.text()).into_owned())
            });
            assert_eq!(told, vec![(size - 1, "no room here".to_string()); size]);
        }
    }
}

fn of_turns(size: usize) -> Vec<usize> {
    (0..size).map(|rank| rank % 2).collect()
}

/// Two hosts of one rank each: to make the memory of a host takes processes, to connect hosts does not.
#[test]
fn hosts_connect_with_the_secret_that_the_exchange_carries() {
    for kind in [Kind::Pmi1, Kind::Pmi2] {
        let linked = job(kind, 3, 1024, |rank, exchange| {
            let settings = Settings { host: Some(format!("host{rank}")), ..Settings::default() };
            let joined =
                meeting::meet(&mut Entries::new(exchange, LIMIT), Ok(settings), device_kind).expect("it is served");
            (joined.rank, joined.nodes.count(), joined.link.expect("a link to other hosts").connections.len())
        });
        assert_eq!(linked, [(0, 3, 2), (1, 3, 1), (2, 3, 1)]);
    }
}

/// Stands for the kind of a rank's devices.
fn device_kind(settings: &Settings) -> String {
    settings.verbs_device.clone().unwrap_or_default()
}

#[test]
fn all_ranks_learn_whether_devices_are_of_one_kind() {
    let differing = |kinds: [&'static str; 3]| {
        job(Kind::Pmi2, 3, 1024, move |rank, exchange| {
            let (host, verbs_device) = (Some(format!("host{rank}")), Some(kinds[rank].into()));
            let settings = Settings { host, verbs_device, ..Settings::default() };
            let joined = meeting::meet(&mut Entries::new(exchange, LIMIT), Ok(settings), device_kind);
            joined.expect("it is served").differing_devices
        })
    };
    assert_eq!(differing(["RDMA"; 3]), [None, None, None]);
    for (kinds, rank) in [(["RDMA", "RDMA", "none"], 2), (["RDMA", "none", "RDMA"], 1), (["none", "RDMA", "RDMA"], 1)] {
        let told = format!("rank 0 has {}, rank {rank} has {}", kinds[0], kinds[rank]);
        assert_eq!(differing(kinds), vec![Some(told); 3], "{kinds:?}");
    }
}

/// All ranks receive the complaint of a rank that has no settings, and no rank waits for that rank.
#[test]
fn a_rank_that_cannot_join_is_told_to_all() {
    for bad in [0, 2] {
        let said = job(Kind::Pmi2, 3, 1024, |rank, exchange| {
            let settings = Settings { host: Some(format!("host{rank}")), ..Settings::default() };
            let settings = if rank == bad { Err(Error::Start("no settings".into())) } else { Ok(settings) };
            let joined = meeting::meet(&mut Entries::new(exchange, LIMIT), settings, device_kind);
            joined.map(drop).expect_err("one rank has no settings").to_string()
        });
        assert!(said.iter().all(|said| said.contains("no settings")), "{said:?}");
    }
}

#[test]
fn a_limit_without_end_is_one() {
    for kind in [Kind::Pmi1, Kind::Pmi2] {
        job(kind, 2, 1024, |_, exchange| {
            let mut entries = Entries::new(exchange, Duration::MAX);
            assert_eq!(entries.hosts(&Machine::here(None)).expect("it is served").local, [0, 1]);
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_not_waited_for_longer_than_the_limit() {
    let (wire, theirs) = wire(Kind::Pmi1, LIMIT);
    // The server of two, of which one never comes.
    let space = Space::new(2, 1024);
    std::thread::spawn(move || serve_pmi1(&space, theirs));
    let mut exchange = Pmi1::begin(wire, 0, 2).expect("it is served");
    let began = Instant::now();
    let settings = Ok(Settings::default());
    let error = meeting::meet(&mut Entries::new(&mut exchange, SHORT), settings, device_kind)
        .map(drop)
        .expect_err("one is missing");
    assert!(matches!(error, Error::TimedOut { .. }) && error.to_string().contains("BELLWETHER_JOIN_LIMIT"), "{error}");
    assert!(began.elapsed() < LIMIT / 2);
}

/// Begins over a server that gives `said` in answer to everything, then closes or stays silent; and makes each call, if that works.
fn against(kind: Kind, said: &[u8], closes: bool) -> Error {
    let (wire, mut theirs) = wire(kind, SHORT);
    theirs.write_all(said).expect("there is room");
    if closes {
        // No rank reads this rank's complaint, which is no error by itself.
        theirs.shutdown(std::net::Shutdown::Write).expect("it is open");
    }
    let began = Instant::now();
    let calls = || -> Result<()> {
        let mut exchange: Box<dyn Exchange> = match kind {
            Kind::Pmi1 => Box::new(Pmi1::begin(wire, 0, 2)?),
            _ => Box::new(begin_pmi2(wire)?),
        };
        Entries::new(&mut *exchange, SHORT).hosts(&Machine::here(None)).map(drop)
    };
    let error = calls().expect_err("nobody serves");
    assert!(began.elapsed() < LIMIT / 2, "{error} took {:?}", began.elapsed());
    drop(theirs);
    error
}

#[test]
fn a_server_that_asks_is_told_which_rank_was_missed() {
    for (asks, expected) in [(" bellwether_missed=asked", "cmd=finalize bellwether_missed=1"), ("", "cmd=finalize")] {
        let (wire, mut theirs) = wire(Kind::Pmi1, LIMIT);
        let said = format!(
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0{asks}\n\
             cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=my_kvsname kvsname=kvs\ncmd=finalize_ack rc=0\n"
        );
        theirs.write_all(said.as_bytes()).expect("there is room");
        let mut exchange = Pmi1::begin(wire, 0, 2).expect("it is served");
        exchange.note_missed(1);
        exchange.leave(LIMIT).expect("it is served");
        drop(exchange);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).expect("text");
        assert_eq!(heard.lines().last(), Some(expected));
    }
}

#[test]
fn a_server_that_closes_or_says_nothing_is_an_error_in_time() {
    let begun1: &[&str] = &[
        "",
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        "cmd=my_kvsname kvsname=kvs\n",
        "cmd=put_result rc=0\n",
        "cmd=barrier_out\n",
        "cmd=get_result rc",
    ];
    let begun2: &[&str] = &[
        "",
        "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
        &long("cmd=fullinit-response;rc=0;rank=0;size=2;"),
        &long("cmd=job-getid-response;rc=0;jobid=7.0;"),
        &long("cmd=kvs-put-response;rc=0;"),
        &long("cmd=kvs-fence-response;rc=0;"),
        "    50cmd=kvs-get-resp",
    ];
    for (kind, begun) in [(Kind::Pmi1, begun1), (Kind::Pmi2, begun2)] {
        for steps in 1..=begun.len() {
            let said = begun[..steps].concat();
            let error = against(kind, said.as_bytes(), false);
            assert!(matches!(error, Error::TimedOut { .. }), "{said}: {error}");
            let error = against(kind, said.as_bytes(), true);
            assert!(error.to_string().contains("closed the connection"), "{said}: {error}");
        }
    }
}

/// Answers with values where others are expected, or that say that they fail: errors show them, and not the values.
#[test]
fn errors_do_not_show_values() {
    let init = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";
    for (kind, said) in [
        (Kind::Pmi1, "cmd=get_result rc=0 msg=success value=5ec2e7\n".to_string()),
        (Kind::Pmi1, "cmd=response_to_init rc=-1 value=5ec2e7\n".into()),
        (Kind::Pmi1, "get_result value=5ec2e7 \u{fffd}\n".into()),
        (Kind::Pmi2, "cmd=get_result value=5ec2e7\n".into()),
        (Kind::Pmi2, init.to_string() + &long("cmd=kvs-get-response;rc=0;flag=TRUE;value=5ec2e7;")),
        (Kind::Pmi2, init.to_string() + &long("cmd=fullinit-response;rc=1;value=5ec2e7;")),
        (Kind::Pmi2, init.to_string() + &long("kvs-get-response;value=5ec2e7;x")),
    ] {
        let error = against(kind, said.as_bytes(), true).to_string();
        assert!(error.contains("value=...") && !error.contains("5ec2e7"), "{error}");
    }
}

#[test]
fn a_server_that_lies_is_told_of() {
    let init1 = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
    let init2 = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";
    let endless = "x".repeat(LONGEST + 5000);
    let lies: &[(Kind, &[&str], &str)] = &[
        (Kind::Pmi1, &["cmd=response_to_init pmi_version=3 pmi_subversion=0 rc=0\n"], "version 3"),
        (Kind::Pmi1, &["cmd=response_to_init rc=-1\n"], "refuses"),
        (Kind::Pmi1, &["cmd=barrier_out\n"], "instead of response_to_init"),
        (Kind::Pmi1, &["hello\n"], "hello"),
        (Kind::Pmi1, &["\n"], "answered \"\""),
        (Kind::Pmi1, &[&endless], "no end"),
        (Kind::Pmi1, &[init1, "cmd=maxes vallen_max=-3\n"], "how long a value"),
        (Kind::Pmi1, &[init1, "cmd=maxes vallen_max=7\n"], "less than 64"),
        (Kind::Pmi1, &[init1, "cmd=maxes vallen_max=99\n", "cmd=my_kvsname kvsname=\n"], "key space"),
        (Kind::Pmi2, &[init1], "version 2"),
        (Kind::Pmi2, &[init2, "    -1"], "instead of its length"),
        (Kind::Pmi2, &[init2, " 99999"], "instead of its length"),
        (Kind::Pmi2, &[init2, "     5hello"], "hello"),
        (Kind::Pmi2, &[init2, &long("cmd=fullinit-response;rc=3;rank=0;size=2;")], "refuses"),
        (Kind::Pmi2, &[init2, &long("cmd=fullinit-response;rc=0;rank=2;size=2;")], "no place"),
        (Kind::Pmi2, &[init2, &long("cmd=fullinit-response;rc=0;rank=0;size=x;")], "rank and size"),
    ];
    for (kind, said, why) in lies {
        let error = against(*kind, said.concat().as_bytes(), false).to_string();
        assert!(error.contains(why), "{said:?}: {error}");
        assert!(error.len() < 600, "{error}");
    }
    let entry = |value: &str| {
        let head = [init1, "cmd=maxes vallen_max=1024\n", "cmd=my_kvsname kvsname=k\n", "cmd=put_result\n"].concat();
        let said = format!("{head}cmd=barrier_out\n{}", format!("cmd=get_result value={value}\n").repeat(3));
        against(Kind::Pmi1, said.as_bytes(), false).to_string()
    };
    assert!(entry("ffffffff00").contains("instead of"), "{}", entry("ffffffff00"));
    assert!(entry("0000").contains("begin with its length"));
    assert!(entry("").contains("begin with its length"));
    assert!(entry("00000001zz").contains("cannot be read"));
    // Longer than it says, and of an odd number of digits.
    assert!(entry("0000000100aa").contains("cannot be read"));
    assert!(entry("00000001000").contains("cannot be read"));
}

/// The place comes over a port in three lines of their own.
#[test]
fn a_rank_that_calls_a_port_is_told_its_place() {
    let (wire, mut theirs) = wire(Kind::Pmi1, LIMIT);
    theirs.write_all(b"cmd=initack\ncmd=set size=3\ncmd=set rank=2\ncmd=set debug=0\n").expect("there is room");
    let server = std::thread::spawn(move || {
        let mut first = [0; 20];
        (&theirs).read_exact(&mut first).expect("the rank says who it is");
        assert_eq!(&first, b"cmd=initack pmiid=5\n");
        serve_pmi1(&Space::new(3, 1024), theirs);
    });
    let mut exchange = Pmi1::called(wire, "5").expect("it is served");
    assert_eq!((exchange.rank(), exchange.size()), (2, 3));
    exchange.leave(LIMIT).expect("it is served");
    server.join().expect("the server found what it expects");
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, most: usize) -> usize {
        self.next() as usize % most
    }
}

/// Changes a text as a broken or hostile server might.
fn spoil(text: &str, random: &mut Random) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next() as u8),
            2 if at < bytes.len() => bytes[at] = b";= \n0-9\xff"[random.below(8)],
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.extend(text.as_bytes().iter().copied().skip(at)),
        }
    }
    bytes
}

#[test]
fn no_bytes_of_a_server_make_the_parsers_panic_or_grow() {
    let texts = [
        "cmd=get_result rc=0 msg=success value=00000001ff",
        "cmd=kvs-get-response;rc=0;flag=TRUE;value=a;;b;;;;c;",
        "cmd=fullinit-response;rc=0;rank=0;size=2;",
    ];
    let mut random = Random(7);
    let mut whole = 0;
    for round in 0..30_000 {
        let bytes = spoil(texts[round % texts.len()], &mut random);
        for answer in [pmi1::parse(&bytes), pmi2::parse(&bytes)].into_iter().flatten() {
            let length: usize = answer.0.iter().map(|(name, value)| name.len() + value.len()).sum();
            assert!(length <= bytes.len(), "{bytes:?}");
            whole += 1;
        }
    }
    assert!(whole > 1000, "nothing was left to read");
    let answer = pmi2::parse(texts[1].as_bytes()).expect("it is whole");
    assert_eq!(answer.get("value"), Some("a;b;;c"));
    let answer = pmi1::parse(b"cmd=get_result msg=no such key rc=-1").expect("it is whole");
    assert_eq!((answer.get("msg"), answer.get("rc")), (Some("no such key"), Some("-1")));
}

/// Whole conversations with what a server said changed at random: each ends, in time, in an error or as it should.
#[test]
fn no_spoilt_conversation_hangs_or_panics() {
    let one = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
               cmd=my_kvsname kvsname=k\ncmd=put_result rc=0\ncmd=barrier_out\ncmd=get_result value=00000001ff\n";
    let two = [
        "cmd=fullinit-response;rc=0;rank=0;size=2;",
        "cmd=job-getid-response;rc=0;jobid=7.0;",
        "cmd=kvs-put-response;rc=0;",
        "cmd=kvs-fence-response;rc=0;",
        "cmd=kvs-get-response;rc=0;flag=TRUE;value=00000001ff;",
    ];
    let init2 = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n".to_string();
    let two = &*(init2 + &two.map(long).concat());
    let mut random = Random(11);
    for round in 0..600 {
        let (kind, text) = [(Kind::Pmi1, one), (Kind::Pmi2, two)][round % 2];
        let said = spoil(text, &mut random);
        let error = against(kind, &said, true);
        assert!(error.to_string().len() < 2000, "{error}");
    }
}

#[test]
fn the_environment_chooses_the_exchange() {
    let by = |names: &[&str], open: bool| Kind::found(&|name| names.contains(&name).then(|| "1".into()), |_| open);
    let found = |names: &[&str]| by(names, true);
    assert_eq!(found(&[]), None);
    assert_eq!(found(&["PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID"]), None);
    assert_eq!(found(&["PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"]), Some(Kind::Pmix));
    assert_eq!(found(&["PMIX_RANK"]), None);
    assert_eq!(found(&["PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"]), Some(Kind::Pmi1));
    assert_eq!(found(&["PMI_FD", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID"]), Some(Kind::Pmi2));
    assert_eq!(found(&["PMI_FD", "MPI_LOCALNRANKS", "SLURM_STEP_ID"]), Some(Kind::Pmi1));
    assert_eq!(found(&["PMI_PORT", "PMI_ID"]), Some(Kind::Pmi1));
    assert_eq!(found(&["PMI_PORT"]), None);
    // Hydra inside mpirun, and mpirun, which closes the socket, inside hydra.
    let both = ["PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_FD", "PMI_SIZE", "MPI_LOCALNRANKS"];
    assert_eq!(by(&both, true), Some(Kind::Pmi1));
    assert_eq!(by(&both, false), Some(Kind::Pmix));
    let port = ["PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_PORT", "PMI_ID", "MPI_LOCALNRANKS"];
    assert_eq!(found(&port), Some(Kind::Pmi1));
    let of_three =
        |name: &str| if name == port[2] { Some("3".into()) } else { port.contains(&name).then(|| "1".into()) };
    assert_eq!(Kind::found(&of_three, |_| true), Some(Kind::Pmix));
}

/// Reads from a list of variables with their values.
fn of_list<'a>(list: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| list.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
}

#[test]
fn one_rank_of_an_exchange_is_none_of_several_tasks() {
    let apart = |kind, ranks, list: &[(&str, &str)]| match check_size(kind, ranks, &of_list(list)) {
        Err(Error::StartedApart { variable, value, .. }) => Some((variable, value)),
        Err(Error::Start(why)) => Some((if why.contains("ranks, and") { "another size" } else { "" }, 0)),
        other => other.map(|()| None).expect("no other error"),
    };
    // A server of mpirun, and the tasks of a launcher that runs inside the mpirun job.
    let hydra = [("OMPI_COMM_WORLD_SIZE", "1"), ("PMI_SIZE", "3")];
    assert_eq!(apart(Kind::Pmix, 1, &hydra), Some(("PMI_SIZE", 3)));
    assert_eq!(apart(Kind::Pmi1, 3, &hydra), None);
    let slurm = [("OMPI_COMM_WORLD_SIZE", "1"), ("SLURM_NTASKS", "3"), ("SLURM_STEP_ID", "0")];
    assert_eq!(apart(Kind::Pmix, 1, &slurm), Some(("SLURM_NTASKS", 3)));
    for kind in [Kind::Pmi1, Kind::Pmi2, Kind::Pmix] {
        assert_eq!(apart(kind, 1, &[("OMPI_COMM_WORLD_SIZE", "3")]), Some(("OMPI_COMM_WORLD_SIZE", 3)));
        assert_eq!(apart(kind, 1, &[("PMI_SIZE", "3")]), Some(("PMI_SIZE", 3)));
        assert_eq!(apart(kind, 1, &[("SLURM_NTASKS", "3")]), Some(("SLURM_NTASKS", 3)));
        assert_eq!(apart(kind, 3, &[("SLURM_NTASKS", "3")]), None);
        assert_eq!(apart(kind, 1, &[]), None);
        // One rank of another launcher in a job script of several tasks.
        for one in [("OMPI_COMM_WORLD_SIZE", "1"), ("PMI_SIZE", "1"), ("MPI_LOCALNRANKS", "1")] {
            assert_eq!(apart(kind, 1, &[one, ("SLURM_NTASKS", "3")]), None);
            // The same in the shell of salloc.
            let shell = [one, ("SLURM_NTASKS", "3"), ("SLURM_STEP_ID", "4294967290")];
            assert_eq!(apart(kind, 1, &shell), None);
        }
    }
    assert_eq!(apart(Kind::Pmix, 2, &[("OMPI_COMM_WORLD_SIZE", "3")]), Some(("another size", 0)));
    assert_eq!(apart(Kind::Pmi1, 3, &[("PMI_SIZE", "2")]), Some(("another size", 0)));
}

#[test]
fn one_task_is_known_before_it_joins_where_its_own_launcher_says_so() {
    let fd = |size| [("PMI_FD", "6"), ("PMI_SIZE", size)];
    for kind in [Kind::Pmi1, Kind::Pmi2] {
        assert!(is_one(kind, &of_list(&fd("1"))));
        assert!(!is_one(kind, &of_list(&fd("2"))));
        assert!(!is_one(kind, &of_list(&[fd("1")[0], fd("1")[1], ("OMPI_COMM_WORLD_SIZE", "3")])));
        assert!(!is_one(kind, &of_list(&[("PMI_PORT", "here:7"), ("PMI_ID", "0")])));
    }
    let mpirun = [("PMIX_NAMESPACE", "77"), ("OMPI_MCA_ess_base_jobid", "77"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert!(is_one(Kind::Pmix, &of_list(&mpirun)));
    assert!(!is_one(Kind::Pmix, &of_list(&[mpirun[0], mpirun[1], ("OMPI_COMM_WORLD_SIZE", "2")])));
    assert!(!is_one(Kind::Pmix, &of_list(&[mpirun[0], mpirun[1], mpirun[2], ("PMI_SIZE", "3")])));
    // Another launcher of PMIx inside.
    assert!(!is_one(Kind::Pmix, &of_list(&[("PMIX_NAMESPACE", "prte-1"), mpirun[1], mpirun[2]])));
    let slurm = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "2"), ("SLURM_STEP_NUM_TASKS", "1")];
    let with = |more: &[(&'static str, &'static str)]| is_one(Kind::Pmix, &of_list(&[&slurm, more].concat()));
    assert!(with(&[("PMIX_NAMESPACE", "slurm.pmix.5.2"), ("SLURM_NTASKS", "1")]));
    assert!(!with(&[("PMIX_NAMESPACE", "slurm.pmix.5.2"), ("SLURM_NTASKS", "2")]));
    assert!(!with(&[("PMIX_NAMESPACE", "slurm.pmix.5.2"), ("SLURM_HET_SIZE", "2")]));
    assert!(!with(&[("PMIX_NAMESPACE", "slurm.pmix.5.1")]));
    assert!(!with(&[]));
}

#[test]
fn a_library_that_is_not_there_or_another_is_told_of() {
    for (name, why) in [("libpmix-is-not-here.so.2", "cannot be loaded"), ("libc.so.6", "PMIx_Init")] {
        let Err(error) = Pmix::by(name, LIMIT) else { panic!("{name} is not PMIx") };
        let error = error.to_string();
        assert!(error.contains(name) && error.contains(why) && error.contains("LD_LIBRARY_PATH"), "{error}");
    }
}

/// A library that has PMIx's calls, and does what `MODE` says.
const LIBRARY: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct value { uint16_t kind; union { uint32_t number; char *text; uint64_t whole[3]; } data; };
struct proc { char name[256]; uint32_t rank; };
static char *kept;
int PMIx_Init(struct proc *own, void *info, size_t n) {
    if (MODE == 1) for (;;) pause();
    if (MODE == 2) return -25;
    strcpy(own->name, "job");
    own->rank = MODE == 3 ? 4 : 0;
    return 0;
}
int PMIx_Get(const struct proc *proc, const char *key, const void *info, size_t n, struct value **found) {
    if (MODE == 4) { *found = NULL; return 0; }
    *found = calloc(1, sizeof **found);
    if (!strcmp(key, "pmix.job.size")) {
        (*found)->kind = MODE == 5 ? 3 : 14;
        if (MODE != 5) (*found)->data.number = 1;
    } else {
        (*found)->kind = 3;
        (*found)->data.text = MODE == 6 ? NULL : strdup(kept);
    }
    return 0;
}
int PMIx_Put(uint8_t scope, const char *key, struct value *value) { kept = strdup(value->data.text); return 0; }
int PMIx_Commit(void) { return 0; }
int PMIx_Fence(const struct proc *procs, size_t np, const void *info, size_t n) {
    if (MODE == 7) for (;;) pause();
    return strcmp(info, "pmix.collect");
}
int PMIx_Finalize(const void *info, size_t n) { return MODE == 8 ? -1 : 0; }
const char *PMIx_Error_string(int status) { return status == -25 ? "UNREACHABLE" : NULL; }
"#;

/// One rank that puts, fences and gets by that library.
fn by_library(mode: u32, folder: &std::path::Path) -> Option<Result<String>> {
    let library = folder.join(format!("libpmix-{mode}.so"));
    let source = folder.join("pmix.c");
    std::fs::write(&source, LIBRARY).expect("there is room");
    let define = format!("-DMODE={mode}");
    let mut compile = std::process::Command::new("cc");
    let compiled = compile.args(["-shared", "-fPIC", &define, "-o"]).arg(&library).arg(&source).status().ok()?;
    assert!(compiled.success());
    Some((|| {
        let limit = if mode == 1 { SHORT } else { LIMIT };
        let mut exchange = Pmix::by(library.to_str().expect("a path of letters"), limit)?;
        assert_eq!((exchange.rank(), exchange.size()), (0, 1));
        exchange.put("key", "00000001ff")?;
        exchange.begin_fence()?;
        if !exchange.fence_is_done(if mode == 7 { SHORT } else { limit })? {
            return Err(Error::Start("the fence is not done".into()));
        }
        let value = exchange.get(0, "key")?;
        exchange.leave(limit)?;
        Ok(value)
    })())
}

#[test]
fn a_library_that_waits_fails_or_lies_is_an_error_in_time() {
    let folder = std::env::temp_dir().join(format!("bellwether-pmix-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is room");
    for (mode, why) in [
        (0, ""),
        (1, "not done after 100ms"),
        (2, "PMIx_Init returned -25 UNREACHABLE"),
        (3, "rank 4 of 1"),
        (4, "no value"),
        (5, "unexpected type 3"),
        (6, "unexpected type 3"),
        (7, "the fence is not done"),
        (8, "PMIx_Finalize returned -1"),
    ] {
        match by_library(mode, &folder) {
            None => return eprintln!("skipped: there is no C compiler"),
            Some(Ok(value)) => assert_eq!((mode, &*value), (0, "00000001ff")),
            Some(Err(error)) => assert!(mode > 0 && error.to_string().contains(why), "{mode}: {error}"),
        }
    }
    std::fs::remove_dir_all(&folder).expect("it was made above");
}
