//! Sorted loads: rows that come in key order are written as the index's own structure, and become visible and durable
//! at one moment, without passing the log and the memtables.
//!
//! ```text
//!   rows ─▶ checked ─▶ large values: own extents ─▶ chunk of 64 KiB                     the thread of the caller
//!                                                        └─▶ gate ─▶ SortedLoad::push   a helper, for several chunks
//!   end  ─▶ SortedLoad::finish ─▶ memtables of the keyspace packed ─▶ data file synced
//!   ┌ durable root ┌ sequencer, quiesced ────────────────────────────────────────────────────────┐
//!   │              │ memtable sealed and packed ─▶ seqno, record in the log ─▶ fresh memtable    │ commits wait
//!   │              │ ─▶ checkpoint with the rows ─▶ superblock durable ─▶ rows published, visible │
//!   │              └─────────────────────────────────────────────────────────────────────────────┘
//!   └ a second checkpoint, so that both superblocks reach the rows
//! ```
//!
//! 1. The whole load is one write with one seqno. This seqno is above the seqnos of all earlier writes, and these
//!    writes are in the index by then, because their memtables were packed under the quiesced sequencer. Later writes
//!    get higher seqnos and a fresh memtable. So newer containers hold only higher seqnos, as for every other write.
//! 2. The checkpoint is the only durable form of the load. The record in the log only keeps the seqnos of the log
//!    contiguous: replay applies nothing. So a crash before the superblock is durable leaves nothing of the load, and
//!    the pages that it has written are free after the next opening.
//! 3. The rows are published when the superblock is durable, and no commit can complete before. So no other write that
//!    depends on the rows can be durable without them.
//! 4. A failure before the superblock is written has no effect: pages and large values are freed. If it is unknown
//!    whether the superblock was written, the call returns [`Error::Indeterminate`], and large values stay allocated
//!    until the next opening. If a full disk ends the checkpoint, the seqno stays without a message. Other failures of
//!    the checkpoint poison the store, as always.
//!
//! An index without a loader gets the rows as one batch, which has the limit of a batch.
//!
//! In a store with background threads, a thread of the load ([`helper`]) passes the chunks to the index, while the
//! iterator of the caller makes the next rows. A load that fills no chunk needs no such thread.
//!
//! Locks: while rows are written, the gate, shared, for one chunk at a time; the iterator of the caller runs without
//! locks. At the end: a stream's append lock and the sequencer, under the durable root.

mod builder;
mod helper;

use std::mem::ManuallyDrop;

use self::builder::Builder;
use self::helper::Helper;
use super::batch::Batch;
use super::keyspace::Keyspace;
use super::options::Durability;
use crate::base::sync::EXPLORED;
use crate::base::{Entry, EntryBlock, Error, KeyRange, Kind, Result, Seqno, range::successor};
use crate::space::values::ValueWriter;

/// Rows are passed to the index in chunks that take about this many bytes of memory.
const CHUNK: usize = if EXPLORED { 24 } else { 64 << 10 };
/// An error shows at most this many bytes of a key.
const SHOWN: usize = 64;

const _: () = assert!(CHUNK > 0 && SHOWN > 0);

/// # Sorted loads
impl Keyspace {
    /// Loads rows that are sorted by key, and returns their number. This is the fastest way to write many rows: the
    /// index writes them once, in its final form, without the log and the memtables. The rows may overwrite existing
    /// keys, and other threads may read and write meanwhile.
    ///
    /// The load is one atomic write. It becomes visible as a whole when the call returns, and is then as durable as a
    /// write with [`Durability::Synced`]. Its rows are newer than every write that was committed before the end of the
    /// load. Snapshots that were taken before the end do not see it. An empty load does nothing.
    ///
    /// Commits of other threads wait only while the finished rows are attached. This takes about as long as a
    /// checkpoint. In a `btree` or `betree` that has older rows, background work then merges the rows with them. Until
    /// that is done, later writes to the keyspace stay in memtables, so writers may be throttled. The load needs the
    /// memory of one compaction, and twice the disk space of rows that it overwrites until they are compacted. In a
    /// store with background threads, a thread passes the rows to the index while `rows` makes the next ones. It starts
    /// with the first 64 KiB and ends with the call. The rows on their way to it take about 1/64 of the memory budget,
    /// at most about 2 MiB.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// let squares = (0..1000u64).map(|i| (i.to_be_bytes(), (i * i).to_le_bytes()));
    /// assert_eq!(ks.load_sorted(squares)?, 1000);
    /// assert_eq!(ks.get(12u64.to_be_bytes())?.unwrap(), 144u64.to_le_bytes());
    /// assert!(ks.load_sorted([("b", "1"), ("a", "2")]).is_err()); // not sorted: nothing is loaded
    /// assert!(ks.get("b")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// After an error the keyspace has no row of the load, unless the error is [`Error::Indeterminate`].
    /// [`Error::InvalidArgument`] with the number and the key of the row: if a key is not above the key of the row
    /// before it, or for the reasons of [`Keyspace::put`]. [`Error::DiskFull`], [`Error::Poisoned`], [`Error::Io`].
    ///
    /// # Panics
    /// If the thread of the load panics.
    pub fn load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>>(&self, rows: impl IntoIterator<Item = (K, V)>) -> Result<u64> {
        self.try_load_sorted(rows.into_iter().map(Ok))
    }

    /// Like [`Keyspace::load_sorted`], for rows from a source that can fail. The first error of the source ends the
    /// load and is returned, and nothing is loaded.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// let lines = ["a=1", "b=2", "c"];
    /// let rows = lines.map(|line| line.split_once('=').ok_or_else(|| format!("no `=` in {line}")));
    /// let loaded: Result<u64, Box<dyn std::error::Error>> = ks.try_load_sorted(rows.map(|row| Ok(row?)));
    /// assert_eq!(loaded.unwrap_err().to_string(), "no `=` in c");
    /// assert!(ks.get("a")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the source and of [`Keyspace::load_sorted`].
    ///
    /// # Panics
    /// As [`Keyspace::load_sorted`].
    pub fn try_load_sorted<K: AsRef<[u8]>, V: AsRef<[u8]>, E: From<crate::Error>>(
        &self,
        rows: impl IntoIterator<Item = std::result::Result<(K, V), E>>,
    ) -> std::result::Result<u64, E> {
        let mut load = Load::begin(self)?;
        for row in rows {
            let (key, value) = row?;
            load.push(key.as_ref(), value.as_ref())?;
        }
        Ok(load.finish()?)
    }
}

/// The receiver of the rows.
enum Sink<'a> {
    /// The index will build its own structure. No chunk was passed to it yet.
    Index,
    /// The index builds its own structure in the thread of the caller.
    Here(Builder<'a>),
    /// The index builds its own structure in another thread.
    Helper(Helper),
    /// The index has no loader.
    Batch(Batch),
}

/// A sorted load in progress. Dropping it before [`Load::finish`] has succeeded frees everything that it wrote.
pub(crate) struct Load<'a> {
    of: &'a Keyspace,
    sink: Sink<'a>,
    /// Rows that were checked and not passed to the index yet.
    chunk: EntryBlock,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    rows: u64,
    /// Bytes of keys and values.
    bytes: u64,
    /// The large values of the load. Taken when the load is finished.
    values: Option<ValueWriter>,
    /// The encoded reference of the last large value.
    reference: Vec<u8>,
    /// Whether the values are not validated by the keyspace's merge operator.
    trusting: bool,
}

impl<'a> Load<'a> {
    /// Starts a load.
    ///
    /// # Errors
    /// If the store or the keyspace accepts no writes.
    pub(crate) fn begin(of: &'a Keyspace) -> Result<Load<'a>> {
        of.engine.check_writable()?;
        of.state.check_alive()?;
        let sink = if Load::is_direct(of) { Sink::Index } else { Sink::Batch(Batch::new(of.engine.clone())) };
        let values = Some(ValueWriter::new(of.engine.core.data.clone(), u64::MAX));
        Ok(Load {
            of,
            sink,
            chunk: EntryBlock::new(),
            first_key: Vec::new(),
            last_key: Vec::new(),
            rows: 0,
            bytes: 0,
            values,
            reference: Vec::new(),
            trusting: false,
        })
    }

    /// Whether the index of a keyspace has a loader. If not, a load has the limit of a batch.
    pub(crate) fn is_direct(of: &Keyspace) -> bool {
        of.state.index.loader().is_some()
    }

    /// Turns off the validation of values. Copies of existing data need this, because an older version of an operator
    /// may have accepted values that the current version rejects.
    #[must_use]
    pub(crate) fn trusting(mut self) -> Load<'a> {
        assert!(self.rows == 0 && matches!(self.sink, Sink::Index), "set before the first row of a direct load");
        self.trusting = true;
        self
    }

    /// Whether `key` may be the key of the next row.
    pub(crate) fn is_next(&self, key: &[u8]) -> bool {
        self.rows == 0 || *self.last_key < *key
    }

    /// Adds the next row.
    ///
    /// # Errors
    /// As [`Keyspace::load_sorted`].
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let state = &self.of.state;
        let valid = || if self.trusting { Ok(()) } else { state.check_value(value) };
        state.check_put(key, value).and_then(|()| valid()).map_err(|e| self.at_row(key, e))?;
        if !self.is_next(key) {
            let detail =
                format!("the key {} does not follow the key {} of the row before", shown(key), shown(&self.last_key));
            return Err(self.at_row(key, Error::invalid(format!("{detail}; sort the rows by key, each key once"))));
        }
        if self.rows == 0 {
            self.first_key.extend_from_slice(key);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.rows += 1;
        self.bytes += (key.len() + value.len()) as u64;
        if let Sink::Batch(batch) = &mut self.sink {
            batch.put(self.of, key, value);
            return Ok(());
        }
        let (kind, value) = if ValueWriter::is_worth(value.len(), state.blob_threshold) {
            self.write_value(value)?;
            (Kind::BlobPut, &self.reference[..])
        } else {
            (Kind::Put, value)
        };
        self.chunk.push(Entry { key, seqno: Seqno::UNASSIGNED, kind, value });
        if self.chunk.memory() < CHUNK {
            return Ok(());
        }
        // A forked child must not start a thread.
        self.of.engine.check_writable()?;
        if matches!(self.sink, Sink::Index)
            && let Some(helper) = Helper::start(&self.of.engine.0, &self.of.state, CHUNK)
        {
            self.sink = Sink::Helper(helper);
        }
        self.flush()
    }

    /// Writes a large value, and encodes the reference to it.
    fn write_value(&mut self, value: &[u8]) -> Result<()> {
        let engine = &self.of.engine;
        // A forked child and an operator must not wait for the gate.
        engine.check_writable()?;
        let _gate = engine.gate.read();
        engine.check_writable()?;
        engine.keep_back()?;
        engine.check_space(value.len() as u64)?;
        let values = self.values.as_mut().expect("taken when the load is finished");
        let blob = values.push(value).inspect_err(|e| {
            if matches!(e, Error::Io { .. }) {
                engine.poison(e);
            }
        })?;
        self.reference.clear();
        blob.encode(&mut self.reference);
        Ok(())
    }

    /// Adds the number of the row that has this key to an error about the arguments.
    fn at_row(&self, key: &[u8], error: Error) -> Error {
        match error {
            Error::InvalidArgument { detail } => {
                Error::invalid(format!("row {} ({}): {detail}; nothing was loaded", self.rows + 1, shown(key)))
            }
            other => other,
        }
    }

    /// Passes the chunk to the index.
    fn flush(&mut self) -> Result<()> {
        if matches!(self.sink, Sink::Index) {
            self.sink = Sink::Here(Builder::begin(&self.of.engine, &self.of.state)?);
        }
        match &mut self.sink {
            Sink::Here(builder) => builder.push(&self.chunk)?,
            Sink::Helper(helper) => helper.pass(&mut self.chunk)?,
            Sink::Index | Sink::Batch(_) => unreachable!("replaced above, and a batch fills no chunk"),
        }
        self.chunk.clear();
        Ok(())
    }

    /// Attaches the load. Returns the number of its rows, once they are visible and durable.
    ///
    /// # Errors
    /// As [`Keyspace::load_sorted`].
    pub(crate) fn finish(mut self) -> Result<u64> {
        let (of, started) = (self.of, self.of.engine.device.now());
        if self.rows == 0 {
            return Ok(0);
        }
        if let Sink::Batch(batch) = &mut self.sink {
            batch.commit(Durability::Synced)?;
            return Ok(self.rows);
        }
        if !self.chunk.is_empty() {
            self.flush()?;
        }
        let values = {
            let _gate = of.engine.gate.read();
            of.engine.check_writable()?;
            self.values.take().expect("a load is finished once").finish()?
        };
        let last_key = std::mem::take(&mut self.last_key);
        let range = KeyRange::new(std::mem::take(&mut self.first_key), successor(&last_key));
        // A panic must not free the pages of the values, because a superblock may name them.
        let mut values = ManuallyDrop::new(values);
        let attached = match std::mem::replace(&mut self.sink, Sink::Index) {
            Sink::Here(builder) => builder.finish(&range),
            Sink::Helper(helper) => helper.attach(range),
            Sink::Index | Sink::Batch(_) => unreachable!("the last chunk was passed to the index"),
        };
        if attached.is_ok() || of.engine.may_be_durable() {
            values.keep();
        }
        drop(ManuallyDrop::into_inner(values));
        attached?;
        of.engine.figures.writes.record(self.bytes, of.engine.device.now().saturating_sub(started));
        Ok(self.rows)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        if self.of.engine.access.is_inherited() {
            // What was written belongs to the load of the parent process. `Helper` checks this itself when it is
            // dropped.
            if let Sink::Here(builder) = std::mem::replace(&mut self.sink, Sink::Index) {
                std::mem::forget(builder);
            }
            std::mem::forget(self.values.take());
        }
        if let Some(values) = self.values.take().filter(|_| self.of.engine.may_be_durable()) {
            values.abandon();
        }
    }
}

/// A key in an error, in printable form.
fn shown(key: &[u8]) -> String {
    let more = if key.len() > SHOWN { "…" } else { "" };
    format!("\"{}\"{more}", key[..key.len().min(SHOWN)].escape_ascii())
}
