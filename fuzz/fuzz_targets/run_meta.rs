//! The coverage-guided driver of `run_meta`.
#![no_main]

pandodb_fuzz::fuzz!("run_meta");
