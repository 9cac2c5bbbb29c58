//! Commands on keys, on ranges of keys and on keyspaces.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pandodb::IndexOptions;

use super::{Bytes, DurabilityName, KeyspaceArgs, RangeArgs, StoreArgs, parse_index};
use crate::{kv, operand::ValueForm};

const JSON_HELP: &str = "\
JSON: {\"key\":…,\"value\":…}. Bytes that are not UTF-8 are given as hexadecimal digits in key_hex or value_hex \
instead. With --as the value is a number.";

/// `pando get`
#[derive(Debug, Args)]
#[command(after_help = JSON_HELP)]
pub struct GetArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape)]
    pub key: Bytes,
    /// Print the value, a counter of 8 bytes, as a decimal number.
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: Option<ValueForm>,
    /// Print the bytes of the value unchanged: no escapes, no line break at the end.
    #[arg(long, conflicts_with_all = ["form", "json"])]
    pub raw: bool,
    /// Print key and value as a JSON object on one line.
    #[arg(long)]
    pub json: bool,
}

/// `pando put`
#[derive(Debug, Args)]
#[command(
    after_help = "A value from stdin or a file is stored byte for byte, with any line break at its end, up to 64 MiB."
)]
pub struct PutArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape)]
    pub key: Bytes,
    /// The value, with escapes. With -, the value is read from stdin (write \x2d for the value `-`). In a keyspace with
    /// the operator add_u64 or add_i64, the value is a decimal number.
    #[arg(allow_hyphen_values = true, conflicts_with = "file")]
    pub value: Option<String>,
    /// Read the value from this file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub durability: DurabilityArgs,
}

/// `pando delete`
#[derive(Debug, Args)]
#[command(after_help = "\
A range delete is one message, however many keys it covers. `pando delete STORE` without a key or range is refused: \
give a KEY, a range with --from, --to or --prefix, or --all.")]
pub struct DeleteArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape, conflicts_with_all = ["from", "to", "prefix", "all"])]
    pub key: Option<Bytes>,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Delete every key of the keyspace.
    #[arg(long, conflicts_with_all = ["from", "to", "prefix"])]
    pub all: bool,
    #[command(flatten)]
    pub durability: DurabilityArgs,
}

/// `pando merge`
#[derive(Debug, Args)]
pub struct MergeArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape)]
    pub key: Bytes,
    /// The operand, with escapes. For the operators add_u64 and add_i64, the operand is a decimal number.
    #[arg(value_parser = kv::unescape, allow_hyphen_values = true)]
    pub operand: Bytes,
    /// Create the keyspace with this operator if it does not exist: add_u64, add_i64, min, max, append, bit_or,
    /// put_if_absent.
    #[arg(long = "merge", value_name = "OPERATOR")]
    pub operator: Option<String>,
    #[command(flatten)]
    pub durability: DurabilityArgs,
}

/// The durability of a single write.
#[derive(Debug, Args)]
pub struct DurabilityArgs {
    /// The kind of crash that the write survives once the command has ended.
    #[arg(long, value_enum, default_value_t = DurabilityName::Synced)]
    pub durability: DurabilityName,
}

/// `pando scan`
#[derive(Debug, Args)]
#[command(after_help = JSON_HELP)]
pub struct ScanArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print from the last key to the first.
    #[arg(long)]
    pub reverse: bool,
    /// Skip the first N records.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Print at most N records.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print keys only. Large values are not read.
    #[arg(long, conflicts_with = "form")]
    pub keys: bool,
    /// Print each record as a JSON object on a line of its own.
    #[arg(long)]
    pub json: bool,
    /// Print the values, counters of 8 bytes, as decimal numbers.
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: Option<ValueForm>,
}

/// `pando count`
#[derive(Debug, Args)]
pub struct CountArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Estimate the number from the index's statistics instead of reading the keys. This works only for a whole
    /// keyspace.
    #[arg(long, conflicts_with_all = ["from", "to", "prefix"])]
    pub estimate: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando keyspace`
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// Create an empty keyspace. Also create the store if it does not exist.
    Create(KeyspaceCreateArgs),
    /// Change options of a keyspace's index. The changes take effect with the next command.
    Alter(KeyspaceAlterArgs),
    /// Drop a keyspace with all its data and free its space.
    Drop(KeyspaceDropArgs),
}

/// `pando keyspace create`
#[derive(Debug, Args)]
pub struct KeyspaceCreateArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The name of the keyspace.
    pub name: String,
    /// The merge operator: add_u64, add_i64, min, max, append, bit_or, put_if_absent.
    #[arg(long, value_name = "OPERATOR")]
    pub merge: Option<String>,
    /// The index type and its options, such as stbe or cola:growth=8.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub index: Option<IndexOptions>,
}

/// `pando keyspace alter`
#[derive(Debug, Args)]
pub struct KeyspaceAlterArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The name of the keyspace.
    pub name: String,
    /// The options to change, such as compression=lz4. All other options stay unchanged.
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub options: Vec<String>,
}

/// `pando keyspace drop`
#[derive(Debug, Args)]
pub struct KeyspaceDropArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The name of the keyspace.
    pub name: String,
}
