//! Damage to a store at rest: flipped bits, cut files, swapped pages, pages from an earlier time.
//!
//! Whatever is done to it, opening, scanning, getting and verifying give an error that names a file, or exactly the right
//! answer; never a panic, never another answer. A flipped bit in a live block is found by `verify`. Of a store that was
//! killed, damage in the log's tail may shorten history to an earlier commit, and do no more.
//!
//! `PANDODB_DAMAGE_STRIDE=1` flips a bit in every byte; by default one byte in each window is hit.

use std::collections::BTreeMap;

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Error, Result, Store};

use crate::drive::{Driver, Sizes, calmly, contents};
use crate::script::{Mix, Rng, Script, State, Step};

const PAGE: u64 = 4096;
const DATA: &str = "data";
/// Bytes of a window in which one byte is hit.
const STRIDE: u64 = 61;

/// A store at rest, and what it may hold.
struct Specimen {
    image: SimImage,
    /// The same store some time before.
    earlier: SimImage,
    /// The last is the right one; the others are right only for a store that was killed.
    states: Vec<State>,
    closed: bool,
}

/// Runs a script; the store is closed, or killed.
fn specimen(seed: u64, closed: bool) -> Specimen {
    let mix = Mix { steps: 110, blobs: 12, lazy: 20, buffered: 60, keys: 150 };
    let mut script = Script::generate(seed, mix);
    let at = script.steps.len() - 12;
    script.steps.insert(at, Step::Compact("rows"));
    let device = SimDevice::new(seed);
    let mut driver = Driver::new(Sizes::TINY.open(device.clone()).expect("opens"));
    let states = script.states();
    let mut earlier = SimImage::default();
    for (i, step) in script.steps.iter().enumerate() {
        driver.step(step, &states[i]).expect("no fault");
        if i == at - 20 {
            earlier = device.image();
        }
    }
    let killed = device.image();
    driver.store.close().expect("closes");
    Specimen { image: if closed { device.image() } else { killed }, earlier, states, closed }
}

/// What came of opening a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// An error, or a report of `verify`.
    Damage,
    /// Nothing, and the answers were right.
    Nothing,
}

/// Opens an image and asks it everything; an error text if it answers wrongly or panics.
fn examine(specimen: &Specimen, image: &SimImage) -> Result<Found, String> {
    calmly(|| match Sizes::TINY.open_image(image, 1) {
        Ok((_, store)) => question(specimen, &store),
        Err(e) => named(&e),
    })?
}

fn question(specimen: &Specimen, store: &Store) -> Result<Found, String> {
    let mut found = Found::Nothing;
    let right = specimen.states.last().expect("not empty");
    match contents(store) {
        Ok(state) if &state == right || (!specimen.closed && specimen.states.contains(&state)) => {}
        Ok(_) => return Err("a scan gives a wrong answer".into()),
        Err(e) => found = named(&e)?,
    }
    if specimen.closed {
        for (name, entries) in &right.0 {
            let keyspace = store.open_keyspace(name).map_err(|e| e.to_string())?.ok_or("a keyspace is missing")?;
            for (key, value) in entries.iter().step_by(7) {
                match keyspace.get(key) {
                    Ok(Some(got)) if got[..] == value[..] => {}
                    Ok(_) => return Err(format!("a get gives a wrong answer in {name}")),
                    Err(e) => found = named(&e)?,
                }
            }
        }
    }
    match store.verify() {
        Ok(report) if report.is_clean() => {}
        Ok(report) => {
            report.problems.iter().try_for_each(|e| named(e).map(|_| ()))?;
            found = Found::Damage;
        }
        Err(e) => found = named(&e)?,
    }
    Ok(found)
}

/// The error must be about damage and say where.
fn named(error: &Error) -> Result<Found, String> {
    match error {
        Error::Corruption { file, .. } if !file.is_empty() => Ok(Found::Damage),
        Error::NotAStore { .. } => Ok(Found::Damage),
        other => Err(format!("an error that does not say what is damaged and where: {other:?}")),
    }
}

/// Gathers what went wrong, each with what was done.
struct Problems(Vec<String>);

impl Problems {
    fn note(&mut self, what: impl FnOnce() -> String, outcome: Result<Found, String>) -> Found {
        outcome.unwrap_or_else(|problem| {
            if self.0.len() < 10 {
                self.0.push(format!("{}: {problem}", what()));
            }
            Found::Damage
        })
    }

    fn none(self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}

fn stride() -> u64 {
    std::env::var("PANDODB_DAMAGE_STRIDE").map_or(STRIDE, |text| text.parse().expect("a number of bytes"))
}

/// Flips a bit in each window of every file.
fn flip_everywhere(seed: u64, specimen: &Specimen) {
    let mut rng = Rng(seed);
    let mut problems = Problems(Vec::new());
    // Of each page of the data file: the last byte whose damage was found, the first whose damage was not.
    let mut pages: BTreeMap<u64, (Option<u64>, Option<u64>)> = BTreeMap::new();
    let mut flips = 0;
    for (name, _) in specimen.image.files() {
        for range in specimen.image.ranges(&name) {
            let mut window = range.start;
            while window < range.end {
                let byte = window + rng.below(stride().min(range.end - window));
                let bit = rng.below(8) as u32;
                let mut image = specimen.image.clone();
                image.flip_bit(&name, byte, bit);
                let what = || format!("seed {seed}: bit {bit} of byte {byte} of {name}");
                let found = problems.note(what, examine(specimen, &image));
                if name == DATA {
                    let page = pages.entry(byte / PAGE).or_default();
                    match found {
                        Found::Damage => page.0 = Some(byte),
                        Found::Nothing => page.1 = page.1.or(Some(byte)),
                    }
                }
                flips += 1;
                window += stride();
            }
        }
    }
    problems.none();
    let live = pages.values().filter(|(found, _)| found.is_some()).count();
    println!("seed {seed}: {flips} flips; {live} of {} pages of data are live", pages.len());
    assert!(live >= 10, "the specimen holds too little");
    for (page, (found, missed)) in pages {
        // A large value ends inside its last page; behind it nothing counts.
        assert!(
            found.is_none_or(|found| missed.is_none_or(|missed| missed > found)),
            "seed {seed}: page {page}: damage at {missed:?} was not found, that at {found:?} was"
        );
    }
}

/// The canary: a sound store that says something else is a wrong answer, not damage and not nothing.
#[test]
fn a_sound_store_with_other_contents_is_noticed() {
    let specimen = specimen(26, true);
    assert_eq!(examine(&specimen, &specimen.image), Ok(Found::Nothing));
    let outcome = examine(&specimen, &specimen.earlier);
    assert!(outcome.as_ref().is_err_and(|problem| problem.contains("wrong answer")), "{outcome:?}");
}

#[test]
fn no_flipped_bit_is_believed() {
    flip_everywhere(21, &specimen(21, true));
}

#[test]
fn after_a_kill_a_flipped_bit_shortens_history_at_most() {
    flip_everywhere(22, &specimen(22, false));
}

#[test]
fn no_cut_file_is_believed() {
    let (seed, mut problems) = (23, Problems(Vec::new()));
    let specimen = specimen(seed, true);
    let mut rng = Rng(seed);
    for (name, len) in specimen.image.files() {
        for i in 0..150 {
            let cut = if i % 2 == 0 { rng.below(len.max(1)) } else { rng.below(len / PAGE + 1) * PAGE };
            let mut image = specimen.image.clone();
            image.truncate(&name, cut);
            problems.note(|| format!("seed {seed}: {name} cut to {cut}"), examine(&specimen, &image));
        }
        let mut image = specimen.image.clone();
        image.remove(&name);
        problems.note(|| format!("seed {seed}: {name} removed"), examine(&specimen, &image));
    }
    problems.none();
}

#[test]
fn no_swapped_page_is_believed() {
    let (seed, mut problems) = (24, Problems(Vec::new()));
    let closed = specimen(seed, true);
    // A superblock and something else at once are two losses: the claim that the log was durable, and what it claims.
    let lenient = Specimen { image: closed.image.clone(), closed: false, ..specimen(seed, false) };
    let pages: Vec<u64> = closed.image.ranges(DATA).into_iter().flat_map(|r| r.start / PAGE..r.end / PAGE).collect();
    let mut rng = Rng(seed);
    for _ in 0..1_000 {
        let a = pages[rng.below(pages.len() as u64) as usize] * PAGE;
        let b = pages[rng.below(pages.len() as u64) as usize] * PAGE;
        let claims = [a, b].iter().any(|page| [0, 32 * PAGE].contains(page));
        let specimen = if claims { &lenient } else { &closed };
        let mut image = closed.image.clone();
        let (first, second) = (image.read(DATA, a..a + PAGE), image.read(DATA, b..b + PAGE));
        image.write(DATA, a, &second);
        image.write(DATA, b, &first);
        problems.note(|| format!("seed {seed}: pages at {a} and {b} swapped"), examine(specimen, &image));
    }
    problems.none();
}

#[test]
fn no_page_from_earlier_is_believed() {
    let (seed, mut problems, mut tried) = (25, Problems(Vec::new()), 0);
    let specimen = specimen(seed, true);
    for (name, len) in specimen.earlier.files() {
        if !specimen.image.files().iter().any(|(other, _)| *other == name) {
            continue;
        }
        for at in (0..len).step_by(PAGE as usize) {
            let old = specimen.earlier.read(&name, at..at + PAGE);
            if old.iter().all(|byte| *byte == 0) || old == specimen.image.read(&name, at..at + PAGE) {
                continue;
            }
            let mut image = specimen.image.clone();
            image.write(&name, at, &old);
            tried += 1;
            problems.note(|| format!("seed {seed}: {name} at {at} as it was"), examine(&specimen, &image));
        }
    }
    problems.none();
    assert!(tried >= 10, "only {tried} pages differ");
}
