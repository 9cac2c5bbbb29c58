//! The nth call fails: for every kind of fault, once and for ever, at every call of a small workload.
//!
//! 1. Set the fault, run the script. A step may fail; nothing may panic. After each failure the store still reads what it
//!    had acknowledged (with the failed commit or without it), unless the fault refuses the reads themselves. The script goes
//!    on: what is acknowledged after a failure is promised like all else.
//! 2. Clear the fault. Reopen from what a kill leaves and from what a power cut leaves: an acknowledged prefix, at least
//!    everything acknowledged as durable enough.
//! 3. Reopen on the same device too: what a failed sync has marked clean reads as if it were there, and what the opened
//!    store shows must survive a power cut from then on.
//! 4. A device that *loses* writes can shorten the log unseen; then any prefix, or an error, is right, and nothing else.
//!
//! A unit is one kind of fault at every call of one script; full disks ([`crate::full`]) are one kind more.

use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice, SimImage};
use pandodb::{Compression, Durability, Error};

use crate::drive::{Driver, Sizes, calmly, compression, contents};
use crate::full;
use crate::indexes;
use crate::minimise::minimise;
use crate::report::{Tally, Unit};
use crate::script::{Mix, ROWS, Script, State, Step};

/// Everything that can go wrong with a call.
pub const KINDS: [FaultKind; 13] = [
    FaultKind::IoError(OpClass::Read),
    FaultKind::IoError(OpClass::Write),
    FaultKind::IoError(OpClass::Sync),
    FaultKind::IoError(OpClass::Meta),
    FaultKind::FailedSync,
    FaultKind::ShortTransfer,
    FaultKind::Interrupted,
    FaultKind::LostWrite,
    FaultKind::MisdirectedWrite,
    FaultKind::BitFlip,
    FaultKind::StorageFull,
    FaultKind::ClockJump,
    FaultKind::FullSync,
];

/// Seeds that share a script: each kind once and for ever, and full disks.
const SHARE: u64 = 2 * KINDS.len() as u64 + 1;
/// How many times the steps of a failing history are tried anew.
const TRIES: usize = 40;

/// What a run under a fault acknowledged.
#[derive(Default)]
struct Outcome {
    /// The state before the first step and after each acknowledged one.
    states: Vec<State>,
    /// What the steps that failed may have left instead.
    uncertain: Vec<State>,
    /// How many steps are promised to survive a power cut, and a kill.
    synced: usize,
    buffered: usize,
    /// How often the fault struck.
    struck: u64,
}

impl Outcome {
    /// Whether the contents are one of the states.
    fn allows(&self, floor: usize, found: &State) -> bool {
        self.states[floor..].iter().chain(&self.uncertain).any(|state| state == found)
    }

    fn acknowledge(&mut self, step: &Step, after: State) {
        self.states.push(after);
        let acknowledged = self.states.len() - 1;
        if step.promise() >= Durability::Buffered {
            self.buffered = acknowledged;
        }
        if step.promise() == Durability::Synced {
            self.synced = acknowledged;
        }
        // A store that takes writes knows what became of the one that failed.
        if matches!(step, Step::Commit(..) | Step::Create(_) | Step::Drop(_) | Step::Reopen) {
            self.uncertain.clear();
        }
    }

    /// A step failed that would have led to `after`. Whether what the store holds now is known.
    fn failed(&mut self, step: &Step, after: State, error: &Error, driver: &Driver) -> bool {
        let found = contents(&driver.store).ok();
        if found.as_ref() == Some(&after) {
            if self.states.last() != Some(&after) {
                // It is there, and nothing of it is promised.
                self.states.push(after);
            }
        } else if !refused(step, error) {
            let mut more: Vec<State> = self.uncertain.iter().filter(|state| state.takes(step)).cloned().collect();
            more.iter_mut().for_each(|state| state.apply(step));
            self.uncertain.extend(more);
            self.uncertain.push(after);
        }
        found.is_some()
    }

    /// The store was closed and opened again: what it shows now is promised. Whether it shows anything.
    fn reopened(&mut self, driver: &Driver) -> Result<bool, String> {
        let Ok(found) = contents(&driver.store) else { return Ok(false) };
        check_contents(Ok(found.clone()), self, self.buffered, false).map_err(|e| format!("reopened at once: {e}"))?;
        self.acknowledge(&Step::Reopen, found);
        Ok(true)
    }
}

/// Whether the device itself lies under the fault, so that damage may be found later or history be short.
fn lies(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::LostWrite | FaultKind::MisdirectedWrite)
}

/// Whether the store must not let the caller know of the fault.
fn harmless(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::ClockJump | FaultKind::ShortTransfer)
}

/// Whether the step was refused before anything of it was done: by a full disk, or because what was written earlier cannot
/// leave the memory, since the blocks below are damaged.
fn refused(step: &Step, error: &Error) -> bool {
    matches!((step, error), (Step::Commit(..) | Step::Create(_), Error::DiskFull { .. } | Error::Corruption { .. }))
}

/// Runs the script under the fault. The driver comes back alive, so that the device can be looked at before it closes.
fn run_under(script: &Script, device: &Arc<SimDevice>, fault: &Fault) -> Result<(Outcome, Option<Driver>), String> {
    device.set_fault(Some(fault.clone()));
    let mut out = Outcome { states: vec![State::default()], ..Outcome::default() };
    let Ok(mut driver) = Driver::open(Sizes::TINY.drawn(script.seed), device.clone()) else {
        out.struck = device.faults_struck();
        device.set_fault(None);
        return Ok((out, None));
    };
    // Whether what the store holds is known.
    let mut known = true;
    for step in &script.steps {
        let before = out.states.last().expect("not empty").clone();
        if !before.takes(step) {
            // It rests on a step that failed.
            continue;
        }
        let mut after = before.clone();
        after.apply(step);
        match driver.step(step, &before) {
            Ok(()) if matches!(step, Step::Reopen) => known = out.reopened(&driver)?,
            // It was there, perhaps because a drop has failed: to open it promises nothing.
            Ok(()) if matches!(step, Step::Create(_)) && after == before => {}
            Ok(()) => out.acknowledge(step, after),
            Err(e) if harmless(fault) => {
                return Err(format!("{step:?} failed under a fault that must not matter: {e}"));
            }
            // Refused as a whole: no trace of it.
            Err(Error::Poisoned { .. }) => {}
            Err(e) => known = out.failed(step, after, &e, &driver),
        }
        if !known {
            break;
        }
    }
    check_reads(&driver, &out)?;
    out.struck = device.faults_struck();
    device.set_fault(None);
    check_reads(&driver, &out)?;
    Ok((out, Some(driver)))
}

/// The store as it is must hold what it acknowledged last, or the failed step too; a refused read is no wrong answer.
fn check_reads(driver: &Driver, out: &Outcome) -> Result<(), String> {
    let Ok(found) = contents(&driver.store) else { return Ok(()) };
    let last = out.states.last().expect("not empty");
    if &found == last || out.uncertain.contains(&found) {
        return Ok(());
    }
    Err("the running store reads something else".into())
}

/// Reopens an image and compares; `floor`: steps that must be there.
fn check_image(image: &SimImage, out: &Outcome, floor: usize, lying: bool) -> Result<(), String> {
    let opened = calmly(|| Sizes::TINY.open_image(image, 1).and_then(|(_, store)| contents(&store)))?;
    check_contents(opened, out, floor, lying)
}

fn check_contents(opened: pandodb::Result<State>, out: &Outcome, floor: usize, lying: bool) -> Result<(), String> {
    let floor = if lying { 0 } else { floor };
    match opened {
        Ok(found) if out.allows(floor, &found) => Ok(()),
        Ok(found) => match out.states.iter().position(|state| *state == found) {
            Some(step) => Err(format!("it holds step {step}, {floor} were promised")),
            None => Err("it holds a state that never was".into()),
        },
        Err(e) if lying && matches!(e, Error::Corruption { .. } | Error::NotAStore { .. }) => Ok(()),
        Err(e) => Err(format!("it does not open: {e}")),
    }
}

/// One run under a fault; how often it struck. `lying`: the device reports what it did not do, so that losses are no
/// fault of the store as long as they are noticed.
/// # Errors
/// The promise that was broken.
pub fn attempt(script: &Script, fault: &Fault, lying: bool) -> Result<u64, String> {
    let device = SimDevice::new(script.seed);
    let (out, driver) = calmly(|| run_under(script, &device, fault))??;
    // Before the driver goes: closing would sync.
    let (killed, cut) = (device.image(), device.durable_image());
    check_image(&killed, &out, out.buffered, lying).map_err(|e| format!("killed: {e}"))?;
    check_image(&cut, &out, out.synced, lying).map_err(|e| format!("power cut: {e}"))?;
    calmly(|| drop(driver))?;
    if !lying {
        reopen_here(&device, &out)?;
    }
    Ok(out.struck)
}

/// Opens the store again on the device as it is, with all that a failed sync has left pending for ever. What the store shows
/// then is a promise: a power cut must not take it back.
fn reopen_here(device: &Arc<SimDevice>, out: &Outcome) -> Result<(), String> {
    let opened = calmly(|| {
        let store = Sizes::TINY.open(device.clone())?;
        let shown = contents(&store)?;
        Ok::<_, Error>((shown, device.durable_image()))
    })?;
    let (shown, cut) = opened.map_err(|e| format!("reopened: {e}"))?;
    check_contents(Ok(shown.clone()), out, out.buffered, false).map_err(|e| format!("reopened: {e}"))?;
    let after = calmly(|| Sizes::TINY.open_image(&cut, 1).and_then(|(_, store)| contents(&store)))?;
    match after {
        Ok(found) if found == shown => Ok(()),
        Ok(_) => Err("reopened, then a power cut: what it had shown is not there".into()),
        Err(e) => Err(format!("reopened, then a power cut: it does not open: {e}")),
    }
}

/// The script of a number. One that is compressed is longer: there must be something at the bottom to compress.
fn script(number: u64) -> Script {
    if compression(number) == Compression::None {
        return Script::generate(number, Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 });
    }
    let mut script = Script::generate(number, Mix { steps: 50, blobs: 5, lazy: 10, buffered: 50, keys: 300 });
    script.steps.insert(script.steps.len() * 3 / 4, Step::Compact(ROWS));
    script
}

/// Runs one kind of fault at every call until it strikes nothing any more.
fn every_call(script: &Script, kind: FaultKind, sticky: bool) -> Tally {
    let mut tally = Tally::default();
    let mut script = script.clone();
    if lies(kind) {
        // What a reopening shows is then any earlier state, and the rest of the script would be about another store.
        script.steps.retain(|step| !matches!(step, Step::Reopen));
    }
    let part = format!("{kind:?}{}", if sticky { " for ever" } else { "" });
    for nth in 0.. {
        let fault = if sticky { Fault::sticky(kind, nth) } else { Fault::once(kind, nth) };
        match attempt(&script, &fault, lies(kind)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) => tally.fail(script.seed, format!("{fault:?}: {e}")),
        }
        tally.runs += 1;
        tally.count(&part, 1);
        if tally.is_enough() {
            break;
        }
    }
    tally
}

/// The unit of a seed: one kind of fault at every call of one script, or full disks.
pub fn run(unit: &Unit) -> Tally {
    let (number, share) = (unit.seed / SHARE, unit.seed % SHARE);
    let mut tally = if share == SHARE - 1 {
        full::run(number)
    } else {
        let (kind, sticky) = (KINDS[(share / 2) as usize], share % 2 == 1);
        let whole = script(number);
        let chosen = unit.steps.as_ref().map_or_else(|| whole.clone(), |steps| whole.keep(steps));
        let mut tally = every_call(&chosen, kind, sticky);
        if let Some(failure) = tally.failures.first_mut() {
            let fails = |kept: &[usize]| !every_call(&whole.keep(kept), kind, sticky).failures.is_empty();
            let steps = unit.steps.clone().unwrap_or_else(|| minimise(whole.steps.len(), TRIES, fails));
            failure.history = whole.keep(&steps).words();
            failure.steps = Some(steps);
        }
        tally
    };
    tally.failures.iter_mut().for_each(|failure| failure.seed = unit.seed);
    indexes::count(indexes::kind(number), &mut tally);
    tally
}
