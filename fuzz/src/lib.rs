//! Fuzz targets: every reader of foreign bytes, with what must hold of it.
//!
//! ```text
//!   seeds, corpus ──▶ mutate ──▶ execute ──▶ run(bytes)       panics if a property does not hold
//!                      │            └─ memory bounded, whatever the bytes say
//!   driver 1  fuzz_targets/*.rs   libFuzzer: coverage and comparisons choose the next input   (`run.sh`)
//!   driver 2  tests/corpus.rs     the corpus, then seeded changes of it                       (`cargo test`)
//!             src/main.rs         the same by hand: `replay TARGET FILE`, `drive TARGET --runs N`
//! ```
//!
//! A target is a plain function from bytes; a panic in it is a finding. Checksums are no wall: a target either reads
//! below them, or its input says what is to be changed in something sound, and whether checksums are made right again
//! afterwards ([`repair`], written from the format's description and not with the engine's code).
#![warn(missing_docs)]

pub mod alloc;
pub mod bytes;
pub mod driver;
pub mod mutate;
pub mod patches;
pub mod repair;
pub mod targets;

use bytes::Rng;

/// Something that reads foreign bytes.
pub struct Target {
    /// Its name, on the command line and of its folders.
    pub name: &'static str,
    /// Longer inputs are cut to this many bytes.
    pub max_len: usize,
    /// What it may hold in memory at a time beside 64 bytes for each byte of input.
    pub memory: usize,
    /// Reads an input; panics if a property does not hold.
    pub run: fn(&[u8]),
    /// Changes an input.
    pub mutate: fn(&mut Vec<u8>, &mut Rng),
    /// Inputs to begin with, made by the engine's own encoders, always the same.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}

/// Builds what a target builds once, so that it does not count as the demand of its first input.
pub fn warm(target: &Target) {
    (target.run)(&[]);
}

/// Runs a target on an input.
///
/// # Panics
/// If a property does not hold: that is a finding.
pub fn execute(target: &Target, data: &[u8]) {
    let data = &data[..data.len().min(target.max_len)];
    let ((), demand) = alloc::measure(|| (target.run)(data));
    let limit = target.memory + 64 * data.len();
    assert!(demand.peak <= limit, "{demand:?} for an input of {} bytes, {limit} are allowed", data.len());
}

/// The error is about damage and names a place, as everything that comes of bad bytes must.
#[track_caller]
pub fn assert_corruption(error: &pandodb::Error) {
    assert!(error.is_corruption(), "bad bytes are corruption, not {error:?}");
}

/// The same, and a file is named.
#[track_caller]
pub fn assert_named(error: &pandodb::Error) {
    match error {
        pandodb::Error::Corruption { file, .. } => assert!(!file.is_empty(), "no file is named: {error}"),
        other => panic!("bad bytes are corruption, not {other:?}"),
    }
}

/// The entry points of the coverage-guided driver for a target.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! fuzz {
    ($name:literal) => {
        static TARGET: std::sync::LazyLock<&$crate::Target> =
            std::sync::LazyLock::new(|| $crate::target($name).expect("a target of that name"));

        libfuzzer_sys::fuzz_target!(
            init: {
                $crate::warm(*TARGET);
            },
            |data: &[u8]| $crate::execute(*TARGET, data)
        );

        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate::for_driver(*TARGET, data, size, max_size, seed, libfuzzer_sys::fuzzer_mutate)
        });
    };
}
