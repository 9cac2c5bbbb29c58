//! `verify`: reads and checks everything that a store reaches, and accounts for every page.
//!
//! Steps: both superblock slots and both catalogue copies; the large values that memtables name; then, with a checkpoint's worth of state pinned, each index:
//! its nodes, runs, live messages, large values; then the allocation: no page has two owners, every owned page counts as
//! taken. Problems are gathered, not fatal: verification goes on behind them. The log is not read again: opening has
//! replayed it, and refuses a store whose log is damaged.

use crate::base::{BlobRef, BlockAddr, Entry, EntryBlock, Error, Extent, KeyRange, Kind, Result, Seqno};
use crate::index::Visitor;
use crate::memtable::Memtable;
use crate::space::data::DATA_FILE;
use crate::space::ranges::RangeSet;
use crate::space::{BlockKind, DataFile, Superblock};
use crate::store::catalog::{Catalog, extent};
use crate::store::engine::Engine;

/// Bytes of messages that are copied out of a memtable at a time.
const MEMTABLE_BYTES: usize = 64 << 10;

/// What a verification read, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Blocks read and checked.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Live messages read, superseded ones included.
    pub entries: u64,
    /// Runs.
    pub runs: u64,
    /// Trunk nodes.
    pub nodes: u64,
    /// Large values.
    pub blobs: u64,
    /// Everything that is wrong; empty if the store is sound.
    pub problems: Vec<Error>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

struct Verifier<'a> {
    data: &'a DataFile,
    report: VerifyReport,
    owned: RangeSet,
}

impl Verifier<'_> {
    /// Reads the large values that a memtable names. Their pages are not accounted for here: once the memtable is packed the
    /// index names them too.
    fn large_values(&mut self, memtable: &Memtable) -> Result<()> {
        let mut block = EntryBlock::new();
        let mut after: Option<(Vec<u8>, Seqno)> = None;
        loop {
            block.clear();
            let place = after.as_ref().map(|(key, seqno)| (key.as_slice(), *seqno));
            memtable.fill(&KeyRange::all(), place, false, usize::MAX, MEMTABLE_BYTES, &mut block);
            for entry in block.iter().filter(|entry| entry.kind == Kind::BlobPut) {
                match self.data.read_blob(&BlobRef::decode(entry.value)?) {
                    Ok(buf) => self.block(BlockKind::Blob, buf.len() as u64),
                    Err(e) => self.problem(e),
                }
            }
            let Some(last) = block.len().checked_sub(1).map(|last| block.get(last)) else { return Ok(()) };
            after = Some((last.key.to_vec(), last.seqno));
        }
    }
}

impl Visitor for Verifier<'_> {
    fn extent(&mut self, extent: Extent) {
        let (start, len) = (extent.start.0, u64::from(extent.pages));
        let addr = BlockAddr { page: extent.start, pages: extent.pages };
        if self.owned.overlaps(start, len) {
            self.problem(self.data.corrupt(addr, "allocation", format!("{len} pages have two owners")));
            return;
        }
        self.owned.insert(start, len);
        if !self.data.is_taken(extent) {
            self.problem(self.data.corrupt(addr, "allocation", format!("{len} pages are in use but count as free")));
        }
    }

    fn block(&mut self, kind: BlockKind, bytes: u64) {
        self.report.blocks += 1;
        self.report.bytes += bytes;
        match kind {
            BlockKind::Node => self.report.nodes += 1,
            BlockKind::Footer => self.report.runs += 1,
            BlockKind::Blob => self.report.blobs += 1,
            _ => {}
        }
    }

    fn entry(&mut self, _entry: &Entry<'_>) {
        self.report.entries += 1;
    }

    fn problem(&mut self, problem: Error) {
        self.report.problems.push(problem);
    }
}

/// Verifies an open store.
pub(crate) fn verify(engine: &Engine) -> Result<VerifyReport> {
    let data = &engine.core.data;
    let mut verifier = Verifier { data, report: VerifyReport::default(), owned: RangeSet::default() };
    let keyspaces: Vec<_>;
    {
        // Held, so that no checkpoint moves the roots meanwhile, or lets the place of a large value be used again.
        let root = engine.durable_root.lock();
        for slot in Superblock::read_slots(data.file(), DATA_FILE) {
            match slot {
                Ok(superblock) if superblock.store_id == data.store_id() => verifier.report.blocks += 1,
                Ok(_) => verifier
                    .problem(Error::corruption("superblock", 0, "belongs to another store").in_file(DATA_FILE, 0)),
                Err(e) => verifier.problem(e),
            }
        }
        for (copy, addr) in root.superblock.catalogs.into_iter().enumerate() {
            verifier.extent(extent(addr));
            match Catalog::check_copy(data, &root.superblock, copy) {
                Ok(catalog) if catalog == root.catalog => verifier.block(BlockKind::Catalog, addr.bytes() as u64),
                Ok(_) => verifier.problem(data.corrupt(addr, "catalogue", "the copies differ")),
                Err(e) => verifier.problem(e),
            }
        }
        keyspaces = engine.keyspaces.read().values().cloned().collect();
        for keyspace in &keyspaces {
            let containers = keyspace.containers.load_full();
            let sealed = containers.sealed.iter().map(|batch| &batch.memtable);
            sealed.chain([&containers.active]).try_for_each(|memtable| verifier.large_values(memtable))?;
        }
    }
    for keyspace in keyspaces {
        keyspace.index.verify(&mut verifier)?;
    }
    Ok(verifier.report)
}
