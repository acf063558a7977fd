//! A small HTTP server: one request a connection, limits on size and time.

use std::cell::Cell;
use std::future::Future;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::answers::Answers;

/// Bytes of a request's head, and its fields.
const LONGEST: usize = 8 << 10;
const FIELDS: usize = 64;
/// Time for the client to close, and bytes that it may still send. If the server closed earlier, the answer might not reach the client.
const CLOSING: Duration = Duration::from_secs(1);
const REST: usize = 64 << 10;
/// Connections at a time. The next one takes the place of one that has its answer, or of one that has long said nothing; with none of these
/// it waits.
const MOST: usize = 64;
/// Time for the first bytes of a request while other connections wait for a place.
const GRACE: Duration = Duration::from_millis(200);

const PAGE: &str = include_str!("page.html");

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its request is not complete.
    Reads,
    Answers,
    /// All of the answer is sent.
    Drains,
}

/// A connection.
struct Open<'a> {
    task: Pin<Box<dyn Future<Output = ()> + 'a>>,
    stage: Rc<Cell<Stage>>,
    /// The same socket, to check whether it has bytes: tokio learns of them only some time later.
    socket: std::net::TcpStream,
    since: Instant,
}

impl<'a> Open<'a> {
    /// # Errors
    /// There are too many open files.
    fn new(stream: TcpStream, answers: &'a Answers<'_>, patience: Duration) -> std::io::Result<Self> {
        let socket = stream.as_fd().try_clone_to_owned()?.into();
        let stage = Rc::new(Cell::new(Stage::Reads));
        let task = Box::pin(connection(stream, answers, patience, Rc::clone(&stage)));
        Ok(Open { task, stage, socket, since: Instant::now() })
    }

    /// Whether another connection may have its place. None that has sent something new is closed: the client would lose its answer.
    fn may_go(&self) -> bool {
        let may = match self.stage.get() {
            Stage::Reads => self.since.elapsed() >= GRACE,
            Stage::Answers => false,
            Stage::Drains => true,
        };
        may && matches!(self.socket.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// Makes a place for another connection; whether there is one now.
fn make_room(open: &mut Vec<Open<'_>>) -> bool {
    if open.len() < MOST {
        return true;
    }
    let of = |drains: bool| {
        let found = |one: &Open<'_>| (one.stage.get() == Stage::Drains) == drains && one.may_go();
        open.iter().position(found)
    };
    let Some(oldest) = of(true).or_else(|| of(false)) else { return false };
    drop(open.remove(oldest));
    true
}

/// Serves for ever. `patience` is the time limit for a request to arrive, and for its answer to be sent.
pub async fn serve(listener: TcpListener, answers: &Answers<'_>, patience: Duration) {
    let mut open: Vec<Open<'_>> = Vec::new();
    // Has no place yet. The others wait in the listener.
    let mut next = None;
    std::future::poll_fn(|context| {
        open.retain_mut(|connection| connection.task.as_mut().poll(context).is_pending());
        loop {
            if next.is_none() {
                // An error, such as too many open files, may be gone with the next turn.
                let Poll::Ready(Ok((stream, _))) = listener.poll_accept(context) else { break };
                next = Some(stream);
            }
            if !make_room(&mut open) {
                break;
            }
            let Some(Ok(mut connection)) = next.take().map(|stream| Open::new(stream, answers, patience)) else {
                break;
            };
            if connection.task.as_mut().poll(context).is_pending() {
                open.push(connection);
            }
        }
        Poll::Pending
    })
    .await
}

/// Reads a request and answers it.
async fn connection(mut stream: TcpStream, answers: &Answers<'_>, patience: Duration, stage: Rc<Cell<Stage>>) {
    let request = timeout(patience, read_request(&stream)).await.unwrap_or(Err(Refused::Status("408 Request Timeout")));
    stage.set(Stage::Answers);
    let answer = match request {
        Ok(ref request) => answer(answers, request).await,
        Err(Refused::Status(status)) => Answer::text(status),
        Err(Refused::Gone) => return,
    };
    let head_only = matches!(&request, Ok(request) if request.head_only);
    let sent = timeout(patience, async {
        write_all(&stream, answer.head().as_bytes()).await?;
        if !head_only {
            write_all(&stream, answer.body.bytes()).await?;
        }
        std::future::poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await
    });
    if let Ok(Ok(())) = sent.await {
        stage.set(Stage::Drains);
        let _ = timeout(CLOSING, drain(&stream)).await;
    }
}

/// The parts of a request that the server uses.
struct Request {
    head_only: bool,
    path: String,
}

/// Why there is no request.
enum Refused {
    Status(&'static str),
    /// The client has closed, or the connection is broken.
    Gone,
}

const BAD: Refused = Refused::Status("400 Bad Request");
const TOO_LARGE: Refused = Refused::Status("431 Request Header Fields Too Large");

async fn read_request(stream: &TcpStream) -> Result<Request, Refused> {
    let (mut bytes, mut len) = (vec![0; LONGEST], 0);
    loop {
        stream.readable().await.map_err(|_| Refused::Gone)?;
        match stream.try_read(&mut bytes[len..]) {
            Ok(0) if len == 0 => return Err(Refused::Gone),
            Ok(0) => return Err(BAD),
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return Err(Refused::Gone),
        }
        match parse(&bytes[..len])? {
            Some(request) => return Ok(request),
            None if len == LONGEST => return Err(TOO_LARGE),
            None => {}
        }
    }
}

/// The request, if its head is complete.
fn parse(bytes: &[u8]) -> Result<Option<Request>, Refused> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(TOO_LARGE),
        Err(_) => return Err(BAD),
    }
    let hosts = parsed.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host")).count();
    // RFC 9112, section 3.2.
    if hosts > 1 || (hosts == 0 && parsed.version == Some(1)) {
        return Err(BAD);
    }
    let head_only = match parsed.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Refused::Status("405 Method Not Allowed")),
    };
    let target = parsed.path.filter(|target| target.starts_with('/')).ok_or(BAD)?;
    let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
    Ok(Some(Request { head_only, path }))
}

/// The answer to a request.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: Body,
}

enum Body {
    Text(&'static str),
    Json(Rc<str>),
    Png(Rc<[u8]>),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Text(text) => text.as_bytes(),
            Body::Json(text) => text.as_bytes(),
            Body::Png(bytes) => bytes,
        }
    }
}

impl Answer {
    /// A status that is its own text.
    fn text(status: &'static str) -> Answer {
        Answer { status, kind: "text/plain; charset=utf-8", body: Body::Text(status) }
    }

    fn head(&self) -> String {
        let Answer { status, kind, body } = self;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let len = body.bytes().len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
    }
}

async fn answer(answers: &Answers<'_>, request: &Request) -> Answer {
    const OK: &str = "200 OK";
    match request.path.as_str() {
        "/" => Answer { status: OK, kind: "text/html; charset=utf-8", body: Body::Text(PAGE) },
        "/state.json" => Answer { status: OK, kind: "application/json", body: Body::Json(answers.state().await) },
        "/frame.png" => match answers.png().await {
            Ok(png) => Answer { status: OK, kind: "image/png", body: Body::Png(png) },
            Err(_) => Answer::text("503 Service Unavailable"),
        },
        _ => Answer::text("404 Not Found"),
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(done) => bytes = &bytes[done..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until the client closes, or has sent too much.
async fn drain(stream: &TcpStream) -> std::io::Result<()> {
    let (mut bytes, mut rest) = ([0; 4096], REST);
    loop {
        stream.readable().await?;
        match stream.try_read(&mut bytes) {
            Ok(len) if len > 0 && len < rest => rest -= len,
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
