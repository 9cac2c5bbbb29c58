//! The coverage-guided driver of `store`.
#![no_main]

pandodb_fuzz::fuzz!("store");
