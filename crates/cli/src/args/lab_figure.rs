//! The arguments of `pando lab figure` and `pando lab figures`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::images::ImageArgs;
use crate::operand::parse_size;

const FIGURE_HELP: &str = "\
Runs the experiment of a figure, smaller, in stores of its own, and prints each claim of the source beside what came \
out. Claims about other engines need lines of theirs, of the same sizes, memory and threads.

  pando lab figures
  pando lab figure 002-3.6 --records 2000000 --memory-budget 32MiB -o lines.jsonl --svg pictures/
  pando lab figure 002-3.7 --records 2000000 --memory-budget 32MiB --with lines.jsonl --no-run";

/// Which form of our index a figure is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FigureModes {
    /// Product mode, then paper mode.
    Both,
    /// The best that we can make of the structure.
    Product,
    /// The structure as its source describes it.
    Paper,
}

/// `pando lab figure`
#[derive(Debug, Args)]
#[command(after_long_help = FIGURE_HELP)]
pub struct LabFigureArgs {
    /// Which one, such as 002-3.6.
    pub figure: String,
    /// The share of the source's records: 1 is its size.
    #[arg(long, value_name = "S", default_value_t = 0.003)]
    pub scale: f64,
    /// So many records instead.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: Option<u64>,
    /// Memory for everything that the store holds; by default the source's share of the data.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_budget: Option<usize>,
    /// Client threads: those of a figure that varies them, powers of two up to twice the cores by default. Other figures
    /// take the only one named, else four for each core.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=255))]
    pub threads: Vec<u16>,
    /// The longest that each workload takes, in seconds; loads are whole.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Where random choices come from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The best we can, the structure as its source describes it, or one after the other, side by side.
    #[arg(long, value_enum, default_value_t = FigureModes::Both)]
    pub mode: FigureModes,
    /// Lines measured elsewhere, of rivals; those that fit are put beside.
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,
    /// Measure nothing: our own lines are in --with, too.
    #[arg(long, requires = "with")]
    pub no_run: bool,
    /// Make the stores in this directory, instead of in a temporary one here; they are removed.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Append a line of JSON for each workload to this file.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub images: ImageArgs,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `pando lab figures`
#[derive(Debug, Args)]
pub struct LabFiguresArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}
