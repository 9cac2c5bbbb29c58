//! Target: a merge of filters and maplets.
//!
//! Input, for each of the two merged filters: one byte for the number of bits of the fingerprints, two bytes for the
//! length of the filter's only page, and this page without the block header.
//!
//! Properties: the merge terminates. It either reports corruption or returns a result. For every hash, the result
//! returns the renumbered form of every value that an input of the merge returns.

use pandodb::base::key_hash;
use pandodb::filter::maplet::{Input, Merge};
use pandodb::filter::quotient::QuotientMeta;

use super::quotient::{HEAD_AT, look, seed_page};
use crate::bytes::Bytes;
use crate::repair::PAGE;
use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target = Target { name: "maplet", max_len: 8192, memory: 8 << 20, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let pages: Vec<(QuotientMeta, [u8; PAGE])> = (0..2)
        .map(|_| {
            let bits = input.u8() % 57;
            let len = usize::from(input.u16());
            let mut page = [0; PAGE];
            let bytes = input.take(len.min(PAGE - HEAD_AT));
            page[HEAD_AT..][..bytes.len()].copy_from_slice(bytes);
            // In the engine, the metadata is not stored in the page. This target makes metadata with the right number
            // of entries.
            let entries = u64::from(u16::from_le_bytes([page[HEAD_AT + 8], page[HEAD_AT + 9]]));
            (QuotientMeta { pages: 1, bits, entries: entries.max(1) }, page)
        })
        .collect();
    let renumber = |input: usize, value: u8| value / 2 + 128 * input as u8;
    let inputs = pages.iter().enumerate().map(|(i, (meta, page))| Input {
        meta: *meta,
        pages: [Ok(page)].into_iter(),
        values: (0..=255).map(|value| Some(renumber(i, value))).collect(),
    });
    let mut merge = match Merge::new(inputs.collect(), 0) {
        Ok(merge) => merge,
        Err(error) => return assert_corruption(&error),
    };
    let mut merged = Vec::new();
    loop {
        let mut page = [0; PAGE];
        match merge.next_page(&mut page) {
            Ok(true) => merged.push(page),
            Ok(false) => break,
            Err(error) => return assert_corruption(&error),
        }
    }
    let meta = merge.meta();
    assert_eq!(merged.len(), meta.pages as usize);
    let hashes = (0..64u64).map(|i| key_hash(&i.to_le_bytes())).chain([0, u64::MAX]);
    for hash in hashes {
        let result = look(&merged[meta.page_of(hash) as usize], hash).expect("the page of the merge is valid");
        for (i, (_, page)) in pages.iter().enumerate() {
            let values = look(page, hash).expect("the merge found it sound");
            let lost = values.iter().find(|&&value| !result.contains(&renumber(i, value)));
            assert!(lost.is_none(), "{hash:#x}: {lost:?} of input {i} is not in {result:?}");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let part = |entries: u64, max: u8| {
        let page = seed_page(entries, max);
        // The page contains the number of bits of its fingerprints.
        let bits = page[14];
        [&[bits][..], &(page.len() as u16).to_le_bytes(), &page].concat()
    };
    vec![[part(40, 7), part(60, 0)].concat(), [part(1, 0), part(300, 255)].concat()]
}
