//! [`Superblock`]: the block from which all durable data of a store is reached.
//!
//! There are two slots, in pages 0 and 32 of the data file. A checkpoint writes the superblock to the slot with the
//! older generation and syncs, so that a torn write leaves the other slot intact. An opening reads both slots and uses
//! the valid one with the higher generation.
//!
//! Invariant: using the older slot is always safe. Pages that its superblock reaches, and the log that its superblock
//! needs, are kept until *both* slots have been overwritten.
//!
//! Persisted form, one page, little-endian:
//!
//! ```text
//!   0  magic "PandoDB\0"                    64  epoch u32              104  catalogue copy 2: page u64
//!   8  format version u32                   68  clean u8, zeros        112  catalogue copy 2: pages u32, zeros u32
//!  12  zeros u32                            72  durable seqno u64      120  catalogue length in bytes u64
//!  16  compatible flags u64                 80  next run id u64
//!  24  read-only-compatible flags u64       88  catalogue copy 1: page u64
//!  32  incompatible flags u64               96  catalogue copy 1: pages u32, zeros u32
//!  40  store id, 16 bytes                  128  generation that wrote the catalogue u64
//!  56  generation u64                      136  time of the catalogue u64, zeros
//!                                         4092  crc32c of bytes 0..4092
//! ```
//!
//! The time is in seconds since 1970, or 0 if it is unknown. The time is for display only: no decision depends on it.
//!
//! An incompatible flag is set in the first superblock that needs it and in all later superblocks. Bit 0: runs may have
//! compressed leaves. Bits 1 and 2: sorted loads have built runs or trees of pages without seqnos. Each of bits 16 to
//! 63 represents an index type of the catalogue's keyspaces; each index type defines its own bit.
//!
//! Source: [decision 0011](../../../../docs/decisions/0011-twins-and-salvage.md) (two copies of all roots).

use super::MirroredBlock;
use super::kind::{BLOCK_HEADER, COMPRESSED_LEAVES, LOADED_RUNS, LOADED_TREES, MAX_BLOCK_PAGES};
use crate::base::codec::Reader;
use crate::base::{BlockAddr, EXTENT_PAGES, Error, MAX_EPOCH, OwnerId, PAGE, PageNo, Result, Seqno, StoreId, seeded};
use crate::device::{AlignedBuf, File, read_exact_at};

const MAGIC: &[u8; 8] = b"PandoDB\0";
/// The format version that this build writes, and the only version that it reads.
pub const FORMAT_VERSION: u32 = 3;
/// The incompatible features that this build supports, without the features of index types.
pub const CORE_FEATURES: u64 = COMPRESSED_LEAVES | LOADED_RUNS | LOADED_TREES;
/// The incompatible features that represent index types.
pub const INDEX_FEATURES: u64 = u64::MAX << 16;
/// The pages of the two slots.
pub const SLOTS: [PageNo; 2] = [PageNo(0), PageNo(32)];

/// The longest catalogue, in bytes, without the block header. A superblock that refers to a longer catalogue is
/// rejected.
pub const MAX_CATALOG_BYTES: u64 = MAX_BLOCK_PAGES as u64 * PAGE as u64 - BLOCK_HEADER as u64;

/// Generations and run ids are below this bound, so that a writer can increment them without a check.
const MAX_COUNT: u64 = 1 << 62;
/// Page numbers are below this bound, which corresponds to a file of 2^60 bytes.
const MAX_PAGE: u64 = 1 << 48;

const _: () = assert!(SLOTS[0].0 / EXTENT_PAGES as u64 != SLOTS[1].0 / EXTENT_PAGES as u64, "slots lie in two extents");
const _: () = assert!(CORE_FEATURES & INDEX_FEATURES == 0, "a feature bit has one meaning");
const _: () = assert!(MAX_PAGE.checked_mul(PAGE as u64).is_some(), "an offset in the file has 64 bits");

/// The block from which all durable data of a store is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Features that an older version may ignore.
    pub compatible: u64,
    /// Features that an older version may ignore if it only reads.
    pub read_only_compatible: u64,
    /// Features that an older version must know to open the store.
    pub incompatible: u64,
    /// The store's identity.
    pub store_id: StoreId,
    /// The number of this superblock. The valid slot with the higher generation is the current one.
    pub generation: u64,
    /// The log epoch of the opener that wrote this superblock.
    pub epoch: u32,
    /// Whether a clean close wrote this superblock. If so, the log ends exactly at `durable`.
    pub clean: bool,
    /// The log was durable through this seqno when the superblock was written. A log that ends before this seqno is
    /// damaged.
    pub durable: Seqno,
    /// Every run and every trunk node has an id below this number.
    pub next_run_id: u64,
    /// The two copies of the catalogue; `pages == 0` in a store without a catalogue.
    pub catalog: MirroredBlock,
    /// The length of the catalogue in bytes, without block header and padding.
    pub catalog_len: u64,
    /// The generation of the superblock that first referred to this catalogue. The checksums of the catalogue's blocks
    /// cover this number as their owner.
    pub catalog_generation: u64,
    /// The time at which this catalogue was written, in seconds since 1970 by the writer's clock; 0 if unknown.
    pub checkpointed_at: u64,
}

impl Superblock {
    /// The first superblock of a store, with this catalogue, which is that of generation 1.
    pub fn first(store_id: StoreId, catalog: MirroredBlock, catalog_len: u64) -> Superblock {
        Superblock {
            compatible: 0,
            read_only_compatible: 0,
            incompatible: 0,
            store_id,
            generation: 1,
            epoch: 0,
            clean: true,
            durable: Seqno(0),
            next_run_id: 1,
            catalog,
            catalog_len,
            catalog_generation: 1,
            checkpointed_at: 0,
        }
    }

    /// The owner that the checksums of the catalogue's blocks cover: the catalogue of the generation
    /// [`Superblock::catalog_generation`]. This generation is lower than this superblock's generation if an earlier
    /// superblock already referred to the catalogue.
    pub fn catalog_owner(&self) -> OwnerId {
        OwnerId(self.catalog_generation)
    }

    /// The persisted form.
    pub fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(PAGE);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for flags in [self.compatible, self.read_only_compatible, self.incompatible] {
            out.extend_from_slice(&flags.to_le_bytes());
        }
        out.extend_from_slice(&self.store_id.0);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&[u8::from(self.clean), 0, 0, 0]);
        out.extend_from_slice(&self.durable.0.to_le_bytes());
        out.extend_from_slice(&self.next_run_id.to_le_bytes());
        for addr in self.catalog.0 {
            out.extend_from_slice(&addr.page.0.to_le_bytes());
            out.extend_from_slice(&addr.pages.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        out.extend_from_slice(&self.catalog_len.to_le_bytes());
        out.extend_from_slice(&self.catalog_generation.to_le_bytes());
        out.extend_from_slice(&self.checkpointed_at.to_le_bytes());
        assert_eq!(out.len(), 144, "the fields have the offsets that the format gives");
        let mut page = AlignedBuf::from_bytes(&out);
        assert_eq!(page.len(), PAGE, "a slot is one page");
        let crc = crc32c::crc32c(&page[..PAGE - 4]);
        page[PAGE - 4..].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Decodes the page of one slot.
    pub fn decode(page: &[u8]) -> Result<Superblock> {
        let bad = |offset, detail: String| Error::corruption("superblock", offset, detail);
        if page.len() != PAGE || &page[..8] != MAGIC {
            return Err(bad(0, "no magic number".into()));
        }
        let stored = u32::from_le_bytes([page[PAGE - 4], page[PAGE - 3], page[PAGE - 2], page[PAGE - 1]]);
        if crc32c::crc32c(&page[..PAGE - 4]) != stored {
            return Err(bad(PAGE as u64 - 4, "checksum mismatch".into()));
        }
        let mut reader = Reader::new(page, "superblock");
        reader.take(8)?;
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            let detail = format!("format version {version}; this version reads {FORMAT_VERSION} only");
            let next = "dump the store with the version that wrote it, and restore the dump";
            return Err(Error::Unsupported { detail: format!("{detail}: {next}") });
        }
        reader.take(4)?;
        let [compatible, read_only_compatible, incompatible] = [reader.u64()?, reader.u64()?, reader.u64()?];
        let mut store_id = StoreId::default();
        store_id.0.copy_from_slice(reader.take(16)?);
        let generation = reader.u64()?;
        let epoch = reader.u32()?;
        let clean = reader.u32()? & 0xff != 0;
        let durable = Seqno(reader.u64()?);
        let next_run_id = reader.u64()?;
        let mut catalog = MirroredBlock::default();
        for addr in &mut catalog.0 {
            *addr = BlockAddr { page: PageNo(reader.u64()?), pages: reader.u32()? };
            reader.take(4)?;
        }
        let catalog_len = reader.u64()?;
        let catalog_generation = reader.u64()?;
        let checkpointed_at = reader.u64()?;
        let superblock = Superblock {
            compatible,
            read_only_compatible,
            incompatible,
            store_id,
            generation,
            epoch,
            clean,
            durable,
            next_run_id,
            catalog,
            catalog_len,
            catalog_generation,
            checkpointed_at,
        };
        if !superblock.is_bounded() {
            return Err(bad(56, "a number, a page address or a length in it is out of bounds".into()));
        }
        Ok(superblock)
    }

    /// Whether all numbers and addresses are in their bounds. The engine increments the numbers without overflow
    /// checks.
    pub(crate) fn is_bounded(&self) -> bool {
        let is_sound = |addr: &BlockAddr| {
            addr.page.0 < MAX_PAGE && self.catalog_len <= addr.bytes() as u64 && addr.pages <= MAX_BLOCK_PAGES
        };
        self.generation < MAX_COUNT
            && self.next_run_id < MAX_COUNT
            && self.epoch <= MAX_EPOCH
            && self.durable <= Seqno::BELIEVED
            && self.catalog.0.iter().all(is_sound)
    }

    /// Reads both slots of `file`. `name` is the name of the file in errors.
    pub fn read_slots(file: &dyn File, name: &str) -> [Result<Superblock>; 2] {
        SLOTS.map(|slot| {
            let mut page = AlignedBuf::zeroed(1);
            read_exact_at(file, slot.offset(), &mut page)
                .map_err(|e| match e.kind() {
                    std::io::ErrorKind::UnexpectedEof => {
                        Error::corruption("superblock", 0, "the file ends before it").in_file(name, slot.offset())
                    }
                    _ => Error::io("read", name, Some(slot.offset()), &e),
                })
                .and_then(|()| Superblock::decode(&page).map_err(|e| e.in_file(name, slot.offset())))
        })
    }

    /// Whether a slot begins with the magic number or cannot be read. In both cases the file may contain a store.
    pub fn has_traces(file: &dyn File) -> bool {
        SLOTS.iter().any(|slot| {
            let mut page = AlignedBuf::zeroed(1);
            match read_exact_at(file, slot.offset(), &mut page) {
                Ok(()) => page.starts_with(MAGIC),
                Err(e) => e.kind() != std::io::ErrorKind::UnexpectedEof,
            }
        })
    }

    /// The slot of this superblock's generation.
    pub(super) fn slot(&self) -> PageNo {
        SLOTS[seeded!(SuperblockSlotTwice: 0, (self.generation % 2) as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            compatible: 1,
            read_only_compatible: 2,
            incompatible: 3,
            store_id: StoreId(*b"0123456789abcdef"),
            generation: 0x1122_3344_5566_7788,
            epoch: 9,
            clean: true,
            durable: Seqno(77),
            next_run_id: 12,
            catalog: MirroredBlock([
                BlockAddr { page: PageNo(40), pages: 2 },
                BlockAddr { page: PageNo(90), pages: 2 },
            ]),
            catalog_len: 5000,
            catalog_generation: 4,
            checkpointed_at: 0x6500_0000,
        }
    }

    #[test]
    fn golden_bytes() {
        let page = sample().encode();
        let hex: String = page[..144].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "50616e646f4442000300000000000000010000000000000002000000000000000300000000000000\
             303132333435363738396162636465668877665544332211090000000100000\
             04d000000000000000c000000000000002800000000000000020000000000000\
             05a000000000000000200000000000000881300000000000004000000000000000000006500000000"
        );
        assert!(page[144..PAGE - 4].iter().all(|&b| b == 0));
        assert_eq!(Superblock::decode(&page).unwrap(), sample());
    }

    #[test]
    fn fields_out_of_bounds_are_refused() {
        let far = |page| MirroredBlock([BlockAddr { page: PageNo(page), pages: 2 }; 2]);
        let hostile = [
            Superblock { generation: u64::MAX, ..sample() },
            Superblock { epoch: u32::MAX, ..sample() },
            Superblock { durable: Seqno::MAX, ..sample() },
            Superblock { next_run_id: u64::MAX, ..sample() },
            Superblock { catalog: far(u64::MAX), ..sample() },
            Superblock { catalog_len: u64::MAX, ..sample() },
            Superblock { catalog_len: 2 * PAGE as u64 + 1, ..sample() },
            Superblock {
                catalog: MirroredBlock([BlockAddr { page: PageNo(40), pages: MAX_BLOCK_PAGES + 1 }; 2]),
                catalog_len: MAX_CATALOG_BYTES + 1,
                ..sample()
            },
        ];
        for superblock in hostile {
            assert!(Superblock::decode(&superblock.encode()).unwrap_err().is_corruption(), "{superblock:?}");
        }
    }

    #[test]
    fn a_flip_of_any_bit_is_refused() {
        let mut page = sample().encode();
        for bit in 0..PAGE * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&page).is_err(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
