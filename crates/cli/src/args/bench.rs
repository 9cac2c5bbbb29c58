//! The arguments of `pando bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pandodb::{Compression, Filters, IndexOptions, Io, Isolation, PoolPolicy};
use pandodb_lab::bench::Cache;
use pandodb_lab::engine::Mode;
use pandodb_lab::workload::{self, Dist, Workload};

use super::images::ImageArgs;
use crate::operand::parse_size;

const BENCH_HELP: &str = "\
Measures PandoDB on this machine, in temporary stores; no store of yours is touched. Each write is a commit of its \
own with durability buffered.

  pando bench --workloads load,a,c,e --records 2000000 -o run.jsonl
  pando bench report run.jsonl -o report.html --svg pictures/
  pando bench --list

Workloads: load-seq, load-mixed, load-sorted, expiry, queue, load, a to f (YCSB), readmiss, multi-get, scan-prefix, \
scan-long, reverse-scan, merge, overwrite, hotspot-write, delete, delete-scan. These groups have data sets of their \
own, with as many bytes as --records rows: timeseries, bigval-4k, bigval-16k (bigval is both), secondary, mixed-size. \
--list shows each workload of a group, which can be named alone. The group transactions has the workloads bank, \
bank-plain, smallbank, neworder, payment, payment-getput, counters, counters-plain, update-one, update-one-mutex and \
pop, which `all` does not contain; each loads rows of its own and fails if its sums are wrong. docs/LAB.md describes the \
workloads.

A workload that needs rows loads them first. Loads and `delete` run to their end; the others end after --ops \
operations or --seconds seconds, whichever comes first. The transactional workloads have no limit of operations \
unless --ops is given, and ignore --rate. With --rate operations are scheduled at fixed times (an open \
loop), and latency is measured from the scheduled time.";

/// `pando bench`
#[derive(Debug, Args)]
#[command(after_long_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The workloads or groups of workloads, in the order in which they run; `all` selects all of them.
    #[arg(long, value_name = "NAME,…", default_value = "load,a,b,c,d,e,f", value_parser = parse_workloads)]
    pub workloads: Workloads,
    /// List the workloads and exit.
    #[arg(long)]
    pub list: bool,
    /// The index type and its options, such as stbe or cola:growth=8.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_index)]
    pub index: IndexOptions,
    /// The mode of the index.
    #[arg(long, value_enum, default_value_t = ModeName::Product)]
    pub mode: ModeName,
    /// The kind of the filters of runs; by default the kind that belongs to the mode.
    #[arg(long, value_enum)]
    pub filters: Option<FiltersName>,
    /// Compression of the leaves at the bottom of the index.
    #[arg(long, value_enum, default_value_t = CompressionName::None)]
    pub compression: CompressionName,
    /// The number of rows.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// The number of operations of a workload that does not process all rows; by default the number of rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,
    /// The time limit in seconds of a workload that does not process all rows; 0 for no limit.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// The number of client threads.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=255))]
    pub threads: u16,
    /// The store's memory limit.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// The size of a full memtable. By default memtables grow while none waits to be packed, and the cache has the
    /// rest.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memtable: Option<usize>,
    /// The distribution of the accessed rows; by default each workload's own distribution.
    #[arg(long, value_enum)]
    pub dist: Option<DistName>,
    /// The method of reading the data file.
    #[arg(long, value_enum, default_value_t = IoName::Auto)]
    pub io: IoName,
    /// The replacement policy of the buffer pool: clock, 2q, 2q-locked or optimal. optimal keeps every block and
    /// exceeds the memory limit.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub pool_policy: PoolPolicy,
    /// Bytes of a key.
    #[arg(long, value_name = "BYTES", default_value_t = 24, value_parser = clap::value_parser!(u16).range(8..))]
    pub key_len: u16,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    pub value_len: usize,
    /// The percentage of each value that is zeros; 0 makes values incompressible.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub zeros: f64,
    /// The percentage of the insertions of `load-mixed` that are in key order.
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0)]
    pub seq_share: f64,
    /// The number of customers of the hot set of `smallbank`, to which 90 % of the accesses go.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub hot: u64,
    /// The number of warehouses of `neworder` and `payment`. With 10 warehouses and a million rows they have the size of
    /// TPC-C.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub warehouses: u64,
    /// The isolation of transactions.
    #[arg(long, value_enum, default_value_t = IsolationName::Serializable)]
    pub isolation: IsolationName,
    /// Issue this number of operations per second, counted over all threads, instead of as many as possible.
    #[arg(long, value_name = "OPS")]
    pub rate: Option<f64>,
    /// The state of the caches when a workload starts.
    #[arg(long, value_enum, default_value_t = CacheName::AsIs)]
    pub cache: CacheName,
    /// Seconds of warm-up before a workload with --cache warm.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub warm_up: f64,
    /// The seed of all random choices: the same seed gives the same operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Use no background threads, so that the I/O operations are the same each time.
    #[arg(long)]
    pub deterministic: bool,
    /// Create the store in this directory and keep it. By default, the store is in a temporary directory inside the
    /// current directory.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Append a line of JSON for each workload to this file.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print a line of JSON for each workload instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// The subcommands of `pando bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Write an HTML page with tables and plots of measured results.
    Report(BenchReportArgs),
}

/// `pando bench report`
#[derive(Debug, Args)]
pub struct BenchReportArgs {
    /// Files of result lines. They may come from several runs, of PandoDB and of other engines.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Write the page to this file. The page needs no other file.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub images: ImageArgs,
}

/// Parsed workloads. This is a separate type, because clap treats a literal `Vec` as "many arguments".
pub type Workloads = Vec<&'static Workload>;

fn parse_workloads(names: &str) -> Result<Workloads, String> {
    workload::parse(names)
}

/// [`Mode`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// The variant that is tuned for speed.
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

/// [`Filters`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FiltersName {
    /// A blocked Bloom filter for each run.
    Bloom,
    /// A quotient filter for each run.
    Quotient,
    /// A quotient filter for each run, and a maplet for several runs of a node.
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

/// [`Compression`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionName {
    /// Uncompressed.
    None,
    /// LZ4, but only for leaves that become at least a quarter shorter.
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

/// [`Io`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// Concurrent reads through io_uring if it is available, otherwise one read after the other.
    Auto,
    /// Like `auto`, but waiting threads sleep instead of polling.
    Sleeping,
    /// Concurrent reads through io_uring; an error if it is not available.
    Uring,
    /// One read after the other.
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

/// [`Dist`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DistName {
    /// All rows equally often.
    Uniform,
    /// Zipf's law with exponent 0.99.
    Zipf,
    /// The newest rows most often.
    Latest,
    /// 99 % of the accesses to 0.1 % of the rows.
    Hotspot,
}

impl From<DistName> for Dist {
    fn from(name: DistName) -> Dist {
        match name {
            DistName::Uniform => Dist::Uniform,
            DistName::Zipf => Dist::Zipf,
            DistName::Latest => Dist::Latest,
            DistName::Hotspot => Dist::Hotspot,
        }
    }
}

/// [`Isolation`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsolationName {
    /// The effect of transactions that run one after the other.
    Serializable,
    /// Reads of a snapshot; only writes of the same key conflict.
    Snapshot,
}

impl From<IsolationName> for Isolation {
    fn from(name: IsolationName) -> Isolation {
        match name {
            IsolationName::Serializable => Isolation::Serializable,
            IsolationName::Snapshot => Isolation::Snapshot,
        }
    }
}

/// [`Cache`] as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheName {
    /// The caches stay as the previous workload left them.
    AsIs,
    /// The store is reopened and its files are dropped from the page cache.
    Cold,
    /// The same kinds of operations run before the measurement, for the time of --warm-up.
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
