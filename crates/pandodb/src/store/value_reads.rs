//! Reads large values: from the pool, or several of them from disk at a time.
//!
//! ```text
//!   references ─▶ in the pool? ── yes ─▶ value
//!                  └ no ─▶ sort by page, join neighbours ─▶ reads in flight together ─▶ checksum ─▶ value, cached
//! ```
//!
//! 1. A lookup reads one value ([`read_value`]), `multi_get` reads all of its values together ([`read_values`]).
//! 2. A scan reads the values of the next keys along with the value that it needs ([`ScanValues`]). The first time, it
//!    reads a quarter of the number of values that the scans of the keyspace returned lately. Each further time it reads at
//!    least as many, and more if it has already returned more. Values in the pool are not read. Packing a memtable writes
//!    values in key order, so the values of neighbouring keys are often adjacent on disk and need only one read.
//! 3. Lookups cache the values that they read. A scan caches them on probation ([`crate::pool`]), until it has returned
//!    1 MiB of values since it was opened or reopened.
//!
//! Invariants: a value is cached under its first page, and only after its checksum was checked. It leaves the pool
//! before its pages are freed (`index::deferred_frees`), and pages are freed when no view can reach them. So a reader
//! that holds a view never finds another value under these pages.

use std::collections::HashMap;
use std::sync::Arc;

use super::engine::Engine;
use super::value::Value;
use crate::base::{BlobRef, BlockAddr, OwnerId, PAGE, PageNo, Result};
use crate::device::{AlignedBuf, Read};
use crate::pool::Keep;
use crate::run::ScanHabits;

/// Longer values are not cached, because one of them would evict many blocks.
const MOST_CACHED: u64 = 64 << 10;
/// The most pages of one read. A longer value is read alone.
const MOST_PAGES: u32 = 64;
/// The most reads in flight.
const MOST_READS: usize = 32;
/// The most values, and the most pages, that a scan reads at a time. Longer values than the cached ones are not read
/// ahead.
const MOST_AHEAD: u64 = 64;
const MOST_PAGES_AHEAD: u32 = 128;
/// A scan that is longer than usual reads as many values at a time as it has returned, up to `FEW` values. When it has
/// returned more than twice `FEW` values, it reads half as many as it has returned.
const FEW: u64 = 8;
/// A scan that has returned more bytes of values than this is long ([`crate::pool::Pool::insert_scanned`]).
const LONG_BYTES: u64 = 1 << 20;

/// Reads one value.
pub(super) fn read_value(engine: &Engine, blob: &BlobRef) -> Result<Value> {
    if let Some(value) = cached(engine, blob) {
        return Ok(value);
    }
    let buf = engine.core.data.read_blob(blob)?;
    if blob.len <= MOST_CACHED {
        engine.core.pool.insert(OwnerId::VALUES, blob.addr(), Keep::Short, &buf);
    }
    Ok(Value::blob(buf, blob.len as usize))
}

/// Reads several values. The results have the order of `blobs`.
pub(super) fn read_values(engine: &Engine, blobs: &[BlobRef]) -> Vec<Result<Value>> {
    let mut values: Vec<Option<Result<Value>>> = blobs.iter().map(|blob| cached(engine, blob).map(Ok)).collect();
    let missing: Vec<BlobRef> =
        blobs.iter().zip(&values).filter(|(_, value)| value.is_none()).map(|(blob, _)| *blob).collect();
    let mut read = Pieces::read(engine, missing);
    for (blob, value) in blobs.iter().zip(&mut values) {
        let read = value.take().unwrap_or_else(|| read.value(engine, blob, CacheAs::Looked));
        *value = Some(read);
    }
    values.into_iter().map(|value| value.expect("each value was read")).collect()
}

/// The value, if the pool has it.
fn cached(engine: &Engine, blob: &BlobRef) -> Option<Value> {
    if blob.len > MOST_CACHED {
        return None;
    }
    let block = engine.core.pool.peek(OwnerId::VALUES, blob.page)?;
    // In a damaged store, two references may name the same page with different lengths.
    if block.len() != blob.addr().bytes() {
        return None;
    }
    Some(Value::in_block(&engine.core.pool, block, 0..blob.len as usize))
}

/// How a value that was read is cached.
#[derive(Clone, Copy)]
enum CacheAs {
    /// Like a block that a lookup has read.
    Looked,
    /// Like a leaf that a scan has read; `long` if it is a long scan.
    Scanned { long: bool },
}

/// Values that were read together.
#[derive(Default)]
struct Pieces {
    /// For each value, by its first page: the buffer, and the offset of the value in the buffer.
    places: HashMap<PageNo, (Arc<AlignedBuf>, usize)>,
}

impl Pieces {
    /// Reads the pages of values. Skips pages that cannot be read; [`Pieces::value`] reads them again and returns the
    /// error.
    fn read(engine: &Engine, mut blobs: Vec<BlobRef>) -> Pieces {
        blobs.sort_unstable_by_key(|blob| blob.page);
        blobs.dedup_by_key(|blob| blob.page);
        // Each group of values is one read.
        let mut groups: Vec<(BlockAddr, usize)> = Vec::new();
        for (i, blob) in blobs.iter().enumerate() {
            let addr = blob.addr();
            match groups.last_mut() {
                Some((group, _))
                    if group.page.0 + u64::from(group.pages) == addr.page.0
                        && group.pages + addr.pages <= MOST_PAGES =>
                {
                    group.pages += addr.pages;
                }
                _ => groups.push((addr, i)),
            }
        }
        let mut pieces = Pieces::default();
        let data = &engine.core.data;
        let mut reads = data.reads();
        for some in groups.chunks(MOST_READS) {
            for (tag, (addr, _)) in some.iter().enumerate() {
                if let Ok(buf) = data.begin_read(*addr, AlignedBuf::default()) {
                    reads.submit(Read { tag, offset: addr.page.offset(), buf });
                }
            }
            while let Some((tag, read)) = reads.complete() {
                let (addr, first) = some[tag];
                let Ok(buf) = data.end_read(addr, read) else { continue };
                let buf = Arc::new(buf);
                for blob in blobs[first..].iter().take_while(|blob| addr.covers(blob.addr())) {
                    let at = (blob.page.0 - addr.page.0) as usize * PAGE;
                    pieces.places.insert(blob.page, (buf.clone(), at));
                }
            }
        }
        pieces
    }

    /// Returns a value, checked. Reads the value if it was not read before.
    fn value(&mut self, engine: &Engine, blob: &BlobRef, cache: CacheAs) -> Result<Value> {
        let Some((buf, at)) = self.places.remove(&blob.page).filter(|(buf, at)| at + blob.addr().bytes() <= buf.len())
        else {
            return read_value(engine, blob);
        };
        let pages = &buf[at..at + blob.addr().bytes()];
        engine.core.data.check_value(blob, pages)?;
        let pool = &engine.core.pool;
        match cache {
            _ if blob.len > MOST_CACHED => {}
            CacheAs::Looked => drop(pool.insert(OwnerId::VALUES, blob.addr(), Keep::Short, pages)),
            CacheAs::Scanned { long } => pool.insert_scanned(OwnerId::VALUES, blob.addr(), long, pages),
        }
        Ok(Value::in_buffer(buf, at..at + blob.len as usize))
    }
}

/// The large values that a scan has read ahead.
pub(super) struct ScanValues {
    read: Pieces,
    /// The numbers of values that scans of the keyspace returned.
    habits: Arc<ScanHabits>,
    /// The values that this scan has returned, and their bytes.
    taken: u64,
    bytes: u64,
}

impl ScanValues {
    pub(super) fn new(habits: Arc<ScanHabits>) -> ScanValues {
        ScanValues { read: Pieces::default(), habits, taken: 0, bytes: 0 }
    }

    /// The number of values to read now, including the current one. A device does many small reads at a time, but each
    /// value that is read and not returned costs as much as any other value. So a scan of the usual length reads its values
    /// in about four rounds. A scan that usually returns more than 256 values takes more rounds.
    fn wanted(&self) -> usize {
        let usual = self.habits.usual().div_ceil(4);
        let wanted = usual.max(self.taken.min(FEW)).max(self.taken / 2).clamp(1, MOST_AHEAD);
        usize::try_from(wanted).expect("at most 64")
    }

    /// Returns the value of the current key. If it must be read, also reads values of the next keys: `next` appends the
    /// references of at most the given number of next keys, in the order of the scan.
    pub(super) fn take(
        &mut self,
        engine: &Engine,
        blob: &BlobRef,
        next: impl FnOnce(usize, &mut Vec<BlobRef>),
    ) -> Result<Value> {
        let wanted = self.wanted();
        self.taken += 1;
        self.bytes += blob.len;
        if !self.read.places.contains_key(&blob.page) {
            if let Some(value) = cached(engine, blob) {
                return Ok(value);
            }
            let mut blobs = vec![*blob];
            next(wanted - 1, &mut blobs);
            debug_assert!(blobs.len() <= wanted, "as many as were asked for");
            let mut pages = 0;
            blobs.retain(|next| {
                let is_cached = || engine.core.pool.glance(OwnerId::VALUES, next.page).is_some();
                let is_wanted = next == blob || (next.len <= MOST_CACHED && !is_cached());
                pages += if is_wanted { next.addr().pages } else { 0 };
                is_wanted && (next == blob || pages <= MOST_PAGES_AHEAD)
            });
            // Values that were read ahead in vain are dropped here.
            self.read = Pieces::read(engine, blobs);
        }
        self.read.value(engine, blob, CacheAs::Scanned { long: self.bytes > LONG_BYTES })
    }
}

impl Drop for ScanValues {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.habits.note(self.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of values that a scan reads at a time until it has returned `all`, if scans usually return `usual`.
    fn rounds(usual: u64, all: u64) -> Vec<usize> {
        let habits = Arc::new(ScanHabits::default());
        (0..200).for_each(|_| habits.note(usual));
        let mut scan = ScanValues::new(habits);
        let mut rounds = Vec::new();
        while scan.taken < all {
            rounds.push(scan.wanted());
            scan.taken += scan.wanted() as u64;
        }
        rounds
    }

    #[test]
    fn the_reads_of_a_scan_follow_the_usual_number_of_values() {
        assert_eq!(rounds(1, 1), [1]);
        assert_eq!(rounds(1, 30), [1, 1, 2, 4, 8, 8, 12], "a scan that is longer than usual");
        assert!((4..=5).contains(&rounds(50, 50).len()), "{:?}", rounds(50, 50));
        assert!(rounds(50, 50)[0] >= 12 && rounds(64, 1_000).contains(&64));
    }
}
