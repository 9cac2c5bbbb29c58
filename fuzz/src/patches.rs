//! [`Sound`]: a directory of undamaged files. An input consists of patches, which describe changes to these files, and
//! a flag that decides whether the checksums are corrected after the changes.
//!
//! ```text
//!   input    flags u8 │ patch │ patch │ …          patch: what u8 │ region │ offset │ …
//!   region   a block, a superblock, a segment's header, a record: found by their checksums in the sound files
//! ```
//!
//! Offsets are relative to a region, so that most changes hit meaningful bytes. An input with corrected checksums tests
//! the code behind the check of the checksums. An input with wrong checksums tests this check itself.

use std::collections::BTreeSet;

use pandodb::device::sim::SimImage;
use pandodb::space::BlockKind;
use pandodb::space::data::DATA_FILE;

use crate::bytes::Bytes;
use crate::repair::{self, PAGE, RecordPlace, SUPERBLOCKS};

/// The maximum number of patches of an input.
const MAX_PATCHES: usize = 12;
/// The maximum length in bytes to which a patch may extend a file.
const MAX_LEN: u64 = 16 << 20;
/// Offset of the first record of a segment.
const RECORDS: usize = 4096;

/// The kind of a region, which determines the checksum of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block {
        owner: u64,
    },
    Superblock,
    SegmentHeader,
    Record,
    /// A page without a checksum of its own, such as a part of a large value.
    Bare,
}

/// A region: a part of a file with one checksum.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// The index of the file.
    file: usize,
    at: u64,
    /// The length of the region in bytes.
    len: usize,
    /// The length of the region without the zeros at its end.
    used: usize,
    kind: Kind,
}

/// Undamaged files.
pub struct Sound {
    /// The files of the directory.
    pub image: SimImage,
    /// The id of the store.
    pub store: [u8; 16],
    files: Vec<(String, u64)>,
    regions: Vec<Region>,
}

/// The files after the patches.
pub struct Patched {
    /// The files of the directory.
    pub image: SimImage,
    /// Whether checksums were corrected.
    pub repaired: bool,
    /// Whether a superblock was changed, or the data file was cut, extended or removed.
    pub superblock: bool,
}

impl Sound {
    /// Finds all regions of `image`. The owners of the blocks in `image` are below `owners`.
    pub fn new(image: SimImage, store: [u8; 16], owners: u64) -> Sound {
        let mut sound = Sound { files: image.files(), image, store, regions: Vec::new() };
        for (file, (name, _)) in sound.files.clone().into_iter().enumerate() {
            let bytes = sound.image.file(&name).expect("it was listed");
            if name == DATA_FILE {
                sound.find_blocks(file, &bytes, owners);
            } else if name.starts_with("wal-") {
                sound.find_records(file, &bytes);
            }
        }
        sound
    }

    /// The number of blocks and of log records among the regions.
    pub fn counts(&self) -> (usize, usize) {
        let count = |wanted: fn(&Kind) -> bool| self.regions.iter().filter(|region| wanted(&region.kind)).count();
        (count(|kind| matches!(kind, Kind::Block { .. })), count(|kind| *kind == Kind::Record))
    }

    fn add(&mut self, file: usize, at: usize, bytes: &[u8], kind: Kind) {
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.regions.push(Region { file, at: at as u64, len: bytes.len(), used: used.max(1), kind });
    }

    fn find_blocks(&mut self, file: usize, bytes: &[u8], owners: u64) {
        let mut page = 0;
        while (page + 1) * PAGE <= bytes.len() {
            let at = page * PAGE;
            let first = &bytes[at..at + PAGE];
            let pages = u32::from_le_bytes(first[8..12].try_into().expect("4 bytes")) as usize;
            let mut step = 1;
            if SUPERBLOCKS.contains(&(page as u64)) && first.starts_with(b"PandoDB\0") {
                self.add(file, at, first, Kind::Superblock);
            } else if let Some(block) = bytes.get(at..at.saturating_add(pages.saturating_mul(PAGE)))
                && BlockKind::from_u8(first[4]).is_some()
                && let Some(owner) = self.owner_of(block, page as u64, owners)
            {
                self.add(file, at, block, Kind::Block { owner });
                step = pages;
            } else if first.iter().any(|byte| *byte != 0) {
                self.add(file, at, first, Kind::Bare);
            }
            page += step;
        }
    }

    fn owner_of(&self, block: &[u8], page: u64, owners: u64) -> Option<u64> {
        let stored = block.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))?;
        // The owner is found by trying all owners. The crc is linear, so two owners never give the same checksum.
        (0..owners).find(|owner| repair::block_crc(block, &self.store, *owner, page) == stored)
    }

    fn find_records(&mut self, file: usize, bytes: &[u8]) {
        let Some(header) = bytes.get(..PAGE) else { return };
        self.add(file, 0, header, Kind::SegmentHeader);
        let mut at = RECORDS;
        while at + 32 <= bytes.len() {
            let len = record_len(&bytes[at..]);
            let found = bytes[at + 12..at + 16] == *b"REC\x01"
                && bytes.get(at..at + len).is_some_and(|record| {
                    repair::record_crc(record, &self.place(header, at as u64)).to_le_bytes() == record[..4]
                });
            if found {
                self.add(file, at, &bytes[at..at + len], Kind::Record);
            }
            at += if found { len } else { 8 };
        }
    }

    /// The location of a record at `offset` in the segment that has this header.
    fn place(&self, header: &[u8], offset: u64) -> RecordPlace {
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let number = u64::from_le_bytes(header[32..40].try_into().expect("8 bytes"));
        RecordPlace { store: self.store, epoch: u32_at(40), stream: u32_at(12), number, offset }
    }

    /// Applies the patches in the rest of an input.
    pub fn patch(&self, input: &mut Bytes<'_>) -> Patched {
        // One input in eight leaves the checksums wrong.
        let repaired = !input.u8().is_multiple_of(8);
        let mut patched = Patched { image: self.image.clone(), repaired, superblock: false };
        let mut touched = BTreeSet::new();
        for _ in 0..MAX_PATCHES {
            if input.is_empty() || self.regions.is_empty() {
                break;
            }
            self.one(input, &mut patched, &mut touched);
        }
        patched.superblock |= touched.iter().any(|i: &usize| self.regions[*i].kind == Kind::Superblock);
        if repaired {
            self.repair(&mut patched.image, &touched);
        }
        patched
    }

    fn region(&self, input: &mut Bytes<'_>) -> usize {
        input.below(self.regions.len().min(1 << 16))
    }

    /// Reads the offset of a patch in region `i`. Returns the position in the file, and `len` limited to the rest of
    /// the region.
    fn place_in(&self, i: usize, input: &mut Bytes<'_>, len: usize) -> (u64, usize) {
        let region = &self.regions[i];
        // The offset may be up to 8 bytes beyond the last used byte, so that patches also change zeros that the format
        // requires.
        let offset = input.below((region.used + 8).min(region.len).min(1 << 16));
        (region.at + offset as u64, len.min(region.len - offset))
    }

    fn one(&self, input: &mut Bytes<'_>, patched: &mut Patched, touched: &mut BTreeSet<usize>) {
        let what = input.u8();
        let i = self.region(input);
        let file = &self.files[self.regions[i].file];
        let mut write = |image: &mut SimImage, at: u64, bytes: &[u8]| {
            // An earlier patch may have cut or removed the file.
            if image.files().iter().any(|(name, len)| name == &file.0 && at + bytes.len() as u64 <= *len) {
                image.write(&file.0, at, bytes);
                touched.insert(i);
            }
        };
        match what % 16 {
            0..=3 => {
                let (at, _) = self.place_in(i, input, 1);
                let old = self.image.read(&file.0, at..at + 1)[0];
                write(&mut patched.image, at, &[old ^ input.u8().max(1)]);
            }
            4..=7 => {
                let (at, len) = self.place_in(i, input, 1 << (what % 4));
                let number = input.number().to_le_bytes();
                write(&mut patched.image, at, &number[..len]);
            }
            8..=9 => {
                let mut varint = Vec::new();
                let (at, len) = self.place_in(i, input, 10);
                pandodb::base::codec::put_varint(&mut varint, input.number());
                varint.truncate(len);
                write(&mut patched.image, at, &varint);
            }
            10..=11 => {
                let bytes = input.string();
                let (at, len) = self.place_in(i, input, bytes.len());
                write(&mut patched.image, at, &bytes[..len]);
            }
            12 => {
                let (at, len) = self.place_in(i, input, 1 << (what / 16));
                write(&mut patched.image, at, &vec![0; len]);
            }
            13..=14 => {
                // The patch copies the bytes of another region to this place, as a misdirected write would do.
                let other = self.regions[self.region(input)];
                let len = other.len.min(self.regions[i].len);
                let bytes = self.image.read(&self.files[other.file].0, other.at..other.at + len as u64);
                write(&mut patched.image, self.regions[i].at, &bytes);
            }
            _ => self.whole_file(input, patched, what, self.regions[i].file),
        }
    }

    /// Cuts a file, makes it longer, or removes it.
    fn whole_file(&self, input: &mut Bytes<'_>, patched: &mut Patched, what: u8, file: usize) {
        let (name, len) = &self.files[file];
        if !patched.image.files().iter().any(|(there, _)| there == name) {
            return;
        }
        if what / 16 == 0 {
            patched.image.remove(name);
        } else {
            let unit = [1, 8, 512, PAGE as u64][usize::from(what / 16) % 4];
            patched.image.truncate(name, (u64::from(input.u16()) * unit).min(len + (1 << 20)).min(MAX_LEN));
        }
        patched.superblock |= name == DATA_FILE;
    }

    fn repair(&self, image: &mut SimImage, touched: &BTreeSet<usize>) {
        let mut segments = BTreeSet::new();
        for &i in touched {
            let region = &self.regions[i];
            match region.kind {
                Kind::Block { owner } => {
                    let (store, page) = (&self.store, region.at / PAGE as u64);
                    self.rewrite(image, region, |block| repair::block(block, store, owner, page));
                }
                Kind::Superblock => self.rewrite(image, region, repair::superblock),
                Kind::SegmentHeader | Kind::Record => drop(segments.insert(region.file)),
                Kind::Bare => {}
            }
        }
        for file in segments {
            let in_file = |region: &&Region| region.file == file;
            for header in self.regions.iter().filter(in_file).filter(|region| region.kind == Kind::SegmentHeader) {
                self.rewrite(image, header, repair::segment_header);
            }
            if image.files().iter().any(|(name, len)| *name == self.files[file].0 && *len >= PAGE as u64) {
                let header = image.read(&self.files[file].0, 0..PAGE as u64);
                self.repair_records(image, file, &header);
            }
        }
    }

    fn repair_records(&self, image: &mut SimImage, file: usize, header: &[u8]) {
        let records = self.regions.iter().filter(|region| region.file == file && region.kind == Kind::Record);
        for region in records {
            let mut record = image.read(&self.files[file].0, region.at..u64::MAX);
            if record.len() < 32 {
                continue;
            }
            // A patch may have changed the length field, so the length is computed from the current value of the field.
            let len = record_len(&record);
            if len <= record.len() {
                record.truncate(len);
                repair::record(&mut record, &self.place(header, region.at));
                image.write(&self.files[file].0, region.at, &record[..4]);
            }
        }
    }

    fn rewrite(&self, image: &mut SimImage, region: &Region, seal: impl FnOnce(&mut [u8])) {
        let name = &self.files[region.file].0;
        let there = image.files().iter().any(|(file, len)| file == name && region.at + region.len as u64 <= *len);
        if there {
            let mut bytes = image.read(name, region.at..region.at + region.len as u64);
            seal(&mut bytes);
            image.write(name, region.at, &bytes);
        }
    }
}

/// The length of the record at the start of `bytes`, computed from its length field, including padding.
fn record_len(bytes: &[u8]) -> usize {
    let payload = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")) as usize;
    (32 + payload).next_multiple_of(8)
}

/// Creates `count` inputs. Each input has one patch, and can be used with any files.
pub fn seeds(count: usize) -> Vec<Vec<u8>> {
    let mut rng = pandodb::base::random::Rng(7);
    (0..count)
        .map(|i| {
            let mut input = vec![(i % 9) as u8, (i % 16) as u8 | 16];
            input.extend((0..8).map(|_| rng.next_u64() as u8));
            input
        })
        .collect()
}
