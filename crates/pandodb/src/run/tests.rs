//! Tests of runs. This file has the helpers; each submodule tests one concern.

mod caching;
mod compressed;
mod damage;
mod golden;
mod loaded;
mod ownership;
mod reading;
mod salvage;

use crate::blocks::BlockSource;
use std::sync::Arc;

use super::*;
use crate::base::random::Rng as Random;
use crate::base::{BlobRef, BlockAddr, Entry, KeyRange, Kind, OwnerId, PageNo, RangeTombstone, Seqno, StoreId};
use crate::device::mem::MemDevice;
use crate::pool::Pool;
use crate::space::{BlockKind, DataFile};

/// A message of the model with which runs are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    key: Vec<u8>,
    seqno: Seqno,
    kind: Kind,
    value: Vec<u8>,
}

impl Message {
    fn entry(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, value: &self.value }
    }
}

fn owned(entry: Entry<'_>) -> Message {
    Message { key: entry.key.to_vec(), seqno: entry.seqno, kind: entry.kind, value: entry.value.to_vec() }
}

/// A data file in memory with a pool.
struct Bench {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
}

impl Bench {
    fn new() -> Bench {
        let data = DataFile::create(&*MemDevice::new(), "data", StoreId([7; 16])).unwrap();
        Bench { data, pool: Arc::new(Pool::new(4 << 20)) }
    }

    fn build(&self, id: u64, messages: &[Message], tombstones: &[RangeTombstone]) -> RunMeta {
        let size: usize = messages.iter().map(|message| message.key.len() + message.value.len() + 10).sum();
        let mut builder = RunBuilder::new(self.data.clone(), OwnerId(id), size as u64);
        messages.iter().for_each(|message| builder.push(message.entry()).unwrap());
        tombstones.iter().for_each(|tombstone| builder.push_tombstone(tombstone.clone()));
        builder.finish().unwrap().expect("something was pushed")
    }

    fn open(&self, meta: RunMeta) -> Arc<RunSlice> {
        RunSlice::whole(Run::open(self.data.clone(), self.pool.clone(), meta).unwrap())
    }

    fn run(&self, id: u64, messages: &[Message]) -> Arc<RunSlice> {
        self.open(self.build(id, messages, &[]))
    }

    /// Finishes three checkpoints, so that pages that were freed earlier can be allocated again.
    fn checkpoints(&self) {
        for _ in 0..3 {
            self.data.begin_checkpoint();
            self.data.finish_checkpoint().unwrap();
        }
    }
}

/// Sorts messages into the order of runs.
fn sorted(mut messages: Vec<Message>) -> Vec<Message> {
    messages.sort_by(|a, b| a.entry().order(&b.entry()));
    messages
}

/// Random messages of every kind. A key has up to `versions` messages, values have up to `value_len` bytes.
fn random_messages(seed: u64, count: u64, versions: u64, value_len: u64) -> Vec<Message> {
    let mut random = Random(seed);
    let mut messages = Vec::new();
    let mut seqno = 1000;
    while (messages.len() as u64) < count {
        let family = random.below(3);
        let key = match family {
            0 => format!("user{:012}", random.below(count * 4)).into_bytes(),
            1 => [b"\xff".repeat(random.below(4) as usize + 1), random.bytes(1)].concat(),
            _ => {
                let len = random.index(40) + 1;
                random.bytes(len)
            }
        };
        for _ in 0..=random.below(versions) {
            seqno += 1 + random.below(3);
            let len = random.below(value_len + 1) as usize;
            let (kind, value) = match random.below(8) {
                0 => (Kind::Delete, Vec::new()),
                1 => (Kind::Merge, random.bytes(len)),
                2 => {
                    let mut value = Vec::new();
                    BlobRef { page: PageNo(seqno), len: 9_000, crc: 5 }.encode(&mut value);
                    (Kind::BlobPut, value)
                }
                _ => (Kind::Put, random.bytes(len)),
            };
            messages.push(Message { key: key.clone(), seqno: Seqno(seqno), kind, value });
        }
    }
    sorted(messages)
}

fn put(key: &[u8], seqno: u64, value: Vec<u8>) -> Message {
    Message { key: key.to_vec(), seqno: Seqno(seqno), kind: Kind::Put, value }
}

/// Keys and values of unusual sizes, among keys and values of ordinary sizes.
fn awkward_messages() -> Vec<Message> {
    let mut random = Random(5);
    let mut messages = random_messages(6, 300, 3, 60);
    let mut seqno = 1 << 20;
    let mut add = |key: Vec<u8>, value: Vec<u8>| {
        seqno += 1;
        messages.push(put(&key, seqno, value));
    };
    for last in 0..6u8 {
        let mut long = vec![b'k'; 65_534];
        long.push(last);
        add(long.clone(), random.bytes(10));
        add(long, Vec::new());
    }
    for (i, len) in [1 << 20, 65_536, 65_535, 4_096, 4_000, 40_000, 3 << 20].into_iter().enumerate() {
        add(format!("large{i}").into_bytes(), random.bytes(len));
        add(format!("large{i}").into_bytes(), random.bytes(3));
    }
    (0..3_000).for_each(|i| add(b"versions".to_vec(), random.bytes(i % 9)));
    // The messages of one key take 5 MiB, which is more than a leaf may hold, so they are in two leaves.
    (0..22).for_each(|_| add(b"operands".to_vec(), random.bytes(240 << 10)));
    add(b"operands\0".to_vec(), Vec::new());
    add(b"operands\0\0".to_vec(), Vec::new());
    sorted(messages)
}

/// Returns all entries from the cursor's position on.
fn drain(cursor: &mut RunCursor) -> Vec<Message> {
    let mut out = Vec::new();
    while let Some(entry) = cursor.entry() {
        out.push(owned(entry));
        cursor.advance().unwrap();
    }
    out
}

fn scan(slice: &Arc<RunSlice>, range: &KeyRange, reverse: bool, readahead: ReadAhead) -> Vec<Message> {
    drain(&mut RunCursor::new(slice.clone(), range, reverse, readahead).unwrap())
}

/// The messages of the model that a scan should return.
fn expected(messages: &[Message], range: &KeyRange, reverse: bool) -> Vec<Message> {
    let mut out: Vec<Message> = messages.iter().filter(|message| range.contains(&message.key)).cloned().collect();
    if reverse {
        out.reverse();
    }
    out
}

/// A range. Each bound is a key of the model, close to such a key, or empty.
fn random_range(random: &mut Random, messages: &[Message]) -> KeyRange {
    let mut bound = || {
        let mut key = messages[random.below(messages.len() as u64) as usize].key.clone();
        match random.below(5) {
            0 => key.truncate(1),
            1 => key.push(0),
            2 => key.clear(),
            _ => {}
        }
        key
    };
    let (a, b) = (bound(), bound());
    if a <= b || b.is_empty() { KeyRange::new(a, b) } else { KeyRange::new(b, a) }
}

/// Looks up a key through the pool and returns all its messages.
fn probe(slice: &Arc<RunSlice>, key: &[u8]) -> crate::Result<Vec<Message>> {
    probe_leaves(slice, key).map(|(messages, _)| messages)
}

/// Like [`probe`]. Also returns the number of leaves that the lookup searched.
fn probe_leaves(slice: &Arc<RunSlice>, key: &[u8]) -> crate::Result<(Vec<Message>, u64)> {
    let mut leaves = 0;
    let mut probe = RunProbe::new(crate::base::key_hash(key));
    let (mut out, mut block) = (Vec::new(), None);
    loop {
        match probe.step(slice, key, block.take())? {
            ProbeStep::Need(addr, kind) => {
                leaves += u64::from(kind == BlockKind::RunLeaf);
                block = Some(slice.run().load(addr, kind)?);
            }
            ProbeStep::Found(hit) => {
                for (entry, value) in hit.entries(key) {
                    assert_eq!(&hit.block[value], entry.value);
                    out.push(owned(entry));
                }
            }
            ProbeStep::Done => return Ok((out, leaves)),
        }
    }
}
