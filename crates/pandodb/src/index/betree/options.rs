//! The type of the Bε-tree: its entry in the registry, its options and their builder.

use std::sync::Arc;

use super::shape::Shape;
use crate::index::btree::{Btree, Sizes};
use crate::index::pages::{InnerLimits, LeafLimits, Levels, inspect, root};
use crate::index::spec::{LEAF_COMPRESSION, OptionSpec, Settings, Values};
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
    options: &[NODE_KIB, PAGE_KIB, EPSILON, LEAF_COMPRESSION],
    create: |core, settings, through| {
        Ok(Arc::new(Btree::create(core.clone(), sizes(settings), through)) as Arc<dyn Index>)
    },
    open: |core, settings, record, prefetch| {
        Ok(Arc::new(Btree::open(core.clone(), sizes(settings), record, prefetch)?) as Arc<dyn Index>)
    },
    first_blocks: root::first_blocks,
    describe_block: inspect::describe_block,
};

const NODE_KIB: OptionSpec = OptionSpec {
    name: "node_kib",
    about: "The size of a node in KiB: of the buffer and the pivots of an inner page, and of the leaves of a leaf node.",
    default: 512,
    values: Values::Range(4, 4096),
};

const PAGE_KIB: OptionSpec = OptionSpec {
    name: "page_kib",
    about: "The size of a leaf in KiB, at most that of a node. Nodes consist of such leaves.",
    default: 8,
    values: Values::Range(4, 64),
};

const EPSILON: OptionSpec = OptionSpec {
    name: "epsilon",
    about: "In percent. A node with room for B rows of 128 bytes has about B^ε children; its buffer has the other room.",
    default: 35,
    values: Values::Range(0, 100),
};

/// With memtables of less than this many bytes for each byte of a leaf or of a buffer, these are smaller. Only tests have
/// such memtables; their trees should have several levels.
const MEMTABLE_PER_LEAF: u64 = 8;
const MEMTABLE_PER_BUFFER: u64 = 4;
/// The least bytes of a leaf and of a buffer in such a tree.
const LEAST_LEAF: usize = 256;
/// A page has at most one child for this many bytes of the memtable, for the same reason.
const MEMTABLE_PER_CHILD: u64 = 1024;
/// The least limit on the number of children of an inner page.
const FEWEST_CHILDREN: u64 = 4;
/// With memtables of less than this many bytes, some jobs run in pieces. Only tests have such memtables; they should
/// meet crashes and faults between two pieces.
const TINY_MEMTABLE: u64 = 6 << 10;

/// The sizes for the given settings.
fn sizes(settings: &Settings) -> Sizes {
    let (node, page) = (settings.get(NODE_KIB.name) << 10, settings.get(PAGE_KIB.name) << 10);
    let page = page.min(node);
    let memtable = settings.memtable_bytes;
    let shape = Shape::of(node, page, settings.get(EPSILON.name));
    let most = (memtable / MEMTABLE_PER_CHILD).max(FEWEST_CHILDREN);
    let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let leaf = small(memtable / MEMTABLE_PER_LEAF).clamp(LEAST_LEAF, small(page));
    let children = |count: u64| small(count.clamp(FEWEST_CHILDREN, most));
    Sizes {
        kind: &TYPE,
        leaf: LeafLimits::new(leaf),
        levels: Levels {
            plain: InnerLimits { bytes: small(node), children: children(shape.leaves) },
            // An inner page is mostly its buffer, so its pivots may take as much room as they need.
            buffered: InnerLimits { bytes: small(node), children: children(shape.children) },
            buffered_from: if shape.leaves == 1 { 1 } else { 2 },
        },
        buffer_bytes: shape.buffer_bytes.min((memtable / MEMTABLE_PER_BUFFER).max(LEAST_LEAF as u64)),
        compression: settings.compression(),
        memtable_bytes: memtable,
        piece_bytes: (memtable < TINY_MEMTABLE).then_some(4 * leaf as u64),
        operator: settings.operator.clone(),
    }
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
/// assert_eq!(store.keyspaces()[0].index.to_string(), "betree:node_kib=256,page_kib=8,epsilon=35,mode=product");
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
