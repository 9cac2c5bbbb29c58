//! Workloads: named sequences of operations on a store.
//!
//! ```text
//!   catalogue ──find("a")──▶ Workload ──stream(thread)──▶ Op, Op, Op …     the same for the same seed
//!                                                          │ number, nonce
//!                                                          ▼ Shape: key and value bytes
//! ```
//!
//! The catalogue contains YCSB's load and mixes A to F (Cooper et al., SoCC 2010), as 002 §3.7 runs them. It also
//! contains workloads that are known to be hard for embedded stores: sequential loads, overwriting, blind merges, scans
//! after many deletes, lookups of absent keys, expiry, and queues.
//!
//! Most workloads use the main set of rows. Others have a data set of their own ([`DataSet`]): time series, large values,
//! rows with an index, values of mixed sizes. The name of such a *group* stands for all of its workloads ([`GROUPS`]).
//! Transactional workloads ([`TRANSACTIONS`]) have rows and procedures of their own.
//!
//! A workload declares the contents that it needs ([`Start`]) and the contents that it leaves in the store
//! ([`Leaves`]). If the needed rows are missing, the bench loads them first.

pub mod pick;
pub mod set;
mod stream;
pub mod transactional;
mod world;

pub use pick::{Dist, Picker};
pub use set::DataSet;
pub use stream::{Op, Stream, StreamPlan};
pub use transactional::{TRANSACTIONS, Transactional};
pub use world::World;

use crate::engine::Need;

/// The contents of the store that a workload needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// An empty, new store.
    Fresh,
    /// All rows.
    Rows,
    /// One row in ten, because the other rows were deleted.
    Thinned,
}

/// The contents of the store after a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// All rows, and possibly more.
    Rows,
    /// One row in ten.
    Thinned,
    /// Contents that no other workload can use.
    Other,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Put a new row.
    Insert,
    /// Put an existing row without reading it.
    Update,
    /// Get a row.
    Read,
    /// Get an absent key.
    ReadAbsent,
    /// Get a row, then put it.
    ReadModifyWrite,
    /// Visit entries from a row on. The maximum number of entries is drawn uniformly between the two fields.
    Scan(u32, u32),
    /// Visit the rows whose keys have the same prefix as the key of a given row: about 16 rows.
    ScanPrefix,
    /// Add to a counter without reading it.
    Merge,
    /// Get several rows in one call. The field is their number.
    MultiGet(u32),
    /// Visit entries from a row downwards. The maximum number of entries is drawn uniformly between the two fields.
    ScanBack(u32, u32),
    /// Visit the newest 360 points of a random time series.
    LastHour,
    /// Get an indexed row; then, in one batch, put it, put its new index entry and its change record, and delete its old
    /// index entry.
    UpdateIndexed,
    /// Visit the index entries of a random group, at most 10, and get their rows in one call.
    LookupIndexed,
}

/// The operations of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Put every row once, in random order.
    Load,
    /// Put every row once, in key order.
    LoadSeq,
    /// Put every row once. For each put, a random choice decides whether it inserts the next row in key order or the
    /// next row in random order (002 §3.7.4).
    LoadMixed,
    /// Put every point once, in the order of time: one point to each series in turn.
    LoadPoints,
    /// Put every indexed row once, in random order, each in one batch with its index entry and its change record.
    LoadIndexed,
    /// Load every row once, in key order, through the engine's interface for bulk loading, with one thread.
    LoadSorted,
    /// The same, but with the rows of [`Kind::Load`]. The lab sorts the rows by key before it passes them to the engine.
    LoadSortedRows,
    /// A mix of operations, with their shares in percent.
    Mix(&'static [(u8, Verb)]),
    /// Delete nine rows in ten.
    Thin,
    /// Put events in the order of time, and delete the oldest events with range deletes, so that a quarter of the
    /// events exists at any time.
    Expiry,
    /// Each thread has a queue. It pushes entries to the end of its queue, and pops the head of the queue, which it
    /// finds by a scan.
    Queue,
    /// Run transactions on rows of the workload's own. There is no [`Stream`] for these workloads.
    Transactions(Transactional),
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The contents that the workload needs.
    pub start: Start,
    /// The contents that the workload leaves in the store.
    pub leaves: Leaves,
    /// The operations of the workload.
    pub kind: Kind,
    /// The default distribution of rows.
    pub dist: Dist,
    /// The records of the workload.
    pub set: DataSet,
}

/// The number of entries that a long scan visits.
pub const LONG_SCAN: u32 = 10_000;
/// The number of rows in a multi-get, which is about the number of reads that an NVMe device serves in parallel.
pub const MULTI_GET: u32 = 32;

const fn fresh(name: &'static str, about: &'static str, kind: Kind, leaves: Leaves) -> Workload {
    Workload { name, about, start: Start::Fresh, leaves, kind, dist: Dist::Uniform, set: DataSet::Main }
}

const fn mix(name: &'static str, about: &'static str, dist: Dist, verbs: &'static [(u8, Verb)]) -> Workload {
    Workload { name, about, start: Start::Rows, leaves: Leaves::Rows, kind: Kind::Mix(verbs), dist, set: DataSet::Main }
}

const fn of(set: DataSet, workload: Workload) -> Workload {
    Workload { set, ..workload }
}

/// All workloads, in an order in which few loads are needed.
pub const ALL: &[Workload] = &[
    fresh("load-seq", "insert all rows in key order", Kind::LoadSeq, Leaves::Other),
    fresh("load-mixed", "insert all rows, a share of them in key order", Kind::LoadMixed, Leaves::Other),
    fresh("expiry", "insert in time order, delete the oldest by range", Kind::Expiry, Leaves::Other),
    fresh("load-sorted", "bulk-load all rows in key order", Kind::LoadSorted, Leaves::Other),
    fresh("queue", "push to the end, pop the head by scanning for it", Kind::Queue, Leaves::Other),
    fresh("load", "insert all rows in random order", Kind::Load, Leaves::Rows),
    mix("a", "YCSB A: half reads, half updates", Dist::Zipf, &[(50, Verb::Read), (50, Verb::Update)]),
    mix("b", "YCSB B: 95 % reads, 5 % updates", Dist::Zipf, &[(95, Verb::Read), (5, Verb::Update)]),
    mix("c", "YCSB C: reads", Dist::Zipf, &[(100, Verb::Read)]),
    mix("d", "YCSB D: 95 % reads of the latest, 5 % inserts", Dist::Latest, &[(95, Verb::Read), (5, Verb::Insert)]),
    mix("e", "YCSB E: 95 % scans of 1 to 100, 5 % inserts", Dist::Zipf, &[(95, Verb::Scan(1, 100)), (5, Verb::Insert)]),
    mix(
        "f",
        "YCSB F: half reads, half read-modify-writes",
        Dist::Zipf,
        &[(50, Verb::Read), (50, Verb::ReadModifyWrite)],
    ),
    mix("readmiss", "get keys that are not there", Dist::Uniform, &[(100, Verb::ReadAbsent)]),
    mix("multi-get", "get 32 rows at once", Dist::Uniform, &[(100, Verb::MultiGet(MULTI_GET))]),
    mix("scan-prefix", "visit about 16 rows by their prefix", Dist::Uniform, &[(100, Verb::ScanPrefix)]),
    mix("scan-long", "visit 10,000 rows", Dist::Uniform, &[(100, Verb::Scan(LONG_SCAN, LONG_SCAN))]),
    mix(
        "reverse-scan",
        "95 % scans of 1 to 100 downwards, 5 % inserts",
        Dist::Zipf,
        &[(95, Verb::ScanBack(1, 100)), (5, Verb::Insert)],
    ),
    mix("merge", "add to counters, blindly", Dist::Zipf, &[(100, Verb::Merge)]),
    mix("overwrite", "update rows, blindly", Dist::Uniform, &[(100, Verb::Update)]),
    mix("hotspot-write", "update rows, 99 % of the writes to 0.1 % of them", Dist::Hotspot, &[(100, Verb::Update)]),
    Workload {
        name: "delete",
        about: "delete nine rows in ten",
        start: Start::Rows,
        leaves: Leaves::Thinned,
        kind: Kind::Thin,
        dist: Dist::Uniform,
        set: DataSet::Main,
    },
    Workload {
        name: "delete-scan",
        about: "visit 100 rows where nine in ten were deleted",
        start: Start::Thinned,
        leaves: Leaves::Thinned,
        kind: Kind::Mix(&[(100, Verb::Scan(100, 100))]),
        dist: Dist::Uniform,
        set: DataSet::Main,
    },
    of(
        DataSet::Series,
        fresh("timeseries-load", "put a point to each of 1,000 series in turn", Kind::LoadPoints, ROWS),
    ),
    of(
        DataSet::Series,
        mix("timeseries-hour", "visit the newest 360 points of a series", Dist::Uniform, &[(100, Verb::LastHour)]),
    ),
    of(DataSet::Big4K, fresh("bigval-4k-load", "insert rows of 4 KiB in random order", Kind::Load, ROWS)),
    of(DataSet::Big4K, mix("bigval-4k-overwrite", "update rows of 4 KiB, blindly", Dist::Uniform, UPDATE)),
    of(DataSet::Big4K, mix("bigval-4k-a", "half reads, half updates of 4 KiB", Dist::Zipf, A)),
    of(DataSet::Big4K, mix("bigval-4k-scan", "visit 1 to 100 rows of 4 KiB", Dist::Zipf, SHORT_SCAN)),
    of(DataSet::Big16K, fresh("bigval-16k-load", "insert rows of 16 KiB in random order", Kind::Load, ROWS)),
    of(DataSet::Big16K, mix("bigval-16k-overwrite", "update rows of 16 KiB, blindly", Dist::Uniform, UPDATE)),
    of(DataSet::Big16K, mix("bigval-16k-a", "half reads, half updates of 16 KiB", Dist::Zipf, A)),
    of(DataSet::Big16K, mix("bigval-16k-scan", "visit 1 to 100 rows of 16 KiB", Dist::Zipf, SHORT_SCAN)),
    of(DataSet::Indexed, fresh("secondary-load", "insert rows with an index entry each", Kind::LoadIndexed, ROWS)),
    of(
        DataSet::Indexed,
        mix("secondary-update", "read a row; batch of 3 puts, 1 delete", Dist::Uniform, &[(100, Verb::UpdateIndexed)]),
    ),
    of(
        DataSet::Indexed,
        mix("secondary-lookup", "read up to 10 rows through the index", Dist::Uniform, &[(100, Verb::LookupIndexed)]),
    ),
    of(DataSet::Mixed, fresh("mixed-size-load", "insert values of 16 B to 8 KiB, median 128", Kind::Load, ROWS)),
    of(DataSet::Mixed, mix("mixed-size-a", "half reads, half updates with new lengths", Dist::Zipf, A)),
    of(DataSet::Mixed, mix("mixed-size-c", "reads of mixed sizes", Dist::Zipf, &[(100, Verb::Read)])),
    of(
        DataSet::Mixed,
        mix(
            "mixed-size-e",
            "95 % scans of 1 to 100, 5 % inserts",
            Dist::Zipf,
            &[(95, Verb::Scan(1, 100)), (5, Verb::Insert)],
        ),
    ),
];

const ROWS: Leaves = Leaves::Rows;
const A: &[(u8, Verb)] = &[(50, Verb::Read), (50, Verb::Update)];
const UPDATE: &[(u8, Verb)] = &[(100, Verb::Update)];
const SHORT_SCAN: &[(u8, Verb)] = &[(100, Verb::Scan(1, 100))];

/// Names that stand for several workloads: all workloads whose names begin with the name of the group and a hyphen.
pub const GROUPS: &[&str] = &["timeseries", "bigval", "bigval-4k", "bigval-16k", "secondary", "mixed-size"];

/// The name that stands for all of [`TRANSACTIONS`].
pub const TRANSACTIONS_GROUP: &str = "transactions";

/// Workloads with scans of one length each, for 002 fig. 3.10. These workloads can be named, but are not part of
/// [`ALL`].
pub const SCANS: &[Workload] = &[
    mix("scan-1", "visit 1 row", Dist::Zipf, &[(100, Verb::Scan(1, 1))]),
    mix("scan-10", "visit 10 rows", Dist::Zipf, &[(100, Verb::Scan(10, 10))]),
    mix("scan-100", "visit 100 rows", Dist::Zipf, &[(100, Verb::Scan(100, 100))]),
    mix("scan-1k", "visit 1,000 rows", Dist::Zipf, &[(100, Verb::Scan(1000, 1000))]),
    mix("scan-10k", "visit 10,000 rows", Dist::Zipf, &[(100, Verb::Scan(10_000, 10_000))]),
    mix("scan-100k", "visit 100,000 rows", Dist::Zipf, &[(100, Verb::Scan(100_000, 100_000))]),
];

/// A bulk load of the rows that `load` inserts, for the B+-tree of 001 figs. 8 and 9. It can be named, but is not part of
/// [`ALL`].
pub const BULK: &[Workload] =
    &[fresh("load-bulk", "bulk-load the rows of `load` in key order", Kind::LoadSortedRows, Leaves::Rows)];

impl Workload {
    /// Returns the workload with this name.
    pub fn find(name: &str) -> Option<&'static Workload> {
        ALL.iter().chain(SCANS).chain(BULK).chain(TRANSACTIONS).find(|workload| workload.name == name)
    }

    /// The operations that an engine must support for the workload.
    pub fn needs(&self) -> &'static [Need] {
        match self.kind {
            Kind::Expiry => &[Need::RangeDelete],
            Kind::LoadIndexed | Kind::Mix([(_, Verb::UpdateIndexed | Verb::LookupIndexed), ..]) => &[Need::Batch],
            Kind::LoadSorted | Kind::LoadSortedRows => &[Need::SortedLoad],
            Kind::Mix([(_, Verb::ScanBack(..)), ..]) => &[Need::ReverseScan],
            Kind::Mix([(100, Verb::Merge)]) => &[Need::Merge],
            Kind::Transactions(kind) => kind.needs(),
            _ => &[],
        }
    }

    /// Whether the workload always processes all records. A workload that does not may end at its time limit.
    pub fn is_whole(&self) -> bool {
        match self.kind {
            Kind::Load | Kind::LoadSeq | Kind::LoadMixed | Kind::Thin => true,
            Kind::LoadPoints | Kind::LoadIndexed | Kind::LoadSorted | Kind::LoadSortedRows => true,
            Kind::Mix(_) | Kind::Expiry | Kind::Queue | Kind::Transactions(_) => false,
        }
    }

    /// The workload that puts the rows of this workload's data set into an empty store.
    pub fn loader(&self) -> &'static Workload {
        let loads = |workload: &&Workload| workload.set == self.set && workload.leaves == Leaves::Rows;
        let mut loads = ALL.iter().filter(loads).filter(|workload| workload.start == Start::Fresh);
        loads.next().expect("each data set has a load")
    }

    /// Whether the workload picks rows by the distribution. Otherwise it has an order of its own.
    pub fn picks_rows(&self) -> bool {
        match self.kind {
            Kind::Mix(verbs) => !matches!(verbs, [(_, Verb::LastHour | Verb::LookupIndexed)]),
            Kind::Transactions(kind) => matches!(kind, Transactional::Bank { .. }),
            _ => false,
        }
    }

    /// Whether the workload has any writes.
    pub fn writes(&self) -> bool {
        let writes = |verb: &Verb| {
            matches!(verb, Verb::Insert | Verb::Update | Verb::ReadModifyWrite | Verb::Merge)
                || *verb == Verb::UpdateIndexed
        };
        match self.kind {
            Kind::Mix(verbs) => verbs.iter().any(|(_, verb)| writes(verb)),
            _ => true,
        }
    }
}

/// Parses names of workloads and of [`GROUPS`], separated by commas; `all` means [`ALL`], and `transactions` means
/// [`TRANSACTIONS`].
///
/// # Errors
/// If a name is unknown. The error names the first unknown workload.
///
/// ```
/// use pandodb_lab::workload::parse;
///
/// let names = |text| parse(text).map(|found| found.iter().map(|workload| workload.name).collect::<Vec<_>>());
/// assert_eq!(names("load,timeseries").unwrap(), ["load", "timeseries-load", "timeseries-hour"]);
/// assert!(names("lod").unwrap_err().contains("unknown workload `lod`"));
/// ```
pub fn parse(names: &str) -> Result<Vec<&'static Workload>, String> {
    if names == "all" {
        return Ok(ALL.iter().collect());
    }
    let mut workloads = Vec::new();
    for name in names.split(',').map(str::trim) {
        if name == TRANSACTIONS_GROUP {
            workloads.extend(TRANSACTIONS);
            continue;
        }
        if GROUPS.contains(&name) {
            let is_in =
                |workload: &&Workload| workload.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
            workloads.extend(ALL.iter().filter(is_in));
            continue;
        }
        let known = || {
            let names = ALL.iter().chain(TRANSACTIONS).map(|workload| workload.name);
            names.chain(GROUPS.iter().copied()).chain([TRANSACTIONS_GROUP]).collect::<Vec<_>>().join(", ")
        };
        let found =
            Workload::find(name).ok_or_else(|| format!("unknown workload `{name}`; known are all, {}", known()));
        workloads.push(found?);
    }
    Ok(workloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_a_load_first() {
        for group in GROUPS {
            let workloads = parse(group).unwrap();
            assert!(workloads.len() >= 2 && workloads[0].start == Start::Fresh, "{group}");
            assert!(workloads.iter().all(|workload| workload.loader().set == workload.set), "{group}");
        }
        assert_eq!(parse("bigval").unwrap().len(), 8);
        assert_eq!(parse("all").unwrap().len(), ALL.len());
    }

    #[test]
    fn the_documentation_describes_every_workload() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/LAB.md");
        let text = std::fs::read_to_string(path).unwrap();
        for workload in ALL {
            assert!(text.contains(&format!("`{}`", workload.name)), "{}", workload.name);
        }
    }
}
