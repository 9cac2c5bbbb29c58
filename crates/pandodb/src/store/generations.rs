//! [`Generations`] is a check of recovery in paper mode. The check compares the generations of memtable leaves with the
//! order of commits (002 §3.6.4).
//!
//! ```text
//!   key k   seqno 40, generation 17     seqno 52, generation 31     seqno 53, generation 30: not one history
//!           seqno 51, no generation: it reached the memtable after seqno 52, so only its seqno gives its position
//! ```
//!
//! The paper orders the messages of a key by generations, because it has no seqnos. PandoDB orders these messages by
//! seqno. The generations in the log must agree with this order. If they do not agree, the log has records that do not
//! belong to one history. Recovery then returns an error instead of using these records.
//!
//! Memory: there is one entry for each distinct key in records that carry generations. Other records need no memory.
//!
//! Invariant: the entry of a key describes the key's insertion with the highest seqno so far, because records are
//! checked in the order of seqnos.

use std::collections::HashMap;

use crate::base::{Error, KeyspaceId, Result, Seqno};
use crate::wal::{Record, Tag};

/// The newest insertion of each key in the records that were already checked.
#[derive(Debug, Default)]
pub(super) struct Generations {
    newest: HashMap<(KeyspaceId, Box<[u8]>), Newest>,
}

/// One insertion into a memtable leaf.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// The epoch of the log in which the insertion happened. Generations of different epochs, or of different
    /// memtables, are not comparable.
    life: u32,
    tag: Tag,
    seqno: Seqno,
}

impl Generations {
    /// Checks the next record. REQUIRES: its seqnos are above those of all records before it.
    ///
    /// # Errors
    /// `Corruption` if a generation contradicts the seqnos.
    pub(super) fn check(&mut self, record: &Record<'_>) -> Result<()> {
        let Some(tags) = record.tags else { return Ok(()) };
        assert_eq!(tags.tags.len(), record.count as usize, "decoding a record checks that each operation has a tag");
        for ((op, seqno), tag) in record.ops().zip(record.first.0..).zip(&tags.tags) {
            let op = op?;
            let Some(tag) = *tag else { continue };
            let this = Newest { life: tags.life, tag, seqno: Seqno(seqno) };
            let before = self.newest.insert((op.keyspace, op.key.into()), this);
            let met = before.filter(|before| before.life == this.life && before.tag.memtable == tag.memtable);
            if let Some(before) = met.filter(|before| before.tag.generation >= tag.generation) {
                let detail = format!(
                    "seqno {seqno} has leaf generation {}, but the earlier seqno {} of the same key has {}",
                    tag.generation, before.seqno, before.tag.generation
                );
                return Err(Error::corruption("log record", 0, detail));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;
    use crate::wal::{RecordKind, Tags, put_op};

    /// Checks records of one key. Each record is given by its epoch, its memtable and the generations of its
    /// operations.
    fn check(records: &[(u32, u64, &[Option<u64>])]) -> Result<()> {
        let mut order = Generations::default();
        let mut first = Seqno(100);
        for (life, memtable, generations) in records {
            let mut ops = Vec::new();
            generations.iter().for_each(|_| put_op(&mut ops, KeyspaceId(1), Kind::Put, b"k", b"v"));
            let tag = |generation| Tag { memtable: Seqno(*memtable), generation };
            let tags = Tags { life: *life, tags: generations.iter().map(|generation| generation.map(tag)).collect() };
            let payload = tags.encode(first, &ops);
            let count = generations.len() as u32;
            let (found, split) = Tags::split(&payload, first, count)?;
            assert_eq!((found, &split), (&ops[..], &tags));
            order.check(&Record {
                first,
                count,
                epoch: 9,
                durable: Seqno(0),
                kind: RecordKind::Ops,
                payload: found,
                tags: Some(&split),
            })?;
            first = Seqno(first.0 + u64::from(count));
        }
        Ok(())
    }

    #[test]
    fn generations_go_up() {
        assert!(check(&[(1, 0, &[Some(4)]), (1, 0, &[Some(7)]), (1, 0, &[Some(8), Some(9)])]).is_ok());
        assert!(check(&[(1, 0, &[Some(4)]), (1, 0, &[Some(3)])]).unwrap_err().is_corruption());
        assert!(check(&[(1, 0, &[Some(4)]), (1, 0, &[Some(4)])]).unwrap_err().is_corruption());
        assert!(check(&[(1, 0, &[Some(4), Some(3)])]).unwrap_err().is_corruption(), "within a batch");
    }

    #[test]
    fn what_came_late_has_none() {
        assert!(check(&[(1, 0, &[Some(4)]), (1, 0, &[None]), (1, 0, &[Some(5)])]).is_ok());
        assert!(check(&[(1, 0, &[Some(4)]), (1, 0, &[None]), (1, 0, &[Some(2)])]).is_err());
    }

    #[test]
    fn memtables_and_lives_count_for_themselves() {
        assert!(check(&[(1, 0, &[Some(400)]), (1, 100, &[Some(0)]), (3, 100, &[Some(0)])]).is_ok());
    }
}
