//! A store at rest, what it may say, and what it says.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pandodb::base::PageNo;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::space::Superblock;
use pandodb::space::superblock::SLOTS;
use pandodb::{Error, Store};

use super::{DATA, PAGE};
use crate::drive::{Driver, Sizes, accounts, calmly, contents};
use crate::golden::{Golden, digest};
use crate::script::{Mix, Script, State, Step};

/// Of how many entries one is asked for by itself.
const GET_EVERY: usize = 7;

/// A store at rest, and what it may hold.
#[derive(Clone, Debug)]
pub struct Specimen {
    /// The directory.
    pub image: SimImage,
    /// The same store some time before.
    pub earlier: SimImage,
    /// What it holds.
    pub right: State,
    /// The digests of what it held at any time.
    pub states: Vec<u64>,
    /// What it must answer when it is damaged anywhere: [`Rule::Exact`] if it was closed, [`Rule::Prefix`] if it was killed.
    pub rule: Rule,
    /// Where superblocks and catalogues stand in the data file.
    roots: Vec<Range<u64>>,
}

/// What a damaged store may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// What is right and no error: the damage is where everything stands twice.
    Served,
    /// What is right, or an error.
    Exact,
    /// What was right at some time, or an error: damage to the end of the log of a killed store may shorten its history.
    Prefix,
}

/// What came of opening a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An error, or a report of `verify`.
    Damage,
    /// Nothing, and the answers were right.
    Nothing,
}

impl Specimen {
    /// A store that was `earlier` some time before, what it holds, the digests of what it held at any time, and what it must
    /// answer when it is damaged anywhere.
    pub fn new(image: SimImage, earlier: SimImage, right: State, states: Vec<u64>, rule: Rule) -> Specimen {
        let roots = roots(&image);
        Specimen { image, earlier, right, states, rule, roots }
    }

    /// Runs the script of a seed; the store is closed, or killed.
    ///
    /// # Panics
    /// If the store does not do what the script says.
    pub fn seeded(seed: u64, closed: bool) -> Specimen {
        let mix = Mix { steps: 110, blobs: 12, lazy: 20, buffered: 60, keys: 150 };
        let mut script = Script::generate(seed, mix);
        let at = script.steps.len() - 12;
        script.steps.insert(at, Step::Compact("rows"));
        Specimen::of(seed, &script, at, closed)
    }

    /// A closed store of a larger script, in which nothing was compacted to the bottom: trees of several levels, of every other
    /// seed with maplets.
    ///
    /// # Panics
    /// If the store does not do what the script says.
    pub fn wide(seed: u64) -> Specimen {
        let mix = Mix { steps: 500, blobs: 2, lazy: 30, buffered: 60, keys: 3_000 };
        let script = Script::generate(seed, mix);
        Specimen::of(seed, &script, script.steps.len() - 12, true)
    }

    /// A closed store with many large values, most of which lie apart from each other: a map of large values of several levels.
    ///
    /// # Panics
    /// If the store does not do what the script says.
    pub fn fragmented(seed: u64) -> Specimen {
        let mix = Mix { steps: 400, blobs: 40, lazy: 30, buffered: 60, keys: 300 };
        let script = Script::generate(seed, mix);
        Specimen::of(seed, &script, script.steps.len() - 12, true)
    }

    /// What is left of a script. An earlier state is taken 20 steps before `at`.
    fn of(seed: u64, script: &Script, at: usize, closed: bool) -> Specimen {
        let device = SimDevice::new(seed);
        let mut driver = Driver::open(Sizes::TINY.drawn(seed), device.clone()).expect("opens");
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
        let image = if closed { device.image() } else { killed };
        let digests: Vec<u64> = states.iter().map(digest).collect();
        // What was logged lazily is in no file of a killed store.
        let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
        let right = contents(&store).expect("reads");
        assert!(digests.contains(&digest(&right)), "it holds a state that never was");
        assert!(!closed || states.last() == Some(&right), "it was closed and holds something else");
        let rule = if closed { Rule::Exact } else { Rule::Prefix };
        Specimen::new(image, earlier, right, digests, rule)
    }

    /// A store that is checked in.
    ///
    /// # Panics
    /// If it does not open.
    pub fn golden(golden: &Golden) -> Specimen {
        let image = golden.image();
        let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
        let right = contents(&store).expect("reads");
        let rule = if golden.is_closed() { Rule::Exact } else { Rule::Prefix };
        Specimen::new(image.clone(), image, right, golden.states(), rule)
    }

    /// Whether the accounts of the undamaged store balance: [`accounts`].
    ///
    /// # Errors
    /// What is wrong.
    pub fn adds_up(&self) -> Result<(), String> {
        let balance = calmly(|| Sizes::TINY.open_image(&self.image, 1).and_then(|(_, store)| accounts(&store)));
        balance?.map_err(|e| e.to_string())?
    }

    /// What it must answer when a byte of a file is damaged.
    pub fn rule_at(&self, file: &str, byte: u64) -> Rule {
        let twice = file == DATA && self.roots.iter().any(|root| root.contains(&byte));
        if twice { Rule::Served } else { self.rule }
    }

    /// Opens a damaged image of it and asks it everything.
    ///
    /// # Errors
    /// A wrong answer, a panic, or an error that does not say what is damaged and where.
    pub fn examine(&self, image: &SimImage, rule: Rule) -> Result<Found, String> {
        self.examine_on(&SimDevice::from_image(image, 1), rule)
    }

    /// The same on a device that may refuse to read. First as `pando verify` does, changing nothing; then opened for writing,
    /// which may mend what is there twice.
    ///
    /// # Errors
    /// As [`Specimen::examine`].
    pub fn examine_on(&self, device: &Arc<SimDevice>, rule: Rule) -> Result<Found, String> {
        let look = |read_only: bool| {
            calmly(|| match Sizes::TINY.builder(device.clone()).read_only(read_only).open() {
                Ok(store) => self.question(&store, rule, read_only),
                Err(e) => rule.allows(&e),
            })?
            .map_err(|e| if read_only { format!("read-only: {e}") } else { e })
        };
        Ok(look(true)?.or(look(false)?))
    }

    /// Asks for everything; `verify`: and verifies.
    fn question(&self, store: &Store, rule: Rule, verify: bool) -> Result<Found, String> {
        let mut found = Found::Nothing;
        match contents(store) {
            Ok(state) if state == self.right || (rule == Rule::Prefix && self.states.contains(&digest(&state))) => {}
            Ok(_) => return Err("a scan gives a wrong answer".into()),
            Err(e) => found = rule.allows(&e)?,
        }
        if rule != Rule::Prefix {
            for (name, entries) in &self.right.0 {
                found = found.or(self.ask_for(store, name, entries, rule)?);
            }
        }
        if !verify {
            return Ok(found);
        }
        match store.verify() {
            Ok(report) if report.is_clean() => {}
            Ok(report) => {
                report.problems.iter().try_for_each(|e| says_where(e).map(|_| ()))?;
                found = Found::Damage;
            }
            Err(e) => found = rule.allows(&e)?,
        }
        Ok(found)
    }

    fn ask_for(
        &self,
        store: &Store,
        name: &str,
        entries: &BTreeMap<Vec<u8>, Vec<u8>>,
        rule: Rule,
    ) -> Result<Found, String> {
        let keyspace = match store.open_keyspace(name) {
            Ok(keyspace) => keyspace.ok_or("a keyspace is missing")?,
            Err(e) => return rule.allows(&e),
        };
        let mut found = Found::Nothing;
        for (key, value) in entries.iter().step_by(GET_EVERY) {
            match keyspace.get(key) {
                Ok(Some(got)) if got[..] == value[..] => {}
                Ok(_) => return Err(format!("a get gives a wrong answer in {name}")),
                Err(e) => found = rule.allows(&e)?,
            }
        }
        Ok(found)
    }
}

impl Rule {
    /// What an error in the place of an answer means.
    fn allows(self, error: &Error) -> Result<Found, String> {
        match self {
            Rule::Served => Err(format!("the other copy does not serve: {error}")),
            Rule::Exact | Rule::Prefix => says_where(error),
        }
    }
}

/// Where superblocks and catalogues stand in the data file of an image, each of them twice.
fn roots(image: &SimImage) -> Vec<Range<u64>> {
    let mut roots = Vec::new();
    for page in SLOTS.map(PageNo::offset) {
        roots.push(page..page + PAGE);
        let catalogs = Superblock::decode(&image.read(DATA, page..page + PAGE)).map(|superblock| superblock.catalog.0);
        roots.extend(catalogs.iter().flatten().map(|at| at.page.offset()..at.page.offset() + at.bytes() as u64));
    }
    roots
}

impl Found {
    fn or(self, other: Found) -> Found {
        if self == Found::Damage { self } else { other }
    }
}

/// The error must be about damage and say where.
fn says_where(error: &Error) -> Result<Found, String> {
    match error {
        Error::Corruption { file, .. } if !file.is_empty() => Ok(Found::Damage),
        Error::NotAStore { .. } | Error::Io { .. } => Ok(Found::Damage),
        other => Err(format!("an error that does not say what is damaged and where: {other:?}")),
    }
}
