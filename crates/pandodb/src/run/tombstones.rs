//! Tombstone blocks hold the range deletes of a run. Range deletes are stored apart from the run's entries.
//!
//! ```text
//!  0  block header (16)     16  count u32     20  length of the items in bytes u32
//! 24  items: seqno varint │ from bytes │ to bytes      (byte strings with their length before them)
//! ```
//!
//! Steps: [`encode`] divides the tombstones into blocks, [`fill`] writes each block, and `read` reads all blocks. A run
//! has few range tombstones, if any, so all tombstones are read when the run is opened and are kept in memory as
//! fragments.
//!
//! Invariants: a range is not empty; a bound has at most 65,535 bytes, except that the bound just above the longest key
//! has 65,536 bytes; an empty `to` means that there is no upper bound. Source: 002 §3.3.

use super::meta::RunMeta;
use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{KeyRange, MAX_KEY, PAGE, RangeTombstone, Result, Seqno};
use crate::space::{BlockKind, DataFile, MAX_BLOCK_PAGES};

/// The offset of the items.
const ITEMS: usize = 24;
/// A block gets no further items once its items have at least this many bytes.
const TARGET: usize = 256 << 10;
const _: () = assert!(TARGET + 2 * (MAX_KEY + 1) + 16 + ITEMS <= MAX_BLOCK_PAGES as usize * PAGE, "the last item fits");

/// Divides range tombstones into blocks. Returns for each block the number and the bytes of its items.
pub fn encode(tombstones: &[RangeTombstone]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks: Vec<(u32, Vec<u8>)> = Vec::new();
    for tombstone in tombstones {
        if blocks.last().is_none_or(|(_, items)| items.len() >= TARGET) {
            blocks.push((0, Vec::new()));
        }
        let (count, items) = blocks.last_mut().expect("just pushed");
        *count += 1;
        put_varint(items, tombstone.seqno.0);
        put_bytes(items, &tombstone.range.from);
        put_bytes(items, &tombstone.range.to);
    }
    let counted = blocks.iter().map(|(count, _)| u64::from(*count)).sum::<u64>();
    assert_eq!(counted, tombstones.len() as u64, "each range tombstone is in a block");
    blocks
}

/// The number of pages of a block with these items.
pub fn pages(items: &[u8]) -> u32 {
    u32::try_from((ITEMS + items.len()).div_ceil(PAGE)).expect("a block is closed after a few hundred KiB")
}

/// Writes the body of a block. Does not write the block's header.
pub fn fill(block: &mut [u8], count: u32, items: &[u8]) {
    assert!(ITEMS + items.len() <= block.len() && count > 0, "the block has {} bytes", block.len());
    let len = u32::try_from(items.len()).expect("a block is closed after a few hundred KiB");
    block[16..20].copy_from_slice(&count.to_le_bytes());
    block[20..24].copy_from_slice(&len.to_le_bytes());
    block[ITEMS..ITEMS + items.len()].copy_from_slice(items);
    block[ITEMS + items.len()..].fill(0);
}

/// Reads all range tombstones of a run.
pub(super) fn read(data: &DataFile, meta: &RunMeta) -> Result<Vec<RangeTombstone>> {
    let mut ranges = Vec::new();
    for &addr in &meta.tombstones {
        let block = data.read_block(addr, meta.id, BlockKind::RunTombstones)?;
        decode(&block, &mut ranges)
            .map_err(|error| data.corrupt(addr, BlockKind::RunTombstones.name(), error.to_string()))?;
    }
    Ok(ranges)
}

/// Decodes a block whose header was checked and appends its range tombstones to `out`.
pub fn decode(block: &[u8], out: &mut Vec<RangeTombstone>) -> Result<()> {
    let mut reader = Reader::new(block, "tombstone block");
    reader.take(16)?;
    let (count, len) = (reader.u32()?, reader.u32()?);
    let mut items = Reader::new(reader.take(len as usize)?, "tombstone block");
    for _ in 0..count {
        let seqno = Seqno(items.varint_max(Seqno::MAX.0)?);
        let range = KeyRange::new(items.bytes()?, items.bytes()?);
        if range.from.len().max(range.to.len()) > MAX_KEY + 1 || range.is_empty() {
            return Err(items.corrupt("a range out of bounds"));
        }
        out.push(RangeTombstone { range, seqno });
    }
    if items.is_empty() { Ok(()) } else { Err(items.corrupt("bytes after the last range")) }
}
