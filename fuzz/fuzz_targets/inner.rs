//! The coverage-guided driver of `inner`.
#![no_main]

pandodb_fuzz::fuzz!("inner");
