//! `pando`: the command-line tool of PandoDB.
//!
//! ```text
//! arguments ─ args ─▶ commands ─▶ pandodb::Store
//!                        │  ▲
//!     input (kv, csv, tsv, ndjson)      output (tables, JSON, bars)
//! ```
//!
//! Every command ends in one of six exit codes ([`failure`]), and every failure in one line on stderr that says what
//! to do next. Bytes cross the terminal in one form only, that of [`kv`].
#![forbid(unsafe_code)]

mod args;
mod commands;
mod demo;
mod failure;
mod input;
mod kv;
mod meter;
mod operand;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = args::parse().and_then(commands::run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
