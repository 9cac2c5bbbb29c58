//! Direct writes: a commit inserts its messages into the parts of their keys. It reads no page.

use super::state::PartedTree;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Entry, KeyRange, Kind, RangeTombstone, Result, Seqno};
use crate::index::parts::{Reach, weight};
use crate::index::tree::space::PreparedBytes;
use crate::index::{DirectTools, DirectWriter, Prepared, Progress};
use crate::resolve::Stripes;

/// Commits write parts themselves if the bytes in memory exceed the limit by more than 1/`SLACK` of it.
const SLACK: usize = 4;

impl DirectWriter for PartedTree {
    fn prepare<'a>(
        &'a self,
        operations: &mut dyn Iterator<Item = Entry<'a>>,
        tools: &DirectTools<'_>,
    ) -> Result<Box<dyn Prepared + 'a>> {
        if let Some(error) = &*self.stuck.lock() {
            return Err(error.clone());
        }
        self.inline_bytes.store(tools.inline_bytes, Relaxed);
        let operations: Vec<Entry<'a>> = operations.collect();
        let bytes = operations.iter().map(|entry| weight(entry) as u64).sum();
        let prepared = PreparedWrite { tree: self, operations, _bytes: self.space.prepare(bytes) };
        self.space.find(|| self.unwritten_bytes(), tools.room)?;
        Ok(Box::new(prepared))
    }

    fn replay(&self, message: &Entry<'_>, tools: &DirectTools<'_>) -> Result<()> {
        self.inline_bytes.store(tools.inline_bytes, Relaxed);
        self.insert(message);
        Ok(())
    }

    fn count_unwritten(&self, note: &dyn Fn(u64)) {
        self.space.count_anew(|| self.unwritten_bytes(), note);
    }

    fn least_unwritten(&self) -> u64 {
        self.pages_of_one()
    }

    fn make_room(&self, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        if self.bytes_over() == 0 {
            return Ok(Progress { idle: true, ..Progress::default() });
        }
        let _writing = self.writing.lock();
        match self.bytes_over() {
            // Another thread has written parts meanwhile.
            0 => Ok(Progress { idle: true, ..Progress::default() }),
            over => self.cool(over + self.most_bytes() / SLACK, Reach::Buffers, None, keep),
        }
    }
}

impl PartedTree {
    fn insert(&self, message: &Entry<'_>) {
        if message.kind == Kind::RangeDelete {
            let range = KeyRange::new(message.key, message.value);
            self.shared.insert_range(&RangeTombstone { range, seqno: message.seqno });
        } else {
            self.shared.insert(*message);
        }
    }

    /// The bytes in memory above those at which commits write parts themselves.
    fn bytes_over(&self) -> usize {
        let most = self.most_bytes();
        self.shared.bytes.load(Relaxed).saturating_sub(most + most / SLACK)
    }
}

/// Operations that can be applied at any time.
struct PreparedWrite<'a> {
    tree: &'a PartedTree,
    operations: Vec<Entry<'a>>,
    _bytes: PreparedBytes<'a>,
}

impl Prepared for PreparedWrite<'_> {
    fn apply(self: Box<Self>, seqnos: &mut dyn Iterator<Item = Seqno>) {
        for entry in &self.operations {
            let seqno = seqnos.next().expect("each operation has a seqno");
            self.tree.insert(&Entry { seqno, ..*entry });
        }
        self.tree.note_debt();
    }
}
