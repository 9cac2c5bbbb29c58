//! The arguments of `pando sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pandodb::IndexKind;
use pandodb_proof::Kind;

use super::parse_size;

const SIM_HELP: &str = "\
Everything happens in memory or in a temporary directory; no store of yours is touched.

Without --seconds, --runs, --units, --ci and --soak one unit is run: that of the seed. The same seed gives the same states, counts and \
digest every time (kills excepted: they are aimed with a clock).

  pando sim crash --seed 7              one unit
  pando sim all --seconds 60            all kinds, a minute together
  pando sim all --ci                    what a change must pass
  pando sim all --soak --state soak/    a night; interrupt and repeat: it goes on where it was";

/// `pando sim`
#[derive(Debug, Args)]
#[command(after_long_help = SIM_HELP)]
pub struct SimArgs {
    /// What to break.
    #[arg(value_enum)]
    pub kind: SimKind,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Go on for so many seconds.
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Go on until so many runs (states, faults, images, actions, kills, transactions) are counted.
    #[arg(long, value_name = "N", conflicts_with_all = ["ci", "soak"])]
    pub runs: Option<u64>,
    /// Go on for so many seeds.
    #[arg(long, value_name = "N")]
    pub units: Option<u64>,
    /// Go on until the figure of each kind for a change is reached.
    #[arg(long, conflicts_with = "soak")]
    pub ci: bool,
    /// Go on until the figure of each kind for a night is reached.
    #[arg(long)]
    pub soak: bool,
    /// How many threads run seeds side by side; as many as there are cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Keep the totals in this directory, and go on from those that are there.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Only these steps of the seed's history, to see a shortened failure again.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["seconds", "runs", "units", "ci", "soak", "state"])]
    pub steps: Option<Vec<usize>>,
    /// With `disk`: run the seed on the file system of this directory instead of a simulated one. It is filled; make it small.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["seconds", "runs", "units", "ci", "soak", "state", "steps"])]
    pub dir: Option<PathBuf>,
    /// With `--dir`: the store's memory budget, such as 16MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "dir")]
    pub memory_budget: Option<usize>,
    /// Use only this type of index; without it, each seed draws one.
    #[arg(long, value_name = "INDEX", value_parser = super::parse_kind)]
    pub index: Option<IndexKind>,
    /// Print a line of JSON for each kind.
    #[arg(long)]
    pub json: bool,
}

/// The kinds, as they are typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimKind {
    /// Power cuts and kills at every point of recorded runs.
    Crash,
    /// Each kind of fault at every call, and full disks.
    Faults,
    /// Damage to stores at rest.
    Corrupt,
    /// Random histories of the whole interface, against sorted maps.
    Model,
    /// A real process on the real disk, killed.
    Kill,
    /// Histories of many clients against what they must have seen.
    Histories,
    /// Disks of many sizes that are filled and emptied again.
    Disk,
    /// Verifications of a store beside its writers.
    Verify,
    /// One after the other.
    All,
}

impl SimKind {
    /// The kinds that are meant.
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
    /// The store.
    pub store: PathBuf,
    /// What the store's sizes follow from.
    pub seed: u64,
    /// How many children there were before.
    pub round: u64,
    /// The only type of index that is used.
    #[arg(value_parser = super::parse_kind)]
    pub index: Option<IndexKind>,
}
