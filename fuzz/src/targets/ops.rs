//! Target: operations on a store that suffers device faults, full disks and crashes. The results are compared with a
//! model.
//!
//! Input: the kind of failure, then steps: commits of a few operations, checkpoints, compactions, snapshots,
//! reopenings, backups, keyspaces created and dropped.
//!
//! *A fault* makes one device call fail, or makes all calls fail from some point on, or fills the disk from some point
//! on. Acknowledged commits must stay readable, and each must survive a kill or a power cut if its durability
//! guarantees this. *A crash* happens at some point of the history. Some of the device operations that are pending at
//! this point are lost, torn or corrupted. After a crash, the store must contain a prefix of the history with all
//! guaranteed commits. `pandodb_proof` implements the comparisons.

use pandodb::Durability;
use pandodb::device::sim::{CrashChoice, Fate, Fault, FaultKind, SimDevice, SimHistory, SimOp};
use pandodb_proof::crash::Window;
use pandodb_proof::drive::{Driver, Sizes, contents, record};
use pandodb_proof::faults::{KINDS, attempt};
use pandodb_proof::script::{BLOB_THRESHOLD, Op, ROWS, SUMS, Script, State, Step, TEMP, key};

use crate::bytes::Bytes;
use crate::{Target, mutate};

/// The target.
pub const TARGET: Target = Target { name: "ops", max_len: 1024, memory: 96 << 20, run, mutate: mutate::plain, seeds };

/// The number of crashes that one input tries.
const CRASHES: usize = 4;
const MAX_STEPS: usize = 80;

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    match input.u8() % 4 {
        0 => {
            let fault = fault(&mut input);
            let script = script(&mut input);
            let lying = matches!(fault.kind, FaultKind::LostWrite | FaultKind::MisdirectedWrite);
            if let Err(problem) = attempt(&script, &fault, lying) {
                panic!("{fault:?}: {problem}\n{:#?}", script.words());
            }
        }
        1 => full(&mut input),
        _ => crashes(&mut input),
    }
}

fn fault(input: &mut Bytes<'_>) -> Fault {
    let kind = KINDS[usize::from(input.u8()) % KINDS.len()];
    let nth = u64::from(input.u16() % 1024);
    if input.u8().is_multiple_of(2) { Fault::once(kind, nth) } else { Fault::sticky(kind, nth) }
}

/// Runs the steps on a disk that becomes full at some point. At the end, the disk has space again.
fn full(input: &mut Bytes<'_>) {
    let at = usize::from(input.u8()) % MAX_STEPS;
    let room = u64::from(input.u8()) * 512;
    let script = script(input);
    let device = SimDevice::new(1);
    let mut driver = Driver::open(Sizes::TINY, device.clone()).expect("opens");
    let mut state = State::default();
    for (i, step) in script.steps.iter().enumerate() {
        if i == at {
            device.set_byte_budget(Some(device.occupied() + room));
        }
        // Other tests reopen a store on a full disk. In this test, the store must stay open.
        if matches!(step, Step::Reopen | Step::Backup) {
            continue;
        }
        match driver.step(step, &state) {
            Ok(()) => state.apply(step),
            Err(pandodb::Error::DiskFull { .. }) => {
                // A keyspace could not be created or dropped, and later steps assume that it was.
                if matches!(step, Step::Create(_) | Step::Drop(_)) {
                    break;
                }
            }
            Err(error) => panic!("step {i}, {step:?}, on a full disk: {error}"),
        }
        assert_eq!(contents(&driver.store).expect("a read succeeds"), state, "after step {i}, {step:?}");
    }
    device.set_byte_budget(None);
    driver.store.checkpoint().expect("the disk has space again");
    let (_, store) = Sizes::TINY.open_image(&device.durable_image(), 1).expect("opens");
    assert_eq!(contents(&store).expect("reads"), state, "after a checkpoint");
}

fn crashes(input: &mut Bytes<'_>) {
    let choices: Vec<[u8; 8]> = (0..CRASHES).map(|_| input.u64().to_le_bytes()).collect();
    let script = script(input);
    let device = SimDevice::new(1);
    if let Err(problem) = record(&script, Sizes::TINY, &device, device.clone()) {
        panic!("{problem}\n{:#?}", script.words());
    }
    let (states, history) = (script.states(), device.history());
    for choice in choices {
        crash(&script, &states, &history, choice);
    }
}

/// Tries one crash. `choice` determines the position of the crash, which pending operations are kept, and what happens
/// to one of the pending writes.
fn crash(script: &Script, states: &[State], history: &SimHistory, choice: [u8; 8]) {
    let at = usize::from(u16::from_le_bytes([choice[0], choice[1]])) % (history.ops().len() + 1);
    let mut cursor = history.walk();
    let mut window = Window::default();
    while cursor.position() < at
        && let Some(op) = cursor.advance()
    {
        if let SimOp::Mark(mark) = op {
            window.pass(script, *mark);
        }
    }
    let pending = cursor.pending().len();
    let (allowed, image) = if choice[2] == 0 {
        (window.kill(), cursor.cached_image())
    } else {
        let kept = (0..pending).filter(|i| choice[3 + i % 3].rotate_left((i / 24) as u32) >> (i % 8) & 1 == 1);
        let mut lost = CrashChoice::only(kept);
        if pending > 0 && choice[2].is_multiple_of(3) {
            let unit = 512 * (1 + u64::from(choice[7] >> 3));
            let fates = [Fate::Head(unit), Fate::Tail(unit), Fate::Zeros, Fate::Garbage(u64::from(choice[7]))];
            lost = lost.with(usize::from(choice[6]) % pending, fates[usize::from(choice[7]) % 4]);
        }
        (window.power(), cursor.image(&lost))
    };
    let what = || format!("crash {choice:?} at operation {at}, steps {allowed:?}: {:#?}", script.words());
    let (_, store) = Sizes::TINY.open_image(&image, 1).unwrap_or_else(|error| panic!("{error}: {}", what()));
    let found = contents(&store).unwrap_or_else(|error| panic!("{error}: {}", what()));
    assert!(states[allowed.clone()].contains(&found), "it holds a state that is not allowed: {}", what());
}

/// The steps of the input, without operations on keyspaces that do not exist.
fn script(input: &mut Bytes<'_>) -> Script {
    let mut steps = vec![Step::Create(ROWS), Step::Create(SUMS)];
    while !input.is_empty() && steps.len() < MAX_STEPS {
        steps.push(step(input));
    }
    let script = Script { seed: 1, steps };
    let all: Vec<usize> = (0..script.steps.len()).collect();
    script.keep(&all)
}

fn step(input: &mut Bytes<'_>) -> Step {
    let tag = input.u8();
    let name = [ROWS, SUMS, TEMP][usize::from(tag >> 5) % 3];
    match tag % 20 {
        0 => Step::Checkpoint,
        1 => Step::Settle,
        2 => Step::Compact(name),
        3 => Step::Create(TEMP),
        4 => Step::Drop(TEMP),
        5 => Step::Persist(durability(tag >> 5)),
        6 => Step::Snapshot,
        7 => Step::Release,
        8 => Step::Reopen,
        9 if tag >> 5 == 0 => Step::Backup,
        _ => {
            let count = 1 + input.u8() % 4;
            Step::Commit((0..count).map(|_| op(input)).collect(), durability(tag >> 5))
        }
    }
}

fn durability(tag: u8) -> Durability {
    [Durability::None, Durability::Buffered, Durability::Synced][usize::from(tag) % 3]
}

fn op(input: &mut Bytes<'_>) -> Op {
    let tag = input.u8();
    let name = [ROWS, ROWS, TEMP, SUMS][usize::from(tag >> 6)];
    let at = u64::from(input.u8() % 48);
    match tag % 8 {
        // The counter keyspace refuses most plain values, so they go to `rows`.
        0..=3 => {
            let len = match tag >> 4 & 3 {
                0 => 0,
                1 => usize::from(input.u8()),
                2 => BLOB_THRESHOLD - 2 + usize::from(input.u8() % 4),
                _ => usize::from(input.u8()) * 40,
            };
            Op::Put(if name == SUMS { ROWS } else { name }, key(at), vec![tag; len])
        }
        4 | 5 => Op::Add(key(at), i64::from(tag) - 100),
        6 => Op::Delete(name, key(at)),
        _ => Op::DeleteRange(name, key(at), key(at + 1 + u64::from(input.u8() % 16))),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut rng = pandodb::base::random::Rng(5);
    let steps = |rng: &mut pandodb::base::random::Rng, len: usize| -> Vec<u8> {
        (0..len).map(|_| rng.next_u64() as u8).collect()
    };
    (0..12u8).map(|i| [vec![i], steps(&mut rng, 40 + 40 * usize::from(i))].concat()).collect()
}
