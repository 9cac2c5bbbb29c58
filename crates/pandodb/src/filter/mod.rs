//! Filters: a lookup uses them to skip runs that cannot hold its key.
//!
//! | kind | covers | cost of a probe | false positives | bits a key |
//! | --- | --- | --- | --- | --- |
//! | blocked Bloom filter ([`bloom`]) | a run | one cache line | 1 in 100 | 10.2 |
//! | quotient filter ([`quotient`], 002 §3.3) | a run | three cache lines | 1 in 256 | 10.7 to 11.4 |
//! | maplet ([`maplet`]) | up to 256 runs | three cache lines | 1 in 512 for all runs together | 12 to 17 |
//!
//! Each filter is an array of one-page blocks. The key's hash determines the block, so a probe reads one block. The
//! description of a run contains the kind of the run's filter ([`FilterMeta`]); a tree chooses the kind for new runs
//! ([`Filters`]). Quotient filters can be merged into a maplet without the keys, so the runs of a tree that uses
//! maplets have quotient filters. `docs/decisions/0017-quotient-filters-and-maplets.md` compares the three kinds.
//!
//! Steps: [`FilterBuilder::add`] collects hashes. [`FilterBuilder::make`] starts a [`FilterMaker`], which fills the
//! pages one at a time. A lookup computes the page ([`FilterMeta::page_of`]) and probes it
//! ([`FilterMeta::may_contain`]).
//!
//! Invariant, for all kinds of filters: a probe for an added key never answers "no".
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

pub mod bloom;
mod hashes;
pub mod maplet;
mod page;
pub mod quotient;
#[cfg(test)]
mod tests;

use crate::base::PAGE;
use crate::device::AlignedBuf;

pub use bloom::BloomBuilder;
use quotient::{QuotientBuilder, QuotientMeta, QuotientPages};

/// The kind of filters that a tree builds. Existing filters of any kind stay readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// A blocked Bloom filter for each run.
    Bloom,
    /// A quotient filter for each run.
    Quotient,
    /// A quotient filter for each run, and one *maplet* for several runs that stay together for long. A maplet is a
    /// filter that also shows which of the runs may hold a key.
    Maplet,
}

/// The kind of an existing filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterKind {
    /// A blocked Bloom filter.
    #[default]
    Bloom,
    /// A quotient filter.
    Quotient {
        /// The number of bits of a fingerprint.
        bits: u8,
    },
    /// A maplet.
    Maplet {
        /// The number of bits of a fingerprint, without the value.
        bits: u8,
    },
}

/// The kind and the location of a run's filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterMeta {
    /// The kind.
    pub kind: FilterKind,
    /// The number of filter blocks, of one page each; 0 if the run has no filter.
    pub pages: u32,
    /// The index of the first filter block among the run's pages. The other filter blocks follow it.
    pub first: u64,
}

impl FilterMeta {
    /// The filter page to probe for a key with this hash.
    /// REQUIRES: the filter has pages.
    #[inline]
    pub fn page_of(&self, hash: u64) -> u32 {
        match self.kind {
            FilterKind::Bloom => bloom::page_of(hash, self.pages),
            FilterKind::Quotient { bits } | FilterKind::Maplet { bits } => self.quotient(bits, 0).page_of(hash),
        }
    }

    /// Whether a key with this hash may have been added (for a maplet: whether any of its runs may hold such a key). If
    /// the result is `false`, no such key was added. `page` is the verified block with the number
    /// [`FilterMeta::page_of`].
    #[inline]
    pub fn may_contain(&self, page: &[u8], hash: u64) -> bool {
        match self.kind {
            FilterKind::Bloom => bloom::may_contain(page, self.pages, hash),
            FilterKind::Quotient { .. } | FilterKind::Maplet { .. } => quotient::ask(page, hash),
        }
    }

    /// Prefetches the cache lines that [`FilterMeta::may_contain`] reads first. The returned value has no meaning.
    #[inline]
    pub fn prefetch(&self, page: &[u8], hash: u64) -> u64 {
        match self.kind {
            // A probe of a Bloom filter reads only one line, so this line is not prefetched.
            FilterKind::Bloom => 0,
            FilterKind::Quotient { .. } | FilterKind::Maplet { .. } => quotient::prefetch(page, hash),
        }
    }

    /// The description of this filter as an input of a merge, for at most `entries` entries. `None` for an empty
    /// filter, and for a Bloom filter, which cannot be merged.
    pub fn mergeable(&self, entries: u64) -> Option<QuotientMeta> {
        match self.kind {
            FilterKind::Quotient { bits } | FilterKind::Maplet { bits } if self.pages > 0 => {
                Some(self.quotient(bits, entries))
            }
            _ => None,
        }
    }

    /// Whether a builder could have produced these fields for a filter of `entries` keys.
    pub fn is_sound(&self, entries: u64) -> bool {
        match self.kind {
            FilterKind::Bloom => true,
            FilterKind::Quotient { bits } | FilterKind::Maplet { bits } => {
                self.pages > 0 && self.quotient(bits, entries).is_sound()
            }
        }
    }

    fn quotient(&self, bits: u8, entries: u64) -> QuotientMeta {
        QuotientMeta { pages: self.pages, bits, entries }
    }
}

/// Collects the hashes of a run's keys for its filter. Costs 8 bytes a key for a Bloom filter, and 4 for a quotient
/// filter of many keys.
#[derive(Debug)]
pub enum FilterBuilder {
    /// Collects for a blocked Bloom filter.
    Bloom(BloomBuilder),
    /// Collects for a quotient filter. The fingerprints will be long enough for a maplet of this many runs of the same
    /// size.
    Quotient(QuotientBuilder, u64),
    /// Collects nothing: the run gets no filter.
    Nothing,
}

impl FilterBuilder {
    /// Creates a builder for the filter of a run. If `filters` is [`Filters::Maplet`], the fingerprints are long enough
    /// for a maplet of `together` such runs.
    pub fn new(filters: Filters, together: u64) -> FilterBuilder {
        match filters {
            Filters::Bloom => FilterBuilder::Bloom(BloomBuilder::new()),
            Filters::Quotient => FilterBuilder::Quotient(QuotientBuilder::new(), 1),
            Filters::Maplet => FilterBuilder::Quotient(QuotientBuilder::new(), together),
        }
    }

    /// Whether the filter will be merged into maplets.
    pub fn is_for_maplets(&self) -> bool {
        matches!(self, FilterBuilder::Quotient(_, together) if *together > 1)
    }

    /// Adds a key by its [`crate::base::key_hash`]. Each distinct key must be added once.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        match self {
            FilterBuilder::Bloom(builder) => builder.add(hash),
            FilterBuilder::Quotient(builder, _) => builder.add(hash),
            FilterBuilder::Nothing => {}
        }
    }

    /// Starts making the filter. A Bloom filter is built by this call, in one step. For a quotient filter, the call
    /// sorts the hashes of up to 32,768 keys.
    pub fn make(self) -> FilterMaker {
        match self {
            FilterBuilder::Bloom(builder) => FilterMaker::Bloom(builder.pages(), builder.build()),
            FilterBuilder::Quotient(builder, together) => {
                let room = if together > 1 { builder.len() as u64 * together } else { 0 };
                FilterMaker::Pages(builder.with_room(room).pages())
            }
            FilterBuilder::Nothing => FilterMaker::Bloom(0, AlignedBuf::zeroed(0)),
        }
    }
}

/// A filter under construction.
#[derive(Debug)]
pub enum FilterMaker {
    /// The number of pages that [`FilterMaker::fill`] still has to return, and the complete Bloom filter.
    Bloom(u32, AlignedBuf),
    /// A quotient filter whose pages are being filled.
    Pages(QuotientPages),
}

impl FilterMaker {
    /// The filter's description without its location.
    /// REQUIRES: no page was filled.
    pub fn meta(&self) -> FilterMeta {
        let kind = match self {
            FilterMaker::Bloom(..) => FilterKind::Bloom,
            FilterMaker::Pages(pages) => FilterKind::Quotient { bits: pages.meta().bits },
        };
        FilterMeta { kind, pages: self.left(), first: 0 }
    }

    /// The number of pages that are still to be filled.
    pub fn left(&self) -> u32 {
        match self {
            FilterMaker::Bloom(left, _) => *left,
            FilterMaker::Pages(pages) => pages.left(),
        }
    }

    /// Fills the next page except for its block header. Returns the approximate number of keys in this page.
    pub fn fill(&mut self, page: &mut [u8]) -> usize {
        match self {
            FilterMaker::Bloom(left, buf) => {
                assert!(*left > 0, "no page is left to fill");
                let at = buf.len() - *left as usize * PAGE;
                page.copy_from_slice(&buf[at..at + PAGE]);
                *left -= 1;
                PAGE / size_of::<u64>()
            }
            FilterMaker::Pages(pages) => {
                page.fill(0);
                pages.fill(page)
            }
        }
    }
}
