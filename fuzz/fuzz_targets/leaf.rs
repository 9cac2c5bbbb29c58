//! The coverage-guided driver of `leaf`.
#![no_main]

pandodb_fuzz::fuzz!("leaf");
