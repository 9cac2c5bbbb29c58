//! Reads one segment: returns every intact record in order, whatever damage there is between the records.
//!
//! 1. The header is checked first. If the header is not intact, the reader determines only whether the body of the
//!    segment is blank.
//! 2. From the first block on, a record may start at each multiple of 8. The reader checks the magic, then compares the
//!    length in the record's head with the remaining bytes of the file, then verifies the checksum of the whole record.
//! 3. Zeros between records are padding after a sync, or unused space. All other bytes that do not belong to an intact
//!    record are *damage*. The reader keeps the position of the damage. Only the order of the seqnos shows later
//!    whether a record was lost at that position.
//!
//! So the reader finds intact records behind a damaged one, and it handles a crash after which later blocks are on the
//! disk and earlier ones are not. The file is read through one window that grows to the longest record. The bytes of
//! sequences that look like a record but fail the checksum are charged to a budget, which is a small multiple of the
//! file's length. So a hostile file cannot make the time of the scan quadratic.
//!
//! Invariant: offsets only ascend, so all bytes before offset `at` have been examined.

use std::sync::Arc;

use super::format::{
    BLOCK, FileName, Head, Header, MAX_SEGMENT, RECORD_HEAD, has_magic, record_is_intact, segment_name,
};
use crate::base::{Error, Result, StoreId};
use crate::device::{Device, File, OpenHow, read_exact_at};
use crate::space::to_usize;

/// The number of bytes read at a time.
const WINDOW: usize = 256 << 10;
/// The budget for failed checksums, as a multiple of the file's length. A payload that contains a copy of a log uses
/// about as much of the budget as the copy is long.
const FALSE_RECORDS: u64 = 16;
const _: () = assert!(WINDOW >= RECORD_HEAD && WINDOW.is_multiple_of(8), "a window holds the head of a record");

/// The result of opening a segment file.
#[derive(Debug)]
pub(super) enum Opened {
    /// The header of the segment is intact.
    Intact(SegmentReader),
    /// The header of the segment is damaged.
    Damaged {
        /// The defect.
        error: Error,
        /// Whether no byte was ever written behind the header. If so, the segment was being created at the time of the
        /// crash.
        blank: bool,
        /// The length of the file.
        bytes: u64,
    },
}

/// Opens the segment `name` and checks its header.
///
/// # Errors
/// The errors of the device, and `Unsupported` for a later format. A damaged header is not an error of this function.
pub(super) fn open_segment(device: &dyn Device, store: StoreId, name: FileName) -> Result<Opened> {
    let text = segment_name(name.stream, name.number);
    let file = device.open(&text, OpenHow::default()).map_err(|e| Error::io("open", &text, None, &e))?;
    let len = file.len().map_err(|e| Error::io("measure", &text, None, &e))?;
    if len > MAX_SEGMENT {
        let error = Error::corruption("log segment", MAX_SEGMENT, format!("the file has {len} bytes"));
        return Ok(Opened::Damaged { error: error.in_file(&text, 0), blank: false, bytes: len });
    }
    let mut block = vec![0; to_usize(len.min(BLOCK))];
    read_exact_at(&*file, 0, &mut block).map_err(|e| Error::io("read", &text, Some(0), &e))?;
    let header = match Header::decode(&block, store, name) {
        Ok(header) => header,
        Err(error @ Error::Unsupported { .. }) => return Err(error),
        Err(error) => {
            let blank = is_blank(&*file, &text, len)?;
            return Ok(Opened::Damaged { error: error.in_file(&text, 0), blank, bytes: len });
        }
    };
    Ok(Opened::Intact(SegmentReader {
        file,
        name: text,
        len,
        header,
        seed: header.seed(store),
        at: BLOCK,
        window: Vec::new(),
        window_at: 0,
        damage: None,
        false_bytes: 0,
    }))
}

/// Whether all bytes behind the header block are zero.
fn is_blank(file: &dyn File, name: &str, len: u64) -> Result<bool> {
    let mut chunk = vec![0; WINDOW];
    let mut at = BLOCK;
    while at < len {
        let part = &mut chunk[..to_usize((len - at).min(WINDOW as u64))];
        read_exact_at(file, at, part).map_err(|e| Error::io("read", name, Some(at), &e))?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += part.len() as u64;
    }
    Ok(true)
}

/// An intact record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The byte offset of the record.
    pub offset: u64,
    /// The decoded head of the record.
    pub head: Head,
    /// The offset of the first damage between this record and the previous one.
    pub damage: Option<u64>,
}

impl Found {
    /// The byte offset of the record's end.
    pub fn end(&self) -> u64 {
        self.offset + self.head.record_bytes()
    }
}

/// Reads the records of a segment.
#[derive(Debug)]
pub(super) struct SegmentReader {
    file: Arc<dyn File>,
    /// The file's name.
    pub name: String,
    /// The file's length.
    pub len: u64,
    /// The segment's header.
    pub header: Header,
    seed: u32,
    /// All bytes before this offset have been examined.
    at: u64,
    window: Vec<u8>,
    window_at: u64,
    damage: Option<u64>,
    false_bytes: u64,
}

impl SegmentReader {
    /// Returns the next intact record, or `None` at the end of the file. After `None`, [`SegmentReader::take_damage`]
    /// returns the damage behind the last record.
    pub fn next(&mut self) -> Result<Option<Found>> {
        while self.seek_magic()? {
            if let Some(head) = self.intact_record()? {
                let found = Found { offset: self.at, head, damage: self.damage.take() };
                debug_assert!(found.end() <= self.len && found.damage.is_none_or(|damage| damage < found.offset));
                self.at = found.end();
                return Ok(Some(found));
            }
            self.note_damage(self.at);
            self.at += 8;
        }
        self.window = Vec::new();
        Ok(None)
    }

    /// The payload of the record that [`SegmentReader::next`] returned most recently.
    pub fn payload(&self, found: &Found) -> &[u8] {
        debug_assert!(self.holds(found.offset, found.head.record_bytes()), "the record is still in memory");
        let start = self.in_window(found.offset) + RECORD_HEAD;
        &self.window[start..start + found.head.length as usize]
    }

    /// The offset of the first damage behind the record that was returned most recently.
    pub fn take_damage(&mut self) -> Option<u64> {
        self.damage.take()
    }

    /// Moves to the next position that looks like the start of a record. Returns `false` at the end of the file.
    fn seek_magic(&mut self) -> Result<bool> {
        while self.at + RECORD_HEAD as u64 <= self.len {
            self.load(self.at, RECORD_HEAD as u64)?;
            debug_assert!(self.at.is_multiple_of(8) && self.at >= BLOCK, "records are aligned, after the header");
            let view = &self.window[self.in_window(self.at)..];
            let last = (view.len() - RECORD_HEAD) / 8 * 8;
            let mut damage = None;
            let mut found = None;
            for start in (0..=last).step_by(8) {
                let head = &view[start..start + RECORD_HEAD];
                if has_magic(head) {
                    found = Some(start);
                    break;
                }
                if damage.is_none() && head[..8] != [0; 8] {
                    damage = Some(self.at + start as u64);
                }
            }
            if let Some(damage) = damage {
                self.note_damage(damage);
            }
            self.at += found.unwrap_or(last + 8) as u64;
            if found.is_some() {
                return Ok(true);
            }
        }
        self.check_rest()?;
        Ok(false)
    }

    /// Looks for damage in the bytes at the end of the file that are too few for a record.
    fn check_rest(&mut self) -> Result<()> {
        let rest = self.len.saturating_sub(self.at);
        if rest > 0 {
            self.load(self.at, rest)?;
            let start = self.in_window(self.at);
            if self.window[start..start + to_usize(rest)].iter().any(|&byte| byte != 0) {
                self.note_damage(self.at);
            }
            self.at = self.len;
        }
        Ok(())
    }

    /// The head of the record at `self.at`, if that record is intact.
    fn intact_record(&mut self) -> Result<Option<Head>> {
        let Some(head) = Head::decode(&self.window[self.in_window(self.at)..]) else { return Ok(None) };
        let bytes = head.record_bytes();
        if bytes > self.len - self.at {
            return Ok(None);
        }
        self.load(self.at, bytes)?;
        let start = self.in_window(self.at);
        if record_is_intact(self.seed, self.at, &self.window[start..start + to_usize(bytes)]) {
            return Ok(Some(head));
        }
        self.false_bytes += bytes;
        if self.false_bytes > self.len * FALSE_RECORDS {
            let error = Error::corruption("log segment", self.at, "too many byte sequences that resemble records");
            return Err(error.in_file(&self.name, 0));
        }
        Ok(None)
    }

    /// Whether the window contains these bytes of the file.
    fn holds(&self, offset: u64, len: u64) -> bool {
        self.window_at <= offset && offset + len <= self.window_at + self.window.len() as u64
    }

    /// The index in the window for an offset in the file.
    fn in_window(&self, offset: u64) -> usize {
        debug_assert!(self.holds(offset, 0), "offset {offset} is not in memory");
        to_usize(offset - self.window_at)
    }

    fn note_damage(&mut self, offset: u64) {
        self.damage.get_or_insert(offset);
    }

    /// Loads the `len` bytes at `offset` into the window. These bytes must be within the file.
    fn load(&mut self, offset: u64, len: u64) -> Result<()> {
        debug_assert!(offset + len <= self.len, "bytes beyond the file");
        if self.holds(offset, len) {
            return Ok(());
        }
        let want = to_usize(len.max((WINDOW as u64).min(self.len - offset)));
        self.window.clear();
        if self.window.capacity() > 4 * WINDOW && want <= WINDOW {
            self.window.shrink_to(WINDOW);
        }
        let failed = |e: std::io::Error| Error::io("read", &self.name, Some(offset), &e);
        self.window.try_reserve_exact(want).map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        self.window.resize(want, 0);
        self.window_at = offset;
        debug_assert!(self.holds(offset, len) && offset + want as u64 <= self.len);
        read_exact_at(&*self.file, offset, &mut self.window).map_err(failed)
    }
}
