//! Running a scenario under schedules: batches of executions, each batch under one strategy from one seed.
//!
//! A batch is deterministic: the same scenario, strategy, seed and length give the same schedules and, if one fails, the
//! same failure. So is a single execution from its schedule, which `shuttle` prints when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{PoisonError, RwLock, mpsc};

use pandodb::IndexKind;
use pandodb::base::seeded::activate;
use pandodb::device::sim::SimImage;
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::indexes;
use crate::scenarios::{Scenario, Twist};

/// Points that an execution may pass: far more than any needs, so one that passes them all goes round in circles.
const MAX_STEPS: usize = 400_000;
/// Bytes of the stack of an explored thread.
const STACK_BYTES: usize = 512 << 10;
/// Priority changes of a PCT schedule, plus one: bugs of that depth are found with a known probability.
const PCT_DEPTH: usize = 3;

/// How schedules are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// At each point any thread that can run, all alike.
    Random,
    /// Probabilistic concurrency testing: priorities that change at few random points.
    Pct,
    /// One after another, depth first; the seed does not matter.
    Dfs,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 3] = [Strategy::Random, Strategy::Pct, Strategy::Dfs];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Random => "random",
            Strategy::Pct => "pct",
            Strategy::Dfs => "dfs",
        }
    }
}

/// Executions that are run together: `strategy:seed:length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How their schedules are chosen.
    pub strategy: Strategy,
    /// What all choices follow from.
    pub seed: u64,
    /// How many.
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
            _ => Err(format!("`{text}` is no plan, which looks like `pct:7:100`")),
        }
    }
}

/// What became of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Executions that ended as they should.
    pub runs: usize,
    /// The first that did not, in words.
    pub failure: Option<String>,
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    config.failure_persistence = FailurePersistence::Print;
    // That orderings weaker than sequential consistency are not modelled is known: the models of `loom` are for those.
    config.silence_warnings = true;
    config
}

/// Runs a batch; stops at its first failure.
pub fn run(scenario: &Scenario, twist: Twist, plan: Plan) -> Outcome {
    indexes::with(indexes::of(plan.seed), || match plan.strategy {
        Strategy::Random => drive(scenario, twist, RandomScheduler::new_from_seed(plan.seed, plan.length)),
        Strategy::Pct => drive(scenario, twist, PctScheduler::new_from_seed(plan.seed, PCT_DEPTH, plan.length)),
        Strategy::Dfs => drive(scenario, twist, DfsScheduler::new(Some(plan.length), true)),
    })
}

/// Runs one execution by a schedule that `shuttle` printed, with the index that its batch used.
pub fn replay(scenario: &Scenario, twist: Twist, schedule: &str, index: IndexKind) -> Outcome {
    indexes::with(index, || drive(scenario, twist, ReplayScheduler::new_from_encoded(schedule.trim())))
}

/// The engine's mistakes are switched on for the whole process: who wants one is alone meanwhile.
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

/// Runs `work` in one execution without choices and hands out what it made.
pub fn alone<T: Send + 'static>(work: impl Fn() -> T + Send + Sync + 'static) -> T {
    let (sender, made) = mpsc::channel();
    let scheduler = DfsScheduler::new(Some(1), true);
    Runner::new(scheduler, config()).run(move || drop(sender.send(work())));
    made.recv().expect("the execution ended")
}
