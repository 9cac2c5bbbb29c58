//! The type of the Nested B-tree: its entry in the registry, its options and their builder.

use std::sync::Arc;

use super::shape::Limits;
use super::{Nbtree, Sizes, persist};
use crate::filter::Filters;
use crate::index::runs;
use crate::index::spec::{COMPRESSION, FILTERS, OptionSpec, Settings, Values};
use crate::index::types::{IndexKind, IndexType, Mode, Order};
use crate::index::{Index, IndexOptions};
use crate::run::Compression;

/// The smallest d-tree in bytes. Beside its data, a run takes three pages: the filter, the inner block and the description.
/// With d-trees of 16 KiB, these pages and those of the inner nodes could fill a disk, so that deletes were refused.
const LEAST_DTREE: u64 = 24 << 10;

/// The entry of this index in the registry.
pub static TYPE: IndexType = IndexType {
    name: "nbtree",
    about: "A Nested B-tree: a B-tree with sorted data in each node. For steady random writes whose longest single \
            write must be short.",
    order: Order::Sorted,
    modes: &[Mode::Product, Mode::Paper],
    feature: 1 << 19,
    options: &[FANOUT, DTREE, OWN_FILTERS, COMPRESSION],
    create: |core, settings, through| {
        Ok(Arc::new(Nbtree::create(core.clone(), Sizes::of(settings), through)) as Arc<dyn Index>)
    },
    open: |core, settings, record, prefetch| {
        Ok(Arc::new(Nbtree::open(core.clone(), Sizes::of(settings), record, prefetch)?) as Arc<dyn Index>)
    },
    first_blocks: persist::first_blocks,
    describe_block: runs::describe_block,
};

const FANOUT: OptionSpec = OptionSpec {
    name: "fanout",
    about: "The largest number of children of a node.",
    default: 8,
    values: Values::Range(3, 64),
    is_fixed: false,
};

const DTREE: OptionSpec = OptionSpec {
    name: "dtree_kib",
    about: "The KiB of data of a full node; 0 selects the size of a memtable.",
    default: 0,
    values: Values::Range(0, 16 << 20),
    is_fixed: false,
};

/// Every run has a filter of its own. A maplet would serve several runs of a node, but a flush replaces them soon.
const OWN_FILTERS: OptionSpec = OptionSpec { values: Values::Words(&["auto", "bloom", "quotient", "none"]), ..FILTERS };
/// The value of [`OWN_FILTERS`] for runs without filters.
const NO_FILTERS: u64 = 3;

impl Sizes {
    /// The sizes for the given settings.
    fn of(settings: &Settings) -> Sizes {
        let dtree_bytes = match settings.get(DTREE.name) {
            0 => settings.memtable_bytes,
            kib => kib << 10,
        };
        let fanout = usize::try_from(settings.get(FANOUT.name)).unwrap_or(usize::MAX);
        let filters = match (settings.get(OWN_FILTERS.name), settings.mode) {
            (NO_FILTERS, _) | (0, Mode::Paper) => None,
            _ => Some(settings.filters(Filters::Bloom)),
        };
        Sizes {
            limits: Limits { fanout, dtree_bytes: dtree_bytes.max(LEAST_DTREE) },
            memtable_bytes: settings.memtable_bytes,
            mode: settings.mode,
            filters,
            compression: settings.compression(),
            operator: settings.operator.clone(),
        }
    }
}

/// The Nested B-tree as the index of a keyspace, with its options. Creating a keyspace fails if an option has a value out
/// of bounds.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// use pandodb::{KeyspaceOptions, NbtreeOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let trades = store.keyspace_with("trades", KeyspaceOptions::new().index(NbtreeOptions::new().fanout(4)))?;
/// trades.put("a", "b")?;
/// assert_eq!(store.keyspaces()[0].index.to_string(), "nbtree:fanout=4,mode=product");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NbtreeOptions(IndexOptions);

impl NbtreeOptions {
    /// All options have the defaults of the store.
    pub fn new() -> NbtreeOptions {
        NbtreeOptions(IndexKind::of(&TYPE).into())
    }

    /// The variant of the structure: [`Mode::Product`] is the advanced version of the source, [`Mode::Paper`] the basic
    /// version. The basic version flushes every full child, writes a node anew after its flush, and has no filters.
    #[must_use]
    pub fn mode(self, mode: Mode) -> NbtreeOptions {
        NbtreeOptions(self.0.with_mode(mode))
    }

    /// f, the largest number of children of a node, 3 to 64; the default is 8. With a smaller number, data is written
    /// less often on each level, but there are more levels, so a lookup probes more filters.
    #[must_use]
    pub fn fanout(self, children: u64) -> NbtreeOptions {
        NbtreeOptions(self.0.set(&FANOUT, children))
    }

    /// σ, the KiB of data of a full node, up to 16 GiB. The default, 0, selects the size of a memtable. Smaller values
    /// than 24 KiB count as 24 KiB.
    #[must_use]
    pub fn dtree_kib(self, kib: u64) -> NbtreeOptions {
        NbtreeOptions(self.0.set(&DTREE, kib))
    }

    /// The filters of new runs: [`Filters::Bloom`] (the default) or [`Filters::Quotient`], or none.
    #[must_use]
    pub fn filters(self, filters: impl Into<Option<Filters>>) -> NbtreeOptions {
        match filters.into() {
            Some(filters) => NbtreeOptions(self.0.set_filters(filters)),
            None => NbtreeOptions(self.0.set(&OWN_FILTERS, NO_FILTERS)),
        }
    }

    /// The compression of leaf blocks of the leaves of the tree. The default is [`Compression::None`].
    #[must_use]
    pub fn compression(self, compression: Compression) -> NbtreeOptions {
        NbtreeOptions(self.0.set_compression(compression))
    }
}

impl Default for NbtreeOptions {
    fn default() -> NbtreeOptions {
        NbtreeOptions::new()
    }
}

impl From<NbtreeOptions> for IndexOptions {
    fn from(options: NbtreeOptions) -> IndexOptions {
        options.0
    }
}
