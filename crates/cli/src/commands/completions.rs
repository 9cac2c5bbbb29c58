//! `completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::{
    args::{Cli, CompletionsArgs},
    failure::Outcome,
    output,
};

/// Prints the script of one shell.
pub fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pando", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())
}
