//! The coverage-guided driver of `filter`.
#![no_main]

pandodb_fuzz::fuzz!("filter");
