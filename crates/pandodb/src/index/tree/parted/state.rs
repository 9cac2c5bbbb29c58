//! [`PartedTree`]: a Bε-tree to which commits write directly. This module has its fields.

use std::sync::Arc;

use super::shared::{Shared, State};
use super::view::PartView;
use crate::base::sync::{ArcSwap, AtomicBool, AtomicU64, AtomicUsize, EXPLORED, Mutex};
use crate::base::{Error, Result, Seqno};
use crate::index::pages::Root;
use crate::index::tree::Tree;
use crate::index::tree::space::SpaceCheck;
use crate::index::tree::world::World;

/// With this number of memtables of bytes in memory, the heaviest parts are written, unless half of the pool is less.
const MEMTABLES: u64 = 8;
/// In an explored execution, which writes little, they are written with this part of a memtable in memory.
const EXPLORED_PART: u64 = 16;

/// The most bytes that the buffer of the root counts for.
const MOST_BUFFER: u64 = 1 << 56;

/// A Bε-tree to which commits write directly.
pub struct PartedTree {
    pub(super) shared: Arc<Shared>,
    /// The view that all readers share. It is replaced when the keyspace is dropped.
    pub(super) view: ArcSwap<PartView>,
    /// Held by the job that writes parts. It is the first lock that a thread takes.
    pub(super) writing: Mutex<()>,
    /// For each checkpoint that has begun and not ended: the last seqno that it will write. Background jobs write no
    /// message above the smallest of these.
    pub(super) cuts: Mutex<Vec<Seqno>>,
    /// Values of more than this number of bytes are moved out of the tree by the next job.
    pub(super) inline_bytes: AtomicUsize,
    /// The bytes of the buffer of the root on disk.
    pub(super) root_buffer: AtomicU64,
    pub(super) space: SpaceCheck,
    /// Set if a job of a checkpoint has found the disk full. Until a later job in the background has brought messages
    /// below the root, checkpoints leave them in the buffer of the root, because that takes the least space.
    pub(super) is_short: AtomicBool,
    /// The root that was opened has every message up to this seqno.
    pub(super) opened_through: Seqno,
    /// The state that the last checkpoint has described, or that was opened. Its pages are kept, because a checkpoint
    /// describes it again if not even the root can be read.
    pub(super) described: Mutex<World>,
    /// Damage that keeps messages from their pages. Commits are refused then, and checkpoints leave the messages in the
    /// buffer of the root.
    pub(super) stuck: Mutex<Option<Error>>,
}

impl PartedTree {
    /// Makes a tree to which commits write directly.
    pub fn new(tree: Tree) -> PartedTree {
        let (published, chunks) = (tree.published.load_full(), tree.core.chunks.clone());
        // If the root cannot be read, one part has all keys, and the first job reports the damage.
        let (bounds, buffer) = bounds(&tree, published.root).unwrap_or_else(|_| (vec![Vec::new()], 0));
        let opened_through = published.through;
        let described = Mutex::new(tree.inner.lock().world.clone());
        let current = ArcSwap::from_pointee(State::empty(published, &bounds, &chunks));
        let (publishing, bytes) = (Mutex::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { tree, chunks, current, publishing, bytes });
        let tree = PartedTree {
            view: ArcSwap::from_pointee(PartView::new(shared.clone())),
            shared,
            writing: Mutex::default(),
            cuts: Mutex::default(),
            inline_bytes: AtomicUsize::new(usize::MAX),
            root_buffer: AtomicU64::new(buffer),
            space: SpaceCheck::default(),
            is_short: AtomicBool::new(false),
            described,
            opened_through,
            stuck: Mutex::default(),
        };
        tree.note_debt();
        tree
    }

    /// The bytes in memory above which the heaviest parts are written.
    pub(super) fn most_bytes(&self) -> usize {
        let Tree { core, sizes, .. } = &self.shared.tree;
        let memtable = sizes.memtable_bytes;
        let most = if EXPLORED { memtable / EXPLORED_PART } else { memtable.saturating_mul(MEMTABLES) };
        usize::try_from(most).unwrap_or(usize::MAX).min(core.pool.budget() / 2)
    }
}

/// The first keys of the children of a root whose level may have buffers, and the bytes of the root's buffer. A root of
/// another level counts as one child.
///
/// # Errors
/// If the root cannot be read.
pub(super) fn bounds(tree: &Tree, root: Option<Root>) -> Result<(Vec<Vec<u8>>, u64)> {
    let Tree { source, sizes, .. } = tree;
    let Some(Root { page, level }) = root.filter(|root| root.level >= sizes.levels.buffered_from) else {
        return Ok((vec![Vec::new()], 0));
    };
    let block = source.page(&page, level)?;
    let inner = page.inner(&block);
    // A damaged page may count more bytes than any disk has.
    let buffer = inner.buffer().map_or(0, |buffer| buffer.page.totals.bytes.min(MOST_BUFFER));
    let children = inner.children(&[]).into_iter().filter(|child| !child.page.is_continued);
    Ok((children.map(|child| child.from).collect(), buffer))
}
