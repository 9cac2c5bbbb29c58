//! The coverage-guided driver of `quotient`.
#![no_main]

pandodb_fuzz::fuzz!("quotient");
