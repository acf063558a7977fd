//! `watch`: the computation of `heat2d`, and a page that shows it while it runs.
//!
//! Rank 0 computes as every rank does. Between two exchanges it runs a tokio runtime for a moment: its sockets are served and its
//! timers checked, without waiting for them. Requests that need numbers of other ranks make remote calls, which those ranks
//! answer while they wait for rows; a task of the runtime awaits the answers. A thread of the runtime encodes the pictures.

#![forbid(unsafe_code)]

mod answers;
mod server;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use bellwether::World;
use bellwether_examples::heat::given;
use bellwether_examples::heat::live::{Doing, Live};
use bellwether_examples::heat::parallel::SharedPlate;
use bellwether_examples::heat::plate::{Hold, Plate};
use bellwether_examples::heat::serial::Stop;
use bellwether_examples::job::{self, Failure};
use bellwether_examples::say;
use clap::Parser;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use answers::Answers;

/// Heat conduction on a plate, with a page that shows it live.
#[derive(Debug, Parser)]
#[command(name = "watch", version, after_help = HELP)]
struct Arguments {
    /// The plate, a PNG file as for heat2d; a built-in floor plan if absent
    plate: Option<PathBuf>,

    /// Where rank 0 serves the page; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// How many time steps to compute
    #[arg(short, long, value_name = "N", default_value_t = 10_000_000)]
    steps: u64,

    /// Stop earlier when no cell changes by more than this many degrees in a step
    #[arg(long, value_name = "DEGREES", value_parser = given::positive)]
    until_change: Option<f64>,

    /// Diffusivity times time step over cell area; larger is faster, above 0.25 is unstable
    #[arg(long, value_name = "X", default_value_t = 0.24, value_parser = given::stable)]
    alpha: f64,

    /// Which pixels keep their temperature
    #[arg(long, value_enum, default_value_t = Hold::Auto)]
    hold: Hold,

    /// Steps between two frames of the page
    #[arg(long, value_name = "K", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,

    /// Seconds for a request to come, and for its answer to go
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,

    /// The size of the built-in plate
    #[arg(long, value_name = "WxH", default_value = "768x512", value_parser = given::size, conflicts_with = "plate")]
    size: [usize; 2],
}

const HELP: &str = "\
The page shows the plate, steps and bells per second, and what each rank waits for. Its parts are
  /            the page
  /state.json  the numbers
  /frame.png   the plate

The job ends when the steps are done, or with Ctrl-C. Anyone who reaches the address may look: it
is the loopback address unless --listen says otherwise.

Example:
  bellwether run -n 4 --example watch

Exit code: 0 success, also after Ctrl-C; 1 failure while running; 2 wrong arguments or input.";

fn main() -> ExitCode {
    job::main(run)
}

/// Time steps after which the ranks agree whether there was a Ctrl-C. Chosen: few enough for a large plate, where each takes long.
const AGREE_EVERY: u64 = 16;

/// Why the loop ends before its last step.
enum Ended {
    /// Ctrl-C.
    Interrupted,
    Failed(bellwether::Error),
}

impl From<bellwether::Error> for Ended {
    fn from(error: bellwether::Error) -> Self {
        Ended::Failed(error)
    }
}

/// The tasks of a rank, and the runtime that they use.
struct Tasks<'a> {
    runtime: &'a Runtime,
    tasks: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

impl Tasks<'_> {
    /// Lets the tasks go on as far as they can without waiting.
    fn turn(&mut self) {
        let tasks = &mut self.tasks;
        self.runtime.block_on(async {
            // The runtime looks at its sockets and timers when the yield lets it.
            for _ in 0..2 {
                std::future::poll_fn(|context| Poll::Ready(tasks.as_mut().poll(context).is_ready())).await;
                tokio::task::yield_now().await;
            }
        });
    }
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the tokio runtime").map_err(Failure::Running)?;
    let root = job::on_root(world, || prepare(&runtime, &arguments).map_err(Failure::Input))?;
    let mut plate = SharedPlate::scatter(world, root.as_ref().map(|root| &root.plate), arguments.alpha)?;
    let live = Rc::clone(plate.live());
    world.set_state(Rc::clone(&live));
    // Rank 0 asks for this state from now on.
    world.barrier()?;

    // Every rank of a terminal's job gets its Ctrl-C.
    let interrupted = Cell::new(false);
    let mut presses = {
        let _context = runtime.enter();
        signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C").map_err(Failure::Running)?
    };
    let press = async {
        presses.recv().await;
        interrupted.set(true);
    };
    let (listener, shown) = match root {
        Some(root) => (Some(root.listener), Some(Answers::new(world, root.plate, arguments.steps))),
        None => (None, None),
    };
    let serve = async {
        if let (Some(listener), Some(answers)) = (listener, &shown) {
            server::serve(listener, answers, Duration::from_secs(arguments.patience)).await;
        }
    };
    let tasks = Box::pin(async move {
        tokio::join!(press, serve);
        // They are polled as long as the rank computes.
        std::future::pending::<()>().await;
    });
    let mut tasks = Tasks { runtime: &runtime, tasks };

    show_frame(&plate, shown.as_ref())?;
    let stop = Stop { steps: arguments.steps, until_change: arguments.until_change };
    let mut agreed = 0;
    let ran = plate.run(stop, Some(arguments.every), |plate, step| {
        live.during(Doing::Answers, || tasks.turn());
        if let Some(error) = shown.as_ref().and_then(Answers::take_error) {
            return Err(Ended::Failed(error));
        }
        // The same steps on all ranks, however many an exchange is for.
        if step / AGREE_EVERY > agreed {
            agreed = step / AGREE_EVERY;
            let mut pressed = [u64::from(interrupted.get())];
            world.allreduce(&mut pressed, u64::max)?;
            if pressed != [0] {
                return Err(Ended::Interrupted);
            }
        }
        if step.is_multiple_of(arguments.every) {
            show_frame(plate, shown.as_ref())?;
        }
        Ok(())
    });
    match ran {
        Ok(()) => {}
        Err(Ended::Interrupted) => job::on_root(world, || {
            say!("ended     by Ctrl-C");
            Ok(())
        })
        .map(drop)?,
        Err(Ended::Failed(error)) => return Err(error.into()),
    }
    let steps = plate.steps_done();
    job::on_root(world, || {
        say!("steps     {steps}");
        Ok(())
    })?;
    Ok(())
}

/// State of rank 0 only.
struct Root {
    plate: Plate,
    listener: tokio::net::TcpListener,
}

/// Reads the plate, and opens the socket.
fn prepare(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<Root> {
    let plate = given::plate(arguments.plate.as_deref(), arguments.size, false, arguments.hold)?;
    let cannot = || format!("cannot listen on {}", arguments.listen);
    let listener = runtime.block_on(tokio::net::TcpListener::bind(arguments.listen)).with_context(cannot)?;
    say!("page      http://{}/", listener.local_addr().with_context(cannot)?);
    Ok(Root { plate, listener })
}

/// Gathers the plate as it is now, for the page. Collective.
fn show_frame(plate: &SharedPlate<'_>, shown: Option<&Answers<'_>>) -> bellwether::Result<()> {
    if let (Some(temperatures), Some(answers)) = (plate.gather()?, shown) {
        answers.set_frame(plate.steps_done(), temperatures);
    }
    Ok(())
}

/// The answer of a rank that is asked for its state.
fn look(context: &bellwether::Context<'_>) -> bellwether_examples::heat::live::Moment {
    context.state::<Rc<Live>>().expect("set before the barrier").look()
}
