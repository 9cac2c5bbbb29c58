//! Maplets on disk. A maplet is one filter that is merged from the filters of several runs, without reading the runs'
//! keys.
//!
//! ```text
//!   run 7   filter pages ─┐
//!   run 9   filter pages ─┼──▶ merge, page by page ──▶ pages of the maplet      key ─▶ one page ─▶ { 7, 12 }
//!   run 12  filter pages ─┘         7 → 0, 9 → 1, 12 → 2
//! ```
//!
//! A maplet is stored as a [`Run`] that has filter pages only. So a maplet is treated like any run: it is read through
//! the pool, counted in the statistics, marked in the allocation map when the store opens, and freed with its last
//! reference. A maplet maps keys to runs, not to slices. So a lookup in a slice of a run can probe the maplet that
//! covers the run.
//!
//! Steps: [`MapletWriter::new`] takes the inputs, which are runs with quotient filters or maplets, and for each input a
//! mapping from its old values to new ones; [`MapletWriter::step`] reads and writes some pages;
//! [`MapletWriter::finish`] returns the description of the result. A reader calls [`ask`] for the values of a key.
//!
//! Invariant: for a key that is in a run, [`ask`] returns a set that contains the run's value, or `None`, which means
//! "unknown". Source: 002 §3.3, §3.6.3; see [`crate::filter::maplet`].

use std::sync::Arc;

use super::meta::RunMeta;
use super::pages::PageWriter;
use super::reader::Run;
use crate::base::{BlockAddr, OwnerId, PAGE, Result, SeededBug, Seqno};
use crate::blocks::BlockSource;
use crate::filter::maplet::{Input, Merge, values};
use crate::filter::{FilterKind, FilterMeta};
use crate::pool::Pool;
use crate::space::{BlockKind, DataFile};

/// The number of pages that one read fetches from an input.
const CHUNK: u64 = 16;

/// A run or maplet whose filter is merged into a maplet.
pub struct Member {
    /// The run or maplet.
    pub run: Arc<Run>,
    /// The new value for each old value, indexed by old value. All keys of a run that is not a maplet have the old
    /// value 0. `None` drops the entries with this old value.
    pub values: Vec<Option<u8>>,
}

/// Reads the pages of a filter in order, bypassing the pool.
struct Pages {
    run: Arc<Run>,
    next: u64,
    chunk: std::vec::IntoIter<Vec<u8>>,
}

impl Pages {
    fn read_chunk(&self) -> Result<Vec<Vec<u8>>> {
        let (run, filter) = (&self.run, self.run.meta().filter);
        let position = filter.first + self.next;
        let (extent, _) = run.extent_at(position)?;
        let pages = (u64::from(filter.pages) - self.next).min(extent.end - position).min(CHUNK);
        let pages = u32::try_from(pages).expect("a chunk has few pages");
        assert!(pages > 0, "a chunk is read only before the last page");
        let addr = run.address(position, pages)?;
        let buf = run.read(addr)?;
        assert_eq!(buf.len(), addr.bytes(), "a read returns the requested pages");
        let one = |(page, bytes): (u64, &[u8])| {
            let addr = BlockAddr { page: crate::base::PageNo(addr.page.0 + page), pages: 1 };
            run.data().check_block(bytes, addr, run.meta().id, BlockKind::RunFilter)?;
            Ok(bytes.to_vec())
        };
        (0..).zip(buf.chunks_exact(PAGE)).map(one).collect()
    }
}

impl Iterator for Pages {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Result<Vec<u8>>> {
        if self.chunk.len() == 0 && self.next < u64::from(self.run.meta().filter.pages) {
            match self.read_chunk() {
                Ok(pages) => {
                    self.next += pages.len() as u64;
                    self.chunk = pages.into_iter();
                }
                Err(e) => return Some(Err(e)),
            }
        }
        self.chunk.next().map(Ok)
    }
}

/// Writes a maplet. If it is dropped before it is finished, its pages are freed.
pub struct MapletWriter {
    id: OwnerId,
    merge: Merge<Pages>,
    pages: PageWriter,
    /// The number of input pages that are read for one page of the result, plus 1 for that page itself.
    pages_a_step: u64,
}

impl MapletWriter {
    /// Starts the maplet `id` of these members. If the fingerprints of the members are long enough for a later merge of
    /// `room` entries, the fingerprints of the maplet are, too.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`] if no builder can have made the description of a filter.
    ///
    /// # Panics
    /// If a member has a filter that cannot be merged.
    pub fn new(data: Arc<DataFile>, id: OwnerId, members: Vec<Member>, room: u64) -> Result<MapletWriter> {
        let inputs = members.into_iter().map(|Member { run, values }| {
            let meta = run.meta().filter.mergeable(run.meta().keys).expect("a filter that can be merged");
            Input { meta, pages: Pages { run, next: 0, chunk: Vec::new().into_iter() }, values }
        });
        let inputs: Vec<Input<Pages>> = inputs.collect();
        let read = inputs.iter().map(|input| u64::from(input.meta.pages)).sum::<u64>();
        let merge = Merge::new(inputs, room)?;
        let written = u64::from(merge.meta().pages);
        let pages = PageWriter::new(data, id, written * PAGE as u64);
        Ok(MapletWriter { id, merge, pages, pages_a_step: read / written.max(1) + 1 })
    }

    /// Offers the maplet's pages to the pool when they are written.
    #[must_use]
    pub fn cached_in(mut self, pool: Arc<Pool>) -> MapletWriter {
        self.pages.cache_in(pool);
        self
    }

    /// Reads and writes about `budget` bytes. Returns the number of bytes that were read and written, and whether the
    /// maplet is complete.
    ///
    /// # Errors
    /// The errors of reading the members, [`crate::Error::DiskFull`], or an I/O error. After an error, the writer must
    /// be dropped.
    pub fn step(&mut self, budget: u64) -> Result<(u64, bool)> {
        let (mut done, mut page) = (0, vec![0; PAGE]);
        while done < budget {
            if !self.merge.next_page(&mut page)? {
                return Ok((done, true));
            }
            self.pages.append(1, BlockKind::RunFilter, |block| block.copy_from_slice(&page))?;
            done += self.pages_a_step * PAGE as u64;
        }
        Ok((done, false))
    }

    /// Returns the maplet's description; `None` if the maplet has no entries. All pages are written but not synced.
    /// REQUIRES: the last [`MapletWriter::step`] has returned `true`.
    ///
    /// # Errors
    /// [`crate::Error::DiskFull`] or an I/O error. After an error, the pages are freed.
    pub fn finish(self) -> Result<Option<RunMeta>> {
        let meta = self.merge.meta();
        if meta.entries == 0 {
            return Ok(None);
        }
        let filter = FilterMeta { kind: FilterKind::Maplet { bits: meta.bits }, pages: meta.pages, first: 0 };
        assert_eq!(self.pages.placed_pages(), u64::from(meta.pages), "all pages of the maplet are written");
        let extents = self.pages.finish()?;
        let (min_seqno, max_seqno) = (Seqno(0), Seqno(0));
        let keys = meta.entries;
        let meta = RunMeta { id: self.id, extents, filter, keys, min_seqno, max_seqno, ..RunMeta::default() };
        assert_eq!(meta.flaw(), None, "a reader accepts the description");
        Ok(Some(meta))
    }
}

/// A set of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values([u64; 4]);

impl Values {
    /// Whether the value is in the set.
    #[inline]
    pub fn contains(&self, value: u8) -> bool {
        self.0[usize::from(value / 64)] & 1 << (value % 64) != 0
    }
}

/// Reads all pages of a maplet, bypassing the pool, and checks them.
///
/// # Errors
/// An I/O error or [`crate::Error::Corruption`].
pub fn pages(maplet: &Arc<Run>) -> Result<Vec<Vec<u8>>> {
    Pages { run: maplet.clone(), next: 0, chunk: Vec::new().into_iter() }.collect()
}

/// The block of a maplet that holds the entries of all keys with this hash.
///
/// # Errors
/// [`crate::Error::Corruption`] if the description is invalid.
pub fn page_for(maplet: &Run, hash: u64) -> Result<BlockAddr> {
    debug_assert!(maplet.meta().filter.pages > 0, "a page is chosen among those of the filter");
    let filter = &maplet.meta().filter;
    maplet.address(filter.first + u64::from(filter.page_of(hash)), 1)
}

/// The values of a key with this hash. `page` is the block of [`page_for`], or `None` if it cannot be read. Returns
/// `None` if the page is missing or damaged. In this case, the caller must search each run.
#[inline]
pub fn ask(page: Option<&[u8]>, hash: u64) -> Option<Values> {
    let mut set = Values([0; 4]);
    let mut add = |value: u8| set.0[usize::from(value / 64)] |= 1 << (value % 64);
    let known = page.is_some_and(|page| values(page, hash, &mut add)) || SeededBug::UnreadMapletDenies.is_on();
    known.then_some(set)
}
