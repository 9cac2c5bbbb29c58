//! `lab`: each of its commands has a separate module.

use super::{lab_figure, lab_filters, lab_paged, lab_pool, lab_theory};
use crate::args::{LabArgs, LabCommand};
use crate::failure::Outcome;

/// Runs a subcommand of `lab`.
///
/// # Errors
/// The errors of the subcommand.
pub fn run(args: &LabArgs) -> Outcome {
    match &args.command {
        LabCommand::Figure(args) => lab_figure::run(args),
        LabCommand::Figures(args) => lab_figure::list(args),
        LabCommand::Theory(args) => lab_theory::theory(args),
        LabCommand::Order(args) => lab_theory::order(args),
        LabCommand::Sort(args) => lab_theory::sort(args),
        LabCommand::Filters(args) => lab_filters::run(args),
        LabCommand::Paged(args) => lab_paged::run(args),
        LabCommand::Pool(args) => lab_pool::run(args),
    }
}
