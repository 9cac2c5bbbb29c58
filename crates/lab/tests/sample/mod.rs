//! Synthetic lines of results: three engines, six workloads, one and four threads, with stalls, growing and shrinking
//! debt, rounds, and a refusal. The lines are deterministic; no value was measured.

use std::collections::BTreeMap;

use pandodb_lab::line::{Asked, LatencyFigures, Line, Machine, Series};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The workloads: (name, operations per second of one thread, share of writes).
const WORKLOADS: [(&str, f64, f64); 6] = [
    ("load-random", 180_000.0, 1.0),
    ("read-random", 420_000.0, 0.0),
    ("read-zipf", 610_000.0, 0.0),
    ("mixed-50-50", 210_000.0, 0.5),
    ("scan-100", 21_000.0, 0.0),
    ("overwrite-paced", 60_000.0, 1.0),
];

/// The engines: (engine, index, speed factor, seconds between stalls).
const ENGINES: [(&str, &str, f64, usize); 3] =
    [("pando", "stbe", 1.0, 0), ("rocksdb", "", 0.82, 23), ("fjall", "", 0.64, 37)];

/// Returns lines of three engines, six workloads and two numbers of threads. The first workload has three rounds.
pub fn sample(seconds: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for (n, workload) in WORKLOADS.iter().enumerate() {
        for threads in [1, 4] {
            for round in 0..if n == 0 { 3 } else { 1 } {
                for engine in &ENGINES {
                    let seed = (n * 1000 + threads * 100 + round * 10) as u64 + engine.0.len() as u64;
                    lines.push(line(workload, engine, threads, seconds, seed));
                }
            }
        }
    }
    lines.push(Line {
        workload: "delete-range".into(),
        engine: "fjall".into(),
        threads: 1,
        refused: Some("it has no deletion of ranges".into()),
        ..Line::default()
    });
    lines
}

fn line(
    (workload, speed, writes): &(&str, f64, f64),
    (engine, index, factor, stall_every): &(&str, &str, f64, usize),
    threads: usize,
    seconds: usize,
    seed: u64,
) -> Line {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let rate = speed * factor * (threads as f64).powf(0.8);
    let series = course(&mut random, rate, *writes, *stall_every, seconds);
    let ops: u64 = series.ops.iter().sum();
    let slowest = series.max_us.iter().copied().fold(0.0, f64::max);
    let latency = |scale: f64| latency(ops, scale * 0.8e6 * threads as f64 / rate, slowest);
    let kinds: &[(&str, f64)] = if *writes == 0.5 { &[("read", 1.4), ("write", 0.6)] } else { &[("all", 1.0)] };
    let written = ops as f64 * writes * 116.0;
    let causes: &[(&str, f64)] = if *engine == "pando" {
        &[("log", 1.1), ("flush", 1.0), ("compaction", 2.9), ("checkpoint", 0.2)]
    } else {
        &[]
    };
    let counters = causes.iter().map(|(cause, factor)| (format!("written.{cause}"), (written * factor) as u64));
    let amplification = if *writes > 0.0 { 5.2 / factor } else { 0.0 };
    let settled = if *writes > 0.0 { seconds as f64 * (1.0 + (1.0 - factor) / 3.0) } else { 0.0 };
    let mut line = Line {
        workload: (*workload).into(),
        engine: (*engine).into(),
        index: (*index).into(),
        threads,
        ops,
        seconds: seconds as f64 - 0.05,
        ops_per_s: ops as f64 / seconds as f64,
        settled_seconds: settled,
        latency: latency(1.0),
        latency_by: kinds.iter().map(|(kind, scale)| ((*kind).to_owned(), latency(*scale))).collect(),
        control_max_us: 900.0 + random.random_range(0.0..2500.0),
        write_amplification: amplification,
        read_bytes_per_op: if *writes < 1.0 { 4096.0 * 0.7 / factor } else { 210.0 },
        space_amplification: 1.1 / factor,
        peak_rss_bytes: *series.rss_bytes.iter().max().unwrap_or(&0),
        cpu_s_per_million: 1e6 / rate * threads as f64 * 1.2,
        checked_answers: ops / 100,
        found: ops,
        stream: format!("{workload}-{threads}"),
        commit: "a1acdc3".into(),
        at: 1_795_277_776 + seed,
        series,
        ..Line::default()
    };
    line.inside.counters = counters.collect();
    line.process_io = BTreeMap::from([
        ("read_bytes".to_owned(), (ops as f64 * line.read_bytes_per_op) as u64),
        ("write_bytes".to_owned(), (written * amplification) as u64),
    ]);
    settings(&mut line, *writes);
    line
}

fn latency(count: u64, p50_us: f64, max_us: f64) -> LatencyFigures {
    LatencyFigures {
        count,
        mean_us: p50_us * 1.2,
        p50_us,
        p90_us: p50_us * 2.2,
        p99_us: p50_us * 7.0,
        p99_9_us: p50_us * 40.0,
        p99_99_us: (p50_us * 300.0).min(max_us),
        max_us,
    }
}

/// The settings of workload and engine, and the machine.
fn settings(line: &mut Line, writes: f64) {
    let setting = |name: &str, value: String| (name.to_owned(), value);
    line.asked = Asked {
        records: 20_000_000,
        key_len: 16,
        value_len: 100,
        dist: if line.workload.ends_with("zipf") { "zipf" } else { "uniform" }.into(),
        seed: 1,
        memory_budget: 256 << 20,
        cache: if writes > 0.0 { "as-is" } else { "cold" }.into(),
        rate: if line.workload.ends_with("paced") { 50_000.0 * line.threads as f64 } else { 0.0 },
        ..Asked::default()
    };
    line.configuration = BTreeMap::from([
        setting("version", if line.engine == "rocksdb" { "7.8.3" } else { "0.1.0" }.into()),
        setting("block_cache", format!("{} MiB", 256 - 64 * usize::from(line.engine == "rocksdb"))),
        setting("compression", "none".into()),
    ]);
    line.machine = Machine {
        cpu: "A Processor @ 2.5 GHz".into(),
        cores: 2,
        memory_bytes: 16 << 30,
        system: "Linux 6.1".into(),
        file_system: "ext4".into(),
    };
}

/// Returns values over time in buckets of 100 ms, with a varying rate, stalls of 0.3 to 2.5 s, and debt that a stall
/// reduces.
fn course(random: &mut Xoshiro256PlusPlus, rate: f64, writes: f64, stall_every: usize, seconds: usize) -> Series {
    let mut series = Series { bucket_ms: 100, ..Series::default() };
    let (mut stalled, mut debt, mut memory) = (0, 0.0_f64, 60e6_f64);
    for i in 0..seconds * 10 {
        if stall_every > 0 && writes > 0.0 && i % (stall_every * 10) == stall_every * 7 {
            stalled = random.random_range(3..25);
        }
        let stalling = stalled > 0;
        stalled -= i32::from(stalling);
        let share = if stalling { 0.02 } else { random.random_range(0.88..1.06) };
        series.ops.push((rate * share / 10.0) as u64);
        let usual = 1e6 / rate * random.random_range(20.0..400.0);
        series.max_us.push(if stalling { random.random_range(80_000.0..900_000.0) } else { usual });
        debt = (debt + writes * rate * 116.0 / 40.0 * if stalling { -6.0 } else { 1.0 }).clamp(0.0, 900e6);
        series.debt_bytes.push(debt as u64);
        memory = (memory + random.random_range(-1e6..3e6)).min(262e6 + if stall_every > 0 { 20e6 } else { 0.0 });
        series.rss_bytes.push(memory as u64);
    }
    series
}
