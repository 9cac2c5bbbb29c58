//! Target: a leaf block, without its checksum.
//!
//! Input: the block from its first byte, without the zeros at its end.
//!
//! Properties: an accepted leaf is in order and within bounds. A search for a key of the leaf, or for a key immediately
//! above or below such a key, gives the same result as a linear search. If the leaf is encoded again, the result has
//! the same contents.

use pandodb::base::{BlobRef, Entry, Kind, MAX_KEY, PageNo, Seqno};
use pandodb::run::{Leaf, LeafBuilder};

use super::{around, as_block, trimmed};
use crate::repair::PAGE;
use crate::{Target, mutate as change};
use pandodb::base::random::Rng;

/// The target.
pub const TARGET: Target = Target { name: "leaf", max_len: 3 * PAGE, memory: 4 << 20, run, mutate, seeds };

type Owned = (Vec<u8>, Seqno, Kind, Vec<u8>);

fn entries(leaf: &Leaf<'_>) -> Vec<Owned> {
    let mut key = Vec::new();
    let of = |i| {
        let slot = leaf.slot(i);
        leaf.key(i, &mut key);
        assert_eq!(key, [leaf.prefix(), leaf.rest(&slot)].concat());
        (key.clone(), slot.seqno, slot.kind, leaf.value(&slot).to_vec())
    };
    (0..leaf.len()).map(of).collect()
}

fn run(data: &[u8]) {
    let block = as_block(data);
    let Ok(leaf) = Leaf::check(&block) else { return };
    let entries = entries(&leaf);
    assert!(!entries.is_empty());
    for pair in entries.windows(2) {
        assert!(pair[0].0 < pair[1].0 || (pair[0].0 == pair[1].0 && pair[0].1 > pair[1].1), "out of order");
    }
    for (key, seqno, kind, value) in &entries {
        assert!((1..=MAX_KEY).contains(&key.len()) && *seqno <= Seqno::MAX);
        assert!(*kind != Kind::RangeDelete && (*kind != Kind::Delete || value.is_empty()));
    }
    let step = (entries.len() / 16).max(1);
    for (key, ..) in entries.iter().step_by(step).chain(entries.last()) {
        around(key).iter().for_each(|key| search(&leaf, &entries, key));
    }
    round_trip(&leaf, &entries);
}

fn search(leaf: &Leaf<'_>, entries: &[Owned], key: &[u8]) {
    let first = entries.partition_point(|entry| entry.0.as_slice() < key);
    let after = entries.partition_point(|entry| entry.0.as_slice() <= key);
    assert_eq!(leaf.search(key), first);
    for i in [0, first, leaf.len() - 1].into_iter().filter(|&i| i < leaf.len()) {
        assert_eq!(leaf.order(i, key), entries[i].0.as_slice().cmp(key));
    }
    assert_eq!(leaf.find(key), first..after);
}

/// The bits of `flags`: bit 1 means that the last key continues in the next leaf; bit 2 means that the first key began
/// in the previous leaf.
fn build(entries: &[Owned], pages_before: u32, flags: u16) -> Vec<u8> {
    let mut builder = LeafBuilder::default();
    for (key, seqno, kind, value) in entries {
        let entry = Entry { key, seqno: *seqno, kind: *kind, value };
        let fit = builder.fit(&entry);
        builder.add(&entry, &fit);
        assert!(builder.size() <= fit.size, "`fit` must bound the size of the leaf");
    }
    let mut block = vec![0xAA; builder.pages() as usize * PAGE];
    assert!(block.len() <= builder.size().next_multiple_of(PAGE));
    block[..16].fill(0);
    builder.encode(&mut block, pages_before, flags);
    block
}

fn flags(leaf: &Leaf<'_>) -> u16 {
    u16::from(leaf.continues()) << 1 | u16::from(leaf.is_continued()) << 2
}

fn round_trip(leaf: &Leaf<'_>, before: &[Owned]) {
    let block = build(before, leaf.pages_before(), flags(leaf));
    let again = Leaf::check(&block).expect("a leaf that was encoded");
    assert_eq!(entries(&again), before);
    assert_eq!((again.pages_before(), flags(&again)), (leaf.pages_before(), flags(leaf)));
}

/// Changes one entry of a valid leaf. The result may be invalid.
fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    let block = as_block(input);
    if rng.index(2) == 0 || Leaf::check(&block).is_err() {
        return change::plain(input, rng);
    }
    let leaf = Leaf::of(&block);
    let mut entries = entries(&leaf);
    let at = rng.index(entries.len());
    match rng.index(8) {
        0 => drop(entries.remove(at)),
        1 => entries.insert(at, entries[at].clone()),
        2 => {
            let other = rng.index(entries.len());
            entries.swap(at, other);
        }
        3 => change::plain(&mut entries[at].0, rng),
        4 => change::plain(&mut entries[at].3, rng),
        5 => entries[at].1 = Seqno(rng.next_u64() >> (1 + rng.index(63))),
        6 => entries[at].2 = Kind::from_u8(rng.index(5) as u8).expect("a kind"),
        _ => {
            let mut next = entries[at].clone();
            next.0.push(rng.next_u64() as u8);
            entries.insert(at + 1, next);
        }
    }
    entries.retain(|entry| entry.0.len() <= MAX_KEY);
    if !entries.is_empty() {
        *input = trimmed(build(&entries, rng.index(9) as u32, rng.index(4) as u16 * 2));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let entry = |key: &str, seqno, kind, value: &[u8]| (key.as_bytes().to_vec(), Seqno(seqno), kind, value.to_vec());
    let mut blob = Vec::new();
    BlobRef { page: PageNo(64), len: 5000, crc: 9 }.encode(&mut blob);
    let few = vec![
        entry("key000001", 9, Kind::Put, b"value"),
        entry("key000001", 7, Kind::Merge, &[1; 8]),
        entry("key000002", 300, Kind::Delete, b""),
        entry("key0000021", 12, Kind::BlobPut, &blob),
    ];
    let many: Vec<Owned> =
        (0..60).map(|i| entry(&format!("k{:03}", i * 7), 1000 - i, Kind::Put, &[i as u8; 3])).collect();
    let apart = vec![entry("a", 1, Kind::Put, b""), entry("zebra", 1 << 60, Kind::Put, &[7; 40])];
    let wide: Vec<Owned> = (0..3).map(|i| entry(&format!("{i}"), 5, Kind::Put, &[b'w'; 1900])).collect();
    [few, many, apart, wide].into_iter().map(|entries| trimmed(build(&entries, 1, 0))).collect()
}
