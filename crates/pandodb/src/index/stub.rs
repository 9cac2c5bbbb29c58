//! A test index with features that no registered index has yet. With this index, tests ensure that the core supports
//! these features: keys in hash order, writes that bypass the memtable, and pages that change in place behind a
//! latch. The index has no loader, so tests also cover the loads of such an index. Each checkpoint writes all messages into one extent.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::inspect::{SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
use super::owed::{Owing, Share};
use super::{
    Base, Changes, Checkpoint, Core, Cut, Debt, DirectWriter, Estimate, HashedKey, Index, IndexStats, IndexType,
    IndexView, Inspect, Lookup, Mode, Order, Prepared, Probe, Progress, RawCursor, Room, RootRecord, SealedBatch, Step,
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
    create: |core, _, through| Ok(Arc::new(Stub::new(core, through))),
    open: |core, _, record, _| Ok(Arc::new(Stub::load(core, record)?)),
    first_blocks: |_, _| Vec::new(),
    describe_block: |_, _, _| false,
};

/// A stored key with a seqno. The newest seqno of a key comes first.
type Place = (Vec<u8>, std::cmp::Reverse<Seqno>);

/// The "page", which changes in place behind a latch. Every version remains in the page, so that a view reads the page
/// at the view's own `through`.
#[derive(Default)]
struct Page(Mutex<BTreeMap<Place, (Kind, Vec<u8>)>>);

struct Stub {
    page: Arc<Page>,
    through: Mutex<Seqno>,
    queue: Mutex<Vec<SealedBatch>>,
    owing: Owing,
    /// The data file; `None` if the index is not part of a store.
    data: Option<Arc<DataFile>>,
    /// The messages that the last checkpoint wrote.
    stored: Mutex<Option<BlobRef>>,
}

impl Default for Stub {
    fn default() -> Stub {
        Stub {
            page: Arc::default(),
            through: Mutex::default(),
            queue: Mutex::default(),
            owing: Owing::new(Share::default()),
            data: None,
            stored: Mutex::default(),
        }
    }
}

impl Stub {
    fn new(core: &Core, through: Seqno) -> Stub {
        let owing = Owing::new(core.share.clone());
        Stub { through: Mutex::new(through), owing, data: Some(core.data.clone()), ..Stub::default() }
    }

    fn load(core: &Core, record: &RootRecord) -> Result<Stub> {
        let stub = Stub::new(core, record.through);
        let blob = BlobRef::decode(&record.bytes)?;
        let bytes = core.data.read_blob(&blob)?;
        let mut reader = Reader::new(&bytes[..blob.len as usize], "stub");
        while !reader.is_empty() {
            let [key, value] = [reader.varint()?, reader.varint()?].map(|len| len as usize);
            let (seqno, kind) = (Seqno(reader.varint()?), Kind::from_u8(reader.varint()? as u8).expect("a kind"));
            let (key, value) = (reader.take(key)?, reader.take(value)?);
            stub.page.write(&Entry { key, seqno, kind, value });
        }
        *stub.stored.lock() = Some(blob);
        Ok(stub)
    }

    /// Writes the messages up to `through`, and frees the messages that the last checkpoint wrote.
    fn store(&self, through: Seqno) -> Result<Vec<u8>> {
        let (Some(data), mut bytes) = (&self.data, Vec::new()) else { return Ok(Vec::new()) };
        for ((key, seqno), (kind, value)) in self.page.0.lock().iter().filter(|((_, seqno), _)| seqno.0 <= through) {
            let numbers = [key.len() as u64, value.len() as u64, seqno.0.0, *kind as u64];
            numbers.into_iter().for_each(|number| put_varint(&mut bytes, number));
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        let (blob, mut root) = (if bytes.is_empty() { None } else { Some(data.write_blob(&bytes)?) }, Vec::new());
        let before = std::mem::replace(&mut *self.stored.lock(), blob);
        before.into_iter().for_each(|blob| data.free(blob.extent()));
        self.stored.lock().iter().for_each(|blob| blob.encode(&mut root));
        Ok(root)
    }
}

impl Page {
    fn write(&self, entry: &Entry<'_>) {
        let place = (entry.key.to_vec(), std::cmp::Reverse(entry.seqno));
        self.0.lock().insert(place, (entry.kind, entry.value.to_vec()));
    }
}

struct StubView {
    page: Arc<Page>,
    through: Seqno,
}

struct StubProbe<'v>(&'v StubView);

impl<'v> Probe<'v> for StubProbe<'v> {
    fn step(&mut self, _: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        let page = self.0.page.0.lock();
        let (wanted, from) = (lookup.key, (lookup.key.to_vec(), std::cmp::Reverse(lookup.at)));
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
        Seqno(0)
    }

    fn probe<'v>(&'v self, _: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v> {
        Box::new(StubProbe(self))
    }

    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>> {
        let page = self.page.0.lock();
        let seen = page.iter().filter(|((key, seqno), _)| range.contains(key) && seqno.0 <= self.through);
        let mut messages: Vec<_> = seen.map(|(place, message)| (place.clone(), message.clone())).collect();
        if reverse {
            messages.reverse();
        }
        Ok(Box::new(StubCursor(messages, reverse)))
    }

    fn tombstones(&self, _: &KeyRange, _: &mut Vec<RangeTombstone>) -> Result<()> {
        Ok(())
    }
}

impl Index for Stub {
    fn index_type(&self) -> &'static IndexType {
        &TYPE
    }

    fn ingest(&self, batch: SealedBatch) {
        self.owing.change(|debt| debt.memory_bytes += batch.bytes);
        self.queue.lock().push(batch);
    }

    fn direct(&self) -> Option<&dyn DirectWriter> {
        Some(self)
    }

    fn view(&self) -> Arc<dyn IndexView> {
        Arc::new(StubView { page: self.page.clone(), through: *self.through.lock() })
    }

    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView)) {
        look(&*self.view());
    }

    fn debt(&self) -> Debt {
        self.owing.debt()
    }

    fn step(&self, _: u64, _: &dyn Fn() -> Stripes) -> Result<Progress> {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            return Ok(Progress { idle: true, ..Progress::default() });
        }
        let batch = queue.remove(0);
        let mut block = EntryBlock::new();
        batch.memtable.fill(&KeyRange::all(), None, false, usize::MAX, usize::MAX, &mut block);
        block.iter().for_each(|entry| self.page.write(&entry));
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

    fn begin_checkpoint(&self) -> Box<dyn Checkpoint + '_> {
        Box::new(StubCheckpoint(self, self.view()))
    }

    fn clear(&self) {
        self.owing.end();
        self.page.0.lock().clear();
        if let (Some(data), Some(blob)) = (&self.data, self.stored.lock().take()) {
            data.free(blob.extent());
        }
    }

    fn estimate(&self, _: &KeyRange) -> Result<Estimate> {
        Ok(Estimate { entries: self.entries().0, bytes: 0 })
    }

    fn entries(&self) -> (u64, u64) {
        (self.page.0.lock().len() as u64, 0)
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

struct StubCheckpoint<'a>(&'a Stub, Arc<dyn IndexView>);

impl Checkpoint for StubCheckpoint<'_> {
    fn through(&self) -> Seqno {
        self.1.through()
    }

    fn write(self: Box<Self>) -> Result<Cut> {
        let through = self.1.through();
        Ok(Cut { root: RootRecord { through, bytes: self.0.store(through)? }, pin: self.1 })
    }
}

/// A pinned stub. It has no blocks, and owns the pages of the messages that its last checkpoint wrote.
struct PinnedStub(Arc<dyn IndexView>, Option<BlobRef>);

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
        Box::new(PinnedStub(self.view(), *self.stored.lock()))
    }

    fn describe(&self, object: Option<OwnerId>, _: &mut String) -> bool {
        object.is_none()
    }

    fn salvage(&self) -> Vec<SalvagePiece> {
        let source = StubSource(KeyRange::all(), self.view().drain().expect("copied from memory"));
        vec![SalvagePiece { range: KeyRange::all(), sources: vec![Box::new(source)], lost: None }]
    }
}

struct StubSource(KeyRange, Box<dyn RawCursor>);

impl SalvageSource for StubSource {
    fn range(&self) -> &KeyRange {
        &self.0
    }

    fn tombstones(&self) -> Result<Arc<Fragments>> {
        Ok(Arc::default())
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
    fn prepare<'a>(&'a self, operations: &mut dyn Iterator<Item = Entry<'a>>) -> Result<Box<dyn Prepared + 'a>> {
        let own = |entry: Entry<'_>| match entry.kind {
            Kind::RangeDelete => Err(Error::Unsupported { detail: "a hash table has no ranges".into() }),
            kind => Ok((entry.key.to_vec(), kind, entry.value.to_vec())),
        };
        Ok(Box::new(StubWrite(self, operations.map(own).collect::<Result<_>>()?)))
    }
}

impl Prepared for StubWrite<'_> {
    fn apply(self: Box<Self>, first: Seqno) {
        for ((key, kind, value), seqno) in self.1.iter().zip(first.0..) {
            self.0.page.write(&Entry { key, seqno: Seqno(seqno), kind: *kind, value });
        }
        let mut through = self.0.through.lock();
        *through = Seqno(first.0 + self.1.len() as u64 - 1).max(*through);
    }
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
    let stub = Stub::default();
    let writer = stub.direct().unwrap();
    let keys = [stored("a"), stored("b")];
    let put = |key| Entry { key, seqno: Seqno(0), kind: Kind::Put, value: b"1" };
    let prepared = writer.prepare(&mut keys.iter().map(|key| put(key))).unwrap();
    assert_eq!(get(&stub, "a", 9), None, "prepared only");
    prepared.apply(Seqno(5));
    assert_eq!((get(&stub, "a", 9), get(&stub, "b", 9)), (Some(b"1".to_vec()), Some(b"1".to_vec())));
    assert_eq!(get(&stub, "b", 5), None, "the second operation has seqno 6");
    let range = [Entry { key: b"a", seqno: Seqno(0), kind: Kind::RangeDelete, value: b"" }];
    assert!(writer.prepare(&mut range.into_iter()).is_err(), "refused");
}

#[test]
fn changes_are_found_by_key_and_by_range() {
    let stub = Stub::default();
    let keys = [stored("a"), stored("b")];
    let put = |key| Entry { key, seqno: Seqno(0), kind: Kind::Put, value: b"1" };
    stub.direct().unwrap().prepare(&mut keys.iter().map(|key| put(key))).unwrap().apply(Seqno(5));
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
