//! Compares three filters: the blocked Bloom filter of a run, the quotient filter of 002 §3.6.3 and the maplet of a
//! bundle.
//!
//! ```text
//!   hashes ─▶ build each ─▶ bits a key, ns to build a key
//!                │
//!                ├─ near: questions about 32 pages (128 KiB), which stay in a core's cache
//!                └─ far:  questions about copies that fill 256 MiB, which do not
//!   node      R runs of keys / R each: R Bloom filters, R quotient filters, or the maplet that is merged of these
//! ```
//!
//! A *question* is a lookup of one precomputed hash in a filter. The questions run in a loop, so the processor works on
//! several independent questions at the same time. In a store, this overlap occurs when several keys are looked up, but
//! less when a single key is looked up. Times are CPU times of the thread, so that other processes affect the times
//! only through the caches. In a store, each filter page is first looked up in the buffer pool. The times do not
//! include this cost, which a maplet saves R − 1 times. A key that is present is in one run. Bloom and quotient filters
//! are queried one after the other until that run is found, whereas one query of a maplet returns the runs that may
//! have the key.

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

use pandodb::base::{PAGE, key_hash};
use pandodb::device::AlignedBuf;
use pandodb::filter::maplet::{Input, MapletBuilder, Merge, values};
use pandodb::filter::quotient::{QuotientBuilder, QuotientMeta, ask};
use pandodb::filter::{BloomBuilder, FilterMeta};
use serde::{Deserialize, Serialize};

use crate::engine::Result;

/// The numbers of runs in a node.
pub const RUNS: [u64; 4] = [1, 4, 8, 16];
/// The number of pages of filters for near questions.
const NEAR_PAGES: u64 = 32;
/// Bytes of filters for far questions.
const FAR_BYTES: u64 = 256 << 20;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of questions of each kind.
    pub questions: usize,
    /// Bytes of filters for far questions.
    pub far_bytes: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config { questions: 1 << 20, far_bytes: FAR_BYTES }
    }
}

/// The duration of a question in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// A question about a present key, in cache.
    pub present_near: f64,
    /// A question about an absent key, in cache.
    pub absent_near: f64,
    /// A question about a present key, out of cache.
    pub present_far: f64,
    /// A question about an absent key, out of cache.
    pub absent_far: f64,
}

/// The results of one filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alone {
    /// `filter`.
    pub kind: String,
    /// The name of the filter.
    pub filter: String,
    /// The number of keys in the filter.
    pub keys: u64,
    /// The size of the filter's pages in bytes.
    pub bytes: u64,
    /// Bits per key.
    pub bits_a_key: f64,
    /// The number of false positives per absent key. For a maplet, the number of wrong runs per absent key.
    pub rate: f64,
    /// Nanoseconds per key for adding the keys and building the filter.
    pub build_ns: f64,
    /// The duration of a question in nanoseconds.
    pub ask_ns: Ask,
}

/// The results of lookups in all runs of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// `node`.
    pub kind: String,
    /// The kind of the filters.
    pub filter: String,
    /// The total number of keys in all runs.
    pub keys: u64,
    /// The number of runs.
    pub runs: u64,
    /// Bits per key.
    pub bits_a_key: f64,
    /// The number of filter pages that a lookup of an absent key reads.
    pub pages_a_lookup: u64,
    /// The number of false positives, which are runs in which an absent key would be looked up.
    pub wrong_runs: f64,
    /// Nanoseconds per entry for merging the quotient filters of the runs into a maplet.
    pub merge_ns: Option<f64>,
    /// The duration of a lookup in nanoseconds.
    pub ask_ns: Ask,
}

/// A filter in memory.
trait Filter {
    fn pages(&self) -> u64;
    fn page_of(&self, hash: u64) -> u64;
    /// The number of runs that the filter reports, and whether `run` is one of them.
    fn ask(&self, page: &[u8], hash: u64, run: u8) -> (u64, bool);
}

struct Bloom(FilterMeta);

impl Filter for Bloom {
    fn pages(&self) -> u64 {
        u64::from(self.0.pages)
    }

    fn page_of(&self, hash: u64) -> u64 {
        u64::from(self.0.page_of(hash))
    }

    fn ask(&self, page: &[u8], hash: u64, _: u8) -> (u64, bool) {
        let found = self.0.may_contain(page, hash);
        (u64::from(found), found)
    }
}

struct Quotient(QuotientMeta);

impl Filter for Quotient {
    fn pages(&self) -> u64 {
        u64::from(self.0.pages)
    }

    fn page_of(&self, hash: u64) -> u64 {
        u64::from(self.0.page_of(hash))
    }

    fn ask(&self, page: &[u8], hash: u64, _: u8) -> (u64, bool) {
        let found = ask(page, hash);
        (u64::from(found), found)
    }
}

struct Maplet(QuotientMeta);

impl Filter for Maplet {
    fn pages(&self) -> u64 {
        u64::from(self.0.pages)
    }

    fn page_of(&self, hash: u64) -> u64 {
        u64::from(self.0.page_of(hash))
    }

    fn ask(&self, page: &[u8], hash: u64, run: u8) -> (u64, bool) {
        let (mut named, mut found) = (0, false);
        assert!(values(page, hash, &mut |value| {
            named += 1;
            found |= value == run;
        }));
        (named, found)
    }
}

/// The filters of one kind that a lookup queries: one filter for all runs, or one filter for each run. Each filter has
/// copies, which are stored contiguously.
struct Asked<F> {
    filters: Vec<(F, AlignedBuf)>,
    copies: Vec<AlignedBuf>,
}

impl<F: Filter> Asked<F> {
    fn new(filters: Vec<(F, AlignedBuf)>, far_bytes: u64) -> Asked<F> {
        let bytes = filters.iter().map(|(_, buf)| buf.len() as u64).sum::<u64>().max(1);
        let copies = far_bytes.div_ceil(bytes) as usize;
        let copied = filters.iter().map(|(_, buf)| {
            let mut all = AlignedBuf::zeroed(buf.pages() * copies);
            all.chunks_exact_mut(buf.len().max(PAGE)).for_each(|copy| copy.copy_from_slice(buf));
            all
        });
        let copies = copied.collect();
        Asked { filters, copies }
    }

    fn bytes(&self) -> u64 {
        self.filters.iter().map(|(_, buf)| buf.len() as u64).sum()
    }

    /// The number of runs reported for a key that is in `run`, or that is absent if `run` is 255. Queries the filters
    /// one after the other, up to the filter of `run`.
    #[inline]
    fn look(&self, copy: u64, hash: u64, run: u8) -> (u64, bool) {
        let (mut named, mut found) = (0, false);
        let alone = self.filters.len() == 1;
        for (i, ((filter, _), pages)) in self.filters.iter().zip(&self.copies).enumerate() {
            let at = (copy * filter.pages() + filter.page_of(hash)) as usize * PAGE;
            let (here, hit) = filter.ask(&pages[at..at + PAGE], hash, run);
            named += here;
            if hit && (alone || i == usize::from(run)) {
                found = true;
                break;
            }
        }
        (named, found)
    }

    /// Returns two averages per question: nanoseconds, and the number of reported runs. A question is given as the hash
    /// of a key and the run of the key.
    fn time(&self, questions: &[(u64, u8)], times: usize, copies: u64) -> (f64, f64) {
        let (mut named, mut copy) = (0, 0);
        let start = Moment::now();
        for _ in 0..times {
            for &(hash, run) in questions {
                let (here, found) = self.look(copy, hash, run);
                assert!(found || run == ABSENT, "a key of run {run} is lost");
                named += here;
                copy = if copy + 1 < copies { copy + 1 } else { 0 };
            }
        }
        let asked = (questions.len() * times) as f64;
        (start.elapsed_ns() / asked, black_box(named) as f64 / asked)
    }

    /// Returns the times of all four kinds of questions, and the number of runs reported per absent key.
    fn measure(&self, config: &Config, data: &Data, runs: u64) -> (Ask, f64) {
        let pages = self.filters.iter().map(|(filter, _)| filter.pages()).sum::<u64>().max(1);
        let near = if pages <= NEAR_PAGES { u64::MAX } else { u64::MAX / pages * NEAR_PAGES };
        let copies = self.copies[0].len() as u64 / self.filters[0].1.len().max(1) as u64;
        let few = config.questions.div_ceil(16);
        let present = |limit: u64, count: usize| data.present(limit, count, runs);
        let absent = |limit: u64, count: usize| data.absent(limit, count);
        let ask = Ask {
            present_near: self.time(&present(near, few), 16, 1).0,
            absent_near: self.time(&absent(near, few), 16, 1).0,
            present_far: self.time(&present(u64::MAX, config.questions), 1, copies).0,
            absent_far: 0.0,
        };
        let (absent_far, named) = self.time(&absent(u64::MAX, config.questions), 1, copies);
        (Ask { absent_far, ..ask }, named)
    }
}

/// A point in the CPU time of this thread.
struct Moment(f64);

impl Moment {
    /// The CPU time of the thread in nanoseconds, accurate to a few milliseconds. If the system does not report CPU
    /// time, this is the wall-clock time.
    fn now() -> Moment {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
        let ran = ran.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        Moment(ran.unwrap_or_else(|| START.elapsed().as_nanos() as f64))
    }

    fn elapsed_ns(&self) -> f64 {
        Moment::now().0 - self.0
    }
}

/// The run number that marks an absent key.
const ABSENT: u8 = u8::MAX;

/// The hashes of the keys 0, 1, …, where key i is in run i mod R.
struct Data {
    hashes: Vec<u64>,
}

fn hash(i: u64) -> u64 {
    key_hash(&i.to_be_bytes())
}

impl Data {
    fn new(keys: u64) -> Data {
        Data { hashes: (0..keys).map(hash).collect() }
    }

    /// Returns `count` keys as pairs of hash and run. The keys are spread over all keys whose hashes are at most
    /// `limit`.
    fn present(&self, limit: u64, count: usize, runs: u64) -> Vec<(u64, u8)> {
        // If the multiplier shares a factor with the number of keys, some keys are not chosen. This matters only for
        // tiny numbers of keys.
        let spread = (0..self.hashes.len()).map(|i| (i as u64).wrapping_mul(0x9e37_79b1) % self.hashes.len() as u64);
        let all = spread.map(|i| (self.hashes[i as usize], (i % runs) as u8));
        let mut found: Vec<(u64, u8)> = all.filter(|&(hash, _)| hash <= limit).take(count).collect();
        let kept = found.len();
        assert!(kept > 0, "no key among the first pages");
        (kept..count).for_each(|i| found.push(found[i % kept]));
        found
    }

    fn absent(&self, limit: u64, count: usize) -> Vec<(u64, u8)> {
        (0..).map(|i| (hash(1 << 48 | i), ABSENT)).filter(|&(hash, _)| hash <= limit).take(count).collect()
    }

    fn run(&self, run: u64, runs: u64) -> impl Iterator<Item = u64> {
        self.hashes.iter().skip(run as usize).step_by(runs as usize).copied()
    }
}

fn bloom(hashes: impl Iterator<Item = u64>) -> (Bloom, AlignedBuf) {
    let mut builder = BloomBuilder::new();
    hashes.for_each(|hash| builder.add(hash));
    let meta = FilterMeta { pages: builder.pages(), ..FilterMeta::default() };
    (Bloom(meta), builder.build())
}

fn quotient(hashes: impl Iterator<Item = u64>, room: u64) -> (Quotient, AlignedBuf) {
    let mut builder = QuotientBuilder::new().with_room(room);
    hashes.for_each(|hash| builder.add(hash));
    let (meta, buf) = builder.build();
    (Quotient(meta), buf)
}

fn maplet(data: &Data, runs: u64) -> (Maplet, AlignedBuf) {
    let mut builder = MapletBuilder::new((runs - 1) as u8);
    (0..).zip(&data.hashes).for_each(|(i, &hash)| builder.add(hash, (i % runs) as u8));
    let (meta, buf) = builder.build();
    (Maplet(meta), buf)
}

/// Measures each kind of filter alone.
///
/// # Errors
/// If the number of keys is 0.
pub fn alone(config: &Config, keys: u64) -> Result<Vec<Alone>> {
    if keys == 0 {
        return Err("the number of keys must be at least 1".into());
    }
    let data = Data::new(keys);
    Ok(vec![
        one(config, &data, "blocked Bloom", 1, || bloom(data.hashes.iter().copied())),
        one(config, &data, "quotient", 1, || quotient(data.hashes.iter().copied(), 0)),
        one(config, &data, "maplet, 8 runs", 8, || maplet(&data, 8)),
    ])
}

fn one<F: Filter>(config: &Config, data: &Data, name: &str, runs: u64, build: impl Fn() -> (F, AlignedBuf)) -> Alone {
    let keys = data.hashes.len() as u64;
    let start = Moment::now();
    let built = build();
    let build_ns = start.elapsed_ns() / keys as f64;
    let asked = Asked::new(vec![built], config.far_bytes);
    let (ask_ns, rate) = asked.measure(config, data, runs);
    let bits_a_key = asked.bytes() as f64 * 8.0 / keys as f64;
    let (kind, filter) = ("filter".to_owned(), name.to_owned());
    Alone { kind, filter, keys, bytes: asked.bytes(), bits_a_key, rate, build_ns, ask_ns }
}

/// Measures lookups in a node of `runs` runs with `keys` keys in total, for each kind of filter.
///
/// # Errors
/// If `runs` is not 1 to 128, there are fewer keys than runs, or a merge fails.
pub fn node(config: &Config, keys: u64, runs: u64) -> Result<Vec<Node>> {
    if !(1..=128).contains(&runs) || keys < runs {
        return Err(format!(
            "{keys} keys in {runs} runs are not possible: there must be 1 to 128 runs with at least one key each"
        )
        .into());
    }
    let data = Data::new(keys);
    let row =
        |filter: &str, pages_a_lookup: u64, merge_ns: Option<f64>, bytes: u64, (ask_ns, wrong_runs): (Ask, f64)| Node {
            kind: "node".to_owned(),
            filter: filter.to_owned(),
            keys,
            runs,
            bits_a_key: bytes as f64 * 8.0 / keys as f64,
            pages_a_lookup,
            wrong_runs,
            merge_ns,
            ask_ns,
        };
    let mut rows = Vec::new();
    let blooms = Asked::new((0..runs).map(|run| bloom(data.run(run, runs))).collect(), config.far_bytes);
    rows.push(row("blocked Bloom", runs, None, blooms.bytes(), blooms.measure(config, &data, runs)));
    drop(blooms);
    let filters: Vec<_> = (0..runs).map(|run| quotient(data.run(run, runs), keys)).collect();
    let start = Moment::now();
    let merged = merge(&filters)?;
    let merge_ns = start.elapsed_ns() / keys as f64;
    drop(filters);
    let quotients = Asked::new((0..runs).map(|run| quotient(data.run(run, runs), 0)).collect(), config.far_bytes);
    rows.push(row("quotient", runs, None, quotients.bytes(), quotients.measure(config, &data, runs)));
    drop(quotients);
    let maplet = Asked::new(vec![merged], config.far_bytes);
    rows.push(row("maplet", 1, Some(merge_ns), maplet.bytes(), maplet.measure(config, &data, runs)));
    Ok(rows)
}

/// Merges filters into a maplet. The run number in the maplet is the index of the filter.
fn merge(filters: &[(Quotient, AlignedBuf)]) -> Result<(Maplet, AlignedBuf)> {
    let inputs = (0..).zip(filters).map(|(run, (filter, buf))| Input {
        meta: filter.0,
        pages: buf.chunks_exact(PAGE).map(Ok),
        values: vec![Some(run)],
    });
    let mut merge = Merge::new(inputs.collect(), 0)?;
    let mut buf = AlignedBuf::zeroed(merge.meta().pages as usize);
    for page in buf.chunks_exact_mut(PAGE) {
        merge.next_page(page)?;
    }
    Ok((Maplet(merge.meta()), buf))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Config = Config { questions: 20_000, far_bytes: 1 << 20 };

    #[test]
    fn each_filter_has_at_most_its_false_positive_rate() {
        let rows = alone(&SMALL, 30_000).expect("keys");
        let rates: Vec<f64> = rows.iter().map(|row| row.rate).collect();
        assert!(rates[0] < 0.015 && rates[1] < 0.005 && rates[2] < 0.005, "{rates:?}");
        assert!(rows.iter().all(|row| row.bits_a_key > 9.0 && row.build_ns >= 0.0 && row.ask_ns.absent_far >= 0.0));
        assert!(alone(&SMALL, 0).is_err());
    }

    #[test]
    fn a_maplet_reads_one_page_and_reports_few_wrong_runs() {
        for runs in RUNS {
            let rows = node(&SMALL, 40_000, runs).expect("keys");
            assert_eq!(rows.iter().map(|row| row.pages_a_lookup).collect::<Vec<_>>(), [runs, runs, 1]);
            assert!(rows[2].wrong_runs < 0.005 && rows[0].wrong_runs > 0.002 * runs as f64, "{rows:?}");
            assert!(rows[2].merge_ns.is_some());
        }
        assert!(node(&SMALL, 3, 4).is_err() && node(&SMALL, 1 << 10, 129).is_err());
    }
}
