//! The arguments of `pando lab`. The arguments of each command are in a separate file.

use clap::{Args, Subcommand};

use super::lab_figure::{LabFigureArgs, LabFiguresArgs};
use super::lab_filters::FiltersArgs;
use super::lab_paged::PagedArgs;
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
    /// List the figures, and the parts of each figure that cannot be measured.
    Figures(LabFiguresArgs),
    /// Double the number of records repeatedly and compare the costs with the bounds of the sources.
    Theory(TheoryArgs),
    /// Show at which file offsets writes occur over time, and how sequential they are.
    Order(OrderArgs),
    /// Sort the records of a load and write them to disk: a practical lower bound for the time of a load.
    Sort(SortArgs),
    /// Compare filters, of single runs and of all runs of a node: bits per key, false positives, nanoseconds to build
    /// and to query a filter.
    Filters(FiltersArgs),
    /// Repeat experiments of source 000 on its own trees of pages: a B+-tree and a Bε-tree in a page buffer.
    Paged(PagedArgs),
    /// Compare buffer pools with one thread and with two: nanoseconds per hit and per miss, hit ratios, memory
    /// overhead. Also measure cached lookups in a store.
    Pool(PoolArgs),
}
