//! What one thread of a history notes down: what it looked at and what it committed, in a few flat vectors.
//!
//! ```text
//!  Look ──▶ Read ──▶ Entry ──▶ items          what was seen, all of it at one point between `lo` and `hi`
//!             └─────▶ domain: keys or a span   what was asked: a key in it without an entry was seen absent
//!  Commit ─▶ Write                             what was written, and at which seqno the last of it stands
//! ```
//!
//! Keys are numbers, and so is all that is seen: every write has a [`version`] of its own, and the bytes of a value follow
//! from it. A value is thus a list of *items*: of a plain key the version of its last put; of a list the versions of its base
//! and of every operand since; of a sum one number, to which every operand has added the [`mix`] of its version.

use std::ops::Range;

use crate::script::Rng;

/// Where a number of keyspaces stand.
pub type Space = u8;
/// Plain values, some of them large.
pub const ROWS: Space = 0;
/// Lists, appended to.
pub const LISTS: Space = 1;
/// Counters, added to.
pub const SUMS: Space = 2;
/// Plain values in a keyspace that is dropped and created again by the one thread that uses it.
pub const TEMP: Space = 3;
/// How many there are.
pub const SPACES: usize = 4;
/// Their names.
pub const NAMES: [&str; SPACES] = ["rows", "lists", "sums", "temp"];

/// An item that no write has made: bytes that are not a value.
pub const BROKEN: u64 = u64::MAX;
/// A key that no write has made.
pub const STRANGER: u32 = u32::MAX;
/// Keys that share a prefix.
pub const FAMILY: u32 = 16;
/// Rows above this are stored apart.
pub const BLOB_THRESHOLD: usize = 256;

/// Bits of a version for the place in the transaction, and of a transaction for its number in its thread.
const OP_BITS: u32 = 6;
const NUMBER_BITS: u32 = 48;

/// The transaction of a thread.
pub fn txn(thread: u64, number: u64) -> u64 {
    assert!(number < 1 << NUMBER_BITS, "a thread has run out of transactions");
    // Nothing has the version 0.
    (thread + 1) << NUMBER_BITS | number
}

/// The version that an operation of a transaction writes: nobody else's.
pub fn version(txn: u64, op: usize) -> u64 {
    assert!(op < 1 << OP_BITS, "a batch is larger than versions can tell");
    txn << OP_BITS | op as u64
}

/// The transaction of a version.
pub fn txn_of(version: u64) -> u64 {
    version >> OP_BITS
}

/// A version or a transaction, in words.
pub fn name_txn(txn: u64) -> String {
    format!("T{}.{}", (txn >> NUMBER_BITS).wrapping_sub(1), txn & ((1 << NUMBER_BITS) - 1))
}

/// A number that follows from a version and looks like any other.
pub fn mix(version: u64) -> u64 {
    Rng(version).next_u64()
}

/// The bytes of a key: those of a family share two of three.
pub fn key(number: u32) -> [u8; 3] {
    let family = u16::try_from(number / FAMILY).expect("few keys").to_be_bytes();
    [family[0], family[1], (number % FAMILY) as u8]
}

/// The number of a key.
pub fn number(key: &[u8]) -> u32 {
    match *key {
        [a, b, low] if u32::from(low) < FAMILY => u32::from(u16::from_be_bytes([a, b])) * FAMILY + u32::from(low),
        _ => STRANGER,
    }
}

/// The bytes of a put of `version`.
pub fn encode(space: Space, version: u64, into: &mut Vec<u8>) {
    into.clear();
    match space {
        SUMS => into.extend(mix(version).to_le_bytes()),
        LISTS => into.extend(version.to_le_bytes()),
        _ => {
            into.extend(version.to_le_bytes());
            into.extend(padding(version));
        }
    }
}

/// The bytes of a merge of `version`.
pub fn operand(space: Space, version: u64) -> [u8; 8] {
    if space == SUMS { mix(version).to_le_bytes() } else { version.to_le_bytes() }
}

/// What follows the version in a row.
fn padding(version: u64) -> impl Iterator<Item = u8> {
    let bits = mix(version);
    let len = if bits.is_multiple_of(64) { BLOB_THRESHOLD as u64 + bits / 64 % 2_000 } else { bits / 64 % 96 };
    (0..len).map(move |i| bits.rotate_left((i % 61) as u32) as u8)
}

/// Reads a value back into items.
pub fn decode(space: Space, value: &[u8], items: &mut Vec<u64>) {
    let (words, rest) = value.as_chunks::<8>();
    match space {
        LISTS => {
            items.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
            if !rest.is_empty() || words.is_empty() {
                items.push(BROKEN);
            }
        }
        SUMS => items.push(if words.len() == 1 && rest.is_empty() { u64::from_le_bytes(words[0]) } else { BROKEN }),
        _ => {
            let version = words.first().map(|word| u64::from_le_bytes(*word));
            let whole = version.filter(|version| padding(*version).eq(value[8..].iter().copied()));
            items.push(whole.unwrap_or(BROKEN));
        }
    }
}

/// A part of one of the vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    from: u32,
    to: u32,
}

impl Part {
    /// From a length that a vector had to the one that it has.
    pub fn new(from: usize, to: usize) -> Part {
        let narrow = |at: usize| u32::try_from(at).expect("a window is short");
        Part { from: narrow(from), to: narrow(to) }
    }

    /// As positions.
    pub fn range(self) -> Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// What a read asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Some keys, one by one, in this order.
    Keys(Part),
    /// Every key from the first to before the second. A scan that was left early has asked up to where it came.
    Span(u32, u32),
}

/// A key with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: u32,
    /// What it held.
    pub items: Part,
}

/// A read of one keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The keyspace.
    pub space: Space,
    /// What was asked for.
    pub domain: Domain,
    /// What had a value, in the order of the domain.
    pub entries: Part,
}

/// Reads that must all hold at one and the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Who looked.
    pub txn: u64,
    /// What was acknowledged, or shown to anybody, before the look began. The point must not lie before it.
    pub floor: u64,
    /// The point is this seqno of a snapshot, or one from here
    pub lo: u64,
    /// to here: of reads without a snapshot, and of images.
    pub hi: u64,
    /// The reads.
    pub reads: Part,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged; its operations have the seqnos up to this one.
    At(u64),
    /// It was refused or never asked for: nobody may see it.
    Refused,
}

/// A batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Whose it was.
    pub txn: u64,
    /// What was acknowledged, or shown to anybody, before it was asked for. Its seqnos must lie above.
    pub floor: u64,
    /// The snapshot that its transaction read at.
    pub begin: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// What it wrote.
    pub writes: Part,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets a key.
    Put,
    /// Folds an operand into a key.
    Merge,
    /// Removes a key.
    Delete,
    /// Removes every key up to before this one.
    DeleteRange(u32),
    /// The keyspace was dropped and created again before this commit. Not an operation, so without a seqno.
    Recreate,
}

/// The creation of a keyspace. It takes one seqno; the store does not tell the caller which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation {
    /// What was acknowledged, or shown to anybody, before it was asked for. Its seqno lies above.
    pub floor: u64,
    /// A snapshot that was taken after it. Its seqno is this one or lies below.
    pub shown: u64,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The keyspace.
    pub space: Space,
    /// What it does.
    pub action: Action,
    /// The key, or the first one of a range.
    pub key: u32,
    /// What it leaves.
    pub version: u64,
}

impl Write {
    /// Whether it takes a seqno.
    pub fn counts(&self) -> bool {
        self.action != Action::Recreate
    }

    /// Whether it changes a key.
    pub fn touches(&self, space: Space, key: u32) -> bool {
        self.space == space
            && match self.action {
                Action::DeleteRange(to) => (self.key..to).contains(&key),
                Action::Recreate => true,
                _ => self.key == key,
            }
    }
}

/// The notes of one thread.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// What it looked at, in any order.
    pub looks: Vec<Look>,
    /// What it committed, in its order.
    pub commits: Vec<Commit>,
    /// The keyspaces it created, in its order.
    pub creations: Vec<Creation>,
    /// The reads of all looks.
    pub reads: Vec<Read>,
    /// The keys of all reads of some keys.
    pub keys: Vec<u32>,
    /// The entries of all reads.
    pub entries: Vec<Entry>,
    /// The items of all entries.
    pub items: Vec<u64>,
    /// The writes of all commits.
    pub writes: Vec<Write>,
    /// How many copies of the store were looked at,
    pub copies: u64,
    /// and how many stores recovered from a crash.
    pub crashes: u64,
    /// Calls that failed although nothing was broken.
    pub errors: Vec<String>,
}

impl Log {
    /// Notes a read; `entries` is what was seen, in order, as keys and items.
    pub fn read<'a>(&mut self, space: Space, domain: Domain, seen: impl IntoIterator<Item = (u32, &'a [u64])>) {
        let from = self.entries.len();
        for (key, items) in seen {
            let start = self.items.len();
            self.items.extend_from_slice(items);
            self.entries.push(Entry { key, items: Part::new(start, self.items.len()) });
        }
        self.reads.push(Read { space, domain, entries: Part::new(from, self.entries.len()) });
    }

    /// Notes a read of one key.
    pub fn get(&mut self, space: Space, key: u32, items: Option<&[u64]>) {
        let start = self.keys.len();
        self.keys.push(key);
        let domain = Domain::Keys(Part::new(start, start + 1));
        self.read(space, domain, items.map(|items| (key, items)));
    }

    /// Notes a look at the reads from the `from`th on.
    pub fn look(&mut self, txn: u64, floor: u64, (lo, hi): (u64, u64), from: usize) {
        self.looks.push(Look { txn, floor, lo, hi, reads: Part::new(from, self.reads.len()) });
    }

    /// Notes a commit of the writes from the `from`th on.
    pub fn commit(&mut self, txn: u64, floor: u64, begin: u64, outcome: Outcome, from: usize) {
        let writes = Part::new(from, self.writes.len());
        self.commits.push(Commit { txn, floor, begin, outcome, writes });
    }

    /// The writes of a commit.
    pub fn writes_of(&self, commit: &Commit) -> &[Write] {
        &self.writes[commit.writes.range()]
    }

    /// The items of an entry.
    pub fn items_of(&self, entry: &Entry) -> &[u64] {
        &self.items[entry.items.range()]
    }
}
