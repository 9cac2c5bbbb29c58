//! The coverage-guided driver of `ops`.
#![no_main]

pandodb_fuzz::fuzz!("ops");
