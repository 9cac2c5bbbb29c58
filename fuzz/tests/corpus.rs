//! Runs every target on its corpus, and on inputs that are made from the corpus by random changes. A seed determines
//! these changes. This test needs no C++ compiler.
//!
//! `PANDODB_FUZZ_RUNS` gives the number of changed inputs, in percent of the default number. `PANDODB_FUZZ_SEED` sets
//! another seed.

use std::collections::BTreeMap;

use pandodb::base::random::Rng;
use pandodb_fuzz::driver::{Until, attempt, corpus, drive, minimise, seed_files};
use pandodb_fuzz::targets::ALL;
use pandodb_fuzz::{Target, mutate, target, warm};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs a target on `runs` inputs, which takes about a second.
fn try_target(name: &str, runs: u64) {
    let target = target(name).expect("a target of that name");
    let runs = runs * env("PANDODB_FUZZ_RUNS", 100) / 100;
    let seed = env("PANDODB_FUZZ_SEED", 1);
    if let Err(finding) = drive(target, seed, Until::Runs(runs)) {
        let input: Vec<String> = finding.input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{name}, seed {seed}: {}\ninput (hexadecimal): {}", finding.what, input.concat());
    }
}

macro_rules! targets {
    ($($name:ident: $runs:literal,)*) => {
        $(#[test] fn $name() { try_target(stringify!($name), $runs); })*

        /// Checks that every target is in the list of tests below.
        #[test]
        fn every_target_is_tested() {
            let here = [$(stringify!($name)),*];
            assert!(ALL.iter().map(|target| target.name).eq(here), "{here:?}");
        }
    };
}

targets! {
    codec: 200_000,
    leaf: 50_000,
    compressed: 50_000,
    inner: 50_000,
    filter: 200_000,
    quotient: 20_000,
    maplet: 5_000,
    tombstones: 30_000,
    run_meta: 200_000,
    superblock: 100_000,
    catalog: 200_000,
    page_map: 50_000,
    trunk: 20_000,
    run: 500,
    wal: 15_000,
    import: 100_000,
    store: 600,
    ops: 300,
}

/// Checks that the `seed-*` files of the corpus are exactly the files that the targets generate.
#[test]
fn the_checked_in_seeds_are_the_generated_ones() {
    let mut bytes = 0;
    for target in ALL {
        let files = corpus(target);
        bytes += files.iter().map(|(_, input)| input.len()).sum::<usize>();
        let seeds = files.into_iter().filter(|(name, _)| name.starts_with("seed-"));
        let (here, expected): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (seeds.collect(), seed_files(target).into_iter().collect());
        assert!(here == expected, "{}: run `fuzz/run.sh --seeds` and review the changes", target.name);
    }
    assert!(bytes < 200 << 10, "the corpus has {bytes} bytes, which are too many to check in");
}

// ---- tests of the driver ----

fn fails_on(input: &[u8]) {
    assert!(!input.windows(2).any(|pair| pair == b"!!"), "the canary failed");
}

fn greedy(input: &[u8]) {
    drop(std::hint::black_box(vec![1u8; 200 * input.len()]));
}

const fn canary(run: fn(&[u8])) -> Target {
    Target { name: "codec", max_len: 64, memory: 0, run, mutate: mutate::plain, seeds: || vec![b"a!b".to_vec()] }
}

static SINGS: Target = canary(fails_on);
static GREEDY: Target = canary(greedy);

#[test]
fn a_violated_property_is_found_and_its_input_minimised() {
    let finding = drive(&SINGS, 1, Until::Runs(1_000_000)).expect_err("two marks in a row are not hard to find");
    assert!(finding.what.contains("the canary failed"), "{}", finding.what);
    assert_eq!(minimise(&SINGS, &finding.input, 2_000), b"!!");
}

#[test]
fn excessive_memory_use_is_found() {
    let finding = attempt(&GREEDY, b"some input").expect_err("200 bytes for each byte are too many");
    assert!(finding.what.contains("Demand"), "{}", finding.what);
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let leaf = target("leaf").expect("a target");
    warm(leaf);
    let changed = |seed| {
        let mut input = (leaf.seeds)()[0].clone();
        let mut rng = Rng(seed);
        (0..50).for_each(|_| (leaf.mutate)(&mut input, &mut rng));
        input
    };
    assert_eq!(changed(7), changed(7));
    assert_ne!(changed(7), changed(8));
}
