//! Merge operators: how an operand changes a value without anybody reading it at write time.
//!
//! A write leaves an operand. Reads and compactions fold operands into values, at places and in groups that depend on
//! how compactions happen to run, so an operator must not care:
//!
//! * **total**: an answer for every base and every operand, also for operands that an older version accepted;
//! * **deterministic**: the same answer every time, on every machine, from nothing but the arguments;
//! * **composable**: folding some operands into a value and the rest later gives what folding all at once gives;
//! * **associative** where [`MergeOperator::partial_merge`] answers: two neighbouring operands and their combination do the
//!   same to every base, in every neighbourhood;
//! * **self-contained**: it calls into no store, and starts no thread that does and waits for it. It runs inside reads and inside
//!   steps of background work that closes wait for, so a call could wait for itself: each one fails with [`Error::Reentrant`]
//!   ([`in_operator`]).
//!
//! [`Operator`] is what the engine calls: it catches panics and refuses results over [`MAX_VALUE`], so that the worst a
//! bad operator does is that its keys cannot be read. Nothing is lost, since a failed fold keeps its messages.
//!
//! Source: the upserts of 000 Table 5.1. The blind update "if absent" there is one of the built-in operators: [`PutIfAbsent`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{any::Any, fmt, sync::Arc};

use crate::base::{Error, MAX_OPERAND, MAX_VALUE, Result};

/// Folds operands into values.
///
/// Reads and compactions fold at places and in groups that depend on how compactions happen to run, so an operator must
/// be *total* (an answer for every base and every operand, also those of older versions), *deterministic*, *composable*
/// (folding some operands now and the rest later gives what folding all at once gives), and *associative* where it
/// offers [`MergeOperator::partial_merge`]. A panic in it is caught, and fails the read or compaction that called it with
/// [`Error::OperatorFailed`]; before that, Rust's panic hook runs as for any panic, which prints to stderr unless the
/// program has set another.
///
/// It is also *self-contained*: it uses nothing but its arguments. A store that it calls, its own or another one, refuses with
/// [`Error::Reentrant`]. A thread that it starts and waits for must not call one either: that is not noticed, and may never end.
///
/// A keyspace stores the name and version of its operator; register your own with
/// [`StoreBuilder::operator`](crate::StoreBuilder::operator) each time the store is opened.
///
/// ```
/// /// Keeps the longest value.
/// struct Longest;
///
/// impl pandodb::MergeOperator for Longest {
///     fn name(&self) -> &str {
///         "longest"
///     }
///     fn validate(&self, _operand: &[u8]) -> Result<(), String> {
///         Ok(())
///     }
///     fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
///         // Of equally long ones the first: so it does not matter how they are grouped.
///         let all = base.into_iter().chain(operands.iter().copied());
///         all.reduce(|best, next| if next.len() > best.len() { next } else { best }).map(<[u8]>::to_vec)
///     }
/// }
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// use pandodb::{KeyspaceOptions, Store};
/// let store = Store::builder(&path).operator(Longest).open()?;
/// let names = store.keyspace_with("names", KeyspaceOptions::new().merge(Longest))?;
/// names.merge("id", "Al")?;
/// names.merge("id", "Alan")?;
/// names.merge("id", "Ada")?;
/// assert_eq!(names.get("id")?.unwrap(), "Alan");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait MergeOperator: Send + Sync + 'static {
    /// The name that the catalogue stores with the keyspace.
    fn name(&self) -> &str;

    /// Grows when the meaning of operands changes.
    fn version(&self) -> u32 {
        1
    }

    /// Whether `operand` may be committed; if not, why. Called before a write is accepted.
    fn validate(&self, operand: &[u8]) -> Result<(), String>;

    /// Whether `value` may be put into a keyspace with this operator; if not, why. Called before a put is accepted. The
    /// default accepts every value. [`MergeOperator::full_merge`] has to answer for refused values all the same: an older
    /// version of the operator may have accepted them.
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        let _ = value;
        Ok(())
    }

    /// The value of `key` after `operands`, oldest first and at least one, are applied to `base`, the value before them.
    /// `None`: the key has no value then.
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>>;

    /// One operand that does what `older` and then `newer` do; `None` if there is none, or none that is worth it. A result
    /// over [`MAX_OPERAND`] bytes is not used.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let _ = (key, older, newer);
        None
    }
}

/// An operator that is shared.
impl<T: MergeOperator + ?Sized> MergeOperator for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn version(&self) -> u32 {
        (**self).version()
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        (**self).validate(operand)
    }
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        (**self).validate_value(value)
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        (**self).full_merge(key, base, operands)
    }
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        (**self).partial_merge(key, older, newer)
    }
}

/// Adds 64-bit unsigned numbers.
///
/// **A sum wraps around** at 2^64 without an error: use it where that cannot happen. Operands and values have 8 bytes, little-endian (`to_le_bytes`); a put or merge of another length is refused. A base of
/// another length, from a version that accepted it, counts as 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddU64;

/// Adds 64-bit signed numbers.
///
/// **A sum wraps around** at ±2^63 without an error: use it where that cannot happen. Operands and values have 8 bytes, little-endian, in two's complement (`to_le_bytes`); a put or merge of another length
/// is refused. A base of another length, from a version that accepted it, counts as 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddI64;

/// Keeps the smallest byte string, in the order of keys.
///
/// For numbers, write them big-endian ([`to_be_bytes`](u64::to_be_bytes)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Min;

/// Keeps the largest byte string, in the order of keys.
///
/// For numbers, write them big-endian ([`to_be_bytes`](u64::to_be_bytes)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Max;

/// Appends to the value. What goes beyond [`MAX_VALUE`] bytes is cut off, wherever the operands are folded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append;

/// Combines byte by byte with *or*; the shorter one is padded with zeros at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct BitOr;

/// Gives the key a value unless it has one: the base wins, then the oldest operand.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutIfAbsent;

/// The names that [`builtin`] knows.
pub const BUILTIN_NAMES: [&str; 7] = ["add_u64", "add_i64", "min", "max", "append", "bit_or", "put_if_absent"];

/// The built-in operator of that name.
pub fn builtin(name: &str) -> Option<Arc<dyn MergeOperator>> {
    Some(match name {
        "add_u64" => Arc::new(AddU64),
        "add_i64" => Arc::new(AddI64),
        "min" => Arc::new(Min),
        "max" => Arc::new(Max),
        "append" => Arc::new(Append),
        "bit_or" => Arc::new(BitOr),
        "put_if_absent" => Arc::new(PutIfAbsent),
        _ => return None,
    })
}

/// The number in `bytes`; 0 if they are not a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Sums as bytes. Two's complement adds signed and unsigned numbers alike.
fn sum<'a>(numbers: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    numbers.map(number).fold(0, u64::wrapping_add).to_le_bytes().to_vec()
}

fn validate_number(operand: &[u8]) -> Result<(), String> {
    if operand.len() == 8 { Ok(()) } else { Err(format!("it must have 8 bytes, not {}", operand.len())) }
}

/// Base and operands in the order in which they were written.
fn all<'a>(base: Option<&'a [u8]>, operands: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
    base.into_iter().chain(operands.iter().copied())
}

impl MergeOperator for AddU64 {
    fn name(&self) -> &str {
        "add_u64"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        validate_number(operand)
    }
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        validate_number(value)
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(sum(all(base, operands)))
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(sum([older, newer].into_iter()))
    }
}

impl MergeOperator for AddI64 {
    fn name(&self) -> &str {
        "add_i64"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        validate_number(operand)
    }
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        validate_number(value)
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        AddU64.full_merge(key, base, operands)
    }
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        AddU64.partial_merge(key, older, newer)
    }
}

impl MergeOperator for Min {
    fn name(&self) -> &str {
        "min"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        all(base, operands).min().map(<[u8]>::to_vec)
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.min(newer).to_vec())
    }
}

impl MergeOperator for Max {
    fn name(&self) -> &str {
        "max"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        all(base, operands).max().map(<[u8]>::to_vec)
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.max(newer).to_vec())
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        "append"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let total: usize = all(base, operands).map(<[u8]>::len).sum();
        let mut value = Vec::with_capacity(total.min(MAX_VALUE));
        for part in all(base, operands) {
            value.extend_from_slice(&part[..part.len().min(MAX_VALUE - value.len())]);
        }
        Some(value)
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        // Cutting here would not be associative: what is cut off could have been followed by room.
        (older.len() + newer.len() <= MAX_OPERAND).then(|| [older, newer].concat())
    }
}

impl MergeOperator for BitOr {
    fn name(&self) -> &str {
        "bit_or"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let mut value = vec![0; all(base, operands).map(<[u8]>::len).max().unwrap_or(0)];
        for part in all(base, operands) {
            value.iter_mut().zip(part).for_each(|(byte, &bits)| *byte |= bits);
        }
        Some(value)
    }
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.full_merge(key, Some(older), &[newer])
    }
}

impl MergeOperator for PutIfAbsent {
    fn name(&self) -> &str {
        "put_if_absent"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        all(base, operands).next().map(<[u8]>::to_vec)
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], _newer: &[u8]) -> Option<Vec<u8>> {
        Some(older.to_vec())
    }
}

/// A registered operator as the engine calls it: contained, so that it can fail but not break anything.
#[derive(Clone)]
pub struct Operator {
    operator: Arc<dyn MergeOperator>,
    name: Arc<str>,
    version: u32,
}

impl Operator {
    /// Wraps `operator`.
    pub fn new(operator: Arc<dyn MergeOperator>) -> Operator {
        Operator { name: operator.name().into(), version: operator.version(), operator }
    }

    /// The operator itself, to register it elsewhere.
    pub fn inner(&self) -> &Arc<dyn MergeOperator> {
        &self.operator
    }

    /// The operator's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operator's version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether `operand` may be committed: at most [`MAX_OPERAND`] bytes and accepted by the operator. Otherwise
    /// [`Error::InvalidArgument`]; [`Error::OperatorFailed`] if the operator panics.
    pub fn validate(&self, operand: &[u8]) -> Result<()> {
        let refuse = |detail: &str| Error::invalid(format!("merge operand for `{}`: {detail}", self.name));
        if operand.len() > MAX_OPERAND {
            return Err(refuse(&format!("{} bytes are over the limit of {MAX_OPERAND}", operand.len())));
        }
        self.contain(|operator| operator.validate(operand))?.map_err(|detail| refuse(&detail))
    }

    /// Whether `value` may be put: accepted by the operator. Otherwise [`Error::InvalidArgument`];
    /// [`Error::OperatorFailed`] if the operator panics.
    pub fn validate_value(&self, value: &[u8]) -> Result<()> {
        let refuse = |detail: String| Error::invalid(format!("value in a keyspace with `{}`: {detail}", self.name));
        self.contain(|operator| operator.validate_value(value))?.map_err(refuse)
    }

    /// The value after `operands`, oldest first and at least one, are applied to `base`. [`Error::OperatorFailed`] if the
    /// operator panics or makes a value over [`MAX_VALUE`].
    pub fn full(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Vec<u8>>> {
        assert!(!operands.is_empty(), "a merge needs an operand");
        let value = self.contain(|operator| operator.full_merge(key, base, operands))?;
        match value {
            Some(value) if value.len() > MAX_VALUE => {
                Err(self.failed(format!("its value of {} bytes is over the limit of {MAX_VALUE}", value.len())))
            }
            value => Ok(value),
        }
    }

    /// One operand in place of two neighbours, if the operator has one of at most [`MAX_OPERAND`] bytes.
    /// [`Error::OperatorFailed`] if it panics or makes a value over [`MAX_VALUE`].
    pub fn partial(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Result<Option<Vec<u8>>> {
        let operand = self.contain(|operator| operator.partial_merge(key, older, newer))?;
        match operand {
            Some(operand) if operand.len() > MAX_VALUE => {
                Err(self.failed(format!("its operand of {} bytes is over the limit of {MAX_VALUE}", operand.len())))
            }
            operand => Ok(operand.filter(|operand| operand.len() <= MAX_OPERAND)),
        }
    }

    /// Calls the operator. State that it shares with itself may be left half changed by a panic; that it stays total all
    /// the same is its own duty, and the engine shares none with it.
    fn contain<T>(&self, call: impl FnOnce(&dyn MergeOperator) -> T) -> Result<T> {
        let _running = Running::begin();
        catch_unwind(AssertUnwindSafe(|| call(&*self.operator))).map_err(|panic| self.failed(panic_words(&*panic)))
    }

    fn failed(&self, detail: String) -> Error {
        Error::OperatorFailed { operator: self.name.to_string(), detail }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operator({} v{})", self.name, self.version)
    }
}

thread_local! {
    /// How many operators this thread is in the middle of.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// Notes that an operator runs on this thread, until it is dropped.
struct Running;

impl Running {
    fn begin() -> Running {
        RUNNING.set(RUNNING.get() + 1);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Whether this thread is in the middle of a merge operator: then it may not use a store.
#[inline]
pub fn in_operator() -> bool {
    RUNNING.get() > 0
}

/// What a panic said.
fn panic_words(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", words.unwrap_or("without words"))
}
