//! Tests of the `pando` binary as a process.

mod bench;
mod commands;
mod common;
mod keys;
mod keyspaces;
mod kill;
mod lab_figure;
mod load;
mod look;
mod sim;
