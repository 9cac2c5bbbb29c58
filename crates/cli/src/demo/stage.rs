//! The output of the demo: steps, checks, and a table at the end.

use serde::Serialize;

use crate::{
    failure::{Failure, Outcome},
    meter::LatencyFigures,
    output,
};

/// A check and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    name: &'static str,
    passed: bool,
    detail: String,
}

/// The figures of the demo.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// The number of flights in the first load.
    pub flights: usize,
    /// The number of messages of the first load: one put and three merges for each flight.
    pub messages: usize,
    /// The number of flights committed per second. Each flight is one atomic commit.
    pub records_per_second: f64,
    /// Latencies of the commits.
    pub insert: LatencyFigures,
    /// Bytes written to the device for each byte of keys and values.
    pub write_amplification: f64,
    /// Bytes on disk for each byte of live data.
    pub space_amplification: f64,
    /// The number of levels of the deepest tree.
    pub levels: u64,
    /// Bytes of memory that the store uses.
    pub memory_bytes: u64,
    /// The memory budget of the store.
    pub memory_budget_bytes: u64,
    /// Peak memory of the process, including the data set.
    pub peak_rss_bytes: Option<u64>,
    /// The duration of the reopening after the kill, in milliseconds.
    pub reopen_ms: f64,
    /// The duration of the whole demo in seconds.
    pub seconds: f64,
}

/// Prints the steps of the demo and collects its checks.
#[derive(Debug, Default)]
pub struct Stage {
    quiet: bool,
    checks: Vec<Check>,
}

/// The demo as JSON.
#[derive(Serialize)]
struct Report<'a> {
    passed: bool,
    checks: &'a [Check],
    #[serde(flatten)]
    figures: &'a Figures,
}

impl Stage {
    /// Creates the output. It prints each step or, for JSON, only the report at the end.
    pub fn new(json: bool) -> Stage {
        Stage { quiet: json, checks: Vec::new() }
    }

    /// Prints a step.
    pub fn say(&self, name: &str, text: &str) -> Outcome {
        if self.quiet { Ok(()) } else { output::line(format_args!("       {name:10} {text}")) }
    }

    /// Records a check and prints its result.
    pub fn check(&mut self, name: &'static str, passed: bool, detail: String) -> Outcome {
        let word = if passed { "ok" } else { "FAILED" };
        if !self.quiet {
            output::line(format_args!("{word:6} {name:10} {detail}"))?;
        }
        self.checks.push(Check { name, passed, detail });
        Ok(())
    }

    /// Prints the table. Fails if a check has failed.
    pub fn finish(self, figures: &Figures) -> Outcome {
        let failed: Vec<&str> = self.checks.iter().filter(|check| !check.passed).map(|check| check.name).collect();
        if self.quiet {
            output::json(&Report { passed: failed.is_empty(), checks: &self.checks, figures })?;
        } else {
            output::line(format_args!("\n{}\n", output::figures(&rows(figures))))?;
        }
        if !failed.is_empty() {
            return Err(Failure::Corruption(format!(
                "these checks failed: {}; run `pando demo --keep DIR`, then report the output of `pando verify DIR`",
                failed.join(", ")
            )));
        }
        if self.quiet { Ok(()) } else { output::line(format_args!("all {} checks passed", self.checks.len())) }
    }
}

fn rows(figures: &Figures) -> Vec<(&'static str, String)> {
    let insert = &figures.insert;
    let rss = figures.peak_rss_bytes.map_or("unknown".into(), output::bytes);
    vec![
        (
            "records/s",
            format!(
                "{} flights, {} messages",
                output::count(figures.records_per_second as u64),
                output::count((figures.records_per_second * figures.messages as f64 / figures.flights as f64) as u64)
            ),
        ),
        ("insert p50", output::micros(insert.p50_us)),
        ("insert p99", output::micros(insert.p99_us)),
        ("insert max", output::micros(insert.max_us)),
        ("write amplification", format!("{:.2}", figures.write_amplification)),
        ("space amplification", format!("{:.2}", figures.space_amplification)),
        ("levels", figures.levels.to_string()),
        (
            "memory",
            format!(
                "{} of {} budget; peak of the process {rss}, data set included",
                output::bytes(figures.memory_bytes),
                output::bytes(figures.memory_budget_bytes)
            ),
        ),
        ("reopen after the kill", format!("{:.0} ms", figures.reopen_ms)),
        ("total time", format!("{:.1} s", figures.seconds)),
    ]
}
