//! Tests of the quotient filter and of its pages.

use proptest::prelude::*;

use super::hash;
use crate::base::PAGE;
use crate::device::AlignedBuf;
use crate::filter::page::{Fingerprint, Page};
use crate::filter::quotient::{QuotientBuilder, QuotientMeta, ask, write_pages};
use crate::space::BLOCK_HEADER;

fn build(hashes: impl IntoIterator<Item = u64>) -> (QuotientMeta, AlignedBuf) {
    let mut builder = QuotientBuilder::new();
    hashes.into_iter().for_each(|hash| builder.add(hash));
    builder.build()
}

pub(super) fn page_of(meta: QuotientMeta, buf: &[u8], hash: u64) -> &[u8] {
    &buf[meta.page_of(hash) as usize * PAGE..][..PAGE]
}

fn found(meta: QuotientMeta, buf: &[u8], hash: u64) -> bool {
    ask(page_of(meta, buf, hash), hash)
}

/// The number of pages that dropped bits.
fn dropped(buf: &[u8]) -> usize {
    buf.chunks_exact(PAGE).filter(|page| page[BLOCK_HEADER + 15] > 0).count()
}

#[test]
fn at_most_one_false_positive_in_256_at_any_size() {
    for keys in [1_000u64, 1_024, 10_000, 65_536, 100_000, 262_000, 1_000_000] {
        let (meta, buf) = build((0..keys).map(hash));
        assert!((0..keys).all(|i| found(meta, &buf, hash(i))), "a false negative among {keys}");
        let tries = 2_000_000;
        let wrong = (0..tries).filter(|i| found(meta, &buf, hash(1 << 40 | i))).count();
        assert!(wrong <= tries as usize / 256, "{wrong} of {tries} for {keys} keys");
        let bits = buf.len() as f64 * 8.0 / keys as f64;
        assert!(keys < 100_000 || (10.0..12.2).contains(&bits), "{bits} bits a key for {keys} keys");
        assert!(dropped(&buf) <= 2 + buf.pages() / 200, "{} of {} pages", dropped(&buf), buf.pages());
    }
}

#[test]
fn filters_of_no_hash_and_of_few_hashes() {
    let (meta, buf) = build([]);
    assert!(meta == QuotientMeta::default() && meta.is_sound() && buf.is_empty());
    for hashes in [&[0][..], &[u64::MAX], &[0, u64::MAX], &[7; 9], &[1 << 63, 1 << 63 | 1]] {
        let (meta, buf) = build(hashes.iter().copied());
        assert!(meta.is_sound() && meta.pages == 1);
        assert!(hashes.iter().all(|&hash| found(meta, &buf, hash)));
    }
    let (meta, buf) = build([hash(1)]);
    assert_eq!((meta.entries, meta.bits), (1, 8));
    assert!((0..10_000).filter(|&i| found(meta, &buf, hash(i))).count() < 60);
}

/// All hashes are in the shares of a few pages, or even have equal fingerprints. So these pages are overfull, but no
/// hash is lost.
#[test]
fn skewed_hashes_cost_precision_and_are_never_lost() {
    for (shift, keys) in [(1, 40_000u64), (4, 40_000), (12, 40_000), (44, 40_000), (44, 1_000_000), (50, 10_000)] {
        let hashes: Vec<u64> = (0..keys).map(|i| hash(i) >> shift | 0xA5 << 56).collect();
        let (meta, buf) = build(hashes.iter().copied());
        assert!(hashes.iter().all(|&hash| found(meta, &buf, hash)), "a false negative, skewed by {shift}");
        assert!((0..buf.pages() as u32).all(|page| Page::open(&buf[page as usize * PAGE..]).is_some()));
    }
}

/// Reading a page returns the hashes of its share as they were added.
#[test]
fn pages_read_back_in_order() {
    let (meta, buf) = build((0..30_000).map(hash));
    let mut expected: Vec<u64> = (0..30_000).map(|i| hash(i) >> (64 - meta.bits)).collect();
    expected.sort_unstable();
    expected.dedup();
    let mut read = Vec::new();
    for (number, page) in (0..).zip(buf.chunks_exact(PAGE)) {
        let page = Page::open(page).expect("a page");
        let prints = page.fingerprints(meta.hashes(number).1).expect("no contradiction");
        assert_eq!(prints.len(), page.len());
        read.extend(prints.iter().map(|print| print.low >> (64 - meta.bits)));
    }
    assert_eq!(dropped(&buf), 0, "dropped bits would not read back");
    assert_eq!(read, expected);
    assert_eq!(meta.entries, expected.len() as u64);
}

#[test]
fn a_malformed_page_answers_perhaps() {
    let (meta, buf) = build((0..3_000).map(hash));
    assert!(ask(&[0; PAGE], 1) && ask(&[0xff; PAGE], 1) && ask(&[], 1));
    let page = page_of(meta, &buf, hash(0));
    for at in BLOCK_HEADER..PAGE {
        for flip in [0x01, 0x80, 0xff] {
            let mut broken = page.to_vec();
            broken[at] ^= flip;
            for i in 0..4 {
                ask(&broken, hash(i));
            }
            ask(&broken, u64::MAX);
            if at < 64 + 8 * 16
                && let Some(page) = Page::open(&broken)
            {
                page.fingerprints(u64::MAX);
            }
        }
    }
}

/// Pins the persisted form.
#[test]
fn golden_page() {
    let (meta, buf) = build([0x0123_4567_89ab_cdef, 0x0123_4567_89ab_ffff, u64::MAX, 1 << 63]);
    assert_eq!((meta.pages, meta.bits, meta.entries), (1, 10, 3));
    let used: Vec<(usize, u8)> = buf.iter().copied().enumerate().filter(|&(_, byte)| byte != 0).collect();
    assert_eq!(used, GOLDEN);
}

const GOLDEN: &[(usize, u8)] = &[
    (24, 3),
    (26, 32),
    (28, 5),
    (30, 10),
    (32, 1),
    (34, 1),
    (36, 1),
    (38, 1),
    (40, 1),
    (42, 1),
    (44, 1),
    (46, 1),
    (48, 2),
    (50, 2),
    (52, 2),
    (54, 2),
    (56, 2),
    (58, 2),
    (60, 2),
    (64, 254),
    (65, 255),
    (66, 253),
    (67, 255),
    (68, 5),
    (72, 4),
    (73, 124),
];

proptest! {
    #[test]
    fn every_added_hash_is_found(
        hashes in prop::collection::vec(prop_oneof![any::<u64>(), any::<u64>().prop_map(|h| h >> 40), Just(u64::MAX)], 0..5_000),
        room in prop_oneof![Just(0u64), 1u64..1 << 40],
    ) {
        let mut builder = QuotientBuilder::new().with_room(room);
        hashes.iter().for_each(|&hash| builder.add(hash));
        let (meta, buf) = builder.build();
        prop_assert_eq!(buf.pages(), meta.pages as usize);
        prop_assert!(meta.is_sound());
        prop_assert!(hashes.iter().all(|&hash| found(meta, &buf, hash)));
    }

    #[test]
    fn foreign_pages_end(head in prop::array::uniform16(any::<u8>()), body in prop::collection::vec(any::<u8>(), 0..300), hash: u64) {
        let mut page = [0; PAGE];
        page[BLOCK_HEADER..][..16].copy_from_slice(&head);
        // Make the head well-formed in many cases, so that more of the body is parsed.
        page[BLOCK_HEADER + 12] %= 20;
        page[BLOCK_HEADER + 13] %= 9;
        page[BLOCK_HEADER + 14] = page[BLOCK_HEADER + 14] % 56 + 1;
        page[BLOCK_HEADER + 15] = 0;
        page[BLOCK_HEADER + 9] %= 8;
        page[BLOCK_HEADER + 11] %= 8;
        page[BLOCK_HEADER..][2..8].fill(0);
        page[32..32 + body.len()].copy_from_slice(&body);
        ask(&page, hash);
        if let Some(page) = Page::open(&page) {
            page.fingerprints(u64::MAX);
            page.look(hash, |_| true);
        }
    }
}

/// Filling one page after the other gives the same filter as writing the pages of sorted hashes.
#[test]
fn a_filter_in_steps_is_the_same() {
    for keys in [0u64, 1, 5_000, 200_000] {
        // Some hashes occur twice.
        let hashes: Vec<u64> = (0..keys).chain(0..keys / 3).map(hash).collect();
        let mut builder = QuotientBuilder::new();
        hashes.iter().for_each(|&hash| builder.add(hash));
        let mut pages = builder.pages();
        let (mut page, mut filled) = ([0; PAGE], Vec::new());
        let mut taken = 0;
        while pages.left() > 0 {
            page.fill(0);
            taken += pages.fill(&mut page);
            filled.extend_from_slice(&page);
        }
        let mut sorted = hashes;
        sorted.sort_unstable();
        sorted.dedup();
        let print = |&hash: &u64| Fingerprint { low: hash, high: hash, value: 0 };
        let (whole, entries) = write_pages(&pages.meta(), 0, &sorted, print);
        assert!((taken, pages.meta().entries) == (sorted.len(), entries) && filled == whole[..], "{keys} keys");
    }
}
