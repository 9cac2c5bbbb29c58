//! Direct writes: a commit inserts its messages into the parts of their keys. It reads no page.

use super::input::Reach;
use super::part::weight;
use super::state::PartedTree;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Entry, Error, KeyRange, Kind, RangeTombstone, Result, Seqno};
use crate::index::{DirectTools, DirectWriter, Prepared};
use crate::resolve::Stripes;

/// Space is checked for this number of bytes more, so that most commits need no check.
const SLACK: u64 = 16 << 10;

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
        self.limit_memory(tools.keep)?;
        let added: usize = operations.iter().map(weight).sum();
        let unwritten = self.unwritten_bytes(added);
        if unwritten > self.checked.load(Relaxed) {
            (tools.room)(unwritten + SLACK)?;
            self.checked.store(unwritten + SLACK, Relaxed);
        }
        Ok(Box::new(PreparedWrite { tree: self, operations }))
    }

    fn replay(&self, message: &Entry<'_>, tools: &DirectTools<'_>) -> Result<()> {
        self.inline_bytes.store(tools.inline_bytes, Relaxed);
        self.insert(message);
        // Nothing reads while the log is replayed, and all messages up to this one are applied.
        let keep = || Stripes { snapshots: Vec::new(), horizon: message.seqno };
        if self.shared.tree.core.repair { self.limit_memory(&keep) } else { Ok(()) }
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

    /// Writes parts if they take a quarter more memory than they should, because background jobs do not keep up. Waits
    /// for a job in progress only if they take twice the memory.
    ///
    /// # Errors
    /// If a page cannot be read or written. A full disk is no error: the check of the space refuses the commit then.
    fn limit_memory(&self, keep: &dyn Fn() -> Stripes) -> Result<()> {
        let (bytes, most) = (self.shared.bytes.load(Relaxed), self.most_bytes());
        if bytes <= most + most / 4 {
            return Ok(());
        }
        let writing = if bytes > 2 * most { Some(self.writing.lock()) } else { self.writing.try_lock() };
        let Some(_writing) = writing else { return Ok(()) };
        match self.cool(bytes.saturating_sub(most), Reach::Buffers, None, keep) {
            Ok(_) | Err(Error::DiskFull { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Operations that can be applied at any time.
struct PreparedWrite<'a> {
    tree: &'a PartedTree,
    operations: Vec<Entry<'a>>,
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
