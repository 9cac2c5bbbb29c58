//! [`Sharded`]: the former pool of the engine. Each of 16 locks guards a map and a CLOCK ring. A hit takes the lock and
//! clones an `Arc`.

use std::collections::HashMap;
use std::sync::Arc;

use pandodb::base::sync::{AtomicUsize, Mutex, Ordering::Relaxed};

const SHARDS: usize = 16;
/// The maximum number of buffers that are kept for reuse.
const SPARE: usize = 64;

type Words = Arc<Vec<u64>>;

#[derive(Default)]
struct Shard {
    map: HashMap<u64, u32, std::hash::BuildHasherDefault<Through>>,
    ring: Vec<Option<(u64, Words, bool)>>,
    vacant: Vec<u32>,
    hand: usize,
}

/// A hasher that mixes the bits of a page number.
#[derive(Default)]
struct Through(u64);

impl std::hash::Hasher for Through {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a page is hashed as one number");
    }
    fn write_u64(&mut self, page: u64) {
        self.0 = crate::record::mix(page);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Shard {
    fn hit(&mut self, page: u64) -> Option<Words> {
        let slot = *self.map.get(&page)?;
        let (_, words, hit) = self.ring[slot as usize].as_mut().expect("the map refers to a filled slot");
        *hit = true;
        Some(words.clone())
    }

    fn insert(&mut self, page: u64, words: Words) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.ring.push(None);
            self.ring.len() as u32 - 1
        });
        self.ring[slot as usize] = Some((page, words, false));
        self.map.insert(page, slot);
    }

    fn evict(&mut self) -> Option<Words> {
        while !self.map.is_empty() {
            self.hand = if self.hand >= self.ring.len() { 0 } else { self.hand };
            let slot = self.hand;
            self.hand += 1;
            match &mut self.ring[slot] {
                Some((_, _, hit)) if *hit => *hit = false,
                Some(_) => {
                    let (page, words, _) = self.ring[slot].take().expect("just seen");
                    self.map.remove(&page);
                    self.vacant.push(slot as u32);
                    return Some(words);
                }
                None => {}
            }
        }
        None
    }
}

/// The former pool, for pages of words.
pub(super) struct Sharded {
    shards: [Mutex<Shard>; SHARDS],
    frames: usize,
    used: AtomicUsize,
    next_victim: AtomicUsize,
    spare: Mutex<Vec<Vec<u64>>>,
}

impl Sharded {
    pub(super) fn new(frames: usize) -> Sharded {
        Sharded {
            shards: std::array::from_fn(|_| Mutex::default()),
            frames,
            used: AtomicUsize::new(0),
            next_victim: AtomicUsize::new(0),
            spare: Mutex::default(),
        }
    }

    fn shard(&self, page: u64) -> &Mutex<Shard> {
        &self.shards[(crate::record::mix(page) >> 40) as usize % SHARDS]
    }

    pub(super) fn peek(&self, page: u64) -> Option<Words> {
        self.shard(page).lock().hit(page)
    }

    pub(super) fn insert(&self, page: u64, loaded: &[u64]) -> Words {
        let spare = self.spare.lock().pop();
        let mut words = spare.unwrap_or_else(|| vec![0; loaded.len()]);
        words.copy_from_slice(loaded);
        let words = Arc::new(words);
        let mut gone = Vec::new();
        {
            let mut shard = self.shard(page).lock();
            if let Some(first) = shard.hit(page) {
                return first;
            }
            if self.used.fetch_add(1, Relaxed) >= self.frames && shard.map.len() >= self.frames / SHARDS {
                let victim = shard.evict();
                self.used.fetch_sub(usize::from(victim.is_some()), Relaxed);
                gone.extend(victim);
            }
            shard.insert(page, words.clone());
        }
        while self.used.load(Relaxed) > self.frames {
            let at = self.next_victim.fetch_add(1, Relaxed) % SHARDS;
            let victim = self.shards[at].lock().evict();
            self.used.fetch_sub(usize::from(victim.is_some()), Relaxed);
            gone.extend(victim);
        }
        for words in gone.into_iter().filter_map(Arc::into_inner) {
            let mut spare = self.spare.lock();
            if spare.len() < SPARE {
                spare.push(words);
            }
        }
        words
    }
}
