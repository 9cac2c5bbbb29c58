//! The lists of the next keys that pops take from a keyspace, see [`pops`](super::pops).

use std::collections::VecDeque;

use super::dead_ranges::Watch;
use super::value::Value;
use crate::base::range::successor;
use crate::base::{KeyRange, Result, seeded};

/// The most keys of a list.
const MOST_KEYS: usize = 256;

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
    /// Observes the keys up to the last one of the list. Present if the list is not empty, so that writes cost less if
    /// nothing is remembered.
    watch: Option<Watch>,
    /// The number of keys that were last asked for.
    asked: usize,
}

impl NextKeys {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.watch = None;
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
            self.watch = None;
        }
        key
    }

    /// Fetches the list from `keys`, a scan that began after the watch over all keys, and removes its first key. There
    /// was a moment since then at which no key came before it, whatever the watch has noted. So a writer that is slow
    /// to become visible does not delay a pop.
    pub(super) fn fetch(
        &mut self,
        watch: Watch,
        reverse: bool,
        mut keys: impl FnMut() -> Option<Result<Value>>,
    ) -> Result<Option<Vec<u8>>> {
        self.clear();
        self.asked = (2 * self.asked).clamp(1, MOST_KEYS);
        while self.keys.len() < self.asked {
            let Some(key) = keys() else { break };
            let key = key?.to_vec();
            debug_assert!(
                self.keys.back().is_none_or(|last| (key > *last) != reverse),
                "a scan returns its keys in order"
            );
            let has_room = watch.charge(size_of::<Vec<u8>>() + key.len());
            self.keys.push_back(key);
            if !has_room {
                break;
            }
        }
        let Some(last) = self.keys.back() else { return Ok(None) };
        // Writes behind the list do not matter.
        watch.narrow(&if reverse { KeyRange::new(&**last, []) } else { KeyRange::new([], successor(last)) });
        self.watch = Some(watch);
        Ok(self.take_first())
    }
}
