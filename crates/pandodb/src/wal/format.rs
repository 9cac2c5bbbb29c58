//! The persisted bytes of the log: file names, the segment header and the record. All integers are little-endian.
//!
//! ```text
//!  segment file                              record (starts at a multiple of 8)
//!  0      4,096                              0    4      8     12  15 16    24      32
//!  ┌──────┬────────┬────────┬·····┬────────┐ ┌────┬──────┬─────┬───┬──┬─────┬───────┬─────────┬───┐
//!  │header│ record │ record │zeros│ record │ │crc │length│count│REC│k │first│durable│ payload │0…0│
//!  └──────┴────────┴────────┴·····┴────────┘ └────┴──────┴─────┴───┴──┴─────┴───────┴─────────┴───┘
//!                           sync  │ 4 KiB
//! ```
//!
//! Every checksum is CRC-32C. The checksum of a record is seeded with the store, epoch, stream, segment and offset. So
//! a stale record, and a record at the wrong offset or in the wrong file, fail verification in the same way as a
//! damaged record.
//!
//! Invariant: records are aligned to 8 bytes, and no record shares a 4 KiB block with earlier synced bytes.
//!
//! Source: our own design; one log per thread follows 002 §3.6.4.

use crate::base::codec::Reader;
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId};

/// The size of a block in bytes. A sync ends the current block, so later records never share a block with synced bytes.
pub(super) const BLOCK: u64 = 4096;
/// The length of the segment header in bytes. The first record follows the header.
pub(super) const HEADER_BYTES: usize = 4096;
/// The number of bytes of a record before its payload.
pub(super) const RECORD_HEAD: usize = 32;
/// The longest payload of one record, in bytes.
pub const MAX_PAYLOAD: usize = 256 << 20;
/// The longest segment file that is accepted, in bytes. A longer file counts as damaged.
pub(super) const MAX_SEGMENT: u64 = 16 << 30;
/// The version of this format. Version 1 has only records of operations. Version 2 adds tagged records, and version 3
/// adds records that create keyspaces. Because an earlier build checks the version, it does not mistake a record of an
/// unknown kind for damage.
pub(super) const VERSION: u32 = 3;
/// The oldest version that this build reads.
const OLDEST_VERSION: u32 = 1;

const SEGMENT_MAGIC: [u8; 8] = *b"PandoWAL";
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
const RECORD_MAGIC: [u8; 3] = *b"REC";

const _: () = assert!(HEADER_BYTES as u64 == BLOCK, "records begin in the block after the header");
const _: () = assert!(RECORD_HEAD.is_multiple_of(8) && BLOCK.is_multiple_of(8), "records are aligned to 8 bytes");
const _: () = assert!(MAX_PAYLOAD <= u32::MAX as usize, "the length of a payload has four bytes");
const _: () = assert!(MAX_SEGMENT.is_multiple_of(BLOCK), "segments are whole blocks");
const _: () = assert!(OLDEST_VERSION <= VERSION, "a build reads the logs that it writes");

/// The kind of a record's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The operations of a batch, see [`super::ops`].
    #[default]
    Ops = 1,
    /// As `Ops`, with generations of leaves, see [`super::tags`].
    Tagged = 2,
    /// The creation of a keyspace, as the store encodes it. The record takes one seqno.
    Created = 3,
    /// A sorted load into a keyspace. The record takes the seqno of the load, so that the seqnos of the log have no
    /// gap. It changes nothing: the rows of the load are in the checkpoint that attached them, or nowhere.
    Loaded = 4,
}

impl RecordKind {
    fn from_u8(byte: u8) -> Option<RecordKind> {
        [RecordKind::Ops, RecordKind::Tagged, RecordKind::Created, RecordKind::Loaded]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The highest stream number that fits into a file name.
const MAX_STREAM: u32 = 9_999;
/// The highest segment number that fits into a file name.
pub(super) const MAX_NUMBER: u64 = 999_999_999_999;

/// The name of a segment file: `wal-SSSS-NNNNNNNNNNNN`, stream and segment number in decimal.
pub fn segment_name(stream: u32, number: u64) -> String {
    assert!(stream <= MAX_STREAM && number <= MAX_NUMBER, "segment {stream}/{number} has no name");
    let name = format!("wal-{stream:04}-{number:012}");
    debug_assert_eq!(parse_name(&name), Some(FileName { stream, number, unfinished: false }), "replay finds the file");
    name
}

/// The temporary name of a segment under construction, which is renamed when it is complete.
pub(super) fn unfinished_name(stream: u32, number: u64) -> String {
    let name = segment_name(stream, number) + UNFINISHED;
    debug_assert_eq!(parse_name(&name), Some(FileName { stream, number, unfinished: true }), "replay finds the file");
    name
}

const UNFINISHED: &str = ".new";

/// A file of the log, identified by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileName {
    pub stream: u32,
    pub number: u64,
    /// Whether the file is an unfinished copy: a recovery was interrupted before it renamed the file.
    pub unfinished: bool,
}

/// Parses a file name; `None` if it is not the name of a file of the log.
pub(super) fn parse_name(name: &str) -> Option<FileName> {
    let rest = name.strip_prefix("wal-")?;
    let (rest, unfinished) = match rest.strip_suffix(UNFINISHED) {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (stream, number) = rest.split_once('-')?;
    let decimal = |digits: &str, len| digits.len() == len && digits.bytes().all(|b| b.is_ascii_digit());
    if !decimal(stream, 4) || !decimal(number, 12) {
        return None;
    }
    Some(FileName { stream: stream.parse().ok()?, number: number.parse().ok()?, unfinished })
}

/// The contents of a segment's header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub stream: u32,
    pub number: u64,
    pub epoch: u32,
    /// The last seqno before this epoch. Records of earlier epochs above this seqno are void, and all records through
    /// this seqno were durable before this header was written.
    pub start: Seqno,
    /// All records of this segment are above this seqno, and all records of earlier segments of the stream are at or
    /// below it. `None` if the segment was created in advance, while records were still written to an earlier segment.
    /// In that case the first record of this segment gives the bound.
    pub after: Option<Seqno>,
}

impl Header {
    /// The header block.
    ///
    /// | offset | bytes | |
    /// | --- | --- | --- |
    /// | 0 | 8 | magic `PandoWAL` |
    /// | 8 | 4 | format version: 3 |
    /// | 12 | 4 | stream |
    /// | 16 | 16 | store id |
    /// | 32 | 8 | segment number |
    /// | 40 | 4 | epoch |
    /// | 44 | 4 | 0 |
    /// | 48 | 8 | `start` |
    /// | 56 | 8 | `after`; `Seqno::MAX` if `after` is `None` |
    /// | 64 | 4,028 | 0 |
    /// | 4,092 | 4 | crc of all bytes before it |
    pub fn encode(&self, store: StoreId) -> Vec<u8> {
        let mut block = Vec::with_capacity(HEADER_BYTES);
        block.extend_from_slice(&SEGMENT_MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&self.stream.to_le_bytes());
        block.extend_from_slice(&store.0);
        block.extend_from_slice(&self.number.to_le_bytes());
        block.extend_from_slice(&self.epoch.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&self.start.0.to_le_bytes());
        block.extend_from_slice(&self.after.unwrap_or(Seqno::MAX).0.to_le_bytes());
        block.resize(HEADER_CRC_AT, 0);
        let crc = crc32c::crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(block.len(), HEADER_BYTES);
        block
    }

    /// Decodes the header block of the file `name` of `store`.
    ///
    /// # Errors
    /// `Unsupported` for a later format version, `Corruption` for any other fault.
    pub fn decode(block: &[u8], store: StoreId, name: FileName) -> Result<Header> {
        let mut reader = Reader::new(block, "log segment header");
        if block.len() != HEADER_BYTES {
            return Err(reader.corrupt(format!("the header has {} bytes, must have {HEADER_BYTES}", block.len())));
        }
        let (body, crc) = block.split_at(HEADER_CRC_AT);
        if reader.take(8)? != SEGMENT_MAGIC || crc32c::crc32c(body).to_le_bytes() != crc {
            return Err(Error::corruption("log segment header", 0, "wrong magic or checksum"));
        }
        let version = reader.u32()?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            let detail = format!("log format version {version} (this build reads up to {VERSION}); upgrade it");
            return Err(Error::Unsupported { detail });
        }
        let stream = reader.u32()?;
        let owner = reader.take(16)?;
        let number = reader.u64()?;
        let epoch = reader.u32()?;
        let reserved = reader.u32()?;
        let (start, after) = (Seqno(reader.u64()?), Seqno(reader.u64()?));
        let placed = owner == store.0 && stream == name.stream && number == name.number;
        let bounded = epoch <= MAX_EPOCH && start <= Seqno::MAX && after <= Seqno::MAX;
        if !placed || !bounded || reserved != 0 {
            return Err(Error::corruption(
                "log segment header",
                0,
                "belongs to another store or file, or out of bounds",
            ));
        }
        let after = (after < Seqno::MAX).then_some(after);
        Ok(Header { stream, number, epoch, start, after })
    }

    /// The seed of the checksums of this segment's records.
    pub fn seed(&self, store: StoreId) -> u32 {
        let seed = crc32c::crc32c(&store.0);
        let seed = crc32c::crc32c_append(seed, &self.epoch.to_le_bytes());
        let seed = crc32c::crc32c_append(seed, &self.stream.to_le_bytes());
        crc32c::crc32c_append(seed, &self.number.to_le_bytes())
    }
}

/// The fixed part of a record, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The length of the payload in bytes.
    pub length: u32,
    /// The number of seqnos that the record takes, at least 1.
    pub count: u32,
    /// The first seqno of the record.
    pub first: Seqno,
    /// The whole log was durable through this seqno when the record was written.
    pub durable: Seqno,
    /// The kind of the payload.
    pub kind: RecordKind,
}

impl Head {
    /// The record's last seqno.
    pub fn last(&self) -> Seqno {
        debug_assert!(self.count > 0, "a record takes at least one seqno");
        Seqno(self.first.0 + u64::from(self.count) - 1)
    }

    /// Bytes of the whole record in the file.
    pub fn record_bytes(&self) -> u64 {
        record_bytes(self.length as usize)
    }

    /// Decodes the head at the start of `bytes`; `None` if it is malformed. Does not verify the checksum.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.get(..RECORD_HEAD)?;
        if !has_magic(bytes) {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (first, durable) = (Seqno(u64_at(16)), Seqno(u64_at(24)));
        let kind = RecordKind::from_u8(bytes[15])?;
        let head = Head { length: u32_at(4), count: u32_at(8), first, durable, kind };
        let end = head.first.0.checked_add(u64::from(head.count))?;
        let bounded = head.length as usize <= MAX_PAYLOAD && head.count > 0 && end - 1 <= Seqno::MAX.0;
        (bounded && head.first > head.durable).then_some(head)
    }
}

/// Whether a record may start at the first byte of `bytes`: the magic and a known kind are at the right offsets.
#[inline]
pub(super) fn has_magic(bytes: &[u8]) -> bool {
    bytes[12..15] == RECORD_MAGIC && RecordKind::from_u8(bytes[15]).is_some()
}

/// The number of bytes that a record with `payload` payload bytes occupies in the file.
#[inline]
pub(super) const fn record_bytes(payload: usize) -> u64 {
    record_len(payload) as u64
}

/// The number of bytes that a record with `payload` payload bytes occupies in memory.
#[inline]
const fn record_len(payload: usize) -> usize {
    (RECORD_HEAD + payload).next_multiple_of(8)
}

/// Appends a record that will be at `offset` in the segment with the given seed.
///
/// | offset | bytes | |
/// | --- | --- | --- |
/// | 0 | 4 | crc of all following bytes, padding included; seeded with store, epoch, stream, segment and offset |
/// | 4 | 4 | length of the payload |
/// | 8 | 4 | count of seqnos |
/// | 12 | 3 | magic `REC` |
/// | 15 | 1 | kind: 1, operations of a batch; 2, operations with generations of leaves; 3, a created keyspace |
/// | 16 | 8 | first seqno |
/// | 24 | 8 | seqno through which the whole log was durable |
/// | 32 | length | payload |
/// | | 0–7 | zeros, up to a multiple of 8 |
pub(super) fn put_record(out: &mut Vec<u8>, seed: u32, offset: u64, head: &Head, payload: &[u8]) {
    put_record_with(out, seed, offset, head, |out| out.extend_from_slice(payload));
}

/// As [`put_record`], for a payload that `encode` appends, so that the payload is not copied from another buffer.
///
/// # Panics
/// If `encode` does not append as many bytes as the head announces.
#[inline]
pub(super) fn put_record_with(
    out: &mut Vec<u8>,
    seed: u32,
    offset: u64,
    head: &Head,
    encode: impl FnOnce(&mut Vec<u8>),
) {
    debug_assert!(head.length as usize <= MAX_PAYLOAD && head.last() <= Seqno::MAX, "replay accepts the head");
    debug_assert!(offset.is_multiple_of(8) && offset >= BLOCK);
    debug_assert!(head.count > 0 && head.durable < head.first);
    let at = out.len();
    let mut fixed = [0u8; RECORD_HEAD];
    fixed[4..8].copy_from_slice(&head.length.to_le_bytes());
    fixed[8..12].copy_from_slice(&head.count.to_le_bytes());
    fixed[12..15].copy_from_slice(&RECORD_MAGIC);
    fixed[15] = head.kind as u8;
    fixed[16..24].copy_from_slice(&head.first.0.to_le_bytes());
    fixed[24..32].copy_from_slice(&head.durable.0.to_le_bytes());
    out.extend_from_slice(&fixed);
    encode(out);
    assert_eq!(out.len(), at + RECORD_HEAD + head.length as usize, "the head announces the payload");
    out.resize(at + record_len(head.length as usize), 0);
    let crc = record_crc(seed, offset, &out[at..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    debug_assert_eq!(Head::decode(&out[at..]).as_ref(), Some(head), "replay decodes the head that was encoded");
    debug_assert!(record_is_intact(seed, offset, &out[at..]), "replay verifies the checksum that was stored");
}

/// Whether the checksum of the whole `record`, at `offset`, is correct.
pub(super) fn record_is_intact(seed: u32, offset: u64, record: &[u8]) -> bool {
    record_crc(seed, offset, record).to_le_bytes() == record[..4] || SeededBug::RecordUnchecked.is_on()
}

/// The checksum of a record. The checksum covers all bytes behind the checksum field.
fn record_crc(seed: u32, offset: u64, record: &[u8]) -> u32 {
    debug_assert!(record.len() >= RECORD_HEAD && record.len().is_multiple_of(8), "a whole record, with its padding");
    debug_assert!(offset.is_multiple_of(8) && offset >= BLOCK, "a position of a record");
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &offset.to_le_bytes()), &record[4..])
}
