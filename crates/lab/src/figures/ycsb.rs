//! Figures 3.1, 3.3a, 3.3b, 3.4 and 3.5 of 002 §3.7.2 and §3.7.3: YCSB.
//!
//! The paper uses 4 GiB of memory and inserts 673 M rows (or 84 M rows with values of 1 KiB). It then runs the mixes A
//! to D and F with 160 M operations each, and mix E with 20 M operations. With values of 1 KiB, these numbers are 10 M
//! and 1.3 M. Here, rows, memory and operations are scaled by the same factor. A mix also ends at its time limit.

use super::results::{io_amplification, rate};
use super::{Answer, Claim, Figure, Judge, KEY_LEN, OURS, Paper, Results, Scale, Step};
use crate::line::Line;
use crate::plot::{Axis, Plot, Series, Style};

/// The number of rows of 24 + 100 bytes.
pub(super) const RECORDS: u64 = 673_000_000;
const RECORDS_1K: u64 = 84_000_000;
/// Memory as a share of the data: 4 GiB for 673 M rows.
pub(super) const SHARE: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0 / (673e6 * 124.0);
/// Memory as a share of the data: 4 GiB for 84 M rows.
const SHARE_1K: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0 / (84e6 * 1048.0);
/// The number of operations of a mix, divided by the number of rows.
const MIX_OPS: f64 = 160.0 / 673.0;
const MIX_OPS_1K: f64 = 10.0 / 84.0;
const ORDER: [&str; 7] = ["load", "a", "b", "c", "d", "e", "f"];
/// The memory of figure 3.5 as shares of the data: the paper's 4 GiB, 10 % (the paper's limit in other figures), 20
/// GiB, 22 GiB, 50 %.
const MEMORIES: [(f64, &str); 5] =
    [(SHARE, "5 %"), (0.10, "10 %"), (SHARE * 5.0, "26 %"), (SHARE * 5.5, "28 %"), (0.5, "50 %")];

const NO_PEBBLES: &str = "PebblesDB is unmaintained and not built here; lines of it are used if they are given";
const E_OPS: &str = "E has as many operations as the other mixes, up to its seconds; the paper gives it an eighth";
const AHEAD: &str = "E's share of random 4 KiB reads may be above 100 %: a scan reads more than one page at a time";
const MAYBE_PAPER: &str = "the paper contradicts itself on E: half of RocksDB's rate (§3.7.2), 85 % of it (§3.7.6)";

/// A note on a contradiction between §3.1 and the introduction of the chapter.
const BOTH_RANGES: &str = "§3.1's 6 to 28 times is one range for RocksDB and PebblesDB together; the chapter's opening says 2 to 8 times on \
                           insertions and 1.2 to 2 times on lookups";
/// A note on a difference from the source's own store.
const NO_BACKGROUND: &str = "the source ran without background compaction threads; here there is one";

/// Figure 3.1: load throughput and write amplification.
pub(super) static F3_1: Figure = Figure {
    id: "002-3.1",
    title: "YCSB load: throughput and write amplification",
    source: "002 §3.1, fig. 3.1",
    setup: "673 M insertions of 24 + 100 B in random order, 4 GiB of memory, 32 cores, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[NO_PEBBLES, BOTH_RANGES, NO_BACKGROUND],
    needs_device: false,
    claims: &[
        Claim {
            what: "insertions by RocksDB's",
            paper: Paper::Between(6.0, 28.0),
            unit: "×",
            from: "§3.1",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "load"),
        },
        Claim {
            what: "insertions by PebblesDB's",
            paper: Paper::Between(6.0, 28.0),
            unit: "×",
            from: "§3.1",
            judge: Judge::More,
            measure: |r| r.by_rival("pebblesdb", "load"),
        },
        Claim {
            what: "write amplification by RocksDB's",
            paper: Paper::Is(0.5),
            unit: "×",
            from: "§3.1: almost 2× lower",
            judge: Judge::Less,
            measure: write_by_rocksdb,
        },
        Claim {
            what: "insertions",
            paper: Paper::Between(2.0e6, 2.4e6),
            unit: "/s",
            from: "§3.7.5",
            judge: Judge::Machine,
            measure: |r| Ok(rate(r.of(OURS, "load")?)),
        },
    ],
    steps: |figure, scale| vec![scale.step(figure, "load", scale.many())],
    plots: |results| {
        vec![
            ("throughput", bars(results, "YCSB load", "insertions a second", "/s", &["load"], |_| rate)),
            (
                "write-amplification",
                bars(results, "YCSB load", "write amplification", "", &["load"], |_| |line| line.write_amplification),
            ),
        ]
    },
};

/// Figure 3.3a: throughput of all workloads with values of 100 bytes.
pub(super) static F3_3A: Figure = Figure {
    id: "002-3.3a",
    title: "YCSB throughput, 24 B keys and 100 B values",
    source: "002 §3.7.2, fig. 3.3a",
    setup: "673 M rows of 24 + 100 B, 160 M operations each (E 20 M), 4 GiB of memory, 32 cores, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[NO_PEBBLES, E_OPS, MAYBE_PAPER, AHEAD],
    needs_device: true,
    claims: &[
        Claim {
            what: "load by RocksDB's",
            paper: Paper::Is(10.0),
            unit: "×",
            from: "§3.7.2: almost an order of magnitude",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "load"),
        },
        Claim {
            what: "least of A, B, C, D, F by RocksDB's",
            paper: Paper::Is(1.4),
            unit: "×",
            from: "§3.7.2: 40–150 % faster",
            judge: Judge::More,
            measure: |r| Ok(point_mixes(r)?.into_iter().fold(f64::MAX, f64::min)),
        },
        Claim {
            what: "most of A, B, C, D, F by RocksDB's",
            paper: Paper::Is(2.5),
            unit: "×",
            from: "§3.7.2: 40–150 % faster",
            judge: Judge::More,
            measure: |r| Ok(point_mixes(r)?.into_iter().fold(0.0, f64::max)),
        },
        Claim {
            what: "C by RocksDB's",
            paper: Paper::Between(1.5, 3.0),
            unit: "×",
            from: "§3.1",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "c"),
        },
        Claim {
            what: "E by RocksDB's",
            paper: Paper::Between(0.5, 0.85),
            unit: "×",
            from: "§3.7.2, §3.7.6",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "e"),
        },
        Claim {
            what: "E's reads by the device's random reads",
            paper: Paper::Is(96.0),
            unit: "%",
            from: "§3.7.6",
            judge: Judge::Machine,
            measure: |r| {
                let line = r.of(OURS, "e")?;
                Ok(line.read_bytes_per_op * line.ops_per_s / r.device()?.random_read * 100.0)
            },
        },
    ],
    steps: |figure, scale| vec![mixes(figure, scale, MIX_OPS)],
    plots: throughput,
};

/// Figure 3.3b: throughput of all workloads with values of 1 KiB.
pub(super) static F3_3B: Figure = Figure {
    id: "002-3.3b",
    title: "YCSB throughput, 24 B keys and 1 KiB values",
    source: "002 §3.7.2, fig. 3.3b",
    setup: "84 M rows of 24 B + 1 KiB, 10 M operations each (E 1.3 M), 4 GiB of memory, 32 cores, Optane 905p",
    paper_records: RECORDS_1K,
    memory_share: SHARE_1K,
    key_len: KEY_LEN,
    value_len: 1024,
    missing: &[NO_PEBBLES, E_OPS],
    needs_device: false,
    claims: &[
        Claim {
            what: "load by RocksDB's",
            paper: Paper::Is(10.0),
            unit: "×",
            from: "§3.7.2: almost an order of magnitude",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "load"),
        },
        Claim {
            what: "least of A, B, C, D, F by RocksDB's",
            paper: Paper::Is(1.4),
            unit: "×",
            from: "§3.7.2: 40–150 % faster",
            judge: Judge::More,
            measure: |r| Ok(point_mixes(r)?.into_iter().fold(f64::MAX, f64::min)),
        },
        Claim {
            what: "E by RocksDB's",
            paper: Paper::Is(1.16),
            unit: "×",
            from: "§3.7.6",
            judge: Judge::More,
            measure: |r| r.by_rival("rocksdb", "e"),
        },
    ],
    steps: |figure, scale| vec![mixes(figure, scale, MIX_OPS_1K)],
    plots: throughput,
};

/// Figure 3.4: I/O amplification of the load and of mix C.
pub(super) static F3_4: Figure = Figure {
    id: "002-3.4",
    title: "I/O amplification of YCSB load and C",
    source: "002 §3.7.2, fig. 3.4",
    setup: "673 M rows of 24 + 100 B, C with 160 M lookups, 4 GiB of memory, 32 cores, Optane 905p; iostat",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[
        NO_PEBBLES,
        "iostat: our bytes are those that the engine passes to its files; of a rival, those that the system counts",
    ],
    needs_device: false,
    claims: &[
        Claim {
            what: "write amplification of load by RocksDB's",
            paper: Paper::Is(0.5),
            unit: "×",
            from: "§3.7.2: about ½",
            judge: Judge::Less,
            measure: write_by_rocksdb,
        },
        Claim {
            what: "I/O amplification of load, total",
            paper: Paper::Is(7.5),
            unit: "",
            from: "§3.7.5",
            judge: Judge::Less,
            measure: |r| Ok(io_amplification(r.of(OURS, "load")?)),
        },
        Claim {
            what: "read amplification of C by RocksDB's",
            paper: Paper::AtMost(1.0),
            unit: "×",
            from: "§3.7.5: noticeably lower",
            judge: Judge::Less,
            measure: |r| Ok(io_amplification(r.of(OURS, "c")?) / io_amplification(r.of("rocksdb", "c")?)),
        },
    ],
    steps: |figure, scale| {
        let mut step = scale.step(figure, "load,c", scale.many());
        step.plan.ops = Some(operations(figure, scale, MIX_OPS));
        vec![step]
    },
    plots: |results| {
        let part = |kind: usize| -> fn(&Line) -> f64 {
            match kind {
                0 => |line| line.write_amplification,
                _ => |line| io_amplification(line) - line.write_amplification,
            }
        };
        let title = results.figure.title;
        vec![
            ("write", bars(results, title, "bytes written by bytes of rows", "", &["load"], |_| part(0))),
            ("read", bars(results, title, "bytes read by bytes of rows", "", &["load", "c"], |_| part(1))),
        ]
    },
};

/// Figure 3.5: throughput with different amounts of memory.
pub(super) static F3_5: Figure = Figure {
    id: "002-3.5",
    title: "YCSB throughput by memory",
    source: "002 §3.7.3, fig. 3.5",
    setup: "KVell, not SplinterDB: 673 M rows of 24 + 100 B, 4 to 32 GiB of memory, 32 cores, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[
        "KVell is not measured: its claims are compared with PandoDB's index at the same shares of memory",
        "the sweep sets the memory; --memory-budget is ignored",
        E_OPS,
    ],
    needs_device: false,
    claims: &[
        Claim {
            what: "load at 4 GiB's share (5 %) by that at 50 %",
            paper: Paper::Says("KVell: impossible"),
            unit: "×",
            from: "§3.7.3",
            judge: Judge::More,
            measure: |r| memory_kept(r, "load", MEMORIES[0].0),
        },
        Claim {
            what: "A at 20 GiB's share (26 %) by that at 50 %",
            paper: Paper::Says("KVell: unusable"),
            unit: "×",
            from: "§3.7.3",
            judge: Judge::More,
            measure: |r| memory_kept(r, "a", MEMORIES[2].0),
        },
        Claim {
            what: "A at 22 GiB's share (28 %) by that at 50 %",
            paper: Paper::Says("KVell: starts to drop"),
            unit: "×",
            from: "§3.7.3",
            judge: Judge::More,
            measure: |r| memory_kept(r, "a", MEMORIES[3].0),
        },
        Claim {
            what: "C at 4 GiB's share (5 %) by that at 50 %",
            paper: Paper::Says("KVell: impossible"),
            unit: "×",
            from: "§3.7.3",
            judge: Judge::More,
            measure: |r| memory_kept(r, "c", MEMORIES[0].0),
        },
    ],
    steps: |figure, scale| {
        let step = |share| {
            let mut step = mixes(figure, scale, MIX_OPS);
            step.plan.setup.memory_budget = scale.memory_of(figure, share);
            step
        };
        MEMORIES.iter().map(|(share, _)| step(*share)).collect()
    },
    plots: |results| {
        let x = Axis::named("memory by data", MEMORIES.map(|(_, name)| name));
        let mut plot = Plot::new(results.figure.title, x, Axis::log("operations a second", "/s"));
        for workload in ORDER {
            let at = |line: &Line| {
                let memory = line.asked.memory_budget;
                MEMORIES.iter().position(|(share, _)| memory_at(results, *share) == memory).map(|i| i as f64)
            };
            let points =
                results.points(OURS, |line| (line.workload == workload).then(|| Some((at(line)?, rate(line))))?);
            plot = plot.with(Series::new(format!("{OURS}, {workload}"), Style::Line, points));
        }
        vec![("throughput", plot.note("Not KVell, which the paper's figure shows: our own index."))]
    },
};

/// The load and all mixes.
fn mixes(figure: &Figure, scale: &Scale, ops: f64) -> Step {
    let mut step = scale.step(figure, &ORDER.join(","), scale.many());
    step.plan.ops = Some(operations(figure, scale, ops));
    step
}

fn operations(figure: &Figure, scale: &Scale, share: f64) -> u64 {
    ((scale.records(figure) as f64 * share) as u64).max(1)
}

fn write_by_rocksdb(r: &Results) -> Answer {
    Ok(r.of(OURS, "load")?.write_amplification / r.of("rocksdb", "load")?.write_amplification)
}

/// PandoDB's rates of the mixes A, B, C, D and F, each divided by the rate of RocksDB for the same mix.
fn point_mixes(r: &Results) -> std::result::Result<Vec<f64>, String> {
    ["a", "b", "c", "d", "f"].iter().map(|workload| r.by_rival("rocksdb", workload)).collect()
}

fn memory_at(r: &Results, share: f64) -> u64 {
    r.scale.memory_of(r.figure, share) as u64
}

/// PandoDB's rate at a share of memory, divided by the rate at the largest share.
fn memory_kept(r: &Results, workload: &str, share: f64) -> Answer {
    let at = |share| {
        let memory = memory_at(r, share);
        r.one(OURS, |line| line.workload == workload && line.asked.memory_budget == memory).map(rate)
    };
    Ok(at(share)? / at(MEMORIES[MEMORIES.len() - 1].0)?)
}

fn throughput(results: &Results) -> Vec<(&'static str, Plot)> {
    vec![("throughput", bars(results, results.figure.title, "operations a second", "/s", &ORDER, |_| rate))]
}

/// Bars grouped by workload, one for each engine.
fn bars(
    results: &Results,
    title: &str,
    label: &str,
    unit: &str,
    workloads: &[&str],
    value: impl Fn(&str) -> fn(&Line) -> f64,
) -> Plot {
    let whos = results.whos();
    let mut plot = Plot::new(title, Axis::named("", workloads.iter().copied()), Axis::linear(label, unit));
    for (i, who) in whos.iter().enumerate() {
        // The bars of a group take four fifths of its width.
        let aside = (i as f64 - (whos.len() as f64 - 1.0) / 2.0) * 0.8 / whos.len() as f64;
        let points = workloads.iter().enumerate().filter_map(|(at, workload)| {
            let line = results.of(who, workload).ok()?;
            Some((at as f64 + aside, value(workload)(line)))
        });
        plot = plot.with(Series::new(who, Style::Bars, points.collect()).with_ink(i));
    }
    plot
}
