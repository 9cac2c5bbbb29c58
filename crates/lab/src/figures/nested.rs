//! Figures 4 to 9 of 001 §6: the Nested B-tree's fan-out and size of a d-tree, and its insertions and queries against
//! the size of the data.
//!
//! The paper inserts keys in random order with one thread, and then queries 10,000 existing keys. σ (the bytes of a full
//! d-tree), the data and the memory are scaled by the same factor here. As in the paper, the d-tree of the root is in
//! memory: a memtable has σ bytes, but at most a quarter of the memory.
//!
//! Times are per operation. The time of an insertion is the time of the whole load, until all background work is done,
//! divided by the number of insertions.

use pandodb::{BtreeOptions, IndexOptions, NbtreeOptions};

use super::results::{is_ours, rate};
use super::{Answer, Claim, Figure, Judge, Paper, Results, Scale, Step};
use crate::engine::Mode;
use crate::line::Line;
use crate::plot::{Axis, Plot, Series, Style};
use crate::workload::Dist;

/// The number of records of figures 4 and 5: 25 GB.
const RECORDS: u64 = 200_000_000;
/// The number of records of figures 6 to 9: 250 GB.
const MOST_RECORDS: u64 = 2_000_000_000;
const RECORD: f64 = 136.0;
/// The paper's memory as a share of its data: 8 GiB.
const SHARE: f64 = 8.0 * (1u64 << 30) as f64 / (RECORDS as f64 * RECORD);
const LEAST_SHARE: f64 = 8.0 * (1u64 << 30) as f64 / (MOST_RECORDS as f64 * RECORD);
/// The number of queries (§6.1).
const QUERIES: u64 = 10_000;
const FANOUTS: [u64; 7] = [3, 5, 7, 9, 11, 13, 15];
/// The two sizes of a d-tree in figure 4, and the sizes in figure 5, in MB.
const SMALL: u64 = 64;
const LARGE: u64 = 2048;
const SIZES: [u64; 6] = [16, SMALL, 256, 1024, LARGE, 4096];
/// The fan-out in figures 5 to 9.
const BEST: u64 = 3;
/// The divisors of the number of records in figures 6 to 9, smallest data first. The claims are about all records.
const PARTS: [u64; 4] = [8, 4, 2, 1];
/// An engine whose mean insertion takes longer than this is excluded (§6.1).
const MOST_MICROS: f64 = 100.0;

const SCALED: &str = "sigma (at least 24 KiB), memory and data are scaled by the same factor";
const DISK: &str = "the paper has a hard disk and an SSD; here one device, and no seek times of a hard disk";
const ROOT: &str = "a memtable is as large as sigma, but at most a quarter of the memory; every insertion is logged";
const BASIC: &str = "paper mode is the basic version (§3), without filters; the paper measures the final version (§5)";
const OTHERS: &str = "bLSM is not to be had, and TokuDB is unmaintained: neither is built here; engines with more than \
                      100 µs an insertion are excluded (§6.1)";
const FEW_SIZES: &str =
    "the paper's sizes of the data are in its plot only; here an eighth, a quarter, a half and all of it";

/// Figure 4: fan-out.
pub(super) static F4: Figure = Figure {
    id: "001-4",
    title: "Nested B-tree: mean query and insertion by fan-out",
    source: "001 §6.2, fig. 4",
    setup: "200 M rows of 8 + 128 B, sigma 64 MB and 2 GB, 10,000 queries, 8 GB of memory, hard disk",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: 8,
    value_len: 128,
    missing: &[SCALED, DISK, ROOT, BASIC],
    needs_device: false,
    claims: &[
        Claim {
            what: "small sigma: time of a query, fan-out 15 / fan-out 3",
            paper: Paper::AtMost(1.0),
            unit: "×",
            from: "§6.2: decreases",
            judge: Judge::Less,
            measure: |r| by_fanout(r, SMALL, "c", query),
        },
        Claim {
            what: "large sigma: time of a query, fan-out 15 / fan-out 3",
            paper: Paper::Says("above 1: longer seeks"),
            unit: "×",
            from: "§6.2",
            judge: Judge::Machine,
            measure: |r| by_fanout(r, LARGE, "c", query),
        },
        Claim {
            what: "small sigma: time of an insertion, fan-out 15 / fan-out 3",
            paper: Paper::AtLeast(1.0),
            unit: "×",
            from: "§6.2: increases",
            judge: Judge::More,
            measure: |r| by_fanout(r, SMALL, "load", insertion),
        },
        Claim {
            what: "large sigma: time of an insertion, fan-out 15 / fan-out 3",
            paper: Paper::AtLeast(1.0),
            unit: "×",
            from: "§6.2: increases",
            judge: Judge::More,
            measure: |r| by_fanout(r, LARGE, "load", insertion),
        },
        levels("small sigma: levels at fan-out 3", 8.0, |r| level(r, BEST, SMALL)),
        levels("small sigma: levels at fan-out 15", 4.0, |r| level(r, 15, SMALL)),
        levels("large sigma: levels at fan-out 3", 4.0, |r| level(r, BEST, LARGE)),
        levels("large sigma: levels at fan-out 15", 3.0, |r| level(r, 15, LARGE)),
    ],
    steps: |figure, scale| {
        let sizes = [SMALL, LARGE].into_iter();
        sizes.flat_map(|size| FANOUTS.map(|fanout| nested(figure, scale, fanout, size, "load,c"))).collect()
    },
    plots: |r| {
        let curve = |size: u64, workload: &'static str, value: fn(&Line) -> f64| {
            let point = |fanout: &u64| Some((*fanout as f64, value(of(r, *fanout, size, workload).ok()?)));
            let name = format!("sigma {size} MB in the paper");
            Series::new(name, Style::Line, FANOUTS.iter().filter_map(point).collect())
        };
        let plot = |what, workload, value| {
            let axes = (Axis::linear("fan-out", ""), Axis::linear(what, "s"));
            Plot::new(r.figure.title, axes.0, axes.1)
                .with(curve(SMALL, workload, value))
                .with(curve(LARGE, workload, value))
        };
        vec![
            ("query", plot("seconds a query", "c", query as fn(&Line) -> f64)),
            ("insertion", plot("seconds an insertion", "load", insertion)),
        ]
    },
};

/// Figure 5: size of a d-tree.
pub(super) static F5: Figure = Figure {
    id: "001-5",
    title: "Nested B-tree: mean query and insertion by size of a d-tree",
    source: "001 §6.2, fig. 5",
    setup: "200 M rows of 8 + 128 B, fan-out 3, 10,000 queries, 8 GB of memory, hard disk",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: 8,
    value_len: 128,
    missing: &[SCALED, DISK, ROOT, BASIC, "no claim about the paper's minimum at 16 MB, the size of its disk's cache"],
    needs_device: false,
    claims: &[
        Claim {
            what: "time of an insertion, sigma 2 GB / 64 MB",
            paper: Paper::AtMost(1.0),
            unit: "×",
            from: "§6.2: improves",
            judge: Judge::Less,
            measure: |r| Ok(insertion(of(r, BEST, LARGE, "load")?) / insertion(of(r, BEST, SMALL, "load")?)),
        },
        Claim {
            what: "time of a query, sigma 1 GB / 64 MB",
            paper: Paper::Says("above 1"),
            unit: "×",
            from: "§6.2: worsens, until sigma is a large part of the data",
            judge: Judge::Machine,
            measure: |r| Ok(query(of(r, BEST, 1024, "c")?) / query(of(r, BEST, SMALL, "c")?)),
        },
    ],
    steps: |figure, scale| SIZES.iter().map(|size| nested(figure, scale, BEST, *size, "load,c")).collect(),
    plots: |r| {
        let plot = |what, workload: &'static str, value: fn(&Line) -> f64| {
            let point = |size: &u64| Some((*size as f64 * 1e6, value(of(r, BEST, *size, workload).ok()?)));
            let series = Series::new("fan-out 3", Style::Line, SIZES.iter().filter_map(point).collect());
            Plot::new(r.figure.title, Axis::log("sigma in the paper", "B"), Axis::linear(what, "s")).with(series)
        };
        vec![
            ("query", plot("seconds a query", "c", query)),
            ("insertion", plot("seconds an insertion", "load", insertion)),
        ]
    },
};

/// Figure 6: mean insertion by size of the data.
pub(super) static F6: Figure = Figure {
    id: "001-6",
    title: "Mean insertion by size of the data",
    source: "001 §6.3, fig. 6",
    claims: &[
        Claim {
            what: "time of an insertion, RocksDB / Nested B-tree",
            paper: Paper::AtLeast(1.0),
            unit: "×",
            from: "§6.3: the Nested B-tree's is the lowest",
            judge: Judge::More,
            measure: |r| by_nested(r, "rocksdb", "load", insertion),
        },
        Claim {
            what: "time of an insertion, LevelDB / Nested B-tree",
            paper: Paper::AtLeast(1.0),
            unit: "×",
            from: "§6.3: the Nested B-tree's is the lowest",
            judge: Judge::More,
            measure: |r| by_nested(r, "leveldb", "load", insertion),
        },
        Claim {
            what: "time of an insertion, stbe / Nested B-tree",
            paper: Paper::Says("not in the paper"),
            unit: "×",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| by_nested(r, "stbe", "load", insertion),
        },
        Claim {
            what: "bytes of filters and inner nodes / bytes of data",
            paper: Paper::Is(3.3 / 250.0 * 100.0),
            unit: "%",
            from: "§6.2: 2.3 and 1 GB of 250 GB",
            judge: Judge::Less,
            measure: |r| {
                let line = all_of(r, "nbtree", "load")?;
                let bytes = line.inside.gauges.get("search_bytes").ok_or("the bytes of filters are not known")?;
                Ok(bytes / (line.asked.records as f64 * RECORD) * 100.0)
            },
        },
    ],
    plots: |r| vec![("insertion", by_data(r, "seconds an insertion", "load", insertion))],
    ..BY_DATA
};

/// Figure 7: greatest insertion by size of the data.
pub(super) static F7: Figure = Figure {
    id: "001-7",
    title: "Longest insertion by size of the data",
    source: "001 §6.3, fig. 7",
    claims: &[
        Claim {
            what: "longest insertion",
            paper: Paper::AtMost(1e-4),
            unit: "s",
            from: "§6.3: 1000 times less than the others' 0.2 s and more",
            judge: Judge::Machine,
            measure: |r| all_of(r, "nbtree", "load").map(longest),
        },
        Claim {
            what: "an idle thread's longest oversleep meanwhile",
            paper: Paper::Says("not in the paper"),
            unit: "s",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| all_of(r, "nbtree", "load").map(|line| line.control_max_us * 1e-6),
        },
        Claim {
            what: "longest insertion, RocksDB / Nested B-tree",
            paper: Paper::AtLeast(1000.0),
            unit: "×",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| by_nested(r, "rocksdb", "load", longest),
        },
        Claim {
            what: "longest insertion, LevelDB / Nested B-tree",
            paper: Paper::AtLeast(1000.0),
            unit: "×",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| by_nested(r, "leveldb", "load", longest),
        },
    ],
    plots: |r| vec![("insertion", by_data(r, "seconds of the longest insertion", "load", longest))],
    ..BY_DATA
};

/// Figure 8: mean query by size of the data.
pub(super) static F8: Figure = Figure {
    id: "001-8",
    title: "Mean query by size of the data",
    source: "001 §6.3, fig. 8",
    claims: &[
        Claim {
            what: "time of a query, Nested B-tree / bulk-loaded B+-tree",
            paper: Paper::Says("almost as low"),
            unit: "×",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| Ok(query(all_of(r, "nbtree", "c")?) / query(all_of(r, "btree", "c")?)),
        },
        Claim {
            what: "leaves read a query",
            paper: Paper::Is(1.0),
            unit: "",
            from: "§6.2: most queries perform one disk access",
            judge: Judge::Machine,
            measure: |r| {
                let line = all_of(r, "nbtree", "c")?;
                let leaves = line.inside.counters.get("leaves").ok_or("the reads of leaves are not known")?;
                Ok(*leaves as f64 / line.ops.max(1) as f64)
            },
        },
        Claim {
            what: "time of a query, RocksDB / Nested B-tree",
            paper: Paper::AtLeast(1.5),
            unit: "×",
            from: "§6.3: 1.5 times",
            judge: Judge::More,
            measure: |r| by_nested(r, "rocksdb", "c", query),
        },
        Claim {
            what: "time of a query, LevelDB / Nested B-tree",
            paper: Paper::AtLeast(4.0),
            unit: "×",
            from: "§6.3: 4 times",
            judge: Judge::More,
            measure: |r| by_nested(r, "leveldb", "c", query),
        },
    ],
    steps: |figure, scale| engines(figure, scale, true),
    plots: |r| vec![("query", by_data(r, "seconds a query", "c", query))],
    ..BY_DATA
};

/// Figure 9: longest query by size of the data.
pub(super) static F9: Figure = Figure {
    id: "001-9",
    title: "Longest query by size of the data",
    source: "001 §6.3, fig. 9",
    claims: &[
        Claim {
            what: "longest query, Nested B-tree / bulk-loaded B+-tree",
            paper: Paper::Says("inconclusive"),
            unit: "×",
            from: "§6.3",
            judge: Judge::Machine,
            measure: |r| Ok(longest(all_of(r, "nbtree", "c")?) / longest(all_of(r, "btree", "c")?)),
        },
        Claim {
            what: "longest query, RocksDB / Nested B-tree",
            paper: Paper::Says("above 1"),
            unit: "×",
            from: "§6.3: RocksDB's is the worst",
            judge: Judge::Machine,
            measure: |r| by_nested(r, "rocksdb", "c", longest),
        },
    ],
    steps: |figure, scale| engines(figure, scale, true),
    plots: |r| vec![("query", by_data(r, "seconds of the longest query", "c", longest))],
    ..BY_DATA
};

/// What figures 6 to 9 have in common.
const BY_DATA: Figure = Figure {
    id: "",
    title: "",
    source: "",
    setup: "up to 2,000 M rows of 8 + 128 B, fan-out 3, sigma 2 GB, 10,000 queries, 8 GB of memory, hard disk and SSD",
    paper_records: MOST_RECORDS,
    memory_share: LEAST_SHARE,
    key_len: 8,
    value_len: 128,
    missing: &[SCALED, DISK, ROOT, BASIC, OTHERS, FEW_SIZES],
    needs_device: false,
    claims: &[],
    steps: |figure, scale| engines(figure, scale, false),
    plots: |_| Vec::new(),
};

const fn levels(what: &'static str, paper: f64, measure: fn(&Results) -> Answer) -> Claim {
    Claim { what, paper: Paper::Is(paper), unit: "", from: "§6.2", judge: Judge::Machine, measure }
}

/// Bytes of a d-tree that has `size` MB in the paper.
fn sigma(figure: &Figure, scale: &Scale, size: u64) -> u64 {
    let share = scale.records(figure) as f64 / figure.paper_records as f64;
    ((size as f64 * 1e6 * share) as u64).max(24 << 10)
}

fn index(figure: &Figure, scale: &Scale, fanout: u64, size: u64) -> IndexOptions {
    let kib = sigma(figure, scale, size).div_ceil(1024);
    NbtreeOptions::default().fanout(fanout).dtree_kib(kib).into()
}

/// A step with the Nested B-tree. The memtable has the size of the root's d-tree, as far as the memory permits.
fn nested(figure: &Figure, scale: &Scale, fanout: u64, size: u64, workloads: &str) -> Step {
    let mut step = common(figure, scale, workloads);
    let memtable = sigma(figure, scale, size).min(scale.memory(figure) as u64 / 4);
    step.memtable_bytes = Some(memtable as usize);
    step.index = index(figure, scale, fanout, size);
    step
}

/// A step with one thread, uniform queries and the default index.
fn common(figure: &Figure, scale: &Scale, workloads: &str) -> Step {
    let mut step = scale.step(figure, workloads, 1);
    step.plan.dist = Some(Dist::Uniform);
    step.plan.ops = Some(QUERIES.min(step.plan.records));
    step
}

/// A step for each size of the data and each index.
fn engines(figure: &Figure, scale: &Scale, with_queries: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in PARTS {
        let workloads = if with_queries { "load,c" } else { "load" };
        let mut all = vec![nested(figure, scale, BEST, LARGE, workloads), common(figure, scale, workloads)];
        if with_queries {
            let mut bulk = common(figure, scale, "load-bulk,c");
            bulk.index = BtreeOptions::default().into();
            // A B+-tree has one mode only.
            bulk.plan.setup.mode = Mode::Product;
            all.push(bulk);
        }
        for mut step in all {
            step.plan.records = records_of(figure, scale, part);
            step.plan.ops = step.plan.ops.map(|ops| ops.min(step.plan.records));
            steps.push(step);
        }
    }
    steps
}

/// Mean seconds of an insertion, until all background work is done.
fn insertion(line: &Line) -> f64 {
    1.0 / rate(line)
}

/// Mean seconds of a query.
fn query(line: &Line) -> f64 {
    1.0 / line.ops_per_s
}

/// Seconds of the longest operation.
fn longest(line: &Line) -> f64 {
    line.latency.max_us * 1e-6
}

/// The line of the Nested B-tree with this fan-out and size of a d-tree.
fn of<'a>(r: &'a Results, fanout: u64, size: u64, workload: &str) -> Result<&'a Line, String> {
    let index = index(r.figure, &r.scale, fanout, size).to_string();
    let is = |line: &Line| is_ours(line) && line.index == index && line.workload == workload;
    r.median("pando-nbtree", |line| is(line) && line.matched.is_empty())
}

/// A value at the greatest fan-out, divided by the value at the smallest.
fn by_fanout(r: &Results, size: u64, workload: &str, value: fn(&Line) -> f64) -> Answer {
    Ok(value(of(r, FANOUTS[FANOUTS.len() - 1], size, workload)?) / value(of(r, FANOUTS[0], size, workload)?))
}

/// The number of levels after the load.
fn level(r: &Results, fanout: u64, size: u64) -> Answer {
    let levels = of(r, fanout, size, "load")?.inside.gauges.get("levels");
    levels.copied().ok_or_else(|| "the levels are not known".to_owned())
}

/// The name of a line without the options of its index.
fn who(line: &Line) -> &str {
    if is_ours(line) { line.index.split(':').next().unwrap_or_default() } else { &line.engine }
}

/// The line of an index or a rival with all the data.
fn all_of<'a>(r: &'a Results, name: &str, workload: &str) -> Result<&'a Line, String> {
    part_of(r, name, workload, 1)
}

/// The number of records of figures 6 to 9, divided by `part`.
fn records_of(figure: &Figure, scale: &Scale, part: u64) -> u64 {
    (scale.records(figure) / part).max(1)
}

/// The line of an index or a rival with all the data divided by `part`. It is the line with the median rate if there are
/// several: a `btree` is measured beside both modes. Lines with a matched memory budget do not count.
fn part_of<'a>(r: &'a Results, name: &str, workload: &str, part: u64) -> Result<&'a Line, String> {
    let records = records_of(r.figure, &r.scale, part);
    let title = if ["btree", "nbtree", "stbe"].contains(&name) { format!("pando-{name}") } else { name.to_owned() };
    let is = |line: &Line| who(line) == name && line.workload == workload && line.asked.records == records;
    r.median(&title, |line| is(line) && line.matched.is_empty())
}

/// A value of another engine, divided by the Nested B-tree's. Engines with slow insertions are excluded.
fn by_nested(r: &Results, name: &str, workload: &str, value: fn(&Line) -> f64) -> Answer {
    let other = all_of(r, name, workload)?;
    if all_of(r, name, "load").is_ok_and(is_excluded) {
        return Err("excluded: more than 100 µs an insertion (§6.1)".to_owned());
    }
    Ok(value(other) / value(all_of(r, "nbtree", workload)?))
}

fn is_excluded(line: &Line) -> bool {
    line.workload == "load" && insertion(line) * 1e6 > MOST_MICROS
}

/// A curve for each engine over the size of the data.
fn by_data(r: &Results, what: &str, workload: &str, value: fn(&Line) -> f64) -> Plot {
    let mut plot = Plot::new(r.figure.title, Axis::log("bytes of data", "B"), Axis::log(what, "s"));
    let mut names: Vec<&str> = r.lines.iter().map(who).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let line = |part: u64| part_of(r, name, workload, part).ok().filter(|line| !is_excluded(line));
        let point = |part| line(part).map(|line| (line.asked.records as f64 * RECORD, value(line)));
        let points: Vec<(f64, f64)> = PARTS.into_iter().filter_map(point).collect();
        if !points.is_empty() {
            let name = if name == "btree" { "btree, bulk-loaded" } else { name };
            plot = plot.with(Series::new(name, Style::Line, points));
        }
    }
    plot
}
