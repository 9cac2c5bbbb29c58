//! Compares the engine's buffer pool with the design of 002 §3.6.1, the engine's former pool and the cache of another
//! crate. Also measures the gain from a second reader thread, in a store whose data is in the pool.
//!
//! ```text
//!   trace of pages ─▶ get(thread, page) ─▶ engine    guarded blocks, no lock           one and two threads,
//!                                          2q, …     the engine's pool, other policies
//!                                          claims    the source's, without `unsafe`    by `notes`
//!                                          sharded   sixteen locks
//!                                          quick     the crate quick_cache
//! ```
//!
//! A *turn*, the unit of measured work, looks up a page and reads four words of the page from four cache lines. A
//! missing page is first filled with copies of one word, which replaces a read of the device. In this comparison, one
//! number identifies a page; the engine's pool also needs an owner.
//!
//! * *hits*: all pages fit into the cache. The pages are chosen uniformly or by Zipf, or every lookup uses the same
//!   page, as lookups in a tree use its root.
//! * *misses*: all pages are looked up in a cycle. There are four times as many pages as the cache can hold.
//! * *ratio*: the share of hits in a Zipf trace over eight times as many pages as the cache can hold. The ratio is also
//!   measured for a Zipf trace over four times as many pages as the cache can hold, and for the first trace with scans.
//!   Each scan reads half as many pages as the cache can hold, after the same number of lookups of the trace. The
//!   lookups of the scans themselves are not counted.

pub mod claims;
pub mod notes;
mod primitives;
mod sharded;
mod store;

use std::hint::black_box;
use std::sync::Arc;

use pandodb::base::{BlockAddr, OwnerId, PAGE, PageNo};
use pandodb::device::AlignedBuf;
use pandodb::pool::{Keep, Pool, PoolPolicy};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::record::mix;
use crate::workload::pick::{Dist, Picker};
use notes::{Lengths, Pair, TURNS};
pub use store::{Readers, ReadersConfig, readers};

const WORDS: usize = PAGE / 8;
/// The maximum number of threads that use a cache.
const THREADS: usize = 2;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of pages of each cache.
    pub pages: u64,
    /// The number of rounds. Each round measures all caches.
    pub rounds: u64,
    /// The number of notes (samples) in a round.
    pub notes: u64,
    /// The number of lookups in a trace.
    pub lookups: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config { pages: 4_096, rounds: 10, notes: 16_000, lookups: 1_000_000 }
    }
}

/// The measurements of one cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `pool`.
    pub kind: String,
    /// The name of the cache.
    pub pool: String,
    /// The capacity of the cache in pages.
    pub pages: u64,
    /// The results for hits of pages chosen uniformly.
    pub uniform: Pair,
    /// The results for hits of pages chosen by Zipf.
    pub zipf: Pair,
    /// The results for hits of the same page.
    pub same: Pair,
    /// The results for misses. Each miss evicts a page.
    pub misses: Pair,
    /// The share of hits in the Zipf trace.
    pub ratio: f64,
    /// The share of hits in a Zipf trace over four times as many pages as the cache can hold; 0 in older results.
    #[serde(default)]
    pub ratio_quarter: f64,
    /// The share of hits in the Zipf trace with scans.
    pub ratio_scans: f64,
    /// The growth of the process in bytes per cached page, minus the size of the page.
    pub overhead: f64,
}

/// A cache that is measured.
trait Cache: Sync {
    /// Reads a page, and loads it first if it is missing. Returns whether the page was cached.
    fn get(&self, thread: usize, page: u64) -> bool;
}

/// The value of each word of a page.
fn word(page: u64) -> u64 {
    mix(!page)
}

/// The sum of four words of a page, in different cache lines.
#[inline]
fn consume(page: u64, words: impl Fn(usize) -> u64) {
    let from = mix(page) as usize;
    let right = word(page);
    for at in (0..4).map(|i| (from.wrapping_add(i * 137)) % WORDS) {
        assert_eq!(black_box(words(at)), right, "another page");
    }
}

#[inline]
fn consume_bytes(page: u64, bytes: &[u8]) {
    consume(page, |at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes")));
}

fn fill(page: u64) -> Vec<u64> {
    vec![word(page); WORDS]
}

impl Cache for Pool {
    fn get(&self, _: usize, page: u64) -> bool {
        let (addr, mut missed) = (BlockAddr { page: PageNo(page), pages: 1 }, false);
        let block = Pool::get(self, OwnerId(1), addr, Keep::Short, || {
            missed = true;
            let (mut buf, word) = (AlignedBuf::zeroed(1), word(page).to_le_bytes());
            buf.as_chunks_mut::<8>().0.fill(word);
            Ok(buf)
        });
        consume_bytes(page, &block.expect("loading cannot fail"));
        !missed
    }
}

impl Cache for claims::Claims {
    fn get(&self, thread: usize, page: u64) -> bool {
        let word = word(page);
        let found = claims::Claims::get(self, thread, page, |_| word);
        consume(page, |at| found.word(at));
        !found.missed
    }
}

impl Cache for sharded::Sharded {
    fn get(&self, _: usize, page: u64) -> bool {
        let found = self.peek(page);
        let hit = found.is_some();
        let words = found.unwrap_or_else(|| self.insert(page, &fill(page)));
        consume(page, |at| words[at]);
        hit
    }
}

impl Cache for quick_cache::sync::Cache<u64, Arc<Vec<u64>>> {
    fn get(&self, _: usize, page: u64) -> bool {
        let found = quick_cache::sync::Cache::get(self, &page);
        let hit = found.is_some();
        let words = found.unwrap_or_else(|| {
            let words = Arc::new(fill(page));
            self.insert(page, words.clone());
            words
        });
        consume(page, |at| words[at]);
        hit
    }
}

/// A function that creates a cache, given its number of pages and the number of pages of the disk.
type Make = fn(u64, u64) -> Box<dyn Cache>;

/// The engine's pool with room for this number of pages. The optimal policy ignores the number.
fn engine(pages: u64, policy: PoolPolicy) -> Box<dyn Cache> {
    Box::new(Pool::with_policy(pages as usize * (PAGE + 224), policy))
}

/// All caches. The engine's pool is the first, and its other replacement policies follow.
const CACHES: [(&str, Make); 7] = [
    ("engine", |pages, _| engine(pages, PoolPolicy::Clock)),
    ("2q", |pages, _| engine(pages, PoolPolicy::TwoQueue)),
    ("2q-locked", |pages, _| engine(pages, PoolPolicy::TwoQueueLocked)),
    ("optimal", |pages, _| engine(pages, PoolPolicy::Optimal)),
    ("claims", |pages, disk| {
        let (frames, disk) = (pages as usize, disk as usize);
        Box::new(claims::Claims::new(claims::Size { threads: THREADS, frames, pages: disk, words: WORDS, hand: 64 }))
    }),
    ("sharded", |pages, _| Box::new(sharded::Sharded::new(pages as usize))),
    ("quick_cache", |pages, _| Box::new(quick_cache::sync::Cache::new(pages as usize))),
];

/// The pages that a thread will look up, computed before the measurement.
fn picks(dist: Dist, pages: u64, count: u64, seed: u64) -> Vec<u64> {
    let (mut rng, mut picker) = (Xoshiro256PlusPlus::seed_from_u64(seed), Picker::new(dist, pages));
    (0..count).map(|_| picker.pick(pages, &mut rng)).collect()
}

/// Looks up each page once.
fn ask_all(cache: &dyn Cache, pages: u64) {
    for page in 0..pages {
        cache.get(0, page);
    }
}

/// Measures all caches. For hits, a cache has room for twice the number of pages.
pub fn compare(config: &Config) -> Vec<Row> {
    let pages = config.pages;
    let traces = |dist| [1, 2].map(|seed| picks(dist, pages, 1 << 16, seed));
    let kinds = [traces(Dist::Uniform), traces(Dist::Zipf), [vec![7], vec![7]]];
    let overheads = overheads(4 * pages);
    let full: Vec<Box<dyn Cache>> = CACHES.iter().map(|(_, make)| make(2 * pages, 4 * pages)).collect();
    let small: Vec<Box<dyn Cache>> = CACHES.iter().map(|(_, make)| make(pages, 4 * pages)).collect();
    full.iter().for_each(|cache| ask_all(&**cache, pages));
    let mut hits: Vec<[Lengths; 3]> = CACHES.iter().map(|_| Default::default()).collect();
    let mut misses: Vec<Lengths> = CACHES.iter().map(|_| Lengths::default()).collect();
    for round in 0..config.rounds {
        for (cache, hits) in full.iter().zip(&mut hits) {
            for (trace, lengths) in kinds.iter().zip(hits) {
                lengths.round(config.notes, &|thread, note| {
                    let trace = &trace[thread];
                    let from = (round * config.notes + note) * TURNS;
                    for turn in from..from + TURNS {
                        let hit = cache.get(thread, trace[turn as usize % trace.len()]);
                        debug_assert!(hit, "everything fits");
                    }
                });
            }
        }
        for (cache, misses) in small.iter().zip(&mut misses) {
            let notes = config.notes / 16;
            misses.round(notes, &|thread, note| {
                // The two threads start in different halves of the cycle.
                let from = (round * notes + note) * TURNS + thread as u64 * 2 * pages;
                for turn in from..from + TURNS {
                    cache.get(thread, turn % (4 * pages));
                }
            });
        }
    }
    let named = CACHES.iter().zip(overheads).zip(hits).zip(misses);
    let rows = named.map(|((((name, make), overhead), [uniform, zipf, same]), misses)| Row {
        kind: "pool".to_owned(),
        pool: (*name).to_owned(),
        pages,
        uniform: uniform.pair(),
        zipf: zipf.pair(),
        same: same.pair(),
        misses: misses.pair(),
        ratio: ratio(*make, config, 8, false),
        ratio_quarter: ratio(*make, config, 4, false),
        ratio_scans: ratio(*make, config, 8, true),
        overhead,
    });
    rows.collect()
}

/// The share of hits in a Zipf trace over `times` as many pages as the capacity, optionally with scans between the
/// lookups. The first tenth of the trace is not counted.
fn ratio(make: Make, config: &Config, times: u64, scans: bool) -> f64 {
    let range = times * config.pages;
    // Scans read pages that the trace does not contain.
    let disk = 2 * range;
    let cache = make(config.pages, disk);
    let (mut scanned, mut hits) = (0, 0);
    let warm = config.lookups / 10;
    for (i, page) in (0..).zip(picks(Dist::Zipf, range, config.lookups, 3)) {
        let hit = cache.get(0, page);
        hits += u64::from(hit && i >= warm);
        if scans && i % (config.pages / 2) == 0 {
            for _ in 0..config.pages / 2 {
                cache.get(0, range + scanned % range);
                scanned += 1;
            }
        }
    }
    hits as f64 / (config.lookups - warm).max(1) as f64
}

/// Bytes of memory of the process.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
    pages.unwrap_or(0.0) * PAGE as f64
}

/// The memory overhead per page of each cache. No cache is freed until the last cache is full, because memory freed by
/// one cache would make the next cache seem smaller.
fn overheads(pages: u64) -> Vec<f64> {
    let mut kept = Vec::new();
    let grown = CACHES.iter().map(|(_, make)| {
        let before = resident();
        let cache = make(pages, pages);
        ask_all(&*cache, pages);
        kept.push(cache);
        (resident() - before) / pages as f64 - PAGE as f64
    });
    grown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_returns_the_right_pages_and_keeps_hot_ones() {
        let config = Config { pages: 256, rounds: 1, notes: 16, lookups: 40_000 };
        let rows = compare(&config);
        assert_eq!(rows.len(), CACHES.len());
        for row in &rows {
            assert!(row.ratio > 0.4 && row.ratio_scans > 0.2 && row.ratio_quarter > row.ratio, "{row:?}");
            assert!([row.uniform, row.zipf, row.same, row.misses].iter().all(|pair| pair.one_ns > 0.0), "{row:?}");
        }
    }
}
