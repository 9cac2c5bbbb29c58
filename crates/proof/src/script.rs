//! Seeded workloads, and a model of the contents of the store after each step.
//!
//! A script is a list of steps generated from a seed. It uses three keyspaces: `rows` (puts, deletes, range deletes,
//! small and large values), `sums` (counters, changed by merges), and `temp` (like `rows`, but dropped and created
//! again). A batch or a transaction may write to all three keyspaces. Any subset of the steps is a valid script too,
//! because [`Script::keep`] also removes operations on a keyspace if it removes the creation of this keyspace.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use pandodb::Durability;
pub use pandodb::base::random::{Rng, mix};

/// Returns a value of `len` bytes. Three of four values repeat their first 8 bytes, so that a store has both
/// compressible and incompressible values.
pub fn value(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = rng.bytes(len);
    if len % 4 != 3 {
        (8..len).for_each(|i| bytes[i] = bytes[i - 8]);
    }
    bytes
}

/// The keyspace of plain values.
pub const ROWS: &str = "rows";
/// The keyspace of counters.
pub const SUMS: &str = "sums";
/// The keyspace that is dropped and created again.
pub const TEMP: &str = "temp";
/// Values of more bytes than this are stored as blobs.
pub const BLOB_THRESHOLD: usize = 300;

/// One operation of a batch.
#[derive(Clone)]
pub enum Op {
    /// Keyspace, key, value.
    Put(&'static str, Vec<u8>, Vec<u8>),
    /// Adds to a counter of [`SUMS`].
    Add(Vec<u8>, i64),
    /// Keyspace, key.
    Delete(&'static str, Vec<u8>),
    /// Keyspace, first key, exclusive end.
    DeleteRange(&'static str, Vec<u8>, Vec<u8>),
}

impl Op {
    /// The keyspace that the operation changes.
    pub fn keyspace(&self) -> &'static str {
        match self {
            Op::Put(name, ..) | Op::Delete(name, _) | Op::DeleteRange(name, ..) => name,
            Op::Add(..) => SUMS,
        }
    }

    /// The key that the operation changes, or the first key of a range.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Put(_, key, _) | Op::Delete(_, key) | Op::DeleteRange(_, key, _) | Op::Add(key, _) => key,
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        match self {
            Op::Put(name, key, value) => write!(f, "put {name}/{} of {} bytes", text(key), value.len()),
            Op::Add(key, delta) => write!(f, "add {delta} to {SUMS}/{}", text(key)),
            Op::Delete(name, key) => write!(f, "delete {name}/{}", text(key)),
            Op::DeleteRange(name, from, to) => write!(f, "delete {name}/{}..{}", text(from), text(to)),
        }
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is committed.
    Commit,
    /// It is rolled back.
    Rollback,
    /// It reads the key that its last operation puts. Then this put is written without the transaction, so the commit
    /// has a conflict, and only the put has an effect.
    Conflict,
}

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    /// Commits a batch.
    Commit(Vec<Op>, Durability),
    /// Runs a serialisable transaction that reads and writes.
    Transact(Vec<Op>, Durability, End),
    /// Creates a keyspace.
    Create(&'static str),
    /// Drops a keyspace.
    Drop(&'static str),
    /// Loads rows, which are sorted by key, into a keyspace of plain values.
    LoadSorted(&'static str, Vec<(Vec<u8>, Vec<u8>)>),
    /// Takes a checkpoint.
    Checkpoint,
    /// Waits until no background work is left.
    Settle,
    /// Compacts a whole keyspace.
    Compact(&'static str),
    /// Makes all earlier commits durable, to the given degree.
    Persist(Durability),
    /// Takes a snapshot.
    Snapshot,
    /// Reads the oldest snapshot and releases it.
    Release,
    /// Copies the store into another store and compares the contents.
    Backup,
    /// Closes the store and opens it again; snapshots are released.
    Reopen,
}

impl Step {
    /// The durability that the acknowledgement of the step guarantees for this step and for all earlier steps.
    pub fn promise(&self) -> Durability {
        match self {
            Step::Transact(.., End::Rollback) => Durability::None,
            Step::Commit(_, durability) | Step::Transact(_, durability, _) | Step::Persist(durability) => *durability,
            Step::Create(_)
            | Step::Drop(_)
            | Step::LoadSorted(..)
            | Step::Checkpoint
            | Step::Settle
            | Step::Compact(_)
            | Step::Reopen => Durability::Synced,
            Step::Snapshot | Step::Release | Step::Backup => Durability::None,
        }
    }

    /// The operations of a batch or of a transaction that take effect.
    pub fn effects(&self) -> &[Op] {
        match self {
            Step::Commit(ops, _) | Step::Transact(ops, _, End::Commit) => ops,
            Step::Transact(ops, _, End::Conflict) => &ops[ops.len() - 1..],
            _ => &[],
        }
    }
}

/// All keyspaces with their contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State(pub BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>);

impl State {
    /// Applies the effect of a step.
    ///
    /// # Panics
    /// If the step uses a keyspace that does not exist.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Commit(..) | Step::Transact(..) => step.effects().iter().for_each(|op| self.apply_op(op)),
            Step::Create(name) => {
                self.0.entry((*name).to_owned()).or_default();
            }
            Step::Drop(name) => {
                self.0.remove(*name);
            }
            Step::LoadSorted(name, rows) => self.keyspace(name).extend(rows.iter().cloned()),
            _ => {}
        }
    }

    /// Whether every keyspace that the step uses exists.
    pub fn takes(&self, step: &Step) -> bool {
        match step {
            Step::Commit(ops, _) | Step::Transact(ops, ..) => ops.iter().all(|op| self.0.contains_key(op.keyspace())),
            Step::Drop(name) | Step::Compact(name) | Step::LoadSorted(name, _) => self.0.contains_key(*name),
            _ => true,
        }
    }

    fn keyspace(&mut self, name: &str) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        self.0.get_mut(name).expect("a script uses only keyspaces that exist")
    }

    /// Applies one operation.
    ///
    /// # Panics
    /// If the operation uses a keyspace that does not exist.
    pub fn apply_op(&mut self, op: &Op) {
        match op {
            Op::Put(name, key, value) => {
                self.keyspace(name).insert(key.clone(), value.clone());
            }
            Op::Add(key, delta) => {
                let entry = self.keyspace(SUMS).entry(key.clone()).or_insert_with(|| vec![0; 8]);
                let sum = i64::from_le_bytes(entry[..].try_into().expect("8 bytes")).wrapping_add(*delta);
                *entry = sum.to_le_bytes().to_vec();
            }
            Op::Delete(name, key) => {
                self.keyspace(name).remove(key);
            }
            Op::DeleteRange(name, from, to) => self.keyspace(name).retain(|key, _| key < from || key >= to),
        }
    }

    /// A hash of the contents.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Parameters of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Number of steps.
    pub steps: usize,
    /// Percentage of large values.
    pub blobs: u64,
    /// Percentage of commits with `Durability::None`.
    pub lazy: u64,
    /// Percentage of commits with `Durability::Buffered`; all others are synced.
    pub buffered: u64,
    /// Number of distinct keys of a keyspace.
    pub keys: u64,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Script {
    /// The seed that it was generated from.
    pub seed: u64,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Script {
    /// Generates the script of a seed.
    pub fn generate(seed: u64, mix: Mix) -> Script {
        let mut rng = Rng(seed);
        let mut steps = vec![Step::Create(ROWS), Step::Create(SUMS)];
        let (mut temp, mut snapshots) = (false, 0);
        while steps.len() < mix.steps {
            let step = match rng.below(100) {
                0..=2 => Step::Checkpoint,
                3 => Step::Settle,
                4 => Step::Compact(if rng.chance(50) { ROWS } else { SUMS }),
                5..=6 => {
                    temp = !temp;
                    if temp { Step::Create(TEMP) } else { Step::Drop(TEMP) }
                }
                7..=8 => Step::Persist(if rng.chance(50) { Durability::Synced } else { Durability::Buffered }),
                9..=11 => {
                    snapshots += 1;
                    Step::Snapshot
                }
                12..=13 if snapshots > 0 => {
                    snapshots -= 1;
                    Step::Release
                }
                14 => {
                    snapshots = 0;
                    Step::Reopen
                }
                15 if rng.chance(30) => Step::Backup,
                _ => commit(&mut rng, mix, temp),
            };
            steps.push(step);
        }
        Script { seed, steps }
    }

    /// This script with sorted loads, one for about 25 steps. They are drawn from random numbers of their own, so the
    /// other steps stay the same. A load packs memtables and takes checkpoints, so scripts for long logs have none.
    #[must_use]
    pub fn with_loads(mut self, mix: Mix) -> Script {
        insert_loads(&mut self.steps, self.seed, mix);
        self
    }

    /// This script with transactions instead of one half of its batches, in one of two scripts. They are drawn from
    /// random numbers of their own, so the other steps stay the same.
    #[must_use]
    pub fn with_transactions(mut self) -> Script {
        let mut rng = Rng(mix(self.seed ^ 0x0074_7861_6374));
        if rng.chance(50) {
            for step in &mut self.steps {
                if let Step::Commit(ops, durability) = step
                    && rng.chance(50)
                {
                    let end = [End::Commit, End::Commit, End::Commit, End::Rollback, End::Conflict][rng.index(5)];
                    let mut ops = std::mem::take(ops);
                    if end == End::Conflict {
                        ops.push(Op::Put(ROWS, key(rng.below(8)), value(&mut rng, 20)));
                    }
                    *step = Step::Transact(ops, *durability, end);
                }
            }
        }
        self
    }

    /// The script of the steps at `positions`, without operations on keyspaces whose creation is not among these steps.
    #[must_use]
    pub fn keep(&self, positions: &[usize]) -> Script {
        let mut there = BTreeSet::new();
        let mut steps = Vec::new();
        for step in positions.iter().filter_map(|position| self.steps.get(*position)) {
            let mut step = step.clone();
            let fits = match &mut step {
                Step::Create(name) => there.insert(*name),
                Step::Drop(name) => there.remove(*name),
                Step::Compact(name) | Step::LoadSorted(name, _) => there.contains(*name),
                Step::Commit(ops, _) => {
                    ops.retain(|op| there.contains(op.keyspace()));
                    !ops.is_empty()
                }
                Step::Transact(ops, _, end) => {
                    // The last operation causes the conflict.
                    let causes = *end != End::Conflict || there.contains(ROWS);
                    ops.retain(|op| there.contains(op.keyspace()));
                    causes && !ops.is_empty()
                }
                _ => true,
            };
            if fits {
                steps.push(step);
            }
        }
        Script { seed: self.seed, steps }
    }

    /// The steps as text.
    pub fn words(&self) -> Vec<String> {
        self.steps.iter().enumerate().map(|(i, step)| format!("{i}: {step:?}")).collect()
    }

    /// The state before the first step and the state after each step.
    pub fn states(&self) -> Vec<State> {
        let mut states = vec![State::default()];
        for step in &self.steps {
            let mut next = states.last().expect("not empty").clone();
            next.apply(step);
            states.push(next);
        }
        states
    }
}

fn commit(rng: &mut Rng, mix: Mix, temp: bool) -> Step {
    let durability = match rng.below(100) {
        roll if roll < mix.lazy => Durability::None,
        roll if roll < mix.lazy + mix.buffered => Durability::Buffered,
        _ => Durability::Synced,
    };
    let count = 1 + rng.below(6);
    let ops = (0..count).map(|_| {
        let name = if temp && rng.chance(30) { TEMP } else { ROWS };
        match rng.below(20) {
            0..=8 => {
                let large = rng.chance(mix.blobs);
                let len = if large { BLOB_THRESHOLD as u64 + 1 + rng.below(9000) } else { rng.below(200) };
                Op::Put(name, key(rng.below(mix.keys)), value(rng, len as usize))
            }
            9..=15 => Op::Add(key(rng.below(mix.keys / 4 + 1)), rng.below(2001) as i64 - 1000),
            16..=18 => Op::Delete(if rng.chance(20) { SUMS } else { name }, key(rng.below(mix.keys))),
            _ => {
                let from = rng.below(mix.keys);
                let name = if rng.chance(20) { SUMS } else { name };
                Op::DeleteRange(name, key(from), key(from + 1 + rng.below(mix.keys / 8 + 1)))
            }
        }
    });
    Step::Commit(ops.collect(), durability)
}

/// A load has rows of at most this number of neighbouring keys. If a tree has to merge the rows of a load with older
/// rows, the cost of a crash unit grows with this number, because each write of the merge is a point at which a crash
/// is tried.
const LOADED_KEYS: u64 = 60;

/// Inserts sorted loads, see [`Script::with_loads`].
fn insert_loads(steps: &mut Vec<Step>, seed: u64, mix: Mix) {
    let mut rng = Rng(self::mix(seed ^ 0x6c6f_6164));
    let first =
        steps.iter().position(|step| matches!(step, Step::Commit(..) | Step::Transact(..))).unwrap_or(steps.len());
    for _ in 0..(steps.len() as u64 + rng.below(25)) / 25 {
        let share = 10 + rng.below(80);
        let mut rows = Vec::new();
        let from = rng.below(mix.keys.saturating_sub(LOADED_KEYS) + 1);
        for number in from..mix.keys.min(from + LOADED_KEYS) {
            if rng.chance(share) {
                let len =
                    if rng.chance(mix.blobs) { BLOB_THRESHOLD as u64 + 1 + rng.below(5000) } else { rng.below(200) };
                rows.push((key(number), value(&mut rng, len as usize)));
            }
        }
        let at = first + rng.index(steps.len() - first + 1);
        steps.insert(at, Step::LoadSorted(ROWS, rows));
    }
}

/// The key with this number. Keys have the same order as their numbers.
pub fn key(number: u64) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}
