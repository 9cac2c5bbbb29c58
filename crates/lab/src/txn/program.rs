//! [`Program`] and [`Worker`]: the interface between a transactional workload and the bench that times it.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::rows::Visit;
use crate::engine::Session;
use crate::failure::Result;
use crate::record::mix;
use crate::transactions::Attempts;
use crate::workload::Dist;

/// The sizes and choices of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The number of accounts, customers or queue rows; for TPC-C, the number of stock rows.
    pub records: u64,
    /// The distribution of the accessed accounts.
    pub dist: Dist,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of threads.
    pub threads: usize,
    /// Bytes of an account's row.
    pub value_len: usize,
    /// The number of customers of the hot set.
    pub hot: u64,
    /// The number of warehouses.
    pub warehouses: u64,
    /// Whether the engine's transactions have a merge operator.
    pub merges: bool,
}

impl Settings {
    /// The random numbers of a thread.
    pub fn rng(&self, thread: usize) -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(mix(self.seed ^ mix(thread as u64 + 1)))
    }
}

/// Sums over the committed transactions. Each program gives the positions a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub [i64; 6]);

impl Tally {
    /// Adds the sums of another thread. All sums wrap around on overflow.
    pub fn add(&mut self, other: &Tally) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = mine.wrapping_add(theirs));
    }
}

/// The kind of a [`Step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepKind {
    /// A transaction that may write.
    #[default]
    Write,
    /// A transaction that only reads.
    Read,
    /// An operation beside the measured transactions. It is neither counted nor timed, but ends like a transaction.
    Aside,
    /// A transaction that found nothing to do, such as an empty queue. Only its attempts are counted.
    Idle,
    /// The worker has waited for other workers.
    Waiting,
}

/// The result of [`Worker::run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The attempts.
    pub attempts: Attempts,
    /// The kind.
    pub kind: StepKind,
    /// Bytes of the keys and values that a committed transaction has written.
    pub written: u64,
    /// Bytes of the keys and values of new rows, minus the bytes of deleted rows.
    pub born: i64,
}

impl Step {
    /// The step of an operation without a transaction, or of a transaction that cannot conflict.
    pub fn once() -> Step {
        Step { attempts: Attempts { count: 1, gave_up: 0, committed: true }, ..Step::default() }
    }
}

/// A transactional workload.
pub trait Program: Send + Sync {
    /// Passes all rows of the loaded store to `put`, mostly in key order.
    ///
    /// # Errors
    /// The error of `put`.
    fn rows(&self, put: &mut Visit) -> Result<()>;

    /// The transactions of a thread.
    fn worker(&self, thread: usize) -> Box<dyn Worker + '_>;

    /// Compares the contents of the store with the loaded rows and with the tally of all workers. Returns a complaint
    /// for each sum that is wrong.
    ///
    /// # Errors
    /// The engine's error.
    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>>;
}

/// The transactions of one thread.
pub trait Worker {
    /// Draws the inputs of the next transaction. This is not timed.
    fn draw(&mut self);

    /// Runs the drawn transaction.
    ///
    /// # Errors
    /// The engine's error.
    fn run(&mut self, session: &mut dyn Session) -> Result<Step>;

    /// The sums over the committed transactions.
    fn tally(&self) -> Tally;
}

/// Adds a complaint if two sums differ.
pub fn expect(complaints: &mut Vec<String>, what: &str, found: i64, expected: i64) {
    if found != expected {
        complaints.push(format!("{what}: the store has {found}, the committed transactions make {expected}"));
    }
}
