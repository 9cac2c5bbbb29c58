//! The coverage-guided driver of `run`.
#![no_main]

pandodb_fuzz::fuzz!("run");
