//! Target: a compressed leaf block, without its checksum.
//!
//! Input: the block from its first byte, without the zeros at its end.
//!
//! Properties: to unpack any bytes either fails or returns whole pages. The number of these pages is larger than the
//! number of pages of the block, and at most 16. If these pages are a valid leaf, the leaf can be compressed again, and
//! the result unpacks to the same leaf.

use pandodb::base::{Entry, Kind, Seqno};
use pandodb::run::{Compressor, Leaf, LeafBuilder, unpack};

use super::{as_block, trimmed};
use crate::repair::PAGE;
use crate::{Target, mutate as change};
use pandodb::base::random::Rng;

/// The target.
pub const TARGET: Target =
    Target { name: "compressed", max_len: 3 * PAGE, memory: 4 << 20, run, mutate: change::plain, seeds };

/// The maximum number of pages that a compressed leaf has in memory.
const MOST: usize = 16;

fn run(data: &[u8]) {
    let block = as_block(data);
    let mut unpacked = Vec::new();
    if unpack(&block, &mut unpacked).is_err() {
        assert!(unpacked.is_empty(), "a failed unpack left bytes in the buffer");
        return;
    }
    assert!(unpacked.len().is_multiple_of(PAGE) && unpacked.len() <= MOST * PAGE && unpacked.len() > block.len());
    assert_eq!(unpacked[8..12], block[8..12], "the number of pages on disk changed");
    let Ok(leaf) = Leaf::check(&unpacked) else { return };
    let mut builder = LeafBuilder::default();
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        builder.push(&Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
    }
    if builder.pages() as usize > MOST {
        return;
    }
    let mut plain = vec![0; builder.pages() as usize * PAGE];
    builder.encode(&mut plain, leaf.pages_before(), 0);
    let Some(again) = compress(&builder, leaf.pages_before()) else { return };
    unpack(&again, &mut unpacked).expect("a block that was just compressed");
    assert!(unpacked[16..] == plain[16..], "unpacking does not undo compressing");
}

/// The compressed block of a leaf, or `None` if compression does not save enough space.
fn compress(leaf: &LeafBuilder, pages_before: u32) -> Option<Vec<u8>> {
    let mut compressor = Compressor::default();
    let pages = compressor.compress(leaf, pages_before, 0)?;
    let mut block = vec![0xAA; pages as usize * PAGE];
    block[..16].fill(0);
    block[4] = 9;
    block[8..12].copy_from_slice(&pages.to_le_bytes());
    compressor.fill(&mut block);
    Some(block)
}

fn seeds() -> Vec<Vec<u8>> {
    let mut rng = Rng(5);
    let mut leaf = |count: u64, zeros: usize, len: usize| {
        let mut builder = LeafBuilder::default();
        for i in 0..count {
            let mut value = vec![0; len];
            value[zeros..].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
            let key = format!("key{i:06}");
            builder.push(&Entry { key: key.as_bytes(), seqno: Seqno(i + 1), kind: Kind::Put, value: &value });
        }
        trimmed(compress(&builder, 1).expect("compression saves enough"))
    };
    vec![leaf(60, 90, 100), leaf(300, 8, 8), leaf(2, 4_000, 4_096), leaf(3, 20_000, 20_010)]
}
