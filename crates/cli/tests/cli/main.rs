//! The `pando` binary from outside, as its users see it.

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
