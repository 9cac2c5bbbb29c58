//! The type of the Bε-tree: its entry in the registry, its options and their builder.

use std::sync::Arc;

use super::shape::Shape;
use crate::index::pages::{InnerLimits, Levels, inspect, root};
use crate::index::spec::{LEAF_COMPRESSION, OptionSpec, Settings, Values, WRITES};
use crate::index::tree::{PartedTree, Sizes, Tree};
use crate::index::types::{IndexKind, IndexType, Mode, Order};
use crate::index::{Index, IndexOptions};
use crate::run::Compression;

/// The entry of this index in the registry.
pub static TYPE: IndexType = IndexType {
    name: "betree",
    about: "A Bε-tree: a B+-tree with buffers in its inner pages. For data that is updated all over a large key space.",
    order: Order::Sorted,
    modes: &[Mode::Product],
    feature: 1 << 18,
    options: &[NODE_KIB, PAGE_KIB, EPSILON, LEAF_COMPRESSION, WRITES],
    create: |core, settings, through| Ok(index_of(Tree::create(core.clone(), sizes(settings), through), settings)),
    open: |core, settings, record, prefetch| {
        Ok(index_of(Tree::open(core.clone(), sizes(settings), record, prefetch)?, settings))
    },
    first_blocks: root::first_blocks,
    describe_block: inspect::describe_block,
};

const NODE_KIB: OptionSpec = OptionSpec {
    name: "node_kib",
    about: "The size of a node in KiB: of the buffer and the pivots of an inner page, and of the leaves of a leaf node.",
    default: 512,
    values: Values::Range(4, 4096),
    is_fixed: false,
};

const PAGE_KIB: OptionSpec = OptionSpec {
    name: "page_kib",
    about: "The size of a leaf in KiB, at most that of a node. Nodes consist of such leaves.",
    default: 8,
    values: Values::Range(4, 64),
    is_fixed: false,
};

const EPSILON: OptionSpec = OptionSpec {
    name: "epsilon",
    about: "In percent. A node with room for B rows of 128 bytes has about B^ε children; its buffer has the other room.",
    default: 35,
    values: Values::Range(0, 100),
    is_fixed: false,
};

/// The index around a tree: with a memtable in front of it, or with its topmost buffers in memory.
fn index_of(tree: Tree, settings: &Settings) -> Arc<dyn Index> {
    if settings.writes_directly() { Arc::new(PartedTree::new(tree)) } else { Arc::new(tree) }
}

/// The settings of a tree.
fn sizes(settings: &Settings) -> Sizes {
    let (node, page) = (settings.get(NODE_KIB.name) << 10, settings.get(PAGE_KIB.name) << 10);
    let page = page.min(node);
    let shape = Shape::of(node, page, settings.get(EPSILON.name));
    let bytes = usize::try_from(node).expect("a node is small");
    let limits = |children: u64| InnerLimits { bytes, children: usize::try_from(children).unwrap_or(usize::MAX) };
    let levels = Levels {
        plain: limits(shape.leaves),
        buffered: limits(shape.children),
        buffered_from: if shape.leaves == 1 { 1 } else { 2 },
    };
    Sizes::new(&TYPE, settings, page, levels, shape.buffer_bytes)
}

/// The Bε-tree as the index of a keyspace, with its options. Creating a keyspace fails if an option has a value out of
/// bounds.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// use pandodb::{BetreeOptions, KeyspaceOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let events = store.keyspace_with("events", KeyspaceOptions::new().index(BetreeOptions::new().node_kib(256)))?;
/// events.put("a", "b")?;
/// assert_eq!(store.keyspaces()[0].index.to_string(), "betree:node_kib=256,mode=product");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BetreeOptions(IndexOptions);

impl BetreeOptions {
    /// All options have the defaults of the store.
    pub fn new() -> BetreeOptions {
        BetreeOptions(IndexKind::of(&TYPE).into())
    }

    /// The size of a node in KiB, 4 to 4096; the default is 512. Messages move down the tree in blocks of at least about
    /// the bytes of a node divided by its number of children.
    #[must_use]
    pub fn node_kib(self, kib: u64) -> BetreeOptions {
        BetreeOptions(self.0.set(&NODE_KIB, kib))
    }

    /// The size of a leaf in KiB, 4 to 64; the default is 8. A larger value than that of a node has the effect of that of
    /// the node.
    #[must_use]
    pub fn page_kib(self, kib: u64) -> BetreeOptions {
        BetreeOptions(self.0.set(&PAGE_KIB, kib))
    }

    /// ε in percent, 0 to 100; the default is 35. A node with room for B rows of 128 bytes has about B^ε children, and at
    /// least 4. With a smaller ε writes are cheaper, and the tree has more levels.
    #[must_use]
    pub fn epsilon(self, percent: u64) -> BetreeOptions {
        BetreeOptions(self.0.set(&EPSILON, percent))
    }

    /// Whether commits write directly to the tree, without a memtable: into buffers in memory, one for each child of the
    /// root. Background jobs write those buffers that have the most messages, so more messages go to one child at a time
    /// than with a memtable. Set this option when the keyspace is created, and do not change it later. The default is
    /// `false`.
    #[must_use]
    pub fn direct_writes(self, direct: bool) -> BetreeOptions {
        BetreeOptions(self.0.set(&WRITES, u64::from(direct)))
    }

    /// The compression of leaves, those of buffers included. The default is [`Compression::None`]. With
    /// [`Compression::Lz4`], a leaf is stored compressed if this saves at least 4 KiB. In memory, leaves are uncompressed.
    #[must_use]
    pub fn compression(self, compression: Compression) -> BetreeOptions {
        BetreeOptions(self.0.set_compression(compression))
    }
}

impl Default for BetreeOptions {
    fn default() -> BetreeOptions {
        BetreeOptions::new()
    }
}

impl From<BetreeOptions> for IndexOptions {
    fn from(options: BetreeOptions) -> IndexOptions {
        options.0
    }
}
