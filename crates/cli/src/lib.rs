//! `pando`: the command-line tool of PandoDB.
//!
//! ```text
//! arguments ─ args ─▶ commands ─▶ pandodb::Store
//!                        │  ▲
//!     input (kv, csv, tsv, ndjson)      output (tables, JSON, bars)
//! ```
//!
//! Every command ends with one of seven exit codes ([`Failure`]). Every failure prints one line on stderr that says
//! what the user can do. Keys and values are printed and read only in the form of [`kv`].
//!
//! This crate is a library and not only a program, so that tests and fuzzers can call its input parsers.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod demo;
mod failure;
pub mod input;
mod interrupt;
pub mod kv;
mod meter;
mod operand;
mod output;

use std::process::ExitCode;

pub use args::Format;
pub use failure::{Failure, Outcome};

/// Runs the command that the command line names, and reports a failure on stderr.
pub fn main() -> ExitCode {
    let outcome = args::parse().and_then(commands::run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
