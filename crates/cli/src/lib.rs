//! `pando`: the command-line tool of PandoDB.
//!
//! ```text
//! arguments ─ args ─▶ commands ─▶ pandodb::Store
//!                        │  ▲
//!     input (kv, csv, tsv, ndjson)      output (tables, JSON, bars)
//! ```
//!
//! Every command ends in one of seven exit codes ([`Failure`]), and every failure in one line on stderr that says what
//! to do next. Bytes cross the terminal in one form only, that of [`kv`].
//!
//! A library with one caller, `main.rs`, so that its readers of foreign input can be tested from outside.
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

/// Does what the command line says; reports a failure on stderr.
pub fn main() -> ExitCode {
    let outcome = args::parse().and_then(commands::run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
