//! Figures 3.6 and 3.7 of 002 §3.7.4: insertions of which a given share is in key order.
//!
//! For each insertion, a random choice decides whether the next key in order or a random key is inserted. The paper's
//! trees flush by reference and compact only new data, so keys that are inserted in order should reach the leaves
//! without being rewritten.
//!
//! The paper's second curve was measured without a log. PandoDB always writes a log. The nearest setting is
//! `Durability::None`, which writes the log in the background: an insertion does not wait, but the bytes are written.
//! For the write amplification, this difference does not matter, because the bytes of the log are counted exactly and
//! subtracted.

use pandodb::Durability;

use super::results::{io_amplification, is_logged, rate, without_log};
use super::{Answer, Claim, Figure, Judge, KEY_LEN, OURS, Paper, Results, Scale, Step};
use crate::line::Line;
use crate::plot::{Axis, Plot, Series, Style};

/// The number of records of the paper's data set, which has 20 GiB.
const RECORDS: u64 = 20 * (1 << 30) / 124;
/// The paper's memory as a share of its data: 4 GiB of 20 GiB.
const SHARE: f64 = 0.2;
/// The shares of keys in order, in percent.
const SHARES: [f64; 6] = [0.0, 50.0, 80.0, 90.0, 99.0, 100.0];

const LAZY: &str =
    "no log: PandoDB always logs; measured with Durability::None, which logs in the background, as the nearest setting";
const POINTS: &str = "besides 0, 50, 99 and 100 % the paper gives its shares in a plot only; here 80 and 90 %";

/// Figure 3.6: throughput for each share of keys in order.
pub(super) static F3_6: Figure = Figure {
    id: "002-3.6",
    title: "Single-threaded insertions by share of keys in order",
    source: "002 §3.7.4, fig. 3.6",
    setup: "20 GiB of insertions of 24 + 100 B, 1 thread, 4 GiB of memory, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[LAZY, POINTS],
    needs_device: false,
    claims: &[
        absolute("with log, random", 349e3, |r| ours(r, 0.0, true)),
        absolute("with log, in order", 614e3, |r| ours(r, 100.0, true)),
        relative("with log, in order by random", 1.76, "§3.7.4: 76 % faster", |r| gain(r, true)),
        absolute("no log (here: lazy), random", 430e3, |r| ours(r, 0.0, false)),
        absolute("no log (here: lazy), in order", 866e3, |r| ours(r, 100.0, false)),
        relative("no log (here: lazy), in order by random", 2.0, "§3.7.4: 100 % faster", |r| gain(r, false)),
        absolute("no log (here: lazy), half in order", 521e3, |r| ours(r, 50.0, false)),
        relative("the same by the harmonic mean of both ends", 521.0 / 575.0, "§3.7.4: 521 k of 575 k", |r| {
            let (random, ordered) = (ours(r, 0.0, false)?, ours(r, 100.0, false)?);
            Ok(ours(r, 50.0, false)? / (2.0 / (1.0 / random + 1.0 / ordered)))
        }),
        Claim {
            what: "RocksDB: in order by random",
            paper: Paper::Is(1.35),
            unit: "×",
            from: "§3.7.4: 35 %",
            judge: Judge::Machine,
            measure: |r| Ok(rate(of(r, "rocksdb", 100.0, true)?) / rate(of(r, "rocksdb", 0.0, true)?)),
        },
        Claim {
            what: "RocksDB: 90 % in order by random",
            paper: Paper::AtMost(1.2),
            unit: "×",
            from: "§3.7.4: under 20 % until 99 %",
            judge: Judge::Machine,
            measure: |r| Ok(rate(of(r, "rocksdb", 90.0, true)?) / rate(of(r, "rocksdb", 0.0, true)?)),
        },
    ],
    steps,
    plots: |results| {
        let stated = |name, points: &[(usize, f64)]| {
            let points = points.iter().map(|(at, rate)| (*at as f64, *rate)).collect();
            Series::new(name, Style::Points, points)
        };
        let mut plot = axes(results, Axis::linear("insertions a second", "/s"), |logged| {
            Some((if logged { "with log" } else { "lazy log" }, rate))
        });
        plot.series.push(stated("002 on its machine, with log", &[(0, 349e3), (5, 614e3)]).with_ink(6));
        plot.series.push(stated("002 on its machine, no log", &[(0, 430e3), (1, 521e3), (5, 866e3)]).with_ink(7));
        vec![("throughput", plot)]
    },
};

/// Figure 3.7: write amplification for each share of keys in order.
pub(super) static F3_7: Figure = Figure {
    id: "002-3.7",
    title: "I/O amplification of insertions by share of keys in order",
    source: "002 §3.7.4, fig. 3.7",
    setup: "20 GiB of insertions of 24 + 100 B, 1 thread, 4 GiB of memory, Optane 905p; iostat",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[
        "no log: PandoDB always logs; its bytes are counted separately and subtracted from the run with the lazy log",
        "iostat: our bytes are those that the engine passes to its files; of a rival, those that the system counts",
        POINTS,
    ],
    needs_device: false,
    claims: &[
        Claim {
            what: "write amplification without the log's bytes, in order",
            paper: Paper::Is(1.0),
            unit: "",
            from: "§3.7.4: approaches 1",
            judge: Judge::Less,
            measure: |r| without_log(of(r, OURS, 100.0, false)?),
        },
        Claim {
            what: "the same at 99 % in order",
            paper: Paper::Is(1.0),
            unit: "",
            from: "§3.7.4: approaches 1",
            judge: Judge::Less,
            measure: |r| without_log(of(r, OURS, 99.0, false)?),
        },
        Claim {
            what: "with log, I/O amplification in order by random",
            paper: Paper::AtMost(1.0),
            unit: "×",
            from: "§3.7.4: less on more sequential",
            judge: Judge::Less,
            measure: |r| Ok(io_amplification(of(r, OURS, 100.0, true)?) / io_amplification(of(r, OURS, 0.0, true)?)),
        },
        Claim {
            what: "RocksDB: write amplification at 99 %",
            paper: Paper::Is(4.1),
            unit: "",
            from: "§3.7.4",
            judge: Judge::Machine,
            measure: |r| Ok(of(r, "rocksdb", 99.0, true)?.write_amplification),
        },
        Claim {
            what: "RocksDB: write amplification in order",
            paper: Paper::AtMost(1.0),
            unit: "",
            from: "§3.7.4: close to 1, even below",
            judge: Judge::Machine,
            measure: |r| Ok(of(r, "rocksdb", 100.0, true)?.write_amplification),
        },
    ],
    steps,
    plots: |results| {
        let without = |line: &Line| without_log(line).unwrap_or(f64::NAN);
        let axis = || Axis::linear("bytes written by bytes inserted", "");
        let write = axes(results, axis(), |logged| {
            Some(if logged {
                ("with log", |line: &Line| line.write_amplification)
            } else {
                ("without the log's bytes", without)
            })
        });
        let total = axes(results, Axis::linear("bytes written and read by bytes inserted", ""), |logged| {
            logged.then_some(("with log", io_amplification))
        });
        vec![("write", write), ("total", total)]
    },
};

const fn absolute(what: &'static str, paper: f64, measure: fn(&Results) -> Answer) -> Claim {
    Claim { what, paper: Paper::Is(paper), unit: "/s", from: "§3.7.4", judge: Judge::Machine, measure }
}

const fn relative(what: &'static str, paper: f64, from: &'static str, measure: fn(&Results) -> Answer) -> Claim {
    Claim { what, paper: Paper::Is(paper), unit: "×", from, judge: Judge::More, measure }
}

/// One load for each share and each of two levels of durability.
fn steps(figure: &Figure, scale: &Scale) -> Vec<Step> {
    let step = |share, durability| {
        let mut step = scale.step(figure, "load-mixed", 1);
        (step.plan.seq_share, step.durability) = (share, durability);
        step
    };
    let both = |share| [step(share, Durability::Buffered), step(share, Durability::None)];
    SHARES.iter().flat_map(|share| both(*share)).collect()
}

fn of<'a>(r: &'a Results, who: &str, share: f64, logged: bool) -> std::result::Result<&'a Line, String> {
    r.one(who, |line| line.asked.seq_share == share && is_logged(line) == logged)
}

fn ours(r: &Results, share: f64, logged: bool) -> Answer {
    of(r, OURS, share, logged).map(rate)
}

fn gain(r: &Results, logged: bool) -> Answer {
    Ok(ours(r, 100.0, logged)? / ours(r, 0.0, logged)?)
}

/// The name and the value of a curve, for measurements with the ordinary log (`true`) or with the lazy log (`false`).
type Curve = Option<(&'static str, fn(&Line) -> f64)>;

/// One curve over the shares for every engine, and one curve for PandoDB without the bytes of the log. The shares have
/// equal distances on the x axis.
fn axes(results: &Results, y: Axis, curve: impl Fn(bool) -> Curve) -> Plot {
    let names = SHARES.map(|share| format!("{share} %"));
    let mut plot = Plot::new(results.figure.title, Axis::named("keys in order, not to scale", names), y);
    let at = |line: &Line| SHARES.iter().position(|share| *share == line.asked.seq_share).map(|i| i as f64);
    for who in results.whos() {
        for logged in [true, false] {
            let Some((name, value)) = curve(logged) else { continue };
            let point = |line: &Line| (is_logged(line) == logged).then(|| Some((at(line)?, value(line))))?;
            let points = results.points(&who, point);
            if !points.is_empty() {
                plot = plot.with(Series::new(format!("{who}, {name}"), Style::Line, points));
            }
        }
    }
    plot
}
