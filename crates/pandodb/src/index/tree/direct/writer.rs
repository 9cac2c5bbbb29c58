//! Direct writes: a commit brings the leaves of its keys into memory before it draws its seqnos, and inserts its
//! messages after that.
//!
//! ```text
//!   prepare   heat and pin the range of each key, fold it if it has grown ──▶ seqnos, log ──▶ apply   insert, unpin
//!             may read pages, may fail                                                        memory only
//! ```

use super::state::{HotTree, Stuck};
use crate::base::sync::Ordering::{Relaxed, SeqCst};
use crate::base::{Entry, KeyRange, Kind, PAGE, RangeTombstone, Result, Seqno};
use crate::index::hot::Pin;
use crate::index::{DirectTools, DirectWriter, Prepared, Progress};
use crate::resolve::Stripes;

/// Space is checked for this number of bytes more, so that most commits need no check.
const SLACK: u64 = 16 << 10;
/// A message may make this number of pages of leaves longer or changed.
const LEAF_PAGES: u64 = 3;

impl DirectWriter for HotTree {
    fn prepare<'a>(
        &'a self,
        operations: &mut dyn Iterator<Item = Entry<'a>>,
        tools: &DirectTools<'_>,
    ) -> Result<Box<dyn Prepared + 'a>> {
        if let Some(error) = self.stuck_by() {
            return Err(error);
        }
        self.inline_bytes.store(tools.inline_bytes, Relaxed);
        let (mut prepared, mut bytes) = (Vec::new(), 0);
        for entry in operations {
            // The message makes its leaf longer, and perhaps its leaf is not counted yet.
            bytes += (entry.key.len() + entry.value.len()) as u64 + LEAF_PAGES * PAGE as u64;
            let pin = match entry.kind {
                Kind::RangeDelete => None,
                _ => Some(self.heat(entry.key)?),
            };
            if let Some(pin) = &pin {
                self.fold_if_grown(pin, tools);
            }
            prepared.push((pin, entry));
        }
        let prepared = PreparedWrite::new(self, prepared, bytes);
        if self.unwritten_bytes() > self.checked.load(SeqCst) {
            self.check_room(tools)?;
        }
        Ok(Box::new(prepared))
    }

    fn count_unwritten(&self, note: &dyn Fn(u64)) {
        let _checking = self.checking.lock();
        // A commit that does not see the 0 has added its bytes before they are counted here. Others wait for the lock.
        self.checked.store(0, SeqCst);
        let bytes = self.unwritten_bytes();
        note(bytes);
        self.checked.store(bytes, SeqCst);
    }

    fn replay(&self, message: &Entry<'_>, tools: &DirectTools<'_>) -> Result<()> {
        self.inline_bytes.store(tools.inline_bytes, Relaxed);
        if message.kind == Kind::RangeDelete {
            self.insert(None, message);
            return Ok(());
        }
        match self.heat(message.key) {
            Ok(pin) => {
                self.fold_if_grown(&pin, tools);
                self.insert(Some(&pin), message);
            }
            Err(e) if e.is_damage() => {
                *self.stuck.lock() = Some(Stuck { error: e, lacks_messages: true });
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn make_room(&self, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        self.make_room(keep)
    }
}

impl HotTree {
    /// Finds space on the disk for all pages to write.
    fn check_room(&self, tools: &DirectTools<'_>) -> Result<()> {
        let _checking = self.checking.lock();
        let bytes = self.unwritten_bytes();
        if bytes > self.checked.load(SeqCst) {
            (tools.room)(bytes + SLACK)?;
            self.checked.store(bytes + SLACK, SeqCst);
        }
        Ok(())
    }

    /// Folds a range if many messages were inserted since the last fold.
    pub(super) fn fold_if_grown(&self, pin: &Pin, tools: &DirectTools<'_>) {
        if !pin.contents.read().wants_fold() {
            return;
        }
        let keep = self.horizons.advance((tools.keep)());
        let tombstones = self.shared.all_tombstones();
        let mut contents = pin.contents.write();
        if contents.wants_fold() {
            self.shared.fold(&mut contents, &keep, tombstones);
        }
    }

    pub(super) fn insert(&self, pin: Option<&Pin>, message: &Entry<'_>) {
        match pin {
            None => {
                let range = KeyRange::new(message.key, message.value);
                self.shared.add_tombstone(&RangeTombstone { range, seqno: message.seqno });
            }
            Some(pin) => {
                let (mut part, mut range) = (None, &**pin);
                loop {
                    let mut contents = range.contents.write();
                    if !contents.is_divided {
                        contents.insert(message);
                        return self.shared.count(&mut contents);
                    }
                    drop(contents);
                    // A part of a pinned range stays in memory.
                    let found = self.shared.look(|ranges, _, _| ranges.find(message.key).cloned());
                    range = part.insert(found.expect("a part has the key"));
                }
            }
        }
    }
}

/// Operations whose ranges are in memory and pinned.
struct PreparedWrite<'a> {
    tree: &'a HotTree,
    operations: Vec<(Option<Pin>, Entry<'a>)>,
    /// The bytes of pages that they may take, which count as not written yet.
    bytes: u64,
}

impl<'a> PreparedWrite<'a> {
    fn new(tree: &'a HotTree, operations: Vec<(Option<Pin>, Entry<'a>)>, bytes: u64) -> PreparedWrite<'a> {
        tree.prepared_bytes.fetch_add(bytes, SeqCst);
        PreparedWrite { tree, operations, bytes }
    }
}

impl Drop for PreparedWrite<'_> {
    fn drop(&mut self) {
        let before = self.tree.prepared_bytes.fetch_sub(self.bytes, SeqCst);
        debug_assert!(before >= self.bytes, "the bytes were added");
    }
}

impl Prepared for PreparedWrite<'_> {
    fn apply(self: Box<Self>, seqnos: &mut dyn Iterator<Item = Seqno>) {
        for (pin, entry) in &self.operations {
            let seqno = seqnos.next().expect("each operation has a seqno");
            self.tree.insert(pin.as_ref(), &Entry { seqno, ..*entry });
        }
        self.tree.note_debt();
    }
}
