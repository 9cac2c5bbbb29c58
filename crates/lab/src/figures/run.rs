//! [`run()`]: measures the steps of a figure one after the other.
//!
//! 1. If the figure needs the bandwidths of the device, the device is measured first, while the directory is empty.
//! 2. Each [`Step`] consists of a plan and the durability with which the engine is opened. Each step starts with a new
//!    store.
//! 3. The lines of PandoDB or of rivals that were measured elsewhere are added if they fit a step.

use std::path::PathBuf;
use std::time::Duration;

use pandodb::{Durability, IndexKind, IndexOptions};

use super::results::{Results, fits, is_ours};
use super::{Figure, probe};
use crate::bench::{self, Cache, Observer, Plan};
use crate::engine::{Mode, Result, Setup};
use crate::line::Line;
use crate::pando::Pando;

/// The minimum memory of a store.
const LEAST_MEMORY: usize = 1 << 20;
/// Shares of memory are multiples of this number, because the engine divides a budget into whole pages.
const MEMORY_GRAIN: usize = 128 << 10;
/// The number of clients per core if the figure does not vary threads. The number is more than one, because lookups
/// wait for the device.
const CLIENTS_A_CORE: usize = 4;

/// The scale of a measurement, and its directory.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The number of records as a share of the paper's records.
    pub scale: f64,
    /// The number of records; overrides `scale`.
    pub records: Option<u64>,
    /// The memory in bytes. By default, the memory is the same share of the data as in the paper.
    pub memory_budget: Option<usize>,
    /// The numbers of client threads for the figures that vary the threads. For other figures: if the list has exactly
    /// one number, this is the number of threads; otherwise they use four threads per core.
    pub threads: Vec<usize>,
    /// Maximum seconds of a workload. Loads have no limit and run to their end.
    pub seconds: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// The mode of the index.
    pub mode: Mode,
    /// Size in bytes of the file that is used to measure the device.
    pub probe_bytes: u64,
    /// Duration of each kind of read when the device is measured.
    pub probe_time: Duration,
    /// The directory for the stores.
    pub directory: PathBuf,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale {
            scale: 0.003,
            records: None,
            memory_budget: None,
            threads: Vec::new(),
            seconds: 10.0,
            seed: 1,
            mode: Mode::Product,
            probe_bytes: 256 << 20,
            probe_time: Duration::from_millis(1500),
            directory: PathBuf::from("."),
        }
    }
}

/// One run of the bench.
#[derive(Clone, Debug)]
pub struct Step {
    /// The workloads and sizes.
    pub plan: Plan,
    /// The durability of an acknowledged write.
    pub durability: Durability,
    /// PandoDB's index.
    pub index: IndexOptions,
    /// Bytes of a full memtable, or `None` for the engine's default.
    pub memtable_bytes: Option<usize>,
}

impl Scale {
    /// The number of records of a figure.
    pub fn records(&self, figure: &Figure) -> u64 {
        self.records.unwrap_or((figure.paper_records as f64 * self.scale) as u64).max(1)
    }

    /// Total bytes of a figure's keys and values.
    pub fn data_bytes(&self, figure: &Figure) -> u64 {
        self.records(figure) * figure.record_bytes()
    }

    /// The memory for a figure in bytes.
    pub fn memory(&self, figure: &Figure) -> usize {
        self.memory_budget.unwrap_or_else(|| self.memory_of(figure, figure.memory_share))
    }

    /// The memory in bytes for a given share of a figure's data.
    pub fn memory_of(&self, figure: &Figure, share: f64) -> usize {
        let bytes = self.data_bytes(figure) as f64 * share;
        (bytes as usize / MEMORY_GRAIN * MEMORY_GRAIN).max(LEAST_MEMORY)
    }

    /// The number of threads of a figure that does not vary them.
    pub fn many(&self) -> usize {
        match self.threads[..] {
            [only] => only,
            _ => CLIENTS_A_CORE * cores(),
        }
    }

    /// The numbers of threads of a figure that varies the threads. The default is the powers of two up to twice the
    /// number of cores.
    pub fn sweep(&self) -> Vec<usize> {
        if self.threads.is_empty() {
            (0..).map(|power| 1 << power).take_while(|threads| *threads <= 2 * cores()).collect()
        } else {
            self.threads.clone()
        }
    }

    /// A step with the figure's sizes.
    pub fn step(&self, figure: &Figure, workloads: &str, threads: usize) -> Step {
        let plan = Plan {
            workloads: crate::workload::parse(workloads).expect("names from the catalogue"),
            records: self.records(figure),
            seconds: Some(self.seconds),
            threads,
            setup: Setup { memory_budget: self.memory(figure), mode: self.mode, deterministic: false },
            key_len: figure.key_len,
            value_len: figure.value_len,
            seed: self.seed,
            // This is the default of `pando-rivals`.
            cache: Cache::Cold,
            directory: self.directory.clone(),
            ..Plan::default()
        };
        let index = IndexOptions::from(IndexKind::default());
        Step { plan, durability: Durability::Buffered, index, memtable_bytes: None }
    }
}

impl Step {
    /// PandoDB as this step measures it.
    fn opener(&self) -> Pando {
        let opener = Pando::new(self.index.clone()).durability(self.durability);
        match self.memtable_bytes {
            Some(bytes) => opener.tuned(move |builder| builder.memtable_bytes(bytes)),
            None => opener,
        }
    }
}

/// The number of processors that the process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lines that exist already, and whether to measure more lines.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Lines that were measured elsewhere.
    pub lines: Vec<Line>,
    /// Whether to measure nothing, because the given lines include the lines of PandoDB.
    pub only: bool,
}

/// Measures a figure.
///
/// # Errors
/// The first error of the engine, or of the device if the figure measures the device.
pub fn run(figure: &'static Figure, scale: &Scale, given: Given, observer: &mut dyn Observer) -> Result<Results> {
    let steps = (figure.steps)(figure, scale);
    let device = match figure.needs_device {
        true => {
            observer.prepares("probe the device");
            Some(probe::probe(&scale.directory, scale.probe_bytes, scale.probe_time)?)
        }
        false => None,
    };
    let mut lines = Vec::new();
    for step in steps.iter().filter(|_| !given.only) {
        let opener = step.opener();
        let mut both = Both { lines: Vec::new(), observer };
        bench::run(&step.plan, &opener, &mut both)?;
        lines.append(&mut both.lines);
        bench::remove_store(&step.plan.directory, &opener)?;
    }
    let (fitting, others): (Vec<Line>, Vec<Line>) =
        given.lines.into_iter().partition(|line| steps.iter().any(|step| fits(line, step)));
    lines.extend(fitting.into_iter().filter(|line| given.only || !is_ours(line)));
    Ok(Results { figure, scale: scale.clone(), lines, set_aside: others.len(), device })
}

/// Collects the lines, and forwards all calls to another observer.
struct Both<'a> {
    lines: Vec<Line>,
    observer: &'a mut dyn Observer,
}

impl Observer for Both<'_> {
    fn prepares(&mut self, what: &str) {
        self.observer.prepares(what);
    }

    fn starts(&mut self, workload: &crate::workload::Workload) {
        self.observer.starts(workload);
    }

    fn tick(&mut self, tick: &bench::Tick) {
        self.observer.tick(tick);
    }

    fn ends(&mut self, line: &Line) {
        self.lines.push(line.clone());
        self.observer.ends(line);
    }
}
