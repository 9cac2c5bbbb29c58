//! Makes the replayed tail of the log durable, without overwriting records that may already be durable.
//!
//! The records of the tail, which no durability claim covers, may be on disk, or only in the page cache, or in pages
//! that a failed sync marked clean. These records are **copied**, under a new epoch, into a segment of their own. A
//! rename makes this segment appear atomically:
//!
//! 1. write the header and the records to `….new`,
//! 2. sync this file,
//! 3. rename this file,
//! 4. sync the directory.
//!
//! Invariant: the new header's `start` is the seqno before the first copied record. So the old copies are valid until
//! the rename is durable, and void from then on. After a crash at any point, either the old copies or the new copies
//! are valid. Copying never overwrites a byte of an acknowledged record, so a torn write cannot damage such a record.
//!
//! If there is no space for a copy, the tail is **rewritten in place**: the same bytes are written in whole blocks,
//! which makes the pages dirty again, and then synced. Rewriting in place needs no space, so a store can be opened even
//! on a full disk.
//!
//! Source: our own design; the problem of clean pages after a failed fsync is the "fsyncgate" of 2018.

use std::io;
use std::sync::Arc;

use super::SegmentInfo;
use super::format::{BLOCK, HEADER_BYTES, Head, Header, MAX_SEGMENT, put_record, segment_name, unfinished_name};
use super::merge::{Item, Merge};
use crate::base::{Error, MAX_EPOCH, Result, Seqno, StoreId, seeded};
use crate::device::{Device, File, OpenHow, read_exact_at, write_all_at};
use crate::space::to_usize;

/// The number of bytes written at a time.
const CHUNK: usize = 256 << 10;
const _: () = assert!((CHUNK as u64).is_multiple_of(BLOCK), "blocks are written whole");

/// The records that must become durable: all records that end after `durable` and at or before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// All records through this seqno are known to be durable.
    pub durable: Seqno,
    /// The end of the log.
    pub end: Seqno,
}

impl Tail {
    /// The records of the log from the first segment on that may hold a part of the tail.
    fn open(&self, device: &dyn Device, store: StoreId) -> Result<Merge> {
        let mut merge = Merge::open(device, store)?;
        merge.skip_covered(device, store, self.durable)?;
        Ok(merge)
    }

    /// The next record of the tail.
    fn next(&self, merge: &mut Merge) -> Result<Option<Item>> {
        while let Some(item) = merge.next()? {
            let last = item.head().last();
            if last > self.durable && last <= self.end {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}

/// The outcome for the tail that was made durable.
#[derive(Debug)]
pub(super) enum Settled {
    /// The tail stays where it was.
    AsIs,
    /// The tail was copied into a segment of the next epoch, which begins after `start`.
    Copied {
        /// Records of earlier epochs above this seqno are void.
        start: Seqno,
        /// The new segment.
        info: SegmentInfo,
    },
}

/// Makes the tail durable. If there is space, copies it into a segment with the epoch `epoch` and the number `number`;
/// otherwise rewrites it in place.
pub(super) fn settle(device: &dyn Device, store: StoreId, tail: Tail, epoch: u32, number: u64) -> Result<Settled> {
    assert!(tail.durable < tail.end, "a tail from {} to {} has records", tail.durable, tail.end);
    assert!(epoch <= MAX_EPOCH, "the next opening accepts epoch {epoch}");
    let name = unfinished_name(0, number);
    match copy(device, store, tail, epoch, number, &name) {
        Ok(Some(settled)) => Ok(settled),
        Ok(None) | Err(Error::DiskFull { .. }) => {
            match device.remove(&name) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io("remove", &name, None, &e)),
                _ => {}
            }
            rewrite(device, store, tail)?;
            Ok(Settled::AsIs)
        }
        Err(error) => Err(error),
    }
}

/// Copies the tail; `None` if it exceeds the maximum size of a segment.
fn copy(
    device: &dyn Device,
    store: StoreId,
    tail: Tail,
    epoch: u32,
    number: u64,
    name: &str,
) -> Result<Option<Settled>> {
    let how = OpenHow { write: true, create_new: true, ..OpenHow::default() };
    let file = device.open(name, how).map_err(|e| Error::io("create", name, None, &e))?;
    let mut merge = tail.open(device, store)?;
    let mut item = tail.next(&mut merge)?;
    let first = item.map(|item| item.head().first).expect("the tail that replay found is there");
    let start = Seqno(first.0 - 1);
    let header = Header { stream: 0, number, epoch, start, after: Some(start) };
    let seed = header.seed(store);
    let mut out = Output { file, name: name.to_owned(), buffer: header.encode(store), at: 0 };
    while let Some(found) = item {
        let head = Head { durable: start, ..*found.head() };
        if out.end() + head.record_bytes() > MAX_SEGMENT {
            return Ok(None);
        }
        assert!(head.last() <= tail.end && head.first > start, "only records of the tail are copied");
        let offset = out.end();
        put_record(&mut out.buffer, seed, offset, &head, merge.payload(&found));
        if out.buffer.len() >= CHUNK {
            out.write()?;
        }
        item = tail.next(&mut merge)?;
    }
    out.write()?;
    let synced = seeded!(TailCopyNotSynced: Ok(()), out.file.sync());
    synced.map_err(|e| Error::final_io("sync", name, None, &e))?;
    assert!(out.buffer.is_empty() && out.at <= MAX_SEGMENT, "the copy is complete before it becomes valid");
    let target = segment_name(0, number);
    // From this call on the copy may be valid, so rewriting in place is no longer permitted, even if the disk is full.
    device.rename(name, &target).map_err(|e| Error::final_io("rename", name, None, &e))?;
    device.sync_dir().map_err(|e| Error::final_io("sync", &device.path(), None, &e))?;
    let info = SegmentInfo { stream: 0, number, last: tail.end, bytes: out.end() };
    Ok(Some(Settled::Copied { start, info }))
}

/// A file that is written from its start to its end.
struct Output {
    file: Arc<dyn File>,
    name: String,
    buffer: Vec<u8>,
    /// The offset of the buffer in the file.
    at: u64,
}

impl Output {
    fn end(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    fn write(&mut self) -> Result<()> {
        assert!(self.at.is_multiple_of(8), "whole records are written");
        write_all_at(&*self.file, self.at, &self.buffer)
            .map_err(|e| Error::io("write", &self.name, Some(self.at), &e))?;
        self.at = self.end();
        self.buffer.clear();
        Ok(())
    }
}

/// Writes the blocks of the tail again with their present bytes, and syncs them.
fn rewrite(device: &dyn Device, store: StoreId, tail: Tail) -> Result<()> {
    let mut merge = tail.open(device, store)?;
    let mut spans: Vec<Option<(u64, u64)>> = vec![None; merge.segments.len()];
    while let Some(item) = tail.next(&mut merge)? {
        let from = item.found.offset / BLOCK * BLOCK;
        let span = spans[item.segment].get_or_insert((from, from));
        span.1 = item.found.end().next_multiple_of(BLOCK);
    }
    for (source, span) in merge.segments.iter().zip(spans) {
        let Some((from, to)) = span else { continue };
        rewrite_range(device, &source.reader.name, from, to.min(source.reader.len))?;
    }
    // If an earlier sync of the directory failed, the directory entries of the segments may not be durable either.
    device.sync_dir().map_err(|e| Error::final_io("sync", &device.path(), None, &e))
}

fn rewrite_range(device: &dyn Device, name: &str, from: u64, to: u64) -> Result<()> {
    assert!(from.is_multiple_of(BLOCK) && from >= HEADER_BYTES as u64, "whole blocks after the header are rewritten");
    assert!(from < to, "the rewritten range has a record");
    let how = OpenHow { write: true, ..OpenHow::default() };
    let file = device.open(name, how).map_err(|e| Error::io("open", name, None, &e))?;
    let mut chunk = vec![0; to_usize((to - from).min(CHUNK as u64))];
    let mut at = from;
    while at < to {
        let part = &mut chunk[..to_usize((to - at).min(CHUNK as u64))];
        read_exact_at(&*file, at, part).map_err(|e| Error::io("read", name, Some(at), &e))?;
        write_all_at(&*file, at, part).map_err(|e| Error::io("write", name, Some(at), &e))?;
        at += part.len() as u64;
    }
    file.sync().map_err(|e| Error::final_io("sync", name, None, &e))
}
