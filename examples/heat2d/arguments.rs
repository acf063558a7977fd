//! The command line of `heat2d`.

use std::path::PathBuf;

use bellwether_examples::heat::given;
use bellwether_examples::heat::plate::Hold;
use clap::Parser;

/// Heat conduction on a plate that is given by a picture.
#[derive(Debug, Parser)]
#[command(name = "heat2d", version, after_help = HELP)]
pub struct Arguments {
    /// The plate, a PNG file; a built-in floor plan if absent
    pub plate: Option<PathBuf>,

    /// Where to write the final picture
    #[arg(short, long, value_name = "FILE", default_value = "heat2d.png")]
    pub output: PathBuf,

    /// How many time steps to compute
    #[arg(short, long, value_name = "N", default_value_t = 10_000)]
    pub steps: u64,

    /// Stop earlier when no cell changes by more than this many degrees in a step
    #[arg(long, value_name = "DEGREES", value_parser = given::positive)]
    pub until_change: Option<f64>,

    /// Diffusivity times time step over cell area; larger is faster, above 0.25 is unstable
    #[arg(long, value_name = "X", default_value_t = 0.24, value_parser = given::stable)]
    pub alpha: f64,

    /// Which pixels keep their temperature
    #[arg(long, value_enum, default_value_t = Hold::Auto)]
    pub hold: Hold,

    /// Also write pictures during the run into this folder, which is made if absent
    #[arg(long, value_name = "DIR")]
    pub frames: Option<PathBuf>,

    /// Steps between two frames [default: a fiftieth of all steps]
    #[arg(long, value_name = "K", requires = "frames", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,

    /// The size of the built-in plate
    #[arg(long, value_name = "WxH", default_value = "768x512", value_parser = given::size, conflicts_with = "plate")]
    pub size: [usize; 2],

    /// In place of the floor plan a plate without walls: its upper edge is held at 100 degrees, the other edges at 0
    #[arg(long, conflicts_with = "plate")]
    pub open: bool,

    /// Write the built-in plate as a PNG file to paint on, and end
    #[arg(long, value_name = "FILE", conflicts_with = "plate")]
    pub save_plate: Option<PathBuf>,

    /// Compute the plate again on one rank and compare every bit
    #[arg(long)]
    pub check: bool,
}

const HELP: &str = "\
What a pixel means:
  white                100 degrees, held: a heater
  black                0 degrees, held: a cooler (see --hold)
  grey, other colours  starts at the temperature of its brightness
  blue, transparent    insulation: no heat passes

The plate's edge is insulated. In the output, insulation is grey, and colours go
from dark violet (0 degrees) over red to pale yellow (100 degrees).

Examples:
  bellwether run -n 4 --example heat2d
  bellwether run -n 1 --example heat2d --save-plate plate.png
  bellwether run -n 4 --example heat2d plate.png --steps 50000 --frames frames --every 500

Exit code: 0 success, 1 failure while running, 2 wrong arguments or input.";
