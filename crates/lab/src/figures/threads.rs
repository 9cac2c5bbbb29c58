//! Figures 3.8, 3.9 and 3.10 of 002 §3.7.5 and §3.7.6: threads and scans.
//!
//! The paper's machine has 32 cores. On a machine with fewer cores, a measurement with more threads than cores can show
//! only that the throughput does not collapse. It cannot show that the throughput scales. Shares of the device's
//! bandwidth refer to the bandwidth that [`super::probe`] measures, not to the vendor's figure.

use super::results::{io_amplification, io_bytes_per_s, rate, scanned_bytes_per_s};
use super::run::cores;
use super::ycsb::{RECORDS, SHARE};
use super::{Answer, Claim, Figure, Judge, KEY_LEN, OURS, Paper, Results};
use crate::line::Line;
use crate::plot::{Axis, Plot, Series, Style};

const FEW_CORES: &str = "32 cores: threads beyond this machine's share its cores";
const PROBED: &str = "the device's bandwidth is measured with a short file, not the advertised one";
/// The number of records of the paper's data set, which has 80 GiB.
const SCAN_RECORDS: u64 = 80 * (1 << 30) / 124;
/// The number of scans of one length in the paper, divided by the number of rows in the paper.
const SCAN_OPS: f64 = 10e6 / SCAN_RECORDS as f64;
const SCANS: [(&str, f64); 6] =
    [("scan-1", 1.0), ("scan-10", 10.0), ("scan-100", 100.0), ("scan-1k", 1e3), ("scan-10k", 1e4), ("scan-100k", 1e5)];

/// Figure 3.8: lookups for different numbers of threads.
pub(super) static F3_8: Figure = Figure {
    id: "002-3.8",
    title: "Lookups (YCSB C) by threads",
    source: "002 §3.7.5, fig. 3.8",
    setup: "160 M lookups on 673 M rows of 24 + 100 B, 1 to 32 threads on 32 cores, 4 GiB of memory, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[FEW_CORES, PROBED],
    needs_device: true,
    claims: &[
        Claim {
            what: "speed-up by threads, as many as cores, by their number",
            paper: Paper::Is(18.5 / 24.0),
            unit: "×",
            from: "§3.7.5: 18.5 × at 24",
            judge: Judge::More,
            measure: |r| speed_up(r, OURS, "c"),
        },
        Claim {
            what: "bytes read by the device's random reads, at best",
            paper: Paper::Between(88.0, 95.0),
            unit: "%",
            from: "§3.7.5: 24 to 32 threads",
            judge: Judge::Machine,
            measure: |r| Ok(io_bytes_per_s(best(r, OURS, "c")?) / r.device()?.random_read * 100.0),
        },
        Claim {
            what: "RocksDB: speed-up by threads, by their number",
            paper: Paper::Is(17.4 / 24.0),
            unit: "×",
            from: "§3.7.5: 17.4 × at 24",
            judge: Judge::Machine,
            measure: |r| speed_up(r, "rocksdb", "c"),
        },
        Claim {
            what: "RocksDB: bytes read by the device's random reads, at best",
            paper: Paper::Is(91.0),
            unit: "%",
            from: "§3.7.5: 32 threads",
            judge: Judge::Machine,
            measure: |r| Ok(io_bytes_per_s(best(r, "rocksdb", "c")?) / r.device()?.random_read * 100.0),
        },
    ],
    steps: |figure, scale| {
        let step = |threads| {
            let mut step = scale.step(figure, "load,c", threads);
            step.plan.ops = Some(((scale.records(figure) as f64 * 160.0 / 673.0) as u64).max(1));
            step
        };
        scale.sweep().into_iter().map(step).collect()
    },
    plots: |results| vec![("throughput", by_threads(results, "c", "lookups a second"))],
};

/// Figure 3.9: insertions for different numbers of threads.
pub(super) static F3_9: Figure = Figure {
    id: "002-3.9",
    title: "Insertions (YCSB load) by threads",
    source: "002 §3.7.5, fig. 3.9",
    setup: "673 M insertions of 24 + 100 B, 1 to 20 threads on 32 cores, 4 GiB of memory, Optane 905p",
    paper_records: RECORDS,
    memory_share: SHARE,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[FEW_CORES, PROBED, "the paper's figure for RocksDB's bandwidth, 754 GiB/s, must be MiB/s"],
    needs_device: true,
    claims: &[
        Claim {
            what: "insertions at best",
            paper: Paper::Between(2.0e6, 2.4e6),
            unit: "/s",
            from: "§3.7.5: 10 threads and more",
            judge: Judge::Machine,
            measure: |r| Ok(rate(best(r, OURS, "load")?)),
        },
        Claim {
            what: "speed-up by threads, as many as cores, by their number",
            paper: Paper::Is(1.0),
            unit: "×",
            from: "§3.7.5: almost linear to 10",
            judge: Judge::More,
            measure: |r| speed_up(r, OURS, "load"),
        },
        Claim {
            what: "I/O amplification, total, at best",
            paper: Paper::Is(7.5),
            unit: "",
            from: "§3.7.5",
            judge: Judge::Less,
            measure: |r| Ok(io_amplification(best(r, OURS, "load")?)),
        },
        Claim {
            what: "bytes a second by the device's sequential writes, at best",
            paper: Paper::Between(86.0, 100.0),
            unit: "%",
            from: "§3.7.5: 1.9–2.2 of 2.2 GiB/s",
            judge: Judge::Machine,
            measure: |r| Ok(io_bytes_per_s(best(r, OURS, "load")?) / r.device()?.sequential_write * 100.0),
        },
        Claim {
            what: "RocksDB: best by one thread",
            paper: Paper::Is(2.7),
            unit: "×",
            from: "§3.7.5: 14 threads",
            judge: Judge::Machine,
            measure: |r| Ok(rate(best(r, "rocksdb", "load")?) / rate(at(r, "rocksdb", "load", 1)?)),
        },
    ],
    steps: |figure, scale| scale.sweep().into_iter().map(|threads| scale.step(figure, "load", threads)).collect(),
    plots: |results| vec![("throughput", by_threads(results, "load", "insertions a second"))],
};

/// Figure 3.10: scans of different lengths.
pub(super) static F3_10: Figure = Figure {
    id: "002-3.10",
    title: "Scan throughput by length",
    source: "002 §3.7.6, fig. 3.10",
    setup: "80 GiB of rows of 24 + 100 B, 10 M scans of 1, 10 and 100, then fewer, 4 GiB of memory, Optane 905p",
    paper_records: SCAN_RECORDS,
    memory_share: 0.05,
    key_len: KEY_LEN,
    value_len: 100,
    missing: &[PROBED, "scans of each length end when their seconds are over; the paper counts them"],
    needs_device: true,
    claims: &[
        Claim {
            what: "scans of 1,000 by the device's sequential reads",
            paper: Paper::Is(91.0),
            unit: "%",
            from: "§3.7.6",
            judge: Judge::More,
            measure: |r| of_device(r, "scan-1k"),
        },
        Claim {
            what: "scans of 100 by the device's sequential reads",
            paper: Paper::Is(50.0),
            unit: "%",
            from: "§3.7.6: nearly half",
            judge: Judge::More,
            measure: |r| of_device(r, "scan-100"),
        },
        Claim {
            what: "bytes a second of scans of 100 by those of 1",
            paper: Paper::AtMost(100.0),
            unit: "×",
            from: "§3.7.6: close to linear",
            judge: Judge::Machine,
            measure: |r| Ok(scanned_bytes_per_s(r.of(OURS, "scan-100")?) / scanned_bytes_per_s(r.of(OURS, "scan-1")?)),
        },
        Claim {
            what: "scans of 100,000 by the device's sequential reads",
            paper: Paper::Between(91.0, 100.0),
            unit: "%",
            from: "§3.7.6: approaches it",
            judge: Judge::More,
            measure: |r| of_device(r, "scan-100k"),
        },
    ],
    steps: |figure, scale| {
        let names = SCANS.map(|(name, _)| name).join(",");
        let mut step = scale.step(figure, &format!("load,{names}"), scale.many());
        step.plan.ops = Some(((scale.records(figure) as f64 * SCAN_OPS) as u64).max(100));
        vec![step]
    },
    plots: scans,
};

/// The line of an engine for a workload and a number of threads.
fn at<'a>(r: &'a Results, who: &str, workload: &str, threads: usize) -> std::result::Result<&'a Line, String> {
    r.one(who, |line| line.workload == workload && line.threads == threads)
}

/// The speed-up per thread. It is the rate with one thread per core (or with the next smaller measured number of
/// threads), divided by the rate of one thread and by the number of threads.
fn speed_up(r: &Results, who: &str, workload: &str) -> Answer {
    let threads = r.scale.sweep().into_iter().filter(|threads| *threads <= cores()).max().unwrap_or(1);
    if threads == 1 {
        return Err("needs one thread and several, of as many cores".to_owned());
    }
    Ok(rate(at(r, who, workload, threads)?) / rate(at(r, who, workload, 1)?) / threads as f64)
}

/// The fastest line of an engine.
fn best<'a>(r: &'a Results, who: &str, workload: &str) -> std::result::Result<&'a Line, String> {
    let lines = r.scale.sweep().into_iter().filter_map(|threads| at(r, who, workload, threads).ok());
    lines.max_by(|a, b| rate(a).total_cmp(&rate(b))).map_or_else(|| r.of(who, workload), Ok)
}

fn of_device(r: &Results, scan: &str) -> Answer {
    Ok(scanned_bytes_per_s(r.of(OURS, scan)?) / r.device()?.sequential_read * 100.0)
}

fn by_threads(results: &Results, workload: &str, label: &str) -> Plot {
    let threads = results.scale.sweep();
    let names = threads.iter().map(|threads| (*threads as f64, threads.to_string())).collect();
    let x = Axis { names, ..Axis::linear("threads", "") };
    let mut plot = Plot::new(results.figure.title, x, Axis::linear(label, "/s"));
    for who in results.whos() {
        let points =
            results.points(&who, |line| (line.workload == workload).then(|| (line.threads as f64, rate(line))));
        plot = plot.with(Series::new(who, Style::Line, points));
    }
    if let Ok(one) = at(results, OURS, workload, 1) {
        let fair = threads.iter().filter(|threads| **threads <= cores());
        let linear = fair.map(|threads| (*threads as f64, *threads as f64 * rate(one))).collect();
        plot = plot.with(Series::new("one thread's, times as many, up to the cores", Style::Limit, linear));
    }
    plot.note(format!("The machine has {} cores; the paper's has 32.", cores()))
}

fn scans(results: &Results) -> Vec<(&'static str, Plot)> {
    let axis = Axis::linear("returned a second", "B");
    let mut plot = Plot::new(results.figure.title, Axis::log("entries a scan", ""), axis);
    let length = |line: &Line| SCANS.iter().find(|(name, _)| *name == line.workload).map(|(_, length)| *length);
    for who in results.whos() {
        plot = plot.with(Series::new(
            &who,
            Style::Line,
            results.points(&who, |line| Some((length(line)?, scanned_bytes_per_s(line)))),
        ));
    }
    if let Some(device) = &results.device {
        let ends = |rate: f64| vec![(1.0, rate), (1e5, rate)];
        let stated = vec![(100.0, 0.5 * device.sequential_read), (1000.0, 0.91 * device.sequential_read)];
        plot = plot
            .with(Series::new("the device's sequential reads", Style::Limit, ends(device.sequential_read)))
            .with(Series::new("002's shares of its device, of this one", Style::Points, stated).with_ink(7));
    }
    vec![("throughput", plot)]
}
