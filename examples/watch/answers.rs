//! What the page shows: the plate, and numbers of all ranks.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bellwether::{Call, World};
use bellwether_examples::heat::live::{self, Moment};
use bellwether_examples::heat::picture;
use bellwether_examples::heat::plate::Plate;

/// Ranks are not asked more often.
const FRESH: Duration = Duration::from_millis(100);
/// Rates are over at least so long.
const SPAN: Duration = Duration::from_millis(400);
/// A rank that computes a long block of steps answers after it. The page says so then.
const PATIENCE: Duration = Duration::from_secs(1);

/// The last gathered plate.
struct Frame {
    step: u64,
    temperatures: Vec<f64>,
    /// Drawn when it is first asked for.
    png: Option<Rc<[u8]>>,
}

/// Where rates begin.
struct Mark {
    at: Instant,
    steps: u64,
    rings: u64,
}

/// What rank 0 shows.
pub struct Answers<'w> {
    world: &'w World,
    plate: Plate,
    steps: u64,
    frame: RefCell<Option<Frame>>,
    mark: RefCell<Mark>,
    /// Steps and bells per second.
    rates: Cell<[f64; 2]>,
    last: RefCell<Option<(Instant, Rc<str>)>>,
}

impl<'w> Answers<'w> {
    /// Of a run of at most so many steps.
    pub fn new(world: &'w World, plate: Plate, steps: u64) -> Self {
        Answers {
            world,
            plate,
            steps,
            frame: RefCell::default(),
            mark: RefCell::new(Mark { at: Instant::now(), steps: 0, rings: 0 }),
            rates: Cell::default(),
            last: RefCell::default(),
        }
    }

    /// The plate after `step` steps.
    pub fn set_frame(&self, step: u64, temperatures: Vec<f64>) {
        *self.frame.borrow_mut() = Some(Frame { step, temperatures, png: None });
    }

    /// The last frame as a PNG.
    ///
    /// # Errors
    /// There is none, or the encoder failed.
    pub fn png(&self) -> anyhow::Result<Rc<[u8]>> {
        let mut frame = self.frame.borrow_mut();
        let frame = frame.as_mut().ok_or_else(|| anyhow::anyhow!("no frame yet"))?;
        if let Some(png) = &frame.png {
            return Ok(Rc::clone(png));
        }
        let png: Rc<[u8]> = picture::draw(self.plate.width, &self.plate.cells, &frame.temperatures)?.into();
        frame.png = Some(Rc::clone(&png));
        Ok(png)
    }

    /// The numbers, as JSON. Asks all ranks, unless that was done just now.
    pub async fn state(&self) -> Rc<str> {
        if let Some((at, text)) = &*self.last.borrow()
            && at.elapsed() < FRESH
        {
            return Rc::clone(text);
        }
        let moments = self.ask_all().await;
        let text: Rc<str> = self.json(&moments).into();
        *self.last.borrow_mut() = Some((Instant::now(), Rc::clone(&text)));
        text
    }

    /// What each rank tells of itself; `None` of one that has not answered in time.
    async fn ask_all(&self) -> Vec<Option<Moment>> {
        // A call that finds no room now is left out: this rank computes, too, and waits for nobody here.
        let ask = |rank| self.world.try_call(rank, &(), |context, ()| crate::moment(context)).ok();
        let mut calls: Vec<Option<Call<Moment>>> = (0..self.world.size()).map(ask).collect();
        let mut moments: Vec<Option<Moment>> = vec![None; calls.len()];
        let all = std::future::poll_fn(|context| {
            for (call, moment) in calls.iter_mut().zip(&mut moments) {
                if let Some(asked) = call
                    && let Poll::Ready(answer) = Pin::new(asked).poll(context)
                {
                    *moment = answer.ok();
                    *call = None;
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        });
        // What comes later is dropped with its call.
        let _ = tokio::time::timeout(PATIENCE, all).await;
        moments
    }

    fn json(&self, moments: &[Option<Moment>]) -> String {
        let known = || moments.iter().flatten();
        let steps = known().map(|moment| moment.1).max().unwrap_or(0);
        let rings: u64 = known().map(|moment| moment.2).sum();
        let mut mark = self.mark.borrow_mut();
        let span = mark.at.elapsed();
        // A rank that did not answer has rings that are not known.
        if span >= SPAN && known().count() == moments.len() {
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / span.as_secs_f64();
            self.rates.set([rate(steps, mark.steps), rate(rings, mark.rings)]);
            *mark = Mark { at: Instant::now(), steps, rings };
        }
        let [step_rate, ring_rate] = self.rates.get();
        let ranks = moments.iter().enumerate().map(|(rank, moment)| match moment {
            Some((doing, steps, rings, waited, all)) => {
                let part = *waited as f64 / (*all).max(1) as f64;
                let doing = live::doing(*doing).map_or("", |doing| doing.text());
                format!(
                    r#"{{"rank":{rank},"step":{steps},"rings":{rings},"waited":{part:.4},"doing":"{doing}"}}"#
                )
            }
            None => format!(
                r#"{{"rank":{rank},"step":null,"rings":null,"waited":null,"doing":"computes; no answer within a second"}}"#
            ),
        });
        let ranks = ranks.collect::<Vec<_>>().join(",");
        let frame = self.frame.borrow().as_ref().map_or(0, |frame| frame.step);
        let (width, height) = (self.plate.width, self.plate.height);
        format!(
            r#"{{"step":{steps},"steps":{},"frame":{frame},"width":{width},"height":{height},"steps_per_second":{step_rate:.1},"bells_per_second":{ring_rate:.1},"ranks":[{ranks}]}}"#,
            self.steps
        )
    }
}
