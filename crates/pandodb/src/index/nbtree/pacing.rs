//! Pacing: how many bytes of merges writers pay for each byte they write.
//!
//! ```text
//!   shape of the tree ─▶ work of the costliest cascade ─┐
//!   bytes of merges, compared with it ─▶ usual share ───┴▶ usual work × (1 + late / 2) ─▶ deadline
//!   cascades that are not done in time ─▶ late ─────────────────────────────┘
//! ```
//!
//! 1. A full root must pass its data on before it is full again, so each write pays for its share (001 §5.1,
//!    "Deamortization"). A flush of the root and the flushes that follow it are a *cascade*. The source charges every write
//!    for the costliest cascade, which flushes a node on every level. Most cascades are cheaper, because they end at a
//!    level that has room. If writers paid for the costliest one, the flushes would be done long before the root is full:
//!    writers would be slow while the flushes run, and fast in between.
//! 2. So writers pay for the *usual* work: the work of the costliest cascade, multiplied by the share of it that cascades
//!    really took, a mean over the data of about [`MEMORY`] cascades. The work of the costliest cascade is estimated from
//!    the path of the largest children.
//! 3. A costly cascade is not done when the next data arrives: it is *late*. Writers pay half of what is late in addition
//!    to the usual work. Meanwhile the root has more than one memtable.
//! 4. Sweeps, and nodes that are written ahead for a checkpoint, count as work too, because writers do it as well.
//!
//! Invariant: while flushes are due or in progress, the deadline changes only when data arrives.

use crate::base::Seqno;
use crate::index::Deadline;

/// The mean includes the data of about this many cascades.
pub(super) const MEMORY: u64 = 4;
/// The usual work is at least 1/`LEAST_SHARE` of the work of the costliest cascade. Data that moves without a merge costs no
/// work, so without this limit writers would pay almost nothing when merges begin again.
const LEAST_SHARE: u64 = 4;

/// What earlier cascades took, and what writers pay now.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// The work that writers have to pay for; `None` if all flushes are done.
    pub(super) deadline: Option<Deadline>,
    /// The work of the costliest cascades for the bytes that arrived, and the bytes of work that was done for them. Bytes
    /// that arrived earlier count less.
    costliest: u64,
    worked: u64,
    /// The same two numbers for the bytes that arrived last.
    expected: u64,
    since: u64,
    /// The newest message of the tree when the deadline was computed.
    pub(super) through: Seqno,
}

impl Pacing {
    /// Records `bytes` of work.
    pub(super) fn work(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
    }

    /// Records that `bytes` arrived. The costliest cascades that follow `within` bytes work on `most` bytes.
    pub(super) fn arrive(&mut self, bytes: u64, within: u64, most: u64) {
        let memory = MEMORY.saturating_mul(within);
        let fade = |sum: u64, new: u64| scaled(sum, memory, memory.saturating_add(bytes)).saturating_add(new);
        self.costliest = fade(self.costliest, std::mem::replace(&mut self.expected, scaled(most, bytes, within)));
        // The merges of a sorted load are work for bytes that have not arrived in this way.
        self.worked = fade(self.worked, std::mem::take(&mut self.since)).min(self.costliest);
    }

    /// The usual work, if the costliest cascades work on `most` bytes. `known` bytes are added to both sums: while little
    /// was measured, cascades count as costly.
    pub(super) fn usual(&self, most: u64, known: u64) -> u64 {
        let usual = scaled(most, self.worked.saturating_add(known), self.costliest.saturating_add(known));
        usual.clamp(most / LEAST_SHARE, most)
    }
}

/// `number` · `share` / `whole`.
pub(super) fn scaled(number: u64, share: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(share) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGMA: u64 = 1 << 20;

    #[test]
    fn at_first_the_costliest_cascade_is_paid_for_and_then_the_usual_share() {
        let (mut pacing, most) = (Pacing::default(), 20 * SIGMA);
        let usual = |pacing: &Pacing| pacing.usual(most, MEMORY * SIGMA) as f64 / most as f64;
        pacing.arrive(SIGMA, SIGMA, most);
        assert!((usual(&pacing) - 1.0).abs() < 0.01, "nothing was measured yet");
        for _ in 0..30 {
            pacing.work(most / 2);
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!((0.5..0.56).contains(&usual(&pacing)), "{}", usual(&pacing));
        for _ in 0..30 {
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!((usual(&pacing) - 0.25).abs() < 0.01, "moves are cheap, but merges may follow");
    }

    #[test]
    fn the_merges_of_a_load_are_forgotten_soon_and_no_number_overflows() {
        let (mut pacing, most) = (Pacing::default(), 20 * SIGMA);
        pacing.work(1000 * most);
        for _ in 0..20 {
            pacing.work(most / 2);
            pacing.arrive(SIGMA, SIGMA, most);
        }
        assert!(pacing.usual(most, MEMORY * SIGMA) < most * 6 / 10);
        pacing.work(u64::MAX);
        pacing.arrive(u64::MAX, 0, u64::MAX);
        pacing.arrive(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(pacing.usual(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(pacing.usual(0, 0), 0);
    }
}
