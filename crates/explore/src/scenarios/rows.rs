//! The row cache by itself, before an index of one key.

use pandodb::base::sync::{AtomicU64, Ordering};
use pandodb::base::{Seqno, key_hash};
use pandodb::device::sim::SimImage;
use pandodb::rows::{Change, IndexRows, RowCache};

use super::{Twist, body, threads};

/// The claim of [`rows`].
pub const ROWS: &str =
    "a cached row is what the index holds at the read point, whoever packs the key's next value meanwhile";

const KEY: &[u8] = b"key";
/// Values of the key: the n-th is n and has the seqno n.
const VALUES: u64 = 3;

/// The key's place in a store: values up to `visible` are acknowledged, those up to `packed` are in the index, the others in memtables.
struct World {
    rows: IndexRows,
    visible: AtomicU64,
    packed: AtomicU64,
}

impl World {
    fn cached(&self, at: u64, root: u64) -> Option<u64> {
        let bytes = self.rows.get(KEY, key_hash(KEY), Seqno(at), Seqno(root))?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Each value is the one before and one more: a value for the row cache, or something that is folded in.
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
        // What the root does not hold is in memtables.
        let newer = at.saturating_sub(root);
        if let Some(value) = self.cached(at, root) {
            assert_eq!(value + newer, at, "a cached row");
        } else if root <= at {
            // Read from the index, and asked for twice.
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
        assert!(world.cached(VALUES, VALUES).is_none_or(|value| value == VALUES), "the last value stays");
    }
}

/// Two threads read a key whose values are packed one after the other by a third. The canary: a row is taken though its root is not the
/// newest any more.
pub fn rows(_: &SimImage, _: Twist) {
    World::explore(false);
}

/// The same with values that are folded together out of memtables and the index. The canary: a lookup takes a row that its root does
/// not hold.
pub fn merge(_: &SimImage, _: Twist) {
    World::explore(true);
}
