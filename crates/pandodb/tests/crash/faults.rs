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
use crate::script::{Mix, Script, State};

const KINDS: [FaultKind; 9] = [
    FaultKind::IoError(OpClass::Read),
    FaultKind::IoError(OpClass::Write),
    FaultKind::IoError(OpClass::Sync),
    FaultKind::IoError(OpClass::Meta),
    FaultKind::FailedSync,
    FaultKind::ShortTransfer,
    FaultKind::Interrupted,
    FaultKind::LostWrite,
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
}

/// Whether the device itself lies under the fault, so that damage may be found later or history be short.
fn lies(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::LostWrite | FaultKind::MisdirectedWrite)
}

fn run(script: &Script, device: &Arc<SimDevice>, fault: &Fault) -> Result<Outcome, String> {
    device.set_fault(Some(fault.clone()));
    let mut out = Outcome { states: vec![State::default()], ..Outcome::default() };
    let store = match Sizes::TINY.open(device.clone()) {
        Ok(store) => store,
        Err(_) => return Ok(out),
    };
    let mut driver = Driver::new(store);
    for step in &script.steps {
        let before = out.states.last().expect("not empty").clone();
        let missing = match step {
            crate::script::Step::Commit(..) => before.0.len() < 2,
            _ => false,
        };
        if missing {
            break;
        }
        let mut after = before.clone();
        after.apply(step);
        match driver.step(step, &before) {
            Ok(()) => {
                out.states.push(after);
                let acknowledged = out.states.len() - 1;
                if step.promise() >= Durability::Buffered {
                    out.buffered = acknowledged;
                }
                if step.promise() == Durability::Synced {
                    out.synced = acknowledged;
                }
            }
            // Refused as a whole: no trace of it.
            Err(Error::Poisoned { .. } | Error::DiskFull { .. }) => {}
            Err(_) if out.uncertain.is_none() => out.uncertain = Some(after),
            Err(e) => return Err(format!("a second failure that is not `poisoned`: {e}")),
        }
        if out.uncertain.is_some() {
            check_reads(&driver, &out)?;
            break;
        }
    }
    device.set_fault(None);
    if !lies(fault.kind) {
        check_reads(&driver, &out)?;
    }
    Ok(out)
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

fn attempt(script: &Script, fault: &Fault) -> Result<bool, String> {
    let device = SimDevice::new(script.seed);
    let out = calmly(|| run(script, &device, fault))??;
    let struck = device.faults_struck() > 0 || fault.nth == 0;
    let lying = lies(fault.kind);
    check_image(&device.image(), &out, out.buffered, lying).map_err(|e| format!("killed: {e}"))?;
    check_image(&device.durable_image(), &out, out.synced, lying).map_err(|e| format!("power cut: {e}"))?;
    Ok(struck)
}

/// Runs one kind of fault at every call until it strikes nothing any more; the number of runs.
fn every_call(script: &Script, kind: FaultKind, sticky: bool, problems: &mut Vec<String>) -> u64 {
    let calls = {
        let device = SimDevice::new(script.seed);
        let mut driver = Driver::new(Sizes::TINY.open(device.clone()).expect("no fault yet"));
        let mut state = State::default();
        for step in &script.steps {
            driver.step(step, &state).expect("no fault yet");
            state.apply(step);
        }
        device.op_count()
    };
    for nth in 0..calls {
        let fault = if sticky { Fault::sticky(kind, nth) } else { Fault::once(kind, nth) };
        match attempt(script, &fault) {
            Ok(_) => {}
            Err(e) => problems.push(format!("seed {}, {fault:?}: {e}", script.seed)),
        }
        if problems.len() > 5 || !strikes(script, &fault) {
            return nth + 1;
        }
    }
    calls
}

/// Whether a fault still hits anything in the run of a script.
fn strikes(script: &Script, fault: &Fault) -> bool {
    let device = SimDevice::new(script.seed);
    device.set_fault(Some(fault.clone()));
    if let Ok(store) = Sizes::TINY.open(device.clone()) {
        let mut driver = Driver::new(store);
        let mut state = State::default();
        for step in &script.steps {
            if device.faults_struck() > 0 || driver.step(step, &state).is_err() {
                break;
            }
            state.apply(step);
        }
    }
    device.faults_struck() > 0
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
