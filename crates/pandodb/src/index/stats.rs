//! What an index reports to the core: work owed, progress of a step, estimates and figures.
//!
//! Figures are a few fields that every index has ([`IndexStats`]) and named figures of its structure ([`Figure`]): the command line, the
//! lab and an exporter print those without knowing them.

/// Work that is not done yet: what accepted writes have caused, and what callers have asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes of memtables that the index has not written yet. They hold memory and log.
    pub memory_bytes: u64,
    /// Bytes of further work that writes have caused, such as compactions, at least once.
    pub work_bytes: u64,
    /// The same, where a caller asked for it ([`Index::compact`](super::Index::compact)): no write has caused this work, so no write is
    /// throttled for it.
    pub requested_bytes: u64,
    /// Work that has to be done before the keyspace takes many more writes; a part of `work_bytes`.
    pub deadline: Option<Deadline>,
}

impl Debt {
    /// All of it, in bytes.
    pub fn total(self) -> u64 {
        self.memory_bytes + self.work_bytes + self.requested_bytes
    }
}

/// A limit on when work must be done: `work_bytes` of it before `within_bytes` more bytes are written to the keyspace. A structure whose
/// levels have no room for a second arrival sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Bytes of work.
    pub work_bytes: u64,
    /// Bytes of writes; 0 counts as 1.
    pub within_bytes: u64,
}

impl Deadline {
    /// The unit of [`Deadline::rate`]: work for each byte written, times this.
    pub const UNIT: u64 = crate::sched::RATE_UNIT;

    /// Bytes of work for each byte that is written, in units of 1/[`Deadline::UNIT`], rounded up.
    pub fn rate(self) -> u64 {
        let rate = (u128::from(self.work_bytes) * u128::from(Deadline::UNIT)).div_ceil(self.within_bytes.max(1).into());
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// How much disk is left, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What outputs may take.
    pub bytes: u64,
    /// What packing is to leave of it, so that a piece of a compaction still fits: packing alone would fill the disk with deletes.
    pub spare: u64,
    /// Background work or a delete was refused for want of disk: anything that frees some is worth its price.
    pub urgent: bool,
}

/// What one step did.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Bytes read from inputs: the measure in which debt is paid. A step that prepares the end of a run reads none.
    pub bytes: u64,
    /// The index holds one more memtable now, of that many bytes of [`Debt::memory_bytes`]: the view's `through` has moved.
    pub absorbed: Option<u64>,
    /// There was nothing to do, or other threads are doing it.
    pub idle: bool,
    /// An input could not be read. It stays as it is and is no debt any more; other work goes on.
    pub damage: Option<crate::base::Error>,
}

/// An estimate of what a range holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Messages, superseded ones included.
    pub entries: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Whether a figure grows or says how things are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// Starts at 0 with each opening of the store and never falls.
    Counter,
    /// As of the call.
    Gauge,
}

/// A named figure of an index's own structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name: lower case, words joined by `_`, units last.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// Counter or gauge.
    pub kind: FigureKind,
    /// What it counts, in one sentence.
    pub about: &'static str,
}

/// Figures of the index of one keyspace: fields that every index has, and [`named`](IndexStats::named) figures of its structure.
/// Those *since opening* are counters: they start at 0 with each opening of the store and never fall. All others are gauges, as of the
/// call.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = pandodb::Store::open(dir.path().join("s"))?;
/// let events = store.keyspace("events")?;
/// let index = &store.stats()?.keyspaces[0].index;
/// assert_eq!(index.figure("levels"), 1, "an empty tree is one leaf");
/// for figure in &index.named {
///     println!("{} = {}: {}", figure.name, figure.value, figure.about);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Messages in the index, superseded ones included; deletes and merges count.
    pub entries: u64,
    /// Of these, tombstones of single keys.
    pub tombstones: u64,
    /// Bytes of keys and values in the index, large values included.
    pub logical_bytes: u64,
    /// Bytes that the index occupies on disk, large values included.
    pub disk_bytes: u64,
    /// Bytes of filters and other blocks that lookups want to find in the pool.
    pub search_bytes: u64,
    /// Bytes written for memtables that the index has taken, since opening.
    pub packed_bytes: u64,
    /// Bytes written by compactions since opening.
    pub compacted_bytes: u64,
    /// Compactions finished since opening.
    pub compactions: u64,
    /// Objects, such as runs, that a compaction could not read: they stay as they are until the store is opened again.
    pub damaged: u64,
    /// Work owed.
    pub debt: Debt,
    /// Figures of this type of index, in the order in which it lists them.
    pub named: Vec<Figure>,
}

impl IndexStats {
    /// The named figure; 0 if this type of index has none of that name.
    pub fn figure(&self, name: &str) -> u64 {
        self.named.iter().find(|figure| figure.name == name).map_or(0, |figure| figure.value)
    }

    /// Adds a named gauge.
    pub(crate) fn gauge(&mut self, name: &'static str, value: u64, about: &'static str) {
        self.add(Figure { name, value, kind: FigureKind::Gauge, about });
    }

    /// Adds a named counter.
    pub(crate) fn counter(&mut self, name: &'static str, value: u64, about: &'static str) {
        self.add(Figure { name, value, kind: FigureKind::Counter, about });
    }

    fn add(&mut self, figure: Figure) {
        debug_assert!(self.named.iter().all(|other| other.name != figure.name), "{} twice", figure.name);
        self.named.push(figure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_deadline_is_work_for_each_byte_written() {
        let rate = |work_bytes, within_bytes| Deadline { work_bytes, within_bytes }.rate();
        assert_eq!(rate(300, 100), 3 * Deadline::UNIT);
        assert_eq!(rate(1, 2), Deadline::UNIT / 2);
        assert_eq!(rate(5, 0), 5 * Deadline::UNIT, "a deadline that has passed counts as one byte away");
        assert_eq!(rate(u64::MAX, 1), u64::MAX, "too steep to be counted");
    }
}
