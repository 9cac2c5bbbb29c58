//! [`Stored`] is a metadata block of an index on disk, in two copies ([`crate::space::mirrored`]).
//!
//! ```text
//!   write:   encode ─▶ body length u32 | body ─▶ both copies
//!   open:    read both copies ─▶ decode ─▶ … all indexes are open, all pages marked ─▶ Repairs::write
//!            a damaged copy is only recorded ────────────────────────────────────────▲
//! ```
//!
//! A damaged copy is rewritten only once the pages of all indexes are marked. Before that, another index could own the
//! page at the same address. Then the write would destroy a block or a large value of this index.
//!
//! Persisted forms:
//!
//! ```text
//!  address of a block (integers varint):   owner id | pages | page of copy 0 | page of copy 1
//!  the block, after its 16-byte header:    body length u32 | body
//! ```

use super::Core;
use crate::base::codec::{Reader, put_varint};
use crate::base::sync::Mutex;
use crate::base::{BlockAddr, Error, OwnerId, PageNo, Result};
use crate::device::AlignedBuf;
use crate::space::data::DATA_FILE;
use crate::space::{BLOCK_HEADER, BlockKind, DataFile, MirroredBlock, Prefetch};

/// Bytes of the length that precedes the body.
pub const LENGTH: usize = 4;
/// Bytes of a block before its body.
const BEFORE_BODY: usize = BLOCK_HEADER + LENGTH;
/// Upper limit of page numbers.
const MAX_PAGE: u64 = 1 << 48;

const _: () = assert!(BEFORE_BODY < crate::base::PAGE, "every block has room for a body");

/// The address of a metadata block of an index on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The identity of the block's owner. The checksums of both copies include it.
    pub id: OwnerId,
    /// The addresses of both copies.
    pub copies: MirroredBlock,
}

impl Stored {
    /// Writes a block of the kind `kind`; `encode` appends the body of the block.
    ///
    /// # Errors
    /// The errors of [`MirroredBlock::write`].
    pub fn write(core: &Core, kind: BlockKind, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Stored> {
        let mut body = vec![0; LENGTH];
        encode(&mut body);
        assert!(body.len() > LENGTH, "a block of an index has a body");
        let len = u32::try_from(body.len() - LENGTH).expect("a metadata block is smaller than 4 GiB");
        body[..LENGTH].copy_from_slice(&len.to_le_bytes());
        let id = core.ids.next();
        Ok(Stored { id, copies: MirroredBlock::write(&core.data, &body, id, kind)? })
    }

    /// Reads the block and returns the first intact copy. A store that is open for writing reads both copies, and
    /// records a block with a damaged copy in [`Core::repairs`].
    ///
    /// # Errors
    /// The error of the first copy, if the second copy is damaged too.
    pub fn read(self, core: &Core, prefetch: &mut Prefetch, kind: BlockKind) -> Result<AlignedBuf> {
        if !core.repair {
            return self.copies.read(prefetch, self.id, kind);
        }
        match self.copies.0.map(|addr| prefetch.read_block(addr, self.id, kind)) {
            [Ok(buf), Ok(_)] => Ok(buf),
            [Ok(buf), Err(_)] | [Err(_), Ok(buf)] => {
                core.repairs.add(self, kind);
                Ok(buf)
            }
            [Err(first), Err(_)] => Err(first),
        }
    }

    /// Decodes the body of a block that [`Stored::read`] returned.
    ///
    /// # Errors
    /// [`Error::Corruption`] if the block is too short for its body. Also the errors of `decode`, with the position of
    /// the block.
    pub fn decode_body<T>(
        self,
        block: &[u8],
        data: &DataFile,
        kind: BlockKind,
        decode: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<T> {
        let (len, rest) = block[BLOCK_HEADER..].split_first_chunk::<LENGTH>().expect("a block is a page at least");
        let body = rest.get(..u32::from_le_bytes(*len) as usize);
        let body = body.ok_or_else(|| self.corrupt(data, kind, "the body exceeds the block"))?;
        let at = self.copies.0[0].page.offset() + BEFORE_BODY as u64;
        decode(&mut Reader::new(body, kind.name())).map_err(|e| e.in_file(DATA_FILE, at))
    }

    /// The error for a corruption of this block, with the position of the block.
    pub fn corrupt(self, data: &DataFile, kind: BlockKind, detail: &str) -> Error {
        data.corrupt(self.copies.0[0], kind.name(), detail)
    }

    /// Appends the persisted form of the address.
    pub fn encode(self, out: &mut Vec<u8>) {
        let [first, second] = self.copies.0;
        assert!(first.pages == second.pages && first.pages > 0, "both copies have the same length");
        put_varint(out, self.id.0);
        put_varint(out, first.pages.into());
        self.copies.0.iter().for_each(|addr| put_varint(out, addr.page.0));
    }

    /// Decodes the form that [`Stored::encode`] wrote.
    ///
    /// # Errors
    /// [`Error::Corruption`] if bytes are missing or a page is out of bounds.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Stored> {
        let id = OwnerId(reader.varint()?);
        let pages = reader.varint_max(u32::MAX.into())? as u32;
        let mut copy = || Ok(BlockAddr { page: PageNo(reader.varint_max(MAX_PAGE)?), pages });
        Ok(Stored { id, copies: MirroredBlock([copy()?, copy()?]) })
    }

    /// The copies that an opening reads: both copies if a damaged copy will be repaired.
    pub fn first_reads(self, core: &Core) -> impl Iterator<Item = BlockAddr> {
        self.copies.0.into_iter().take(if core.repair { 2 } else { 1 })
    }
}

/// The blocks of which an opening has found one copy damaged.
#[derive(Debug, Default)]
pub struct Repairs(Mutex<Vec<(Stored, BlockKind)>>);

impl Repairs {
    fn add(&self, stored: Stored, kind: BlockKind) {
        self.0.lock().push((stored, kind));
    }

    /// Overwrites each damaged copy with the contents of the intact copy. REQUIRES: the pages of all indexes are
    /// marked, and none of them overlap. If a copy cannot be written, it stays damaged. This is not an error, because
    /// the intact copy is sufficient.
    pub fn write(&self, data: &std::sync::Arc<DataFile>) {
        let damaged = std::mem::take(&mut *self.0.lock());
        let mut prefetch = Prefetch::new(data.clone());
        for (stored, kind) in damaged {
            assert!(stored.copies.extents().into_iter().all(|copy| data.is_taken(copy)), "a copy has its own pages");
            let _ = stored.copies.repair(&mut prefetch, stored.id, kind);
        }
    }
}
