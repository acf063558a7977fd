//! The page of `watch`: over plain sockets, and in a browser.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far above the time that any of these takes.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs `body`, which waits for the process `id`. After [`LIMIT`] that is killed, so that the wait ends.
fn limited<R>(what: &str, id: u32, body: impl FnOnce() -> R) -> R {
    let (running, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("waited {LIMIT:?} for {what}: process {id} is killed");
                let _ = Command::new("sh").args(["-c", &format!("kill -KILL {id}")]).status();
            }
        });
        // Ends the thread, also in a panic.
        let _running = running;
        body()
    })
}

/// Runs it to its end.
fn output(what: &str, command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    limited(what, child.id(), || child.wait_with_output().unwrap())
}

/// A job that serves its page, until it is dropped.
struct Job {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    address: SocketAddr,
}

fn program() -> Command {
    let tests = std::env::current_exe().unwrap();
    let mut command = Command::new(tests.parent().unwrap().parent().unwrap().join("examples/watch"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Job {
    fn start(ranks: usize, arguments: &[&str]) -> Job {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.env("BELLWETHER_RANKS", ranks.to_string()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        limited("the address", child.id(), || out.read_line(&mut line).unwrap());
        let address = line.strip_prefix("page      http://").and_then(|rest| rest.trim_end().strip_suffix('/'));
        let address = address.unwrap_or_else(|| panic!("no address: {line}")).parse().unwrap();
        Job { child, out, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Sends these bytes, and gives the status line, the fields and the body of the answer.
    fn send(&self, request: &[u8]) -> (String, String, Vec<u8>) {
        let mut stream = self.connect();
        // It may answer, and close, before it has read all.
        let _ = stream.write_all(request);
        answer_of(&mut stream)
    }

    fn get(&self, path: &str) -> (String, Vec<u8>) {
        let (status, fields, body) =
            self.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes());
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
        assert!(fields.contains(&format!("Content-Length: {}\r\n", body.len())), "{fields}");
        (fields, body)
    }

    fn state(&self) -> Value {
        let (fields, body) = self.get("/state.json");
        assert!(fields.contains("Content-Type: application/json\r\n"), "{fields}");
        serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&body)))
    }

    /// As Ctrl-C does. Gives what it printed then.
    fn interrupt(mut self) -> String {
        let press = Command::new("sh").args(["-c", &format!("kill -INT {}", self.child.id())]).status().unwrap();
        assert!(press.success());
        self.end()
    }

    /// Waits for its end.
    fn end(&mut self) -> String {
        let mut text = String::new();
        let mut errors = String::new();
        let status = limited("the end of the job", self.child.id(), || {
            self.out.read_to_string(&mut text).unwrap();
            self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            self.child.wait().unwrap()
        });
        assert!(status.success() && errors.is_empty(), "{status}: {text}{errors}");
        text
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer_of(stream: &mut TcpStream) -> (String, String, Vec<u8>) {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset && !bytes.is_empty() => {}
        Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&bytes)),
    }
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap_or_else(|| panic!("{bytes:?}"));
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8(bytes).unwrap();
    let (status, fields) = head.split_once("\r\n").unwrap();
    (status.to_owned(), fields.to_owned(), body)
}

/// A test may be stalled in the middle of a request.
const SMALL: [&str; 6] = ["--size", "96x64", "--every", "40", "--patience", "100"];

#[test]
fn the_page_shows_a_running_job() {
    for ranks in [1, 2, 4] {
        let job = Job::start(ranks, &SMALL);
        let (fields, page) = job.get("/");
        assert!(fields.contains("Content-Type: text/html"), "{fields}");
        assert!(String::from_utf8(page).unwrap().contains("<title>heat2d, live</title>"));
        let begun = Instant::now();
        let (mut steps, mut frames, mut rung) = (Vec::new(), Vec::new(), 0.0);
        let mut awaits_rows = false;
        // It goes on while it is looked at, and rates come with time.
        while steps.len() < 3 || frames.len() < 2 || (ranks > 1 && (rung == 0.0 || !awaits_rows)) {
            assert!(begun.elapsed() < LIMIT, "{ranks} ranks: {steps:?} {frames:?} {rung}");
            let state = job.state();
            assert_eq!((state["width"].as_u64(), state["height"].as_u64()), (Some(96), Some(64)));
            let all = state["ranks"].as_array().unwrap();
            assert_eq!(all.len(), ranks);
            for (rank, one) in all.iter().enumerate() {
                assert_eq!(one["rank"].as_u64(), Some(rank as u64));
                let doing = one["doing"].as_str().unwrap();
                assert!(!doing.is_empty() && doing != "answers requests", "{state}");
                awaits_rows |= doing == "waits for rows of its neighbours";
            }
            steps.extend(state["step"].as_u64().filter(|step| steps.last() < Some(step)));
            frames.extend(state["frame"].as_u64().filter(|frame| frames.last() < Some(frame)));
            rung = state["bells_per_second"].as_f64().unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(frames.iter().all(|step| step % 40 == 0), "{frames:?}");
        let (fields, picture) = job.get("/frame.png?step=5");
        assert!(fields.contains("Content-Type: image/png\r\n"), "{fields}");
        let mut decoder = png::Decoder::new(std::io::Cursor::new(picture));
        let header = decoder.read_header_info().unwrap();
        assert_eq!((header.width, header.height), (96, 64));
        let told = job.interrupt();
        assert!(told.contains("ended     by Ctrl-C\n") && told.contains("steps     "), "{ranks} ranks: {told}");
    }
}

#[test]
fn the_job_ends_with_its_last_step() {
    for ranks in [1, 3] {
        let mut job = Job::start(ranks, &[&SMALL[..], &["--steps", "500"]].concat());
        assert_eq!(job.end(), "steps     500\n", "{ranks} ranks");
    }
}

#[test]
fn bad_requests_are_refused() {
    let job = Job::start(2, &SMALL);
    let host = "Host: here\r\n";
    let long = format!("GET / HTTP/1.1\r\n{host}X: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{host}{}\r\n", "A: b\r\n".repeat(100));
    for (request, status) in [
        ("GET /no HTTP/1.1\r\nHost: here\r\n\r\n", "404 Not Found"),
        ("GET /state.json/ HTTP/1.1\r\nHost: here\r\n\r\n", "404 Not Found"),
        ("GET /../page.html HTTP/1.1\r\nHost: here\r\n\r\n", "404 Not Found"),
        ("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        ("GET / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: here\r\nHost: there\r\n\r\n", "400 Bad Request"),
        ("GET http://here/ HTTP/1.1\r\nHost: here\r\n\r\n", "400 Bad Request"),
        ("\u{1}\u{2}nonsense\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/9.9\r\n\r\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
        (&many, "431 Request Header Fields Too Large"),
        ("GET / HTTP/1.0\r\n\r\n", "200 OK"),
    ] {
        let (told, fields, body) = job.send(request.as_bytes());
        assert_eq!(told, format!("HTTP/1.1 {status}"), "{:?}", request.get(..60));
        assert!(fields.contains("Connection: close"), "{fields}");
        assert_eq!(fields.contains("Allow: GET, HEAD\r\n"), status.starts_with("405"), "{fields}");
        assert!(!body.is_empty());
    }
    let (status, fields, body) = job.send(b"HEAD / HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(status.ends_with("200 OK") && body.is_empty() && fields.contains("text/html"), "{fields}");
    // Half a request, and then nothing more from that side.
    let mut stream = job.connect();
    stream.write_all(b"GET / HT").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(answer_of(&mut stream).0, "HTTP/1.1 400 Bad Request");
    job.interrupt();
}

#[test]
fn clients_that_say_nothing_delay_nobody() {
    let job = Job::start(2, &SMALL);
    let before = job.state()["step"].as_u64().unwrap();
    // More than are served at a time, silent ones and one in the middle of its request.
    let silent: Vec<TcpStream> = (0..100).map(|_| job.connect()).collect();
    let mut slow = job.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    let begun = Instant::now();
    while job.state()["step"].as_u64().unwrap() <= before + 100 {
        assert!(begun.elapsed() < LIMIT, "the computation goes on");
    }
    // In pieces is no fault.
    let mut pieces = job.connect();
    for piece in ["GET / HT", "TP/1.1\r\nHost", ": here\r\n", "\r\n"] {
        pieces.write_all(piece.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answer_of(&mut pieces).0, "HTTP/1.1 200 OK");
    drop((silent, slow));
    job.interrupt();
    // A request that never ends is given up.
    let job = Job::start(2, &["--size", "96x64", "--patience", "1"]);
    let mut slow = job.connect();
    let _ = slow.write_all(b"GET / HTTP/1.1\r\nHo");
    assert_eq!(answer_of(&mut slow).0, "HTTP/1.1 408 Request Timeout");
    job.interrupt();
}

#[test]
fn a_burst_of_requests_is_answered() {
    let job = Job::start(2, &SMALL);
    // None of them closes before all are answered.
    let open = |request: &[u8]| {
        let mut client = job.connect();
        client.write_all(request).unwrap();
        client
    };
    let mut clients: Vec<TcpStream> = (0..200)
        .map(|n| match n % 2 {
            0 => open(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"),
            _ => open(b"GET /state.json HTTP/1.1\r\nHost: here\r\n\r\n"),
        })
        .collect();
    for client in &mut clients {
        assert_eq!(answer_of(client).0, "HTTP/1.1 200 OK");
    }
    job.interrupt();
}

#[test]
fn the_job_ends_by_a_press_long_before_the_next_frame() {
    let job = Job::start(3, &["--size", "96x64", "--every", "10000000"]);
    // It takes the signal from then on.
    job.get("/");
    let told = job.interrupt();
    assert!(told.contains("ended     by Ctrl-C\n"), "{told}");
}

#[test]
fn an_address_that_is_taken_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for ranks in ["1", "2"] {
        let mut command = program();
        command.args(["--size", "16x16", "--listen", &address]).env("BELLWETHER_RANKS", ranks);
        let output = output("a job without an address", &mut command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(&format!("cannot listen on {address}")), "{errors}");
    }
}

/// Chromium's program, if there is one.
fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

/// Runs the browser on the page: what it writes to its standard output.
fn browse(browser: &Path, profile: &Path, address: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.args(["--disable-dev-shm-usage", "--window-size=1280,800", "--virtual-time-budget=4000"]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(arguments);
    let output = output("the browser", command.arg(format!("http://{address}/")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = chromium() else {
        eprintln!("skipped: there is no chromium; `apt-get install chromium` has it");
        return;
    };
    let job = Job::start(4, &["--every", "100"]);
    let folder = tempfile::tempdir().unwrap();
    // Its scripts have run: each rank has a row, and says what it does.
    let page = browse(&browser, &folder.path().join("profile"), job.address, &["--dump-dom"]);
    let body = page.split_once("<tbody").and_then(|(_, rest)| rest.split_once("</tbody>")).map_or("", |(body, _)| body);
    assert_eq!(body.matches("<tr>").count(), 4, "{page}");
    assert!(page.contains("/frame.png?step="), "{page}");
    assert!(page.contains(r#"<p id="told" role="status"></p>"#), "{page}");
    let file = std::env::var_os("WATCH_SCREENSHOT").map_or_else(|| folder.path().join("page.png"), PathBuf::from);
    let argument = format!("--screenshot={}", file.display());
    browse(&browser, &folder.path().join("profile"), job.address, &[&argument]);
    let mut decoder = png::Decoder::new(BufReader::new(std::fs::File::open(&file).unwrap()));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (1280, 800));
    // The plate's own hot and cold colours are on the screen.
    let samples = info.color_type.samples();
    let found = |near: [u8; 3]| {
        pixels.chunks_exact(samples).filter(|p| p.iter().zip(near).all(|(a, b)| a.abs_diff(b) < 12)).count()
    };
    let (hot, cold) = (found([252, 253, 190]), found([4, 4, 22]));
    assert!(hot > 100 && cold > 100, "{hot} hot and {cold} cold pixels");
    job.interrupt();
}
