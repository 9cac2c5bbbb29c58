//! The type of the B+-tree: its entry in the registry, its options and their builder.

use std::sync::Arc;

use crate::index::pages::{InnerLimits, Levels, inspect, root};
use crate::index::spec::{LEAF_COMPRESSION, OptionSpec, Settings, Values, WRITES};
use crate::index::tree::{HotTree, Sizes, Tree};
use crate::index::types::{IndexKind, IndexType, Mode, Order};
use crate::index::{Index, IndexOptions};
use crate::run::Compression;

/// The entry of this index in the registry.
pub static TYPE: IndexType = IndexType {
    name: "btree",
    about: "A B+-tree: one sorted tree, whose leaves are rewritten. For data that is read much more often than written.",
    order: Order::Sorted,
    modes: &[Mode::Product],
    feature: 1 << 17,
    options: &[PAGE_KIB, LEAF_COMPRESSION, WRITES],
    create: |core, settings, through| Ok(index_of(Tree::create(core.clone(), sizes(settings), through), settings)),
    open: |core, settings, record, prefetch| {
        Ok(index_of(Tree::open(core.clone(), sizes(settings), record, prefetch)?, settings))
    },
    first_blocks: root::first_blocks,
    describe_block: inspect::describe_block,
};

const PAGE_KIB: OptionSpec = OptionSpec {
    name: "page_kib",
    about: "The size of a page in KiB. Small pages suit random reads and writes, large pages suit scans.",
    default: 8,
    values: Values::Range(4, 4096),
    is_fixed: false,
};

/// The index around a tree: with a memtable in front of it, or with commits that write to its leaves.
fn index_of(tree: Tree, settings: &Settings) -> Arc<dyn Index> {
    if settings.writes_directly() { Arc::new(HotTree::new(tree)) } else { Arc::new(tree) }
}

/// The settings of a tree.
fn sizes(settings: &Settings) -> Sizes {
    let page = settings.get(PAGE_KIB.name) << 10;
    let limits = InnerLimits { bytes: usize::try_from(page).expect("a page is small"), children: usize::MAX };
    Sizes::new(&TYPE, settings, page, Levels::plain(limits), 0)
}

/// The B+-tree as the index of a keyspace, with its options. Creating a keyspace fails if an option has a value out of
/// bounds.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// use pandodb::{BtreeOptions, KeyspaceOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let users = store.keyspace_with("users", KeyspaceOptions::new().index(BtreeOptions::new().page_kib(16)))?;
/// users.put("a", "b")?;
/// assert_eq!(store.keyspaces()[0].index.to_string(), "btree:page_kib=16,mode=product");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BtreeOptions(IndexOptions);

impl BtreeOptions {
    /// All options have the defaults of the store.
    pub fn new() -> BtreeOptions {
        BtreeOptions(IndexKind::of(&TYPE).into())
    }

    /// The size of a page in KiB, 4 to 4096; the default is 8. A leaf on disk takes only the space that its rows need,
    /// rounded up to 4 KiB.
    #[must_use]
    pub fn page_kib(self, kib: u64) -> BtreeOptions {
        BtreeOptions(self.0.set(&PAGE_KIB, kib))
    }

    /// Whether commits write directly to leaves of the tree that are in memory, without a memtable. A commit then reads
    /// the leaves of its keys, so writes to a tree that is larger than memory are slower, and lookups have one place
    /// less to search. Checkpoints write the changed leaves. The option cannot be changed after the keyspace was created.
    /// The default is `false`.
    #[must_use]
    pub fn direct_writes(self, direct: bool) -> BtreeOptions {
        BtreeOptions(self.0.set(&WRITES, u64::from(direct)))
    }

    /// The compression of leaves. The default is [`Compression::None`]. With [`Compression::Lz4`], a leaf is stored
    /// compressed if this saves at least 4 KiB. So compression saves most space with pages of 16 KiB or more. In memory,
    /// leaves are uncompressed.
    #[must_use]
    pub fn compression(self, compression: Compression) -> BtreeOptions {
        BtreeOptions(self.0.set_compression(compression))
    }
}

impl Default for BtreeOptions {
    fn default() -> BtreeOptions {
        BtreeOptions::new()
    }
}

impl From<BtreeOptions> for IndexOptions {
    fn from(options: BtreeOptions) -> IndexOptions {
        options.0
    }
}
