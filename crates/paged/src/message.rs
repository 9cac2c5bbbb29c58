//! Upsert messages and the rule by which two of them become one.
//!
//! A write of a Bε-tree is a message (000 §3.1): a key, an operation, a value, and a timestamp. Two messages of one key
//! are merged when they meet, by 000 Table 5.1:
//!
//! | older | newer | result, with its timestamp |
//! | --- | --- | --- |
//! | any | insert | the newer insert |
//! | insert | update | an insert of the combined value, newer |
//! | update | update | an update by the combined operand, newer |
//! | insert, update | delete | the newer delete |
//! | delete | update, delete | the *older* delete: neither has an effect without a value |
//!
//! The operand of an update is combined with a value by [`combine`], which is associative. So it does not matter in
//! which order neighbouring messages are merged.
//!
//! Invariant: the newer message has the greater timestamp. The table's last row keeps the older timestamp, which is
//! still below that of each later message.

use crate::mistake::Mistake;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Sets the value.
    Insert = 1,
    /// Combines the value with the operand; no effect without a value.
    Update = 2,
    /// Removes the value; no effect without one.
    Delete = 3,
}

impl Op {
    /// The operation with this number.
    ///
    /// # Panics
    /// If no operation has the number.
    #[inline]
    pub fn from_byte(byte: u8) -> Op {
        match byte {
            1 => Op::Insert,
            2 => Op::Update,
            3 => Op::Delete,
            other => panic!("no operation has the number {other}"),
        }
    }
}

/// A message whose value is borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The key.
    pub key: u64,
    /// The time of the request, unique in a tree.
    pub stamp: u64,
    /// The operation.
    pub op: Op,
    /// The value or operand; unused in a delete.
    pub value: &'a [u8],
}

/// Combines `value` with a newer `operand`: the first eight bytes are added as a number, and the other bytes are
/// replaced. Shorter values are added byte by byte.
#[inline]
pub fn combine(value: &mut [u8], operand: &[u8]) {
    debug_assert_eq!(value.len(), operand.len());
    let (Some((count, rest)), Some((more, new))) =
        (value.split_first_chunk_mut::<8>(), operand.split_first_chunk::<8>())
    else {
        value.iter_mut().zip(operand).for_each(|(byte, more)| *byte = byte.wrapping_add(*more));
        return;
    };
    *count = u64::from_le_bytes(*count).wrapping_add(u64::from_le_bytes(*more)).to_le_bytes();
    rest.copy_from_slice(new);
}

/// Combines a `newer` operand with the `older` one, in the place of the newer.
#[inline]
pub fn combine_older(newer: &mut [u8], older: &[u8]) {
    debug_assert_eq!(newer.len(), older.len());
    if Mistake::UpdatesInWrongOrder.is_on() {
        return combine(newer, older);
    }
    let (Some(count), Some(more)) = (newer.first_chunk_mut::<8>(), older.first_chunk::<8>()) else {
        return combine(newer, older);
    };
    *count = u64::from_le_bytes(*count).wrapping_add(u64::from_le_bytes(*more)).to_le_bytes();
}

/// The fields of a stored message that a merge changes.
#[derive(Debug)]
pub struct Stored<'a> {
    /// The timestamp.
    pub stamp: u64,
    /// The operation.
    pub op: Op,
    /// The value or operand.
    pub value: &'a mut [u8],
}

/// Merges `newer` into the older message by Table 5.1.
///
/// # Panics
/// If `newer` is not newer.
#[inline]
pub fn merge(older: &mut Stored<'_>, newer: Message<'_>) {
    assert!(older.stamp < newer.stamp, "a message met one with a later timestamp");
    match (older.op, newer.op) {
        (Op::Delete, Op::Update) if Mistake::UpdateRevivesDeleted.is_on() => {
            (older.op, older.stamp) = (Op::Insert, newer.stamp);
        }
        (Op::Delete, Op::Update | Op::Delete) => {}
        (Op::Insert | Op::Update, Op::Update) => {
            combine(older.value, newer.value);
            older.stamp = newer.stamp;
        }
        (_, Op::Insert | Op::Delete) => {
            older.value.copy_from_slice(newer.value);
            (older.op, older.stamp) = (newer.op, newer.stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(count: u64, tail: u8) -> Vec<u8> {
        [&count.to_le_bytes()[..], &[tail]].concat()
    }

    fn merged(older: (Op, u64), newer: (Op, u64)) -> (Op, u64, Vec<u8>) {
        let (mut old, new) = (value(older.1, 1), value(newer.1, 2));
        let mut stored = Stored { stamp: 5, op: older.0, value: &mut old };
        merge(&mut stored, Message { key: 1, stamp: 9, op: newer.0, value: &new });
        (stored.op, stored.stamp, old)
    }

    #[test]
    fn table_5_1() {
        use Op::{Delete, Insert, Update};
        for old in [Insert, Update, Delete] {
            assert_eq!(merged((old, 3), (Insert, 4)), (Insert, 9, value(4, 2)));
        }
        assert_eq!(merged((Insert, 3), (Update, 4)), (Insert, 9, value(7, 2)));
        assert_eq!(merged((Update, 3), (Update, 4)), (Update, 9, value(7, 2)));
        for old in [Insert, Update] {
            let (op, stamp, _) = merged((old, 3), (Delete, 0));
            assert_eq!((op, stamp), (Delete, 9));
        }
        for new in [Update, Delete] {
            let (op, stamp, _) = merged((Delete, 0), (new, 4));
            assert_eq!((op, stamp), (Delete, 5), "the older tombstone stays");
        }
    }

    #[test]
    fn combining_is_associative() {
        let all = [value(1, 1), value(u64::MAX, 2), value(7, 3)];
        let (mut left, mut right) = (all[0].clone(), all[1].clone());
        combine(&mut left, &all[1]);
        combine(&mut left, &all[2]);
        combine(&mut right, &all[2]);
        let mut other = all[0].clone();
        combine(&mut other, &right);
        assert_eq!(left, other);
        let mut short = [250, 1];
        combine(&mut short, &[10, 1]);
        assert_eq!(short, [4, 2]);
    }

    #[test]
    #[should_panic(expected = "later timestamp")]
    fn older_messages_never_arrive_late() {
        let mut old = value(1, 1);
        let new = old.clone();
        let mut stored = Stored { stamp: 5, op: Op::Insert, value: &mut old };
        merge(&mut stored, Message { key: 1, stamp: 5, op: Op::Insert, value: &new });
    }
}
