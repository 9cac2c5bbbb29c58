//! The nth call fails: for every kind of fault, once and for ever, at every call of a small workload.
//!
//! 1. Set the fault, run the script. A step may fail; nothing may panic. After each failure the store still reads what it
//!    had acknowledged (with the failed commit or without it), unless the fault refuses the reads themselves.
//! 2. Clear the fault. Reopen from what a kill leaves and from what a power cut leaves: an acknowledged prefix, at least
//!    everything acknowledged as durable enough.
//! 3. A device that *loses* writes can shorten the log unseen; then any prefix, or an error, is right, and nothing else.

use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, OpClass, SimDevice, SimImage};
use pandodb::{Durability, Error};

use crate::drive::{Driver, Sizes, calmly, contents};
use crate::script::{Mix, Script, State, Step};

const KINDS: [FaultKind; 10] = [
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
];

/// What a run under a fault acknowledged.
#[derive(Default)]
struct Outcome {
    /// The state before the first step and after each acknowledged one.
    states: Vec<State>,
    /// What the one step that failed may have left instead.
    uncertain: Option<State>,
    /// How many steps are promised to survive a power cut, and a kill.
    synced: usize,
    buffered: usize,
    /// How often the fault struck.
    struck: u64,
}

impl Outcome {
    fn acknowledge(&mut self, step: &Step, after: State) {
        self.states.push(after);
        let acknowledged = self.states.len() - 1;
        if step.promise() >= Durability::Buffered {
            self.buffered = acknowledged;
        }
        if step.promise() == Durability::Synced {
            self.synced = acknowledged;
        }
    }
}

/// Whether the device itself lies under the fault, so that damage may be found later or history be short.
fn lies(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::LostWrite | FaultKind::MisdirectedWrite)
}

/// Runs the script under the fault. The driver comes back alive, so that the device can be looked at before it closes.
fn run(script: &Script, device: &Arc<SimDevice>, fault: &Fault) -> Result<(Outcome, Option<Driver>), String> {
    device.set_fault(Some(fault.clone()));
    let mut out = Outcome { states: vec![State::default()], ..Outcome::default() };
    let Ok(store) = Sizes::TINY.open(device.clone()) else {
        out.struck = device.faults_struck();
        device.set_fault(None);
        return Ok((out, None));
    };
    let mut driver = Driver::new(store);
    for step in &script.steps {
        let before = out.states.last().expect("not empty").clone();
        let mut after = before.clone();
        after.apply(step);
        match driver.step(step, &before) {
            Ok(()) => out.acknowledge(step, after),
            // Refused as a whole: no trace of it.
            Err(Error::Poisoned { .. }) => break,
            Err(_) => {
                out.uncertain = Some(after);
                break;
            }
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
    if &found == last || Some(&found) == out.uncertain.as_ref() {
        return Ok(());
    }
    Err("the running store reads something else".into())
}

/// Reopens an image and compares; `floor`: steps that must be there.
fn check_image(image: &SimImage, out: &Outcome, floor: usize, lying: bool) -> Result<(), String> {
    let opened = calmly(|| Sizes::TINY.open_image(image, 1).and_then(|(_, store)| contents(&store)))?;
    let floor = if lying { 0 } else { floor };
    match opened {
        Ok(found) if out.states[floor..].contains(&found) || out.uncertain.as_ref() == Some(&found) => Ok(()),
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
fn attempt(script: &Script, fault: &Fault, lying: bool) -> Result<u64, String> {
    let device = SimDevice::new(script.seed);
    let (out, driver) = calmly(|| run(script, &device, fault))??;
    // Before the driver goes: closing would sync.
    let (killed, cut) = (device.image(), device.durable_image());
    check_image(&killed, &out, out.buffered, lying).map_err(|e| format!("killed: {e}"))?;
    check_image(&cut, &out, out.synced, lying).map_err(|e| format!("power cut: {e}"))?;
    calmly(|| drop(driver))?;
    Ok(out.struck)
}

/// Runs one kind of fault at every call until it strikes nothing any more; the number of runs.
fn every_call(script: &Script, kind: FaultKind, sticky: bool, problems: &mut Vec<String>) -> u64 {
    for nth in 0.. {
        let fault = if sticky { Fault::sticky(kind, nth) } else { Fault::once(kind, nth) };
        match attempt(script, &fault, lies(kind)) {
            Ok(0) => return nth,
            Ok(_) => {}
            Err(e) => problems.push(format!("seed {}, {fault:?}: {e}", script.seed)),
        }
        if problems.len() > 5 {
            return nth;
        }
    }
    unreachable!("a run has an end")
}

/// The canary: a device that loses writes, held to the promise of an honest one.
#[test]
fn a_lost_write_is_noticed_when_nobody_expects_it() {
    let script = Script::generate(3, Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 });
    let caught = (0..400).any(|nth| attempt(&script, &Fault::once(FaultKind::LostWrite, nth), false).is_err());
    assert!(caught, "no lost write was noticed");
}

#[test]
fn the_nth_call_fails() {
    let mut problems = Vec::new();
    let mut runs = 0;
    for seed in [3, 4] {
        let mix = Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 };
        let script = Script::generate(seed, mix);
        for kind in KINDS {
            for sticky in [false, true] {
                runs += every_call(&script, kind, sticky, &mut problems);
            }
        }
    }
    println!("{runs} runs under a fault");
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(runs > 1_000, "too few faults to mean anything");
}
