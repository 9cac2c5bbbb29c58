//! Checksums made right again after bytes were changed: written from the description of the format, not with the
//! engine's code, so that the two check each other.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The pages of the superblocks.
pub const SUPERBLOCKS: [u64; 2] = [0, 32];

/// The superblock in `page`: crc32c of all but the last four bytes, at the end.
pub fn superblock(page: &mut [u8]) {
    seal_tail(page);
}

/// The header block of a log segment: the same.
pub fn segment_header(block: &mut [u8]) {
    seal_tail(block);
}

fn seal_tail(block: &mut [u8]) {
    let (body, tail) = block.split_at_mut(PAGE - 4);
    tail.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// The checksum of a block of the data file: of store, owner and page, then of the block from its fourth byte on.
pub fn block_crc(block: &[u8], store: &[u8; 16], owner: u64, page: u64) -> u32 {
    let crc = crc32c::crc32c(store);
    let crc = crc32c::crc32c_append(crc, &owner.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &page.to_le_bytes());
    crc32c::crc32c_append(crc, &block[4..])
}

/// A block of the data file.
pub fn block(block: &mut [u8], store: &[u8; 16], owner: u64, page: u64) {
    let crc = block_crc(block, store, owner, page);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Where a log record is: what its checksum is seeded with.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace {
    /// The store.
    pub store: [u8; 16],
    /// The epoch in the segment's header.
    pub epoch: u32,
    /// The stream.
    pub stream: u32,
    /// The segment's number.
    pub number: u64,
    /// The record's offset.
    pub offset: u64,
}

/// The checksum of a whole record, padding included.
pub fn record_crc(record: &[u8], place: &RecordPlace) -> u32 {
    let crc = crc32c::crc32c(&place.store);
    let crc = crc32c::crc32c_append(crc, &place.epoch.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.stream.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.offset.to_le_bytes());
    crc32c::crc32c_append(crc, &record[4..])
}

/// A log record.
pub fn record(record: &mut [u8], place: &RecordPlace) {
    let crc = record_crc(record, place);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}
