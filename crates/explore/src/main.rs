//! Explores thread schedules of PandoDB.
//!
//! The engine is built with its feature `explore`. With this feature, each use of a lock, an atomic or a condition
//! variable, and each I/O, is a point at which `shuttle` chooses the thread that runs next. Small scenarios
//! ([`scenarios`]) run under many schedules: uniformly random schedules, PCT schedules, and depth-first schedules for
//! the smallest scenarios. A wrong result, a panic, a deadlock or a livelock ends a scenario. The program prints this
//! failure, with the command that reproduces it.
//!
//! ```text
//! cargo run --manifest-path crates/explore/Cargo.toml --release -- --schedules 100000 --seconds 240 --seed 7 --json
//! ```
//!
//! With `--canaries`, the program runs every scenario with its deliberate mistake instead, and fails if there is a
//! mistake that the explorer does not find.

mod args;
mod device;
mod explore;
mod indexes;
mod scenarios;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use args::{Action, Args};
use explore::{Outcome, Plan, Strategy, replay, run};
use scenarios::{Scenario, Twist};

/// The number of executions in a batch.
const BATCH: usize = 250;
/// The maximum number of batches that are run to find the mistake of a canary.
const CANARY_BATCHES: u64 = 200;
/// Number of system threads that run batches concurrently.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let args = match args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(words) => {
            println!("{words}");
            return ExitCode::from(2);
        }
    };
    let fine = match &args.action {
        Action::List => {
            scenarios::all().iter().for_each(|scenario| println!("{:12} {}", scenario.name, scenario.claim));
            true
        }
        Action::Replay(schedule) => {
            let outcome = replay(args.scenarios[0], args.twist(), schedule, args.index);
            report(&args, None, outcome)
        }
        Action::Again(plan) => report(&args, Some(*plan), run(args.scenarios[0], args.twist(), *plan)),
        Action::Canaries => canaries(&args),
        Action::Explore => explore(&args),
    };
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the result of a single batch or replay. Returns whether it passed.
fn report(args: &Args, plan: Option<Plan>, outcome: Outcome) -> bool {
    let what = plan.map_or("the schedule".to_owned(), |plan| plan.to_string());
    match &outcome.failure {
        None => println!("{}: {what}: {} executions, no failure", args.scenarios[0].name, outcome.runs),
        Some(failure) => println!("{}: {what}: failed after {}: {failure}", args.scenarios[0].name, outcome.runs),
    }
    outcome.failure.is_none()
}

/// The command that reproduces a failure.
fn again(scenario: &Scenario, plan: Plan) -> String {
    format!(
        "cargo run --manifest-path crates/explore/Cargo.toml --release -- --scenario {} --again {plan}",
        scenario.name
    )
}

/// The numbers of executions and failures up to now.
#[derive(Default)]
struct Tally {
    runs: BTreeMap<(&'static str, Strategy), usize>,
    failures: Vec<(&'static str, String)>,
}

impl Tally {
    fn total(&self) -> usize {
        self.runs.values().sum()
    }

    /// Adds the result of a batch. A failed execution counts too.
    fn add(&mut self, scenario: &'static Scenario, plan: Plan, outcome: Outcome) {
        let runs = outcome.runs + usize::from(outcome.failure.is_some());
        *self.runs.entry((scenario.name, plan.strategy)).or_default() += runs;
        if let Some(failure) = outcome.failure {
            eprintln!("FAILED {}: {failure}\n  again: {}", scenario.name, again(scenario, plan));
            let (name, index) = (scenario.name, scenario.index(plan.seed));
            eprintln!("  or with the schedule printed above: --scenario {name} --index {index} --replay <schedule>");
            self.failures.push((scenario.name, again(scenario, plan)));
        }
    }

    fn json(&self, seed: u64, seconds: f64) -> String {
        let mut scenarios: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((name, strategy), runs) in &self.runs {
            scenarios.entry(name).or_default().push(format!("\"{}\":{runs}", strategy.name()));
        }
        let scenarios: Vec<String> =
            scenarios.into_iter().map(|(name, counts)| format!("\"{name}\":{{{}}}", counts.join(","))).collect();
        let failed: Vec<String> = self.failures.iter().map(|(_, again)| format!("\"{again}\"")).collect();
        format!(
            "{{\"kind\":\"schedules\",\"seed\":{seed},\"seconds\":{seconds:.1},\"runs\":{},\"rate\":{:.0},\
             \"failures\":{},\"scenarios\":{{{}}},\"again\":[{}]}}",
            self.total(),
            self.total() as f64 / seconds.max(0.001),
            self.failures.len(),
            scenarios.join(","),
            failed.join(",")
        )
    }
}

/// The batches to run. They go round over all scenarios, and alternate between the strategies. Every depth-first batch
/// of a scenario starts with the same schedules. So each tiny scenario gets only one depth-first batch, which is long.
struct Queue {
    rounds: u64,
    next: usize,
}

impl Queue {
    fn next(&mut self, args: &Args) -> (&'static Scenario, Plan) {
        if self.next == args.scenarios.len() {
            (self.rounds, self.next) = (self.rounds + 1, 0);
        }
        let scenario = args.scenarios[self.next];
        self.next += 1;
        let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(self.rounds * 1_009 + self.next as u64);
        let plan = match self.rounds {
            0 if scenario.tiny => Plan { strategy: Strategy::Dfs, seed, length: 8 * BATCH },
            round if round % 2 == 0 => Plan { strategy: Strategy::Random, seed, length: BATCH },
            _ => Plan { strategy: Strategy::Pct, seed, length: BATCH },
        };
        (scenario, plan)
    }
}

/// Runs batches until the number of executions or the time limit is reached. Returns whether all batches passed.
fn explore(args: &Args) -> bool {
    let started = Instant::now();
    let end = started + Duration::from_secs(args.seconds);
    let (queue, tally) = (Mutex::new(Queue { rounds: 0, next: 0 }), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while Instant::now() < end {
                    let (scenario, plan) = queue.lock().expect("sound").next(args);
                    {
                        let tally = tally.lock().expect("sound");
                        if tally.total() >= args.schedules || tally.failures.len() >= args.scenarios.len() {
                            return;
                        }
                        if tally.failures.iter().any(|(name, _)| *name == scenario.name) {
                            continue;
                        }
                    }
                    let outcome = run(scenario, Twist::None, plan);
                    tally.lock().expect("sound").add(scenario, plan, outcome);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("sound");
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        println!("{}", tally.json(args.seed, seconds));
    } else {
        for ((name, strategy), runs) in &tally.runs {
            println!("{name:12} {:8} {runs}", strategy.name());
        }
        println!("{} schedules in {seconds:.1} s, {} failures", tally.total(), tally.failures.len());
    }
    let short = tally.failures.is_empty() && tally.total() < args.schedules;
    if short {
        eprintln!("only {} of {} schedules within the time limit", tally.total(), args.schedules);
    }
    tally.failures.is_empty() && !short
}

/// Runs all canaries. Returns whether every canary was found.
fn canaries(args: &Args) -> bool {
    let mut all = true;
    for scenario in &args.scenarios {
        let found = find_canary(scenario, args.seed);
        match &found {
            Some((plan, runs, failure)) => println!("{:12} found by {plan} after {runs}: {failure}", scenario.name),
            None => println!("{:12} NOT FOUND", scenario.name),
        }
        all &= found.is_some();
    }
    all
}

/// Runs the canary of a scenario until the mistake is found.
fn find_canary(scenario: &Scenario, seed: u64) -> Option<(Plan, usize, String)> {
    (0..CANARY_BATCHES).find_map(|i| {
        let strategy = if i % 2 == 0 { Strategy::Random } else { Strategy::Pct };
        let plan = Plan { strategy, seed: seed + i, length: BATCH };
        let outcome = run(scenario, Twist::Canary, plan);
        outcome.failure.map(|failure| (plan, outcome.runs, failure))
    })
}
