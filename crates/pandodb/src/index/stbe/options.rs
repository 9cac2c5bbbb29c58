//! The type of the size-tiered Bε-tree: its entry in the registry, its options and their builder.

use std::sync::Arc;

use super::{Policy, Shape, Stbe, persist};
use crate::filter::Filters;
use crate::index::runs;
use crate::index::spec::{COMPRESSION, FILTERS, OptionSpec, Settings, Values};
use crate::index::types::{IndexKind, IndexType, Mode, Order};
use crate::index::{Index, IndexOptions};
use crate::run::Compression;

/// The entry of this index in the registry.
pub static TYPE: IndexType = IndexType {
    name: "stbe",
    about: "A size-tiered Bε-tree: writes are buffered in the nodes of a tree and move down in large pieces. The best choice for most data.",
    order: Order::Sorted,
    modes: &[Mode::Product, Mode::Paper],
    feature: 0,
    options: &[FANOUT, LEAF_MEMTABLES, MAPLET_WIDTH, FILTERS, COMPRESSION],
    create: |core, settings, through| {
        let (shape, operator) = (Shape::of(settings), settings.operator.clone());
        Ok(Arc::new(Stbe::create(core.clone(), shape, operator, through)) as Arc<dyn Index>)
    },
    open: |core, settings, record, prefetch| {
        let (shape, operator) = (Shape::of(settings), settings.operator.clone());
        Ok(Arc::new(Stbe::open(core.clone(), shape, operator, record, prefetch)?) as Arc<dyn Index>)
    },
    first_blocks: persist::first_blocks,
    describe_block: runs::describe_block,
};

const FANOUT: OptionSpec = OptionSpec {
    name: "fanout",
    about: "The most children of a node of the trunk.",
    default: 8,
    values: Values::Range(2, 64),
    is_fixed: false,
};

const LEAF_MEMTABLES: OptionSpec = OptionSpec {
    name: "leaf_memtables",
    about: "Target size of a leaf of the trunk, in quarters of the memory budget (or in memtables of a fixed size).",
    default: 4,
    values: Values::Range(1, 256),
    is_fixed: false,
};

const MAPLET_WIDTH: OptionSpec = OptionSpec {
    name: "maplet_width",
    about: "The number of runs, and then of maplets, that are merged into one maplet.",
    default: 4,
    values: Values::Range(2, 16),
    is_fixed: false,
};

impl Shape {
    /// The sizes for the given settings.
    fn of(settings: &Settings) -> Shape {
        let (policy, filters) = match settings.mode {
            Mode::Product => (Policy::Product, Filters::Maplet),
            Mode::Paper => (Policy::Paper, Filters::Quotient),
        };
        Shape {
            fanout: settings.get(FANOUT.name) as usize,
            memtable_bytes: settings.memtable_bytes,
            leaf_bytes: settings.memtable_bytes * settings.get(LEAF_MEMTABLES.name),
            policy,
            filters: settings.filters(filters),
            maplet_width: settings.get(MAPLET_WIDTH.name) as usize,
            compression: settings.compression(),
        }
    }
}

/// The default index, a size-tiered Bε-tree, with its options. Creating a keyspace fails if an option has a value out
/// of bounds.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// use pandodb::{Filters, KeyspaceOptions, StbeOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let index = StbeOptions::new().fanout(4).filters(Filters::Bloom);
/// store.keyspace_with("events", KeyspaceOptions::new().index(index))?;
/// assert_eq!(store.keyspaces()[0].index.to_string(), "stbe:fanout=4,filters=bloom,mode=product");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StbeOptions(IndexOptions);

impl StbeOptions {
    /// All options have the defaults of the store.
    pub fn new() -> StbeOptions {
        StbeOptions(IndexKind::of(&TYPE).into())
    }

    /// Selects the variant of the index, for experiments; see [`Mode`].
    #[must_use]
    pub fn mode(self, mode: Mode) -> StbeOptions {
        StbeOptions(self.0.with_mode(mode))
    }

    /// The maximum number of children of a node of the trunk, 2 to 64; the default is 8. This option is for
    /// experiments.
    #[must_use]
    pub fn fanout(self, children: usize) -> StbeOptions {
        StbeOptions(self.0.set(&FANOUT, children as u64))
    }

    /// Target size of a leaf of the trunk, 1 to 256; the default is 4. The unit is the memtable size if
    /// [`StoreBuilder::memtable_bytes`](crate::StoreBuilder::memtable_bytes) sets it, and else a quarter of the memory
    /// budget. This option is for experiments.
    #[must_use]
    pub fn leaf_memtables(self, memtables: u64) -> StbeOptions {
        StbeOptions(self.0.set(&LEAF_MEMTABLES, memtables))
    }

    /// The number of neighbours that are merged into one maplet, 2 to 16; the default is 4. The neighbours are single
    /// runs at first, and smaller maplets later. This option is for experiments.
    #[must_use]
    pub fn maplet_width(self, runs: usize) -> StbeOptions {
        StbeOptions(self.0.set(&MAPLET_WIDTH, runs as u64))
    }

    /// The filters of new runs. The default is [`Filters::Maplet`], or [`Filters::Quotient`] in [`Mode::Paper`].
    #[must_use]
    pub fn filters(self, filters: Filters) -> StbeOptions {
        StbeOptions(self.0.set_filters(filters))
    }

    /// The compression of the leaf blocks that compactions in leaves of the trunk write. The default is
    /// [`Compression::None`].
    #[must_use]
    pub fn compression(self, compression: Compression) -> StbeOptions {
        StbeOptions(self.0.set_compression(compression))
    }
}

impl Default for StbeOptions {
    fn default() -> StbeOptions {
        StbeOptions::new()
    }
}

impl From<StbeOptions> for IndexOptions {
    fn from(options: StbeOptions) -> IndexOptions {
        options.0
    }
}

#[cfg(test)]
mod tests {
    use crate::base::Error;
    use crate::base::Result;
    use crate::base::codec::Reader;
    use crate::index::options::{COMPRESSION, FILTERS};
    use crate::index::{IndexOptions, Mode};

    fn decoded(bytes: &[u8]) -> Result<IndexOptions> {
        IndexOptions::decode(&mut Reader::new(bytes, "test"))
    }

    #[test]
    fn options_survive_their_persisted_form() {
        for text in [
            "stbe:mode=product",
            "stbe:fanout=4,mode=paper",
            "stbe:fanout=64,filters=bloom,compression=lz4,mode=product",
        ] {
            let options: IndexOptions = text.parse().expect(text);
            let mut bytes = Vec::new();
            options.encode(&mut bytes);
            assert_eq!(decoded(&bytes).expect(text), options);
            for cut in 0..bytes.len() {
                assert!(decoded(&bytes[..cut]).is_err(), "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn golden_bytes_of_options() {
        let mut bytes = Vec::new();
        "stbe:fanout=4,mode=paper".parse::<IndexOptions>().unwrap().encode(&mut bytes);
        assert_eq!(bytes, b"\x04stbe\x0a\x01\x01\x06fanout\x04");
    }

    #[test]
    fn an_unknown_index_mode_or_option_is_refused_by_name() {
        let error = decoded(b"\x04vine\x02\x00\x00").unwrap_err();
        assert!(matches!(&error, Error::UnknownIndex { index, .. } if index == "vine"), "{error}");
        for (bytes, word) in [
            (&b"\x04stbe\x02\x07\x00"[..], "mode 7"),
            (b"\x04stbe\x0a\x00\x01\x06fanous\x04", "fanous"),
            (b"\x04stbe\x0a\x00\x01\x06fanout\x01", "`fanout` = 1"),
        ] {
            let error = decoded(bytes).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(word), "{error}");
        }
        assert!(decoded(b"\x04stbe\x12\x00\x02\x06fanout\x04\x06fanout\x04").unwrap_err().is_corruption());
    }

    #[test]
    fn options_of_the_keyspace_precede_those_of_the_store_and_the_defaults() {
        let own: IndexOptions = "stbe:fanout=4".parse().unwrap();
        let store: IndexOptions = "stbe:fanout=5,maplet_width=3,mode=paper".parse().unwrap();
        let common = [(COMPRESSION.name, 1), (FILTERS.name, FILTERS.default), ("unheard", 9)];
        let full = own.with_defaults(&store, Mode::Product, &common);
        assert_eq!(full.to_string(), "stbe:fanout=4,maplet_width=3,compression=lz4,mode=paper");
        assert_eq!(full.settings(1, None).get("leaf_memtables"), 4);
        assert_eq!(own.conflict(&full), None);
        let other: IndexOptions = "stbe:maplet_width=4".parse().unwrap();
        assert_eq!(other.conflict(&full), Some(("maplet_width", "3".into(), "4".into())));
    }

    #[test]
    fn invalid_option_text_is_refused_with_the_valid_choices() {
        for (text, word) in [
            ("tree", "`tree`"),
            ("stbe:fanout", "name=value"),
            ("stbe:width=3", "maplet_width"),
            ("stbe:fanout=x", "2 to 64"),
            ("stbe:filters=none", "bloom"),
            ("stbe:mode=fast", "paper"),
        ] {
            let error = text.parse::<IndexOptions>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
