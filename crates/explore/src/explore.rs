//! Runs scenarios under schedules, in batches of executions. A batch has one strategy and one seed.
//!
//! A batch is deterministic: the same scenario, strategy, seed and length give the same schedules, and the same failure
//! if there is one. A single execution can be replayed from its schedule, which `shuttle` prints when the execution
//! fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{PoisonError, RwLock, mpsc};

use pandodb::base::seeded::activate;
use pandodb::device::sim::SimImage;
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::indexes::{self, Variant};
use crate::scenarios::{Scenario, Twist};

/// The maximum number of points in an execution. No correct execution needs nearly as many points, so an execution that
/// exceeds the maximum is in a livelock.
const MAX_STEPS: usize = 400_000;
/// The stack size of an explored thread in bytes.
const STACK_BYTES: usize = 512 << 10;
/// The depth of a PCT schedule: the number of its priority changes, plus one. PCT finds bugs of this depth with a known
/// minimum probability.
const PCT_DEPTH: usize = 3;

/// The strategy that chooses the schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// Chooses any runnable thread at each point, with equal probability.
    Random,
    /// Probabilistic concurrency testing (PCT): threads have priorities, which change at a few random points.
    Pct,
    /// Enumerates schedules depth-first. The seed has no effect on the schedules.
    Dfs,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 3] = [Strategy::Random, Strategy::Pct, Strategy::Dfs];

    /// The name of the strategy in reports.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Random => "random",
            Strategy::Pct => "pct",
            Strategy::Dfs => "dfs",
        }
    }
}

/// The parameters of a batch: `strategy:seed:length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The strategy that chooses the schedules.
    pub strategy: Strategy,
    /// The seed of all random choices.
    pub seed: u64,
    /// Number of executions.
    pub length: usize,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.strategy.name(), self.seed, self.length)
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let strategy = Strategy::ALL.into_iter().find(|strategy| parts[0] == strategy.name());
        match (strategy, parts.get(1).map(|n| n.parse()), parts.get(2).map(|n| n.parse())) {
            (Some(strategy), Some(Ok(seed)), Some(Ok(length))) => Ok(Plan { strategy, seed, length }),
            _ => Err(format!("`{text}` is not a batch: write STRATEGY:SEED:LENGTH, for example `pct:7:100`")),
        }
    }
}

/// The result of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of executions that passed.
    pub runs: usize,
    /// The message of the first failure.
    pub failure: Option<String>,
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    config.failure_persistence = FailurePersistence::Print;
    // This turns off the warning that orderings weaker than sequential consistency are not modelled. The models of
    // `loom` cover weaker orderings.
    config.silence_warnings = true;
    config
}

/// Runs a batch, and stops at the first failure.
pub fn run(scenario: &Scenario, twist: Twist, plan: Plan) -> Outcome {
    indexes::with(scenario.index(plan.seed), || match plan.strategy {
        Strategy::Random => drive(scenario, twist, RandomScheduler::new_from_seed(plan.seed, plan.length)),
        Strategy::Pct => drive(scenario, twist, PctScheduler::new_from_seed(plan.seed, PCT_DEPTH, plan.length)),
        Strategy::Dfs => drive(scenario, twist, DfsScheduler::new(Some(plan.length), true)),
    })
}

/// Replays one execution from a schedule that `shuttle` printed, with the index of the execution's batch.
pub fn replay(scenario: &Scenario, twist: Twist, schedule: &str, index: Variant) -> Outcome {
    indexes::with(index, || drive(scenario, twist, ReplayScheduler::new_from_encoded(schedule.trim())))
}

/// An active seeded bug affects the whole process. So a batch with a seeded bug holds this lock exclusively, and
/// batches without a bug share the lock.
static MISTAKES: RwLock<()> = RwLock::new(());

fn drive(scenario: &Scenario, twist: Twist, scheduler: impl Scheduler + 'static) -> Outcome {
    let start = scenario.start();
    let Some(bug) = scenario.bug.filter(|_| twist == Twist::Canary) else {
        let _shared = MISTAKES.read().unwrap_or_else(PoisonError::into_inner);
        return execute(scenario.body, start, twist, scheduler);
    };
    let _alone = MISTAKES.write().unwrap_or_else(PoisonError::into_inner);
    activate(Some(bug));
    let outcome = execute(scenario.body, start, twist, scheduler);
    activate(None);
    outcome
}

fn execute(body: fn(&SimImage, Twist), start: SimImage, twist: Twist, scheduler: impl Scheduler + 'static) -> Outcome {
    let (sender, done) = mpsc::channel();
    let runner = Runner::new(scheduler, config());
    let result = catch_unwind(AssertUnwindSafe(|| {
        runner.run(move || {
            body(&start, twist);
            let _ = sender.send(());
        })
    }));
    let runs = done.try_iter().count();
    let failure = result.err().map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    });
    Outcome { runs, failure }
}

/// Runs `work` once, as an execution of the explorer, and returns the result.
pub fn alone<T: Send + 'static>(work: impl Fn() -> T + Send + Sync + 'static) -> T {
    let (sender, made) = mpsc::channel();
    let scheduler = DfsScheduler::new(Some(1), true);
    Runner::new(scheduler, config()).run(move || drop(sender.send(work())));
    made.recv().expect("the execution ended")
}
