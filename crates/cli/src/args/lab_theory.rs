//! The arguments of `pando lab theory`, `order` and `sort`.

use std::path::PathBuf;

use clap::Args;
use pandodb::{IndexKind, IndexOptions};

use super::images::ImageArgs;
use crate::operand::parse_size;

const THEORY_HELP: &str = "\
Runs in memory and without background threads, so that the results are the same each time. Each check divides a \
measured cost by its bound; the ratio must stay within a band and must not grow with N. Exit code 3 if a check fails.

There are claims about stbe, btree, betree and nbtree. Without options, btree is measured with three sizes of pages, and betree \
with three values of epsilon in nodes of 32 KiB.

  pando lab theory --index stbe --doublings 6 -o theory.jsonl --svg pictures/
  pando lab theory --index betree
  pando lab theory --index betree:node_kib=64,page_kib=4,epsilon=35";

/// `pando lab theory`
#[derive(Debug, Args)]
#[command(after_long_help = THEORY_HELP)]
pub struct TheoryArgs {
    /// The index to measure: a type, or a btree, betree or nbtree with options.
    #[arg(long, value_name = "INDEX", default_value = "stbe", value_parser = super::parse_index)]
    pub index: IndexOptions,
    /// The smallest number of records.
    #[arg(long, value_name = "N", default_value_t = 1 << 15, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub start: u64,
    /// The number of times that the number of records is doubled.
    #[arg(long, value_name = "TIMES", default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub doublings: u32,
    /// The memory limit of the store, and the memory M of the cost model.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// The size of a full memtable; by default an eighth of --memory-budget.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memtable: Option<usize>,
    /// The number of records in a scan.
    #[arg(long, value_name = "K", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub scan_len: u32,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Append each measurement and each check to this file, as one line of JSON.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub images: ImageArgs,
    /// Print lines of JSON instead of the tables.
    #[arg(long)]
    pub json: bool,
}

/// `pando lab order`
#[derive(Debug, Args)]
pub struct OrderArgs {
    /// The index type to measure.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_kind)]
    pub index: IndexKind,
    /// The number of records in each workload.
    #[arg(long, value_name = "N", default_value_t = 1 << 19, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub records: u64,
    /// The store's memory limit.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    #[command(flatten)]
    pub images: ImageArgs,
    /// Print lines of JSON instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// `pando lab sort`
#[derive(Debug, Args)]
pub struct SortArgs {
    /// The index type of the load with which the sort is compared.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_kind)]
    pub index: IndexKind,
    /// The number of records.
    #[arg(long, value_name = "N", default_value_t = 1 << 22, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// The memory limit of the sort, and also of the store to which it is compared.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// Create the files in this directory instead of the current directory. The files are removed at the end.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Only sort, and leave out the load to which the sort is compared.
    #[arg(long)]
    pub no_load: bool,
    /// Print a line of JSON.
    #[arg(long)]
    pub json: bool,
}
