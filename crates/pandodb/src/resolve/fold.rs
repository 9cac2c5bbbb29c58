//! [`fold_key`] computes the messages of a key that a compaction must keep; [`prune_tombstones`] computes the range
//! tombstones that the compaction must keep.
//!
//! The live snapshots divide the seqnos into *stripes*. Two messages of one stripe are visible to the same read points.
//! So one message suffices for each stripe, if the merges can be folded: the newest base, or the result of folding the
//! merges.
//!
//! ```text
//!   seqno      1    4     6      9       12      15 … horizon 16 | 17 | 18
//!   snapshots          ^5           ^10
//!   stripe     0    0     1      1       2       2                 3    4
//! ```
//!
//! Readers without a snapshot read at the horizon or later. Such a reader may read between any two messages above the
//! horizon. So every message above the horizon forms a stripe of its own and is kept unchanged.
//!
//! Steps of [`fold_key`], for each stripe, newest first:
//!
//! 1. A range tombstone of the stripe acts as a delete at its seqno: older messages of the stripe are dropped. The
//!    tombstone itself is not a message of the key; [`prune_tombstones`] decides whether it is kept.
//! 2. The newest base is kept; messages older than the base are dropped. Merges newer than the base are applied to the
//!    value of a put, or to no value if the base is a delete or a tombstone. A large value is not read for this
//!    purpose: the large value and the merges newer than it are kept.
//! 3. If a stripe has merges but no base, neighbouring merges are combined, as far as the operator can combine them. In
//!    the oldest stripe, if nothing older exists in the whole index (`bottom`), the merges are applied to no value
//!    instead.
//! 4. At the bottom, deletes without an older message are dropped.
//!
//! Invariants: each read point sees the same value before and after a fold (see [`super`]); a folded message has the
//! seqno of the newest message that was folded into it, so the seqnos of the output stay within the range of the seqnos
//! of the input; a stripe whose operator fails or is not registered keeps each of its merges; every large value that is
//! dropped is reported. Source: the upserts of 000 Table 5.1.

use std::borrow::Cow;
use std::ops::Range;

use super::operator::Operator;
use crate::base::{BlobRef, Entry, Fragments, Kind, MAX_OPERAND, RangeTombstone, Result, SeededBug, Seqno, seeded};

/// The most rounds in which neighbouring operands are combined. Each round halves the number of operands if all of them
/// can be combined.
const COMBINE_ROUNDS: usize = 32;

/// The read points whose results must not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripes {
    /// The live snapshots, in ascending order. A message is visible to each snapshot that is at or above the message's
    /// seqno.
    pub snapshots: Vec<Seqno>,
    /// Readers without a snapshot read at this point or later.
    pub horizon: Seqno,
}

impl Stripes {
    /// The number of the stripe of a message with this seqno. Older stripes have smaller numbers. The messages of
    /// stripe 0 are visible to all read points. O(log s) for s snapshots.
    #[inline]
    pub fn stripe_of(&self, seqno: Seqno) -> u64 {
        if seqno > self.horizon {
            return self.snapshots.len() as u64 + (seqno.0 - self.horizon.0);
        }
        self.snapshots.partition_point(|&snapshot| snapshot < seqno) as u64
    }
}

/// The source of a message that is kept.
#[derive(Clone, Debug)]
enum Source {
    /// A message of the group, unchanged.
    Input(usize),
    /// A folded message; its value is in the output's buffer.
    Folded { kind: Kind, seqno: Seqno, bytes: Range<usize> },
}

/// The result of [`fold_key`]. The caller reuses it for the next key.
#[derive(Clone, Debug, Default)]
pub struct FoldOutput {
    kept: Vec<Source>,
    bytes: Vec<u8>,
    /// The large values of all messages that were dropped since the caller last emptied this list, for all keys.
    pub dropped_blobs: Vec<BlobRef>,
}

impl FoldOutput {
    /// The messages that are kept, newest first. `group` must be the group that was folded, because unchanged messages
    /// are taken from it.
    pub fn entries<'a>(&'a self, group: &'a [Entry<'a>]) -> impl Iterator<Item = Entry<'a>> {
        self.kept.iter().map(move |source| match source {
            Source::Input(i) => group[*i],
            Source::Folded { kind, seqno, bytes } => {
                Entry { key: group[0].key, seqno: *seqno, kind: *kind, value: &self.bytes[bytes.clone()] }
            }
        })
    }

    fn fold(&mut self, kind: Kind, seqno: Seqno, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.kept.push(Source::Folded { kind, seqno, bytes: start..self.bytes.len() });
    }

    fn keep(&mut self, inputs: Range<usize>) {
        self.kept.extend(inputs.map(Source::Input));
    }

    fn drop_all(&mut self, dropped: &[Entry<'_>]) {
        for entry in dropped.iter().filter(|entry| entry.kind == Kind::BlobPut) {
            // A malformed reference refers to no large value, so there is no large value to free. (References are
            // checked when messages are read.)
            self.dropped_blobs.extend(BlobRef::decode(entry.value).ok());
        }
    }
}

/// Folds `group`, the messages of one key, newest first. Computes the fewest messages that give the same result as
/// `group` at every read point.
///
/// `tombs` are the seqnos of the range tombstones that cover the key, newest first, among all range tombstones of the
/// compaction's inputs. `bottom` means that no message of the key is older than the inputs. Without an operator, merges
/// are kept unchanged. The result replaces the previous key's result in `out`, except for the dropped large values,
/// which accumulate. Costs at most one full merge for each stripe. Allocates nothing for a key with a single put.
pub fn fold_key(
    group: &[Entry<'_>],
    tombs: &[Seqno],
    stripes: &Stripes,
    bottom: bool,
    operator: Option<&Operator>,
    out: &mut FoldOutput,
) {
    debug_assert!(group.windows(2).all(|w| w[0].key == w[1].key && w[0].seqno > w[1].seqno), "one key, newest first");
    debug_assert!(tombs.is_sorted_by(|a, b| a >= b), "newest first");
    debug_assert!(stripes.snapshots.is_sorted(), "oldest first");
    debug_assert!(stripes.snapshots.last() <= Some(&stripes.horizon), "snapshots read at the horizon or before it");
    out.kept.clear();
    out.bytes.clear();
    if let ([entry], []) = (group, tombs)
        && matches!(entry.kind, Kind::Put | Kind::BlobPut)
    {
        out.keep(0..1);
        return;
    }
    let mut start = 0;
    while start < group.len() {
        let stripe = stripes.stripe_of(group[start].seqno);
        let end = start + group[start..].partition_point(|entry| stripes.stripe_of(entry.seqno) == stripe);
        debug_assert!(start < end, "a message is in its own stripe");
        let floor = tombs[tombs.partition_point(|&tomb| stripes.stripe_of(tomb) > stripe)..].first().copied();
        let floor = floor.filter(|&tomb| stripes.stripe_of(tomb) == stripe).unwrap_or_default();
        // In a newer stripe, the result would be a put, which a transaction takes for a conflict with its own operand.
        let is_oldest = stripe == 0 || SeededBug::FoldGroundsNewerStripes.is_on();
        let ground = bottom && end == group.len() && is_oldest;
        Stripe { group, operator, floor, ground }.fold(start..end, out);
        start = end;
    }
    if bottom {
        while out.kept.last().is_some_and(|source| kind_of(source, group) == Kind::Delete) {
            out.kept.pop();
        }
    }
    debug_assert!(out.kept.len() <= group.len(), "a fold adds no messages");
    debug_assert!(out.entries(group).is_sorted_by(|a, b| a.seqno > b.seqno), "newest first, as the group");
    debug_assert!(
        out.entries(group).all(|kept| group.binary_search_by(|entry| kept.seqno.cmp(&entry.seqno)).is_ok()),
        "a folded message has the seqno of one of its messages"
    );
}

/// Folds the newest messages of a key, when older ones may follow. It does what a compaction of only these messages would
/// do, so a fold of the result together with the older messages gives readers the same values.
pub fn fold_newest(
    group: &[Entry<'_>],
    tombs: &[Seqno],
    stripes: &Stripes,
    operator: Option<&Operator>,
    out: &mut FoldOutput,
) {
    let Some(oldest) = group.last() else { return };
    // Between an older tombstone and these messages there may be others, to which these operands apply.
    let newer = &tombs[..tombs.partition_point(|&tomb| tomb > oldest.seqno)];
    fold_key(group, seeded!(PartFoldedOnTombstone: tombs, newer), stripes, false, operator, out);
}

fn kind_of(source: &Source, group: &[Entry<'_>]) -> Kind {
    match source {
        Source::Input(i) => group[*i].kind,
        Source::Folded { kind, .. } => *kind,
    }
}

/// The messages of one key in one stripe.
struct Stripe<'a> {
    group: &'a [Entry<'a>],
    operator: Option<&'a Operator>,
    /// The seqno of the stripe's newest range tombstone; 0 if the stripe has none.
    floor: Seqno,
    /// Whether no older message of the key exists in any stripe.
    ground: bool,
}

impl Stripe<'_> {
    fn fold(&self, messages: Range<usize>, out: &mut FoldOutput) {
        debug_assert!(!messages.is_empty(), "a stripe has messages");
        let all = &self.group[messages.clone()];
        let dead = messages.start + all.partition_point(|entry| entry.seqno >= self.floor);
        out.drop_all(seeded!(LargeValueLeaked: &[], &self.group[dead..messages.end]));
        let live = messages.start..dead;
        let Some(base) = live.clone().find(|&i| self.group[i].kind != Kind::Merge) else {
            return match self.ground || self.floor > Seqno(0) {
                true if self.apply(live.clone(), None, out) => {}
                true => out.keep(live),
                false => self.combine(live, out),
            };
        };
        out.drop_all(&self.group[base + 1..dead]);
        let merges = live.start..base;
        match self.group[base].kind {
            // Do not read the large value, because a compaction copies only its reference.
            Kind::BlobPut => self.combine(merges, out),
            Kind::Put if self.apply(merges.clone(), Some(self.group[base].value), out) => return,
            Kind::Delete if self.apply(merges.clone(), None, out) => return,
            Kind::Put | Kind::Delete => out.keep(merges),
            Kind::Merge | Kind::RangeDelete => unreachable!("neither is a base in a group"),
        }
        out.keep(base..base + 1);
    }

    /// Applies merges to `base` and keeps the result. Returns `false`, and keeps nothing, if there are no merges or no
    /// operator, or if the operator fails.
    fn apply(&self, merges: Range<usize>, base: Option<&[u8]>, out: &mut FoldOutput) -> bool {
        let (Some(operator), merges @ [newest, ..]) = (self.operator, &self.group[merges]) else { return false };
        let operands: Vec<&[u8]> = merges.iter().rev().map(|entry| entry.value).collect();
        match operator.full(newest.key, base, &operands) {
            Ok(Some(value)) => out.fold(Kind::Put, newest.seqno, &value),
            Ok(None) => out.fold(Kind::Delete, newest.seqno, &[]),
            Err(_) => return false,
        }
        true
    }

    /// Keeps merges whose base is not in this stripe or is a large value. Combines the merges as far as the operator
    /// can.
    fn combine(&self, merges: Range<usize>, out: &mut FoldOutput) {
        let (Some(operator), true) = (self.operator, merges.len() > 1) else { return out.keep(merges) };
        let Ok(operands) = combine(operator, &self.group[merges.clone()]) else { return out.keep(merges) };
        for Operand { newest, bytes } in operands {
            let newest = merges.start + newest;
            debug_assert!(bytes.len() <= MAX_OPERAND, "memtables and runs accept no longer operand");
            match bytes {
                Cow::Borrowed(_) => out.keep(newest..newest + 1),
                Cow::Owned(bytes) => out.fold(Kind::Merge, self.group[newest].seqno, &bytes),
            }
        }
    }
}

/// An operand in the rounds of [`combine`].
struct Operand<'a> {
    /// The index, among the merges, of the newest message in this operand.
    newest: usize,
    /// The bytes of the operand: borrowed if the operand is a single message, owned if it was combined.
    bytes: Cow<'a, [u8]>,
}

/// Combines neighbouring operands in rounds: first pairs of operands, then pairs of the results, and so on. So each
/// byte is copied a logarithmic number of times, not once for each operand.
fn combine<'a>(operator: &Operator, merges: &[Entry<'a>]) -> Result<Vec<Operand<'a>>> {
    let mut operands: Vec<Operand<'a>> =
        merges.iter().enumerate().map(|(newest, e)| Operand { newest, bytes: Cow::Borrowed(e.value) }).collect();
    for _ in 0..COMBINE_ROUNDS {
        let before = operands.len();
        let mut combined = Vec::with_capacity(before);
        let mut rest = operands.into_iter().peekable();
        while let Some(newer) = rest.next() {
            let pair = match rest.peek() {
                Some(older) => operator.partial(merges[0].key, &older.bytes, &newer.bytes)?,
                None => None,
            };
            match pair {
                Some(bytes) => {
                    rest.next();
                    combined.push(Operand { newest: newer.newest, bytes: Cow::Owned(bytes) });
                }
                None => combined.extend(seeded!(OperandDropped: None, Some(newer))),
            }
        }
        debug_assert!(combined.is_sorted_by(|a, b| a.newest < b.newest), "operands stay in their order");
        operands = combined;
        if operands.len() == before {
            break;
        }
    }
    Ok(operands)
}

/// Returns the range tombstones that a compaction must keep if its inputs hold `tombs`: for each stripe and each
/// covered key, the newest tombstone of the stripe that covers the key. Newer stripes are first; the tombstones of one
/// stripe are disjoint and in key order. At the bottom, the tombstones of stripe 0 are dropped together with the
/// messages that they cover. `bottom` means that nothing older than the inputs exists for any key that `tombs` cover.
/// O(n log² n).
pub fn prune_tombstones(tombs: &[RangeTombstone], stripes: &Stripes, bottom: bool) -> Vec<RangeTombstone> {
    let most = 2 * tombs.len();
    let mut tombs: Vec<(u64, &RangeTombstone)> = tombs.iter().map(|t| (stripes.stripe_of(t.seqno), t)).collect();
    tombs.sort_by_key(|&(stripe, _)| std::cmp::Reverse(stripe));
    let kept: Vec<RangeTombstone> = tombs
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|chunk| !((bottom || SeededBug::RangeTombstoneDropped.is_on()) && chunk[0].0 == 0))
        .flat_map(|chunk| Fragments::build_from(chunk.iter().map(|&(_, tomb)| tomb)).newest())
        .collect();
    debug_assert!(kept.len() <= most, "each bound of a tombstone begins one fragment at most");
    kept
}
