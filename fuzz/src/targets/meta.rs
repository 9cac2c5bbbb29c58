//! Target: the metadata of a run, as stored in trunk nodes and footers.
//!
//! Input: the bytes of the metadata.
//!
//! Properties: if decoded metadata is encoded again, the result is not longer than the input, and decodes to equal
//! metadata. The figures in the metadata are consistent. Every error reports corruption.

use pandodb::base::codec::Reader;
use pandodb::base::{BlockAddr, Extent, OwnerId, PageNo, Seqno};
use pandodb::filter::{FilterKind, FilterMeta};
use pandodb::run::RunMeta;

use crate::{Target, assert_corruption, mutate};

/// The target.
pub const TARGET: Target =
    Target { name: "run_meta", max_len: 4096, memory: 64 << 10, run, mutate: mutate::plain, seeds };

fn run(data: &[u8]) {
    let mut reader = Reader::new(data, "fuzz");
    let meta = match RunMeta::decode(&mut reader) {
        Err(error) => return assert_corruption(&error),
        Ok(meta) => meta,
    };
    let mut out = Vec::new();
    meta.encode(&mut out);
    assert!(out.len() <= reader.position());
    let mut reader = Reader::new(&out, "fuzz");
    assert_eq!(RunMeta::decode(&mut reader).expect("what was encoded"), meta);
    assert!(reader.is_empty());
    // A maplet counts the keys of its runs, but has no entries of its own.
    assert!(meta.keys <= meta.entries() || meta.is_maplet());
    assert!(meta.first_key <= meta.last_key && meta.leaf_pages <= meta.pages());
    assert!(meta.disk_bytes() >= meta.leaf_pages && meta.logical_bytes() >= meta.blob_bytes);
}

fn encoded(meta: &RunMeta) -> Vec<u8> {
    let mut out = Vec::new();
    meta.encode(&mut out);
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let addr = |page, pages| BlockAddr { page: PageNo(page), pages };
    let small = RunMeta {
        id: OwnerId(5),
        extents: vec![Extent { start: PageNo(64), pages: 2 }],
        leaf_pages: 1,
        root: addr(64, 1),
        first_key: b"a".to_vec(),
        last_key: b"m".to_vec(),
        min_seqno: Seqno(3),
        max_seqno: Seqno(4),
        puts: 2,
        keys: 2,
        key_bytes: 2,
        value_bytes: 2,
        ..RunMeta::default()
    };
    let large = RunMeta {
        extents: vec![Extent { start: PageNo(96), pages: 32 }, Extent { start: PageNo(1 << 20), pages: 20 }],
        leaf_pages: 40,
        root: addr((1 << 20) + 10, 2),
        height: 2,
        filter: FilterMeta { pages: 3, first: 45, ..FilterMeta::default() },
        tombstones: vec![addr((1 << 20) + 17, 1)],
        range_tombstones: 3,
        merges: 900,
        blob_puts: 3,
        blob_bytes: 60_000,
        keys: 880,
        ..small.clone()
    };
    let only_ranges = RunMeta {
        id: OwnerId(6),
        extents: vec![Extent { start: PageNo(64), pages: 2 }],
        tombstones: vec![addr(64, 1)],
        range_tombstones: 1,
        min_seqno: Seqno(9),
        max_seqno: Seqno(9),
        ..RunMeta::default()
    };
    let quotient = FilterMeta { kind: FilterKind::Quotient { bits: 18 }, ..large.filter };
    let quotient = RunMeta { filter: quotient, ..large.clone() };
    let filter = FilterMeta { kind: FilterKind::Maplet { bits: 20 }, pages: 12, first: 0 };
    let maplet = RunMeta { id: OwnerId(9), extents: large.extents.clone(), filter, keys: 4_000, ..RunMeta::default() };
    [small, large, only_ranges, quotient, maplet].iter().map(encoded).collect()
}
