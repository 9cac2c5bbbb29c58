//! Target: an inner block, without its checksum.
//!
//! Input: the block from its first byte, without the zeros at its end.
//!
//! Properties: an accepted block has its children and separators in order. A search finds the same child as a linear
//! search. If the block is encoded again, the result has the same contents.

use pandodb::base::MAX_KEY;
use pandodb::run::{Child, Inner, InnerBuilder};

use super::{around, as_block, trimmed};
use crate::repair::PAGE;
use crate::{Target, mutate as change};
use pandodb::base::random::Rng;

/// The target.
pub const TARGET: Target = Target { name: "inner", max_len: 3 * PAGE, memory: 4 << 20, run, mutate, seeds };

type Owned = (Child, Vec<u8>);

fn children(inner: &Inner<'_>) -> Vec<Owned> {
    let mut separator = Vec::new();
    let of = |i| {
        inner.separator(i, &mut separator);
        (inner.child(i), separator.clone())
    };
    (0..inner.len()).map(of).collect()
}

fn run(data: &[u8]) {
    let block = as_block(data);
    let Ok(inner) = Inner::check(&block) else { return };
    let children = children(&inner);
    assert!(inner.level() > 0 && !children.is_empty() && children[0].1.is_empty());
    for pair in children.windows(2) {
        assert!(pair[0].1 <= pair[1].1, "separators out of order");
        assert!(pair[0].0.position < pair[1].0.position && pair[0].0.leaf < pair[1].0.leaf, "children out of order");
    }
    let step = (children.len() / 16).max(1);
    for (child, separator) in children.iter().step_by(step).chain(children.last()) {
        assert!(child.pages > 0 && separator.len() <= MAX_KEY + 1);
        for key in around(separator) {
            let expected = children[1..].partition_point(|(_, separator)| *separator <= key);
            assert_eq!(inner.search(&key), expected);
        }
        for position in [child.leaf, child.leaf.saturating_sub(1), child.leaf.saturating_add(1)] {
            let expected = children[1..].partition_point(|(child, _)| child.leaf <= position);
            assert_eq!(inner.search_leaf(position), expected);
        }
    }
    let again = build(inner.level(), &children);
    let again = Inner::check(&again).expect("a block that was encoded");
    assert_eq!(self::children(&again), children);
    assert_eq!(again.level(), inner.level());
}

fn build(level: u32, children: &[Owned]) -> Vec<u8> {
    let mut builder = InnerBuilder::new(level);
    for (child, separator) in children {
        let size = builder.size_with(child, separator);
        builder.add(*child, separator);
        assert_eq!(builder.pages() as usize, size.div_ceil(PAGE), "size_with must return the size in advance");
    }
    let mut block = vec![0xAA; builder.pages() as usize * PAGE];
    block[..16].fill(0);
    builder.encode(&mut block);
    block
}

/// Changes one child of a valid block. The result may be invalid.
fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    let block = as_block(input);
    if rng.index(2) == 0 || Inner::check(&block).is_err() {
        return change::plain(input, rng);
    }
    let inner = Inner::of(&block);
    let mut children = children(&inner);
    let at = rng.index(children.len());
    // The builder requires positions in order, so positions that are not in order can only be made by changing bytes
    // directly.
    match rng.index(5) {
        0 if children.len() > 1 => drop(children.remove(at)),
        1 if at > 0 => change::plain(&mut children[at].1, rng),
        2 => children[at].0.leaf = rng.next_u64() >> rng.index(64),
        3 if at > 0 => {
            let mut next = children[at].clone();
            next.1.push(rng.next_u64() as u8);
            next.0.position += 1;
            next.0.leaf = next.0.leaf.saturating_add(1);
            children.insert(at + 1, next);
        }
        _ => children[at].0.pages = rng.index(1 << 16) as u32,
    }
    children.retain(|(_, separator)| separator.len() <= MAX_KEY);
    *input = trimmed(build(1 + rng.index(3) as u32, &children));
}

fn seeds() -> Vec<Vec<u8>> {
    let child = |i: u64, pages, leaf| Child { position: 100 + i * u64::from(pages), pages, leaf };
    let leaves: Vec<Owned> = (0..40).map(|i| (child(i, 1, 100 + i), format!("key{:05}", i * 31).into())).collect();
    let upper: Vec<Owned> = (0..5).map(|i| (child(i, 2, i * 50), format!("{i}x").into())).collect();
    // Equal separators mean that the messages of one key span several leaves.
    let same: Vec<Owned> = (0..4).map(|i| (child(i, 1, 100 + i), b"key\0".to_vec())).collect();
    let long = vec![(child(0, 1, 100), Vec::new()), (child(1, 1, 101), vec![b'l'; 5000])];
    vec![build(1, &leaves), build(2, &upper), build(1, &same), build(1, &long)].into_iter().map(trimmed).collect()
}
