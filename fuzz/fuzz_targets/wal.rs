//! The coverage-guided driver of `wal`.
#![no_main]

pandodb_fuzz::fuzz!("wal");
