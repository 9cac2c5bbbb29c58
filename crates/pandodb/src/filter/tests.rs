//! Tests of the Bloom filter and of filter descriptions; the submodules test the other filters.

mod maplet;
mod quotient;

use super::*;
use crate::base::{PAGE, key_hash};

fn hash(i: u64) -> u64 {
    key_hash(&i.to_be_bytes())
}

fn ask(buf: &[u8], meta: FilterMeta, hash: u64) -> bool {
    let at = meta.page_of(hash) as usize * PAGE;
    meta.may_contain(&buf[at..at + PAGE], hash)
}

#[test]
fn added_keys_are_found_and_few_other_keys_are() {
    for keys in [1u64, 100, 3_000, 3_225, 200_000] {
        let mut builder = BloomBuilder::new();
        (0..keys).for_each(|i| builder.add(hash(i)));
        let meta = FilterMeta { pages: builder.pages(), ..FilterMeta::default() };
        let buf = builder.build();
        assert_eq!(buf.pages(), meta.pages as usize);
        assert!((0..keys).all(|i| ask(&buf, meta, hash(i))), "a false negative");
        let tries = 400_000;
        let found = (0..tries).filter(|i| ask(&buf, meta, hash(1 << 40 | i))).count();
        let rate = found as f64 / tries as f64;
        assert!(rate < 0.012, "{rate} for {keys} keys");
    }
}

#[test]
fn an_empty_filter_has_no_pages() {
    let builder = BloomBuilder::new();
    assert_eq!(builder.pages(), 0);
    assert_eq!(builder.build().len(), 0);
}

/// Pins the persisted form: the bits that a hash sets.
#[test]
fn golden_bits() {
    let mut builder = BloomBuilder::new();
    builder.add(0x0123_4567_89ab_cdef);
    builder.add(u64::MAX);
    let buf = builder.build();
    let set: Vec<usize> = (0..PAGE * 8).filter(|&bit| buf[bit / 8] & (1 << (bit % 8)) != 0).collect();
    assert_eq!(set, GOLDEN);
}

const GOLDEN: &[usize] = &[634, 676, 748, 763, 824, 868, 1007, 32282, 32345, 32369, 32412, 32516, 32530, 32730];
