//! The arguments of `pando lab paged`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::operand::parse_size;

const PAGED_HELP: &str = "\
Repeats experiments of source 000 on a B+-tree and a Bε-tree in a page buffer, as the source describes them. These trees \
are not durable and not part of the store. Each ratio of the source is printed beside the measured one. Trees that are \
compared are measured in turns. `reads` and `writes` are pages per operation, `flushes` \
batches of messages per operation, and `flushed` messages per batch; `width` are the pages \
of one level that get a batch in the same flush, on average. `moves` are nodes that got another epsilon. `instead` are the splits of inner nodes that a flush \
policy made instead of a flush.

  inserts    inserts into a preloaded tree, data four times memory (§6.4)
  workloads  the five workloads, in memory (§6.3)
  epsilon    values of epsilon, uniform and Zipf, with heights, slots and pages (§6.2)
  roots      the separate root beside the textbook root (§6.3)
  coupling   latched beside optimistic coupling, with buffers inside and apart, half reads and half updates (§8.1)
  sizes      sizes of pages and values, data four times memory; large pages also with buffers apart (ch. 8)
  buffers    2Q under one lock, 2Q without it, CLOCK, CLOCK with swizzled references (§5.1.2 and §8.5)
  flushes    the flush policies of 000 and of 004 §2.4.1 and §3, loads of data four times memory
  dynamic    nodes that choose their epsilon, in phases of inserts and reads, data four times memory (§8.2)

  pando lab paged inserts --records 200000 --direct
  pando lab paged coupling --threads 1,2 --json";

/// The page buffers of `pando lab paged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PagedBuffer {
    /// 2Q under one reader-writer lock.
    #[value(name = "2q")]
    TwoQueue,
    /// 2Q with a sharded table and deferred queue updates.
    #[value(name = "2q-sharded")]
    TwoQueueSharded,
    /// CLOCK with a sharded table.
    Clock,
    /// The same, with hints from parents to the frames of their children.
    #[value(name = "clock-swizzled")]
    Swizzled,
}

/// The experiments of `pando lab paged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PagedExperiment {
    /// Inserts with data four times memory.
    Inserts,
    /// The five workloads.
    Workloads,
    /// Values of epsilon.
    Epsilon,
    /// The two kinds of roots.
    Roots,
    /// Latched and optimistic coupling.
    Coupling,
    /// Sizes of pages and values.
    Sizes,
    /// Page buffers.
    Buffers,
    /// Flush policies.
    Flushes,
    /// Nodes that choose their epsilon.
    Dynamic,
}

/// `pando lab paged`
#[derive(Debug, Args)]
#[command(after_long_help = PAGED_HELP)]
pub struct PagedArgs {
    /// The experiments, in the order in which they run.
    #[arg(value_enum, required = true)]
    pub experiments: Vec<PagedExperiment>,
    /// The number of records.
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub records: u64,
    /// The number of operations of each measurement; by default the number of records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub ops: Option<u64>,
    /// The numbers of threads.
    #[arg(long, value_name = "T,…", default_value = "1,2", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=255))]
    pub threads: Vec<u16>,
    /// The number of rounds; each round measures every tree once.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// The size of a page.
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = parse_size)]
    pub page: usize,
    /// The size of a value; keys have 8 bytes.
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = parse_size)]
    pub value: usize,
    /// The share of pivots in a node, from 0 to 1.
    #[arg(long, value_name = "E", default_value_t = 0.8)]
    pub epsilon: f64,
    /// The page buffer of experiments with more data than memory.
    #[arg(long, value_enum, default_value_t = PagedBuffer::TwoQueue)]
    pub buffer: PagedBuffer,
    /// Memory as a share of the bytes of the records, in experiments with more data than memory.
    #[arg(long, value_name = "S", default_value_t = 0.25)]
    pub memory_share: f64,
    /// Bypass the page cache of the system (O_DIRECT).
    #[arg(long)]
    pub direct: bool,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Create the files in this directory instead of the current directory. The files are removed at the end.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print lines of JSON instead of the tables.
    #[arg(long)]
    pub json: bool,
}
