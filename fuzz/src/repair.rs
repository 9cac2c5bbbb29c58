//! Corrects checksums after bytes were changed. This module is written from the description of the format and uses no
//! code of the engine. So the two implementations check each other.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The page numbers of the superblocks.
pub const SUPERBLOCKS: [u64; 2] = [0, 32];

/// Corrects the checksum of the superblock in `page`. The checksum is the crc32c of all bytes except the last four, and
/// is stored in the last four bytes.
pub fn superblock(page: &mut [u8]) {
    seal_tail(page);
}

/// Corrects the checksum of the header block of a log segment, which has the layout of a superblock.
pub fn segment_header(block: &mut [u8]) {
    seal_tail(block);
}

fn seal_tail(block: &mut [u8]) {
    let (body, tail) = block.split_at_mut(PAGE - 4);
    tail.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// The checksum of a block of the data file: the crc32c of the store id, the owner, the page number, and the block
/// without its first four bytes.
pub fn block_crc(block: &[u8], store: &[u8; 16], owner: u64, page: u64) -> u32 {
    let crc = crc32c::crc32c(store);
    let crc = crc32c::crc32c_append(crc, &owner.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &page.to_le_bytes());
    crc32c::crc32c_append(crc, &block[4..])
}

/// Corrects the checksum of a block of the data file.
pub fn block(block: &mut [u8], store: &[u8; 16], owner: u64, page: u64) {
    let crc = block_crc(block, store, owner, page);
    block[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The location of a log record, which its checksum covers.
#[derive(Clone, Copy, Debug)]
pub struct RecordPlace {
    /// The id of the store.
    pub store: [u8; 16],
    /// The epoch in the header of the segment.
    pub epoch: u32,
    /// The number of the log stream.
    pub stream: u32,
    /// The number of the segment.
    pub number: u64,
    /// The offset of the record.
    pub offset: u64,
}

/// The checksum of a log record. It covers the padding of the record.
pub fn record_crc(record: &[u8], place: &RecordPlace) -> u32 {
    let crc = crc32c::crc32c(&place.store);
    let crc = crc32c::crc32c_append(crc, &place.epoch.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.stream.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.offset.to_le_bytes());
    crc32c::crc32c_append(crc, &record[4..])
}

/// Corrects the checksum of a log record.
pub fn record(record: &mut [u8], place: &RecordPlace) {
    let crc = record_crc(record, place);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}
