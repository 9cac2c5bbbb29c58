//! Merge operators: functions that apply an operand to a value, so that a writer can change a value without reading it.
//!
//! A write stores an operand. Reads and compactions fold operands into values. The timing of compactions determines
//! which operands are folded together, so an operator must satisfy these invariants:
//!
//! * **total**: it has a result for every base and every operand, including operands that an older version of the
//!   operator accepted;
//! * **deterministic**: the same arguments give the same result every time, on every machine;
//! * **composable**: folding some operands into a value and the rest later gives the same value as folding all operands
//!   at once;
//! * **associative**, if it implements [`MergeOperator::partial_merge`]: replacing two neighbouring operands by their
//!   combination does not change the result, for any base and any other operands;
//! * **self-contained**: it calls no store, and waits for no thread that calls a store. An operator runs inside reads,
//!   and inside steps of background work that must end before a store can be closed. So if an operator called a store,
//!   the call could wait for the operator itself to end. Each such call fails with [`Error::Reentrant`]
//!   ([`in_operator`]).
//!
//! [`Operator`] wraps an operator for the engine: it catches panics and refuses results over [`MAX_VALUE`]. The worst
//! effect of a faulty operator is that the keys which use it become unreadable. No data is lost, because a failed fold
//! keeps its messages.
//!
//! Steps of a call: mark the thread as inside an operator, call the operator, convert a panic or an oversized result
//! into [`Error::OperatorFailed`].
//!
//! Source: the upserts of 000 Table 5.1. The built-in operator [`PutIfAbsent`] is that table's blind update "if
//! absent".

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{any::Any, fmt, sync::Arc};

use crate::base::{Error, MAX_OPERAND, MAX_VALUE, Result};

/// Folds operands into values.
///
/// The timing of compactions determines which operands are folded together. So an operator must be *total*: it has a
/// result for every base and every operand, including operands that an older version of the operator accepted. The
/// operator must be *deterministic* and *composable*: folding some operands now and the rest later gives the same value
/// as folding all operands at once. If the operator implements [`MergeOperator::partial_merge`], that function must be
/// *associative*. A panic in an operator is caught, and the read or compaction that called it fails with
/// [`Error::OperatorFailed`]. Rust's panic hook runs first, as for any panic. The hook prints to stderr unless the
/// program has set another hook.
///
/// An operator must also be *self-contained*: it uses only its arguments. A call of any store from inside an operator
/// fails with [`Error::Reentrant`]. An operator must also not wait for a thread that calls a store. Such a wait is not
/// detected and may block forever.
///
/// A keyspace stores the name and version of its operator; register your own operators with
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
///         // Of equally long values the first wins, so that the grouping does not matter.
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
    /// The name that the catalogue stores with the keyspace. Not empty.
    fn name(&self) -> &str;

    /// The version of the operator. Increase it when the meaning of operands changes.
    fn version(&self) -> u32 {
        1
    }

    /// Checks whether `operand` may be committed; if not, returns the reason. Called before a write is accepted.
    fn validate(&self, operand: &[u8]) -> Result<(), String>;

    /// Checks whether `value` may be put into a keyspace with this operator; if not, returns the reason. Called before
    /// a put is accepted. The default accepts every value. [`MergeOperator::full_merge`] must have a result even for
    /// refused values, because an older version of the operator may have accepted them.
    fn validate_value(&self, value: &[u8]) -> Result<(), String> {
        let _ = value;
        Ok(())
    }

    /// Returns the value of `key` after `operands` were applied to `base`, the value that the key had before them
    /// (`None` if it had no value). There is at least one operand, and the oldest operand is first. The result `None`
    /// means that the key has no value.
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>>;

    /// Returns one operand with the same effect as `older` followed by `newer`. Returns `None` if no such operand
    /// exists, or if combining the two is not worthwhile. A result over [`MAX_OPERAND`] bytes is not used.
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let _ = (key, older, newer);
        None
    }
}

/// An `Arc` of an operator is an operator, too.
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
/// **A sum wraps around** at 2^64 without an error; do not use this operator if a sum may reach 2^64. Operands and
/// values have 8 bytes, little-endian (`to_le_bytes`); a put or merge of another length is refused. A base of another
/// length, which an older version may have accepted, counts as 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddU64;

/// Adds 64-bit signed numbers.
///
/// **A sum wraps around** at ±2^63 without an error; do not use this operator if a sum may reach ±2^63. Operands and
/// values have 8 bytes, little-endian, in two's complement (`to_le_bytes`); a put or merge of another length is
/// refused. A base of another length, which an older version may have accepted, counts as 0.
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

/// Appends the operand to the value. The value is truncated to [`MAX_VALUE`] bytes. The result does not depend on the
/// order in which operands are combined.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append;

/// Combines byte strings by bitwise *or*. The shorter string is padded with zeros at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct BitOr;

/// Sets the value of a key that has no value. An existing value is kept; otherwise the oldest operand becomes the
/// value.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutIfAbsent;

/// The names of the built-in operators.
pub const BUILTIN_NAMES: [&str; 7] = ["add_u64", "add_i64", "min", "max", "append", "bit_or", "put_if_absent"];

/// The built-in operator with this name.
pub fn builtin(name: &str) -> Option<Arc<dyn MergeOperator>> {
    let operator: Arc<dyn MergeOperator> = match name {
        "add_u64" => Arc::new(AddU64),
        "add_i64" => Arc::new(AddI64),
        "min" => Arc::new(Min),
        "max" => Arc::new(Max),
        "append" => Arc::new(Append),
        "bit_or" => Arc::new(BitOr),
        "put_if_absent" => Arc::new(PutIfAbsent),
        _ => return None,
    };
    assert!(BUILTIN_NAMES.contains(&name), "`{name}` is missing in the list of names");
    assert_eq!(operator.name(), name, "the catalogue finds an operator by the name that it stores");
    Some(operator)
}

/// The number in `bytes`; 0 if they are not 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// The sum of numbers, as bytes. Addition in two's complement is the same for signed and unsigned numbers.
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
        debug_assert_eq!(value.len(), total.min(MAX_VALUE), "only bytes over the limit are lost");
        Some(value)
    }
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        // If this function truncated its result, it would not be associative: the bytes that are cut off here may be
        // kept if the operands are combined in another order.
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

/// A wrapper through which the engine calls a registered operator: panics and oversized results become errors.
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

    /// Checks that `operand` may be committed: it has at most [`MAX_OPERAND`] bytes and the operator accepts it.
    /// Otherwise fails with [`Error::InvalidArgument`], or with [`Error::OperatorFailed`] if the operator panics.
    pub fn validate(&self, operand: &[u8]) -> Result<()> {
        let refuse = |detail: &str| Error::invalid(format!("merge operand for `{}`: {detail}", self.name));
        if operand.len() > MAX_OPERAND {
            return Err(refuse(&format!("{} bytes are over the limit of {MAX_OPERAND}", operand.len())));
        }
        self.contain(|operator| operator.validate(operand))?.map_err(|detail| refuse(&detail))
    }

    /// Checks that the operator accepts `value`. Otherwise fails with [`Error::InvalidArgument`], or with
    /// [`Error::OperatorFailed`] if the operator panics.
    pub fn validate_value(&self, value: &[u8]) -> Result<()> {
        let refuse = |detail: String| Error::invalid(format!("value in a keyspace with `{}`: {detail}", self.name));
        self.contain(|operator| operator.validate_value(value))?.map_err(refuse)
    }

    /// Returns the value after `operands` were applied to `base`. There is at least one operand; the oldest is first.
    /// Fails with [`Error::OperatorFailed`] if the operator panics or returns a value over [`MAX_VALUE`].
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

    /// Returns one operand that replaces two neighbouring operands, if the operator can combine them into at most
    /// [`MAX_OPERAND`] bytes. Fails with [`Error::OperatorFailed`] if the operator panics or returns an operand over
    /// [`MAX_VALUE`].
    pub fn partial(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Result<Option<Vec<u8>>> {
        let operand = self.contain(|operator| operator.partial_merge(key, older, newer))?;
        match operand {
            Some(operand) if operand.len() > MAX_VALUE => {
                Err(self.failed(format!("its operand of {} bytes is over the limit of {MAX_VALUE}", operand.len())))
            }
            operand => Ok(operand.filter(|operand| operand.len() <= MAX_OPERAND)),
        }
    }

    /// Calls the operator and catches a panic. If the operator has state of its own, a panic may leave this state half
    /// changed. The operator must be total even then. The engine shares no state with the operator.
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
    /// The number of nested operator calls on this thread.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// Marks this thread as inside an operator until the mark is dropped.
struct Running;

impl Running {
    fn begin() -> Running {
        RUNNING.set(RUNNING.get() + 1);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        debug_assert!(in_operator(), "calls begin and end in pairs, on one thread");
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Whether this thread is inside a merge operator. Inside an operator, a thread may not use a store.
#[inline]
pub fn in_operator() -> bool {
    RUNNING.get() > 0
}

/// The message of a panic, for the detail of an error.
fn panic_words(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", words.unwrap_or("no message"))
}
