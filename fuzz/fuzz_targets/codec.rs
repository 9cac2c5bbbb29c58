//! The coverage-guided driver of `codec`.
#![no_main]

pandodb_fuzz::fuzz!("codec");
