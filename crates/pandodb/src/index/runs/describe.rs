//! Descriptions of runs and their blocks as text, for the inspector.

use std::fmt::Write;

use crate::run::{Inner, Leaf, RunMeta, unpack};
use crate::space::BlockKind;

/// Describes a run with one line per property.
pub fn describe_run(meta: &RunMeta, out: &mut String) {
    let _ = writeln!(out, "run {}: {} entries of {} keys", meta.id, meta.entries(), meta.keys);
    let _ = writeln!(
        out,
        "  puts {} deletes {} merges {} large values {} range tombstones {}",
        meta.puts, meta.deletes, meta.merges, meta.blob_puts, meta.range_tombstones
    );
    let _ = writeln!(out, "  seqnos {}..={}", meta.min_seqno, meta.max_seqno);
    let _ = writeln!(out, "  keys {} ..= {}", meta.first_key.escape_ascii(), meta.last_key.escape_ascii());
    let _ = writeln!(out, "  bytes on disk {}, logical {}", meta.disk_bytes(), meta.logical_bytes());
    let _ = writeln!(out, "  leaf pages {}, height {}, root page {}", meta.leaf_pages, meta.height, meta.root.page);
    let _ = writeln!(out, "  filter of {} pages from position {}", meta.filter.pages, meta.filter.first);
    for extent in &meta.extents {
        let _ = writeln!(out, "  extent: {} pages from page {}", extent.pages, extent.start);
    }
}

/// Describes a block of a run. Returns false if blocks of this kind are not described.
pub fn describe_block(kind: BlockKind, bytes: &[u8], out: &mut String) -> bool {
    match kind {
        BlockKind::RunLeaf => leaf(bytes, out),
        BlockKind::RunCompressedLeaf => {
            let mut unpacked = Vec::new();
            match unpack(bytes, &mut unpacked) {
                Ok(()) => {
                    let _ = writeln!(out, "  {} bytes in memory", unpacked.len());
                    leaf(&unpacked, out);
                }
                Err(flaw) => {
                    let _ = writeln!(out, "  damaged: {flaw}");
                }
            }
        }
        BlockKind::RunInner => match Inner::check(bytes) {
            Ok(inner) => describe_inner(&inner, out),
            Err(flaw) => {
                let _ = writeln!(out, "  damaged: {flaw}");
            }
        },
        _ => return false,
    }
    true
}

fn leaf(bytes: &[u8], out: &mut String) {
    match Leaf::check(bytes) {
        Ok(leaf) => describe_leaf(&leaf, out),
        Err(flaw) => {
            let _ = writeln!(out, "  damaged: {flaw}");
        }
    }
}

fn describe_leaf(leaf: &Leaf<'_>, out: &mut String) {
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        let (seqno, kind, len) = (slot.seqno, slot.kind, slot.value().len());
        let _ = writeln!(out, "  {} @{seqno} {kind:?} {len} bytes", key.escape_ascii());
    }
}

fn describe_inner(inner: &Inner<'_>, out: &mut String) {
    let mut key = Vec::new();
    for i in 0..inner.len() {
        inner.separator(i, &mut key);
        let child = inner.child(i);
        let _ =
            writeln!(out, "  from \"{}\": {} pages at position {}", key.escape_ascii(), child.pages, child.position);
    }
}
