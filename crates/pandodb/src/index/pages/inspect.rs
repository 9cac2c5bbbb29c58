//! Descriptions of the pages of a tree as text, for the inspector.

use std::fmt::Write;

use super::inner::Inner;
use super::reference::PageRef;
use super::source::unpack_leaf;
use crate::index::runs;
use crate::space::BlockKind;

/// Describes a page of a tree. Returns false if blocks of this kind are not described here.
pub fn describe_block(kind: BlockKind, bytes: &[u8], out: &mut String) -> bool {
    match kind {
        BlockKind::TreeLeaf => runs::describe_block(BlockKind::RunLeaf, bytes, out),
        BlockKind::TreeCompressedLeaf => match unpack_leaf(bytes) {
            Ok(leaf) => {
                let _ = writeln!(out, "  {} bytes in memory", leaf.len());
                runs::describe_block(BlockKind::RunLeaf, &leaf, out)
            }
            Err(flaw) => {
                let _ = writeln!(out, "  damaged: {flaw}");
                true
            }
        },
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
    let _ = writeln!(out, "  level {}, {} children", inner.level(), inner.len());
    if let Some(buffer) = inner.buffer() {
        let _ = writeln!(out, "  buffer, level {}: {}", buffer.level, describe(&buffer.page));
    }
    for child in inner.children(&[]) {
        let (key, pending) = (child.from.escape_ascii(), child.pending);
        let waiting = if pending > 0 { format!(", {pending} bytes in the buffer") } else { String::new() };
        let _ = writeln!(out, "  from \"{key}\": {}{waiting}", describe(&child.page));
    }
}

/// Describes a reference on one line.
pub fn describe(page: &PageRef) -> String {
    let totals = page.totals;
    let second = page.second.map_or(String::new(), |second| format!(" and {second}"));
    let unpacked = match page.is_compressed() {
        true => format!(", {} in memory", page.memory_pages),
        false => String::new(),
    };
    let continued = if page.is_continued { ", continues the key before" } else { "" };
    format!(
        "{} pages at {}{second}{unpacked}: {} entries, {} deletes, {} older, {} bytes, newest seqno {}{continued}",
        page.addr.pages, page.addr.page, totals.entries, totals.deletes, totals.older, totals.bytes, totals.newest
    )
}
