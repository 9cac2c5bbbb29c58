//! Fuzz targets. Each reader of untrusted bytes has a target, which checks the properties that must hold.
//!
//! ```text
//!   seeds, corpus ──▶ mutate ──▶ execute ──▶ run(bytes)       panics if a property does not hold
//!                      │            └─ memory is bounded for every input
//!   driver 1  fuzz_targets/*.rs   libFuzzer: coverage and comparisons choose the next input   (`run.sh`)
//!   driver 2  tests/corpus.rs     the corpus, then seeded changes of it                       (`cargo test`)
//!             src/main.rs         the same as a command: `replay TARGET FILE`, `drive TARGET --runs N`
//! ```
//!
//! A target is a function that gets an input of any bytes. A panic in this function is a *finding*. The checksums of
//! the format would reject most changed inputs, so that deeper code would not be tested. So some targets decode bytes
//! without a checksum. The inputs of the other targets describe changes to undamaged files, and say whether the
//! checksums are corrected after the changes. [`repair`] corrects checksums. This module is written from the
//! description of the format, and shares no code with the engine.
#![warn(missing_docs)]

pub mod alloc;
pub mod bytes;
pub mod driver;
pub mod mutate;
pub mod patches;
pub mod repair;
pub mod targets;

use pandodb::base::random::Rng;

/// A fuzz target.
pub struct Target {
    /// The name of the target on the command line, which is also the name of its folders.
    pub name: &'static str,
    /// Longer inputs are cut to this length in bytes.
    pub max_len: usize,
    /// The maximum number of bytes that a run may have allocated at the same time, in addition to 64 bytes for each
    /// byte of input.
    pub memory: usize,
    /// Runs the target on an input. Panics if a property does not hold.
    pub run: fn(&[u8]),
    /// Changes an input.
    pub mutate: fn(&mut Vec<u8>, &mut Rng),
    /// Returns the initial inputs, which the engine's encoders create. They are deterministic.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Returns the target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}

/// Makes a target build its static data. Otherwise the memory of this data would be counted for the first input.
pub fn warm(target: &Target) {
    (target.run)(&[]);
}

/// Runs a target on an input and checks the memory bound of the target.
///
/// # Panics
/// If a property does not hold. The panic is the finding.
pub fn execute(target: &Target, data: &[u8]) {
    let data = &data[..data.len().min(target.max_len)];
    let ((), demand) = alloc::measure(|| (target.run)(data));
    let limit = target.memory + 64 * data.len();
    assert!(demand.peak <= limit, "{demand:?} for an input of {} bytes, {limit} are allowed", data.len());
}

/// Asserts that the error reports corruption, as every error about bad bytes must do.
#[track_caller]
pub fn assert_corruption(error: &pandodb::Error) {
    assert!(error.is_corruption(), "bad bytes must be reported as corruption, not {error:?}");
}

/// Asserts that the error reports corruption and names a file.
#[track_caller]
pub fn assert_named(error: &pandodb::Error) {
    match error {
        pandodb::Error::Corruption { file, .. } => assert!(!file.is_empty(), "no file is named: {error}"),
        other => panic!("bad bytes must be reported as corruption, not {other:?}"),
    }
}

/// Defines the entry points of the coverage-guided driver for a target.
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
