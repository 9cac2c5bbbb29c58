//! The coverage-guided driver of `tombstones`.
#![no_main]

pandodb_fuzz::fuzz!("tombstones");
