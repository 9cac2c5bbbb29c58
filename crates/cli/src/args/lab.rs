//! The arguments of `pando lab`; those of each command are in a file of their own.

use clap::{Args, Subcommand};

use super::lab_figure::{LabFigureArgs, LabFiguresArgs};

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
}
