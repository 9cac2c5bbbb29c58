//! The functions of a tree that claim a maplet job, continue it, and install the maplet. See [`super::route`].

use std::sync::Arc;

use super::route::{Group, RouteJob, Routing, Rule, routed, waiting};
use super::tree::{Claim, Inner, Stbe};
use super::trunk::Trunk;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{OwnerId, Result};
use crate::filter::{FilterBuilder, Filters};
use crate::index::Progress;
use crate::run::Run;

impl Stbe {
    /// Builds the filter for a new run. Its fingerprints are long enough for the filter to be merged into larger and
    /// larger maplets `rounds` times.
    pub(super) fn filter(&self, rounds: u32) -> FilterBuilder {
        FilterBuilder::new(self.shape.filters, (self.shape.maplet_width as u64).pow(rounds))
    }

    /// REQUIRES: the caller holds `inner`.
    fn next_group(&self, inner: &Inner) -> Option<Group> {
        let made = self.shape.filters == Filters::Maplet && !inner.routes.suspended && !inner.cleared;
        let waiting = |width, idle| {
            let rule = Rule { width, idle, unreadable: &inner.routes.unreadable };
            waiting(&inner.trunk.root, true, &rule)
        };
        let due = || waiting(self.shape.maplet_width, false);
        let idle = || if inner.routes.idle { waiting(2, true) } else { None };
        made.then(|| due().or_else(idle)).flatten()
    }

    /// Estimated bytes of the maplet in progress, or else of the next maplet. Maplets after that one are not included.
    /// REQUIRES: the caller holds `inner`.
    pub(super) fn route_bytes(&self, inner: &mut Inner) -> u64 {
        inner.routes.waiting = self.next_group(inner).map_or(0, |group| group.bytes().max(1));
        // While a maplet is being made, `waiting` still includes its inputs, so take the maximum and not the sum.
        inner.routes.routing.bytes().max(inner.routes.waiting)
    }

    /// Claims the parked maplet job or the next one. REQUIRES: the caller holds `inner`.
    pub(super) fn claim_route(&self, inner: &mut Inner) -> Option<Claim> {
        let job = match std::mem::take(&mut inner.routes.routing) {
            working @ Routing::Working(_) => {
                inner.routes.routing = working;
                return None;
            }
            Routing::Parked(job) => job,
            Routing::Nothing if inner.routes.waiting == 0 => return None,
            Routing::Nothing => {
                let group = self.next_group(inner)?;
                let filters = group.filters();
                match RouteJob::new(&self.core, group, self.shape.maplet_width) {
                    Ok(job) => Box::new(job),
                    Err(e) => {
                        inner.routes.unreadable.extend(filters);
                        self.recount(inner);
                        return Some(Claim::Damage(e));
                    }
                }
            }
        };
        assert!(matches!(inner.routes.routing, Routing::Nothing), "one maplet is made at a time");
        inner.routes.routing = Routing::Working(job.bytes);
        Some(Claim::MapletRef(job))
    }

    /// Continues a maplet job. When the maplet is complete, installs it in the trunk and swaps the root.
    pub(super) fn step_route(&self, mut job: Box<RouteJob>, budget: u64) -> Result<Progress> {
        let filters = job.filters.clone();
        let (bytes, done) = match job.writer.step(budget) {
            Ok(stepped) => stepped,
            Err(e) => return self.give_up_route(&filters, e),
        };
        let progress = Progress { bytes, ..Progress::default() };
        if !done {
            let mut inner = self.inner.lock();
            debug_assert!(matches!(inner.routes.routing, Routing::Working(_)), "only a claimed job is parked");
            inner.routes.routing = if inner.cleared { Routing::Nothing } else { Routing::Parked(job) };
            return Ok(progress);
        }
        let RouteJob { runs, height, range, writer, .. } = *job;
        assert!(runs.len() >= 2 || filters.len() >= 2, "a maplet replaces several filters");
        let opened = writer.finish().and_then(|meta| {
            let open = |meta| Run::open(self.core.data.clone(), self.core.pool.clone(), meta);
            meta.map(open).transpose()
        });
        let maplet = match opened {
            Ok(maplet) => maplet,
            Err(e) => return self.give_up_route(&filters, e),
        };
        let mut inner = self.inner.lock();
        debug_assert!(matches!(inner.routes.routing, Routing::Working(_)), "only a claimed job is done");
        inner.routes.routing = Routing::Nothing;
        if maplet.is_none() {
            // Exclude filters without entries, which would otherwise be merged again and again.
            inner.routes.unreadable.extend(filters);
        }
        let root = maplet.as_ref().and_then(|maplet| {
            self.counters.maplet_bytes.fetch_add(maplet.meta().disk_bytes(), Relaxed);
            routed(&inner.trunk.root, height, &range, &runs, maplet)
        });
        match root {
            Some(root) if !inner.cleared => {
                let trunk = Trunk { root: Arc::new(root), ..inner.trunk.clone() };
                self.publish(&mut inner, trunk, &[]);
            }
            _ => self.recount(&mut inner),
        }
        Ok(progress)
    }

    /// Discards a maplet job that failed. A maplet is optional, so a full disk only postpones it.
    fn give_up_route(&self, filters: &[OwnerId], error: crate::Error) -> Result<Progress> {
        let mut inner = self.inner.lock();
        debug_assert!(matches!(inner.routes.routing, Routing::Working(_)), "only a claimed job is given up");
        inner.routes.routing = Routing::Nothing;
        let full = matches!(error, crate::Error::DiskFull { .. });
        inner.routes.suspended |= full;
        if error.is_damage() {
            // Exclude all inputs, because it is not known which of them is damaged. Lookups still use the runs' own
            // filters, if these filters are readable.
            inner.routes.unreadable.extend(filters);
        }
        self.recount(&mut inner);
        if full { Ok(Progress::default()) } else { Progress::unless_damage(error) }
    }
}
