//! Transactions as a capability of an engine.
//!
//! ```text
//!   Session::transact(access, work) ─▶ begin ─▶ work(&mut dyn Transaction) ─▶ commit or roll back ─▶ Attempts
//!                                        ▲                                       │
//!                                        └───────────── Conflict ────────────────┘
//! ```
//!
//! An engine describes its transactions with [`Capability`], which names the isolation. A workload runs a closure in a
//! transaction. The adapter of the engine runs the closure again as long as the transaction conflicts with others, and
//! counts the attempts. An adapter reports a conflict inside the closure as the error [`Conflict`], which the closure
//! must return.
//!
//! Invariants: a committed transaction has run its closure to the end exactly once since the last conflict, and nothing
//! remains of the earlier attempts. The durability of a commit is the one of all other writes of the lab.

use std::time::Duration;

use crate::failure::Result;

/// The number of conflicts of a transaction after which [`back_off`] sleeps.
const PATIENT: u64 = 10;
/// The longest sleep of [`back_off`] is 2 to this power in microseconds.
const LONGEST_SLEEP: u64 = 10;

/// The isolation of an engine's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Committed transactions have the same effect as if they had run one after the other. This includes ranges.
    Serializable,
    /// Serialisable as far as a transaction reads single keys or rows that exist. Another transaction may insert a row
    /// into a range that the transaction has scanned.
    SerializableKeys,
    /// A transaction reads a snapshot. Only writes of the same key conflict, so write skew is possible.
    Snapshot,
}

impl Isolation {
    /// The name in a line of results.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::Serializable => "serializable",
            Isolation::SerializableKeys => "serializable-keys",
            Isolation::Snapshot => "snapshot",
        }
    }
}

/// The way in which an engine separates concurrent transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Transactions run concurrently, and a transaction that meets a change of another one fails at its commit, or at a
    /// write.
    Optimistic,
    /// A transaction locks the keys that it reads or writes. A deadlock or a timeout ends it.
    Locks,
    /// At most one transaction that writes exists at a time.
    SingleWriter,
}

impl Scheme {
    /// The name in a line of results.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Optimistic => "optimistic",
            Scheme::Locks => "locks",
            Scheme::SingleWriter => "single-writer",
        }
    }
}

/// The properties of an engine's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The isolation.
    pub isolation: Isolation,
    /// The separation of concurrent transactions.
    pub scheme: Scheme,
    /// Whether [`Transaction::add`] uses a merge operator, which does not read the key.
    pub merges: bool,
}

/// The operations that a transaction needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only. The adapter may use a snapshot.
    Read,
    /// Reads and writes.
    Write,
}

/// The end of a transaction that the closure requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Commit all writes.
    Commit,
    /// Discard all writes.
    RollBack,
}

/// The result of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// The number of times that the closure was run.
    pub count: u64,
    /// The number of times that the engine's own retry loop ended with a conflict, after which the adapter called the
    /// engine again.
    pub gave_up: u64,
    /// Whether the transaction was committed. Otherwise the closure has requested its rollback.
    pub committed: bool,
}

/// The error of an operation whose transaction cannot be committed, because it conflicts with another transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the transaction conflicts with another transaction; run it again from its beginning")
    }
}

impl std::error::Error for Conflict {}

/// An open transaction.
pub trait Transaction {
    /// Clears `value` and copies the value of a key into it. Returns whether the key exists. The transaction does not
    /// write the key.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Like [`Transaction::get`], for a key that the transaction writes afterwards. An engine with locks locks the key
    /// exclusively.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn get_for_update(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get(key, value)
    }

    /// Like [`Transaction::get`], for a key that no transaction of the workload ever changes. The engine need not
    /// protect the read.
    ///
    /// # Errors
    /// The engine's error.
    fn get_constant(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.get(key, value)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Deletes a key.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Adds a number to the value of a key, which is a little-endian `u64`. The sum wraps around on overflow. An absent
    /// key counts as 0. Uses a merge operator if the engine has one ([`Capability::merges`]), otherwise a get and a
    /// put.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn add(&mut self, key: &[u8], delta: u64) -> Result<()>;

    /// Visits at most `limit` entries of the range `from..to` in ascending order. Returns the number of visited
    /// entries.
    ///
    /// # Errors
    /// [`Conflict`], or the engine's error.
    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Like [`Transaction::scan`], for a range that no transaction of the workload ever changes. The engine need not
    /// protect the reads.
    ///
    /// # Errors
    /// The engine's error.
    fn scan_constant(
        &mut self,
        from: &[u8],
        to: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        self.scan(from, to, limit, visit)
    }
}

/// The closure of a transaction. It may run several times.
pub type Work<'a> = dyn FnMut(&mut dyn Transaction) -> Result<Verdict> + 'a;

/// Lets other threads run after the given number of conflicts of one transaction: yields the processor, and from the
/// 10th conflict on sleeps for 1 µs, 2 µs and so on up to about 1 ms. Otherwise a thread could repeat its conflict
/// thousands of times while the other transaction waits for a processor.
pub fn back_off(conflicts: u64) {
    match conflicts.checked_sub(PATIENT) {
        None => std::thread::yield_now(),
        Some(more) => std::thread::sleep(Duration::from_micros(1 << more.min(LONGEST_SLEEP))),
    }
}

/// Runs `attempt`, which is a whole transaction with its commit, until it returns anything but [`Conflict`]. Calls
/// [`back_off`] after each conflict.
///
/// # Errors
/// The first other error of `attempt`.
///
/// ```
/// use pandodb_lab::transactions::{Conflict, Verdict, retry};
///
/// let mut left = 3;
/// let attempts = retry(|| {
///     left -= 1;
///     if left > 0 { Err(Conflict.into()) } else { Ok(Verdict::Commit) }
/// });
/// assert_eq!(attempts.unwrap().count, 3);
/// ```
pub fn retry(mut attempt: impl FnMut() -> Result<Verdict>) -> Result<Attempts> {
    let mut attempts = Attempts::default();
    loop {
        attempts.count += 1;
        match attempt() {
            Ok(verdict) => {
                attempts.committed = verdict == Verdict::Commit;
                return Ok(attempts);
            }
            Err(failure) if failure.is::<Conflict>() => back_off(attempts.count),
            Err(failure) => return Err(failure),
        }
    }
}

/// The sum of a counter and a delta, as [`Transaction::add`] defines it, for engines without a merge operator.
///
/// # Errors
/// If the value is not a counter.
pub fn sum(counter: Option<&[u8]>, delta: u64) -> Result<[u8; 8]> {
    let Some(bytes) = counter else { return Ok(delta.to_le_bytes()) };
    let bytes: [u8; 8] =
        bytes.try_into().map_err(|_| format!("the value is not a counter: it has {} bytes, not 8", bytes.len()))?;
    Ok(u64::from_le_bytes(bytes).wrapping_add(delta).to_le_bytes())
}
