//! The coverage-guided driver of `trunk`.
#![no_main]

pandodb_fuzz::fuzz!("trunk");
