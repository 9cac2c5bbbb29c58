//! The coverage-guided driver of `import`.
#![no_main]

pandodb_fuzz::fuzz!("import");
