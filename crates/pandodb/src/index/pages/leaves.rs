//! [`LeafSink`]: divides the folded messages of a job into leaves. A *unit* is a leaf of the old tree, with the leaves
//! that continue the messages of its last key ([`Unit`](super::Unit)).
//!
//! ```text
//!   unit of the old tree      entries ──▶ [ full ][ open … ]      the last two leaves are in memory
//!   end of the unit           one leaf, or several; the last two have about the same size
//! ```
//!
//! Rules:
//! * A leaf has at most `leaf_bytes`, unless a single key needs more.
//! * All messages of a key are in one leaf, which grows as needed up to 4 MiB. Further messages continue in the next
//!   leaf.
//! * The last two leaves of a unit have about the same size, so that random inserts find room in both. All other leaves
//!   of a unit are full, so that a load in key order fills its leaves.
//!
//! The source divides a leaf at the median of its entries and of the messages that arrive (000 §5.2.5). The last rule
//! does the same for a leaf that becomes two.

use super::inner::Child;
use super::reference::PageRef;
use super::writer::TreeWriter;
use crate::base::{Entry, Result};
use crate::index::folding::Sink;
use crate::run::LeafBuilder;
use crate::run::inner::separator;
use crate::run::slots::{CONTINUED, CONTINUES};

/// If the messages of one key exceed this many bytes, they are spread over several leaves.
const MAX_GROUP: usize = 4 << 20;

/// The sizes of leaves.
#[derive(Clone, Copy, Debug)]
pub struct LeafLimits {
    /// The bytes of a leaf, unless one key needs more.
    pub bytes: usize,
    /// The bytes of the messages of one key, above which they continue in the next leaf.
    pub group: usize,
}

impl LeafLimits {
    /// Limits for leaves of `bytes`.
    pub fn new(bytes: usize) -> LeafLimits {
        LeafLimits { bytes, group: MAX_GROUP.max(bytes) }
    }
}

/// A leaf that is not written yet.
#[derive(Default)]
struct Pending {
    builder: LeafBuilder,
    from: Vec<u8>,
    /// [`CONTINUED`] or 0.
    flags: u16,
    /// The number of warm entries.
    warm: usize,
}

impl Pending {
    fn push(&mut self, entry: &Entry<'_>, is_warm: bool) {
        self.builder.push(entry);
        self.warm += usize::from(is_warm);
    }

    /// Whether lookups probably request the leaf soon.
    fn is_warm(&self) -> bool {
        2 * self.warm > self.builder.len()
    }
}

/// Builds leaves, and owns the writer of the job.
pub struct LeafSink {
    /// The writer of all pages of the job.
    pub writer: TreeWriter,
    limits: LeafLimits,
    full: Option<Pending>,
    open: Pending,
    last_key: Vec<u8>,
    is_warm: bool,
    /// Whether no message was added since a leaf was adopted.
    is_behind_adopted: bool,
    /// The leaves of the current unit that are written.
    out: Vec<Child>,
}

impl LeafSink {
    /// A sink without a leaf.
    pub fn new(writer: TreeWriter, limits: LeafLimits) -> LeafSink {
        assert!(limits.bytes <= limits.group, "a leaf of one key may be as long as a leaf of several");
        LeafSink {
            writer,
            limits,
            full: None,
            open: Pending::default(),
            last_key: Vec::new(),
            is_warm: false,
            is_behind_adopted: false,
            out: Vec::new(),
        }
    }

    /// Whether nothing is pending from an earlier unit.
    pub fn is_empty(&self) -> bool {
        self.open.builder.is_empty() && self.full.is_none() && self.out.is_empty()
    }

    /// Starts a unit with the lower bound `from`. If a small leaf of the last unit is pending, the entries of both
    /// units are joined.
    pub fn begin_unit(&mut self, from: &[u8]) {
        if self.is_empty() {
            self.open.from.clear();
            self.open.from.extend_from_slice(from);
            self.last_key.clear();
            self.is_behind_adopted = false;
        }
    }

    /// Takes the leaves of the current unit that are written.
    pub fn take_written(&mut self) -> Vec<Child> {
        std::mem::take(&mut self.out)
    }

    /// Whether the unit has left only a small leaf, which should be joined with the next unit.
    pub fn is_small(&self) -> bool {
        self.full.is_none()
            && self.out.is_empty()
            && !self.open.builder.is_empty()
            && self.open.builder.size() < self.limits.bytes / 4
    }

    /// Whether a leaf with `bytes` of entries may be adopted now: neither this leaf nor the one before it would be
    /// small.
    pub fn may_adopt(&self, bytes: usize) -> bool {
        let open = self.open.builder.size();
        let is_small = self.full.is_none() && !self.open.builder.is_empty() && open < self.limits.bytes / 4;
        !is_small && bytes >= self.limits.bytes / 2
    }

    /// Adds a leaf of another tree to the unit, without writing it anew. `first` and `last` are the keys of its first
    /// and of its last message. They are above all keys that were added, and below all keys that follow.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn adopt(&mut self, page: PageRef, first: &[u8], last: &[u8]) -> Result<()> {
        debug_assert!(
            !page.is_continued && self.last_key.as_slice() < first && first <= last,
            "leaves are in key order"
        );
        let from = match self.last_key.is_empty() {
            true => std::mem::take(&mut self.open.from),
            false => separator(&self.last_key, first).to_vec(),
        };
        self.write_open()?;
        self.out.push(Child::new(from, page));
        self.last_key.clear();
        self.last_key.extend_from_slice(last);
        self.is_behind_adopted = true;
        Ok(())
    }

    /// Ends the unit, and returns its leaves.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    pub fn end_unit(&mut self) -> Result<Vec<Child>> {
        self.write_open()?;
        Ok(std::mem::take(&mut self.out))
    }

    /// Writes the leaves that are in memory.
    fn write_open(&mut self) -> Result<()> {
        if self.open.builder.is_empty() {
            debug_assert!(self.full.is_none(), "a leaf follows a full one only if it has an entry");
            return Ok(());
        }
        if let Some(full) = self.full.take() {
            let is_one_key = full.flags != 0 || self.open.flags != 0;
            if is_one_key || self.open.builder.size() >= self.limits.bytes / 2 {
                self.emit(full, 0)?;
            } else {
                self.balance(full)?;
            }
        }
        let open = std::mem::take(&mut self.open);
        self.emit(open, 0)
    }

    /// Writes the last two leaves, whose entries are divided anew so that both have about the same size. They stay as
    /// they are if a leaf would become too large, because its keys have a shorter common prefix.
    fn balance(&mut self, full: Pending) -> Result<()> {
        let open = std::mem::take(&mut self.open);
        let (first, second) = match halves(&full, &open, self.limits.bytes) {
            Some(halves) => halves,
            None => (full, open),
        };
        self.emit(first, 0)?;
        self.open = second;
        Ok(())
    }

    /// Writes a leaf. `more` is [`CONTINUES`] or 0.
    fn emit(&mut self, leaf: Pending, more: u16) -> Result<()> {
        let page = self.writer.leaf(&leaf.builder, leaf.flags | more, leaf.is_warm())?;
        debug_assert!(self.out.last().is_none_or(|last| last.from <= leaf.from), "leaves are written in key order");
        self.out.push(Child::new(leaf.from, page));
        Ok(())
    }

    /// Starts the next leaf with `entry`, which has the same key as the last entry.
    fn continue_key(&mut self, entry: &Entry<'_>) -> Result<()> {
        if let Some(full) = self.full.take() {
            self.emit(full, 0)?;
        }
        let open = std::mem::take(&mut self.open);
        self.emit(open, CONTINUES)?;
        self.open.from.extend_from_slice(entry.key);
        self.open.from.push(0);
        self.open.flags = CONTINUED;
        Ok(())
    }
}

/// Two leaves of about the same size with the entries of two leaves; `None` if one would exceed `most` bytes, or would
/// be empty.
fn halves(full: &Pending, open: &Pending, most: usize) -> Option<(Pending, Pending)> {
    let half = (full.builder.size() + open.builder.size()) / 2;
    let is_warm = full.warm + open.warm > 0;
    let mut first = Pending { from: full.from.clone(), ..Pending::default() };
    let mut second = Pending::default();
    let mut last: &[u8] = &[];
    for entry in full.builder.entries().chain(open.builder.entries()) {
        if second.builder.is_empty() && (first.builder.size() < half || last == entry.key) {
            first.push(&entry, is_warm);
        } else {
            if second.builder.is_empty() {
                second.from.extend_from_slice(separator(last, entry.key));
            }
            second.push(&entry, is_warm);
        }
        if first.builder.size().max(second.builder.size()) > most {
            return None;
        }
        last = entry.key;
    }
    (!second.builder.is_empty()).then_some((first, second))
}

impl Sink for LeafSink {
    fn push(&mut self, entry: Entry<'_>) -> Result<()> {
        if std::mem::take(&mut self.is_behind_adopted) {
            self.open.from.extend_from_slice(separator(&self.last_key, entry.key));
        }
        let fit = self.open.builder.fit(&entry);
        let is_same = self.last_key == entry.key;
        if !self.open.builder.is_empty() {
            if is_same && fit.size > self.limits.group {
                self.continue_key(&entry)?;
            } else if !is_same && fit.size > self.limits.bytes {
                let from = separator(&self.last_key, entry.key).to_vec();
                let full = std::mem::replace(&mut self.open, Pending { from, ..Pending::default() });
                if let Some(full) = self.full.replace(full) {
                    self.emit(full, 0)?;
                }
            }
        }
        self.open.push(&entry, self.is_warm);
        if !is_same {
            self.last_key.clear();
            self.last_key.extend_from_slice(entry.key);
        }
        Ok(())
    }

    fn set_warm(&mut self, is_warm: bool) {
        self.is_warm = is_warm;
    }
}
