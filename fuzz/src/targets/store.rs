//! Target: the complete directory of a damaged store. The target opens, scans and verifies the store, looks up keys,
//! and writes to it.
//!
//! Input: the choice of a store, a flag that says whether the target writes to the store, then patches (see
//! [`crate::patches`]).
//!
//! Properties with wrong checksums: every answer is right, or an error that names a file. A store that was closed must
//! return its exact contents. A store that was killed, or whose superblock was changed, may also return the contents of
//! an earlier time.
//!
//! Properties with corrected checksums: answers may be wrong, but no call may panic, loop, or allocate without bound.
//! If `verify` reports no damage, scans in both directions return the same entries.

use std::sync::{Arc, LazyLock};

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::space::data::DATA_FILE;
use pandodb::{Durability, Error, Result, Store, Value};
use pandodb_proof::corrupt::{Rule, Specimen};
use pandodb_proof::drive::{Sizes, options};
use pandodb_proof::golden::GOLDEN;
use pandodb_proof::script::ROWS;

use crate::bytes::Bytes;
use crate::patches::{self, Patched, Sound};
use crate::{Target, mutate};

/// The target.
pub const TARGET: Target = Target { name: "store", max_len: 256, memory: 48 << 20, run, mutate: mutate::plain, seeds };

struct Base {
    specimen: Specimen,
    sound: Sound,
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let golden = GOLDEN.iter().map(Specimen::golden);
    // These stores were killed, because the log of a closed store has no records to damage.
    let seeded = [21, 22].into_iter().map(|seed| Specimen::seeded(seed, false));
    golden.chain(seeded).map(base).collect()
});

fn base(specimen: Specimen) -> Base {
    let superblock = specimen.image.read(DATA_FILE, 0..4096);
    let u64_at = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().expect("8 bytes"));
    let store = superblock[40..56].try_into().expect("16 bytes");
    // The owner in the header of a catalogue is the generation of the catalogue. The owners of all other blocks are ids
    // below `next_run_id`.
    let owners = u64_at(80).max(u64_at(56)) + 16;
    let sound = Sound::new(specimen.image.clone(), store, owners);
    let (blocks, records) = sound.counts();
    assert!(blocks >= 8 && records >= 2, "only {blocks} blocks and {records} records to damage");
    Base { specimen, sound }
}

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let tag = input.u8();
    let base = &BASES[usize::from(tag & 0x3f) % BASES.len()];
    let patched = base.sound.patch(&mut input);
    let device = SimDevice::from_image(&patched.image, 1);
    if patched.repaired {
        look(&device, tag >= 0xc0);
    } else {
        compare(base, &patched, &device);
    }
    assert!(device.op_count() < 50_000, "{} operations", device.op_count());
}

/// Checks that every answer is right or an error.
fn compare(base: &Base, patched: &Patched, device: &Arc<SimDevice>) {
    // An input may change several regions. For example, it may change both copies of a block. Or it may change the log
    // and also a superblock, which records how far the log was durable.
    let rule = if patched.superblock { Rule::Prefix } else { base.specimen.rule };
    if let Err(problem) = base.specimen.examine_on(device, rule) {
        panic!("{problem}");
    }
}

/// Uses a store in which wrong bytes have corrected checksums. No right answer is defined for such a store, but no call
/// may panic.
fn look(device: &Arc<SimDevice>, work: bool) {
    let store = match Sizes::TINY.open(device.clone()) {
        Ok(store) => store,
        Err(error) => return assert_damage(&error),
    };
    let read = read(&store);
    let sound = match store.verify() {
        Ok(report) => {
            report.problems.iter().for_each(assert_damage);
            report.is_clean()
        }
        Err(error) => {
            assert_damage(&error);
            false
        }
    };
    match &read {
        Err(error) => assert_damage(error),
        Ok(differs) => assert!(!sound || differs.is_none(), "verify is clean, but two scans differ: {differs:?}"),
    }
    // An operator may fail on wrong operands, which `verify` does not check.
    let refused =
        matches!(read, Err(Error::Unsupported { .. } | Error::OperatorMissing { .. } | Error::OperatorFailed { .. }));
    assert!(!sound || read.is_ok() || refused, "verify is clean, but reading failed: {read:?}");
    if work && let Err(error) = write(&store) {
        assert_damage(&error);
    }
    drop(store);
    if work {
        reopen(&device.image());
    }
}

/// Reads all entries with scans in both directions, `get` and `multi_get`. Returns the difference between the two
/// scans, if any.
fn read(store: &Store) -> Result<Option<String>> {
    for info in store.keyspaces() {
        let keyspace = store.open_keyspace(&info.name)?.expect("it was listed");
        let owned = |entry: Result<(Value, Value)>| entry.map(|(key, value)| (key.to_vec(), value.to_vec()));
        let forward = keyspace.iter().map(owned).collect::<Result<Vec<_>>>()?;
        let backward = keyspace.iter().rev().map(owned).collect::<Result<Vec<_>>>()?;
        let differs = |key: &[u8], way: &str| Ok(Some(format!("{}/{} {way}", info.name, key.escape_ascii())));
        if let Some((a, _)) = forward.iter().zip(backward.iter().rev()).find(|(a, b)| a != b) {
            return differs(&a.0, "backwards");
        }
        if forward.len() != backward.len() {
            return differs(&[], "backwards, in number");
        }
        // The values of lookups are not compared with the values of scans. They may differ if wrong seqnos have
        // corrected checksums. The reason is that a lookup relies on the seqno ranges of runs, and `verify` does not
        // compare the ranges of different runs.
        for (key, _) in forward.iter().step_by(5) {
            keyspace.get(key)?;
        }
        let keys: Vec<&Vec<u8>> = forward.iter().map(|(key, _)| key).step_by(3).collect();
        keyspace.multi_get(&keys)?;
    }
    Ok(None)
}

fn write(store: &Store) -> Result<()> {
    let rows = store.keyspace_with(ROWS, options(ROWS))?;
    for i in 0..40u64 {
        rows.put_with(format!("key{:06}", i * 3), vec![i as u8; 200], Durability::Buffered)?;
    }
    rows.delete_range("key000010".."key000050")?;
    store.settle()?;
    rows.compact(..)?;
    store.settle()?;
    store.checkpoint()
}

fn reopen(image: &SimImage) {
    if let Err(error) = Sizes::TINY.open_image(image, 1).and_then(|(_, store)| read(&store)) {
        assert_damage(&error);
    }
}

/// Asserts that the error names the damaged object and its location, or that the store cannot be opened or written to.
fn assert_damage(error: &Error) {
    match error {
        Error::Corruption { file, .. } => assert!(!file.is_empty(), "no file is named: {error}"),
        Error::Poisoned { first } => assert!(!first.contains("panicked"), "{error}"),
        Error::NotAStore { .. }
        | Error::UnknownIndex { .. }
        | Error::Unsupported { .. }
        | Error::OperatorMissing { .. }
        | Error::OperatorFailed { .. }
        | Error::InvalidArgument { .. } => {}
        other => panic!("an error that does not name the damaged object and its location: {other:?}"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = (0..5).flat_map(|base| [vec![base], vec![base | 0xc0, 1]]).collect();
    for (i, patch) in patches::seeds(50).into_iter().enumerate() {
        out.push([&[(i % 5) as u8 | if i % 3 == 0 { 0xc0 } else { 0 }], &patch[..]].concat());
    }
    out
}
