//! Verification of the common parts of indexes: runs, live messages, large values.
//!
//! Verification reads all of these parts, reports blocks, messages and problems to a [`Visitor`], and changes nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::probe::Stop;
use crate::base::{
    BlobRef, BlockAddr, Entry, EntryBlock, Fragments, KeyRange, Kind, OwnerId, Result, key_hash, seeded,
};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::index::blobs::PinnedMap;
use crate::index::stored::Stored;
use crate::index::{Core, SalvageSource, SalvageStep, Visitor};
use crate::run::{Piece as SlicePart, ReadAhead, Run, RunCursor, RunSlice, Salvager, maplet};
use crate::space::BlockKind;
use crate::space::data::DATA_FILE;
use crate::space::ranges::RangeSet;

/// The number of bytes that are read ahead, because all leaves are read.
const READ_AHEAD: usize = 256 << 10;

/// A verification of one index.
pub struct Checker<'a> {
    core: &'a Core,
    visit: &'a mut dyn Visitor,
    /// The runs and maplets that were already read.
    runs: HashSet<OwnerId>,
    /// The pages of the large values to which the messages read until now refer.
    named: RangeSet,
    /// Whether every part of the structure that was checked so far was readable.
    complete: bool,
    maplet: LastMaplet,
}

impl<'a> Checker<'a> {
    /// Makes a verification that has not read anything yet.
    pub fn new(core: &'a Core, visit: &'a mut dyn Visitor) -> Checker<'a> {
        let (runs, named) = (HashSet::new(), RangeSet::default());
        Checker { core, visit, runs, named, complete: true, maplet: LastMaplet::default() }
    }

    /// Reports a problem.
    pub fn problem(&mut self, problem: crate::Error) {
        self.visit.problem(problem);
    }

    /// Reports a part of the structure that cannot be read. The large values that the messages of this part refer to
    /// remain unknown.
    pub fn lost(&mut self, error: crate::Error) {
        self.complete = false;
        self.visit.problem(error);
    }

    /// Reads both copies of a block of the structure.
    pub fn stored(&mut self, stored: Stored, kind: BlockKind) {
        stored.copies.0.into_iter().for_each(|addr| self.block(addr, stored.id, kind));
    }

    /// Reads a block of the structure.
    pub fn block(&mut self, addr: BlockAddr, owner: OwnerId, kind: BlockKind) {
        self.read(kind, self.core.data.read_block(addr, owner, kind));
    }

    /// Reports a block that was read and checked, or the error.
    pub fn read(&mut self, kind: BlockKind, read: Result<AlignedBuf>) {
        match read {
            Ok(buf) => self.visit.block(kind, buf.len() as u64),
            Err(e) => self.visit.problem(e),
        }
    }

    /// Checks a message, and reads its large value.
    pub fn entry(&mut self, entry: &Entry<'_>) {
        self.visit.entry(entry);
        if entry.kind == Kind::BlobPut
            && let Err(e) = self.blob(entry.value)
        {
            self.lost(e);
        }
    }

    /// Reads every block of a run or maplet, unless this verification has already read it.
    pub fn run(&mut self, run: &Arc<Run>) {
        if self.runs.insert(run.meta().id) {
            run.verify(&mut |kind, checked| match checked {
                Ok(bytes) => self.visit.block(kind, bytes),
                Err(e) => self.visit.problem(e),
            });
        }
    }

    /// Reads every message that is live in the slice of `stop` and whose key is in `range`. Also reads the large values
    /// of these messages.
    pub fn live(&mut self, stop: Stop<'_>, range: &KeyRange) {
        if let Err(e) = self.read_live(stop, range) {
            self.lost(e);
        }
    }

    fn read_live(&mut self, stop: Stop<'_>, range: &KeyRange) -> Result<()> {
        if !stop.slice.range().overlaps(range) {
            return Ok(());
        }
        let mut sound = true;
        let mut cursor = RunCursor::new(stop.slice.clone(), range, false, ReadAhead::Streaming(READ_AHEAD))?;
        while let Some(entry) = cursor.entry() {
            self.visit.entry(&entry);
            if sound && let Err(e) = self.maplet.check(stop, entry.key) {
                self.visit.problem(e);
                sound = false;
            }
            if entry.kind == Kind::BlobPut {
                self.blob(entry.value)?;
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn blob(&mut self, value: &[u8]) -> Result<()> {
        let blob = BlobRef::decode(value)?;
        let extent = blob.extent();
        if self.named.overlaps(extent.start.0, extent.pages.into()) {
            let addr = BlockAddr { page: extent.start, pages: extent.pages };
            let problem = self.core.data.corrupt(addr, BlockKind::Blob.name(), "two messages name the same pages");
            self.visit.problem(problem);
            return Ok(());
        }
        debug_assert!(extent.pages > 0, "a decoded reference has pages");
        self.named.insert(extent.start.0, extent.pages.into());
        seeded!(VerifySkipsLargeValues: (), self.read_blob(&blob));
        Ok(())
    }

    fn read_blob(&mut self, blob: &BlobRef) {
        match self.core.data.read_blob(blob) {
            Ok(buf) => self.visit.block(BlockKind::Blob, buf.len() as u64),
            Err(e) => self.visit.problem(e),
        }
    }

    /// Reads the nodes of a map of pages.
    pub fn map(&mut self, pinned: &PinnedMap) {
        let PinnedMap { map, stored, lost } = pinned;
        stored.iter().for_each(|stored| self.stored(*stored, BlockKind::LargeValueMap));
        if let Some(error) = lost {
            self.lost(error.clone());
        }
        if let Some(problem) = map.problem() {
            self.problem(crate::Error::corruption(BlockKind::LargeValueMap.name(), 0, problem));
        }
    }

    /// Ends the verification: reads the nodes of the map of large values, and compares the pages in the map with the
    /// pages that messages refer to.
    pub fn finish(mut self, blobs: &PinnedMap) {
        self.map(blobs);
        let map = &blobs.map;
        // Skip the comparison if some messages could not be read, because their large values are unknown.
        if self.complete && !self.named.iter().eq(map.iter()) {
            let detail = "the pages that messages name differ from those in the map of large values";
            self.visit.problem(crate::Error::corruption("large values", 0, detail).in_file(DATA_FILE, 0));
        }
    }
}

/// The pages of the maplet that was used last. There are no pages if the maplet cannot be read. [`Checker::run`]
/// reports such a maplet.
#[derive(Default)]
struct LastMaplet(Option<(OwnerId, Vec<Vec<u8>>)>);

impl LastMaplet {
    /// Checks that a maplet contains a key of one of its runs.
    fn check(&mut self, stop: Stop<'_>, key: &[u8]) -> Result<()> {
        let Some(route) = stop.route else { return Ok(()) };
        let (meta, hash) = (route.maplet.meta(), key_hash(key));
        if self.0.as_ref().is_none_or(|(id, _)| *id != meta.id) {
            self.0 = Some((meta.id, maplet::pages(&route.maplet).unwrap_or_default()));
        }
        let pages = self.0.as_ref().map_or(&[][..], |(_, pages)| pages);
        let page = pages.get(meta.filter.page_of(hash) as usize);
        match page.and_then(|page| maplet::ask(Some(page), hash)) {
            Some(values) if !values.contains(route.value) => {
                let detail = format!("maplet {} lacks a key of run {}", meta.id, stop.slice.run().meta().id);
                Err(route.maplet.data().corrupt(maplet::page_for(&route.maplet, hash)?, "maplet", detail))
            }
            _ => Ok(()),
        }
    }
}

/// The slices of a piece, as sources for salvaging the keys in `range`.
pub fn sources(slices: Vec<Arc<RunSlice>>, range: &KeyRange) -> Vec<Box<dyn SalvageSource>> {
    let source = |slice: Arc<RunSlice>| {
        let range = slice.range().intersect(range);
        let salvager = Salvager::new(slice.clone(), &range);
        Box::new(SliceSource { slice, range, salvager }) as Box<dyn SalvageSource>
    };
    slices.into_iter().map(source).collect()
}

/// A slice of which all blocks except the damaged ones are read.
struct SliceSource {
    slice: Arc<RunSlice>,
    range: KeyRange,
    salvager: Salvager,
}

impl SalvageSource for SliceSource {
    fn range(&self) -> &KeyRange {
        &self.range
    }

    fn tombstones(&self) -> Result<Arc<Fragments>> {
        self.slice.run().fragments().cloned()
    }

    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep {
        match self.salvager.next(out) {
            SlicePart::Entries => SalvageStep::Entries,
            SlicePart::Lost(range, error) => SalvageStep::Lost(range, error),
            SlicePart::End => SalvageStep::End,
        }
    }

    fn may_hold(&self, key: &[u8]) -> bool {
        self.salvager.may_hold(key)
    }
}

/// A printable form of a key, shortened to fit on a line.
pub fn short(key: &[u8]) -> String {
    let cut = &key[..key.len().min(32)];
    format!("{}{}", cut.escape_ascii(), if cut.len() < key.len() { "…" } else { "" })
}
