//! `lab`: the experiments.

use crate::args::{LabArgs, LabCommand};
use crate::failure::Outcome;

/// Does the experiment.
///
/// # Errors
/// Those of the experiment.
pub fn run(args: &LabArgs) -> Outcome {
    match &args.command {
        LabCommand::Theory(args) => super::lab_theory::theory(args),
        LabCommand::Order(args) => super::lab_theory::order(args),
        LabCommand::Sort(args) => super::lab_theory::sort(args),
    }
}
