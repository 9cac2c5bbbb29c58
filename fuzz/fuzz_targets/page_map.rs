//! The coverage-guided driver of `page_map`.
#![no_main]

pandodb_fuzz::fuzz!("page_map");
