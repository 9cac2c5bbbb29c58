//! Target: a page of a quotient filter or maplet.
//!
//! Input: one byte that chooses one of two forms. The first form is a list of entries, from which a filter and a maplet
//! are built. Each entry has eight bytes of a hash and one byte of a value. The second form is a hash and a page
//! without its block header.
//!
//! Properties: every added entry is found. A lookup works on a page of any bytes, and reads only within the page. A
//! maplet returns values in ascending order. The filter answers "no" if and only if the maplet returns no value.

use pandodb::base::key_hash;
use pandodb::filter::maplet::{MapletBuilder, values};
use pandodb::filter::quotient::{QuotientBuilder, ask};

use crate::bytes::Bytes;
use crate::repair::PAGE;
use crate::{Target, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "quotient", max_len: 8192, memory: 64 << 10, run, mutate: mutate::plain, seeds };

/// Offset of the head of a page, which is the size of the block header.
pub(super) const HEAD_AT: usize = 16;

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    if input.u8() % 2 == 0 { built(input) } else { foreign(input) }
}

/// The values that a page returns for a hash, or `None` if the page is invalid. Checks that filter and maplet lookups
/// agree.
pub(super) fn look(page: &[u8], hash: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let sound = values(page, hash, &mut |value| found.push(value));
    assert_eq!(ask(page, hash), !sound || !found.is_empty());
    sound.then_some(found)
}

fn built(mut input: Bytes<'_>) {
    let (mut filter, mut maplet, mut entries) = (QuotientBuilder::new(), MapletBuilder::new(127), Vec::new());
    while !input.is_empty() {
        let (hash, value) = (input.u64(), input.u8() % 128);
        filter.add(hash);
        maplet.add(hash, value);
        entries.push((hash, value));
    }
    let ((filter_meta, filter), (meta, maplet)) = (filter.build(), maplet.build());
    assert!(filter_meta.is_sound() && meta.is_sound());
    for (hash, value) in entries {
        let page = filter_meta.page_of(hash) as usize * PAGE;
        assert!(ask(&filter[page..][..PAGE], hash), "an added key is not found");
        let page = meta.page_of(hash) as usize * PAGE;
        let found = look(&maplet[page..][..PAGE], hash).expect("a valid page");
        assert!(found.contains(&value) && found.is_sorted_by(|a, b| a < b), "value {value} is not among {found:?}");
    }
}

fn foreign(mut input: Bytes<'_>) {
    let hash = input.u64();
    let mut page = [0; PAGE];
    let bytes = input.take(PAGE - HEAD_AT);
    page[HEAD_AT..][..bytes.len()].copy_from_slice(bytes);
    for hash in [hash, !hash, 0, u64::MAX] {
        look(&page, hash);
    }
}

/// A page with some entries, without its block header and the zeros at its end.
pub(super) fn seed_page(entries: u64, max_value: u8) -> Vec<u8> {
    let mut maplet = MapletBuilder::new(max_value);
    (0..entries).for_each(|i| maplet.add(key_hash(&i.to_le_bytes()), (i % (u64::from(max_value) + 1)) as u8));
    super::trimmed(maplet.build().1[HEAD_AT..PAGE].to_vec())
}

fn seeds() -> Vec<Vec<u8>> {
    let entry = |hash: u64| hash.to_le_bytes().into_iter().chain([hash as u8]);
    let few: Vec<u8> = [0].into_iter().chain((0..20u64).flat_map(|i| entry(key_hash(&i.to_le_bytes())))).collect();
    let ends: Vec<u8> = [0].into_iter().chain([0, u64::MAX, 1 << 63, 1].into_iter().flat_map(entry)).collect();
    let foreign =
        |entries, max| [vec![1], key_hash(&0u64.to_le_bytes()).to_le_bytes().to_vec(), seed_page(entries, max)];
    vec![few, ends, foreign(40, 0).concat(), foreign(200, 7).concat()]
}
