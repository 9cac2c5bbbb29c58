//! Tests of runs that a sorted load has built: their entries get their seqno when they are read.

use super::*;
use crate::index::{SalvageSource, SalvageStep};

/// Rows in key order: puts, and references to large values. Some values are long enough for leaves of several pages.
fn rows(count: u64) -> Vec<Message> {
    let row = |i: u64| {
        let (kind, value) = if i % 50 == 7 {
            let mut value = Vec::new();
            BlobRef { page: PageNo(i), len: 9_000, crc: 5 }.encode(&mut value);
            (Kind::BlobPut, value)
        } else {
            (Kind::Put, vec![i as u8; if i % 300 == 1 { 6_000 } else { i as usize % 90 }])
        };
        Message { key: format!("row{i:06}").into_bytes(), seqno: Seqno::UNASSIGNED, kind, value }
    };
    (0..count).map(row).collect()
}

fn build(bench: &Bench, id: u64, rows: &[Message], compression: Compression) -> RunMeta {
    let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(id), 1 << 20).with_compression(compression);
    rows.iter().for_each(|row| builder.push(row.entry()).unwrap());
    builder.finish().unwrap().expect("rows were pushed")
}

fn scan(slice: &Arc<RunSlice>, reverse: bool) -> Vec<Message> {
    let mut cursor = RunCursor::new(slice.clone(), &KeyRange::all(), reverse, ReadAhead::default()).unwrap();
    let mut found = Vec::new();
    while let Some(entry) = cursor.entry() {
        found.push(owned(entry));
        cursor.advance().unwrap();
    }
    found
}
