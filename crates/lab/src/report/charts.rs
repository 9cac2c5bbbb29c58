//! The plots of one case of the report.
//!
//! Plots over time show the median round. Other values are medians over all rounds. Values that an engine does not
//! report are left out, and a plot without data is not drawn.

use std::collections::BTreeSet;

use super::group::{Case, Entry};
use crate::line::{LatencyFigures, Line};
use crate::plot::{Axis, Plot, Series, Style, unit};

/// Milliseconds of the windows over which rates are computed.
const WINDOW_MS: u64 = 1000;
/// If a run has fewer windows than this number, its plot shows the rate in each bucket instead of each window.
const LEAST_WINDOWS: usize = 5;

/// The maximum number of engines in a plot over time. A larger number of engines is divided among several plots with
/// the same scale.
const MOST_ENGINES: usize = 7;

/// The plots of a case that have data, each with its file name.
pub(super) fn charts(case: &Case) -> Vec<(String, Plot)> {
    let mut plots = over_time(case, "throughput", throughput);
    plots.extend(over_time(case, "slowest", slowest));
    plots.push(("latency".to_owned(), latency(case, "all operations", |line| Some(&line.latency))));
    let kinds: BTreeSet<&String> =
        case.entries.iter().flat_map(|entry| &entry.rounds).flat_map(|line| line.latency_by.keys()).collect();
    if kinds.len() > 1 {
        for kind in kinds {
            let name = format!("latency-{}", kind.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
            plots.push((name, latency(case, kind, |line| line.latency_by.get(kind))));
        }
    }
    plots.extend(over_time(case, "debt", debt));
    plots.extend(over_time(case, "memory", memory));
    plots.push(("written".to_owned(), written(case)));
    plots.retain(|(_, plot)| plot.has_data());
    plots
}

/// Draws all engines in one plot, or in several plots with the same scale.
fn over_time(case: &Case, name: &str, draw: fn(&Case, &[&Entry]) -> Plot) -> Vec<(String, Plot)> {
    let parts = parts(case);
    let mut plots: Vec<Plot> = parts.iter().map(|part| draw(case, part)).collect();
    let points = || plots.iter().flat_map(|plot| &plot.series).flat_map(|series| &series.points);
    let (x, y): (Vec<f64>, Vec<f64>) = (extremes(points().map(|p| p.0)), extremes(points().map(|p| p.1)));
    let n = plots.len();
    for (i, plot) in plots.iter_mut().enumerate().filter(|_| n > 1) {
        plot.title = format!("{} ({} of {n})", plot.title, i + 1);
        (plot.x.include, plot.y.include) = (x.clone(), y.clone());
    }
    let name = |i: usize| if n > 1 { format!("{name}-{}", i + 1) } else { name.to_owned() };
    plots.into_iter().enumerate().map(|(i, plot)| (name(i), plot)).collect()
}

/// The smallest positive value, the lowest value and the highest value. They determine the range of a linear or
/// logarithmic axis.
fn extremes(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let least = values.iter().copied().find(|value| *value > 0.0);
    values.first().into_iter().chain(values.last()).copied().chain(least).collect()
}

/// Divides the engines into parts: PandoDB's own indexes, followed by the rivals. Each part of rivals also contains the
/// best index of PandoDB.
fn parts<'c, 'a>(case: &'c Case<'a>) -> Vec<Vec<&'c Entry<'a>>> {
    if case.entries.len() <= MOST_ENGINES {
        return vec![case.entries.iter().collect()];
    }
    let (own, rivals): (Vec<_>, Vec<_>) = case.entries.iter().partition(|entry| entry.rounds[0].engine == "pando");
    let rate = |entry: &Entry| entry.rate().map_or(0.0, |rate| rate.median);
    let best = own.iter().copied().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    let parts = rivals.len().div_ceil(MOST_ENGINES - 1).max(1);
    let rivals = rivals.chunks(rivals.len().div_ceil(parts).max(1));
    let rivals = rivals.map(|part| best.into_iter().chain(part.iter().copied()).collect());
    own.chunks(MOST_ENGINES).map(<[_]>::to_vec).chain(rivals).collect()
}

fn time() -> Axis {
    Axis::linear("time", "s")
}

fn title(case: &Case, what: &str) -> String {
    format!("{what}: {}", case.label)
}

/// If a case has several rounds, adds a note that names the shown round.
fn with_round(case: &Case, plot: Plot) -> Plot {
    if case.rounds() > 1 { plot.note("Of several rounds, the one with the median rate.") } else { plot }
}

fn throughput(case: &Case, entries: &[&Entry]) -> Plot {
    let axis = Axis::linear("throughput", "operations/s");
    let mut plot = Plot::new(title(case, "Throughput over time"), time(), axis);
    let mut stalled = Vec::new();
    for entry in entries {
        let rates = rates(entry.middle());
        let mut series = Series::new(entry.label(), Style::Line, rates.points.clone()).with_ink(entry.ink);
        series.marks = stalls(&rates.points);
        if !series.marks.is_empty() {
            let seconds = unit::show(series.marks.len() as f64 * rates.seconds, "s");
            let longest = unit::show(longest(&series.marks, rates.seconds), "s");
            stalled.push(format!("{} {seconds} (longest {longest})", entry.who));
        }
        plot.series.push(series);
    }
    if !stalled.is_empty() {
        plot = plot.note(format!("× under half of the engine's own median: {}.", stalled.join(", ")));
    }
    with_round(case, plot)
}

fn slowest(case: &Case, entries: &[&Entry]) -> Plot {
    let axis = Axis::log("slowest operation of each window", "s");
    let mut plot = Plot::new(title(case, "Slowest operation over time"), time(), axis);
    for entry in entries {
        plot.series.push(Series::new(entry.label(), Style::Line, slowest_points(entry.middle())).with_ink(entry.ink));
    }
    with_round(case, plot)
}

/// The position of each percentile on the axis, which is its number of nines.
const PERCENTILES: [(f64, &str); 6] =
    [(0.301, "p50"), (1.0, "p90"), (2.0, "p99"), (3.0, "p99.9"), (4.0, "p99.99"), (5.0, "max")];

/// The latencies at the [`PERCENTILES`], in microseconds.
pub(super) fn percentiles(latency: &LatencyFigures) -> [f64; 6] {
    [latency.p50_us, latency.p90_us, latency.p99_us, latency.p99_9_us, latency.p99_99_us, latency.max_us]
}

fn latency(case: &Case, kind: &str, of: impl Fn(&Line) -> Option<&LatencyFigures>) -> Plot {
    let names = PERCENTILES.iter().map(|(place, name)| (*place, (*name).to_owned())).collect();
    let x = Axis { names, ..Axis::linear("percentile", "") };
    let mut plot = Plot::new(title(case, &format!("Latency of {kind}")), x, Axis::log("latency", "s"));
    let mut control: f64 = 0.0;
    for entry in &case.entries {
        let points = PERCENTILES.iter().enumerate().filter_map(|(i, (place, _))| {
            let figure = |line: &Line| of(line).map_or(f64::NAN, |latency| percentiles(latency)[i]);
            entry.spread(figure).map(|spread| (*place, spread.median * 1e-6))
        });
        plot.series.push(Series::new(entry.label(), Style::Line, points.collect()).with_ink(entry.ink));
        control = entry.rounds.iter().map(|line| line.control_max_us).fold(control, f64::max);
    }
    if control > 0.0 && plot.has_data() {
        let line = PERCENTILES.map(|(place, _)| (place, control * 1e-6)).to_vec();
        plot.series.push(Series::new("idle thread, see the table", Style::Limit, line));
    }
    if case.rounds() > 1 { plot.note("Medians over the rounds.") } else { plot }
}

fn debt(case: &Case, entries: &[&Entry]) -> Plot {
    let mut plot = Plot::new(title(case, "Debt over time"), time(), Axis::linear("background work owed", "B"));
    for entry in entries {
        let line = entry.middle();
        let points = gauge(&line.series.debt_bytes, line.series.bucket_ms);
        if !points.is_empty() {
            plot.series.push(Series::new(entry.label(), Style::Line, points).with_ink(entry.ink));
        }
    }
    with_round(case, plot)
}

fn memory(case: &Case, entries: &[&Entry]) -> Plot {
    let mut plot = Plot::new(title(case, "Memory over time"), time(), Axis::linear("memory of the process", "B"));
    for entry in entries {
        let line = entry.middle();
        let points = gauge(&line.series.rss_bytes, line.series.bucket_ms);
        plot.series.push(Series::new(entry.label(), Style::Line, points).with_ink(entry.ink));
    }
    let times = || plot.series.iter().flat_map(|series| &series.points).map(|point| point.0);
    let (first, last) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let budget = case.asked.memory_budget as f64;
    if budget > 0.0 && first <= last {
        plot.series.push(Series::new("budget", Style::Limit, vec![(first, budget), (last, budget)]));
    }
    with_round(case, plot)
}

/// Bytes written for each operation, stacked by cause. An engine that does not report causes has one bar, which shows
/// the operating system's count.
fn written(case: &Case) -> Plot {
    const UNKNOWN: &str = "all, as the system counted";
    let x = Axis::named("", case.entries.iter().map(Entry::label));
    let y = Axis::linear("written for each operation", "B");
    let mut plot = Plot::new(title(case, "Bytes written by cause"), x, y);
    let mut causes: Vec<&str> =
        case.entries.iter().flat_map(causes_of).collect::<BTreeSet<&str>>().into_iter().collect();
    causes.push(UNKNOWN);
    for cause in causes {
        let bytes = |entry: &Entry| match (cause, causes_of(entry).next()) {
            (UNKNOWN, None) => per_operation(entry, |line| line.process_io.get("write_bytes").copied()),
            (UNKNOWN, Some(_)) => None,
            _ => per_operation(entry, |line| line.inside.counters.get(&format!("written.{cause}")).copied()),
        };
        let bars = case.entries.iter().enumerate();
        let bars: Vec<(f64, f64)> = bars.filter_map(|(i, entry)| Some((i as f64, bytes(entry)?))).collect();
        if bars.iter().any(|(_, bytes)| *bytes > 0.0) {
            plot.series.push(Series::new(cause, Style::Bars, bars));
        }
    }
    plot
}

fn causes_of<'a>(entry: &'a Entry) -> impl Iterator<Item = &'a str> {
    let counters = entry.rounds.iter().flat_map(|line| line.inside.counters.keys());
    counters.filter_map(|name| name.strip_prefix("written."))
}

fn per_operation(entry: &Entry, bytes: impl Fn(&Line) -> Option<u64>) -> Option<f64> {
    let figure = |line: &Line| bytes(line).map_or(f64::NAN, |bytes| bytes as f64 / line.ops as f64);
    entry.spread(figure).map(|spread| spread.median)
}

/// The rates over windows. The x of each rate is the middle of its window.
pub(super) struct Rates {
    pub points: Vec<(f64, f64)>,
    /// The length of a window.
    pub seconds: f64,
}

/// The number of buckets in a window.
fn buckets_a_window(line: &Line, buckets: usize) -> usize {
    let each = (WINDOW_MS / line.series.bucket_ms.max(1)).max(1) as usize;
    if buckets / each < LEAST_WINDOWS { 1 } else { each }
}

/// Operations per second in complete windows until the last acknowledgement. Two things are left out because they are
/// not stalls: the incomplete window at the end, and the time in which an engine only finishes background work.
pub(super) fn rates(line: &Line) -> Rates {
    let bucket = line.series.bucket_ms as f64 / 1000.0;
    if bucket <= 0.0 {
        return Rates { points: Vec::new(), seconds: 1.0 };
    }
    let whole = if line.seconds > 0.0 { (line.seconds / bucket + 1e-6) as usize } else { usize::MAX };
    let ops = &line.series.ops[..line.series.ops.len().min(whole.max(1))];
    let each = buckets_a_window(line, ops.len());
    let seconds = each as f64 * bucket;
    let windows = ops.chunks_exact(each).map(|window| window.iter().map(|ops| *ops as f64).sum::<f64>() / seconds);
    let points = windows.enumerate().map(|(i, rate)| ((i as f64 + 0.5) * seconds, rate));
    Rates { points: points.collect(), seconds }
}

/// The stalls: the windows with less than half of the median rate.
pub(super) fn stalls(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut rates: Vec<f64> = points.iter().map(|point| point.1).collect();
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
    points.iter().copied().filter(|(_, rate)| *rate < median / 2.0).collect()
}

/// The longest run of neighbouring stalls, in seconds.
fn longest(stalls: &[(f64, f64)], seconds: f64) -> f64 {
    let runs = stalls.chunk_by(|a, b| b.0 - a.0 < 1.5 * seconds);
    runs.map(|run| run.len() as f64 * seconds).fold(0.0, f64::max)
}

fn slowest_points(line: &Line) -> Vec<(f64, f64)> {
    let bucket = line.series.bucket_ms as f64 / 1000.0;
    let each = buckets_a_window(line, line.series.max_us.len());
    let windows = line.series.max_us.chunks(each).map(|window| window.iter().copied().fold(0.0, f64::max));
    windows.enumerate().map(|(i, us)| ((i as f64 + 0.5) * each as f64 * bucket, us * 1e-6)).collect()
}

/// The values of a gauge at the end of each bucket.
fn gauge(values: &[u64], bucket_ms: u64) -> Vec<(f64, f64)> {
    let at = |i: usize| (i + 1) as f64 * bucket_ms as f64 / 1000.0;
    values.iter().enumerate().map(|(i, bytes)| (at(i), *bytes as f64)).collect()
}
