//! The claims about the costs of the trees of pages, `btree` and `betree`, with their constants.
//!
//! The symbols are: N records of r bytes; memtables of m bytes; leaves of P bytes; nodes of B slots of 128 bytes each;
//! ε; and F = max(4, B^ε) children of a node. A `btree` has ε = 1 and nodes of one page. So the formulas of the source
//! become
//!
//! ```text
//!   000 §4.2, Table 4.1        in nodes a record                  here, in bytes a byte of records
//!   inserts of a Bε-tree       log_B N / (ε·B^(1−ε))              F·log_F(N/m)
//!   inserts of a B-tree        log_B N                            Σ over levels: pages that a memtable changes · P / m
//!   lookups                    log_B N / ε = log_F N              pages on a path
//!   ranges                     log_B N / ε + k/B                  k·r bytes of leaves, and a path
//!   the worst write            log_B N / ε                        node bytes · log_F N
//! ```
//!
//! Reasons for the formulas and the constants:
//! * *B^(1−ε) slots move at a time*, because a node passes on the largest blocks of its buffer. This block has at least
//!   B/F = B^(1−ε) slots. A node has 128·B bytes, so a level costs 128·B / (128·B/F) = F bytes for each byte that moves.
//! * *N/m instead of N*: the memtable is the buffer of the root. The log₂ of N starts to count above it.
//! * *insert/log of `betree`*: c is in 0.25 … 1.5. At most: a visited node is written with two copies of its inner page
//!   and of the inner page of its buffer, which together are at most half of a node of 32 KiB. At least: the largest
//!   block has two to three times the bytes of the average block, since all blocks grow between two flushes of a child;
//!   and the root passes on m/F bytes, which is more than B/F slots.
//! * *insert/log of `btree`*: M = m/(r + 40) messages at random keys change L·(1 − (1 − 1/L)^M) of L pages (Cardenas 1975).
//!   Leaves are written once and inner pages twice. The sum is over all memtables of the load. c is in 0.5 … 1.5: a leaf
//!   takes only the pages of 4 KiB that its rows need, and a memtable has fewer rows than m/r, because a row also takes
//!   the memory of its links.
//! * *Pages are ln 2 = 69 % full* after random inserts (Yao 1978), so F·ln 2 is the fan-out of paths. Only in the worst
//!   case are they half full. A reference to a child takes about 30 bytes of an inner page.
//! * *Lookups*: a lookup requests the inner page, the inner page of the buffer and a leaf of the buffer at each level
//!   with buffers, and two pages below these. The requests are counted, because the bound of the source does not depend
//!   on the size of the memory. The number of levels is an integer, so c is in 0.6 … 1.4. The reads that miss the pool
//!   of the memory budget are judged at the greatest size only, because at other sizes the pool has more levels.
//! * *Ranges*: a scan reads leaves that are 69 % full, and twice as many bytes because the length of the read-ahead
//!   doubles. For each byte of leaves it reads at most 1/(F − 1) bytes of buffers above, and pages at both ends of each
//!   level. Leaves that were written by different memtables are not neighbours in the file, so each of them may need a
//!   seek. In a `btree` the leaves are less than 69 % full near the end of a load, so c is up to 1.5.
//! * *The worst write*: the writer pays for background work in steps of 16 KiB, and a step may close one node on each
//!   level. It reads and writes both (a factor of 2), and may exceed the step by one node (another factor of 2).
//!   `insert/greatest` counts all bytes, `insert/greatest-job` leaves out those of checkpoints.
//! * *Checkpoints* write the changed nodes of the map of pages twice, the superblock and the catalogue. The bound is that
//!   of a map whose nodes have up to m/1024 extents. Nodes with many short extents are bitmaps of many more pages, so the
//!   ratio falls.

use super::super::check::{Claim, Slope};
use super::super::measure::{Config, Point};
use super::{Rule, SPILLED, TOLERANCE, claim, rule, size_of};
use crate::theory::measure::BLOCKS;

/// The bytes of a slot, by which the options of `betree` define ε.
const SLOT_BYTES: f64 = 128.0;
/// The fewest children of a node.
const FEWEST_CHILDREN: f64 = 4.0;
/// A page has at most one child for this many bytes of a memtable.
const MEMTABLE_BYTES_PER_CHILD: f64 = 1024.0;
/// The bytes of a reference to a child with its separator. Chosen from the measured number of children of a page.
const CHILD_BYTES: f64 = 30.0;
/// The part of a page that is full on average after random inserts (Yao 1978).
const FILL: f64 = std::f64::consts::LN_2;
/// The memory that a record takes in a memtable beside its key and value. An estimate, chosen so that the ratio of
/// `insert/log` at small N, where whole trees are rewritten, is that at large N; it was not counted in the memtable.
const LINK_BYTES: f64 = 40.0;
/// The unit of background work in which a writer pays.
const STEP_BYTES: f64 = (16 << 10) as f64;
/// A block of the device.
const BLOCK_BYTES: f64 = 4096.0;
/// The bytes of a memtable for each entry in a node of the map of pages, and the most entries.
const MEMTABLE_BYTES_PER_EXTENT: f64 = 1024.0;
const MOST_EXTENTS: f64 = 256.0;

/// The sizes of a tree.
#[derive(Clone, Debug)]
struct Tree {
    has_buffers: bool,
    /// P, the bytes of a leaf.
    page: f64,
    /// Bytes of a node.
    node: f64,
    /// F, the most children of a node.
    children: f64,
    /// r, the bytes of a record.
    record: f64,
    /// m, the bytes of a memtable.
    memtable: f64,
}

impl Tree {
    fn of(config: &Config) -> Tree {
        let value = |name: &str| {
            let text = config.index.value(name).expect("the type has the option");
            text.parse::<f64>().expect("the option is a number")
        };
        let (record, memtable) = ((config.key_len + config.value_len) as f64, config.memtable_bytes as f64);
        let (page, most_children) = (value("page_kib") * 1024.0, memtable / MEMTABLE_BYTES_PER_CHILD);
        if config.index.kind().name() == "btree" {
            let children = (page / CHILD_BYTES).min(most_children);
            return Tree { has_buffers: false, page, node: page, children, record, memtable };
        }
        let (node, epsilon) = (value("node_kib") * 1024.0, value("epsilon") / 100.0);
        let children = (node / SLOT_BYTES).powf(epsilon).round().min(most_children).max(FEWEST_CHILDREN);
        Tree { has_buffers: true, page: page.min(node), node, children, record, memtable }
    }

    /// M, the number of records in a full memtable.
    fn messages(&self) -> f64 {
        self.memtable / (self.record + LINK_BYTES)
    }

    /// The fan-out of paths, whose nodes are 69 % full.
    fn fan_out(&self) -> f64 {
        (FILL * self.children).max(2.0)
    }

    /// The number of leaves for this number of bytes of records.
    fn leaves(&self, bytes: f64) -> f64 {
        (bytes / (FILL * self.page)).max(1.0)
    }

    /// The bytes that a load writes for each byte of records, by the formulas of the module.
    fn writes(&self, bytes: f64) -> f64 {
        if self.has_buffers {
            return 1.0 + self.children * (bytes / self.memtable).log(self.children).max(0.0);
        }
        let messages = self.messages();
        self.mean_over_load(bytes, &|loaded| {
            let (mut pages, mut sum, mut copies) = (self.leaves(loaded), 0.0, 1.0);
            loop {
                sum += copies * changed(pages, messages) * self.page;
                if pages <= 1.0 {
                    return sum / (messages * self.record);
                }
                (pages, copies) = ((pages / self.fan_out()).max(1.0), 2.0);
            }
        })
    }

    /// The mean of a cost over all memtables of a load.
    fn mean_over_load(&self, bytes: f64, cost: &dyn Fn(f64) -> f64) -> f64 {
        let memtable = self.messages() * self.record;
        let memtables = (bytes / memtable).ceil().max(1.0) as u64;
        (1..=memtables).map(|i| cost(i as f64 * memtable)).sum::<f64>() / memtables as f64
    }

    /// The bytes that one checkpoint writes after a memtable.
    fn checkpoint(&self, loaded: f64) -> f64 {
        let extents = (self.memtable / MEMTABLE_BYTES_PER_EXTENT).min(MOST_EXTENTS);
        let nodes = (self.leaves(loaded) / (FILL * extents)).max(1.0);
        // A message of a memtable changes at most one leaf, and so removes one extent of the map and adds one.
        let nodes = 1.0 + changed(nodes, 2.0 * self.messages());
        // The superblock and the catalogue are a block each.
        2.0 * BLOCK_BYTES * nodes + 2.0 * BLOCK_BYTES
    }

    /// The pages that a lookup requests: three on each level with buffers and one on each level of a B-tree, and those
    /// below.
    fn path(&self, bytes: f64) -> f64 {
        if self.has_buffers {
            2.0 + 3.0 * (bytes / self.node).log(self.fan_out()).max(0.0)
        } else {
            1.0 + self.leaves(bytes).log(self.fan_out()).max(0.0).ceil()
        }
    }

    /// The nodes on a path: log_B N / ε, where N counts nodes.
    fn height(&self, bytes: f64) -> f64 {
        1.0 + (bytes / (FILL * self.node)).max(1.0).log(self.fan_out())
    }

    /// The bytes that one step of background work reads and writes.
    fn step(&self, bytes: f64) -> f64 {
        if self.has_buffers {
            return STEP_BYTES + self.node * self.height(bytes);
        }
        // A step visits leaves in key order, which are a memtable-th part of the tree apart.
        let (visits, messages) = (STEP_BYTES / (FILL * self.page) + 1.0, self.messages());
        let (mut pages, mut sum) = (self.leaves(bytes), 2.0 * visits);
        while pages > 1.0 {
            pages = (pages / self.fan_out()).max(1.0);
            sum += 3.0 * visits.min(1.0 + visits * pages / messages);
        }
        sum * self.page
    }

    /// The part of the leaves of a B-tree that do not follow the leaf before them in the file. A memtable writes the leaves
    /// that it changes next to each other. If it changes the part q of all leaves, two neighbours were last written by the
    /// same memtable with the probability Σ q²·(1 − q)^(2i) = q / (2 − q).
    fn scattered(&self, bytes: f64) -> f64 {
        if self.has_buffers {
            return 1.0;
        }
        let leaves = self.leaves(bytes);
        let q = changed(leaves, self.messages()) / leaves;
        1.0 - q / (2.0 - q)
    }

    /// The bytes of leaves that hold a scan of `bytes` bytes of records, with the buffers above them.
    fn scanned(&self, bytes: f64) -> f64 {
        let buffers = if self.has_buffers { 1.0 / (self.children - 1.0) } else { 0.0 };
        bytes / FILL * (1.0 + buffers)
    }
}

/// The expected number of pages that `messages` messages at random keys change, of `pages` pages.
fn changed(pages: f64, messages: f64) -> f64 {
    if pages <= 1.0 { 1.0 } else { pages * (1.0 - (1.0 - 1.0 / pages).powf(messages)) }
}

/// All claims about trees of pages.
pub(super) fn claims(config: &Config) -> Vec<(Claim, Rule)> {
    let tree = Tree::of(config);
    let mut all = vec![inserts(&tree)];
    all.extend(greatest(&tree));
    all.extend(loads(&tree));
    all.extend(lookups(config, &tree));
    all.extend(scans(config, &tree));
    all.push(transfers(config, &tree));
    all
}

fn logical(point: &Point) -> f64 {
    point.load.tree.logical_bytes as f64
}

fn inserts(tree: &Tree) -> (Claim, Rule) {
    let log = tree.clone();
    let (words, band) = if tree.has_buffers {
        (format!("bytes written a byte = Θ(1 + F·log_F(N/m)), F = B^ε = {}", tree.children), (0.25, 1.5))
    } else {
        ("bytes written a byte = Θ(Σ over levels: changed pages·P/m), inner pages twice".to_owned(), (0.5, 1.5))
    };
    (
        claim("insert/log", words, "000 §4.2: log_B N / (ε·B^(1−ε))", band, Slope::Flat(TOLERANCE)),
        rule(move |p| (p.load.run_writes_per_record(), log.writes(logical(p)))),
    )
}

/// The claims about the greatest cost of one insert, and about checkpoints.
fn greatest(tree: &Tree) -> Vec<(Claim, Rule)> {
    let (all, job, checkpoint) = (tree.clone(), tree.clone(), tree.clone());
    let words = if tree.has_buffers {
        "bytes that one insert reads and writes ≤ c·(step + node bytes·nodes on a path), c = 4"
    } else {
        "bytes that one insert reads and writes ≤ c·(leaves of a step and the pages above them), c = 2"
    };
    let most = if tree.has_buffers { 4.0 } else { 2.0 };
    vec![
        (
            claim(
                "insert/greatest",
                words.into(),
                "000 §4.2: the worst write, O(log_B N / ε)",
                (0.0, most),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| (p.load.worst_insert_bytes as f64, all.step(logical(p)))),
        ),
        (
            claim(
                "insert/greatest-job",
                "the same without checkpoints, which a writer does in one piece".into(),
                "000 §4.2: the worst write, O(log_B N / ε)",
                (0.0, most),
                Slope::AtMost(TOLERANCE),
            ),
            Box::new(move |p| p.load.worst_job_bytes.map(|bytes| (bytes as f64, job.step(logical(p))))),
        ),
        (
            claim(
                "insert/checkpoint",
                "bytes of checkpoints a memtable ≤ 2·4 KiB·(2 + changed nodes of the map of pages)".into(),
                "own target: copy on write of a map of extents",
                (0.0, 1.5),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                let memtables = (logical(p) / (checkpoint.messages() * checkpoint.record)).max(1.0);
                let bound = checkpoint.mean_over_load(logical(p), &|loaded| checkpoint.checkpoint(loaded));
                (p.load.checkpoint_bytes as f64 / memtables, bound)
            }),
        ),
    ]
}

/// The claims about space and about a load in key order.
fn loads(tree: &Tree) -> Vec<(Claim, Rule)> {
    let inner = tree.clone();
    let mut all = vec![
        (
            claim(
                "insert/space",
                "bytes of leaves and buffers for a byte of records ≤ 2, since pages are at least half full".into(),
                "000 §5.2.5: a full leaf is divided at its median",
                (0.45, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| {
                let inner = 2 * p.load.tree.search_bytes;
                (p.load.tree.run_bytes.saturating_sub(inner) as f64, 2.0 * logical(p))
            }),
        ),
        (
            claim(
                "load-seq/writes",
                "bytes written in key order ≤ 1.5·bytes of the tree".into(),
                "DAM: O(1/B) a record; the last path is written again for each memtable",
                (0.9, 1.5),
                Slope::AtMost(TOLERANCE),
            ),
            rule(|p| (p.load_seq.run_writes_per_record(), p.load_seq.tree.space())),
        ),
    ];
    if !tree.has_buffers {
        all.push((
            claim(
                "get/search",
                "bytes of inner pages ≤ c·leaves·30 B / ln 2, c = 1.5".into(),
                "000 §4.1: pivots",
                (0.5, 1.5),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| (p.load.tree.search_bytes as f64, inner.leaves(logical(p)) * CHILD_BYTES / FILL)),
        ));
    }
    all
}

fn lookups(config: &Config, tree: &Tree) -> Vec<(Claim, Rule)> {
    let (path, absent, misses) = (tree.clone(), tree.clone(), tree.clone());
    let largest = config.sizes().last().expect("there is a size");
    let source = "000 §4.2: point lookup, O(log_B N / ε)";
    let words = if tree.has_buffers {
        "pages requested a lookup = Θ(2 + 3·log_F(N/node)), F·ln 2 children"
    } else {
        "pages requested a lookup = Θ(1 + ⌈log_F(N/page)⌉), F·ln 2 children"
    };
    // The root, the pages above the leaves, and the leaves have no buffers.
    let unbuffered = match tree.has_buffers {
        true if tree.page < tree.node => 3,
        true => 2,
        false => u32::MAX,
    };
    let mut all = vec![
        (
            claim("get/log", words.into(), source, (0.6, 1.4), Slope::Flat(TOLERANCE)),
            rule(move |p| (p.get.probed, path.path(logical(p)))),
        ),
        (
            claim("get/absent", "the same for absent keys".into(), source, (0.6, 1.4), Slope::Flat(TOLERANCE)),
            rule(move |p| (p.absent.probed, absent.path(logical(p)))),
        ),
        (
            claim(
                "get/misses",
                "reads a lookup ≤ pages on a path, with the pool of the memory budget, at the greatest N".into(),
                source,
                (0.3, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            Box::new(move |p| (p.records == largest).then(|| (p.get_small_pool.reads, misses.path(logical(p))))),
        ),
        (
            claim(
                "get/leaf",
                "leaves read a lookup ≤ 1 + levels with buffers, with the pool of the memory budget, at the greatest N"
                    .into(),
                "000 §4.1: a lookup searches one buffer a level",
                (0.3, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            Box::new(move |p| {
                let buffered = f64::from(p.load.tree.levels.saturating_sub(unbuffered));
                (p.records == largest).then_some((p.get_small_pool.leaf, 1.0 + buffered))
            }),
        ),
    ];
    if !tree.has_buffers {
        all.push((
            claim(
                "get/inner",
                "inner pages read a lookup ≤ 0.02, in a pool of twice what they take, at the greatest N".into(),
                "000 §4.1: inner nodes are in memory",
                (0.0, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            Box::new(move |p| (p.records == largest).then_some((p.get.inner, 0.02))),
        ));
    }
    all
}

fn scans(config: &Config, tree: &Tree) -> Vec<(Claim, Rule)> {
    let (bytes, seeks, k) = (tree.clone(), tree.clone(), config.scan_len as f64);
    let ends = |tree: &Tree, p: &Point| 2.0 * tree.path(logical(p));
    vec![
        (
            claim(
                "scan/bytes",
                format!("bytes a scan of k = {k} records ≤ 2·k·r/ln 2·(1 + 1/(F − 1)) + 2·pages on a path"),
                "000 §4.2: range lookup, O(log_B N / ε + k/B)",
                (0.2, 1.0),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                let bound = 2.0 * bytes.scanned(k * bytes.record) + ends(&bytes, p) * bytes.page;
                (p.scan.bytes, bound)
            }),
        ),
        (
            claim(
                "scan/seeks",
                format!("seeks a scan of k = {k} records ≤ scattered leaves of the range + 2·pages on a path"),
                "000 §4.2: range lookup, O(log_B N / ε + k/B)",
                (0.0, if tree.has_buffers { 1.0 } else { 1.5 }),
                Slope::AtMost(TOLERANCE),
            ),
            rule(move |p| {
                let leaves = seeks.scanned(k * seeks.record) / seeks.page;
                (p.scan.seeks, leaves * seeks.scattered(logical(p)) + ends(&seeks, p))
            }),
        ),
    ]
}

/// The claim about the block transfers of a load, in blocks of 4 KiB. Larger blocks are not judged, because the memory
/// of the model would have only a few of them.
fn transfers(config: &Config, tree: &Tree) -> (Claim, Rule) {
    let (tree, memory) = (tree.clone(), config.memories()[0]);
    let block = BLOCKS[0] as f64;
    let claim = claim(
        &format!("transfers/insert/{}", size_of(BLOCKS[0])),
        "transfers a record ≤ 2·r·(bytes written a byte)·(1/block + 1/P)".into(),
        "DAM; 000 §4.2: log_B N / (ε·B^(1−ε))",
        (0.05, 1.0),
        Slope::AtMost(TOLERANCE),
    );
    let rule: Rule = Box::new(move |p| {
        let bound = 2.0 * tree.record * tree.writes(logical(p)) * (1.0 / block + 1.0 / tree.page);
        let records = (logical(p) / tree.record).max(1.0);
        let is_large = p.load.tree.logical_bytes >= SPILLED * memory.bytes;
        is_large.then(|| (p.load.transfers[0].total() as f64 / records, bound))
    });
    (claim, rule)
}

#[cfg(test)]
mod tests {
    use super::super::super::measure::measure;
    use super::super::{configurations, judge};
    use super::*;

    fn small(index: &str) -> Config {
        Config {
            index: index.parse().expect("it is an index with options"),
            start: 1 << 12,
            doublings: 3,
            memory_budget: 1 << 20,
            memtable_bytes: 64 << 10,
            lookups: 1000,
            scans: 10,
            scan_len: 100,
            ..Config::default()
        }
    }

    fn points(config: &Config) -> Vec<Point> {
        config.sizes().map(|records| measure(config, records).expect("the device is memory")).collect()
    }

    /// Multiplies every cost of every size.
    fn doctored(points: &[Point], factor: impl Fn(&Point) -> f64) -> Vec<Point> {
        let mut doctored = points.to_vec();
        for point in &mut doctored {
            let factor = factor(point);
            let (load, seq) = (&mut point.load, &mut point.load_seq);
            let worst_job = load.worst_job_bytes.as_mut().expect("it is measured for trees");
            let counts = [
                &mut load.packed_bytes,
                &mut load.checkpoint_bytes,
                &mut load.worst_insert_bytes,
                worst_job,
                &mut load.tree.run_bytes,
                &mut load.tree.search_bytes,
                &mut load.transfers[0].reads,
                &mut seq.packed_bytes,
            ];
            counts.into_iter().for_each(|count| *count = (*count as f64 * factor) as u64);
            let costs = [
                &mut point.get.probed,
                &mut point.get.inner,
                &mut point.absent.probed,
                &mut point.get_small_pool.reads,
                &mut point.get_small_pool.leaf,
                &mut point.scan.bytes,
                &mut point.scan.seeks,
            ];
            costs.into_iter().for_each(|cost| *cost = *cost * factor + if factor > 1.0 { 1.0 } else { 0.0 });
        }
        doctored
    }

    #[test]
    fn measurements_pass_and_doctored_ones_fail() {
        let indexes = [
            "btree:page_kib=4",
            "betree:node_kib=16,page_kib=4,epsilon=25",
            "betree:node_kib=16,page_kib=4,epsilon=50",
        ];
        for index in indexes {
            let config = small(index);
            let points = points(&config);
            assert_eq!(points[1], measure(&config, points[1].records).expect("the device is memory"), "{index}");
            let honest = judge(&config, &points);
            // The other claims have constants for larger stores. The number of levels hardly changes in three doublings,
            // so the slope of the lookups is not judged here.
            for name in ["insert/log", "get/log", "get/absent", "get/leaf"] {
                let check = honest.iter().find(|check| check.claim.name == name).expect("there is such a claim");
                let (low, high) = check.claim.ratio_band;
                let in_band = check.points.iter().all(|point| (low..=high).contains(&point.ratio()));
                assert!(in_band && (name.starts_with("get") || check.passes()), "{index}: {check:?}");
            }
            // An engine whose costs grow with N must fail all checks.
            let growing = judge(&config, &doctored(&points, |p| 20.0 * (p.records / config.start) as f64));
            assert_eq!(growing.len(), honest.len());
            for check in growing {
                assert!(!check.passes(), "{index}: the canary was not detected by {}", check.claim.name);
            }
            // Lookups that request nothing, and inserts that write nothing, were not measured.
            let idle = judge(&config, &doctored(&points, |_| 0.0));
            for check in
                idle.iter().filter(|check| ["insert/log", "get/log", "get/absent"].contains(&&*check.claim.name))
            {
                assert!(!check.passes(), "{index}: {} passes without a cost", check.claim.name);
            }
        }
    }

    #[test]
    fn the_formulas_give_values_worked_out_by_hand() {
        let tree = Tree::of(&small("betree:node_kib=32,page_kib=4,epsilon=50"));
        assert!((tree.children - 16.0).abs() < 1e-9, "{tree:?}");
        let memtable = tree.memtable;
        // 256 memtables: two levels of 16 children.
        assert!((tree.writes(256.0 * memtable) - (1.0 + 2.0 * 16.0)).abs() < 1e-9);
        assert!((tree.height(FILL * tree.node * tree.fan_out().powi(3)) - 4.0).abs() < 1e-9);
        assert!((changed(10.0, 1.0) - 1.0).abs() < 1e-9 && (changed(10.0, 1e6) - 10.0).abs() < 1e-9);
        // A smaller ε makes writes cheaper and paths longer.
        let [a, b] = [25, 75].map(|e| Tree::of(&small(&format!("betree:node_kib=32,page_kib=4,epsilon={e}"))));
        let bytes = 2e8;
        assert!(a.writes(bytes) < b.writes(bytes) && a.path(bytes) > b.path(bytes));
        // Almost every message changes a leaf of its own in a large B-tree.
        let btree = Tree::of(&small("btree:page_kib=4"));
        let leaves_only = btree.page / btree.record;
        assert!(btree.writes(1e9) > 0.9 * leaves_only && btree.writes(1e9) < 5.0 * leaves_only);
    }

    #[test]
    fn an_index_without_claims_is_refused() {
        let of = |text: &str| configurations(&text.parse().expect("it is an index"));
        assert_eq!(of("stbe").expect("there are claims").len(), 1);
        assert_eq!(of("btree").expect("there are claims").len(), 3);
        assert_eq!(of("betree").expect("there are claims").len(), 3);
        assert_eq!(of("betree:epsilon=40").expect("there are claims").len(), 1);
        assert!(of("cola").expect_err("there are none").contains("`cola`"));
        assert!(of("stbe:fanout=4").is_err());
    }
}
