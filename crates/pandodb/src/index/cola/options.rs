//! The type of the lookahead array: its entry in the registry, its options and their builder.

use std::sync::Arc;

use super::choose::Growth;
use super::{Cola, Sizes, persist};
use crate::filter::Filters;
use crate::index::runs;
use crate::index::spec::{COMPRESSION, FILTERS, OptionSpec, Settings, Values};
use crate::index::types::{IndexKind, IndexType, Mode, Order};
use crate::index::{Index, IndexOptions};
use crate::run::Compression;

/// The entry of this index in the registry.
pub static TYPE: IndexType = IndexType {
    name: "cola",
    about: "A lookahead array: one sorted sequence for each level, each level some times larger than the one above. \
            For random writes with scans at random places.",
    order: Order::Sorted,
    modes: &[Mode::Product],
    feature: 1 << 16,
    options: &[GROWTH, OWN_FILTERS, COMPRESSION],
    create: |core, settings, through| {
        Ok(Arc::new(Cola::create(core.clone(), Sizes::of(settings), through)) as Arc<dyn Index>)
    },
    open: |core, settings, record, prefetch| {
        Ok(Arc::new(Cola::open(core.clone(), Sizes::of(settings), record, prefetch)?) as Arc<dyn Index>)
    },
    first_blocks: persist::first_blocks,
    describe_block: runs::describe_block,
};

const GROWTH: OptionSpec = OptionSpec {
    name: "growth",
    about: "How many times larger a level is than the one above.",
    default: 4,
    values: Values::Range(2, 64),
    is_fixed: false,
};

/// Every run has a filter of its own, because no group of runs lasts long enough for a maplet.
const OWN_FILTERS: OptionSpec = OptionSpec { values: Values::Words(&["auto", "bloom", "quotient"]), ..FILTERS };

impl Sizes {
    /// The sizes for the given settings.
    fn of(settings: &Settings) -> Sizes {
        Sizes {
            growth: Growth { factor: settings.get(GROWTH.name), memtable_bytes: settings.memtable_bytes },
            filters: settings.filters(Filters::Bloom),
            compression: settings.compression(),
            operator: settings.operator.clone(),
        }
    }
}

/// The lookahead array as the index of a keyspace, with its options. Creating a keyspace fails if an option has a value
/// out of bounds.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// use pandodb::{ColaOptions, KeyspaceOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let events = store.keyspace_with("events", KeyspaceOptions::new().index(ColaOptions::new().growth(8)))?;
/// events.put("a", "b")?;
/// assert_eq!(store.keyspaces()[0].index.to_string(), "cola:growth=8,mode=product");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColaOptions(IndexOptions);

impl ColaOptions {
    /// All options have the defaults of the store.
    pub fn new() -> ColaOptions {
        ColaOptions(IndexKind::of(&TYPE).into())
    }

    /// The ratio of the size of a level to the size of the level above, 2 to 64; the default is 4. With a smaller
    /// factor, data is written less often, but a scan merges more levels.
    #[must_use]
    pub fn growth(self, factor: u64) -> ColaOptions {
        ColaOptions(self.0.set(&GROWTH, factor))
    }

    /// The filters of new runs, [`Filters::Bloom`] (the default) or [`Filters::Quotient`].
    #[must_use]
    pub fn filters(self, filters: Filters) -> ColaOptions {
        ColaOptions(self.0.set_filters(filters))
    }

    /// The compression of leaf blocks in the outputs of compactions into the last level. The default is
    /// [`Compression::None`].
    #[must_use]
    pub fn compression(self, compression: Compression) -> ColaOptions {
        ColaOptions(self.0.set_compression(compression))
    }
}

impl Default for ColaOptions {
    fn default() -> ColaOptions {
        ColaOptions::new()
    }
}

impl From<ColaOptions> for IndexOptions {
    fn from(options: ColaOptions) -> IndexOptions {
        options.0
    }
}
