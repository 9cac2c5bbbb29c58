//! Tests of the log. A batch is identified by its first seqno. Its payload is computed from this seqno, so replayed
//! batches can be checked without a model.

mod ahead;
mod bytes;
mod crash;
mod recover;
mod skip;
mod streams;
mod write;

use std::sync::Arc;

use super::format::{BLOCK, Head, Header, RecordKind, put_record};
use super::{Claims, Log, LogOptions, MayTake, Mode, Record, ReplayReport, Visit, inspect, replay, segment_name};
use crate::base::{Error, Result, Seqno, StoreId};
use crate::device::{Device, OpenHow, read_exact_at, write_all_at};

const STORE: StoreId = StoreId(*b"the store of log");
/// Permits every allocation.
const UNLIMITED: MayTake<'static> = &|_| Ok(());

/// The payload of the batch that begins at `first`: `len` bytes, determined by `first`.
fn payload(first: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (first * 31 + i * 7 + (i >> 8)) as u8).collect()
}

/// Opens the log after a replay that must succeed. Returns the log and the visited batches.
fn reopen(device: &Arc<impl Device + 'static>, claims: Claims, segment_bytes: u64) -> Result<(Log, Vec<Batch>)> {
    reopen_with(device, claims, LogOptions { segment_bytes, ..LogOptions::default() })
}

fn reopen_with(device: &Arc<impl Device + 'static>, claims: Claims, options: LogOptions) -> Result<(Log, Vec<Batch>)> {
    let (report, batches) = collect(&**device, claims, false)?;
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let log = Log::start(device, STORE, report.epoch + 1, report.last, report.next_segment, report.segments, options)?;
    Ok((log, batches))
}

/// A visited record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Batch {
    first: u64,
    count: u32,
    payload: Vec<u8>,
}

fn collect(device: &dyn Device, claims: Claims, read_only: bool) -> Result<(ReplayReport, Vec<Batch>)> {
    let mut batches = Vec::new();
    let report =
        replay(device, STORE, claims, if read_only { Mode::Read } else { Mode::Recover }, &mut |record: &Record<
            '_,
        >| {
            batches.push(Batch { first: record.first.0, count: record.count, payload: record.payload.to_vec() });
            Ok(Visit::Continue)
        })?;
    Ok((report, batches))
}

/// Appends a batch of one seqno, with a payload of `len` bytes.
fn put(log: &Log, seqno: u64, len: usize, lazy: bool) -> Result<()> {
    append(log, seqno, 1, len, lazy)
}

/// Appends a record, and writes it if the log requires a write. Unless the record is lazy, also writes all records
/// before it.
fn append(log: &Log, seqno: u64, count: u32, len: usize, lazy: bool) -> Result<()> {
    let last = Seqno(seqno + u64::from(count) - 1);
    let due = log.reserve(len, false, UNLIMITED)?.append(Seqno(seqno), count, &payload(seqno, len), lazy)?;
    due.map_or(Ok(()), |stream| log.write(stream, last))?;
    if lazy { Ok(()) } else { log.write_before(last) }
}

/// Batches of one seqno each, with payloads of `len` bytes.
fn batches(seqnos: impl IntoIterator<Item = u64>, len: usize) -> Vec<Batch> {
    seqnos.into_iter().map(|first| Batch { first, count: 1, payload: payload(first, len) }).collect()
}

fn write_at(device: &dyn Device, name: &str, offset: u64, bytes: &[u8]) {
    let file = device.open(name, OpenHow { write: true, ..OpenHow::default() }).unwrap();
    write_all_at(&*file, offset, bytes).unwrap();
}

fn read_all(device: &dyn Device, name: &str) -> Vec<u8> {
    let file = device.open(name, OpenHow::default()).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    read_exact_at(&*file, 0, &mut bytes).unwrap();
    bytes
}

/// Every file with its bytes.
fn snapshot(device: &dyn Device) -> Vec<(String, Vec<u8>)> {
    device.list().unwrap().into_iter().map(|name| (name.clone(), read_all(device, &name))).collect()
}

/// Creates a file with these bytes.
fn create(device: &dyn Device, name: &str, bytes: &[u8]) {
    let file = device.open(name, OpenHow { write: true, create_new: true, ..OpenHow::default() }).unwrap();
    write_all_at(&*file, 0, bytes).unwrap();
}

/// The bytes of a segment with the given header and records. A record is given as (first seqno, count, durable seqno).
fn handmade(header: Header, records: &[(u64, u32, u64)]) -> Vec<u8> {
    let mut out = header.encode(STORE);
    assert_eq!(out.len() as u64, BLOCK);
    for &(first, count, durable) in records {
        let bytes = payload(first, 20);
        let head = Head { length: 20, count, first: Seqno(first), durable: Seqno(durable), kind: RecordKind::Ops };
        let offset = out.len() as u64;
        put_record(&mut out, header.seed(STORE), offset, &head, &bytes);
    }
    out
}

/// The positions of the log's records: file, offset, first seqno, end.
fn places(device: &dyn Device) -> Vec<(String, u64, u64, u64)> {
    let mut out = Vec::new();
    for segment in inspect(device, STORE).unwrap() {
        for record in &segment.records {
            let end = record.offset + super::format::record_bytes(record.payload_bytes as usize);
            out.push((segment.file.clone(), record.offset, record.first.0, end));
        }
    }
    out
}

fn is_corruption_in(error: &Error, file: &str) -> bool {
    matches!(error, Error::Corruption { file: named, .. } if named == file)
}
