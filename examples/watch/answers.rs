//! The contents of the page: the plate, and numbers of all ranks.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bellwether::{Call, Error, World};
use bellwether_examples::heat::live::{self, Moment};
use bellwether_examples::heat::picture;
use bellwether_examples::heat::plate::{Cell as PlateCell, Plate};

/// Least time between two questions to the ranks.
const FRESH: Duration = Duration::from_millis(100);
/// Least time over which rates are computed.
const SPAN: Duration = Duration::from_millis(400);
/// Time limit for answers. A rank that computes a long block of steps answers after the block.
const PATIENCE: Duration = Duration::from_secs(1);

/// The last gathered plate.
struct Frame {
    step: u64,
    temperatures: Arc<[f64]>,
    /// Drawn when it is first asked for.
    png: Option<Rc<[u8]>>,
}

/// Where rates begin.
struct Mark {
    at: Instant,
    steps: u64,
    rings: u64,
}

/// The result of asking a rank.
#[derive(Clone)]
enum Asked {
    Told(Moment),
    /// The call found no room.
    NoRoom,
    /// Not within [`PATIENCE`].
    Silent,
}

impl Asked {
    fn told(&self) -> Option<&Moment> {
        match self {
            Asked::Told(moment) => Some(moment),
            Asked::NoRoom | Asked::Silent => None,
        }
    }
}

/// Work that one request does at a time. Other requests wait for its result.
struct Turn<'a>(&'a Cell<bool>);

impl<'a> Turn<'a> {
    /// Waits until no other request does it. All requests are polled between two steps: none has to be woken.
    async fn take(busy: &'a Cell<bool>) -> Turn<'a> {
        std::future::poll_fn(|_| if busy.replace(true) { Poll::Pending } else { Poll::Ready(()) }).await;
        Turn(busy)
    }
}

/// Also when the request is dropped.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The answers that rank 0 gives.
pub struct Answers<'w> {
    world: &'w World,
    width: usize,
    height: usize,
    cells: Arc<[PlateCell]>,
    steps: u64,
    frame: RefCell<Option<Frame>>,
    mark: RefCell<Mark>,
    /// Steps and bells per second.
    rates: Cell<[f64; 2]>,
    last: RefCell<Option<(Instant, Rc<str>)>>,
    /// A request asks the ranks now.
    asking: Cell<bool>,
    /// A thread draws for a request now.
    drawing: Cell<bool>,
    /// The first error of a call, other than lack of room. It may be an error of the world, which is reported only once.
    failed: Cell<Option<Error>>,
}

impl<'w> Answers<'w> {
    /// The answers for a run of at most `steps` steps.
    pub fn new(world: &'w World, plate: Plate, steps: u64) -> Self {
        Answers {
            world,
            width: plate.width,
            height: plate.height,
            cells: plate.cells.into(),
            steps,
            frame: RefCell::default(),
            mark: RefCell::new(Mark { at: Instant::now(), steps: 0, rings: 0 }),
            rates: Cell::default(),
            last: RefCell::default(),
            asking: Cell::default(),
            drawing: Cell::default(),
            failed: Cell::default(),
        }
    }

    /// The plate after `step` steps.
    pub fn set_frame(&self, step: u64, temperatures: Vec<f64>) {
        *self.frame.borrow_mut() = Some(Frame { step, temperatures: temperatures.into(), png: None });
    }

    /// The last frame as a PNG. A thread of the runtime draws and encodes it: the rank computes meanwhile.
    ///
    /// # Errors
    /// There is none, or the encoder failed.
    pub async fn png(&self) -> anyhow::Result<Rc<[u8]>> {
        let _turn = Turn::take(&self.drawing).await;
        let (step, temperatures) = match &*self.frame.borrow() {
            None => anyhow::bail!("no frame yet"),
            Some(Frame { png: Some(png), .. }) => return Ok(Rc::clone(png)),
            Some(frame) => (frame.step, Arc::clone(&frame.temperatures)),
        };
        let (width, cells) = (self.width, Arc::clone(&self.cells));
        let drawn = tokio::task::spawn_blocking(move || picture::draw(width, &cells, &temperatures)).await;
        let png: Rc<[u8]> = drawn??.into();
        // There may be a later one by now.
        if let Some(frame) = self.frame.borrow_mut().as_mut().filter(|frame| frame.step == step) {
            frame.png = Some(Rc::clone(&png));
        }
        Ok(png)
    }

    /// The numbers, as JSON. Asks all ranks, unless that was done just now.
    pub async fn state(&self) -> Rc<str> {
        let _turn = Turn::take(&self.asking).await;
        if let Some((at, text)) = &*self.last.borrow()
            && at.elapsed() < FRESH
        {
            return Rc::clone(text);
        }
        let asked = self.ask_all().await;
        let text: Rc<str> = self.json(&asked).into();
        *self.last.borrow_mut() = Some((Instant::now(), Rc::clone(&text)));
        text
    }

    /// The error that a request met in the world, if one did.
    pub fn take_error(&self) -> Option<Error> {
        self.failed.take()
    }

    fn fail(&self, error: Error) {
        let first = self.failed.take().unwrap_or(error);
        self.failed.set(Some(first));
    }

    /// Asks all ranks for their state.
    async fn ask_all(&self) -> Vec<Asked> {
        let mut all = vec![Asked::Silent; self.world.size()];
        let mut calls: Vec<Option<Call<Moment>>> = Vec::new();
        for (rank, asked) in all.iter_mut().enumerate() {
            // This rank computes too, so it does not wait for any rank here.
            calls.push(match self.world.try_call(rank, &(), |context, ()| crate::look(context)) {
                Ok(call) => Some(call),
                Err(Error::WouldBlock { .. }) => {
                    *asked = Asked::NoRoom;
                    None
                }
                Err(error) => {
                    self.fail(error);
                    None
                }
            });
        }
        let answered = std::future::poll_fn(|context| {
            for (call, asked) in calls.iter_mut().zip(&mut all) {
                if let Some(answer) = call
                    && let Poll::Ready(answer) = Pin::new(answer).poll(context)
                {
                    match answer {
                        Ok(moment) => *asked = Asked::Told(moment),
                        Err(error) => self.fail(error),
                    }
                    *call = None;
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        });
        // An answer that comes later is dropped with its call.
        let _ = tokio::time::timeout(PATIENCE, answered).await;
        all
    }

    fn json(&self, asked: &[Asked]) -> String {
        let known = || asked.iter().filter_map(Asked::told);
        let steps = known().map(|moment| moment.1).max().unwrap_or(0);
        let rings: u64 = known().map(|moment| moment.2).sum();
        let mut mark = self.mark.borrow_mut();
        let span = mark.at.elapsed();
        // A rank that did not answer has rings that are not known.
        if span >= SPAN && known().count() == asked.len() {
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / span.as_secs_f64();
            self.rates.set([rate(steps, mark.steps), rate(rings, mark.rings)]);
            *mark = Mark { at: Instant::now(), steps, rings };
        }
        let [step_rate, ring_rate] = self.rates.get();
        let ranks = asked.iter().enumerate().map(|(rank, asked)| match asked {
            Asked::Told((doing, steps, rings, waited, all)) => {
                let part = *waited as f64 / (*all).max(1) as f64;
                let doing = live::doing(*doing).map_or("", |doing| doing.text());
                format!(r#"{{"rank":{rank},"step":{steps},"rings":{rings},"waited":{part:.4},"doing":"{doing}"}}"#)
            }
            Asked::NoRoom | Asked::Silent => {
                let why = match asked {
                    Asked::NoRoom => "not asked: no room for a call",
                    _ => "no answer within a second",
                };
                format!(r#"{{"rank":{rank},"step":null,"rings":null,"waited":null,"doing":"{why}"}}"#)
            }
        });
        let ranks = ranks.collect::<Vec<_>>().join(",");
        let frame = self.frame.borrow().as_ref().map_or(0, |frame| frame.step);
        let (width, height) = (self.width, self.height);
        format!(
            r#"{{"step":{steps},"steps":{},"frame":{frame},"width":{width},"height":{height},"steps_per_second":{step_rate:.1},"bells_per_second":{ring_rate:.1},"ranks":[{ranks}]}}"#,
            self.steps
        )
    }
}
