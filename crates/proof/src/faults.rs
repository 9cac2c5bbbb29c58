//! Tests in which the nth device call fails. Every kind of fault is tried at every call of a small workload: in one run
//! only this call fails, in another run this call and all later calls fail.
//!
//! 1. Set the fault and run the script. A step may fail, but no call may panic. After each failure, the store must
//!    still return everything that it acknowledged, unless the fault makes the reads fail. The failed commit may be
//!    present or absent. The script then continues: commits acknowledged after a failure count like all others.
//! 2. Clear the fault. Reopen the image of a kill and the image of a power cut. Each of these stores must have the
//!    state after a prefix of the acknowledged steps. The prefix must contain every step whose durability level
//!    guarantees that the step survives that kind of crash.
//! 3. Also reopen the store on the same device. After a failed sync, the page cache of this device still returns data
//!    that is not on the disk. Everything that the reopened store returns must survive a later power cut.
//! 4. A device that *loses* writes may shorten the log without reporting an error. With such a device, the store must
//!    have the contents after a prefix of the history, or return an error.
//!
//! A unit tries one kind of fault at every call of one script. Full disks ([`crate::full`]) are one more kind.

use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice, SimImage};
use pandodb::{Compression, Durability, Error};

use crate::drive::{Driver, Sizes, calmly, compression, contents};
use crate::full;
use crate::indexes;
use crate::minimise::minimise;
use crate::report::{Tally, Unit};
use crate::script::{End, Mix, ROWS, Script, State, Step};

/// All kinds of faults.
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

/// Number of seeds that share a script: two for each kind of fault (one call fails; all calls from one on fail), and
/// one for full disks.
const SHARE: u64 = 2 * KINDS.len() as u64 + 1;
/// The maximum number of replays while a failing history is minimised.
const TRIES: usize = 40;

/// What a run under a fault acknowledged.
#[derive(Default)]
struct Outcome {
    /// The state before the first step, and the state after each acknowledged step.
    states: Vec<State>,
    /// Further states that are allowed, because failed steps may or may not have taken effect.
    uncertain: Vec<State>,
    /// Number of acknowledged steps that must survive a power cut.
    synced: usize,
    /// Number of acknowledged steps that must survive a kill.
    buffered: usize,
    /// The number of times the fault was applied.
    struck: u64,
}

impl Outcome {
    /// Whether the contents are an uncertain state, or the state after at least `floor` acknowledged steps.
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
        // A store that accepts writes again knows whether the failed write took effect.
        let writes = matches!(step, Step::Commit(..) | Step::Transact(..)) && !step.effects().is_empty();
        if writes || matches!(step, Step::LoadSorted(..) | Step::Create(_) | Step::Drop(_) | Step::Reopen) {
            self.uncertain.clear();
        }
    }

    /// Records the failure of a step that would have led to `after`. Returns whether the store could be read.
    fn failed(&mut self, step: &Step, after: State, error: &Error, driver: &Driver) -> bool {
        let found = contents(&driver.store).ok();
        if found.as_ref() == Some(&after) {
            if self.states.last() != Some(&after) {
                // The failed step took effect. But the store does not guarantee that its effect survives a crash.
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

    /// Records a reopening: from now on, the contents that the reopened store returns must survive. Returns whether the
    /// store could be read.
    fn reopened(&mut self, driver: &Driver) -> Result<bool, String> {
        let Ok(found) = contents(&driver.store) else { return Ok(false) };
        check_contents(Ok(found.clone()), self, self.buffered, false).map_err(|e| format!("reopened at once: {e}"))?;
        self.acknowledge(&Step::Reopen, found);
        Ok(true)
    }
}

/// Whether the device reports success for a write that it did not do. After such a fault, the store may report damage
/// or have the contents of an earlier step.
fn lies(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::LostWrite | FaultKind::MisdirectedWrite)
}

/// Whether the store must handle the fault without returning an error.
fn harmless(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::ClockJump | FaultKind::ShortTransfer)
}

/// Whether the step was refused before it had any effect. The store refuses a step if the disk is full, or if damaged
/// blocks of the index prevent the packing of memtables.
fn refused(step: &Step, error: &Error) -> bool {
    matches!(
        (step, error),
        (
            Step::Commit(..) | Step::Transact(.., End::Commit) | Step::Create(_) | Step::LoadSorted(..),
            Error::DiskFull { .. } | Error::Corruption { .. }
        )
    )
}

/// Runs the script under the fault. Returns the driver, so that the device can be copied before the store is closed.
fn run_under(script: &Script, device: &Arc<SimDevice>, fault: &Fault) -> Result<(Outcome, Option<Driver>), String> {
    device.set_fault(Some(fault.clone()));
    let mut out = Outcome { states: vec![State::default()], ..Outcome::default() };
    let Ok(mut driver) = Driver::open(Sizes::TINY.drawn(script.seed), device.clone()) else {
        out.struck = device.faults_struck();
        device.set_fault(None);
        return Ok((out, None));
    };
    // Whether the harness knows the contents of the store.
    let mut known = true;
    for step in &script.steps {
        let before = out.states.last().expect("not empty").clone();
        if !before.takes(step) {
            // The step needs a keyspace whose creation failed.
            continue;
        }
        let mut after = before.clone();
        after.apply(step);
        match driver.step(step, &before) {
            Ok(()) if matches!(step, Step::Reopen) => known = out.reopened(&driver)?,
            // The keyspace existed already, perhaps because a drop failed. Opening an existing keyspace guarantees no
            // durability.
            Ok(()) if matches!(step, Step::Create(_)) && after == before => {}
            Ok(()) => out.acknowledge(step, after),
            Err(e) if harmless(fault) => {
                return Err(format!("{step:?} failed under a fault that the store must handle: {e}"));
            }
            // The store refused the step without any effect.
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

/// Checks that the running store holds the last acknowledged state, or a state that a failed step may have left. A
/// failed read is not a wrong answer.
fn check_reads(driver: &Driver, out: &Outcome) -> Result<(), String> {
    let Ok(found) = contents(&driver.store) else { return Ok(()) };
    let last = out.states.last().expect("not empty");
    if &found == last || out.uncertain.contains(&found) {
        return Ok(());
    }
    Err("the running store has wrong contents".into())
}

/// Opens an image and checks its contents. `floor` is the number of steps whose effects the contents must include.
fn check_image(image: &SimImage, out: &Outcome, floor: usize, lying: bool) -> Result<(), String> {
    let opened = calmly(|| Sizes::TINY.open_image(image, 1).and_then(|(_, store)| contents(&store)))?;
    check_contents(opened, out, floor, lying)
}

fn check_contents(opened: pandodb::Result<State>, out: &Outcome, floor: usize, lying: bool) -> Result<(), String> {
    let floor = if lying { 0 } else { floor };
    match opened {
        Ok(found) if out.allows(floor, &found) => Ok(()),
        Ok(found) => match out.states.iter().position(|state| *state == found) {
            Some(step) => Err(format!("it holds {step} acknowledged steps, but {floor} were durable")),
            None => Err("it holds a state that never existed".into()),
        },
        Err(e) if lying && matches!(e, Error::Corruption { .. } | Error::NotAStore { .. }) => Ok(()),
        Err(e) => Err(format!("it does not open: {e}")),
    }
}

/// Performs one run under a fault. Returns the number of times the fault was applied. `lying`: the device reports
/// success for writes that it did not do, so the store may lose data, but must not return wrong data.
///
/// # Errors
/// Describes the violated guarantee.
pub fn attempt(script: &Script, fault: &Fault, lying: bool) -> Result<u64, String> {
    let device = SimDevice::new(script.seed);
    let (out, driver) = calmly(|| run_under(script, &device, fault))??;
    // The images are taken before the driver is dropped, because closing the store would sync.
    let (killed, cut) = (device.image(), device.durable_image());
    check_image(&killed, &out, out.buffered, lying).map_err(|e| format!("killed: {e}"))?;
    check_image(&cut, &out, out.synced, lying).map_err(|e| format!("power cut: {e}"))?;
    calmly(|| drop(driver))?;
    if !lying {
        reopen_here(&device, &out)?;
    }
    Ok(out.struck)
}

/// Opens the store again on the same device. Data of a failed sync may stay in the page cache of this device without
/// ever reaching the disk. Everything that the reopened store returns must survive a power cut.
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
        Ok(_) => Err("reopened, then a power cut: contents that it had returned are lost".into()),
        Err(e) => Err(format!("reopened, then a power cut: it does not open: {e}")),
    }
}

/// The script of a number. A store with compression gets a longer script, so that its bottom level has leaves to
/// compress.
fn script(number: u64) -> Script {
    if compression(number) == Compression::None {
        let mix = Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 };
        return Script::generate(number, mix).with_transactions().with_loads(mix);
    }
    let mix = Mix { steps: 50, blobs: 5, lazy: 10, buffered: 50, keys: 300 };
    let mut script = Script::generate(number, mix).with_transactions().with_loads(mix);
    script.steps.insert(script.steps.len() * 3 / 4, Step::Compact(ROWS));
    script
}

/// Applies one kind of fault at the first device call, in the next run at the second call, and so on, until a run has
/// fewer calls than that.
fn every_call(script: &Script, kind: FaultKind, sticky: bool) -> Tally {
    let mut tally = Tally::default();
    let mut script = script.clone();
    if lies(kind) {
        // After such a fault, a reopened store may have any earlier state. The remaining steps of the script might be
        // impossible in that state.
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

/// Runs a unit of the harness: one kind of fault at every call of one script, or full disks.
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
