//! Descriptions of the pages of a tree as text, for the inspector.

use std::fmt::Write;

use super::inner::Inner;
use super::reference::PageRef;
use crate::index::runs;
use crate::space::BlockKind;

/// Describes a page of a tree. Returns false if blocks of this kind are not described here.
pub fn describe_block(kind: BlockKind, bytes: &[u8], out: &mut String) -> bool {
    match kind {
        BlockKind::TreeLeaf => runs::describe_block(BlockKind::RunLeaf, bytes, out),
        BlockKind::TreeInner => {
            match Inner::check(bytes) {
                Ok(inner) => describe_inner(&inner, out),
                Err(flaw) => {
                    let _ = writeln!(out, "  damaged: {flaw}");
                }
            }
            true
        }
        _ => false,
    }
}

fn describe_inner(inner: &Inner<'_>, out: &mut String) {
    let mut key = Vec::new();
    let _ = writeln!(out, "  level {}, {} children", inner.level(), inner.len());
    for i in 0..inner.len() {
        inner.separator(i, &mut key);
        let _ = writeln!(out, "  from \"{}\": {}", key.escape_ascii(), describe(&inner.page(i)));
    }
}

/// Describes a reference on one line.
pub fn describe(page: &PageRef) -> String {
    let totals = page.totals;
    let second = page.second.map_or(String::new(), |second| format!(" and {second}"));
    let continued = if page.is_continued { ", continues the key before" } else { "" };
    format!(
        "{} pages at {}{second}: {} entries, {} deletes, {} older, {} bytes, newest seqno {}{continued}",
        page.addr.pages, page.addr.page, totals.entries, totals.deletes, totals.older, totals.bytes, totals.newest
    )
}
