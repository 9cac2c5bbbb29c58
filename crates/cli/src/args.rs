//! The command line: what can be asked for, and how it is said.
//!
//! Help texts are the doc comments. A mistake is turned into one line ([`parse`]) and exit code 2, like every other
//! misuse.

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
Keys and values on the command line, and all that is printed, use the escapes \\t \\n \\r \\\\ and \\xNN, so that any \
bytes survive the round trip.

Exit codes: 0 done, 1 not found (key, keyspace, store), 2 misuse, 3 corruption, 4 input/output (device, full disk, \
store open elsewhere), 5 salvaged, but something is lost, 130 interrupted by Ctrl-C.";

#[cfg(feature = "lab")]
pub use self::{
    bench::{BenchArgs, BenchCommand, BenchReportArgs},
    images::ImageArgs,
    lab::{LabArgs, LabCommand},
    lab_figure::{FigureModes, LabFigureArgs, LabFiguresArgs},
    lab_filters::FiltersArgs,
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

/// The tool of PandoDB, an embedded, durable, write-optimised key-value store.
#[derive(Debug, Parser)]
#[command(name = "pando", version, after_help = AFTER_HELP, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load 231,083 flights, ask, kill, reopen, check: everything in under a minute.
    Demo(DemoArgs),
    /// Load records from a file or a pipe.
    Load(LoadArgs),
    /// Print the value of a key.
    Get(GetArgs),
    /// Give a key a value.
    Put(PutArgs),
    /// Delete a key or a range of keys. Deleting what is not there is no error: a write does not read.
    Delete(DeleteArgs),
    /// Fold an operand into a key's value, without reading it.
    Merge(MergeArgs),
    /// Print a range of keys with their values.
    Scan(ScanArgs),
    /// Count the keys of a range.
    Count(CountArgs),
    /// List the keyspaces.
    Keyspaces(ReportArgs),
    /// Create or drop a keyspace.
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Print sizes, amplifications, levels, debt, memory and latencies.
    Stats(ReportArgs),
    /// Read everything, change nothing, and say whether it is sound.
    Verify(ReportArgs),
    /// Pay the debt of a range of keys: merge it, drop what is dead, give the space back.
    Compact(CompactArgs),
    /// Make everything durable and cut the log.
    Checkpoint(ReportArgs),
    /// Print the structures on disk, as the engine decodes them. Changes nothing.
    Inspect(InspectArgs),
    /// Write the store, or some keyspaces of it, as text to stdout.
    Dump(DumpArgs),
    /// Make a store from a dump.
    Restore(RestoreArgs),
    /// Copy the store to a new directory.
    Backup(BackupArgs),
    /// Copy what can still be read of a damaged store to a new directory, and say what is lost. Changes nothing in it.
    Salvage(SalvageArgs),
    /// Measure it on this machine: workloads, latencies, amplifications, in stores of its own.
    #[cfg(feature = "lab")]
    Bench(BenchArgs),
    /// Hold it against its sources: their figures and bounds, orders of writes, the time of a sort.
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Break things until a promise breaks: crashes, faults, damage, kills, in stores of its own.
    Sim(SimArgs),
    /// The part of the simulation that gets killed.
    #[command(hide = true)]
    SimChild(SimChildArgs),
    /// Print a script that completes commands and options in a shell.
    Completions(CompletionsArgs),
    /// Generate records in the kv form, for `load`.
    #[command(hide = true)]
    Gen(GenArgs),
    /// The part of the demo that gets killed.
    #[command(hide = true)]
    DemoChild(DemoChildArgs),
}

/// Which store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The store's directory.
    pub store: PathBuf,
    /// Memory for everything that the store holds, such as 256MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_budget: Option<usize>,
}

/// Which keyspace of it.
#[derive(Debug, Args)]
pub struct KeyspaceArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The keyspace.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub keyspace: String,
}

/// Which keys of it.
#[derive(Debug, Args)]
pub struct RangeArgs {
    /// The first key.
    #[arg(long, value_name = "KEY", value_parser = kv::unescape)]
    pub from: Option<Bytes>,
    /// The first key after the range.
    #[arg(long, value_name = "KEY", value_parser = kv::unescape)]
    pub to: Option<Bytes>,
    /// Only keys that start like this.
    #[arg(long, value_name = "BYTES", value_parser = kv::unescape)]
    pub prefix: Option<Bytes>,
}

/// Unescaped bytes. An alias, because clap reads a literal `Vec` as "many arguments".
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
    /// Leave the store in this directory, which must be new or empty.
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
    /// The input, or - for stdin. gzip and zstd are unpacked.
    pub file: PathBuf,
    /// The input's format.
    #[arg(long, value_enum)]
    pub format: Format,
    /// The fields that make the key, by name; several are joined by a zero byte.
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    pub key: Vec<String>,
    /// The index of the keyspace, if it is created.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub index: Option<IndexOptions>,
    /// Merge the values with this operator instead of putting them.
    #[arg(long, value_name = "OPERATOR")]
    pub merge: Option<String>,
    /// What each commit survives: nothing promised, the end of the process, the loss of power.
    #[arg(long, value_enum, default_value_t = DurabilityName::Buffered)]
    pub durability: DurabilityName,
    /// Print `acked COUNT` whenever so many more records are durable.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ack_every: Option<u64>,
    /// Records in one atomic commit, at most; one of 8 MiB is committed early.
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

The key is made of the --key fields (csv, tsv: the first column if none is named); several are joined by a zero byte \
(\\x00). The value is the rest of the row in the input's own form: the remaining columns as a csv or tsv row (one column: \
its text), the remaining fields as a JSON object (with --merge: the text of the one field that is left).

A malformed line is reported on stderr with its number and counted (after 20 lines only counted); loading goes on. The \
exit code is 0 if anything was loaded or nothing was malformed. In a keyspace whose operator is add_u64 or add_i64 values \
and operands are decimal numbers.

An input that starts like gzip or zstd is unpacked. Ctrl-C ends the load between two commits: what was committed before \
is in the store.";

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
    /// Which structure.
    #[arg(value_enum, default_value_t = Structure::Superblock)]
    pub what: Structure,
    /// The run's number, or the block's address.
    pub id: Option<String>,
}

/// What `inspect` can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Structure {
    /// Both superblocks.
    Superblock,
    /// The keyspaces and their options.
    Catalog,
    /// The nodes of the tree.
    Trunk,
    /// One run: `run ID`.
    Run,
    /// One block: `block ADDR`.
    Block,
    /// The log's records.
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
    /// The dump, or - for stdin. gzip and zstd are unpacked.
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
    /// The new directory.
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
    /// The new directory.
    pub to: PathBuf,
    /// Copy also what may be out of date because something newer cannot be read: deleted keys may come back.
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
    /// How many records.
    #[arg(long, value_name = "N")]
    pub records: u64,
    /// The order of the keys.
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pub order: Order,
    /// Another seed gives other keys and values.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The length of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: usize,
}

/// The order in which `gen` writes its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Every key once, in no order.
    Random,
    /// Ascending.
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
    /// Logged lazily.
    None,
    /// Survives the end of the process.
    Buffered,
    /// Survives the loss of power.
    Synced,
}

impl DurabilityName {
    /// The name, as it is typed.
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

/// Reads the process's arguments.
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

/// Clap's paragraphs as one line: what is wrong and its hint, without the usage.
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
    fn a_mistake_is_one_line() {
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
