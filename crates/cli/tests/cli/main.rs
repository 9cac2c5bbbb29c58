//! Tests of the `pando` binary as a process.

mod bench;
mod commands;
mod common;
mod keys;
mod keyspaces;
mod kill;
mod lab_figure;
mod lab_paged;
mod load;
mod look;
mod sim;
