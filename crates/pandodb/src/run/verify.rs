//! Verification of a run. The verification reads every block that the run owns, bypassing the pool, and compares each
//! block with its neighbours.
//!
//! Steps: read the pages of the filter. Read every inner block, from the root down, and check it against the bounds
//! that the separators of its ancestors set. Below each inner block of level 1, read its leaves in order. Then read the
//! range tombstones and the footer. Every reader checks the checksum, address and structure of a block. The
//! verification also checks these invariants:
//!
//! * a leaf's keys are between its separators, and follow the keys of the previous leaf;
//! * leaves follow one another without gaps, and each leaf records the length of the previous leaf;
//! * the filter answers "maybe" for every key;
//! * the description has the right first and last key and the right counts, and the footer equals the description.
//!
//! Leaves that no slice spans are skipped. A leaf that was freed during the verification may have been overwritten, so
//! damage in a leaf is reported only if the run still owns the leaf. Source: [decision
//! 0041](../../../../docs/decisions/0041-verify-pins-all.md).

use super::inner::{Child, Inner};
use super::leaf::Leaf;
use super::leaves::{Leaves, ReadAhead, Want};
use super::meta::{RunMeta, read_footer};
use super::reader::Run;
use super::tombstones;
use crate::base::range::successor;
use crate::base::{BlockAddr, Result, Seqno, key_hash, seeded};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::space::BlockKind;

/// The number of bytes of consecutive leaves that one read fetches.
const READ_AHEAD: usize = 256 << 10;

/// What is known about the previous leaf; the next leaf is compared with it.
struct Before {
    end: u64,
    pages: u32,
    key: Vec<u8>,
    seqno: Seqno,
    continues: bool,
}

struct Verifier<'a> {
    run: &'a Run,
    report: &'a mut dyn FnMut(BlockKind, Result<u64>),
    filter: Vec<AlignedBuf>,
    leaves: Option<Leaves>,
    before: Option<Before>,
    /// The number of entries and of distinct keys so far; `None` once a leaf was skipped or damaged.
    seen: Option<(u64, u64)>,
}

impl Run {
    /// Reads every block that the run owns. Reports each block's bytes on disk, or its error, and continues after an
    /// error. An unreadable block at the position of a leaf is reported as an uncompressed leaf, even if the leaf is
    /// compressed.
    pub fn verify(&self, report: &mut dyn FnMut(BlockKind, Result<u64>)) {
        let mut verifier =
            Verifier { run: self, report, filter: Vec::new(), leaves: None, before: None, seen: Some((0, 0)) };
        verifier.filter();
        if self.meta().is_maplet() {
            return;
        }
        if self.meta().leaf_pages > 0 {
            let root = Child { position: 0, pages: self.meta().root.pages, leaf: 0 };
            verifier.block(self.meta().height, root, self.meta().root, &[], None);
            verifier.totals();
        }
        verifier.tombstones();
        verifier.footer();
    }
}

impl Verifier<'_> {
    fn bytes(&mut self, kind: BlockKind, checked: Result<usize>) {
        if checked.is_err() {
            self.seen = None;
        }
        (self.report)(kind, checked.map(|bytes| bytes as u64));
    }

    fn filter(&mut self) {
        let meta = self.run.meta();
        let pages = seeded!(VerifySkipsFilters: 0, u64::from(meta.filter.pages));
        for page in 0..pages {
            let read = self.run.address(meta.filter.first + page, 1);
            match read.and_then(|addr| self.run.read_checked(addr, BlockKind::RunFilter)) {
                Ok(buf) => {
                    self.bytes(BlockKind::RunFilter, Ok(buf.len()));
                    self.filter.push(buf);
                }
                Err(error) => self.bytes(BlockKind::RunFilter, Err(error)),
            }
        }
    }

    /// Verifies the block `level` levels above the leaves, whose keys must be in `from ≤ key < to`, and all blocks
    /// below it.
    fn block(&mut self, level: u8, child: Child, addr: BlockAddr, from: &[u8], to: Option<&[u8]>) {
        if level == 0 {
            return self.leaf(child, addr, from, to);
        }
        let buf = match self.run.read_checked(addr, BlockKind::RunInner) {
            Ok(buf) => buf,
            Err(error) => return self.bytes(BlockKind::RunInner, Err(error)),
        };
        self.bytes(BlockKind::RunInner, Ok(buf.len()));
        let inner = Inner::of(&buf);
        let (mut low, mut high) = (from.to_vec(), Vec::new());
        for i in 0..inner.len() {
            let last = i + 1 == inner.len();
            if !last {
                inner.separator(i + 1, &mut high);
            }
            match self.run.child(&buf, level, |_| i) {
                Ok((child, addr)) => self.block(level - 1, child, addr, &low, if last { to } else { Some(&high) }),
                Err(error) => self.bytes(BlockKind::RunInner, Err(error)),
            }
            std::mem::swap(&mut low, &mut high);
        }
    }

    fn leaf(&mut self, child: Child, addr: BlockAddr, from: &[u8], to: Option<&[u8]>) {
        let end = child.position + u64::from(child.pages);
        let owner = |run: &Run| run.owned_leaves().into_iter().find(|r| r.start <= child.position && end <= r.end);
        let Some(owned) = owner(self.run) else {
            (self.before, self.seen) = (None, None);
            return;
        };
        let mut leaves = match self.leaves.take() {
            Some(leaves) if leaves.span() == owned => leaves,
            _ => Leaves::new(ReadAhead::Streaming(READ_AHEAD), false, owned),
        };
        let fetched = leaves.fetch(self.run, Want::Exact(child.position, child.pages));
        let checked = fetched.and_then(|()| {
            let flaw = self.compare(&leaves.leaf(), child, from, to);
            flaw.map_or(Ok(()), |flaw| Err(self.run.data().corrupt(addr, BlockKind::RunLeaf.name(), flaw)))
        });
        match checked {
            Ok(()) => {
                // A compressed leaf is always longer in memory than on disk.
                let is_longer = leaves.bytes().len() > addr.bytes();
                let kind = if is_longer { BlockKind::RunCompressedLeaf } else { BlockKind::RunLeaf };
                self.bytes(kind, Ok(addr.bytes()));
            }
            Err(error) => {
                self.before = None;
                if owner(self.run).is_some() {
                    self.bytes(BlockKind::RunLeaf, Err(error));
                }
            }
        }
        self.leaves = Some(leaves);
    }

    /// Compares a leaf with its separators, the previous leaf and the filter. Remembers this leaf as the previous leaf.
    fn compare(&mut self, leaf: &Leaf<'_>, child: Child, from: &[u8], to: Option<&[u8]>) -> Option<&'static str> {
        let mut first = Vec::new();
        leaf.key(0, &mut first);
        if child.position == 0 && first != self.run.meta().first_key {
            return Some("the first key is not the one in the description");
        }
        let before = self.before.take();
        let goes_on = leaf.is_continued();
        let expected = match &before {
            Some(before) => before.continues && before.key == first,
            // The previous leaf was not read. The separator shows whether the last key of the previous leaf continues
            // in this leaf.
            None => *from == *successor(&first),
        };
        if goes_on != expected {
            return Some("a leaf whose flag for a continued first key is wrong");
        }
        if let Some(before) = before {
            let in_order = if goes_on { leaf.slot(0).seqno < before.seqno } else { before.key < first };
            if !in_order || before.continues != goes_on {
                return Some("a key that does not follow the leaf before");
            }
            if before.end != child.position || before.pages != leaf.pages_before() {
                return Some("a leaf that does not follow the one before");
            }
        }
        let (last, keys) = match self.walk_keys(leaf) {
            Ok(walked) => walked,
            Err(flaw) => return Some(flaw),
        };
        // If the messages of the first key began in the previous leaf, the separator is the smallest key above the
        // first key. All other keys are at or above the separator.
        let below = if goes_on { *from != *successor(&first) } else { *first < *from };
        if below || to.is_some_and(|to| *last >= *to) {
            return Some("a key outside the leaf's separators");
        }
        if let Some((entries, distinct)) = &mut self.seen {
            *entries += leaf.len() as u64;
            *distinct += keys - u64::from(goes_on);
        }
        self.before = Some(Before {
            end: child.position + u64::from(child.pages),
            pages: child.pages,
            key: last,
            seqno: leaf.slot(leaf.len() - 1).seqno,
            continues: leaf.continues(),
        });
        None
    }

    /// Checks that the filter answers "maybe" for each key of a leaf. Returns the leaf's last key and its number of
    /// distinct keys.
    fn walk_keys(&self, leaf: &Leaf<'_>) -> Result<(Vec<u8>, u64), &'static str> {
        let (mut key, mut last) = (Vec::new(), Vec::new());
        let mut keys = 0;
        let meta = self.run.meta();
        for i in 0..leaf.len() {
            if !(meta.min_seqno..=meta.max_seqno).contains(&leaf.slot(i).seqno) {
                return Err("a seqno that is not among those of the run");
            }
            leaf.key(i, &mut key);
            if key != last {
                keys += 1;
                std::mem::swap(&mut key, &mut last);
                if !self.filter_knows(&last) {
                    return Err("the filter does not contain one of the leaf's keys");
                }
            }
        }
        Ok((last, keys))
    }

    /// Whether the filter answers "maybe" for a key. Returns `true` if not all pages of the filter could be read.
    fn filter_knows(&self, key: &[u8]) -> bool {
        let meta = &self.run.meta().filter;
        if meta.pages == 0 || self.filter.len() != meta.pages as usize {
            return true;
        }
        let hash = key_hash(key);
        meta.may_contain(&self.filter[meta.page_of(hash) as usize], hash)
    }

    /// Compares the description with the counts, if all leaves were read.
    fn totals(&mut self) {
        let meta = self.run.meta();
        let Some(seen) = self.seen else { return };
        let ends_well = self.before.take().is_some_and(|last| last.end == meta.leaf_pages && last.key == meta.last_key);
        if !ends_well || seen != (meta.entries(), meta.keys) {
            let error = self.run.corrupt("the counts of the description differ from those of the leaves");
            self.bytes(BlockKind::RunFooter, Err(error));
        }
    }

    fn tombstones(&mut self) {
        let (data, meta) = (self.run.data(), self.run.meta());
        for &addr in &meta.tombstones {
            let alone = RunMeta { id: meta.id, tombstones: vec![addr], ..RunMeta::default() };
            self.bytes(BlockKind::RunTombstones, tombstones::read(data, &alone).map(|_| addr.bytes()));
        }
    }

    fn footer(&mut self) {
        let meta = self.run.meta();
        let (position, pages) = meta.footer();
        let checked = self.run.address(position, u32::try_from(pages).unwrap_or(u32::MAX)).and_then(|addr| {
            let footer = read_footer(self.run.data(), meta.id, addr)?;
            let footer = match meta.stamp().filter(|_| footer.is_unassigned()) {
                Some(at) if footer.keys == footer.entries() && footer.range_tombstones == 0 => footer.stamped(at),
                _ => footer,
            };
            if footer != *meta {
                return Err(self.run.corrupt("the footer differs from the description"));
            }
            Ok(addr.bytes())
        });
        self.bytes(BlockKind::RunFooter, checked);
    }
}
