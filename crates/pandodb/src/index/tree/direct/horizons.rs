//! [`Horizons`]: how far folds in memory may go.
//!
//! A reader without a snapshot reads at the seqno that was visible when it started. A fold must not drop what such a
//! reader needs. Each view has a *horizon*: only reads at this seqno or above may use the view, and every fold keeps
//! what a read at the horizon of any living view needs.
//!
//! ```text
//!   view, horizon 5 ──▶ view, horizon 12 ──▶ view, horizon 20 (current)
//!   (a slow reader)      (dropped)                               folds may go up to 5
//! ```
//!
//! Before a fold, the current view is replaced by one with a newer horizon ([`Horizons::advance`]). The old view is
//! dropped with its last reader, and then folds go further.

use std::sync::{Arc, Weak};

use super::view::HotView;
use crate::base::sync::{ArcSwap, Mutex};
use crate::base::{Seqno, seeded};
use crate::resolve::Stripes;

/// The current view, and the older views that readers still use.
pub(super) struct Horizons {
    pub(super) current: ArcSwap<HotView>,
    older: Mutex<Vec<Weak<HotView>>>,
    /// Seqnos as of which a job or a checkpoint writes the contents.
    points: Mutex<Vec<Seqno>>,
}

impl Horizons {
    pub(super) fn new(view: HotView) -> Horizons {
        Horizons { current: ArcSwap::from_pointee(view), older: Mutex::default(), points: Mutex::default() }
    }

    /// Advances the current view, and limits `keep` to what all views allow: the result keeps more than `keep`.
    pub(super) fn advance(&self, keep: Stripes) -> Stripes {
        let Stripes { mut snapshots, mut horizon } = keep;
        let mut older = self.older.lock();
        let current = self.current.load_full();
        if current.horizon() < horizon {
            let old = self.current.swap(Arc::new(current.with_horizon(horizon)));
            older.push(Arc::downgrade(&old));
        }
        drop(current);
        older.retain(|view| {
            view.upgrade().is_some_and(|view| {
                horizon = seeded!(HotHorizonIgnored: horizon, horizon.min(view.horizon()));
                true
            })
        });
        drop(older);
        let points = self.points.lock();
        snapshots.extend(seeded!(HotCutNotKept: &[], points.as_slice()));
        drop(points);
        snapshots.retain(|snapshot| *snapshot <= horizon);
        snapshots.sort_unstable();
        snapshots.dedup();
        Stripes { snapshots, horizon }
    }

    /// Replaces the current view, because the keyspace was dropped. `freeze` is called with it and with all older
    /// views.
    pub(super) fn freeze(&self, freeze: impl Fn(&HotView)) {
        let mut older = self.older.lock();
        let current = self.current.load_full();
        freeze(&current);
        let old = self.current.swap(Arc::new(current.with_horizon(current.horizon())));
        older.iter().filter_map(Weak::upgrade).for_each(|view| freeze(&view));
        older.push(Arc::downgrade(&old));
    }

    /// From now on, folds keep what a read at `point` needs.
    pub(super) fn add_point(&self, point: Seqno) {
        self.points.lock().push(point);
    }

    /// As [`Horizons::add_point`], for the oldest point, or for `newest` if there is no older one. Returns the point.
    /// Both steps happen under one lock, because the oldest point must not be removed between them.
    pub(super) fn add_oldest_point(&self, newest: Seqno) -> Seqno {
        let mut points = self.points.lock();
        let point = points.iter().fold(newest, |oldest, point| oldest.min(*point));
        points.push(point);
        point
    }

    /// Ends [`Horizons::add_point`].
    pub(super) fn remove_point(&self, point: Seqno) {
        let mut points = self.points.lock();
        let at = points.iter().position(|other| *other == point).expect("the point was added");
        points.swap_remove(at);
    }
}
