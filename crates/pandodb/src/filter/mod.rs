//! Filters: which runs a lookup need not ask.
//!
//! | | answers for | a question | mistakes | bits a key |
//! | --- | --- | --- | --- | --- |
//! | blocked Bloom filter ([`bloom`]) | a run | one cache line | 1 in 100 | 10.2 |
//! | quotient filter ([`quotient`], 002 §3.3) | a run | three cache lines | 1 in 256 | 10.7 to 11.4 |
//! | maplet ([`maplet`]) | up to 256 runs | three cache lines | 1 in 512 in all | 12 to 17 |
//!
//! Each is an array of blocks of a page; the key's hash says which of them answers, so that a question fetches one. A run
//! says in its description what it has ([`FilterMeta`]); what new ones get is chosen for a tree ([`Filters`]). Quotient
//! filters can be made into a maplet without their keys, so where maplets are wanted runs have those.
//! `docs/decisions/0017-quotient-filters-and-maplets.md` compares them.
//!
//! Invariant of all: a key that was added is always found.

pub mod bloom;
pub mod maplet;
mod page;
pub mod quotient;
#[cfg(test)]
mod tests;

use crate::base::PAGE;
use crate::device::AlignedBuf;

pub use bloom::BloomBuilder;
use quotient::{QuotientBuilder, QuotientMeta, QuotientPages, QuotientSort};

/// Which filters a tree makes. Whatever is there already is read all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// A blocked Bloom filter for each run.
    Bloom,
    /// A quotient filter for each run.
    Quotient,
    /// A quotient filter for each run, and one *maplet* for several runs that lie together for long: a filter that also says
    /// in which of the runs a key may be.
    Maplet,
}

/// What kind of filter it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterKind {
    /// A blocked Bloom filter.
    #[default]
    Bloom,
    /// A quotient filter with fingerprints of so many bits.
    Quotient {
        /// Bits of a fingerprint.
        bits: u8,
    },
    /// A maplet with fingerprints of so many bits.
    Maplet {
        /// Bits of a fingerprint, without the value.
        bits: u8,
    },
}

/// Where a run keeps its filter, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterMeta {
    /// What kind it is.
    pub kind: FilterKind,
    /// Filter blocks, of one page each; 0: the run has no filter.
    pub pages: u32,
    /// The position of the first one among the run's pages; the others follow it.
    pub first: u64,
}

impl FilterMeta {
    /// Which of the filter's pages answers for a key with this hash. Only if the filter has pages.
    #[inline]
    pub fn page_of(&self, hash: u64) -> u32 {
        match self.kind {
            FilterKind::Bloom => bloom::page_of(hash, self.pages),
            FilterKind::Quotient { bits } | FilterKind::Maplet { bits } => self.quotient(bits, 0).page_of(hash),
        }
    }

    /// Whether a key with this hash may have been added. `page` is the block that [`FilterMeta::page_of`] named, checked.
    /// `false` is certain. Of a maplet: to any of its runs.
    #[inline]
    pub fn may_contain(&self, page: &[u8], hash: u64) -> bool {
        match self.kind {
            FilterKind::Bloom => bloom::may_contain(page, self.pages, hash),
            FilterKind::Quotient { .. } | FilterKind::Maplet { .. } => quotient::ask(page, hash),
        }
    }

    /// Fetches from memory what [`FilterMeta::may_contain`] will begin with. What it returns means nothing.
    #[inline]
    pub fn approach(&self, page: &[u8], hash: u64) -> u64 {
        match self.kind {
            // Its one line is a step away from where it is asked.
            FilterKind::Bloom => 0,
            FilterKind::Quotient { .. } | FilterKind::Maplet { .. } => quotient::approach(page, hash),
        }
    }

    /// The description that a merge of quotient filters and maplets wants, of at most `entries` entries; `None` of a Bloom
    /// filter, which cannot be merged, and of no filter.
    pub fn mergeable(&self, entries: u64) -> Option<QuotientMeta> {
        match self.kind {
            FilterKind::Quotient { bits } | FilterKind::Maplet { bits } if self.pages > 0 => {
                Some(self.quotient(bits, entries))
            }
            _ => None,
        }
    }

    /// Whether the figures are such as a builder makes, for a filter of `entries` keys.
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

/// Collects the hashes of a run's keys for the filter that the run is to have. Costs 8 bytes a key.
#[derive(Debug)]
pub enum FilterBuilder {
    /// For a blocked Bloom filter.
    Bloom(BloomBuilder),
    /// For a quotient filter, with fingerprints for a maplet of so many runs like this one.
    Quotient(QuotientBuilder, u64),
}

impl FilterBuilder {
    /// For the filter of a run. If there are to be maplets, its fingerprints will be good for one of `together` such runs.
    pub fn new(filters: Filters, together: u64) -> FilterBuilder {
        match filters {
            Filters::Bloom => FilterBuilder::Bloom(BloomBuilder::new()),
            Filters::Quotient => FilterBuilder::Quotient(QuotientBuilder::new(), 1),
            Filters::Maplet => FilterBuilder::Quotient(QuotientBuilder::new(), together),
        }
    }

    /// Whether maplets are to be made of it.
    pub fn is_for_maplets(&self) -> bool {
        matches!(self, FilterBuilder::Quotient(_, together) if *together > 1)
    }

    /// Adds a key by its [`crate::base::key_hash`]; each distinct key once.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        match self {
            FilterBuilder::Bloom(builder) => builder.add(hash),
            FilterBuilder::Quotient(builder, _) => builder.add(hash),
        }
    }

    /// The filter, to be made a little at a time. A Bloom filter is made here, in one piece.
    pub fn make(self) -> FilterMaker {
        match self {
            FilterBuilder::Bloom(builder) => FilterMaker::Bloom(builder.pages(), builder.build()),
            FilterBuilder::Quotient(builder, together) => {
                let room = if together > 1 { builder.len() as u64 * together } else { 0 };
                FilterMaker::Sort(builder.with_room(room).sort())
            }
        }
    }
}

/// A filter that is being made.
#[derive(Debug)]
pub enum FilterMaker {
    /// A Bloom filter, which is ready, and how many of its pages are to be handed out.
    Bloom(u32, AlignedBuf),
    /// A quotient filter: its hashes,
    Sort(QuotientSort),
    /// then its pages.
    Pages(QuotientPages),
}

impl FilterMaker {
    /// Goes through about `most` keys, some of them more than once: through how many, and whether all are prepared.
    pub fn prepare(&mut self, most: usize) -> (usize, bool) {
        let FilterMaker::Sort(sort) = self else { return (0, true) };
        let (keys, all) = sort.step(most);
        if all {
            let sort = std::mem::replace(sort, QuotientBuilder::new().sort());
            *self = FilterMaker::Pages(sort.pages());
        }
        (keys, all)
    }

    /// The filter's description, but for where it stands, when all is prepared and nothing filled yet.
    pub fn meta(&self) -> FilterMeta {
        let kind = match self {
            FilterMaker::Bloom(..) => FilterKind::Bloom,
            FilterMaker::Sort(_) => unreachable!("a description follows from sorted hashes"),
            FilterMaker::Pages(pages) => FilterKind::Quotient { bits: pages.meta().bits },
        };
        FilterMeta { kind, pages: self.left(), first: 0 }
    }

    /// Pages that are still to be filled.
    pub fn left(&self) -> u32 {
        match self {
            FilterMaker::Bloom(left, _) => *left,
            FilterMaker::Sort(_) => unreachable!("pages follow from sorted hashes"),
            FilterMaker::Pages(pages) => pages.left(),
        }
    }

    /// Fills the next page, whose header is left to be sealed. How many keys it took, about.
    pub fn fill(&mut self, page: &mut [u8]) -> usize {
        match self {
            FilterMaker::Bloom(left, buf) => {
                let at = buf.len() - *left as usize * PAGE;
                page.copy_from_slice(&buf[at..at + PAGE]);
                *left -= 1;
                PAGE / size_of::<u64>()
            }
            FilterMaker::Sort(_) => unreachable!("pages follow from sorted hashes"),
            FilterMaker::Pages(pages) => {
                page.fill(0);
                pages.fill(page)
            }
        }
    }
}
