//! The arguments of `pando bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pandodb::{Compression, Filters, IndexOptions, Io};
use pandodb_lab::bench::Cache;
use pandodb_lab::engine::Mode;
use pandodb_lab::workload::{self, Dist, Workload};

use super::images::ImageArgs;
use crate::operand::parse_size;

const BENCH_HELP: &str = "\
Measures PandoDB on this machine, in stores of its own; none of yours is touched. One commit an operation, durability \
buffered.

  pando bench --workloads load,a,c,e --records 2000000 -o run.jsonl
  pando bench report run.jsonl -o report.html --svg pictures/
  pando bench --list

A workload that needs rows loads them first. Loads and `delete` are whole; the others end after --ops operations or \
--seconds seconds, whatever is first. With --rate operations start when they are due, and wait for each other: latency is \
then counted from when each was due.";

/// `pando bench`
#[derive(Debug, Args)]
#[command(after_long_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The workloads, in this order; `all` is all of them.
    #[arg(long, value_name = "NAME,…", default_value = "load,a,b,c,d,e,f", value_parser = parse_workloads)]
    pub workloads: Workloads,
    /// List the workloads.
    #[arg(long)]
    pub list: bool,
    /// The index that is measured.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_index)]
    pub index: IndexOptions,
    /// The best we can, or the structure as its source describes it.
    #[arg(long, value_enum, default_value_t = ModeName::Product)]
    pub mode: ModeName,
    /// Which filters runs get, instead of the mode's.
    #[arg(long, value_enum)]
    pub filters: Option<FiltersName>,
    /// How the bottom of the tree is stored.
    #[arg(long, value_enum, default_value_t = CompressionName::None)]
    pub compression: CompressionName,
    /// Rows.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// Operations of a workload that is not whole; as many as rows by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,
    /// Seconds of a workload that is not whole; 0 for no end but that of its operations.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Client threads.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=255))]
    pub threads: u16,
    /// Memory for everything that the store holds.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// Which rows are asked for, instead of each workload's own distribution.
    #[arg(long, value_enum)]
    pub dist: Option<DistName>,
    /// How the data file is read.
    #[arg(long, value_enum, default_value_t = IoName::Auto)]
    pub io: IoName,
    /// Bytes of a key.
    #[arg(long, value_name = "BYTES", default_value_t = 24, value_parser = clap::value_parser!(u16).range(8..))]
    pub key_len: u16,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    pub value_len: usize,
    /// The share of each value that is zeros, in percent: without it there is nothing to compress.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub zeros: f64,
    /// The share of `load-mixed` that is in key order, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    pub seq_share: f64,
    /// Operations a second to offer, all threads together, instead of as many as it takes.
    #[arg(long, value_name = "OPS")]
    pub rate: Option<f64>,
    /// The state of the caches when a workload starts.
    #[arg(long, value_enum, default_value_t = CacheName::AsIs)]
    pub cache: CacheName,
    /// Seconds of the warm-up before a warm workload.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub warm_up: f64,
    /// Where random choices come from: the same seed gives the same operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// No background threads: the same operations on the device each time.
    #[arg(long)]
    pub deterministic: bool,
    /// Make the store in this directory and leave it there, instead of in a temporary one here.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Append a line of JSON for each workload to this file.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print a line of JSON for each workload instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// What can be done with lines.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Make a page of tables and plots of what was measured.
    Report(BenchReportArgs),
}

/// `pando bench report`
#[derive(Debug, Args)]
pub struct BenchReportArgs {
    /// Files of lines: one run or many, of PandoDB and of rivals.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// The page; whole in one file.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub images: ImageArgs,
}

/// Parsed workloads. A type of its own, because clap reads a literal `Vec` as "many arguments".
pub type Workloads = Vec<&'static Workload>;

fn parse_workloads(names: &str) -> Result<Workloads, String> {
    workload::parse(names)
}

/// [`Mode`], as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// The best that we can make of the structure.
    Product,
    /// The structure as its source describes it.
    Paper,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Product => Mode::Product,
            ModeName::Paper => Mode::Paper,
        }
    }
}

/// [`Filters`], as they are typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FiltersName {
    /// A blocked Bloom filter a run.
    Bloom,
    /// A quotient filter a run.
    Quotient,
    /// A quotient filter a run, and maplets for runs that stand together.
    Maplet,
}

impl From<FiltersName> for Filters {
    fn from(name: FiltersName) -> Filters {
        match name {
            FiltersName::Bloom => Filters::Bloom,
            FiltersName::Quotient => Filters::Quotient,
            FiltersName::Maplet => Filters::Maplet,
        }
    }
}

/// [`Compression`], as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionName {
    /// As it is.
    None,
    /// As LZ4, where that saves a quarter.
    Lz4,
}

impl From<CompressionName> for Compression {
    fn from(name: CompressionName) -> Compression {
        match name {
            CompressionName::None => Compression::None,
            CompressionName::Lz4 => Compression::Lz4,
        }
    }
}

/// [`Io`], as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// Several reads at once by io_uring where it is to be had, else one after the other.
    Auto,
    /// The same, but who waits sleeps, for a read or for background work.
    Sleeping,
    /// Several at once by io_uring, or not at all.
    Uring,
    /// One after the other.
    Sync,
}

impl From<IoName> for Io {
    fn from(name: IoName) -> Io {
        match name {
            IoName::Auto => Io::Auto,
            IoName::Sleeping => Io::Sleeping,
            IoName::Uring => Io::Uring,
            IoName::Sync => Io::Sync,
        }
    }
}

/// [`Dist`], as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DistName {
    /// Each as likely as any other.
    Uniform,
    /// Zipf's law with exponent 0.99.
    Zipf,
    /// The newest are the most popular.
    Latest,
}

impl From<DistName> for Dist {
    fn from(name: DistName) -> Dist {
        match name {
            DistName::Uniform => Dist::Uniform,
            DistName::Zipf => Dist::Zipf,
            DistName::Latest => Dist::Latest,
        }
    }
}

/// [`Cache`], as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheName {
    /// As the workload before left them.
    AsIs,
    /// Reopened, page cache dropped.
    Cold,
    /// After the same operations, unmeasured, for a while.
    Warm,
}

impl From<CacheName> for Cache {
    fn from(name: CacheName) -> Cache {
        match name {
            CacheName::AsIs => Cache::AsIs,
            CacheName::Cold => Cache::Cold,
            CacheName::Warm => Cache::Warm,
        }
    }
}
