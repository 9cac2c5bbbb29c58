//! The arguments of `pando lab`: what can be asked of the lab beside workloads.

use clap::{Args, Subcommand};

use super::lab_theory::{OrderArgs, SortArgs, TheoryArgs};

/// `pando lab`
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The lab's experiments.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Double the records and hold the costs against the bounds of the sources.
    Theory(TheoryArgs),
    /// Show where in the file writes go over time, and how sequential they are.
    Order(OrderArgs),
    /// Merely sort the records of a load to disk: what no load can undercut by much.
    Sort(SortArgs),
}
