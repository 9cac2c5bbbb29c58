//! [`FilterPrefetch`]: finds all filter blocks of a lookup in the pool at the same time, so that their cache misses
//! overlap.
//!
//! A lookup that finds all its blocks in memory is bound by cache misses. To probe one filter, the lookup makes a chain
//! of dependent memory accesses: the pool's table, a frame, the block's key, and three cache lines of the block. The
//! trunk is in memory, so the filters of a lookup are known before the first filter is probed, and the memory accesses
//! for all filters can overlap. If the key is found in a newer run, a prefetched filter is not probed. The prefetch was
//! then superfluous but cheap.
//!
//! Steps: call [`FilterPrefetch::note`] for each filter block, [`FilterPrefetch::look`] once, and
//! [`FilterPrefetch::take`] for each block when its filter is probed.
//!
//! Invariant: prefetching does not change results. A filter block that was not prefetched, or is not in the pool, is
//! read when the filter is probed. Source: [decision 0028](../../../../docs/decisions/0028-lookups-side-by-side.md).

use super::reader::Run;
use crate::base::{BlockAddr, OwnerId, PageNo, seeded};
use crate::blocks::BlockSource;
use crate::pool::{Block, Pool};
use crate::space::BlockKind;

/// The prefetched filter blocks of one lookup.
#[derive(Debug, Default)]
pub struct FilterPrefetch<'r> {
    runs: [Option<(&'r Run, BlockAddr)>; Pool::TOGETHER],
    blocks: [Option<Block>; Pool::TOGETHER],
    count: usize,
}

impl<'r> FilterPrefetch<'r> {
    /// Whether no further block can be noted.
    pub fn is_full(&self) -> bool {
        self.count == Pool::TOGETHER
    }

    /// Notes a filter block. Does nothing if [`FilterPrefetch::is_full`].
    pub fn note(&mut self, run: &'r Run, addr: BlockAddr) {
        debug_assert_eq!(addr.pages, 1, "a filter block is one page");
        if !self.is_full() {
            self.runs[self.count] = Some((run, addr));
            self.count += 1;
        }
    }

    /// Looks up all noted blocks in the pool, and touches the cache lines that a key with this hash needs. All runs
    /// must use the same pool.
    pub fn look(&mut self, hash: u64) {
        // To prefetch a single filter saves no time.
        let Some((first, _)) = self.runs[0].filter(|_| self.count > 1) else { return };
        let same =
            |noted: &Option<(&Run, BlockAddr)>| noted.is_some_and(|(run, _)| std::ptr::eq(run.pool(), first.pool()));
        debug_assert!(self.runs[..self.count].iter().all(same), "all runs use one pool");
        let names =
            self.runs.map(|noted| noted.map_or((OwnerId(0), PageNo(0)), |(run, addr)| (run.meta().id, addr.page)));
        first.pool().peek_several(&names[..self.count], &mut self.blocks[..self.count]);
        // Read the first cache line of all blocks before any result is used, so that their cache misses overlap.
        let are_filters = self
            .blocks
            .each_ref()
            .map(|block| block.as_ref().is_some_and(|block| block[4] == BlockKind::RunFilter as u8));
        for ((block, noted), is_filter) in self.blocks.iter_mut().zip(&self.runs).zip(are_filters) {
            let fits = |block: &Block| noted.is_some_and(|(_, addr)| block.len() == addr.bytes());
            if !is_filter || !block.as_ref().is_some_and(fits) {
                *block = None;
            }
        }
        let words = self.blocks.iter().zip(&self.runs).map(|(block, noted)| match (block, noted) {
            (Some(block), Some((run, _))) => run.meta().filter.prefetch(block, hash),
            _ => 0,
        });
        std::hint::black_box(words.fold(0, |sum, word| sum ^ word));
    }

    /// Returns the filter's block if it was noted and found.
    pub fn take(&mut self, run: &Run, addr: BlockAddr) -> Option<Block> {
        let is_it = |noted: &Option<(&Run, BlockAddr)>| {
            noted.is_some_and(|(other, place)| place == addr && other.meta().id == run.meta().id)
        };
        let at = seeded!(
            FilterForAnother: self.blocks.iter().rposition(Option::is_some),
            self.runs[..self.count].iter().position(is_it)
        );
        self.blocks[at?].take()
    }
}
