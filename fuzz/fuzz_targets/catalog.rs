//! The coverage-guided driver of `catalog`.
#![no_main]

pandodb_fuzz::fuzz!("catalog");
