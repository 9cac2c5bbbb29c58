//! The coverage-guided driver of `superblock`.
#![no_main]

pandodb_fuzz::fuzz!("superblock");
