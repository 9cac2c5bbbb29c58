//! A store at rest, the answers that are allowed after damage to the store, and the check of the actual answers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pandodb::base::PageNo;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::space::Superblock;
use pandodb::space::superblock::SLOTS;
use pandodb::{Durability, Error, Store};

use super::{DATA, PAGE};
use crate::drive::{Driver, Sizes, accounts, calmly, contents};
use crate::golden::{Golden, digest};
use crate::script::{Mix, Script, State, Step};

/// Every 7th entry is also read with a `get`.
const GET_EVERY: usize = 7;

/// A store at rest, and the contents that it may have.
#[derive(Clone, Debug)]
pub struct Specimen {
    /// The files of the store.
    pub image: SimImage,
    /// The files of the store at an earlier time.
    pub earlier: SimImage,
    /// The contents of the store.
    pub right: State,
    /// The digests of the contents before the first step of the store's history and after each step.
    pub states: Vec<u64>,
    /// The number of the first state that damage to one block may leave ([`Rule::Durable`]): a later record of the log
    /// says that this state was durable.
    durable: usize,
    /// The rule for damage anywhere: [`Rule::Exact`] if the store was closed, [`Rule::Prefix`] if it was killed.
    pub rule: Rule,
    /// The ranges of superblocks and catalogues in the data file.
    roots: Vec<Range<u64>>,
}

/// The allowed answers of a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The right contents and no error, because the store has a second copy of the damaged block.
    Served,
    /// The right contents, or an error.
    Exact,
    /// The contents after any step of the history, or an error. This applies to damage to several blocks of a killed
    /// store's log, because such damage may also destroy the records that say what was durable.
    Prefix,
    /// The contents after a late step of the history, or an error. This applies to damage to one block of a killed
    /// store's log. It may lose the newest commits, but no state that a record in another block says was durable.
    Durable,
}

/// The result of examining a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The store returned an error, or `verify` reported damage.
    Damage,
    /// No damage was reported, and all answers were right.
    Nothing,
}

impl Specimen {
    /// Creates a specimen from these fields, and finds the superblocks and catalogues in `image`.
    pub fn new(image: SimImage, earlier: SimImage, right: State, states: Vec<u64>, rule: Rule) -> Specimen {
        let roots = roots(&image);
        Specimen { image, earlier, right, states, durable: 0, rule, roots }
    }

    /// Runs the script of a seed and closes or kills the store.
    ///
    /// # Panics
    /// If a step fails or the contents are wrong.
    pub fn seeded(seed: u64, closed: bool) -> Specimen {
        let mix = Mix { steps: 110, blobs: 12, lazy: 20, buffered: 60, keys: 150 };
        let mut script = Script::generate(seed, mix);
        let at = script.steps.len() - 12;
        script.steps.insert(at, Step::Compact("rows"));
        Specimen::of(seed, &script, at, closed)
    }

    /// A closed store that was written by a larger script. The script does not compact the data to the bottom level, so
    /// the trees have several levels.
    ///
    /// # Panics
    /// If a step fails or the contents are wrong.
    pub fn wide(seed: u64) -> Specimen {
        let mix = Mix { steps: 500, blobs: 2, lazy: 30, buffered: 60, keys: 3_000 };
        let script = Script::generate(seed, mix);
        Specimen::of(seed, &script, script.steps.len() - 12, true)
    }

    /// A closed store with many large values in ranges of pages that are not adjacent, so that the map of large values
    /// has several levels.
    ///
    /// # Panics
    /// If a step fails or the contents are wrong.
    pub fn fragmented(seed: u64) -> Specimen {
        let mix = Mix { steps: 400, blobs: 40, lazy: 30, buffered: 60, keys: 300 };
        let script = Script::generate(seed, mix);
        Specimen::of(seed, &script, script.steps.len() - 12, true)
    }

    /// Runs a script. The earlier image is taken 20 steps before `at`.
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
        // A killed store loses commits that were only in the memory of the process, so its contents may differ from the
        // model. This code therefore reads the contents from the store.
        let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
        let right = contents(&store).expect("reads");
        assert!(digests.contains(&digest(&right)), "it holds a state that never existed");
        assert!(!closed || states.last() == Some(&right), "the closed store has the wrong contents");
        let rule = if closed { Rule::Exact } else { Rule::Prefix };
        Specimen { durable: claimed(script), ..Specimen::new(image, earlier, right, digests, rule) }
    }

    /// A golden store.
    ///
    /// # Panics
    /// If the golden store does not open.
    pub fn golden(golden: &Golden) -> Specimen {
        let image = golden.image();
        let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
        let right = contents(&store).expect("reads");
        let rule = if golden.is_closed() { Rule::Exact } else { Rule::Prefix };
        Specimen::new(image.clone(), image, right, golden.states(), rule)
    }

    /// Checks with [`accounts`] that the undamaged store has no lost pages.
    ///
    /// # Errors
    /// Describes the failure.
    pub fn adds_up(&self) -> Result<(), String> {
        let balance = calmly(|| Sizes::TINY.open_image(&self.image, 1).and_then(|(_, store)| accounts(&store)));
        balance?.map_err(|e| e.to_string())?
    }

    /// The rule for damage inside one block of a file, at the offset `byte`.
    pub fn rule_at(&self, file: &str, byte: u64) -> Rule {
        let twice = file == DATA && self.roots.iter().any(|root| root.contains(&byte));
        match self.rule {
            _ if twice => Rule::Served,
            Rule::Prefix => Rule::Durable,
            rule => rule,
        }
    }

    /// Opens a damaged image of the store and checks all answers of the opened store.
    ///
    /// # Errors
    /// Describes a wrong answer, a panic, or an error that does not name the damaged object and its location.
    pub fn examine(&self, image: &SimImage, rule: Rule) -> Result<Found, String> {
        self.examine_on(&SimDevice::from_image(image, 1), rule)
    }

    /// Like [`Specimen::examine`], on a device that may refuse reads. First opens the store read-only, as `pando
    /// verify` does. Then opens it for writing, which may repair a damaged block from its second copy.
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

    /// Scans all keyspaces and gets some entries. If `verify` is set, also verifies the store.
    fn question(&self, store: &Store, rule: Rule, verify: bool) -> Result<Found, String> {
        let mut found = Found::Nothing;
        match contents(store) {
            Ok(state) if state == self.right || self.allowed(rule).contains(&digest(&state)) => {}
            Ok(_) => return Err("a scan gave a wrong answer".into()),
            Err(e) => found = rule.allows(&e)?,
        }
        if self.allowed(rule).is_empty() {
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

    /// The digests of the states that a rule allows in addition to the right contents.
    fn allowed(&self, rule: Rule) -> &[u64] {
        match rule {
            Rule::Served | Rule::Exact => &[],
            Rule::Prefix => &self.states,
            Rule::Durable => &self.states[self.durable..],
        }
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
                Ok(_) => return Err(format!("a get gave a wrong answer in {name}")),
                Err(e) => found = rule.allows(&e)?,
            }
        }
        Ok(found)
    }
}

impl Rule {
    /// Returns `Found::Damage` if the rule allows this error instead of an answer.
    fn allows(self, error: &Error) -> Result<Found, String> {
        match self {
            Rule::Served => Err(format!("the second copy was not used: {error}")),
            Rule::Exact | Rule::Prefix | Rule::Durable => says_where(error),
        }
    }
}

/// The number of the newest state of a script that a record in another block of the log says was durable. This is the
/// state after the last durable step before the last synced commit: the record of that commit names the seqno through
/// which the log was durable, and a record never shares a block with an earlier record that was synced.
fn claimed(script: &Script) -> usize {
    let commit = script.steps.iter().rposition(|step| matches!(step, Step::Commit(_, Durability::Synced)));
    let before = &script.steps[..commit.unwrap_or(0)];
    let steps = before.iter().rposition(|step| step.promise() == Durability::Synced);
    steps.map_or(0, |last| last + 1)
}

/// The ranges of the superblocks and catalogues in the data file of an image. The store has two copies of each of these
/// blocks.
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

/// Checks that an error reports damage and its location.
fn says_where(error: &Error) -> Result<Found, String> {
    match error {
        Error::Corruption { file, .. } if !file.is_empty() => Ok(Found::Damage),
        Error::NotAStore { .. } | Error::Io { .. } => Ok(Found::Damage),
        other => Err(format!("an error that does not name the damaged object and its location: {other:?}")),
    }
}
