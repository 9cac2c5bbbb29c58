//! The arguments of `pando sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pandodb::IndexKind;
use pandodb_proof::Kind;

use super::parse_size;

const SIM_HELP: &str = "\
Runs in memory or in a temporary directory; no store of yours is touched.

Runs the one unit of the seed, unless --seconds, --runs, --units, --ci or --soak is given. The same seed gives the \
same states, counts and digest every time, except for kills, which are timed with a clock.

  pando sim crash --seed 7              one unit
  pando sim all --seconds 60            all kinds, 60 seconds in total
  pando sim all --ci                    the runs that a change must pass
  pando sim all --soak --state soak/    a night's runs; after an interruption, repeat to continue";

/// `pando sim`
#[derive(Debug, Args)]
#[command(after_long_help = SIM_HELP)]
pub struct SimArgs {
    /// The kind of test.
    #[arg(value_enum)]
    pub kind: SimKind,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Run for T seconds.
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Run until N cases are counted. A case is a state, fault, image, action, kill, transaction, disk or round,
    /// depending on the kind of test.
    #[arg(long, value_name = "N", conflicts_with_all = ["ci", "soak"])]
    pub runs: Option<u64>,
    /// Run N seeds.
    #[arg(long, value_name = "N")]
    pub units: Option<u64>,
    /// Run, for each kind, the number of cases that every change must pass.
    #[arg(long, conflicts_with = "soak")]
    pub ci: bool,
    /// Run, for each kind, the number of cases of an overnight soak.
    #[arg(long)]
    pub soak: bool,
    /// The number of threads that run seeds concurrently; by default one for each core.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Keep the totals in this directory, and continue from the totals that the directory already has.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Run only these steps of the seed's history, to reproduce a minimised failure.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["seconds", "runs", "units", "ci", "soak", "state"])]
    pub steps: Option<Vec<usize>>,
    /// With `disk`: run the seed on the file system of this directory instead of a simulated one. The run fills this
    /// file system, so use a small one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["seconds", "runs", "units", "ci", "soak", "state", "steps"])]
    pub dir: Option<PathBuf>,
    /// With `--dir`: the store's memory limit, such as 16MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "dir")]
    pub memory_budget: Option<usize>,
    /// Use only this index type; by default, each seed selects an index type.
    #[arg(long, value_name = "INDEX", value_parser = super::parse_kind)]
    pub index: Option<IndexKind>,
    /// Print a line of JSON for each kind.
    #[arg(long)]
    pub json: bool,
}

/// The kinds as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimKind {
    /// Power cuts and kills at every point of recorded runs.
    Crash,
    /// Each kind of I/O fault at every call, and full disks.
    Faults,
    /// Damage to stores that are not open.
    Corrupt,
    /// Random operations on the whole interface, compared with sorted maps.
    Model,
    /// A real process on a real disk, killed by SIGKILL.
    Kill,
    /// Isolation: histories of concurrent clients, checked for anomalies.
    Histories,
    /// Disks of many sizes, filled and emptied again.
    Disk,
    /// Verification of a store while it is written to.
    Verify,
    /// All kinds, one after the other.
    All,
}

impl SimKind {
    /// The kinds to run.
    pub fn kinds(self) -> Vec<Kind> {
        match self {
            SimKind::Crash => vec![Kind::Crash],
            SimKind::Faults => vec![Kind::Faults],
            SimKind::Corrupt => vec![Kind::Corrupt],
            SimKind::Model => vec![Kind::Model],
            SimKind::Kill => vec![Kind::Kill],
            SimKind::Histories => vec![Kind::Histories],
            SimKind::Disk => vec![Kind::Disk],
            SimKind::Verify => vec![Kind::Verify],
            SimKind::All => Kind::ALL.to_vec(),
        }
    }
}

/// `pando sim-child`
#[derive(Debug, Args)]
pub struct SimChildArgs {
    /// The store's directory.
    pub store: PathBuf,
    /// The seed, which determines the size options of the store.
    pub seed: u64,
    /// The number of children that ran before this child.
    pub round: u64,
    /// The index type to use, instead of a type drawn from the seed.
    #[arg(value_parser = super::parse_kind)]
    pub index: Option<IndexKind>,
}
