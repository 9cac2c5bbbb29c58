//! [`ValueWriter`]: writes large values one after the other, in large writes.
//!
//! ```text
//!   push ─▶ |■■■■|■■■■|■■  |■■■■ … |  buffer of up to 1 MiB ─▶ one write ─▶ extents of the data file
//!            a value begins at a page; the end of its last page is zeros
//! ```
//!
//! Steps: [`ValueWriter::push`] assigns pages to a value and returns the reference to it, [`ValueWriter::finish`] writes
//! the values that are still in the buffer and returns the pages of all values ([`NewValues`]). The caller calls
//! [`NewValues::keep`] when it has published the references. The values are durable only after [`DataFile::sync`].
//!
//! Invariants: values that are pushed one after the other have adjacent pages, except at the end of an allocation. A
//! writer that is dropped before [`ValueWriter::finish`], and [`NewValues`] that are dropped before
//! [`NewValues::keep`], free all pages. This is safe because no durable data can refer to them.

use std::sync::Arc;

use super::data::DataFile;
use super::{BlockKind, to_usize};
use crate::base::sync::Ordering::Release;
use crate::base::{BlobRef, EXTENT_PAGES, Extent, MAX_INLINE_VALUE, MAX_VALUE, PAGE, PageNo, Result, SeededBug};
use crate::device::AlignedBuf;

/// The most pages of one allocation and of one write: 1 MiB.
const STEP_PAGES: u32 = 256;
/// A value stays next to its key if more than one part in this many of its pages would be padding.
const MOST_PADDING: usize = 4;

const _: () = assert!(STEP_PAGES.is_multiple_of(EXTENT_PAGES), "whole extents are allocated");

impl DataFile {
    /// Writes a large value into an extent of its own. The value is durable only after [`DataFile::sync_large_values`]
    /// or [`DataFile::sync`].
    pub fn write_blob(&self, value: &[u8]) -> Result<BlobRef> {
        let pages = ValueWriter::pages_of(value.len());
        let extent = self.alloc(pages)?;
        assert_eq!(extent.pages, pages, "a large value has one extent");
        match self.write(extent.start, AlignedBuf::from_bytes(value)) {
            Ok(_) => {
                self.blobs_unsynced.store(true, Release);
                let blob = BlobRef { page: extent.start, len: value.len() as u64, crc: crc32c::crc32c(value) };
                assert_eq!(blob.addr().pages, pages, "a reader reads the pages that were written");
                Ok(blob)
            }
            Err(e) => {
                self.discard(extent);
                Err(e)
            }
        }
    }

    /// Reads a large value; the first `blob.len` bytes of the buffer are the value.
    ///
    /// # Errors
    /// An I/O error, or [`Error::Corruption`](crate::Error::Corruption) if the checksum does not match.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<AlignedBuf> {
        let buf = self.read(blob.addr())?;
        self.check_value(blob, &buf)?;
        Ok(buf)
    }

    /// Checks pages that were read from the address of a large value.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if the checksum does not match.
    pub fn check_value(&self, blob: &BlobRef, pages: &[u8]) -> Result<()> {
        debug_assert_eq!(pages.len(), blob.addr().bytes(), "the pages of the value, and no others");
        if crc32c::crc32c(&pages[..to_usize(blob.len)]) != blob.crc && !SeededBug::LargeValueUnchecked.is_on() {
            return Err(self.corrupt(blob.addr(), BlockKind::Blob.name(), "checksum mismatch"));
        }
        Ok(())
    }
}

/// The pages of values to which no published message refers yet.
pub struct NewValues {
    data: Arc<DataFile>,
    /// In the order of allocation. Neighbouring extents are joined.
    extents: Vec<Extent>,
}

impl NewValues {
    /// No values.
    pub fn none(data: Arc<DataFile>) -> NewValues {
        NewValues { data, extents: Vec::new() }
    }

    /// The pages of the values.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Gives up the ownership of the pages. Called when an index has published the messages that refer to the values.
    pub fn keep(&mut self) {
        self.extents.clear();
    }

    fn add(&mut self, extent: Extent) {
        match self.extents.last_mut() {
            Some(last) if last.end() == extent.start.0 => last.pages += extent.pages,
            _ => self.extents.push(extent),
        }
    }
}

impl Drop for NewValues {
    fn drop(&mut self) {
        self.extents.drain(..).for_each(|extent| self.data.discard(extent));
    }
}

/// Writes values into pages that it allocates in steps.
pub struct ValueWriter {
    /// The pages of all values that were pushed.
    values: NewValues,
    /// The allocated pages that no value has yet.
    free: Extent,
    /// The pages that the caller expects to write, minus the pages of the values that were pushed.
    expected_pages: u64,
    /// Collects pages for one write. The first `filled` pages are not written yet; they belong at `start`.
    buffer: AlignedBuf,
    filled: u32,
    start: PageNo,
}

impl ValueWriter {
    /// A writer of about `expected_bytes` of values. The number is a hint for allocations.
    pub fn new(data: Arc<DataFile>, expected_bytes: u64) -> ValueWriter {
        ValueWriter {
            values: NewValues::none(data),
            free: Extent { start: PageNo(0), pages: 0 },
            expected_pages: expected_bytes.div_ceil(PAGE as u64),
            buffer: AlignedBuf::default(),
            filled: 0,
            start: PageNo(0),
        }
    }

    /// Whether a value of `len` bytes should be written to pages of its own, if values of at most `inline_bytes` stay
    /// next to their keys. A value of 4,100 bytes stays, because padding would double its space.
    pub fn is_worth(len: usize, inline_bytes: usize) -> bool {
        let bytes = len.next_multiple_of(PAGE);
        len > inline_bytes && (len > MAX_INLINE_VALUE || (bytes - len) * MOST_PADDING <= bytes)
    }

    /// The number of pages of a value of `len` bytes.
    ///
    /// # Panics
    /// If the value is empty, or longer than any value may be.
    pub fn pages_of(len: usize) -> u32 {
        assert!(0 < len && len <= MAX_VALUE, "large values have 1 byte to 64 MiB");
        u32::try_from(len.div_ceil(PAGE)).expect("a large value has at most 64 MiB")
    }

    /// Assigns pages to a value. The value is written during this call or a later one.
    ///
    /// # Errors
    /// [`Error::DiskFull`](crate::Error::DiskFull), or the error of an earlier value's write.
    pub fn push(&mut self, value: &[u8]) -> Result<BlobRef> {
        let pages = ValueWriter::pages_of(value.len());
        if self.free.pages < pages {
            self.extend(pages)?;
        }
        let place = Extent { start: self.free.start, pages };
        self.free = Extent { start: PageNo(place.end()), pages: self.free.pages - pages };
        self.expected_pages = self.expected_pages.saturating_sub(u64::from(pages));
        self.values.add(place);
        if self.filled + pages > STEP_PAGES || self.start.0 + u64::from(self.filled) != place.start.0 {
            self.flush()?;
            self.start = place.start;
        }
        self.reserve(pages);
        let at = self.filled as usize * PAGE;
        let pages_bytes = &mut self.buffer[at..at + pages as usize * PAGE];
        let (bytes, padding) = pages_bytes.split_at_mut(value.len());
        bytes.copy_from_slice(value);
        padding.fill(0);
        self.filled += pages;
        let blob = BlobRef { page: place.start, len: value.len() as u64, crc: crc32c::crc32c(value) };
        assert_eq!(blob.extent(), place, "a reader reads the pages that are written");
        Ok(blob)
    }

    /// Makes room for a value of `pages` pages. Allocates a longer range than this value needs if more values are
    /// expected.
    fn extend(&mut self, pages: u32) -> Result<()> {
        let most = u32::try_from(self.expected_pages).unwrap_or(STEP_PAGES).clamp(EXTENT_PAGES, STEP_PAGES);
        let step = most.max(pages).next_multiple_of(EXTENT_PAGES);
        let data = self.values.data.clone();
        let next = data.alloc_for_values(pages, step)?;
        assert!((pages..=step).contains(&next.pages), "an extent of {} pages for {pages} to {step}", next.pages);
        if self.free.pages > 0 && self.free.end() == next.start.0 {
            self.free.pages += next.pages;
        } else {
            data.give_back(std::mem::replace(&mut self.free, next));
        }
        Ok(())
    }

    /// Makes room for `pages` further pages in the buffer. The buffer doubles, up to one step or one value.
    fn reserve(&mut self, pages: u32) {
        let need = self.filled + pages;
        if self.buffer.pages() < need as usize {
            let mut larger = AlignedBuf::zeroed(need.max((self.filled * 2).min(STEP_PAGES)) as usize);
            let filled = self.filled as usize * PAGE;
            larger[..filled].copy_from_slice(&self.buffer[..filled]);
            self.buffer = larger;
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled > 0 {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.truncate(self.filled as usize);
            assert_eq!(buffer.pages(), self.filled as usize, "exactly the collected pages are written");
            self.filled = 0;
            self.buffer = self.values.data.write(self.start, buffer)?;
        }
        Ok(())
    }

    /// Ends the writer without freeing the pages of the values. They stay allocated until the store is opened again.
    pub fn abandon(mut self) {
        self.values.keep();
        self.free.pages = 0;
    }

    /// Writes the rest of the buffer and returns the pages of all values.
    ///
    /// # Errors
    /// The error of the write. All pages are free then.
    pub fn finish(mut self) -> Result<NewValues> {
        self.flush()?;
        let none = NewValues::none(self.values.data.clone());
        Ok(std::mem::replace(&mut self.values, none))
    }
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        self.values.data.give_back(self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;
    use crate::device::MemDevice;
    use crate::space::data::DATA_FILE;

    fn file() -> Arc<DataFile> {
        DataFile::create(&*MemDevice::new(), DATA_FILE, StoreId([1; 16])).unwrap()
    }

    fn value(i: usize) -> Vec<u8> {
        let len = [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5, 300 * PAGE][i % 6];
        (0..len).map(|at| (at + i) as u8).collect()
    }

    #[test]
    fn values_are_read_back_and_neighbours_are_adjacent() {
        let data = file();
        let mut writer = ValueWriter::new(data.clone(), 1 << 20);
        let blobs: Vec<BlobRef> = (0..40).map(|i| writer.push(&value(i)).unwrap()).collect();
        let mut values = writer.finish().unwrap();
        let pages = blobs.iter().map(|blob| u64::from(blob.extent().pages)).sum::<u64>();
        assert_eq!(values.extents().iter().map(|extent| u64::from(extent.pages)).sum::<u64>(), pages);
        assert!(values.extents().len() < 20, "{} ranges for 40 values", values.extents().len());
        values.keep();
        for (i, blob) in blobs.iter().enumerate() {
            assert_eq!(data.read_blob(blob).unwrap()[..value(i).len()], value(i), "{i}");
        }
    }

    #[test]
    fn values_that_are_not_kept_are_freed() {
        let data = file();
        let before = data.stats().allocated_bytes;
        let mut writer = ValueWriter::new(data.clone(), 1 << 30);
        (0..20).for_each(|i| assert!(writer.push(&value(i)).is_ok()));
        assert!(data.stats().allocated_bytes > before);
        drop(writer);
        assert_eq!(data.stats().allocated_bytes, before, "the writer was dropped");
        let mut writer = ValueWriter::new(data.clone(), 0);
        (0..20).for_each(|i| assert!(writer.push(&value(i)).is_ok()));
        drop(writer.finish().unwrap());
        assert_eq!(data.stats().allocated_bytes, before, "the values were dropped");
    }
}
