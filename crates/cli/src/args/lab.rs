//! The arguments of `pando lab`; those of each command are in a file of their own.

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

/// What the lab does.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Measure a figure of a source again: each claim beside what is measured here.
    Figure(Box<LabFigureArgs>),
    /// List the figures, and what cannot be had of them.
    Figures(LabFiguresArgs),
    /// Double the records and hold the costs against the bounds of the sources.
    Theory(TheoryArgs),
    /// Show where in the file writes go over time, and how sequential they are.
    Order(OrderArgs),
    /// Merely sort the records of a load to disk: what no load can undercut by much.
    Sort(SortArgs),
    /// Compare filters: bits a key, mistakes, nanoseconds to build and to ask; one alone, and those of a node's runs.
    Filters(FiltersArgs),
    /// Compare buffer pools: nanoseconds of a hit and of a miss by one thread and by two, shares of hits, overhead; and cached
    /// lookups in a store by one thread and by two.
    Pool(PoolArgs),
}
