//! Target: a block of range tombstones, without its checksum, and the fragments into which the tombstones are cut.
//!
//! Input: the block from its first byte, without the zeros at its end.
//!
//! Properties: if decoded tombstones are encoded again, the result decodes to equal tombstones. The fragments cover the
//! same keys at the same seqnos as the tombstones. Every error reports corruption.

use std::sync::Arc;

use pandodb::KeyRange;
use pandodb::base::{FragmentSet, FragmentSweep, Fragments, RangeTombstone, Seqno};
use pandodb::run::tombstones::{decode, encode, fill, pages};

use super::{around, as_block, trimmed};
use crate::repair::PAGE;
use crate::{Target, assert_corruption, mutate as change};
use pandodb::base::random::Rng;

/// The target.
pub const TARGET: Target = Target { name: "tombstones", max_len: 2 * PAGE, memory: 4 << 20, run, mutate, seeds };

fn run(data: &[u8]) {
    let mut found = Vec::new();
    if let Err(error) = decode(&as_block(data), &mut found) {
        return assert_corruption(&error);
    }
    let mut again = Vec::new();
    for block in blocks(&found) {
        decode(&block, &mut again).expect("what was encoded");
    }
    assert_eq!(again, found);
    // The number of tombstones is limited, because the comparison takes quadratic time.
    found.truncate(64);
    compare(&found);
}

fn blocks(tombstones: &[RangeTombstone]) -> Vec<Vec<u8>> {
    let filled = |(count, items): (u32, Vec<u8>)| {
        let mut block = vec![0; pages(&items) as usize * PAGE];
        fill(&mut block, count, &items);
        block
    };
    encode(tombstones).into_iter().map(filled).collect()
}

/// The newest tombstone that covers a key at a read point, found by checking each tombstone.
fn newest(tombstones: &[RangeTombstone], key: &[u8], at: Seqno) -> Seqno {
    let covering = tombstones.iter().filter(|t| t.range.contains(key) && t.seqno <= at);
    covering.map(|t| t.seqno).max().unwrap_or_default()
}

fn compare(tombstones: &[RangeTombstone]) {
    let fragments = Arc::new(Fragments::build(tombstones));
    let mut set = FragmentSet::new();
    tombstones.iter().for_each(|tombstone| set.insert(tombstone));
    let mut keys: Vec<Vec<u8>> =
        tombstones.iter().take(12).flat_map(|t| around(&t.range.from).into_iter().chain(around(&t.range.to))).collect();
    keys.retain(|key| !key.is_empty());
    keys.sort_unstable();
    let mut sweep = FragmentSweep::new(fragments.clone());
    let ats = [Seqno::MAX, tombstones.first().map_or(Seqno(0), |t| t.seqno), Seqno(5)];
    for key in &keys {
        for at in ats {
            let expected = newest(tombstones, key, at);
            assert_eq!(fragments.covering(key, at), expected, "fragments");
            assert_eq!(set.covering(key, at), expected, "a set of fragments");
            assert_eq!(sweep.covering(key, at), expected, "a sweep over fragments");
        }
    }
    if let [first, .., last] = tombstones {
        let range = KeyRange::new(first.range.from.clone(), last.range.to.clone());
        let clipped = fragments.clipped(&range);
        for key in keys.iter().filter(|key| range.contains(key)) {
            assert_eq!(newest(&clipped, key, Seqno::MAX), newest(tombstones, key, Seqno::MAX), "clipped");
        }
    }
    let flat = fragments.newest();
    assert!(flat.windows(2).all(|pair| pair[0].range.to <= pair[1].range.from && !pair[0].range.to.is_empty()));
    for key in &keys {
        assert_eq!(newest(&flat, key, Seqno::MAX), newest(tombstones, key, Seqno::MAX), "the newest tombstones");
    }
}

fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    let mut found = Vec::new();
    if rng.index(2) == 0 || decode(&as_block(input), &mut found).is_err() || found.is_empty() {
        return change::plain(input, rng);
    }
    let at = rng.index(found.len());
    match rng.index(5) {
        0 => change::plain(&mut found[at].range.from, rng),
        1 => change::plain(&mut found[at].range.to, rng),
        2 => found[at].seqno = Seqno(rng.next_u64() >> (1 + rng.index(63))),
        3 => found[at].range.to = found[rng.index(at + 1)].range.to.clone(),
        _ => found.push(found[at].clone()),
    }
    if let Some(block) = blocks(&found).into_iter().next() {
        *input = trimmed(block);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let range = |from: &str, to: &str, seqno| RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(seqno) };
    let few = vec![range("a", "f", 9), range("c", "z", 4), range("", "b", 12), range("x", "", 300)];
    let steps: Vec<_> = (0..30).map(|i| range(&format!("k{i:02}"), &format!("k{:02}", i + 5), 100 - i)).collect();
    let same = vec![range("m", "n", 1), range("m", "n", 2), range("m", "n", 2), range("m", "m\0", 3)];
    [few, steps, same].iter().flat_map(|tombstones| blocks(tombstones)).map(trimmed).collect()
}
