//! The claims about the costs of the index `nbtree`, with their constants.
//!
//! The symbols are: N records of r bytes; d-trees of σ bytes, which is the size of a memtable here; at most f children of
//! a node; blocks of B bytes; and s bytes of runs for each byte of records, which covers filters, inner blocks and block
//! ends. The formulas of the source become
//!
//! ```text
//!   001 §4.2, §5.1             in blocks a record                 here, in bytes a byte of records
//!   inserts, mean              f/B · log_f(N/σ)                   s·f·log_f(N/σ); in transfers, s·f·log_f(N/M)
//!   inserts, the worst one     f/B · log_f(N/σ)                   3 times the mean, and some blocks
//!   flushes                    O(f) seeks                         transfers in blocks of 1 MiB, more than σ
//!   lookups without filters    log_B σ · log_f(N/σ)               blocks of the d-trees on a path
//!   lookups with filters       1, and false positives             leaf blocks read
//! ```
//!
//! Reasons for the constants:
//! * *insert/log*: a flush of σ bytes rewrites the d-trees of the children that it reaches. In the source's simulation, c
//!   is between 0.5 and 0.95. It is less here, because data moves to an empty child without being written; and the number
//!   of levels is an integer, while log_f(N/σ) is not. So c is in 0.25 … 0.95.
//! * *height*: a node has between f/2 and f children, and a leaf between σ/2 and σ. So the height is at most
//!   log_{f/2}(2N/σ) + 1, rounded down, because it is an integer.
//! * *get/blocks* (without filters): a lookup requests one block on each level of each d-tree on its path. A d-tree of σ
//!   bytes has two levels of blocks; the root has at most two runs.
//! * *insert/greatest*: a writer does the share of its record in steps of 8 KiB. Checkpoints are prepared in steps. The
//!   constants are those of the test of single writers, which has the reasons (`crates/pandodb/tests/lone_writers.rs`).
//! * *transfers*: the source assumes that the memory holds only the root, so every level costs transfers. Here the memory M
//!   of the model has 8 or 40 σ, and holds the d-trees of the upper levels, whose merges transfer nothing. Of the
//!   1 + log_f(N/σ) levels, 1 + log_f(N/M) cost transfers.
//! * *flush/seeks*: a flush merges a part of the source with each of f children, or one more while it splits some. Each of
//!   these merges reads two places and writes one, and each place may lie in two blocks. Flushes into the upper levels
//!   transfer nothing, as above; each level has as many flushes as any other.
//! * *get/absent*: a lookup asks one filter for each run on its path whose range contains the key. Each filter that is asked
//!   is one requested block. Filters consist of whole blocks, so those of small runs err less often: with 2,000 records, as
//!   in most runs here, a filter has 16 bits a record, and errs for about 0.1 % of the keys. Therefore only the band is
//!   judged, and c is at most 0.25.

use super::super::check::{Claim, Slope};
use super::super::measure::{BLOCKS, Config, Load, Point};
use super::{Rule, SPILLED, TOLERANCE, claim, rule, size_of};

const EXTENT_BYTES: f64 = (128 << 10) as f64;
/// Blocks of 4 KiB that one insert may read and write besides its share.
const MOST_BLOCKS: f64 = 20.0;
/// Bytes of filters and inner blocks per record. A run of σ = 256 KiB has 2,000 records and at least three of these blocks of
/// 4 KiB, with its description. Runs of d-trees may have half of this size, since pieces and memtables end early.
const SEARCH_BYTES: f64 = 8.0;
/// The number of reads in a lookup of an absent key, for each filter that the lookup asks.
const FALSE_POSITIVES: f64 = 0.0125;

/// f of a configuration.
fn fanout(config: &Config) -> f64 {
    let chosen = config.index.chosen().find(|(name, _)| *name == "fanout");
    chosen.and_then(|(_, value)| value.parse().ok()).unwrap_or(8.0)
}

fn has_filters(config: &Config) -> bool {
    !config.index.chosen().any(|(name, value)| name == "filters" && value == "none")
}

/// log_f(N/σ), at least 1, because the first level is written, too.
fn depth(config: &Config, point: &Point) -> f64 {
    depth_beyond(config.memtable_bytes as u64, config, point)
}

/// log_f(N/M) for a memory of `bytes` bytes, at least 1.
fn depth_beyond(bytes: u64, config: &Config, point: &Point) -> f64 {
    (point.load.tree.run_bytes as f64 / bytes as f64).log(fanout(config)).max(1.0)
}

/// Three times the bytes of the work for one record.
fn share_of_one(config: &Config, point: &Point) -> f64 {
    3.0 * (config.key_len + config.value_len) as f64 * fanout(config) * depth(config, point)
}

/// All claims about `nbtree`.
pub(super) fn claims(config: &Config) -> Vec<(Claim, Rule)> {
    let mut all = inserts(config);
    all.extend(worst_insert(config));
    all.extend(lookups(config));
    all.extend(scans(config));
    for (i, block) in BLOCKS.into_iter().enumerate() {
        all.extend(in_blocks(config, i, block));
    }
    all
}

/// Bytes that merges wrote for each byte of records.
fn merged(load: &Load) -> f64 {
    load.compacted_bytes as f64 / load.tree.logical_bytes.max(1) as f64
}

fn inserts(config: &Config) -> Vec<(Claim, Rule)> {
    let (logs, heights, f) = (config.clone(), config.clone(), fanout(config));
    let flushes = config.clone();
    vec![
        (
            claim(
                "insert/log",
                format!("record-writes of merges a record = Θ(s·f·log_f(N/σ)), c in 0.25 … 0.95, f = {f}"),
                "001 §4.2, §5.1: f·log_f(n/σ)/B",
                (0.25, 0.95),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| (merged(&p.load), p.load.packing() * fanout(&logs) * depth(&logs, p))),
        ),
        (
            claim(
                "insert/height",
                "levels ≤ log_{f/2}(2N/σ) + 1, rounded down".into(),
                "001 §3.1.1: at least ⌈f/2⌉ children, leaves of at least σ/2",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                let leaves = 2.0 * p.load.tree.run_bytes as f64 / heights.memtable_bytes as f64;
                let least = (fanout(&heights) / 2.0).ceil();
                (f64::from(p.load.tree.levels), leaves.max(1.0).log(least).floor() + 1.0)
            }),
        ),
        (
            claim(
                "flush/seeks",
                "transfers in blocks of 1 MiB a flush ≤ 6(f+1)·(1 + log_f(N/M))/(1 + log_f(N/σ))".into(),
                "001 §4.1: O(f) seeks a flush with a buffer of Ω(σ)",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            Box::new(move |p: &Point| {
                let i = BLOCKS.len() - 1;
                let memory = flushes.memories()[i].bytes;
                let large = p.load.tree.logical_bytes >= SPILLED * memory;
                let transfers = p.load.transfers[i].total() as f64 / p.load.flushes.max(1) as f64;
                let outside = (1.0 + depth_beyond(memory, &flushes, p)) / (1.0 + depth(&flushes, p));
                large.then_some((transfers, 6.0 * (fanout(&flushes) + 1.0) * outside))
            }),
        ),
        (
            claim(
                "insert/space",
                "bytes of runs for a live byte of records ≤ 1.15·s".into(),
                "own target: d-trees are packed, flushed slices are freed",
                (0.8, 1.15),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| (p.load.tree.space(), p.load.packing())),
        ),
        (
            claim(
                "load-seq/writes",
                "record-writes a record in key order ≤ 1.3, log and checkpoints apart".into(),
                "own target: d-trees that overlap nothing move",
                (0.8, 1.3),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| (p.load_seq.run_writes_per_record(), 1.0)),
        ),
    ]
}

/// The claims about the insert that reads and writes the most bytes.
fn worst_insert(config: &Config) -> Vec<(Claim, Rule)> {
    let config = config.clone();
    vec![(
        claim(
            "insert/greatest",
            format!("bytes that one insert reads and writes ≤ 3r·f·log_f(N/σ) and {MOST_BLOCKS} blocks of 4 KiB"),
            "001 §5.1: deamortization",
            (0.0, 1.0),
            Slope::AtMost(TOLERANCE),
        ),
        rule(move |p| (p.load.worst_insert_bytes as f64, share_of_one(&config, p) + MOST_BLOCKS * 4096.0)),
    )]
}

fn lookups(config: &Config) -> Vec<(Claim, Rule)> {
    if !has_filters(config) {
        let logs = config.clone();
        let words = "blocks requested a lookup = Θ(log_B σ·log_f(N/σ)), without filters, log_B σ = 2".into();
        let claim = claim("get/blocks", words, "001 §3.2.3, §4.2", (0.3, 2.0), Slope::AtMost(TOLERANCE));
        return vec![(claim, rule(move |p| (p.get.probed, 2.0 * (1.0 + depth(&logs, p)))))];
    }
    vec![
        (
            claim(
                "get/leaf",
                "leaves read a lookup ≤ 1 + false positives".into(),
                "001 §5.2: about one d-tree is searched",
                (0.5, 1.02),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| (p.get.leaf, 1.0 + p.absent.leaf)),
        ),
        (
            claim(
                "get/search",
                format!("filters and inner blocks ≤ {SEARCH_BYTES} B a record"),
                "own target: a few blocks a run",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| (p.load.tree.search_bytes as f64 / p.records as f64, SEARCH_BYTES)),
        ),
        (
            claim(
                "get/absent",
                "reads of a lookup of an absent key ≤ 1.25 % of the filters that it asks".into(),
                "001 §5.2; own target: the filters err for 1 %",
                (0.0, 0.25),
                Slope::Any,
            ),
            rule(|p| (p.absent.leaf, FALSE_POSITIVES * p.absent.probed)),
        ),
    ]
}

fn scan_bytes(config: &Config, point: &Point) -> f64 {
    (config.scan_len * (config.key_len + config.value_len)) as f64 * point.load.packing()
}

fn scans(config: &Config) -> Vec<(Claim, Rule)> {
    let (bytes, seeks, k) = (config.clone(), config.clone(), config.scan_len);
    vec![
        (
            claim(
                "scan/bytes",
                format!("blocks of 4 KiB a scan of k = {k} records ≤ 2·k·r·s/B + 2·runs on the path"),
                "own target: d-trees are sequential",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                let runs = p.load.tree.max_runs_on_path as f64;
                (p.scan.bytes / 4096.0, 2.0 * scan_bytes(&bytes, p) / 4096.0 + 2.0 * runs)
            }),
        ),
        (
            claim(
                "scan/seeks",
                format!("seeks a scan of k = {k} records ≤ 2·runs on the path + k·r·s/128 KiB"),
                "own target: d-trees are sequential",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                (p.scan.seeks, 2.0 * p.load.tree.max_runs_on_path as f64 + scan_bytes(&seeks, p) / EXTENT_BYTES)
            }),
        ),
    ]
}

fn in_blocks(config: &Config, i: usize, block: u64) -> Vec<(Claim, Rule)> {
    let size = size_of(block);
    let load = config.clone();
    let record = (config.key_len + config.value_len) as f64;
    let block = block as f64;
    let words = format!("transfers a record ≤ c·2r·s·(1 + f·log_f(N/M))·(1/B + 4/σ), B = {size}, c = 0.95");
    let claim = claim(
        &format!("transfers/insert/{size}"),
        words,
        "001 §4.2: f·log_f(n/σ)/B, and O(f) seeks a flush",
        (0.0, 0.95),
        Slope::AtMost(TOLERANCE),
    );
    let rule: Rule = Box::new(move |p| {
        let (tree, memory) = (&p.load.tree, load.memories()[i].bytes);
        let records = tree.logical_bytes as f64 / record;
        let measured = p.load.transfers[i].total() as f64 / records.max(1.0);
        let writes = p.load.packing() * (1.0 + fanout(&load) * depth_beyond(memory, &load, p));
        let bound = 2.0 * record * writes * (1.0 / block + 4.0 / load.memtable_bytes as f64);
        let large = tree.logical_bytes >= SPILLED * memory;
        large.then_some((measured, bound))
    });
    vec![(claim, rule)]
}
