//! Damage to a store at rest: flipped bits, cut files, swapped pages, pages from an earlier time, unreadable sectors.
//!
//! Opening, scanning, getting and verifying a damaged store must return exactly the right answer, or an error that
//! names a file. A panic or a wrong answer is a failure. `verify` must find a flipped bit in any live block. If the
//! store was killed, damage to the tail of its log may lose the newest commits, but nothing else: after damage to one
//! block, no commit may be missing if a record in another block says that it was durable. Damage to one copy of
//! a superblock or a catalogue must lose nothing, because the store keeps two copies of each.
//!
//! The seed of a unit chooses one of five classes of damage. A unit of the first three classes in this table examines
//! [`SLICE`] damaged images:
//!
//! | of 8 seeds | damage |
//! | --- | --- |
//! | 4 | flips each bit of the golden stores, slice by slice ([`flips`] returns the number of bits) |
//! | 1 | cuts each file of the golden stores to each length |
//! | 1 | exchanges the pages of each pair of pages of the golden stores |
//! | 1 | a closed store that is generated from the seed, with a larger script for every second seed: flipped bits, damaged or unreadable sectors, stale pages, exchanged pages, cut files |
//! | 1 | the same damage to a killed store |

mod specimen;

use std::collections::BTreeMap;
use std::ops::Range;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice, SimImage};

pub use self::specimen::{Found, Rule, Specimen};
use crate::golden;
use crate::indexes;
use crate::report::{Tally, Unit};
use crate::script::Rng;

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;
const DATA: &str = "data";
/// The number of damaged images in one unit.
pub const SLICE: u64 = 2_000;
/// The offsets of the two superblocks in the data file.
const SUPERBLOCKS: [u64; 2] = [0, 32 * PAGE];

/// Runs a unit of the harness.
pub fn run(unit: &Unit) -> Tally {
    let (round, class) = (unit.seed / 8, unit.seed % 8);
    let mut tally = Tally::default();
    match class {
        0..=3 => golden_slice(round * 4 + class, flips, &mut tally, flip),
        4 => golden_slice(round, lengths, &mut tally, cut),
        5 => golden_slice(round, exchanges, &mut tally, exchange),
        6 => seeded(round, true, &mut tally),
        _ => seeded(round, false, &mut tally),
    }
    if class >= 6 {
        indexes::count(indexes::kind(round), &mut tally);
    }
    tally.failures.iter_mut().for_each(|failure| failure.seed = unit.seed);
    tally
}

/// The number of units that together apply every case of one kind of damage to all golden stores. `count` returns the
/// number of damaged images of this kind for one store.
pub fn units_of(count: fn(&SimImage) -> u64) -> u64 {
    golden::chosen().map(|golden| count(&golden.image()).div_ceil(SLICE)).sum()
}

/// Tries one slice of one kind of damage. Successive slices go through all golden stores, and then start again with the
/// first store.
fn golden_slice(
    number: u64,
    count: fn(&SimImage) -> u64,
    tally: &mut Tally,
    damage: fn(&Specimen, Range<u64>, &mut Tally),
) {
    let mut slice = number % units_of(count);
    for golden in golden::chosen() {
        let all = count(&golden.image());
        let slices = all.div_ceil(SLICE);
        if slice < slices {
            let specimen = Specimen::golden(golden);
            damage(&specimen, slice * SLICE..all.min((slice + 1) * SLICE), tally);
            return indexes::count(golden.kind(), tally);
        }
        slice -= slices;
    }
    unreachable!("the number was taken modulo the slices");
}

/// Examines one damaged image and counts it.
fn note(
    specimen: &Specimen,
    rule: Rule,
    image: &SimImage,
    part: &str,
    tally: &mut Tally,
    what: impl FnOnce() -> String,
) -> Option<Found> {
    tally.runs += 1;
    tally.count(part, 1);
    tally.digest = tally.digest.wrapping_add(image.hash());
    match specimen.examine(image, rule) {
        Ok(found) => {
            tally.count(if found == Found::Damage { "found" } else { "harmless" }, 1);
            Some(found)
        }
        Err(problem) => {
            if !tally.is_enough() {
                tally.fail(0, format!("{}: {problem}", what()));
            }
            None
        }
    }
}

/// The ranges of each file that are not holes.
fn occupied(image: &SimImage) -> Vec<(String, Range<u64>)> {
    let ranges = |name: String| {
        let ranges = image.ranges(&name);
        ranges.into_iter().map(move |range| (name.clone(), range)).collect::<Vec<_>>()
    };
    image.files().into_iter().flat_map(|(name, _)| ranges(name)).collect()
}

/// The number of bits that can be flipped.
pub fn flips(image: &SimImage) -> u64 {
    occupied(image).iter().map(|(_, range)| (range.end - range.start) * 8).sum()
}

fn flip(specimen: &Specimen, bits: Range<u64>, tally: &mut Tally) {
    let mut live = Live::default();
    let mut before = 0;
    for (name, range) in occupied(&specimen.image) {
        let here = before..before + (range.end - range.start) * 8;
        for nth in bits.start.max(here.start)..bits.end.min(here.end) {
            let (byte, bit) = (range.start + (nth - before) / 8, (nth % 8) as u32);
            flip_one(specimen, &name, byte, bit, &mut live, tally);
        }
        before = here.end;
    }
    live.check(tally);
}

fn flip_one(specimen: &Specimen, name: &str, byte: u64, bit: u32, live: &mut Live, tally: &mut Tally) {
    let mut image = specimen.image.clone();
    image.flip_bit(name, byte, bit);
    let what = || format!("bit {bit} of byte {byte} of {name}");
    let found = note(specimen, specimen.rule_at(name, byte), &image, "bits flipped", tally, what);
    if name == DATA {
        live.note(byte, found);
    }
}

/// For each page of the data file: the last byte whose damage `verify` found, and the first byte whose damage it
/// missed.
///
/// `verify` may miss damage only in the unused end of a page, because a large value may end inside a page. So within a
/// page, each byte whose damage `verify` misses must have a higher offset than all bytes whose damage it finds.
#[derive(Default)]
struct Live {
    pages: BTreeMap<u64, (Option<u64>, Option<u64>)>,
}

impl Live {
    fn note(&mut self, byte: u64, found: Option<Found>) {
        let page = self.pages.entry(byte / PAGE).or_default();
        match found {
            Some(Found::Nothing) => page.1 = page.1.or(Some(byte)),
            _ => page.0 = Some(byte),
        }
    }

    fn check(self, tally: &mut Tally) {
        for (page, bytes) in self.pages {
            if let (Some(found), Some(missed)) = bytes
                && missed < found
            {
                let problem = format!("page {page}: damage at byte {missed} was not found, but damage at {found} was");
                tally.fail(0, problem);
            }
        }
    }
}

/// The number of ways to cut one file of the store: to any shorter length, or by removing the file.
pub fn lengths(image: &SimImage) -> u64 {
    image.files().iter().map(|(_, len)| len + 1).sum()
}

fn cut(specimen: &Specimen, lengths: Range<u64>, tally: &mut Tally) {
    let mut before = 0;
    for (name, len) in specimen.image.files() {
        let here = before..before + len + 1;
        for nth in lengths.start.max(here.start)..lengths.end.min(here.end) {
            let mut image = specimen.image.clone();
            if nth - before == len {
                image.remove(&name);
                note(specimen, specimen.rule, &image, "files removed", tally, || format!("{name} removed"));
            } else {
                image.truncate(&name, nth - before);
                let what = || format!("{name} cut to {}", nth - before);
                note(specimen, specimen.rule, &image, "files cut", tally, what);
            }
        }
        before = here.end;
    }
}

fn pages(image: &SimImage) -> Vec<(String, u64)> {
    let of = |(name, range): (String, Range<u64>)| {
        (range.start / PAGE..range.end.div_ceil(PAGE)).map(move |page| (name.clone(), page * PAGE))
    };
    occupied(image).into_iter().flat_map(of).collect()
}

/// The number of pairs of pages that can be exchanged.
pub fn exchanges(image: &SimImage) -> u64 {
    let pages = pages(image).len() as u64;
    pages * (pages - 1) / 2
}

fn exchange(specimen: &Specimen, pairs: Range<u64>, tally: &mut Tally) {
    let pages = pages(&specimen.image);
    pairs.for_each(|nth| exchange_one(specimen, &pages, nth, tally));
}

fn exchange_one(specimen: &Specimen, pages: &[(String, u64)], nth: u64, tally: &mut Tally) {
    let (mut a, mut rest) = (0, nth as usize);
    while rest >= pages.len() - 1 - a {
        rest -= pages.len() - 1 - a;
        a += 1;
    }
    swap(specimen, &pages[a], &pages[a + 1 + rest], tally);
}

/// Exchanges two pages. If one of them is a superblock, two things are damaged at once: the superblock's record of how
/// far the log was durable, and a page of the log or of the data file. Then the store may lose its newest commits
/// ([`Rule::Prefix`]).
fn swap(specimen: &Specimen, (first, at): &(String, u64), (second, to): &(String, u64), tally: &mut Tally) {
    let mut image = specimen.image.clone();
    let (x, y) = (image.read(first, *at..at + PAGE), image.read(second, *to..to + PAGE));
    image.write(first, *at, &y);
    image.write(second, *to, &x);
    let claims = [(first, at), (second, to)].iter().any(|(name, at)| *name == DATA && SUPERBLOCKS.contains(at));
    let rule = if claims { Rule::Prefix } else { specimen.rule };
    let what = || format!("the pages at {at} of {first} and at {to} of {second} exchanged");
    note(specimen, rule, &image, "pages exchanged", tally, what);
}

/// Tries many kinds of damage on a store generated from the seed.
fn seeded(number: u64, closed: bool, tally: &mut Tally) {
    let specimen = if closed && number % 2 == 1 { Specimen::wide(number) } else { Specimen::seeded(number, closed) };
    if let Err(problem) = specimen.adds_up() {
        tally.fail(0, format!("seed {number}, undamaged: {problem}"));
    }
    let mut rng = Rng(number);
    flip_some(&specimen, &mut rng, tally);
    stale_pages(&specimen, tally);
    let pages = pages(&specimen.image);
    for _ in 0..SLICE / 4 {
        let (name, page) = &pages[rng.below(pages.len() as u64) as usize];
        let at = page + rng.below(PAGE / SECTOR) * SECTOR;
        spoil(&specimen, name, at, &mut rng, tally);
        refuse(&specimen, name, at, tally);
        // The harness prefers neighbouring pages, because they often belong to the same run. Then only the page numbers
        // in their headers distinguish them.
        let other = rng.index(pages.len() - 1);
        swap(&specimen, &pages[other], &pages[(other + 1 + rng.index(4)).min(pages.len() - 1)], tally);
    }
    for (name, len) in specimen.image.files() {
        let mut image = specimen.image.clone();
        image.truncate(&name, rng.below(len.max(1)));
        note(&specimen, specimen.rule, &image, "files cut", tally, || format!("seed {number}: {name} cut"));
    }
}

/// Flips one bit in each of [`SLICE`] ÷ 2 windows.
fn flip_some(specimen: &Specimen, rng: &mut Rng, tally: &mut Tally) {
    let ranges = occupied(&specimen.image);
    let bytes: u64 = ranges.iter().map(|(_, range)| range.end - range.start).sum();
    let window = (bytes / (SLICE / 2)).max(1);
    let mut live = Live::default();
    for (name, range) in ranges {
        for start in range.clone().step_by(window as usize) {
            let byte = start + rng.below(window.min(range.end - start));
            flip_one(specimen, &name, byte, rng.below(8) as u32, &mut live, tally);
        }
    }
    live.check(tally);
}

/// Replaces one page by its version in the earlier image, for each page that differs between the two images.
fn stale_pages(specimen: &Specimen, tally: &mut Tally) {
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
            note(specimen, specimen.rule_at(&name, at), &image, "stale pages", tally, || {
                format!("{name} at {at} replaced by its earlier version")
            });
        }
    }
}

/// Overwrites a sector with zeros or random bytes.
fn spoil(specimen: &Specimen, name: &str, at: u64, rng: &mut Rng, tally: &mut Tally) {
    let mut image = specimen.image.clone();
    let zeros = rng.chance(50);
    let bytes: Vec<u8> = (0..SECTOR).map(|_| if zeros { 0 } else { rng.next_u64() as u8 }).collect();
    image.write(name, at, &bytes);
    let what = || format!("the sector at {at} of {name} {}", if zeros { "zeroed" } else { "spoilt" });
    note(specimen, specimen.rule_at(name, at), &image, "sectors spoilt", tally, what);
}

/// Makes a sector unreadable: the device returns an error for each read of the sector.
fn refuse(specimen: &Specimen, name: &str, at: u64, tally: &mut Tally) {
    let device = SimDevice::from_image(&specimen.image, 1);
    device.set_fault(Some(Fault {
        file: Some(name.to_owned()),
        range: Some(at..at + SECTOR),
        ..Fault::sticky(FaultKind::IoError(OpClass::Read), 0)
    }));
    tally.runs += 1;
    tally.count("sectors refused", 1);
    match specimen.examine_on(&device, specimen.rule_at(name, at)) {
        Ok(found) => tally.count(if found == Found::Damage { "found" } else { "harmless" }, 1),
        Err(problem) => tally.fail(0, format!("the sector at {at} of {name} is unreadable: {problem}")),
    }
}
