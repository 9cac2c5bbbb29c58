//! Target: the filter of a run.
//!
//! Input: one byte that chooses one of two forms. The first form is a list of hashes of keys, eight bytes each, from
//! which a filter is built. The second form is a number of pages, a hash, and the bytes that a filter page has on disk.
//!
//! Properties: every added key is found. A lookup works on a page of any bytes, and reads only within the page. If a
//! lookup answers "perhaps", it still answers "perhaps" after more bits were set.

use pandodb::filter::bloom::may_contain;
use pandodb::filter::{BloomBuilder, FilterMeta};

use crate::bytes::Bytes;
use crate::repair::PAGE;
use crate::{Target, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "filter", max_len: 8192, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    if input.u8() % 2 == 0 { built(input) } else { foreign(input) }
}

fn built(mut input: Bytes<'_>) {
    let mut builder = BloomBuilder::new();
    let mut hashes = Vec::new();
    while !input.is_empty() {
        hashes.push(input.u64());
        builder.add(hashes[hashes.len() - 1]);
    }
    let pages = builder.pages();
    let filter = builder.build();
    assert_eq!(filter.len(), pages as usize * PAGE);
    let meta = FilterMeta { pages, ..FilterMeta::default() };
    for &hash in &hashes {
        let page = meta.page_of(hash) as usize;
        assert!(may_contain(&filter[page * PAGE..][..PAGE], pages, hash), "an added key is not found");
    }
}

fn foreign(mut input: Bytes<'_>) {
    let pages = (input.number() as u32).max(1);
    let hash = input.number();
    assert!(FilterMeta { pages, ..FilterMeta::default() }.page_of(hash) < pages);
    let mut page = [0; PAGE];
    let bytes = input.take(PAGE);
    page[..bytes.len()].copy_from_slice(bytes);
    let said = may_contain(&page, pages, hash);
    page.iter_mut().zip(input.0).for_each(|(byte, more)| *byte |= more);
    assert!(!said || may_contain(&page, pages, hash), "setting more bits changed the answer to no");
    assert!(may_contain(&[0xff; PAGE], pages, hash) && !may_contain(&[0; PAGE], pages, hash));
}

fn seeds() -> Vec<Vec<u8>> {
    let hashes = |n: u64| (0..n).flat_map(|i| pandodb::base::key_hash(&i.to_le_bytes()).to_le_bytes());
    let few: Vec<u8> = [0].into_iter().chain(hashes(20)).collect();
    let ends: Vec<u8> = [0].into_iter().chain([0, u64::MAX, 1 << 63].into_iter().flat_map(u64::to_le_bytes)).collect();
    let foreign: Vec<u8> = [1, 3, 250].into_iter().chain([0xA5; 300]).collect();
    vec![few, ends, foreign]
}
