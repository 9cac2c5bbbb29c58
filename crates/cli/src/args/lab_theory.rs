//! The arguments of `pando lab theory`, `order` and `sort`.

use std::path::PathBuf;

use clap::Args;
use pandodb::IndexKind;

use super::images::ImageArgs;
use crate::operand::parse_size;

const THEORY_HELP: &str = "\
Runs in memory, without background threads: the same figures each time. Each check holds a measured cost against a bound; \
their ratio must stay in a band and must not grow with N. Ends with exit code 3 if a check fails.

  pando lab theory --index stbe --doublings 6 -o theory.jsonl --svg pictures/";

/// `pando lab theory`
#[derive(Debug, Args)]
#[command(after_long_help = THEORY_HELP)]
pub struct TheoryArgs {
    /// The index that is measured.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_kind)]
    pub index: IndexKind,
    /// The smallest number of records.
    #[arg(long, value_name = "N", default_value_t = 1 << 15, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub start: u64,
    /// How often it is doubled; a slope wants three sizes at least.
    #[arg(long, value_name = "TIMES", default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub doublings: u32,
    /// Memory of the engine, and of the model.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// Bytes of a full memtable; an eighth of the memory by default.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memtable: Option<usize>,
    /// Records of a scan.
    #[arg(long, value_name = "K", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub scan_len: u32,
    /// Where random choices come from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Append all figures and all checks, a line of JSON each, to this file.
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
    /// The index that is measured.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_kind)]
    pub index: IndexKind,
    /// Records of each workload.
    #[arg(long, value_name = "N", default_value_t = 1 << 19, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub records: u64,
    /// Memory of the engine.
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
    /// The index that is loaded for comparison.
    #[arg(long, value_name = "INDEX", default_value_t, value_parser = super::parse_kind)]
    pub index: IndexKind,
    /// Records.
    #[arg(long, value_name = "N", default_value_t = 1 << 22, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// Memory of the sort, and of the store.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub memory_budget: usize,
    /// Work in this directory instead of in a temporary one here; what is made there is removed again.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Only sort.
    #[arg(long)]
    pub no_load: bool,
    /// Print a line of JSON.
    #[arg(long)]
    pub json: bool,
}
