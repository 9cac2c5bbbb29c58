//! Power cuts and kills at every point of seeded runs.

use std::time::Instant;

use pandodb::device::sim::{CrashPlan, SimDevice};

use crate::drive::{Sizes, record};
use crate::enumerate::{Effort, Tally, enumerate};
use crate::script::{Mix, Script};

/// Distinct states that a run of the whole test visits at least.
const STATES: u64 = 21_000;
/// Of one script, at most.
const STATES_OF_SCRIPT: u64 = 1_800;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

/// The workload of a seed: the kinds take turns. One in two of the long logs is replayed with a smaller memtable than it was
/// written with, so that recovery has to pack.
fn workload(seed: u64) -> (Script, Sizes) {
    let (mix, sizes) = match seed % 4 {
        0 => (Mix { steps: 60, blobs: 10, lazy: 15, buffered: 45, keys: 60 }, Sizes::TINY),
        1 => (Mix { steps: 120, blobs: 3, lazy: 30, buffered: 60, keys: 200 }, Sizes::TINY),
        2 => (Mix { steps: 40, blobs: 40, lazy: 10, buffered: 40, keys: 30 }, Sizes::LOGGY),
        _ => (Mix { steps: 80, blobs: 15, lazy: 5, buffered: 20, keys: 100 }, Sizes::TINY),
    };
    (Script::generate(seed, mix), sizes)
}

/// The sizes with which the images of a seed are opened.
fn sizes_after(seed: u64, sizes: Sizes) -> Sizes {
    if seed % 8 == 2 { Sizes::TINY } else { sizes }
}

fn run(script: &Script, sizes: Sizes, effort: &Effort, limit: u64) -> Tally {
    let device = SimDevice::new(script.seed);
    record(script, sizes, &device, device.clone()).unwrap_or_else(|e| panic!("seed {}: {e}", script.seed));
    enumerate(script, sizes_after(script.seed, sizes), &device.history(), effort, limit)
}

fn report(what: &str, tally: &Tally, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    let rate = tally.distinct as f64 / seconds;
    println!(
        "{what}: {} distinct states of {} images at {} points ({} kills), {} verified and written to again, {} crashes \
         inside recovery; {seconds:.1} s, {rate:.0} states/s",
        tally.distinct, tally.images, tally.points, tally.kills, tally.rewritten, tally.in_recovery
    );
    assert!(tally.violations.is_empty(), "{what}: {:#?}", tally.violations);
}

/// Long scripts, a sample of the losses at every point.
#[test]
fn power_cuts_of_long_runs() {
    let started = Instant::now();
    let plan = CrashPlan { exhaustive: 5, pairs: false, subsets: 8, tears: 4, rot: true, seed: 0 };
    let effort = Effort { plan, per_point: 8, rewrite_every: 10, recovery_every: 20, recovery_images: 6 };
    let mut tally = Tally::default();
    if let Some(seed) = number_from("PANDODB_CRASH_SEED") {
        let (script, sizes) = workload(seed);
        return report("one seed", &run(&script, sizes, &effort, u64::MAX), started);
    }
    let target = number_from("PANDODB_CRASH_STATES").unwrap_or(STATES);
    let mut seed = 0;
    while tally.distinct < target && tally.violations.is_empty() {
        let (script, sizes) = workload(seed);
        tally.add(run(&script, sizes, &effort, STATES_OF_SCRIPT));
        seed += 1;
    }
    report(&format!("seeds 0 to {seed}"), &tally, started);
    assert!(tally.distinct >= target);
}

/// Short scripts, every loss of the plan: all subsets of small windows, all pairs of large ones, every tear.
#[test]
fn every_power_cut_of_short_runs() {
    let started = Instant::now();
    let plan = CrashPlan { exhaustive: 7, pairs: true, subsets: 64, tears: 16, rot: true, seed: 0 };
    let effort = Effort { plan, per_point: usize::MAX, rewrite_every: 20, recovery_every: 50, recovery_images: 4 };
    let mut tally = Tally::default();
    for seed in 100..104 {
        let mix = Mix { steps: 12, blobs: 20, lazy: 10, buffered: 50, keys: 8 };
        tally.add(run(&Script::generate(seed, mix), Sizes::TINY, &effort, 3_000));
    }
    report("seeds 100 to 103, exhaustive", &tally, started);
    assert!(tally.distinct >= 1_000, "too few states to mean anything");
}
