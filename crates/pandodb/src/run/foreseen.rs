//! [`Foreseen`]: the filters on a lookup's way, looked for in the pool all at once.
//!
//! A lookup that ends in memory is bound by what the processor waits for: each filter is a place in the pool's table, a frame, a block's name
//! and three of its cache lines away, each behind the one before. Which filters those will be is known before the first has answered, since the
//! trunk is in memory: so their ways are gone side by side. A filter that is not asked in the end, since the key was found above it, has cost
//! little.
//!
//! Nothing depends on it: a filter that was not foreseen, or is not in the pool, is asked for when its turn comes.

use super::reader::Run;
use crate::base::{BlockAddr, OwnerId, PageNo, SeededBug};
use crate::blocks::BlockSource;
use crate::pool::{Block, Pool};
use crate::space::BlockKind;

/// Filters on the way of one lookup.
#[derive(Debug, Default)]
pub struct Foreseen<'r> {
    runs: [Option<(&'r Run, BlockAddr)>; Pool::TOGETHER],
    blocks: [Option<Block>; Pool::TOGETHER],
    count: usize,
}

impl<'r> Foreseen<'r> {
    /// Whether no more can be foreseen.
    pub fn is_full(&self) -> bool {
        self.count == Pool::TOGETHER
    }

    /// Notes a filter's block.
    pub fn note(&mut self, run: &'r Run, addr: BlockAddr) {
        if !self.is_full() {
            self.runs[self.count] = Some((run, addr));
            self.count += 1;
        }
    }

    /// Looks for everything that was noted, which is in the same pool, and for what a key with this hash will need of it.
    pub fn look(&mut self, hash: u64) {
        // One filter is found as fast when its turn comes.
        let Some((first, _)) = self.runs[0].filter(|_| self.count > 1) else { return };
        let names =
            self.runs.map(|noted| noted.map_or((OwnerId(0), PageNo(0)), |(run, addr)| (run.meta().id, addr.page)));
        first.pool().peek_several(&names[..self.count], &mut self.blocks[..self.count]);
        // The first line of each, all together: what is told by it comes after.
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
            (Some(block), Some((run, _))) => run.meta().filter.approach(block, hash),
            _ => 0,
        });
        std::hint::black_box(words.fold(0, |sum, word| sum ^ word));
    }

    /// The filter's block, if it was found.
    pub fn take(&mut self, run: &Run, addr: BlockAddr) -> Option<Block> {
        let is_it = |noted: &Option<(&Run, BlockAddr)>| {
            noted.is_some_and(|(other, place)| place == addr && other.meta().id == run.meta().id)
        };
        let at = match SeededBug::FilterForAnother.is_on() {
            true => self.blocks.iter().rposition(Option::is_some),
            false => self.runs[..self.count].iter().position(is_it),
        }?;
        self.blocks[at].take()
    }
}
