//! Commands on keys, on ranges of keys and on keyspaces.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pandodb::IndexOptions;

use super::{Bytes, DurabilityName, KeyspaceArgs, RangeArgs, StoreArgs, parse_index};
use crate::{kv, operand::ValueForm};

const JSON_HELP: &str = "\
JSON: {\"key\":…,\"value\":…}. Bytes that are UTF-8 are a string; others stand under key_hex or value_hex in hexadecimal \
digits. With --as the value is a number.";

/// `pando get`
#[derive(Debug, Args)]
#[command(after_help = JSON_HELP)]
pub struct GetArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape)]
    pub key: Bytes,
    /// Print a counter as a number.
    #[arg(long = "as", value_enum, value_name = "FORM")]
    pub form: Option<ValueForm>,
    /// Print the bytes as they are: no escapes, no line break at the end.
    #[arg(long, conflicts_with_all = ["form", "json"])]
    pub raw: bool,
    /// Print key and value as a JSON object on one line.
    #[arg(long)]
    pub json: bool,
}

/// `pando put`
#[derive(Debug, Args)]
#[command(
    after_help = "A value from stdin or a file is taken byte for byte, up to 64 MiB, a line break at its end included."
)]
pub struct PutArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape)]
    pub key: Bytes,
    /// The value, with escapes; - reads it from stdin (write \x2d for the value `-`). A decimal number in a keyspace whose
    /// operator is add_u64 or add_i64.
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
A range is one message, however many keys it holds. A bare `pando delete STORE` deletes nothing: name a key, or a range \
with --from, --to or --prefix, or --all.")]
pub struct DeleteArgs {
    #[command(flatten)]
    pub at: KeyspaceArgs,
    /// The key.
    #[arg(value_parser = kv::unescape, conflicts_with_all = ["from", "to", "prefix", "all"])]
    pub key: Option<Bytes>,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Every key of the keyspace.
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
    /// The operand; a decimal number for add_u64 and add_i64.
    #[arg(value_parser = kv::unescape, allow_hyphen_values = true)]
    pub operand: Bytes,
    /// The keyspace's operator, if it is created: add_u64, add_i64, min, max, append, bit_or, put_if_absent.
    #[arg(long = "merge", value_name = "OPERATOR")]
    pub operator: Option<String>,
    #[command(flatten)]
    pub durability: DurabilityArgs,
}

/// How durable a single write is.
#[derive(Debug, Args)]
pub struct DurabilityArgs {
    /// What the write survives: nothing promised, the end of the process, the loss of power.
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
    /// From the last key to the first.
    #[arg(long)]
    pub reverse: bool,
    /// Pass over so many records first.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// At most so many records.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print the keys alone. Large values are not read.
    #[arg(long, conflicts_with = "form")]
    pub keys: bool,
    /// Print each record as a JSON object on a line of its own.
    #[arg(long)]
    pub json: bool,
    /// Print counters as numbers.
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
    /// Do not read the keys: estimate their number from what the index knows. Whole keyspace only.
    #[arg(long, conflicts_with_all = ["from", "to", "prefix"])]
    pub estimate: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `pando keyspace`
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// Create an empty keyspace, and the store if it is not there.
    Create(KeyspaceCreateArgs),
    /// Change options of a keyspace's index; they hold from the next command on.
    Alter(KeyspaceAlterArgs),
    /// Drop a keyspace with everything in it, and give its space back.
    Drop(KeyspaceDropArgs),
}

/// `pando keyspace create`
#[derive(Debug, Args)]
pub struct KeyspaceCreateArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Its name.
    pub name: String,
    /// Its merge operator: add_u64, add_i64, min, max, append, bit_or, put_if_absent.
    #[arg(long, value_name = "OPERATOR")]
    pub merge: Option<String>,
    /// Its index.
    #[arg(long, value_name = "INDEX", value_parser = parse_index)]
    pub index: Option<IndexOptions>,
}

/// `pando keyspace alter`
#[derive(Debug, Args)]
pub struct KeyspaceAlterArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Its name.
    pub name: String,
    /// The options, as in compression=lz4; those that are not named stay as they are.
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub options: Vec<String>,
}

/// `pando keyspace drop`
#[derive(Debug, Args)]
pub struct KeyspaceDropArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Its name.
    pub name: String,
}
