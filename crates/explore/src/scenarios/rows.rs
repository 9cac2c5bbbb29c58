//! Scenarios for the row cache without a store, with an index that has one key.

use pandodb::base::sync::{AtomicU64, Ordering};
use pandodb::base::{Seqno, key_hash};
use pandodb::device::sim::SimImage;
use pandodb::rows::{Change, IndexRows, RowCache};

use super::{Twist, body, threads};

/// The claim of [`rows`].
pub const ROWS: &str =
    "a cached row is the value in the index at the read point, while the key's next value is packed concurrently";

const KEY: &[u8] = b"key";
/// Number of values of the key. The nth value is n and has the seqno n.
const VALUES: u64 = 3;

/// The state of the key in a store. Values up to `visible` are acknowledged. Values up to `packed` are in the index,
/// and the other values are in memtables.
struct World {
    rows: IndexRows,
    visible: AtomicU64,
    packed: AtomicU64,
}

impl World {
    fn cached(&self, at: u64, root: u64) -> Option<u64> {
        let bytes = self.rows.get(KEY, key_hash(KEY), Seqno(at), Seqno(root))?;
        Some(u64::from_le_bytes((*bytes).try_into().expect("eight bytes")))
    }

    /// Writes and packs all values. Each value is the previous value plus 1. The row cache is told that each change is
    /// a put or, if `folded` is set, another change, such as a merge.
    fn write_and_pack(&self, folded: bool) {
        for value in 1..=VALUES {
            self.visible.store(value, Ordering::Release);
            if self.rows.begin(Seqno(value)) {
                let bytes = value.to_le_bytes();
                let change = if folded { Change::Other } else { Change::Value(&bytes, Seqno(value)) };
                self.rows.absorb(KEY, key_hash(KEY), change);
            }
            self.packed.store(value, Ordering::Release);
        }
    }

    fn look(&self) {
        let at = self.visible.load(Ordering::Acquire);
        let root = self.packed.load(Ordering::Acquire);
        // Values that are not in the index are in memtables.
        let newer = at.saturating_sub(root);
        if let Some(value) = self.cached(at, root) {
            assert_eq!(value + newer, at, "a cached row");
        } else if root <= at {
            // This simulates two reads from the index. The second read caches the row.
            for _ in 0..2 {
                self.rows.offer(KEY, key_hash(KEY), &root.to_le_bytes(), Seqno(root), Seqno(root));
            }
        }
    }

    fn explore(folded: bool) {
        let rows = RowCache::new(64 << 10).of_index(Seqno(0));
        let world = World { rows, visible: AtomicU64::new(0), packed: AtomicU64::new(0) };
        let look = || body(|| (0..3).for_each(|_| world.look()));
        threads([look(), look(), body(|| world.write_and_pack(folded))]);
        assert!(
            world.cached(VALUES, VALUES).is_none_or(|value| value == VALUES),
            "the cached row is not the last value"
        );
    }
}

/// Two threads read a key. A third thread writes the values of the key and packs them, one after the other. The canary:
/// the row cache accepts a row that was read from an older root.
pub fn rows(_: &SimImage, _: Twist) {
    World::explore(false);
}

/// Like [`rows`], but with merges, which a read folds from memtables and the index. The canary: a lookup uses a cached
/// row that is newer than the root of the lookup.
pub fn merge(_: &SimImage, _: Twist) {
    World::explore(true);
}
