//! Tests the behaviour of every index: one suite runs over one table of configurations.
//!
//! A new index is tested by adding a line to [`CASES`]. Each test runs for every case, each time on a fresh store. A
//! failing test prints the case.

mod data;
mod load;
mod queue;
mod ranges;
mod store;

use std::sync::Arc;

use pandodb::device::{Device, FileDevice, MemDevice};
use pandodb::{Compression, IndexOptions, Io, Keyspace, KeyspaceOptions, Mode, Store, StoreBuilder};

/// A test case: an index in one configuration.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The index type with options: `type:name=value`.
    pub index: &'static str,
    /// Bytes of a full memtable.
    pub memtable_bytes: usize,
    /// Background threads.
    pub threads: usize,
    /// The mode of the index: paper or product.
    pub mode: Mode,
    /// The compression of the bottom runs, or of the leaves of a tree.
    pub compression: Compression,
    /// How the data file is read, if the store is in a directory. It is `None` if the store is in memory.
    pub io: Option<Io>,
}

/// The device of a store.
pub struct Place {
    device: Arc<dyn Device>,
    _directory: Option<tempfile::TempDir>,
}

/// Every index in every configuration.
pub const CASES: &[Case] = &[
    Case { memtable_bytes: 4 << 10, index: "stbe:fanout=2", ..STBE },
    Case { memtable_bytes: 32 << 10, index: "stbe:fanout=4", threads: 1, ..STBE },
    Case { memtable_bytes: 1 << 20, index: "stbe:fanout=8", threads: 1, ..STBE },
    Case { memtable_bytes: 4 << 10, index: "stbe:fanout=2", io: Some(Io::Auto), ..STBE },
    Case { memtable_bytes: 32 << 10, threads: 2, io: Some(Io::Sync), ..STBE },
    Case { memtable_bytes: 8 << 10, threads: 4, ..STBE },
    Case { memtable_bytes: 4 << 10, mode: Mode::Paper, ..STBE },
    Case { memtable_bytes: 32 << 10, index: "stbe:fanout=4", threads: 2, mode: Mode::Paper, ..STBE },
    Case { memtable_bytes: 4 << 10, compression: Compression::Lz4, ..STBE },
    Case { memtable_bytes: 32 << 10, threads: 2, compression: Compression::Lz4, io: Some(Io::Auto), ..STBE },
    Case { memtable_bytes: 8 << 10, mode: Mode::Paper, compression: Compression::Lz4, ..STBE },
    Case { index: "cola", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "cola:growth=2", ..STBE },
    Case { memtable_bytes: 32 << 10, index: "cola:growth=3", threads: 2, io: Some(Io::Auto), ..STBE },
    Case { memtable_bytes: 4 << 10, index: "cola:growth=8,filters=quotient", compression: Compression::Lz4, ..STBE },
    Case { index: "nbtree", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "nbtree:fanout=3,dtree_kib=16", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "nbtree:fanout=3", mode: Mode::Paper, ..STBE },
    Case { memtable_bytes: 32 << 10, index: "nbtree:fanout=4", threads: 2, io: Some(Io::Auto), ..STBE },
    Case { memtable_bytes: 8 << 10, index: "nbtree:filters=quotient", compression: Compression::Lz4, ..STBE },
    Case { index: "btree", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "btree:page_kib=4", ..STBE },
    Case { memtable_bytes: 32 << 10, index: "btree:page_kib=16", threads: 2, io: Some(Io::Auto), ..STBE },
    Case { memtable_bytes: 128 << 10, index: "btree:page_kib=16", compression: Compression::Lz4, ..STBE },
    Case { index: "btree:writes=direct", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "btree:writes=direct,page_kib=4", threads: 2, ..STBE },
    Case {
        memtable_bytes: 32 << 10,
        index: "btree:writes=direct",
        compression: Compression::Lz4,
        io: Some(Io::Auto),
        ..STBE
    },
    Case { index: "betree", ..STBE },
    Case { memtable_bytes: 4 << 10, index: "betree:node_kib=4,page_kib=4,epsilon=80", ..STBE },
    Case { memtable_bytes: 32 << 10, index: "betree:node_kib=16,page_kib=4", threads: 2, io: Some(Io::Auto), ..STBE },
    Case { index: "betree:writes=direct", ..STBE },
    Case {
        memtable_bytes: 4 << 10,
        index: "betree:writes=direct,node_kib=4,page_kib=4,epsilon=80",
        threads: 2,
        ..STBE
    },
    Case {
        memtable_bytes: 32 << 10,
        index: "betree:writes=direct,node_kib=16,page_kib=4",
        compression: Compression::Lz4,
        io: Some(Io::Auto),
        ..STBE
    },
];

/// The settings that the cases have unless they say otherwise.
const STBE: Case = Case {
    index: "stbe:fanout=3",
    memtable_bytes: 8 << 10,
    threads: 0,
    mode: Mode::Product,
    compression: Compression::None,
    io: None,
};

impl Case {
    /// A builder that opens the store on the device of `place`.
    pub fn builder(&self, place: &Place) -> StoreBuilder {
        let builder = Store::builder("conformance").device(place.device.clone()).memory_budget(8 << 20);
        let builder = builder.compression(self.compression);
        builder.memtable_bytes(self.memtable_bytes).background_threads(self.threads).mode(self.mode)
    }

    /// The options of a keyspace with this index.
    pub fn options(&self) -> KeyspaceOptions {
        KeyspaceOptions::new().index(self.index.parse::<IndexOptions>().expect("options of an index"))
    }

    /// A new store with an empty keyspace.
    pub fn fresh(&self) -> (Place, Store, Keyspace) {
        let place = match self.io {
            None => Place { device: MemDevice::new(), _directory: None },
            Some(io) => {
                let directory = tempfile::tempdir().expect("a directory");
                let device = FileDevice::open(directory.path(), true).and_then(|device| device.with_io(io));
                Place { device: Arc::new(device.expect("a device")), _directory: Some(directory) }
            }
        };
        let store = self.builder(&place).open().expect("a new store");
        let keyspace = store.keyspace_with("k", self.options()).expect("a new keyspace");
        (place, store, keyspace)
    }
}

/// Runs a test for every case.
pub fn each(test: impl Fn(&Case)) {
    for case in CASES {
        println!("{case:?}");
        test(case);
    }
}

/// All keys of a scan.
pub fn keys(range: impl Iterator<Item = pandodb::Result<(pandodb::Value, pandodb::Value)>>) -> Vec<Vec<u8>> {
    range.map(|entry| entry.expect("a readable entry").0.to_vec()).collect()
}
