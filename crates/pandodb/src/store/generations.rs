//! Generations of memtable leaves, compared with the order of commits (002 §3.6.4).
//!
//! ```text
//!   key k   seqno 40, generation 17     seqno 52, generation 31     seqno 53, generation 30
//!                      └── inserted before 52 began: 17 < 31 ──┘          │
//!                                     52 was under way when 53 began: either may come first
//! ```
//!
//! The paper orders the messages of a key by these numbers, since it has no others. Here seqnos say the order and where the
//! log ends; what a store in paper mode recovers must agree with what its leaves counted, wherever they had to agree. If it
//! does not, records were put together that do not belong to one history, and recovery says so instead of serving them.
//!
//! Takes memory for each different key in records that carry generations; nothing for others.

use std::collections::HashMap;

use crate::base::{Error, KeyspaceId, Result, Seqno};
use crate::wal::{Ops, Record, Tag};

/// The newest insertion of each key so far.
#[derive(Debug, Default)]
pub(super) struct Generations {
    newest: HashMap<(KeyspaceId, Box<[u8]>), Newest>,
}

/// An insertion.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// Memtables of different lives, or of one, count for themselves.
    life: u32,
    tag: Tag,
    seqno: Seqno,
}

impl Generations {
    /// Takes the next record, by seqno.
    ///
    /// # Errors
    /// `Corruption` if its generations contradict its place.
    pub(super) fn check(&mut self, record: &Record<'_>) -> Result<()> {
        let Some(tags) = record.tags else { return Ok(()) };
        for ((op, seqno), tag) in Ops::new(record.payload).zip(record.first.0..).zip(&tags.tags) {
            let op = op?;
            let Some(tag) = *tag else { continue };
            let this = Newest { life: tags.life, tag, seqno: Seqno(seqno) };
            let newest = self.newest.entry((op.keyspace, op.key.into())).or_insert(this);
            let comparable =
                newest.seqno < this.seqno && newest.life == this.life && newest.tag.memtable == tag.memtable;
            // A batch inserts its own one after the other.
            let before = newest.seqno <= tags.seen || newest.seqno >= record.first;
            let same = newest.tag.generation == tag.generation;
            if comparable && (same || (before && newest.tag.generation > tag.generation)) {
                let detail = format!(
                    "seqno {seqno} has generation {} in its memtable's leaf, seqno {} of the same key before it {}",
                    tag.generation, newest.seqno, newest.tag.generation
                );
                return Err(Error::corruption("log record", 0, detail));
            }
            if !comparable || newest.tag.generation < tag.generation {
                *newest = this;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;
    use crate::wal::{Tags, put_op};

    /// Checks records of one key: first seqno, seen, and the generations of their operations.
    fn check(records: &[(u64, u64, &[u64])], life: impl Fn(usize) -> u32) -> Result<()> {
        let mut order = Generations::default();
        for (i, (first, seen, generations)) in records.iter().enumerate() {
            let mut ops = Vec::new();
            generations.iter().for_each(|_| put_op(&mut ops, KeyspaceId(1), Kind::Put, b"k", b"v"));
            let tag = |&generation: &u64| Some(Tag { memtable: Seqno(0), generation });
            let tags = Tags { life: life(i), seen: Seqno(*seen), tags: generations.iter().map(tag).collect() };
            let (payload, first) = (tags.encode(Seqno(*first), &ops), Seqno(*first));
            let (ops, tags) = Tags::split(&payload, first, generations.len() as u32)?;
            let count = generations.len() as u32;
            let durable = Seqno(0);
            order.check(&Record { first, count, epoch: 9, durable, payload: ops, tags: Some(&tags) })?;
        }
        Ok(())
    }

    #[test]
    fn what_was_before_has_the_lower_generation() {
        assert!(check(&[(1, 0, &[4]), (2, 1, &[7]), (3, 2, &[8, 9])], |_| 1).is_ok());
        assert!(check(&[(1, 0, &[4]), (2, 1, &[3])], |_| 1).unwrap_err().is_corruption());
        assert!(check(&[(1, 0, &[4]), (2, 1, &[4])], |_| 1).unwrap_err().is_corruption());
        assert!(check(&[(1, 0, &[4, 3])], |_| 1).unwrap_err().is_corruption(), "within a batch");
    }

    #[test]
    fn what_was_under_way_may_come_in_any_order() {
        assert!(check(&[(1, 0, &[4]), (2, 0, &[3]), (3, 2, &[5])], |_| 1).is_ok());
        assert!(check(&[(1, 0, &[4]), (2, 0, &[4])], |_| 1).unwrap_err().is_corruption(), "but not in the same place");
    }

    #[test]
    fn lives_count_for_themselves() {
        assert!(check(&[(1, 0, &[400]), (2, 1, &[0])], |i| i as u32).is_ok());
    }
}
