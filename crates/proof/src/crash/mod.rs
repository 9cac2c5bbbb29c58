//! Power cuts and kills at every point of recorded runs.
//!
//! A unit consists of recorded histories and the crashes that are tried on them. The seed chooses one of three classes
//! of units:
//!
//! | class | of 8 seeds | history | crashes |
//! | --- | --- | --- | --- |
//! | long | 4 | 40 to 120 steps | a sample at every operation |
//! | window | 2 | 14 steps; a unit covers one of 16 parts of the windows of the history | all crashes that [`CrashPlan::default`] lists |
//! | alphabet | 2 | [`ace::SLICE`] histories of at most four steps | all crashes of a smaller plan, at every sync |
//!
//! A window of a history ends immediately before a sync. Every loss that is possible inside a window is also possible
//! at the end of the window.

pub mod ace;
mod enumerate;
mod recovery;
mod window;

use std::sync::Arc;

use pandodb::device::Device;
use pandodb::device::sim::{CrashPlan, SimDevice};

pub use self::enumerate::{Effort, enumerate};
pub use self::window::Window;
use crate::drive::{Sizes, record};
use crate::indexes;
use crate::minimise::minimise;
use crate::report::{Tally, Unit};
use crate::script::{Mix, Script, Step};

/// The number of units that share the windows of one short history.
const PARTS: u64 = 16;
/// The maximum number of replays while a failing history is minimised.
const TRIES: usize = 60;

/// A long history, of one of four alternating kinds. Histories of the third kind have a long log. One half of them is
/// reopened with a smaller memtable than before, so that recovery must pack; the other half is in paper mode. One half
/// of the histories of the fourth kind is written in paper mode and reopened in product mode. The number of log streams
/// (1 to 3) is drawn separately for writing and for reopening, and one case of three uses compression.
fn long(number: u64) -> Case {
    let (mix, sizes) = match number % 4 {
        0 => (Mix { steps: 60, blobs: 10, lazy: 15, buffered: 45, keys: 60 }, Sizes::TINY),
        1 => (Mix { steps: 120, blobs: 3, lazy: 30, buffered: 60, keys: 200 }, Sizes::TINY),
        2 => (
            Mix { steps: 40, blobs: 40, lazy: 10, buffered: 40, keys: 30 },
            if number % 8 == 6 { Sizes::LOGGY_PAPER } else { Sizes::LOGGY },
        ),
        _ => (
            Mix { steps: 80, blobs: 15, lazy: 5, buffered: 20, keys: 100 },
            if number % 8 == 3 { Sizes::PAPER } else { Sizes::TINY },
        ),
    };
    let plan = CrashPlan { exhaustive: 5, pairs: false, subsets: 8, tears: 4, rot: true, seed: 0 };
    let reopened = if matches!(number % 8, 2 | 3) { Sizes::TINY } else { sizes };
    Case {
        script: if number % 4 == 2 {
            Script::generate(number, mix)
        } else {
            Script::generate(number, mix).with_transactions().with_loads(mix)
        },
        sizes: sizes.with_streams(number).drawn(number),
        reopened: reopened.with_streams(!number).drawn(!number),
        effort: Effort {
            plan,
            per_point: 6,
            part: None,
            skip: 0,
            rewrite_every: 10,
            recovery_every: 20,
            recovery_images: 6,
        },
    }
}

/// A short history. In one of [`PARTS`] parts of its windows, every choice of the crash plan is tried.
fn window(number: u64) -> Case {
    let mix = Mix { steps: 14, blobs: 20, lazy: 10, buffered: 50, keys: 8 };
    let part = Some((number % PARTS, PARTS));
    Case {
        script: Script::generate(number / PARTS, mix).with_transactions().with_loads(mix),
        sizes: Sizes::TINY.with_streams(number / PARTS).drawn(number / PARTS),
        reopened: Sizes::TINY.with_streams(!number).drawn(!number),
        effort: Effort {
            plan: CrashPlan::default(),
            per_point: 2,
            part,
            skip: 0,
            rewrite_every: 20,
            recovery_every: 20,
            recovery_images: 4,
        },
    }
}

/// A history and what to try on it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The steps.
    pub script: Script,
    /// The size options of the store that runs the script.
    pub sizes: Sizes,
    /// The size options of the stores that are opened on the images.
    pub reopened: Sizes,
    /// The crashes to try.
    pub effort: Effort,
}

impl Case {
    /// Records the history on a simulated device and tries the crashes. The store uses the device that `wrap` returns.
    pub fn run(&self, wrap: impl Fn(Arc<SimDevice>) -> Arc<dyn Device>) -> Tally {
        let mut tally = Tally::default();
        let sim = SimDevice::new(self.script.seed);
        match record(&self.script, self.sizes, &sim, wrap(sim.clone())) {
            Ok(()) => tally.add(enumerate(&self.script, self.reopened, &sim.history(), &self.effort)),
            Err(e) => tally.fail(self.script.seed, format!("without any crash: {e}")),
        }
        let transactions = self.script.steps.iter().filter(|step| matches!(step, Step::Transact(..)));
        tally.count("transactions in scripts", transactions.count() as u64);
        indexes::count(self.sizes.kind(), &mut tally);
        tally
    }

    fn keep(&self, steps: &[usize]) -> Case {
        Case { script: self.script.keep(steps), ..self.clone() }
    }
}

/// The number of units, from seed 0 on, that cover every history of at most three letters.
pub fn units_of_three_letters() -> u64 {
    ace::units_up_to(3).div_ceil(2) * 8
}

/// Runs a unit of the harness.
pub fn run(unit: &Unit) -> Tally {
    let (round, class) = (unit.seed / 8, unit.seed % 8);
    let case = match class {
        0..=3 => long(round * 4 + class),
        4..=5 => window(round * 2 + class - 4),
        _ => return ace::run(unit, round * 2 + class - 6),
    };
    run_case(&case, unit)
}

/// Runs a case, or a selection of its steps. A failure is returned with a minimised history.
fn run_case(case: &Case, unit: &Unit) -> Tally {
    let tally_of = |case: &Case| case.run(|sim| sim);
    let chosen = match &unit.steps {
        Some(steps) => case.keep(steps),
        None => case.clone(),
    };
    let mut tally = tally_of(&chosen);
    if let Some(failure) = tally.failures.first_mut() {
        let steps = match &unit.steps {
            Some(steps) => steps.clone(),
            None => minimise(case.script.steps.len(), TRIES, |kept| !tally_of(&case.keep(kept)).failures.is_empty()),
        };
        failure.history = case.script.keep(&steps).words();
        failure.steps = Some(steps);
    }
    tally.failures.iter_mut().for_each(|failure| failure.seed = unit.seed);
    tally
}
