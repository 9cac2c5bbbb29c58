//! The command line: commands, arguments and their help texts.
//!
//! The doc comments of the arguments are the help texts. A mistake on the command line becomes one line on stderr
//! ([`parse`]) and exit code 2.

#[cfg(feature = "lab")]
mod bench;
#[cfg(feature = "lab")]
mod images;
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod lab_figure;
#[cfg(feature = "lab")]
mod lab_filters;
#[cfg(feature = "lab")]
mod lab_paged;
#[cfg(feature = "lab")]
mod lab_pool;
#[cfg(feature = "lab")]
mod lab_theory;
mod sim;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pandodb::{Durability, IndexKind, IndexOptions};

use crate::{
    failure::{Failure, Outcome},
    kv,
    operand::parse_size,
};

const AFTER_HELP: &str = "\
First steps: `pando demo` shows what the store does; `pando put STORE KEY VALUE` creates a store in the directory STORE.

Keys and values on the command line and in the output use the escapes \\t \\n \\r \\\\ and \\xNN, so that any bytes \
can be passed and printed.

Exit codes:
    0 done
    1 not found: the key, the keyspace, the store or the input file
    2 misuse: an invalid argument, input or operation
    3 corruption: the store or the dump is damaged
    4 input/output: a device error, a full disk, or the store is open in another process
    5 salvaged, but some data is lost
  130 interrupted by Ctrl-C or SIGTERM";

#[cfg(feature = "lab")]
pub use self::{
    bench::{BenchArgs, BenchCommand, BenchReportArgs},
    images::ImageArgs,
    lab::{LabArgs, LabCommand},
    lab_figure::{FigureModes, LabFigureArgs, LabFiguresArgs},
    lab_filters::FiltersArgs,
    lab_paged::{PagedArgs, PagedBuffer, PagedExperiment},
    lab_pool::PoolArgs,
    lab_theory::{OrderArgs, SortArgs, TheoryArgs},
};
pub use self::{
    keys::{
        CountArgs, DeleteArgs, GetArgs, KeyspaceAlterArgs, KeyspaceCommand, KeyspaceCreateArgs, KeyspaceDropArgs,
        MergeArgs, PutArgs, ScanArgs,
    },
    sim::{SimArgs, SimChildArgs},
};

/// The command-line tool of PandoDB, an embedded, durable, write-optimised key-value store.
#[derive(Debug, Parser)]
#[command(name = "pando", version, after_help = AFTER_HELP, subcommand_required = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load 231,083 flights, query them, kill a second load, reopen the store and check it, all in under a minute.
    Demo(DemoArgs),
    /// Load records from a file or a pipe.
    Load(LoadArgs),
    /// Print the value of a key.
    Get(GetArgs),
    /// Set the value of a key.
    Put(PutArgs),
    /// Delete a key or a range of keys. Deleting a key that does not exist is no error, because a write does not read.
    Delete(DeleteArgs),
    /// Apply an operand to a key's value with the keyspace's merge operator, without reading the value.
    Merge(MergeArgs),
    /// Print a range of keys with their values.
    Scan(ScanArgs),
    /// Count the keys of a range.
    Count(CountArgs),
    /// List the keyspaces.
    Keyspaces(ReportArgs),
    /// Create, alter or drop a keyspace.
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Print sizes, amplification, pending background work, memory and the figures of each index. With --json, also
    /// print latencies.
    Stats(ReportArgs),
    /// Read the whole store and check it, without changing it. The exit code is 3 if the store is damaged.
    Verify(ReportArgs),
    /// Merge the runs of a range of keys. This drops deleted and superseded entries and frees their space.
    Compact(CompactArgs),
    /// Write a checkpoint: make all data durable and remove the log that is no longer needed.
    Checkpoint(ReportArgs),
    /// Print decoded structures of the data file and the log, without changing them.
    Inspect(InspectArgs),
    /// Write all keyspaces, or only the keyspaces named with --keyspace, as text to stdout.
    Dump(DumpArgs),
    /// Create keyspaces from a dump. Also create the store if it does not exist.
    Restore(RestoreArgs),
    /// Copy the store to a new directory.
    Backup(BackupArgs),
    /// Copy the readable part of a damaged store to a new directory and list what is lost. The damaged store is not
    /// changed.
    Salvage(SalvageArgs),
    /// Measure PandoDB on this machine: throughput, latencies and amplification of workloads, in temporary stores.
    #[cfg(feature = "lab")]
    Bench(BenchArgs),
    /// Compare PandoDB with its published sources: repeat figures, check cost bounds, show the order of writes, time a
    /// sort.
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Test robustness with crashes, faults, damage and kills, in temporary stores.
    Sim(SimArgs),
    /// The process that `pando sim kill` kills.
    #[command(hide = true)]
    SimChild(SimChildArgs),
    /// Print a shell script that completes commands and options.
    Completions(CompletionsArgs),
    /// Generate records in the kv form, for `load`.
    #[command(hide = true)]
    Gen(GenArgs),
    /// The process that `pando demo` kills.
    #[command(hide = true)]
    DemoChild(DemoChildArgs),
}

/// The store of a command.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The store's directory.
    pub store: PathBuf,
    /// The store's memory limit, such as 256MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_budget: Option<usize>,
}

/// The keyspace of a command.
#[derive(Debug, Args)]
pub struct KeyspaceArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The name of the keyspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub keyspace: String,
}

/// The range of keys of a command.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// The first key of the range.
    #[arg(long, value_name = "KEY", value_parser = kv::unescape)]
    pub from: Option<Bytes>,
    /// The end of the range: the first key after the range.
    #[arg(long, value_name = "KEY", value_parser = kv::unescape)]
    pub to: Option<Bytes>,
    /// Only keys that start with these bytes.
    #[arg(long, value_name = "BYTES", value_parser = kv::unescape)]
    pub prefix: Option<Bytes>,
}

/// Unescaped bytes. This alias is necessary, because clap treats a literal `Vec` as "many arguments".
pub type Bytes = Vec<u8>;

/// A command that reports on a whole store.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Create the store in this directory and keep it. The directory must be new or empty.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Print the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando demo-child`
#[derive(Debug, Args)]
pub struct DemoChildArgs {
    /// The demo's store.
    pub store: PathBuf,
}

/// `pando load`
#[derive(Debug, Args)]
#[command(after_long_help = LOAD_HELP)]
pub struct LoadArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The input file, or - for stdin. gzip and zstd input is decompressed.
    pub file: PathBuf,
    /// The format of the input.
    #[arg(long, value_enum)]
    pub format: Format,
    /// The names of the fields that form the key. Several fields are joined by a zero byte.
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub key: Vec<String>,
    /// The index type, such as stbe or cola:growth=8, if this command creates the keyspace.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub index: Option<IndexOptions>,
    /// Merge the values with this operator instead of putting them.
    #[arg(long, value_name = "OPERATOR")]
    pub merge: Option<String>,
    /// Load the whole input as one atomic write, which is faster than commits. The records must be sorted by key, each
    /// key once. Nothing is loaded if one of them is malformed or out of order.
    #[arg(long, conflicts_with_all = ["merge", "ack_every", "batch", "durability"])]
    pub sorted: bool,
    /// The kind of crash that each acknowledged commit survives.
    #[arg(long, value_enum, default_value_t = DurabilityName::Buffered)]
    pub durability: DurabilityName,
    /// Print `acked COUNT` each time N more records are committed with the requested durability.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ack_every: Option<u64>,
    /// Records in each atomic commit; a batch that reaches 8 MiB is committed early.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,
    /// Print the figures as JSON, on one line.
    #[arg(long)]
    pub json: bool,
}

const LOAD_HELP: &str = "\
Formats:
  kv      key<TAB>value, with escapes
  tsv     fields between TABs, no quotes; the first line names them
  csv     fields between commas, quoted as in RFC 4180; the first line names them
  ndjson  one JSON object a line

The key consists of the --key fields (csv, tsv: the first column by default); several are joined by a zero byte \
(\\x00). The value is the rest of the row in the format of the input: the remaining columns as a csv or tsv row (a \
single column: its text), the remaining fields as a JSON object (with --merge: the text of the single remaining \
field).

Malformed lines are skipped and counted; the first 20 are reported on stderr with their line numbers. The exit code \
is 0 if any record was loaded or no line was malformed. In a keyspace with the operator add_u64 or add_i64 values and \
operands are decimal numbers.

gzip and zstd input is recognized by its first bytes and decompressed. Ctrl-C ends the load between two commits; all \
earlier commits stay in the store.";

/// `pando compact`
#[derive(Debug, Args)]
pub struct CompactArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The structure to print.
    #[arg(value_enum, default_value_t = Structure::Superblock)]
    pub what: Structure,
    /// With `run`: the id of the run. With `block`: the number of the block's first page. The number is decimal, or
    /// hexadecimal with 0x.
    pub id: Option<String>,
}

/// The structures that `inspect` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Structure {
    /// Both superblock slots.
    Superblock,
    /// The keyspaces and their options.
    Catalog,
    /// The nodes of each index.
    Trunk,
    /// One run, given as `run ID`.
    Run,
    /// One block, given as `block PAGE`.
    Block,
    /// The segments and records of the log.
    Log,
}

/// `pando dump`
#[derive(Debug, Args)]
pub struct DumpArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Only this keyspace. Can be given several times.
    #[arg(long = "keyspace", value_name = "NAME")]
    pub keyspaces: Vec<String>,
}

/// `pando restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The dump, or - for stdin. gzip and zstd input is decompressed.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// Only this keyspace. Can be given several times.
    #[arg(long = "keyspace", value_name = "NAME")]
    pub keyspaces: Vec<String>,
    /// Print the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando backup`
#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The destination: a new or empty directory.
    pub to: PathBuf,
    /// Only this keyspace. Can be given several times.
    #[arg(long = "keyspace", value_name = "NAME")]
    pub keyspaces: Vec<String>,
    /// Print the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando salvage`
#[derive(Debug, Args)]
pub struct SalvageArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The destination: a new or empty directory.
    pub to: PathBuf,
    /// Also copy keys whose values may be out of date, because newer data cannot be read. Deleted keys may reappear.
    #[arg(long)]
    pub include_stale: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando completions`
#[derive(Debug, Args)]
#[command(after_help = "\
bash:  pando completions bash > ~/.local/share/bash-completion/completions/pando
zsh:   pando completions zsh > DIR/_pando, where DIR is in $fpath
fish:  pando completions fish > ~/.config/fish/completions/pando.fish")]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `pando gen`
#[derive(Debug, Args)]
pub struct GenArgs {
    /// The number of records.
    #[arg(long, value_name = "N")]
    pub records: u64,
    /// The order of the keys.
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pub order: Order,
    /// The seed of the keys and values.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The length of each value in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: usize,
}

/// The order in which `gen` writes its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Every key once, in random order.
    Random,
    /// Every key once, in ascending order.
    Sequential,
}

/// The formats that `load` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `key<TAB>value`, with escapes.
    Kv,
    /// Fields between TABs.
    Tsv,
    /// Fields between commas.
    Csv,
    /// One JSON object a line.
    Ndjson,
}

/// The levels of durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityName {
    /// No guarantee: even a crash of the process may lose the last commits.
    None,
    /// Survives a crash or kill of the process.
    Buffered,
    /// Survives a loss of power.
    Synced,
}

impl DurabilityName {
    /// The name as typed on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            DurabilityName::None => "none",
            DurabilityName::Buffered => "buffered",
            DurabilityName::Synced => "synced",
        }
    }
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Durability {
        match name {
            DurabilityName::None => Durability::None,
            DurabilityName::Buffered => Durability::Buffered,
            DurabilityName::Synced => Durability::Synced,
        }
    }
}

pub(crate) fn parse_kind(name: &str) -> Result<IndexKind, String> {
    IndexKind::named(name).map_err(|e| e.what())
}

pub(crate) fn parse_index(text: &str) -> Result<IndexOptions, String> {
    text.parse::<IndexOptions>().map_err(|e| e.what())
}

/// Parses the arguments of the process.
pub fn parse() -> Outcome<Cli> {
    Cli::try_parse().map_err(|error| {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        let text = error.render().to_string();
        match error.kind() {
            DisplayHelp | DisplayVersion => Failure::Help(text),
            _ => Failure::Misuse(one_line(&text)),
        }
    })
}

/// Joins the lines of a clap error into one line, without the usage.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"))
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    let message = lines.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    format!("{message}; see `pando --help`")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_line_error_is_one_line() {
        let error = Cli::try_parse_from(["pando", "scan", "s", "--form", "a"]).unwrap_err();
        let line = one_line(&error.render().to_string());
        assert!(!line.contains('\n') && line.contains("--form") && line.ends_with("see `pando --help`"), "{line}");
    }

    #[test]
    fn keys_and_operands_are_unescaped() {
        let cli = Cli::try_parse_from(["pando", "merge", "s", "a\\x00b", "-17"]).unwrap();
        let Command::Merge(merge) = cli.command else { panic!("not a merge") };
        assert_eq!((merge.key.as_slice(), merge.operand.as_slice()), (&b"a\0b"[..], &b"-17"[..]));
        assert!(Cli::try_parse_from(["pando", "get", "s", "a\\q"]).is_err());
    }
}
