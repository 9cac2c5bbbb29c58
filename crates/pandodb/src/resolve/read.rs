//! [`Gather`]: the operands that a reader meets on its way from a key's newest visible message to its base.
//!
//! The reader walks containers newest to oldest and stops at the first base (put, large value, delete, covering range
//! tombstone) or at the end. Without operands the base is the answer as it lies, and nothing was copied here. With
//! operands, [`Gather::fold`] applies them.

use super::operator::Operator;
use crate::base::{Error, Kind, Result};

/// Operands of one key, gathered newest to oldest. Allocates with the first one.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    bytes: Vec<u8>,
    /// Where each operand ends in `bytes`, newest first.
    ends: Vec<usize>,
}

impl Gather {
    /// Nothing gathered.
    pub fn new() -> Gather {
        Gather::default()
    }

    /// Forgets what was gathered, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether there are no operands: then the base is the answer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of operands.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Takes the key's next older message. True: it is a base, and nothing older matters. An operand is copied.
    #[inline]
    pub fn push(&mut self, kind: Kind, value: &[u8]) -> bool {
        debug_assert_ne!(kind, Kind::RangeDelete, "range tombstones are kept apart");
        if kind == Kind::Merge {
            self.push_merge(value);
        }
        kind != Kind::Merge
    }

    /// Takes an operand that is older than all before.
    pub fn push_merge(&mut self, operand: &[u8]) {
        self.bytes.extend_from_slice(operand);
        self.ends.push(self.bytes.len());
    }

    /// The value of `key` once the operands are applied to `base`; `None` if it then has none. `missing` makes the error
    /// for operands without an operator ([`Error::OperatorMissing`]); [`Error::OperatorFailed`] comes from the operator.
    ///
    /// # Panics
    /// If there are no operands: the base is the answer, and the caller has it without a copy.
    pub fn fold(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operator: Option<&Operator>,
        missing: impl FnOnce() -> Error,
    ) -> Result<Option<Vec<u8>>> {
        assert!(!self.is_empty(), "there is nothing to fold");
        let operator = operator.ok_or_else(missing)?;
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut operands: Vec<&[u8]> = starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]).collect();
        operands.reverse();
        operator.full(key, base, &operands)
    }
}
