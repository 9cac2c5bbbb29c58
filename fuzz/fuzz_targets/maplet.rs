//! The coverage-guided driver of `maplet`.
#![no_main]

pandodb_fuzz::fuzz!("maplet");
