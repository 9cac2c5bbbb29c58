//! The `pando` binary from outside, as its users see it.

mod bench;
mod commands;
mod common;
mod kill;
mod lab_figure;
mod sim;
