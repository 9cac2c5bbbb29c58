//! The table on disk: one block in two copies ([`crate::space::mirrored`]). The first checkpoint that includes a table
//! writes the table's block. The block is never changed afterwards.
//!
//! Root record (integers varint): `version (1) | growth factor | address of the table | map of large values`. The last
//! two fields are defined in [`crate::index::stored`] and [`crate::index::blobs`].
//!
//! Body of the table block ([`crate::index::stored`]):
//!
//! ```text
//!  layer count
//!  for each layer, newest first: level | part count | for each part, in key order: run description | slice
//! ```
//!
//! If several parts belong to the same run, each of them has a description of the run. An opening makes one object from
//! these descriptions. Decoding trusts no field: order and bounds are checked before a table is used.

use super::choose::MAX_LEVEL;
use super::table::{Layer, LayerId, Table};
use crate::base::codec::{Reader, put_varint};
use crate::base::{BlockAddr, Result, SeededBug};
use crate::index::blobs::{BlobMap, MapRoot};
use crate::index::runs::Part;
use crate::index::runs::codec::Runs;
use crate::index::stored::Stored;
use crate::index::{Core, RootRecord};
use crate::run::{RunMeta, RunSlice};
use crate::space::{BlockKind, Prefetch};

const VERSION: u64 = 1;
/// Upper limit of the growth factor in a record.
const MAX_GROWTH: u64 = 1 << 16;

const _: () = assert!(MAX_LEVEL < 1 << 7, "a level is one byte");

/// Writes the table and the nodes of the map of large values, unless they are already on disk. Returns the root record.
pub fn store(core: &Core, table: &Table, blobs: &BlobMap, growth: u64) -> Result<Vec<u8>> {
    let stored = match table.stored() {
        Some(stored) => stored,
        None => {
            let stored = Stored::write(core, BlockKind::LevelTable, |body| encode(table, body))?;
            table.set_stored(stored, &core.data);
            stored
        }
    };
    Ok(encode_root(stored, blobs.store(core)?, growth))
}

fn encode_root(stored: Stored, blobs: MapRoot, growth: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, VERSION);
    put_varint(&mut out, growth);
    stored.encode(&mut out);
    blobs.encode(&mut out);
    out
}

fn encode(table: &Table, out: &mut Vec<u8>) {
    assert!(table.lost.is_none(), "a lost table is never written");
    debug_assert_eq!(table.problem(), None, "a table is checked before it is written");
    let missed = usize::from(SeededBug::LevelNotWritten.is_on() && table.layers.len() > 1);
    let layers = &table.layers[missed..];
    put_varint(out, layers.len() as u64);
    for layer in layers {
        put_varint(out, layer.level.into());
        put_varint(out, layer.parts.len() as u64);
        for part in layer.parts.iter() {
            part.slice.run().meta().encode(out);
            part.slice.encode(out);
        }
    }
}

/// A table read from disk.
pub struct Loaded {
    /// The table of layers.
    pub table: Table,
    /// The map of the pages of large values.
    pub blobs: BlobMap,
}

/// The addresses of the table and of the map of large values, from a root record.
fn decode_root(record: &RootRecord) -> Result<(Stored, MapRoot)> {
    let mut reader = Reader::new(&record.bytes, "root record");
    if reader.varint()? != VERSION {
        return Err(reader.corrupt("unknown version"));
    }
    // Skip the stored factor: it is only informative, because the factor in force is an option of the keyspace.
    reader.varint_max(MAX_GROWTH)?;
    let root = (Stored::decode(&mut reader)?, MapRoot::decode(&mut reader)?);
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(root)
}

/// The blocks that loading reads first; no blocks if the record is damaged.
pub fn first_blocks(core: &Core, record: &RootRecord) -> Vec<BlockAddr> {
    decode_root(record)
        .map_or(Vec::new(), |(stored, blobs)| stored.first_reads(core).chain(blobs.first_blocks(core)).collect())
}

/// Reads the table of a root record.
pub fn load(core: &Core, record: &RootRecord, prefetch: &mut Prefetch) -> Result<Loaded> {
    let (stored, blobs) = decode_root(record)?;
    let mut runs = Runs::new(core);
    let table = match load_table(core, stored, &mut runs, prefetch) {
        // If both copies of the table are damaged, a store that is open for reading continues without the table.
        Err(e) if !core.repair && e.is_damage() => Table::lost(e),
        table => table?,
    };
    runs.take_ownership();
    let blobs = BlobMap::load(core, blobs, prefetch)?;
    Ok(Loaded { table, blobs })
}

fn load_table(core: &Core, stored: Stored, runs: &mut Runs<'_>, prefetch: &mut Prefetch) -> Result<Table> {
    let kind = BlockKind::LevelTable;
    let buf = stored.read(core, prefetch, kind)?;
    let layers = stored.decode_body(&buf, &core.data, kind, |reader| decode(reader, runs))?;
    let table = Table::unchecked(layers, None);
    if let Some(problem) = table.problem() {
        return Err(stored.corrupt(&core.data, kind, problem));
    }
    stored.copies.adopt(&core.data);
    table.set_stored(stored, &core.data);
    Ok(table)
}

fn decode(reader: &mut Reader<'_>, runs: &mut Runs<'_>) -> Result<Vec<Layer>> {
    let count = reader.count(4)?;
    let mut layers = Vec::with_capacity(count);
    for id in 0..count as u64 {
        let level = reader.varint_max(MAX_LEVEL.into())? as u32;
        let count = reader.count(4)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let run = runs.meet(RunMeta::decode(reader)?, false, reader)?;
            parts.push(Part::new(RunSlice::restore(run, reader)?));
        }
        layers.push(Layer { id: LayerId(id), level, parts: parts.into() });
    }
    if !reader.is_empty() {
        return Err(reader.corrupt("trailing bytes"));
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{OwnerId, PageNo};
    use crate::space::MirroredBlock;

    #[test]
    fn golden_bytes_of_a_root_record() {
        let place = |page| BlockAddr { page: PageNo(page), pages: 1 };
        let stored = Stored { id: OwnerId(9), copies: MirroredBlock([place(200), place(264)]) };
        let hex: String = encode_root(stored, MapRoot::default(), 4).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "01040901c801880200");
        let mut empty = Vec::new();
        encode(&Table::default(), &mut empty);
        assert_eq!(empty, [0]);
    }
}
