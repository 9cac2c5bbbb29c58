//! `dump`: writes all or some keyspaces as text, and defines the directives of this text.
//!
//! ```text
//! \!pando-dump TAB 1                                  the version of the format
//! \!keyspace TAB name TAB index=stbe:fanout=4,mode=product TAB large_values_over=2048 TAB operator=add_i64
//!                                                     (operator: omitted if there is none)
//! key TAB value                                       the kv form; merges are folded into values
//! …
//! \!end TAB records                                   number of records of this keyspace
//! \!keyspace …
//! \!done TAB keyspaces                                number of keyspaces; without this line the dump is incomplete
//! ```
//!
//! No line of data starts with `\!` ([`crate::kv`]). All keyspaces are read at the same snapshot.

use std::io::Write;

use pandodb::KeyspaceInfo;

use super::{Access, existing, open, require_keyspaces};
use crate::{
    args::DumpArgs,
    failure::Outcome,
    kv,
    output::{self, Out},
};

/// The version of the format that this program writes and reads.
pub const VERSION: &str = "1";
/// The directive that starts the dump.
pub const HEADER: &str = "\\!pando-dump";
/// The directive that starts a keyspace.
pub const KEYSPACE: &str = "\\!keyspace";
/// The directive that ends a keyspace.
pub const END: &str = "\\!end";
/// The directive that ends the dump.
pub const DONE: &str = "\\!done";

/// Writes all keyspaces, or only the named keyspaces, to stdout.
pub fn run(args: &DumpArgs) -> Outcome {
    let store = open(&args.store, Access::Read)?;
    let snapshot = store.snapshot();
    let mut keyspaces = store.keyspaces();
    if !args.keyspaces.is_empty() {
        require_keyspaces(&args.keyspaces, keyspaces.iter().map(|info| info.name.as_str()), "the store")?;
        keyspaces.retain(|info| args.keyspaces.contains(&info.name));
    }
    let mut out = output::stdout();
    let mut scratch = Vec::new();
    writeln!(out, "{HEADER}\t{VERSION}").map_err(|e| output::lost(&e))?;
    for info in &keyspaces {
        write_header(&mut out, info)?;
        let keyspace = existing(&store, &info.name)?.at(&snapshot);
        let mut records = 0u64;
        let mut rows = keyspace.iter();
        while let Some((key, value)) = rows.next_row()? {
            kv::write_line(&mut out, key, value, &mut scratch).map_err(|e| output::lost(&e))?;
            records += 1;
        }
        writeln!(out, "{END}\t{records}").map_err(|e| output::lost(&e))?;
    }
    writeln!(out, "{DONE}\t{}", keyspaces.len()).map_err(|e| output::lost(&e))?;
    output::finish(out)
}

fn write_header(out: &mut Out, info: &KeyspaceInfo) -> Outcome {
    let mut line = format!("{KEYSPACE}\t{}\tindex={}", kv::escaped(info.name.as_bytes()), info.index);
    line.push_str(&format!("\tlarge_values_over={}", info.blob_threshold));
    if let Some(operator) = &info.operator {
        line.push_str("\toperator=");
        line.push_str(&kv::escaped(operator.as_bytes()));
    }
    writeln!(out, "{line}").map_err(|e| output::lost(&e))
}
