//! The reports of an index to the core: its pending work, the progress of a step, estimates and statistics.
//!
//! Some figures are fields that every index has ([`IndexStats`]). Others are named figures of its structure
//! ([`Figure`]), which the command line, the lab and exporters print generically.

/// Pending work that writes have caused, callers have requested, or reads would profit from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes of memtables that the index has not packed yet. These memtables occupy memory and log segments.
    pub memory_bytes: u64,
    /// Bytes of further work caused by writes, such as compactions. The number is a lower bound.
    pub work_bytes: u64,
    /// Like `work_bytes`, but for work that a caller requested ([`Index::compact`](super::Index::compact)). This work
    /// is not caused by a write, so no write is throttled for it.
    pub requested_bytes: u64,
    /// Like `requested_bytes`, but for work that only makes reads faster. It comes after all other work.
    pub optional_bytes: u64,
    /// The part of `work_bytes` that has a deadline. The deadline is a number of bytes that may still be written to the
    /// keyspace.
    pub deadline: Option<Deadline>,
}

impl Debt {
    /// The sum of all pending work, in bytes.
    pub fn total(self) -> u64 {
        self.memory_bytes + self.work_bytes + self.requested_bytes + self.optional_bytes
    }
}

/// A limit on when work must be done: `work_bytes` of work should be done before `within_bytes` more bytes are written to
/// the keyspace. A structure sets a deadline if a level should be emptied before more data arrives in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Bytes of work.
    pub work_bytes: u64,
    /// Bytes of writes; 0 counts as 1.
    pub within_bytes: u64,
}

impl Deadline {
    /// The unit of [`Deadline::rate`]: a rate is the work for each byte written, multiplied by this number.
    pub const UNIT: u64 = crate::sched::RATE_UNIT;

    /// Bytes of work for each byte that is written, in units of 1/[`Deadline::UNIT`], rounded up.
    pub fn rate(self) -> u64 {
        let rate = (u128::from(self.work_bytes) * u128::from(Deadline::UNIT)).div_ceil(self.within_bytes.max(1).into());
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// The free disk space, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Space for outputs.
    pub bytes: u64,
    /// The part of `bytes` that packing must leave free, so that a piece of a compaction still fits. Otherwise packing
    /// alone would fill the disk with deletes.
    pub spare: u64,
    /// Whether background work or a delete failed on a full disk. If so, any work that frees space is worth its cost.
    pub urgent: bool,
}

/// The result of one step.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The bytes that the step read from inputs. Debt decreases by this number. A step that prepares the end of a run
    /// reads no bytes.
    pub bytes: u64,
    /// If the step has finished packing a memtable, the bytes that this memtable contributed to [`Debt::memory_bytes`].
    /// In this case the `through` of the view has advanced.
    pub absorbed: Option<u64>,
    /// Bytes of pages that the step has written or replaced to merge a sorted load. Like an absorbed memtable, they
    /// request a checkpoint: until then the replaced pages are kept, and a crash repeats the work.
    pub merged: u64,
    /// Whether the step had nothing to do, because no work exists or other threads are already doing it.
    pub idle: bool,
    /// The damage, if an input could not be read. The damaged input is excluded and no longer counts as debt; other
    /// work continues.
    pub damage: Option<crate::base::Error>,
}

impl Progress {
    /// The outcome of a step that ended with `error`. If the error is damage, the work on the inputs of the step ends,
    /// and the inputs stay unchanged.
    ///
    /// # Errors
    /// Any error that is not damage.
    pub fn unless_damage(error: crate::base::Error) -> crate::base::Result<Progress> {
        match error.is_damage() {
            true => Ok(Progress { damage: Some(error), ..Progress::default() }),
            false => Err(error),
        }
    }
}

/// Estimated contents of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Messages, including superseded messages.
    pub entries: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Whether a figure is a counter or a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// A counter starts at 0 with each opening of the store and never falls.
    Counter,
    /// A gauge is the current value at the time of the call.
    Gauge,
}

/// A named figure of an index's own structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of the figure: lower case, words joined by `_`, units last.
    pub name: &'static str,
    /// The value of the figure.
    pub value: u64,
    /// Whether the figure is a counter or a gauge.
    pub kind: FigureKind,
    /// The meaning of the figure, in one sentence.
    pub about: &'static str,
}

/// Figures of the index of one keyspace: fields that every index has, and [`named`](IndexStats::named) figures of the
/// index's structure. Fields whose description contains *since opening* are counters: they start at 0 with each opening
/// of the store and never fall. All other fields are gauges, which show their value at the time of the call.
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
    /// Messages in the index, including superseded messages; deletes and merges count.
    pub entries: u64,
    /// The number of these messages that are tombstones of single keys.
    pub tombstones: u64,
    /// Bytes of keys and values in the index, large values included.
    pub logical_bytes: u64,
    /// Bytes that the index occupies on disk, large values included.
    pub disk_bytes: u64,
    /// Bytes of the filters and other blocks that should be in the pool for fast lookups.
    pub search_bytes: u64,
    /// Bytes written by packing memtables, since opening.
    pub packed_bytes: u64,
    /// Bytes written by compactions since opening.
    pub compacted_bytes: u64,
    /// Compactions finished since opening.
    pub compactions: u64,
    /// Objects, such as runs, that a compaction could not read. These objects are excluded until the store is reopened.
    pub damaged: u64,
    /// The pending work.
    pub debt: Debt,
    /// Figures of this type of index, in the order in which the index lists them.
    pub named: Vec<Figure>,
}

impl IndexStats {
    /// The figure with the name `name`; 0 if this type of index has none.
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
    fn the_rate_of_a_deadline_is_work_per_byte_written() {
        let rate = |work_bytes, within_bytes| Deadline { work_bytes, within_bytes }.rate();
        assert_eq!(rate(300, 100), 3 * Deadline::UNIT);
        assert_eq!(rate(1, 2), Deadline::UNIT / 2);
        assert_eq!(rate(5, 0), 5 * Deadline::UNIT, "a deadline that has passed counts as one byte away");
        assert_eq!(rate(u64::MAX, 1), u64::MAX, "too steep to be counted");
    }
}
