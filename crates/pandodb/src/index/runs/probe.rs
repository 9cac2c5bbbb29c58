//! A point lookup over runs. The structure supplies the path, which is a sequence of runs.
//!
//! ```text
//!   Path (trunk, levels, …)        row cache? ── miss ─▶ prefetch the filters of the path
//!     next stop, newest first ─▶  maplet? ─▶ range tombstones ─▶ filter ─▶ inner blocks ─▶ leaf ─▶ messages
//!     next stop               ─▶  …                                                   until a base is found
//! ```
//!
//! 1. The probe looks the key up in the row cache once, before the first run.
//! 2. Each stop of the path is a slice of a run. If a maplet covers the run, the maplet is probed first; it is probed
//!    once for all its runs. The run's range tombstones are searched next. The run's own filter is probed after that,
//!    unless the maplet has answered. The run itself is searched last.
//! 3. If the lookup finds a plain value without newer operands, it offers this value to the row cache. If there are
//!    operands, the caller folds them and offers the result ([`offer_row`](crate::index::IndexView::offer_row)).
//!
//! The probe does no I/O. It returns a request for the block that it needs ([`Step::Need`]), and continues when it gets
//! this block.
//!
//! Invariant: stops arrive newest first, and each message of the key is in one stop only.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::base::{BlockAddr, OwnerId, Result, Seqno};
use crate::blocks::BlockRequest;
use crate::index::cached_rows::{offer, recall};
use crate::index::{Base, Lookup, Probe, Step};
use crate::pool::Block;
use crate::rows::IndexRows;
use crate::run::maplet::{self, Values};
use crate::run::{FilterPrefetch, LeafHit, ProbeStep, Run, RunProbe, RunSlice};
use crate::space::BlockKind;

/// A reference to a maplet, which tells whether a run may hold a key, and the value of the run in this maplet. The
/// maplet covers the whole run, so the reference is valid for each slice of the run.
#[derive(Clone)]
pub struct MapletRef {
    /// The maplet that covers the run.
    pub maplet: Arc<Run>,
    /// The value that the maplet returns for keys of the run.
    pub value: u8,
    /// Whether the run has no range tombstones. If so and the maplet excludes the run, a lookup skips the run
    /// completely.
    pub plain: bool,
}

impl MapletRef {
    /// Makes the reference of `run` to `maplet`. `value` is the value of the run in this maplet.
    pub fn new(maplet: Arc<Run>, value: u8, run: &Run) -> MapletRef {
        debug_assert!(maplet.meta().is_maplet() && !run.meta().is_maplet(), "a maplet routes to a run");
        MapletRef { maplet, value, plain: run.meta().range_tombstones == 0 }
    }
}

/// A slice that a lookup searches.
#[derive(Clone, Copy)]
pub struct Stop<'v> {
    /// The slice of the run.
    pub slice: &'v Arc<RunSlice>,
    /// The maplet of the slice, if there is one.
    pub route: Option<&'v MapletRef>,
}

/// The slices that may hold a key, newest first. A path borrows the structure. All calls pass the same key.
pub trait Path<'v>: Send {
    /// The slice to search now. It is `None` after the last slice.
    ///
    /// # Errors
    /// The error of an unreadable part of the structure, if the path reached this part.
    fn stop(&mut self, key: &[u8]) -> Result<Option<Stop<'v>>>;
    /// Advances to the next older slice.
    fn advance(&mut self);
    /// Visits the remaining slices, so that their filters can be prefetched. The visits end when `visit` breaks, or at
    /// an unreadable part of the structure.
    fn ahead(&self, key: &[u8], visit: &mut dyn FnMut(Stop<'v>) -> ControlFlow<()>);
}

/// A point lookup along a path.
pub struct PathProbe<'v, P> {
    path: P,
    rows: &'v IndexRows,
    /// The `through` of the view that is searched.
    through: Seqno,
    /// Whether the row cache has not been searched yet.
    fresh: bool,
    /// The slice that is being searched, and the probe of its run.
    run: Option<(&'v Arc<RunSlice>, RunProbe)>,
    /// The prefetched filters of the path.
    ahead: FilterPrefetch<'v>,
    maplet: LastMaplet,
    /// Whether a leaf of the current run was requested, but no leaf of this run has contained the key yet.
    searched: bool,
}

/// The answer of the maplet that was probed last. It is reused, because the runs of one maplet are neighbours on the
/// path.
#[derive(Default)]
struct LastMaplet {
    answer: Option<(OwnerId, Option<Values>)>,
    /// Whether the block of the maplet was requested.
    waits: bool,
}

/// The answer of a maplet for one run.
enum MapletAnswer<'v> {
    /// The maplet needs a block first.
    Need(Step<'v>),
    /// The run may hold the key.
    Perhaps,
    /// The run does not hold the key.
    No,
    /// The maplet cannot be read, so the run's own filter is used.
    Unknown,
}

impl LastMaplet {
    /// Whether the maplet was probed, or its block was requested.
    fn knows(&self, route: &MapletRef) -> bool {
        self.waits || self.answer.as_ref().is_some_and(|(id, _)| *id == route.maplet.meta().id)
    }

    /// Probes the maplet of a stop. `block` is the block that the last step requested.
    fn ask<'v>(
        &mut self,
        route: &'v MapletRef,
        mut block: Option<Block>,
        ahead: &mut FilterPrefetch<'v>,
        lookup: &mut Lookup<'_>,
    ) -> Result<MapletAnswer<'v>> {
        let id = route.maplet.meta().id;
        if !self.knows(route) {
            debug_assert!(!self.waits, "one block is requested at a time");
            self.waits = true;
            lookup.tally.filters += 1;
            let addr = maplet::page_for(&route.maplet, lookup.hash)?;
            block = ahead.take(&route.maplet, addr);
            if block.is_none() {
                return Ok(MapletAnswer::Need(Step::Need(request(&route.maplet, addr, BlockKind::RunFilter))));
            }
            lookup.tally.prefetched += 1;
        }
        if std::mem::take(&mut self.waits) {
            self.answer = Some((id, maplet::ask(block.as_deref(), lookup.hash)));
        }
        Ok(match self.answer.as_ref().and_then(|(_, values)| values.as_ref()) {
            None => MapletAnswer::Unknown,
            Some(values) if values.contains(route.value) => MapletAnswer::Perhaps,
            Some(_) => MapletAnswer::No,
        })
    }
}

impl<'v, P: Path<'v>> PathProbe<'v, P> {
    /// Makes a lookup along `path`, in a view that holds all messages up to `through`.
    pub fn new(path: P, rows: &'v IndexRows, through: Seqno) -> PathProbe<'v, P> {
        PathProbe {
            path,
            rows,
            through,
            fresh: true,
            run: None,
            ahead: FilterPrefetch::default(),
            maplet: LastMaplet::default(),
            searched: false,
        }
    }

    /// Prefetches the filters of the path.
    fn prefetch(&mut self, lookup: &Lookup<'_>) {
        let (mut last, ahead) = (None, &mut self.ahead);
        self.path.ahead(lookup.key, &mut |stop| {
            let run = match stop.route {
                Some(route) => &route.maplet,
                None if stop.slice.may_hold(lookup.key) => stop.slice.run(),
                None => return ControlFlow::Continue(()),
            };
            let id = run.meta().id;
            if run.meta().filter.pages > 0
                && last.replace(id) != Some(id)
                && let Ok(addr) = maplet::page_for(run, lookup.hash)
            {
                ahead.note(run, addr);
            }
            if ahead.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        ahead.look(lookup.hash);
    }

    /// Searches the row cache for a row that is valid for this view. A lookup does this only once.
    fn recall(&mut self, lookup: &mut Lookup<'_>) {
        if !std::mem::take(&mut self.fresh) || lookup.is_done() {
            return;
        }
        if !recall(self.rows, self.through, lookup) && lookup.prefetch {
            self.prefetch(lookup);
        }
    }

    /// Counts a block that the search of a run needs. Returns the block if it was prefetched.
    fn note(&mut self, run: &Run, addr: BlockAddr, kind: BlockKind, lookup: &mut Lookup<'_>) -> Option<Block> {
        lookup.tally.filters += u64::from(kind == BlockKind::RunFilter);
        lookup.tally.leaves += u64::from(kind == BlockKind::RunLeaf);
        self.searched |= kind == BlockKind::RunLeaf;
        let found = if kind == BlockKind::RunFilter { self.ahead.take(run, addr) } else { None };
        lookup.tally.prefetched += u64::from(found.is_some());
        found
    }

    /// Begins to search the slice of a stop, or skips the slice. Returns a step if the maplet of the stop needs a block
    /// first.
    fn enter(
        &mut self,
        stop: Stop<'v>,
        block: &mut Option<Block>,
        lookup: &mut Lookup<'_>,
    ) -> Result<Option<Step<'v>>> {
        debug_assert!(self.run.is_none(), "one run is asked at a time");
        // Probe the maplet before touching the slice. If the maplet excludes the run, neither the bounds nor the run
        // are loaded into the CPU cache. A maplet that was not probed yet is probed only for a slice that may hold the
        // key.
        let may = |route: &&MapletRef| self.maplet.knows(route) || stop.slice.may_hold(lookup.key);
        let answer = match stop.route.filter(may) {
            None => None,
            Some(route) => match self.maplet.ask(route, block.take(), &mut self.ahead, lookup)? {
                MapletAnswer::Need(step) => return Ok(Some(step)),
                MapletAnswer::No if route.plain => {
                    self.path.advance();
                    return Ok(None);
                }
                MapletAnswer::No => Some(false),
                MapletAnswer::Perhaps => Some(true),
                MapletAnswer::Unknown => None,
            },
        };
        if !stop.slice.contains(lookup.key) {
            self.path.advance();
            return Ok(None);
        }
        lookup.enter(stop.slice.covering(lookup.key, lookup.at)?);
        match answer {
            None => self.run = Some((stop.slice, RunProbe::new(lookup.hash))),
            Some(true) => self.run = Some((stop.slice, RunProbe::after_maplet(lookup.hash))),
            Some(false) => {
                lookup.leave();
                self.path.advance();
            }
        }
        Ok(None)
    }
}

/// The request for a block of a run. If a filter is damaged, the run is searched without the filter, so that the damage
/// only costs extra reads.
#[inline]
fn request(run: &Run, addr: BlockAddr, kind: BlockKind) -> BlockRequest<'_> {
    BlockRequest { source: run, addr, kind, optional: kind == BlockKind::RunFilter }
}

/// Adds the messages that a leaf has for the key to the lookup. A value that was found keeps the guard of its block,
/// which is cheaper than a reference count.
fn take(hit: LeafHit, lookup: &mut Lookup<'_>) -> Result<()> {
    let mut inline = None;
    for (entry, value) in hit.entries(lookup.key) {
        let note = || {
            inline = Some(value);
            Base::Absent
        };
        if lookup.take(&entry, note)?.is_break() {
            break;
        }
    }
    if let Some(value) = inline {
        lookup.base = Base::Inline(hit.block, value);
    }
    Ok(())
}

impl<'v, P: Path<'v>> Probe<'v> for PathProbe<'v, P> {
    fn step(&mut self, mut block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>> {
        self.recall(lookup);
        loop {
            if lookup.is_done() {
                return Ok(Step::Done);
            }
            let Some((slice, probe)) = &mut self.run else {
                let Some(stop) = self.path.stop(lookup.key)? else { return Ok(Step::Done) };
                if let Some(step) = self.enter(stop, &mut block, lookup)? {
                    return Ok(step);
                }
                continue;
            };
            let slice: &'v Arc<RunSlice> = slice;
            match probe.step(slice, lookup.key, block.take())? {
                ProbeStep::Need(addr, kind) => {
                    block = self.note(slice.run(), addr, kind, lookup);
                    if block.is_some() {
                        continue;
                    }
                    return Ok(Step::Need(request(slice.run(), addr, kind)));
                }
                ProbeStep::Found(hit) => {
                    self.searched = false;
                    take(hit, lookup)?;
                    offer(self.rows, self.through, lookup);
                    // The run's next leaf may hold older messages of the key.
                    continue;
                }
                ProbeStep::Done => {}
            }
            lookup.tally.false_positives += u64::from(std::mem::take(&mut self.searched));
            lookup.leave();
            self.run = None;
            self.path.advance();
        }
    }
}
