//! Test indexes with features that no registered index has yet. With them, tests ensure that the core supports these
//! features: keys in hash order, writes that bypass the memtable, and pages that change in place behind a latch. The
//! indexes have no loader, so tests also cover the loads of such an index.
//!
//! | type | order | writes |
//! | --- | --- | --- |
//! | `stub` | hash | memtables |
//! | `direct_stub` | hash | direct |
//! | `ordered_stub` | keys | direct |
//!
//! Each checkpoint writes all messages into one extent. No version is ever dropped, and no large value is freed before
//! the index is cleared.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::inspect::{SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
use super::owed::{Owing, Share};
use super::{
    Base, Changes, Checkpoint, Core, Cut, Debt, DirectTools, DirectWriter, Estimate, HashedKey, Index, IndexStats,
    IndexType, IndexView, Inspect, Lookup, Mode, Order, Prepared, Probe, Progress, RawCursor, Room, RootRecord,
    SealedBatch, Step,
};
use crate::base::codec::{Reader, put_varint};
use crate::base::sync::Mutex;
use crate::base::{
    BlobRef, Entry, EntryBlock, Error, Extent, Fragments, KeyCodec, KeyRange, Kind, OwnerId, RangeTombstone, Result,
    Seqno,
};
use crate::pool::Block;
use crate::resolve::Stripes;
use crate::space::DataFile;

pub static TYPE: IndexType = IndexType {
    name: "stub",
    about: "A hash table, for tests.",
    order: Order::Hashed,
    modes: &[Mode::Product],
    feature: 0,
    options: &[],
    create: |core, _, through| Ok(Arc::new(Stub::new(&TYPE, core, through))),
    open: |core, _, record, _| Ok(Arc::new(Stub::load(&TYPE, core, record)?)),
    first_blocks: |_, _| Vec::new(),
    describe_block: |_, _, _| false,
};

pub static DIRECT: IndexType = IndexType {
    name: "direct_stub",
    about: "A hash table that is written directly, for tests.",
    modes: &[Mode::Product, Mode::Paper],
    create: |core, _, through| Ok(Arc::new(Stub::new(&DIRECT, core, through))),
    open: |core, _, record, _| Ok(Arc::new(Stub::load(&DIRECT, core, record)?)),
    ..TYPE
};

pub static ORDERED: IndexType = IndexType {
    name: "ordered_stub",
    about: "A sorted table that is written directly, for tests.",
    order: Order::Sorted,
    create: |core, _, through| Ok(Arc::new(Stub::new(&ORDERED, core, through))),
    open: |core, _, record, _| Ok(Arc::new(Stub::load(&ORDERED, core, record)?)),
    ..DIRECT
};

thread_local! {
    /// The error of the next operations that this thread prepares.
    pub static REFUSAL: RefCell<Option<Error>> = const { RefCell::new(None) };
    /// The number of commits that this thread has prepared, and the number that it has applied.
    pub static COMMITS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// Called when this thread has prepared the next operations.
    pub static PREPARED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    /// The number of steps of indexes that are written directly.
    pub static STEPS: Cell<u64> = const { Cell::new(0) };
    /// Lets the next lookup of this thread lose a race with the drop of the versions that it needs.
    pub static RACE: Cell<Race> = const { Cell::new(Race::None) };
}

/// A lookup at a read point that is not registered, and the drop of versions, see [`RACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Race {
    None,
    /// The next lookup finds no message.
    Armed,
    /// A lookup has found no message, and the horizon has not told its reader yet.
    Lost,
}

/// A stored key with a seqno. The newest seqno of a key comes first.
type Place = (Vec<u8>, Reverse<Seqno>);
type Messages = BTreeMap<Place, (Kind, Vec<u8>)>;

/// The "page", which changes in place behind a latch. Every version remains in the page, so that a view reads the page
/// at the view's own `through`.
#[derive(Default)]
struct Page {
    messages: Mutex<Messages>,
    tombstones: Mutex<Vec<RangeTombstone>>,
}

struct Stub {
    kind: &'static IndexType,
    page: Mutex<Arc<Page>>,
    /// All messages up to this seqno were packed, or are in the root. Messages that were written directly are above it
    /// until the next checkpoint.
    through: Mutex<Seqno>,
    /// Bytes of keys and values that no checkpoint has written.
    unwritten: Mutex<u64>,
    queue: Mutex<Vec<SealedBatch>>,
    owing: Owing,
    /// The data file; `None` if the index is not part of a store.
    data: Option<Arc<DataFile>>,
    /// The messages that the last checkpoint wrote.
    stored: Mutex<Option<BlobRef>>,
}

impl Stub {
    fn empty(kind: &'static IndexType) -> Stub {
        Stub {
            kind,
            page: Mutex::default(),
            through: Mutex::default(),
            unwritten: Mutex::default(),
            queue: Mutex::default(),
            owing: Owing::new(Share::default()),
            data: None,
            stored: Mutex::default(),
        }
    }

    fn new(kind: &'static IndexType, core: &Core, through: Seqno) -> Stub {
        let owing = Owing::new(core.share.clone());
        Stub { through: Mutex::new(through), owing, data: Some(core.data.clone()), ..Stub::empty(kind) }
    }

    fn load(kind: &'static IndexType, core: &Core, record: &RootRecord) -> Result<Stub> {
        let stub = Stub::new(kind, core, record.through);
        let blob = BlobRef::decode(&record.bytes)?;
        let bytes = core.data.read_blob(&blob)?;
        let mut reader = Reader::new(&bytes[..blob.len as usize], "stub");
        while !reader.is_empty() {
            let [key, value] = [reader.varint()?, reader.varint()?].map(|len| len as usize);
            let (seqno, kind) = (Seqno(reader.varint()?), Kind::from_u8(reader.varint()? as u8).expect("a kind"));
            let (key, value) = (reader.take(key)?, reader.take(value)?);
            stub.page().write(&Entry { key, seqno, kind, value });
        }
        *stub.stored.lock() = Some(blob);
        Ok(stub)
    }

    fn page(&self) -> Arc<Page> {
        self.page.lock().clone()
    }

    fn is_direct(&self) -> bool {
        self.kind.name != TYPE.name
    }

    /// Writes the messages up to `through`, and frees the messages that the last checkpoint wrote.
    fn store(&self, through: Seqno) -> Result<Vec<u8>> {
        let (Some(data), mut bytes, mut unwritten) = (&self.data, Vec::new(), 0) else { return Ok(Vec::new()) };
        self.page().for_each(|entry| {
            if entry.seqno > through {
                unwritten += (entry.key.len() + entry.value.len()) as u64;
                return;
            }
            let numbers = [entry.key.len() as u64, entry.value.len() as u64, entry.seqno.0, entry.kind as u64];
            numbers.into_iter().for_each(|number| put_varint(&mut bytes, number));
            bytes.extend_from_slice(entry.key);
            bytes.extend_from_slice(entry.value);
        });
        let (blob, mut root) = (if bytes.is_empty() { None } else { Some(data.write_blob(&bytes)?) }, Vec::new());
        let before = std::mem::replace(&mut *self.stored.lock(), blob);
        before.into_iter().for_each(|blob| data.free(blob.extent()));
        self.stored.lock().iter().for_each(|blob| blob.encode(&mut root));
        if self.is_direct() {
            (*self.through.lock(), *self.unwritten.lock()) = (through, unwritten);
        }
        Ok(root)
    }

    /// Applies a message that does not come from a memtable.
    fn write_direct(&self, entry: &Entry<'_>) {
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        self.page().write(entry);
        *self.unwritten.lock() += bytes;
        // A real index would divide pages, for example.
        self.owing.change(|debt| debt.work_bytes += bytes);
    }
}

impl Page {
    fn write(&self, entry: &Entry<'_>) {
        if entry.kind == Kind::RangeDelete {
            let range = KeyRange::new(entry.key, entry.value);
            return self.tombstones.lock().push(RangeTombstone { range, seqno: entry.seqno });
        }
        let place = (entry.key.to_vec(), Reverse(entry.seqno));
        let before = self.messages.lock().insert(place, (entry.kind, entry.value.to_vec()));
        assert!(before.is_none(), "a message is applied once");
    }

    /// Visits all messages, then all range tombstones.
    fn for_each(&self, mut visit: impl FnMut(&Entry<'_>)) {
        for ((key, seqno), (kind, value)) in self.messages.lock().iter() {
            visit(&Entry { key, seqno: seqno.0, kind: *kind, value });
        }
        for RangeTombstone { range, seqno } in self.tombstones.lock().iter() {
            visit(&Entry { key: &range.from, seqno: *seqno, kind: Kind::RangeDelete, value: &range.to });
        }
    }

    /// The large values of all messages.
    fn large_values(&self) -> Vec<BlobRef> {
        let mut found = Vec::new();
        self.for_each(|entry| {
            if entry.kind == Kind::BlobPut {
                found.push(BlobRef::decode(entry.value).expect("a reference"));
            }
        });
        found
    }
}

struct StubView {
    page: Arc<Page>,
    through: Seqno,
}

struct StubProbe<'v>(&'v StubView);

impl<'v> Probe<'v> for StubProbe<'v> {
    fn step(&mut self, _: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        if RACE.get() == Race::Armed {
            RACE.set(Race::Lost);
            return Ok(Step::Done);
        }
        let covers = |tombstone: &&RangeTombstone| tombstone.range.contains(lookup.key) && tombstone.seqno <= lookup.at;
        let covering = self.0.page.tombstones.lock().iter().filter(covers).map(|tombstone| tombstone.seqno).max();
        lookup.enter(covering.unwrap_or_default());
        let page = self.0.page.messages.lock();
        let (wanted, from) = (lookup.key, (lookup.key.to_vec(), Reverse(lookup.at)));
        for ((key, seqno), (kind, value)) in page.range(from..).take_while(|((key, _), _)| key == wanted) {
            // The value is copied, because the bytes of a page that changes in place cannot be borrowed.
            let entry = Entry { key, seqno: seqno.0, kind: *kind, value };
            if lookup.take(&entry, || Base::Owned(value.as_slice().into()))?.is_break() {
                break;
            }
        }
        Ok(Step::Done)
    }
}

/// A cursor that returns all messages in one block, which is sufficient for a test.
struct StubCursor(Vec<(Place, (Kind, Vec<u8>))>, bool);

impl RawCursor for StubCursor {
    fn fill(&mut self, _: usize, out: &mut EntryBlock) -> Result<()> {
        for ((key, seqno), (kind, value)) in self.0.drain(..) {
            out.push(Entry { key: &key, seqno: seqno.0, kind, value: &value });
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let reverse = self.1;
        self.0.retain(|((own, _), _)| if reverse { own.as_slice() <= key } else { own.as_slice() >= key });
        Ok(())
    }
}

impl IndexView for StubView {
    fn through(&self) -> Seqno {
        self.through
    }

    fn horizon(&self) -> Seqno {
        if RACE.get() == Race::Lost {
            RACE.set(Race::None);
            return Seqno::MAX;
        }
        Seqno(0)
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(StubProbe(self))
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        let page = self.page.messages.lock();
        let seen = page.iter().filter(|((key, seqno), _)| range.contains(key) && seqno.0 <= self.through);
        let mut messages: Vec<_> = seen.map(|(place, message)| (place.clone(), message.clone())).collect();
        if reverse {
            messages.reverse();
        }
        Ok(Box::new(StubCursor(messages, reverse)))
    }

    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()> {
        let is_seen = |tombstone: &&RangeTombstone| tombstone.range.overlaps(range) && tombstone.seqno <= self.through;
        out.extend(self.page.tombstones.lock().iter().filter(is_seen).cloned());
        Ok(())
    }
}

impl Index for Stub {
    fn index_type(&self) -> &'static IndexType {
        self.kind
    }

    fn ingest(&self, batch: SealedBatch) {
        assert!(!self.is_direct(), "the memtable of an index that is written directly is empty");
        self.owing.change(|debt| debt.memory_bytes += batch.bytes);
        self.queue.lock().push(batch);
    }

    fn direct(&self) -> Option<&dyn DirectWriter> {
        self.is_direct().then_some(self as &dyn DirectWriter)
    }

    fn view(&self) -> Arc<dyn IndexView> {
        let through = if self.is_direct() { Seqno::MAX } else { self.stored_through() };
        Arc::new(StubView { page: self.page(), through })
    }

    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView)) {
        look(&*self.view());
    }

    fn debt(&self) -> Debt {
        self.owing.debt()
    }

    fn step(&self, _: u64, _: &dyn Fn() -> Stripes) -> Result<Progress> {
        let work = self.debt().work_bytes;
        if work > 0 {
            self.owing.change(|debt| debt.work_bytes -= work);
            STEPS.set(STEPS.get() + 1);
            return Ok(Progress { bytes: work, ..Progress::default() });
        }
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            return Ok(Progress { idle: true, ..Progress::default() });
        }
        let batch = queue.remove(0);
        let mut block = EntryBlock::new();
        batch.memtable.fill(&KeyRange::all(), None, false, usize::MAX, usize::MAX, &mut block);
        block.iter().for_each(|entry| self.page().write(&entry));
        *self.through.lock() = batch.through;
        self.owing.change(|debt| debt.memory_bytes -= batch.bytes);
        Ok(Progress { bytes: batch.bytes, absorbed: Some(batch.bytes), ..Progress::default() })
    }

    fn relieve(&self, _: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.step(u64::MAX, keep)
    }

    fn on_idle(&self) {}

    fn compact(&self, _: &KeyRange) -> Result<()> {
        Ok(())
    }

    fn begin_checkpoint(&self, cut: Seqno) -> Box<dyn Checkpoint + '_> {
        Box::new(StubCheckpoint(self, if self.is_direct() { cut } else { self.stored_through() }))
    }

    fn stored_through(&self) -> Seqno {
        *self.through.lock()
    }

    fn clear(&self) {
        self.owing.end();
        // Readers that have pinned a view still use the page.
        let large = std::mem::take(&mut *self.page.lock()).large_values();
        if let Some(data) = &self.data {
            self.stored.lock().take().into_iter().chain(large).for_each(|blob| data.free(blob.extent()));
        }
    }

    fn estimate(&self, _: &KeyRange) -> Result<Estimate> {
        Ok(Estimate { entries: self.entries().0, bytes: 0 })
    }

    fn entries(&self) -> (u64, u64) {
        (self.page().messages.lock().len() as u64, 0)
    }

    fn stats(&self) -> IndexStats {
        let mut stats = IndexStats { entries: self.entries().0, ..IndexStats::default() };
        stats.gauge("pages", 1, "Pages.");
        stats
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

struct StubCheckpoint<'a>(&'a Stub, Seqno);

impl Checkpoint for StubCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.1
    }

    fn write(self: Box<Self>, _: &dyn Fn() -> Stripes) -> Result<Cut> {
        let (stub, through) = (self.0, self.1);
        Ok(Cut { root: RootRecord { through, bytes: stub.store(through)? }, pin: stub.view(), damage: None })
    }
}

/// A pinned stub. It has no blocks, and owns the pages of the messages that its last checkpoint wrote, and the large
/// values.
struct PinnedStub(Arc<dyn IndexView>, Vec<BlobRef>);

impl Verification for PinnedStub {
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        self.1.iter().for_each(|blob| visit(blob.extent()));
    }

    fn check(&self, visitor: &mut dyn Visitor) -> Result<()> {
        let (mut cursor, mut block) = (self.0.clone().drain()?, EntryBlock::new());
        cursor.fill(usize::MAX, &mut block)?;
        block.iter().for_each(|entry| visitor.entry(&entry));
        Ok(())
    }
}

impl Inspect for Stub {
    fn pin(&self) -> Box<dyn Verification + '_> {
        let mut blobs = self.page().large_values();
        blobs.extend(*self.stored.lock());
        Box::new(PinnedStub(self.view(), blobs))
    }

    fn describe(&self, object: Option<OwnerId>, _: &mut String) -> bool {
        object.is_none()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        // A salvage sees what is on the disk.
        let (mut tombstones, view) = (Vec::new(), StubView { page: self.page(), through: self.stored_through() });
        view.tombstones(&KeyRange::all(), &mut tombstones).expect("copied from memory");
        let messages = Arc::new(view).drain().expect("copied from memory");
        let source = StubSource(KeyRange::all(), messages, Arc::new(Fragments::build(&tombstones)));
        vec![SalvagePiece { range: KeyRange::all(), sources: vec![Box::new(source)], lost: None }]
    }
}

struct StubSource(KeyRange, Box<dyn RawCursor>, Arc<Fragments>);

impl SalvageSource for StubSource {
    fn range(&self) -> &KeyRange {
        &self.0
    }

    fn tombstones(&self) -> Result<Arc<Fragments>> {
        Ok(self.2.clone())
    }

    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep {
        let before = out.len();
        self.1.fill(usize::MAX, out).expect("copied from memory");
        if out.len() == before { SalvageStep::End } else { SalvageStep::Entries }
    }

    fn may_hold(&self, _: &[u8]) -> bool {
        true
    }
}

/// Operations that are ready to be applied.
struct StubWrite<'a>(&'a Stub, Vec<(Vec<u8>, Kind, Vec<u8>)>);

impl DirectWriter for Stub {
    fn prepare<'a>(
        &'a self,
        operations: &mut dyn Iterator<Item = Entry<'a>>,
        tools: &DirectTools<'_>,
    ) -> Result<Box<dyn Prepared + 'a>> {
        if let Some(refusal) = REFUSAL.take() {
            return Err(refusal);
        }
        let own = |entry: Entry<'_>| {
            let is_all = || KeyRange::new(entry.key, entry.value) == KeyRange::all();
            assert!(entry.kind != Kind::RangeDelete || self.kind.order == Order::Sorted || is_all(), "no ranges");
            (entry.key.to_vec(), entry.kind, entry.value.to_vec())
        };
        let owned: Vec<_> = operations.map(own).collect();
        let bytes: usize = owned.iter().map(|(key, _, value)| key.len() + value.len()).sum();
        (tools.room)(*self.unwritten.lock() + bytes as u64)?;
        COMMITS.set((COMMITS.get().0 + 1, COMMITS.get().1));
        if let Some(prepared) = PREPARED.take() {
            prepared();
        }
        Ok(Box::new(StubWrite(self, owned)))
    }

    fn count_unwritten(&self, note: &dyn Fn(u64)) {
        note(*self.unwritten.lock());
    }

    fn replay(&self, message: &Entry<'_>, tools: &DirectTools<'_>) -> Result<()> {
        assert!(message.seqno > self.stored_through(), "a message that is stored is not replayed");
        (tools.room)(*self.unwritten.lock())?;
        self.write_direct(message);
        Ok(())
    }
}

impl Prepared for StubWrite<'_> {
    fn apply(self: Box<Self>, seqnos: &mut dyn Iterator<Item = Seqno>) {
        for (key, kind, value) in &self.1 {
            let seqno = seqnos.next().expect("each operation has a seqno");
            self.0.write_direct(&Entry { key, seqno, kind: *kind, value });
        }
        COMMITS.set((COMMITS.get().0, COMMITS.get().1 + 1));
    }
}

/// Prepares operations without the help of a store.
fn prepare<'a>(stub: &'a Stub, operations: &mut dyn Iterator<Item = Entry<'a>>) -> Result<Box<dyn Prepared + 'a>> {
    let tools = DirectTools { keep: &Stripes::default, room: &|_| Ok(()), inline_bytes: usize::MAX };
    stub.direct().expect("written directly").prepare(operations, &tools)
}

fn stored(key: &str) -> Vec<u8> {
    TYPE.order.codec().stored(key.as_bytes(), &mut Vec::new()).to_vec()
}

fn get(stub: &Stub, key: &str, at: u64) -> Option<Vec<u8>> {
    let (view, key) = (stub.view(), stored(key));
    let mut lookup = Lookup::new(KeyCodec::Hashed, &key, Seqno(at).min(view.through()));
    let step = view.probe(&lookup).step(None, &mut lookup).unwrap();
    assert!(matches!(step, Step::Done));
    match lookup.base {
        Base::Owned(value) => Some(value.to_vec()),
        _ => None,
    }
}

#[test]
fn a_direct_write_is_refused_before_it_has_a_seqno_or_applied_as_a_whole() {
    let stub = Stub::empty(&DIRECT);
    let keys = [stored("a"), stored("b")];
    let put = |key| Entry { key, seqno: Seqno(0), kind: Kind::Put, value: b"1" };
    let prepared = prepare(&stub, &mut keys.iter().map(|key| put(key))).unwrap();
    assert_eq!(get(&stub, "a", 9), None, "prepared only");
    prepared.apply(&mut [Seqno(5), Seqno(7)].into_iter());
    assert_eq!((get(&stub, "a", 9), get(&stub, "b", 9)), (Some(b"1".to_vec()), Some(b"1".to_vec())));
    assert_eq!(get(&stub, "b", 6), None, "the second operation has seqno 7");
    REFUSAL.set(Some(Error::DiskFull { op: "test" }));
    assert!(prepare(&stub, &mut keys.iter().map(|key| put(key))).is_err(), "refused");
}

#[test]
fn changes_are_found_by_key_and_by_range() {
    let stub = Stub::empty(&DIRECT);
    let keys = [stored("a"), stored("b")];
    let put = |key| Entry { key, seqno: Seqno(0), kind: Kind::Put, value: b"1" };
    prepare(&stub, &mut keys.iter().map(|key| put(key))).unwrap().apply(&mut (5..).map(Seqno));
    let view = || stub.view();
    let [a, b] = &keys;
    let hashed = |key| HashedKey { key, hash: 0 };
    assert!(view().changed(hashed(b), Seqno(5), Changes::All).unwrap());
    assert!(!view().changed(hashed(a), Seqno(5), Changes::All).unwrap());
    assert!(view().changed_in(&KeyRange::all(), Seqno(5), Changes::All).unwrap());
    assert!(!view().changed_in(&KeyRange::all(), Seqno(6), Changes::All).unwrap());
    let (mut cursor, mut block) = (view().drain().unwrap(), EntryBlock::new());
    cursor.fill(1 << 20, &mut block).unwrap();
    assert_eq!(block.len(), 2, "a drain has every message");
}
