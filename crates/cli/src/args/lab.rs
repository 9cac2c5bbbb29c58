//! The arguments of `pando lab`. The arguments of each command are in a separate file.

use clap::{Args, Subcommand};

use super::lab_figure::{LabFigureArgs, LabFiguresArgs};
use super::lab_filters::FiltersArgs;
use super::lab_pool::PoolArgs;
use super::lab_theory::{OrderArgs, SortArgs, TheoryArgs};

/// `pando lab`
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The commands of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Repeat the experiment of a published figure and compare each claim with the measurement.
    Figure(Box<LabFigureArgs>),
    /// List the figures, and the parts of them that cannot be measured here.
    Figures(LabFiguresArgs),
    /// Double the number of records repeatedly and compare the costs with the bounds of the sources.
    Theory(TheoryArgs),
    /// Show at which file offsets writes occur over time, and how sequential they are.
    Order(OrderArgs),
    /// Only sort the records of a load to disk: a practical lower bound for the time of a load.
    Sort(SortArgs),
    /// Compare filters, single and for all runs of a node: bits a key, false positives, nanoseconds to build and to
    /// query.
    Filters(FiltersArgs),
    /// Compare buffer pools with one thread and with two: nanoseconds a hit and a miss, hit ratios, overhead; and
    /// cached lookups in a store.
    Pool(PoolArgs),
}
