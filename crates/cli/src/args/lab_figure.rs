//! The arguments of `pando lab figure` and `pando lab figures`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::images::ImageArgs;
use crate::operand::parse_size;

const FIGURE_HELP: &str = "\
Runs the experiment of a figure at a smaller scale, in temporary stores, and prints each claim of the source next to \
the measured value. Claims about other engines need their results (--with), measured with the same sizes, memory and \
threads.

  pando lab figures
  pando lab figure 002-3.6 --records 2000000 --memory-budget 32MiB -o lines.jsonl --svg pictures/
  pando lab figure 002-3.7 --records 2000000 --memory-budget 32MiB --with lines.jsonl --no-run";

/// The index modes in which a figure is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FigureModes {
    /// Product mode, then paper mode.
    Both,
    /// The variant that is tuned for speed.
    Product,
    /// The structure as its source describes it.
    Paper,
}

/// `pando lab figure`
#[derive(Debug, Args)]
#[command(after_long_help = FIGURE_HELP)]
pub struct LabFigureArgs {
    /// The figure's id, such as 002-3.6; `pando lab figures` lists them.
    pub figure: String,
    /// The number of records as a fraction of the source's number: 1 is the size of the source.
    #[arg(long, value_name = "S", default_value_t = 0.003)]
    pub scale: f64,
    /// The number of records, instead of --scale.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: Option<u64>,
    /// The store's memory limit; by default, the limit is the same fraction of the data as in the source.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_budget: Option<usize>,
    /// The numbers of client threads. A figure that varies the threads uses all given numbers, by default the powers of
    /// two up to twice the number of cores. Other figures of 002 use a single number, by default four
    /// threads for each core. The figures of 001 always use one thread.
    #[arg(long, value_name = "T,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=255))]
    pub threads: Vec<u16>,
    /// The time limit of each workload in seconds; loads always run to their end.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The modes to measure.
    #[arg(long, value_enum, default_value_t = FigureModes::Both)]
    pub mode: FigureModes,
    /// A file of result lines, such as the results of other engines. Lines of the same configuration are compared.
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,
    /// Measure nothing, but also take PandoDB's results from the file of --with.
    #[arg(long, requires = "with")]
    pub no_run: bool,
    /// Create the stores in this directory instead of a temporary directory inside the current directory. The stores
    /// are removed at the end.
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
