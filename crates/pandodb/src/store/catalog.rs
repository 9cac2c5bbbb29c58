//! [`Catalog`] lists the keyspaces of a store and the roots of their indexes. Each checkpoint writes the catalogue as
//! one block with two copies ([`crate::space::mirrored`]).
//!
//! Persisted form, which follows the block header (all integers are varints, strings are preceded by their length):
//!
//! ```text
//!  version (3) | next keyspace id | user bytes | written bytes | cut | count | for each keyspace:
//!    a created keyspace (below) | through | root record
//!
//!  created keyspace:  id | name | index type and its options ([`IndexOptions`]) |
//!    operator name ("" for none) | operator version | blob threshold
//! ```
//!
//! A keyspace that was created after the last checkpoint is in the log: its creation is a record whose payload is a
//! created keyspace ([`Identity`]). The catalogue includes all creations with seqnos up to `cut`. If the log has the
//! creation of a keyspace with a seqno up to `cut`, but the catalogue lacks this keyspace, then the keyspace was
//! dropped.
//!
//! Invariants: keyspaces are in ascending order of ids, and all ids are below `next_id`. This is asserted when a
//! catalogue is written, and checked when a catalogue is read. No root includes commits above `cut`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::base::codec::{Reader, put_bytes, put_varint};
use crate::base::{BlockAddr, Error, KeyspaceId, OwnerId, Result, Seqno};
use crate::index::{Core, IndexOptions, RootRecord};
use crate::space::data::DATA_FILE;
#[cfg(not(test))]
use crate::space::superblock::MAX_CATALOG_BYTES;
use crate::space::{BLOCK_HEADER, BlockKind, DataFile, MirroredBlock, Prefetch, Superblock};

const VERSION: u64 = 3;
/// Upper limit of ids: all ids are below this number. Half of the possible ids stay free, so that the next id can be
/// computed without an overflow check.
const MAX_ID: u64 = 1 << 31;
/// The maximum length of a keyspace's name, in bytes.
pub const MAX_NAME: usize = 255;

/// The decoded catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// All ids that were ever assigned to a keyspace are below this number.
    pub next_id: u32,
    /// Bytes of keys and values that users wrote since the store was created.
    pub user_bytes: u64,
    /// Bytes that the store wrote to the log and the data file since it was created.
    pub written_bytes: u64,
    /// The catalogue includes every creation and every drop up to this seqno, and no later ones.
    pub cut: Seqno,
    /// The keyspaces, in ascending order of ids.
    pub keyspaces: Vec<KeyspaceRecord>,
}

/// The properties of a keyspace that are fixed when the keyspace is created. Only options of the index can be altered
/// later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The id. It is never reused, even after the keyspace is dropped.
    pub id: KeyspaceId,
    /// The name, of 1 to [`MAX_NAME`] bytes.
    pub name: String,
    /// The index type, its mode and all options that differ from the defaults.
    pub index: IndexOptions,
    /// The name and version of the merge operator.
    pub operator: Option<(String, u32)>,
    /// Values longer than this, in bytes, are stored in extents of their own.
    pub blob_threshold: u64,
}

/// One keyspace in the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceRecord {
    /// The properties of the keyspace.
    pub identity: Identity,
    /// The root of its index.
    pub root: RootRecord,
}

impl KeyspaceRecord {
    /// Returns the blocks that an opening of the keyspace's index reads first.
    pub(crate) fn first_blocks(&self, core: &Core) -> Vec<BlockAddr> {
        (self.identity.index.kind().index_type().first_blocks)(core, &self.root)
    }
}

impl Identity {
    /// Appends the persisted form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id.0.into());
        put_bytes(out, self.name.as_bytes());
        self.index.encode(out);
        let (operator, version) = self.operator.as_ref().map_or(("", 0), |(name, version)| (name, *version));
        put_bytes(out, operator.as_bytes());
        put_varint(out, version.into());
        put_varint(out, self.blob_threshold);
    }

    /// Decodes the payload of a record that creates a keyspace.
    ///
    /// # Errors
    /// [`Error::Corruption`] if bytes are missing or left over, or if the id or the name is out of bounds.
    pub fn decode(bytes: &[u8]) -> Result<Identity> {
        let mut reader = Reader::new(bytes, "created keyspace");
        let identity = Identity::read(&mut reader)?;
        let name = identity.name.len();
        if !reader.is_empty() || u64::from(identity.id.0) >= MAX_ID || name == 0 || name > MAX_NAME {
            return Err(reader.corrupt("trailing bytes, an id out of bounds, or a name that is empty or too long"));
        }
        Ok(identity)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Identity> {
        let id = KeyspaceId(reader.varint_max(u32::MAX.into())? as u32);
        let name = string(reader)?;
        let index = IndexOptions::decode(reader).map_err(|e| stored_in(e, &name))?;
        let operator = string(reader)?;
        let version = reader.varint_max(u32::MAX.into())? as u32;
        let blob_threshold = reader.varint()?;
        let operator = (!operator.is_empty()).then_some((operator, version));
        Ok(Identity { id, name, index, operator, blob_threshold })
    }
}

impl Catalog {
    /// Encodes the persisted form, without the block header.
    pub fn encode(&self) -> Vec<u8> {
        let ids = || self.keyspaces.iter().map(|keyspace| keyspace.identity.id.0);
        assert!(ids().is_sorted_by(|a, b| a < b), "keyspace ids ascend");
        assert!(ids().all(|id| id < self.next_id), "keyspace ids are below {}", self.next_id);
        let mut out = Vec::new();
        put_varint(&mut out, VERSION);
        put_varint(&mut out, self.next_id.into());
        put_varint(&mut out, self.user_bytes);
        put_varint(&mut out, self.written_bytes);
        put_varint(&mut out, self.cut.0);
        put_varint(&mut out, self.keyspaces.len() as u64);
        for keyspace in &self.keyspaces {
            keyspace.identity.encode(&mut out);
            put_varint(&mut out, keyspace.root.through.0);
            put_bytes(&mut out, &keyspace.root.bytes);
        }
        out
    }

    /// Decodes a catalogue in the form that [`Catalog::encode`] writes.
    ///
    /// # Errors
    /// [`Error::Corruption`] if bytes are missing or left over, if the ids are not in order, or if a name is invalid or
    /// occurs twice.
    pub fn decode(bytes: &[u8]) -> Result<Catalog> {
        let mut reader = Reader::new(bytes, "catalogue");
        let version = reader.varint()?;
        if version != VERSION {
            return Err(reader.corrupt("unknown version"));
        }
        let next_id = reader.varint_max(MAX_ID)? as u32;
        let (user_bytes, written_bytes) = (reader.varint_max(1 << 60)?, reader.varint_max(1 << 60)?);
        let cut = Seqno(reader.varint_max(Seqno::BELIEVED.0)?);
        let count = reader.count(8)?;
        let mut keyspaces: Vec<KeyspaceRecord> = Vec::with_capacity(count);
        let mut names = HashSet::with_capacity(count);
        for _ in 0..count {
            let identity = Identity::read(&mut reader)?;
            let id = identity.id;
            if identity.name.is_empty() || identity.name.len() > MAX_NAME || !names.insert(identity.name.clone()) {
                return Err(reader.corrupt("a name is empty, too long, or that of two keyspaces"));
            }
            if id.0 >= next_id || keyspaces.last().is_some_and(|last| last.identity.id >= id) {
                return Err(reader.corrupt("keyspace ids are not in order"));
            }
            let through = Seqno(reader.varint_max(Seqno::BELIEVED.0)?);
            let bytes = reader.bytes()?.to_vec();
            keyspaces.push(KeyspaceRecord { identity, root: RootRecord { through, bytes } });
        }
        if !reader.is_empty() {
            return Err(reader.corrupt("trailing bytes"));
        }
        Ok(Catalog { next_id, user_bytes, written_bytes, cut, keyspaces })
    }

    /// The log is needed only above this seqno. The runs of every keyspace include all messages up to this seqno, and
    /// the catalogue includes all creations up to it.
    pub(crate) fn through(&self) -> Seqno {
        self.keyspaces.iter().fold(self.cut, |least, keyspace| least.min(keyspace.root.through))
    }

    /// Writes both copies of the catalogue. Returns their addresses and the length of one copy in bytes.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if an opening would reject the catalogue; in that case nothing is written. Otherwise the
    /// errors of [`MirroredBlock::write`].
    pub(crate) fn write(&self, data: &DataFile, generation: u64) -> Result<(MirroredBlock, u64)> {
        assert!(u64::from(self.next_id) <= MAX_ID, "an opening accepts the next id {}", self.next_id);
        let covered = |keyspace: &KeyspaceRecord| keyspace.root.through <= self.cut;
        assert!(self.keyspaces.iter().all(covered), "roots hold the commits up to {}", self.cut);
        let body = self.encode();
        check_size(body.len() as u64)?;
        debug_assert!(self.is_encoded_as(&body), "decoding a catalogue reverses its encoding");
        let copies = MirroredBlock::write(data, &body, OwnerId(generation), BlockKind::Catalog)?;
        assert!(copies.0.iter().all(|addr| addr.bytes() >= BLOCK_HEADER + body.len()), "a copy has room for the body");
        Ok((copies, body.len() as u64))
    }

    /// Whether `body` decodes to this catalogue. An operator without a name is not stored, so this function ignores
    /// such an operator.
    fn is_encoded_as(&self, body: &[u8]) -> bool {
        let mut stored = self.clone();
        for keyspace in &mut stored.keyspaces {
            keyspace.identity.operator.take_if(|(name, _)| name.is_empty());
        }
        Catalog::decode(body).is_ok_and(|decoded| decoded == stored)
    }

    /// Reads the catalogue that a superblock refers to, from the first intact copy. A damaged copy is not repaired,
    /// because the next checkpoint writes a new catalogue.
    pub(crate) fn read(data: &Arc<DataFile>, superblock: &Superblock) -> Result<Catalog> {
        let buf = superblock.catalog.read(
            &mut Prefetch::new(data.clone()),
            superblock.catalog_owner(),
            BlockKind::Catalog,
        )?;
        parse(data, superblock, superblock.catalog.0[0], &buf)
    }

    /// Reads one copy of the catalogue, for verification.
    pub(crate) fn check_copy(data: &DataFile, superblock: &Superblock, copy: usize) -> Result<Catalog> {
        let addr = superblock.catalog.0[copy];
        let buf = data.read_block(addr, superblock.catalog_owner(), BlockKind::Catalog)?;
        parse(data, superblock, addr, &buf)
    }
}

/// The maximum size in bytes of a catalogue without its keyspaces: the version and five numbers.
const HEAD_BYTES: u64 = 60;
const _: () = assert!(HEAD_BYTES >= 6 * 10, "a varint has at most 10 bytes");
/// The maximum number of bytes that a checkpoint adds to a created keyspace: `through`, and the root record with its
/// length.
const ROOT_BYTES: u64 = 10 + 2 + RootRecord::MAX_BYTES as u64;

/// The maximum size in bytes of a keyspace in any catalogue. `created` is the size of its creation record.
pub(super) fn most_bytes(created: usize) -> u64 {
    created as u64 + ROOT_BYTES
}

/// The maximum size in bytes of a later catalogue with the same keyspaces. `bytes` is its current size.
pub(super) fn most_bytes_of(catalog: &Catalog, bytes: u64) -> u64 {
    bytes + HEAD_BYTES + ROOT_BYTES * catalog.keyspaces.len() as u64
}

/// Rejects a catalogue of `bytes` bytes if it is so large that an opening would reject it.
///
/// # Errors
/// [`Error::TooLarge`].
pub(super) fn check_size(bytes: u64) -> Result<()> {
    let limit = limit();
    if bytes > limit { Err(Error::TooLarge { what: "catalogue", bytes, limit }) } else { Ok(()) }
}

/// Refuses to create a keyspace with an identity that no opening would accept.
///
/// # Errors
/// [`Error::Unsupported`].
pub(super) fn check_id(id: u32) -> Result<()> {
    if u64::from(id) < MAX_ID {
        return Ok(());
    }
    Err(Error::Unsupported { detail: "no identity is left for another keyspace; copy the store into a new one".into() })
}

#[cfg(not(test))]
fn limit() -> u64 {
    MAX_CATALOG_BYTES
}

#[cfg(test)]
fn limit() -> u64 {
    tests::LIMIT.get()
}

/// Adds the name of the keyspace to an error about its index.
fn stored_in(error: Error, keyspace: &str) -> Error {
    match error {
        Error::UnknownIndex { index, known, .. } => {
            Error::UnknownIndex { index, keyspace: Some(keyspace.to_owned()), known }
        }
        Error::Unsupported { detail } => Error::Unsupported { detail: format!("keyspace `{keyspace}`: {detail}") },
        other => other,
    }
}

fn string(reader: &mut Reader<'_>) -> Result<String> {
    let bytes = reader.bytes()?.to_vec();
    String::from_utf8(bytes).map_err(|_| reader.corrupt("a name is not UTF-8"))
}

fn parse(data: &DataFile, superblock: &Superblock, addr: BlockAddr, block: &[u8]) -> Result<Catalog> {
    let end = (BLOCK_HEADER as u64).saturating_add(superblock.catalog_len);
    if end > block.len() as u64 {
        return Err(data.corrupt(
            addr,
            "catalogue",
            format!("its length of {} bytes exceeds the block", superblock.catalog_len),
        ));
    }
    Catalog::decode(&block[BLOCK_HEADER..end as usize]).map_err(|e: Error| e.in_file(DATA_FILE, addr.page.offset()))
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::base::StoreId;
    use crate::device::MemDevice;
    use crate::space::superblock::MAX_CATALOG_BYTES;

    thread_local! {
        /// The size limit of catalogues for the stores of this thread. Tests lower this limit, because they would
        /// otherwise need hundreds of thousands of keyspaces.
        pub(in super::super) static LIMIT: Cell<u64> = const { Cell::new(MAX_CATALOG_BYTES) };
    }

    /// Regression: a catalogue that was too large was written, and then the store could not be opened from either
    /// superblock.
    #[test]
    fn a_catalogue_that_no_opening_accepts_is_not_written() {
        let data = DataFile::create(&*MemDevice::new(), "data", StoreId([1; 16])).unwrap();
        let of = |root: u64| Catalog {
            next_id: 9,
            cut: Seqno(1),
            keyspaces: vec![KeyspaceRecord {
                identity: identity(),
                root: RootRecord { through: Seqno(1), bytes: vec![7; root as usize] },
            }],
            ..Catalog::default()
        };
        let around = of(1 << 24).encode().len() as u64 - (1 << 24);
        let most = MAX_CATALOG_BYTES - around;
        let before = data.stats();
        let error = of(most + 1).write(&data, 3).unwrap_err();
        assert_eq!(
            error,
            Error::TooLarge { what: "catalogue", bytes: MAX_CATALOG_BYTES + 1, limit: MAX_CATALOG_BYTES }
        );
        assert!(error.to_string().contains("drop keyspaces"), "{error}");
        assert_eq!(data.stats(), before, "nothing was written");
        let (catalog, catalog_len) = of(most).write(&data, 3).unwrap();
        let mut superblock = Superblock::first(data.store_id(), catalog, catalog_len);
        (superblock.generation, superblock.catalog_generation) = (3, 3);
        let superblock = Superblock::decode(&superblock.encode()).expect("the largest one is accepted");
        assert_eq!(Catalog::read(&data, &superblock).unwrap(), of(most));
    }

    fn identity() -> Identity {
        Identity {
            id: KeyspaceId(3),
            name: "ks".into(),
            index: IndexOptions::default().with_mode(crate::index::Mode::Product),
            operator: Some(("min".into(), 1)),
            blob_threshold: 2048,
        }
    }

    fn named(id: u32, name: &str) -> KeyspaceRecord {
        let identity = Identity { id: KeyspaceId(id), name: name.into(), ..identity() };
        KeyspaceRecord { identity, root: RootRecord { through: Seqno(300), bytes: vec![1, 2] } }
    }

    #[test]
    fn golden_bytes_of_a_created_keyspace() {
        let mut bytes = Vec::new();
        identity().encode(&mut bytes);
        let mut golden = b"\x03\x02ks".to_vec();
        identity().index.encode(&mut golden);
        golden.extend_from_slice(b"\x03min\x01\x80\x10");
        assert_eq!(bytes, golden);
        assert_eq!(Identity::decode(&bytes).unwrap(), identity());
        for cut in 0..bytes.len() {
            assert!(Identity::decode(&bytes[..cut]).is_err());
        }
        bytes.push(0);
        assert!(Identity::decode(&bytes).is_err(), "a byte too many");
        let mut nameless = Vec::new();
        Identity { name: String::new(), ..identity() }.encode(&mut nameless);
        assert!(Identity::decode(&nameless).is_err());
    }

    #[test]
    fn golden_bytes_and_round_trip() {
        let catalog = Catalog {
            next_id: 9,
            user_bytes: 5,
            written_bytes: 200,
            cut: Seqno(301),
            keyspaces: vec![KeyspaceRecord {
                identity: identity(),
                root: RootRecord { through: Seqno(300), bytes: vec![1, 2] },
            }],
        };
        let bytes = catalog.encode();
        let mut golden = b"\x03\x09\x05\xc8\x01\xad\x02\x01".to_vec();
        identity().encode(&mut golden);
        golden.extend_from_slice(b"\xac\x02\x02\x01\x02");
        assert_eq!(bytes, golden);
        assert_eq!(Catalog::decode(&bytes).unwrap(), catalog);
        let twice = Catalog { keyspaces: [3, 4].map(|id| named(id, "ks")).into(), ..catalog };
        assert!(Catalog::decode(&twice.encode()).is_err(), "two keyspaces have the same name");
        let late = Catalog { next_id: u32::MAX, ..Catalog::default() };
        assert!(Catalog::decode(&late.encode()).is_err(), "no id is left for another keyspace");
        for cut in 0..bytes.len() {
            assert!(Catalog::decode(&bytes[..cut]).is_err());
        }
    }
}
