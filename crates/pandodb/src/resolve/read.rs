//! [`Gather`]: the operands that a reader collects from a key's newest visible message down to the key's base.
//!
//! Steps: the reader walks the containers from newest to oldest and calls [`Gather::push_merge`] for each operand of
//! the key. The reader stops at the first base (put, large value, delete, covering range tombstone) or at the end. If
//! there are no operands, the base is the result, and nothing was copied. Otherwise [`Gather::fold`] applies the
//! operands to the base.
//!
//! Invariant: operands are stored from newest to oldest; `ends` ascends. Source: the upserts of 000 Table 5.1.

use super::operator::Operator;
#[cfg(test)]
use crate::base::Kind;
use crate::base::{Error, Result};

/// The operands of one key, from newest to oldest. No memory is allocated before the first operand is added.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    bytes: Vec<u8>,
    /// The end of each operand in `bytes`, newest first.
    ends: Vec<usize>,
}

impl Gather {
    /// Creates an empty collection of operands.
    pub fn new() -> Gather {
        Gather::default()
    }

    /// Whether there are no operands. If there are none, the base is the result.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of operands.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds the key's next older message. Returns `true` if this message is a base, so that older messages do not
    /// matter.
    #[cfg(test)]
    pub fn push(&mut self, kind: Kind, value: &[u8]) -> bool {
        debug_assert_ne!(kind, Kind::RangeDelete, "range tombstones are kept apart");
        if kind == Kind::Merge {
            self.push_merge(value);
        }
        kind != Kind::Merge
    }

    /// Adds an operand that is older than all operands that were added before.
    pub fn push_merge(&mut self, operand: &[u8]) {
        debug_assert_eq!(
            self.ends.last().copied().unwrap_or(0),
            self.bytes.len(),
            "operands follow each other without gaps"
        );
        self.bytes.extend_from_slice(operand);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of all operands together.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Removes all operands except the newest `kept` ones, and returns them.
    pub fn split_off(&mut self, kept: usize) -> Gather {
        let from = if kept == 0 { 0 } else { self.ends[kept - 1] };
        let mut ends = self.ends.split_off(kept);
        ends.iter_mut().for_each(|end| *end -= from);
        Gather { bytes: self.bytes.split_off(from), ends }
    }

    /// Returns the value of `key` after the operands were applied to `base`; `None` if the key has no value after that.
    /// Fails with the error that `missing` returns ([`Error::OperatorMissing`]) if there is no operator, or with
    /// [`Error::OperatorFailed`] if the operator fails.
    ///
    /// # Panics
    /// If there are no operands. In that case the base is the result.
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
