//! The lists of the next keys that pops take from a keyspace, see [`pops`](super::pops).

use std::collections::VecDeque;
use std::sync::Arc;

use super::dead_ranges::Watch;
use super::value::Value;
use crate::base::range::successor;
use crate::base::{KeyRange, Result, seeded};
use crate::pool::Pool;

/// The most keys of a list, and the bytes of keys after which a list ends.
const MOST_KEYS: usize = 256;
const MOST_BYTES: usize = 32 << 10;

/// The lists for both ends of a keyspace.
#[derive(Debug, Default)]
pub(crate) struct Pops {
    pub(super) first: NextKeys,
    pub(super) last: NextKeys,
}

/// The next keys at one end, in the order in which they are taken.
#[derive(Debug, Default)]
pub(super) struct NextKeys {
    keys: VecDeque<Vec<u8>>,
    /// Observes the keys up to the last one of the list. `None` while the list is empty, because a watch makes every
    /// write slower.
    watch: Option<Watch>,
    /// The memory of the list, taken from the pool.
    held: Option<Held>,
    /// The number of keys that were last asked for.
    asked: usize,
}

/// Memory that is taken from the pool while this value exists.
#[derive(Debug)]
struct Held {
    pool: Arc<Pool>,
    bytes: usize,
}

impl Held {
    fn new(pool: Arc<Pool>, bytes: usize) -> Held {
        pool.hold(bytes);
        Held { pool, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.let_go(self.bytes);
    }
}

impl NextKeys {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        (self.watch, self.held) = (None, None);
    }

    /// Removes the next key of the list. Returns `None` if the list must be fetched (again).
    pub(super) fn next(&mut self, reverse: bool) -> Option<Vec<u8>> {
        let key = self.keys.front()?;
        let nearest = self.watch.as_ref().expect("a list has a watch").nearest();
        let is_late = nearest.is_some_and(|nearest| if reverse { nearest >= *key } else { nearest <= *key });
        if seeded!(PopOverlooksPut: false, is_late) {
            self.clear();
            self.asked /= 4;
            return None;
        }
        self.take_first()
    }

    /// Removes the first key of the list. After the last key nothing has to be observed any more.
    fn take_first(&mut self) -> Option<Vec<u8>> {
        let key = self.keys.pop_front();
        if self.keys.is_empty() {
            self.clear();
        }
        key
    }

    /// Fetches the list from `keys`, a scan that began after the watch over all keys, and removes its first key. This
    /// key is taken even if the watch has noted a key before it: at the read point of the scan no key with a value came
    /// before it. So a pop does not wait for writes that are not visible yet.
    pub(super) fn fetch(
        &mut self,
        pool: &Arc<Pool>,
        watch: Watch,
        reverse: bool,
        mut keys: impl FnMut() -> Option<Result<Value>>,
    ) -> Result<Option<Vec<u8>>> {
        self.clear();
        self.asked = (2 * self.asked).clamp(1, MOST_KEYS);
        let mut bytes = 0;
        while self.keys.len() < self.asked && bytes < MOST_BYTES {
            let Some(key) = keys() else { break };
            let key = key?.to_vec();
            debug_assert!(
                self.keys.back().is_none_or(|last| (key > *last) != reverse),
                "a scan returns its keys in order"
            );
            bytes += size_of::<Vec<u8>>() + key.len();
            self.keys.push_back(key);
        }
        let Some(last) = self.keys.back() else { return Ok(None) };
        // Writes behind the list do not matter.
        watch.narrow(&if reverse { KeyRange::new(&**last, []) } else { KeyRange::new([], successor(last)) });
        (self.watch, self.held) = (Some(watch), Some(Held::new(pool.clone(), bytes)));
        Ok(self.take_first())
    }
}
