//! The coverage-guided driver of `compressed`.
#![no_main]

pandodb_fuzz::fuzz!("compressed");
