//! The record of one thread of a history: its reads and its commits, in a few flat vectors.
//!
//! ```text
//!  Look ──▶ Read ──▶ Entry ──▶ items           what was read, all of it at one point between `lo` and `hi`
//!             └─────▶ domain: keys or a span   what was requested: a key in it without an entry was absent
//!  Commit ─▶ Write                             what was written, and the seqno of the last operation
//! ```
//!
//! A transaction is recorded twice: as a look at its read point, and as a commit that refers to the same reads.
//!
//! A *look* is a group of reads that must all hold at one point in the order of commits.
//!
//! Keys and values are recorded as numbers. Every write has a unique [`version`], which determines the bytes of its
//! value. A value is a list of *items*. A plain value has one item, the version of its last put. The items of a list
//! value are the version of the base and the versions of all later operands. A sum has one item, the wrapping sum of
//! the [`mix`] of all its versions.

use std::ops::Range;

use pandodb::Isolation;

use crate::script::Rng;

/// The number of a keyspace.
pub type Space = u8;
/// Plain values, some of them large.
pub const ROWS: Space = 0;
/// Lists, to which merges append.
pub const LISTS: Space = 1;
/// Counters, to which merges add.
pub const SUMS: Space = 2;
/// Plain values in a keyspace that only one thread uses. This thread drops the keyspace and creates it again.
pub const TEMP: Space = 3;
/// Number of keyspaces.
pub const SPACES: usize = 4;
/// Names of the keyspaces.
pub const NAMES: [&str; SPACES] = ["rows", "lists", "sums", "temp"];

/// The item that is recorded for bytes that no write to this keyspace can have produced.
pub const BROKEN: u64 = u64::MAX;
/// The number of a key that no write uses.
pub const STRANGER: u32 = u32::MAX;
/// Number of keys that share a prefix.
pub const FAMILY: u32 = 16;
/// Rows of more bytes than this are stored as blobs.
pub const BLOB_THRESHOLD: usize = 256;

/// The number of bits of a version that hold the operation's position in its transaction.
const OP_BITS: u32 = 6;
/// The number of bits of a transaction's id that hold the transaction's number in its thread.
const NUMBER_BITS: u32 = 48;

/// The id of the `number`th transaction of a thread.
pub fn txn(thread: u64, number: u64) -> u64 {
    assert!(number < 1 << NUMBER_BITS, "a thread has run out of transactions");
    // `thread + 1`, so that version 0 is never used.
    (thread + 1) << NUMBER_BITS | number
}

/// The version that an operation of a transaction writes. No other operation writes this version.
pub fn version(txn: u64, op: usize) -> u64 {
    assert!(op < 1 << OP_BITS, "a batch has more operations than a version can number");
    txn << OP_BITS | op as u64
}

/// The transaction of a version.
pub fn txn_of(version: u64) -> u64 {
    version >> OP_BITS
}

/// Formats a transaction.
pub fn name_txn(txn: u64) -> String {
    format!("T{}.{}", (txn >> NUMBER_BITS).wrapping_sub(1), txn & ((1 << NUMBER_BITS) - 1))
}

/// A hash of a version.
pub fn mix(version: u64) -> u64 {
    Rng(version).next_u64()
}

/// The bytes of a key. The keys of a family share the first two of three bytes.
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

/// The bytes after the version in a row's value.
fn padding(version: u64) -> impl Iterator<Item = u8> {
    let bits = mix(version);
    let len = if bits.is_multiple_of(64) { BLOB_THRESHOLD as u64 + bits / 64 % 2_000 } else { bits / 64 % 96 };
    (0..len).map(move |i| bits.rotate_left((i % 61) as u32) as u8)
}

/// Decodes a value into items.
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

/// A range of positions in one of the vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    from: u32,
    to: u32,
}

impl Part {
    /// The positions from `from` up to, but not including, `to`.
    pub fn new(from: usize, to: usize) -> Part {
        let narrow = |at: usize| u32::try_from(at).expect("a window is short");
        Part { from: narrow(from), to: narrow(to) }
    }

    /// The positions.
    pub fn range(self) -> Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// The keys that a read requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// These keys, in this order.
    Keys(Part),
    /// Every key from the first bound (included) to the second bound (excluded). The domain of a scan that stopped
    /// early ends where the scan stopped.
    Span(u32, u32),
}

/// A key with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: u32,
    /// The items of the key's value.
    pub items: Part,
}

/// A read of one keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The keyspace.
    pub space: Space,
    /// The requested keys.
    pub domain: Domain,
    /// The keys that had a value, in the order of the domain.
    pub entries: Part,
    /// The number of writes that the transaction of the read had made before the read. The read must see these writes.
    pub own: u32,
}

/// Reads that must all hold at the same point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The transaction.
    pub txn: u64,
    /// The newest seqno that was seen by or acknowledged to any thread before the look began. The point of the look
    /// must not be below this seqno.
    pub floor: u64,
    /// The lowest possible point. For a look at a snapshot, `lo` and `hi` are both the seqno of the snapshot.
    pub lo: u64,
    /// The highest possible point, for reads without a snapshot and for recovered images.
    pub hi: u64,
    /// The reads.
    pub reads: Part,
    /// The writes of the transaction that made the reads, if any.
    pub writes: Part,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The commit was acknowledged. The field is the seqno of the last operation.
    At(u64),
    /// The batch was refused or never submitted, so no read may see it.
    Refused,
    /// The transaction was refused because of a conflict. The field is the newest seqno that was visible afterwards: the
    /// conflicting commit was submitted before this seqno was seen.
    Conflict(u64),
}

/// A batch, or the writes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction.
    pub txn: u64,
    /// The newest seqno that was seen by or acknowledged to any thread before the commit was submitted. The seqnos of
    /// the commit must be above this seqno.
    pub floor: u64,
    /// The seqno of the snapshot that the transaction read at.
    pub begin: u64,
    /// The isolation of a transaction; `None` for a batch, which the store does not compare with other commits.
    pub isolation: Option<Isolation>,
    /// The reads of a transaction.
    pub reads: Part,
    /// The result.
    pub outcome: Outcome,
    /// The writes of the batch.
    pub writes: Part,
}

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets a key.
    Put,
    /// Folds an operand into a key.
    Merge,
    /// Removes a key.
    Delete,
    /// Removes every key from the key of the write up to this key (excluded).
    DeleteRange(u32),
    /// The keyspace was dropped and created again before this commit. This is not an operation of the batch, so it has
    /// no seqno.
    Recreate,
}

/// The creation of a keyspace. A creation uses one seqno, which the store does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation {
    /// The newest seqno that was seen by or acknowledged to any thread before the creation. The seqno of the creation
    /// is above this seqno.
    pub floor: u64,
    /// The seqno of a snapshot taken after the creation. The seqno of the creation is not above this seqno.
    pub shown: u64,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The keyspace.
    pub space: Space,
    /// The kind of the operation.
    pub action: Action,
    /// The key, or the first key of a range.
    pub key: u32,
    /// The version that the operation writes.
    pub version: u64,
}

impl Write {
    /// Whether the write uses a seqno.
    pub fn counts(&self) -> bool {
        self.action != Action::Recreate
    }

    /// The keys that the write changes.
    pub fn keys(&self) -> Range<u32> {
        match self.action {
            Action::DeleteRange(to) => self.key..to,
            Action::Recreate => 0..u32::MAX,
            _ => self.key..self.key + 1,
        }
    }

    /// Whether the write changes a key.
    pub fn touches(&self, space: Space, key: u32) -> bool {
        self.space == space && self.keys().contains(&key)
    }
}

/// The record of one thread.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The looks, in any order.
    pub looks: Vec<Look>,
    /// The commits, in the order in which the thread made them.
    pub commits: Vec<Commit>,
    /// The created keyspaces, in the order in which the thread created them.
    pub creations: Vec<Creation>,
    /// The reads of all looks.
    pub reads: Vec<Read>,
    /// The keys of all domains of the kind [`Domain::Keys`].
    pub keys: Vec<u32>,
    /// The entries of all reads.
    pub entries: Vec<Entry>,
    /// The items of all entries.
    pub items: Vec<u64>,
    /// The writes of all commits.
    pub writes: Vec<Write>,
    /// The number of writes that the current transaction has made. The next read gets this number.
    pub own: u32,
    /// Number of backups that were read.
    pub copies: u64,
    /// Number of stores that were recovered from a crash image and read.
    pub crashes: u64,
    /// Calls that failed although there was no fault.
    pub errors: Vec<String>,
}

impl Log {
    /// Records a read; `seen` holds the keys with values, in order, with their items.
    pub fn read<'a>(&mut self, space: Space, domain: Domain, seen: impl IntoIterator<Item = (u32, &'a [u64])>) {
        let from = self.entries.len();
        for (key, items) in seen {
            let start = self.items.len();
            self.items.extend_from_slice(items);
            self.entries.push(Entry { key, items: Part::new(start, self.items.len()) });
        }
        let entries = Part::new(from, self.entries.len());
        self.reads.push(Read { space, domain, entries, own: self.own });
    }

    /// Records a read of one key.
    pub fn get(&mut self, space: Space, key: u32, items: Option<&[u64]>) {
        let start = self.keys.len();
        self.keys.push(key);
        let domain = Domain::Keys(Part::new(start, start + 1));
        self.read(space, domain, items.map(|items| (key, items)));
    }

    /// Records a look that consists of the reads from position `from` on.
    pub fn look(&mut self, txn: u64, floor: u64, (lo, hi): (u64, u64), from: usize) {
        let (reads, writes) = (Part::new(from, self.reads.len()), Part::default());
        self.looks.push(Look { txn, floor, lo, hi, reads, writes });
    }

    /// Records a commit of the writes from position `from` on.
    pub fn commit(&mut self, txn: u64, floor: u64, begin: u64, outcome: Outcome, from: usize) {
        let (writes, reads) = (Part::new(from, self.writes.len()), Part::default());
        self.commits.push(Commit { txn, floor, begin, isolation: None, reads, outcome, writes });
    }

    /// Records a transaction with the reads and the writes from two positions on. `floors` are the newest seqnos that
    /// any thread had seen before the transaction began and before it was committed.
    pub fn transaction(
        &mut self,
        txn: u64,
        floors: (u64, u64),
        (begin, isolation): (u64, Isolation),
        outcome: Outcome,
        from: (usize, usize),
    ) {
        let (reads, writes) = (Part::new(from.0, self.reads.len()), Part::new(from.1, self.writes.len()));
        self.looks.push(Look { txn, floor: floors.0, lo: begin, hi: begin, reads, writes });
        if !writes.range().is_empty() {
            let (floor, isolation) = (floors.1, Some(isolation));
            self.commits.push(Commit { txn, floor, begin, isolation, reads, outcome, writes });
        }
        self.own = 0;
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
