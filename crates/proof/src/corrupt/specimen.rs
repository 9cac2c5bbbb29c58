//! A store at rest, what it may say, and what it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Error, Store};

use crate::drive::{Driver, Sizes, calmly, contents};
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
    /// Whether it was closed: then only what it holds is right. Of a killed one, damage to the end of the log may shorten
    /// the history.
    pub closed: bool,
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
    /// Runs the script of a seed; the store is closed, or killed.
    ///
    /// # Panics
    /// If the store does not do what the script says.
    pub fn seeded(seed: u64, closed: bool) -> Specimen {
        let mix = Mix { steps: 110, blobs: 12, lazy: 20, buffered: 60, keys: 150 };
        let mut script = Script::generate(seed, mix);
        let at = script.steps.len() - 12;
        script.steps.insert(at, Step::Compact("rows"));
        let device = SimDevice::new(seed);
        let mut driver = Driver::open(Sizes::TINY, device.clone()).expect("opens");
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
        let digests = states.iter().map(digest).collect();
        let right = states.into_iter().next_back().expect("not empty");
        Specimen { image, earlier, right, states: digests, closed }
    }

    /// A store that is checked in.
    ///
    /// # Panics
    /// If it does not open.
    pub fn golden(golden: &Golden) -> Specimen {
        let image = golden.image();
        let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
        let right = contents(&store).expect("reads");
        Specimen { earlier: image.clone(), image, right, states: golden.states(), closed: golden.is_closed() }
    }

    /// The same as if it had been killed: what damage to two places at once may leave, of which one is a superblock. That is
    /// two losses: the claim that the log was durable, and what it claims.
    #[must_use]
    pub fn leniently(&self) -> Specimen {
        Specimen { closed: false, ..self.clone() }
    }

    /// Opens a damaged image of it and asks it everything.
    ///
    /// # Errors
    /// A wrong answer, a panic, or an error that does not say what is damaged and where.
    pub fn examine(&self, image: &SimImage) -> Result<Found, String> {
        self.examine_on(&SimDevice::from_image(image, 1))
    }

    /// The same on a device that may refuse to read. First as `pando verify` does, changing nothing; then opened for writing,
    /// which may mend what is there twice.
    ///
    /// # Errors
    /// As [`Specimen::examine`].
    pub fn examine_on(&self, device: &Arc<SimDevice>) -> Result<Found, String> {
        let look = |read_only: bool| {
            calmly(|| match Sizes::TINY.builder(device.clone()).read_only(read_only).open() {
                Ok(store) => self.question(&store, read_only),
                Err(e) => named(&e),
            })?
            .map_err(|e| if read_only { format!("read-only: {e}") } else { e })
        };
        Ok(look(true)?.or(look(false)?))
    }

    /// Asks for everything; `verify`: and verifies.
    fn question(&self, store: &Store, verify: bool) -> Result<Found, String> {
        let mut found = Found::Nothing;
        match contents(store) {
            Ok(state) if state == self.right || (!self.closed && self.states.contains(&digest(&state))) => {}
            Ok(_) => return Err("a scan gives a wrong answer".into()),
            Err(e) => found = named(&e)?,
        }
        if self.closed {
            for (name, entries) in &self.right.0 {
                found = found.or(self.ask_for(store, name, entries)?);
            }
        }
        if !verify {
            return Ok(found);
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

    fn ask_for(&self, store: &Store, name: &str, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Found, String> {
        let keyspace = match store.open_keyspace(name) {
            Ok(keyspace) => keyspace.ok_or("a keyspace is missing")?,
            Err(e) => return named(&e),
        };
        let mut found = Found::Nothing;
        for (key, value) in entries.iter().step_by(GET_EVERY) {
            match keyspace.get(key) {
                Ok(Some(got)) if got[..] == value[..] => {}
                Ok(_) => return Err(format!("a get gives a wrong answer in {name}")),
                Err(e) => found = named(&e)?,
            }
        }
        Ok(found)
    }
}

impl Found {
    fn or(self, other: Found) -> Found {
        if self == Found::Damage { self } else { other }
    }
}

/// The error must be about damage and say where.
fn named(error: &Error) -> Result<Found, String> {
    match error {
        Error::Corruption { file, .. } if !file.is_empty() => Ok(Found::Damage),
        Error::NotAStore { .. } | Error::Io { .. } => Ok(Found::Damage),
        other => Err(format!("an error that does not say what is damaged and where: {other:?}")),
    }
}
