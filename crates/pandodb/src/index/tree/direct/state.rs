//! [`HotTree`]: a tree to which commits write directly. This module has its parts, and brings ranges into memory.

use std::sync::Arc;

use super::horizons::Horizons;
use super::shared::Shared;
use super::view::HotView;
use crate::base::sync::{AtomicU64, AtomicUsize, EXPLORED, Mutex};
use crate::base::{EntryBlock, Error, KeyRange, Result, Seqno};
use crate::index::hot::{Contents, HotRange, Pin};
use crate::index::pages::{Child, Root, Unit};
use crate::index::tree::Tree;
use crate::index::tree::ahead::JobAhead;
use crate::index::tree::reading::Reading;
use crate::index::tree::view::TreeView;
use crate::index::tree::world::World;

/// With this number of memtables of bytes in memory, cold ranges are written, unless half of the pool is less.
const MEMTABLES: u64 = if EXPLORED { 1 } else { 8 };

/// A tree to which commits write directly.
pub struct HotTree {
    pub(super) shared: Arc<Shared>,
    pub(super) horizons: Horizons,
    /// Held by the job that writes ranges to disk. It is the first lock that a thread takes.
    pub(super) writing: Mutex<()>,
    /// The key at which the next search for cold ranges starts.
    pub(super) hand: Mutex<Vec<u8>>,
    /// Values of more than this number of bytes are moved out of the tree by the next job.
    pub(super) inline_bytes: AtomicUsize,
    /// The store has found space on the disk for this number of bytes to write.
    pub(super) checked: AtomicU64,
    /// Held while this number is compared with the bytes to write, and changed.
    pub(super) checking: Mutex<()>,
    /// The bytes of pages that operations may take which are prepared and not applied.
    pub(super) prepared_bytes: AtomicU64,
    /// The root that was opened has every message up to this seqno.
    pub(super) opened_through: Seqno,
    /// The state that the last checkpoint has described, or that was opened. Its pages are kept, because checkpoints
    /// describe it again while the index is stuck.
    pub(super) described: Mutex<World>,
    /// Set after damage. Commits are refused then, and the log keeps all messages above `described`.
    pub(super) stuck: Mutex<Option<Stuck>>,
}

/// Why an index is stuck.
pub(super) struct Stuck {
    /// The damage.
    pub(super) error: Error,
    /// Whether memory lacks a message of the log, because its leaf could not be read when the store was opened. The
    /// index is then stuck until the store is opened again.
    pub(super) lacks_messages: bool,
}

impl HotTree {
    /// Makes a tree to which commits write directly.
    pub fn new(tree: Tree) -> HotTree {
        let opened_through = tree.published.load().through;
        let described = Mutex::new(tree.inner.lock().world.clone());
        let shared = Arc::new(Shared::new(tree));
        HotTree {
            checked: AtomicU64::new(0),
            checking: Mutex::default(),
            prepared_bytes: AtomicU64::new(0),
            opened_through,
            described,
            horizons: Horizons::new(HotView::new(shared.clone(), Seqno(0))),
            shared,
            writing: Mutex::default(),
            hand: Mutex::default(),
            inline_bytes: AtomicUsize::new(usize::MAX),
            stuck: Mutex::default(),
        }
    }

    /// The damage that stops the index, if it is stuck.
    pub(super) fn stuck_by(&self) -> Option<Error> {
        self.stuck.lock().as_ref().map(|stuck| stuck.error.clone())
    }

    /// The bytes of ranges in memory above which cold ranges are written and leave memory.
    pub(super) fn most_bytes(&self) -> usize {
        let Tree { core, sizes, .. } = &self.shared.tree;
        let most = usize::try_from(sizes.memtable_bytes.saturating_mul(MEMTABLES)).unwrap_or(usize::MAX);
        most.min(core.pool.budget() / 2)
    }

    /// Brings the leaf of `key` into memory, with the leaves that continue the messages of its last key, and pins it.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub(super) fn heat(&self, key: &[u8]) -> Result<Pin> {
        let Shared { tree, directory, .. } = &*self.shared;
        loop {
            if let Some(pin) = directory.pin(key) {
                return Ok(pin);
            }
            let view = tree.published.load_full();
            view.check_readable()?;
            let unit = unit_of(&view, key)?;
            let keys = KeyRange::new(unit.from.as_slice(), unit.to.as_deref().unwrap_or_default());
            let block = entries_of(unit, &view)?;
            let is_current = || Arc::ptr_eq(&view, &tree.published.load());
            let added = directory.add(is_current, |ranges| {
                if ranges.find(key).is_some() {
                    return None;
                }
                let gap = ranges.gap(&keys, key);
                let block = if gap == keys { block } else { part_of(&block, &gap) };
                let mut contents = Contents::stored(block);
                self.shared.count_new(&mut contents);
                Some(HotRange::new(gap, contents, None))
            });
            if let Some(pin) = added {
                return Ok(pin);
            }
        }
    }
}

/// The entries in `keys`.
fn part_of(block: &EntryBlock, keys: &KeyRange) -> EntryBlock {
    let mut part = EntryBlock::new();
    block.iter().filter(|entry| keys.contains(entry.key)).for_each(|entry| part.push(entry));
    part
}

/// The unit with `key`.
fn unit_of(view: &TreeView, key: &[u8]) -> Result<Unit> {
    debug_assert!(view.loaded.is_none(), "rows of a sorted load are committed");
    let mut unit = Unit { leaves: Vec::new(), from: Vec::new(), to: None };
    let Some(Root { mut page, mut level }) = view.root else { return Ok(unit) };
    while level > 0 {
        let block = view.source.page(&page, level)?;
        let inner = page.inner(&block);
        let mut at = inner.search(key);
        while level == 1 && at > 0 && inner.page(at).is_continued {
            at -= 1;
        }
        let mut end = at + 1;
        while level == 1 && end < inner.len() && inner.page(end).is_continued {
            end += 1;
        }
        if end < inner.len() {
            inner.separator(end, unit.to.insert(Vec::new()));
        }
        if at > 0 {
            inner.separator(at, &mut unit.from);
        }
        if level == 1 {
            unit.leaves = (at..end).map(|i| Child::new(unit.from.clone(), inner.page(i))).collect();
            return Ok(unit);
        }
        (page, level) = (inner.page(at), level - 1);
    }
    unit.leaves = vec![Child::new(Vec::new(), page)];
    Ok(unit)
}

/// All messages of a unit.
fn entries_of(unit: Unit, view: &TreeView) -> Result<EntryBlock> {
    let (mut block, mut ahead) = (EntryBlock::new(), JobAhead::default());
    let mut reading = Reading::new(unit, &view.source, view.through, &mut ahead)?;
    while let Some(entry) = reading.entry() {
        block.push(entry);
        reading.advance(&view.source, &mut ahead)?;
    }
    Ok(block)
}
