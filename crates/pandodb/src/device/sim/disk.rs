//! The simulated disk: the durable bytes and directory entries, and the operations that may or may not have reached the
//! disk.
//!
//! ```text
//!   files, entries:  applied permanently
//!   pending:         [write a][create b][write a][write b] …      in the order of issue, all files together
//!                       │ sync(a): durable, and applied at once unless a forgotten operation on a precedes it
//!                       │ failed sync(a): forgotten: a crash may still keep it, no later sync makes it durable
//! ```
//!
//! Both the running device and the cursor over a history hold a `Disk` and pass the same operations to it. So the
//! device and the cursor agree on the durable state.
//!
//! Invariants: for each scope (one file, or the directory), every operation before the first operation that a crash may
//! undo has been applied. A file is kept as long as a directory entry or a pending change of an entry names it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::op::Scope;
use super::{CrashChoice, Fate, Inode, Patch, Rng, SimImage, SimOp};
use crate::base::PAGE;
use crate::device::content::Content;

/// The names of the directory.
pub(super) type Entries = BTreeMap<Arc<str>, Inode>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next sync of the operation's scope makes the operation durable.
    Waiting,
    /// A sync failed and forgot the operation.
    Forgotten,
    /// The operation is durable, but it follows a forgotten operation of its scope, so it cannot be applied permanently
    /// yet.
    Durable,
}

#[derive(Clone, Debug)]
struct Pending {
    op: SimOp,
    scope: Scope,
    state: State,
}

/// A simulated disk. See the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    entries: Entries,
    files: BTreeMap<Inode, Content>,
    pending: Vec<Pending>,
}

impl Disk {
    /// A disk on which all the given entries and files are durable.
    pub fn new(entries: Entries, files: BTreeMap<Inode, Content>) -> Disk {
        Disk { entries, files, pending: Vec::new() }
    }

    /// Processes the next operation. The cost of a sync is one step for each pending operation.
    pub fn feed(&mut self, op: &SimOp) {
        match op {
            SimOp::Sync { inode } => self.settle(Scope::File(*inode), State::Durable),
            SimOp::SyncFailed { inode } => self.settle(Scope::File(*inode), State::Forgotten),
            SimOp::SyncDir => self.settle(Scope::Directory, State::Durable),
            SimOp::SyncDirFailed => self.settle(Scope::Directory, State::Forgotten),
            _ => self.push(op),
        }
    }

    /// The operations that a crash may undo, in order of issue.
    pub fn pending(&self) -> impl Iterator<Item = &SimOp> {
        self.pending.iter().filter(|pending| pending.state != State::Durable).map(|pending| &pending.op)
    }

    /// The files after a crash in which `choice` decides about [`Disk::pending`].
    pub fn image(&self, choice: &CrashChoice) -> SimImage {
        let (mut entries, mut files) = (self.entries.clone(), self.files.clone());
        let mut position = 0;
        for pending in &self.pending {
            let fate = if pending.state == State::Durable {
                Fate::Keep
            } else {
                position += 1;
                choice.fate(position - 1)
            };
            if fate == Fate::Drop {
                continue;
            }
            match pending.scope {
                Scope::Directory => change_entries(&mut entries, &pending.op),
                Scope::File(inode) => {
                    if let Some(content) = files.get_mut(&inode) {
                        change_content(content, &pending.op, fate);
                    }
                }
            }
        }
        debug_assert_eq!(position, self.pending().count(), "a choice decides about each pending operation");
        let contents = entries.into_iter().map(|(name, inode)| {
            let content = files.get(&inode).expect("a named file is kept");
            (name, content.clone())
        });
        SimImage::from_files(contents.collect())
    }

    fn push(&mut self, op: &SimOp) {
        let Some(scope) = op.scope() else { return };
        match scope {
            // No entry can name a removed file again, so later writes through open handles of the file are lost in any
            // case.
            Scope::File(inode) if !self.files.contains_key(&inode) => return,
            Scope::File(_) => {}
            Scope::Directory => {
                if let SimOp::Create { inode, .. } = op {
                    let reused = self.files.insert(*inode, Content::default());
                    assert!(reused.is_none(), "{inode:?} was given twice");
                }
            }
        }
        self.pending.push(Pending { op: op.clone(), scope, state: State::Waiting });
    }

    /// Sets the new state of the waiting operations of a scope. Then applies the durable operations before the first
    /// operation of the scope that a crash may undo.
    fn settle(&mut self, scope: Scope, state: State) {
        let Disk { entries, files, pending } = self;
        let mut blocked = false;
        pending.retain_mut(|pending| {
            if pending.scope != scope {
                return true;
            }
            if pending.state == State::Waiting {
                pending.state = state;
            }
            blocked |= pending.state == State::Forgotten;
            if blocked {
                return true;
            }
            match scope {
                Scope::Directory => change_entries(entries, &pending.op),
                Scope::File(inode) => {
                    let content = files.get_mut(&inode).expect("a file with pending writes is kept");
                    change_content(content, &pending.op, Fate::Keep);
                }
            }
            false
        });
        let first = self.pending.iter().find(|pending| pending.scope == scope);
        debug_assert!(first.is_none_or(|pending| pending.state == State::Forgotten), "durable operations are applied");
        if scope == Scope::Directory {
            self.forget_unnamed();
        }
    }

    /// Drops the files that no entry names and that no pending change can name.
    fn forget_unnamed(&mut self) {
        let mut named: Vec<Inode> = self.entries.values().copied().collect();
        named.extend(self.pending.iter().filter_map(|pending| match pending.op {
            SimOp::Create { inode, .. } | SimOp::Rename { inode, .. } | SimOp::Remove { inode, .. } => Some(inode),
            _ => None,
        }));
        self.files.retain(|inode, _| named.contains(inode));
        self.pending.retain(|pending| match pending.scope {
            Scope::File(inode) => self.files.contains_key(&inode),
            Scope::Directory => true,
        });
        debug_assert!(self.entries.values().all(|inode| self.files.contains_key(inode)), "a named file is kept");
    }
}

/// Applies a change of a directory entry, if that entry exists.
pub(super) fn change_entries(entries: &mut Entries, op: &SimOp) {
    match op {
        SimOp::Create { inode, name } => {
            entries.entry(Arc::clone(name)).or_insert(*inode);
        }
        SimOp::Rename { inode, from, to } if entries.get(from) == Some(inode) => {
            entries.remove(from);
            entries.insert(Arc::clone(to), *inode);
        }
        SimOp::Remove { inode, name } if entries.get(name) == Some(inode) => {
            entries.remove(name);
        }
        // The entry that the operation would change was lost, so this operation is lost, too.
        SimOp::Rename { .. } | SimOp::Remove { .. } => {}
        _ => unreachable!("{op:?} does not change the directory"),
    }
}

/// Applies a change of a file's bytes or length. For a write, a fate other than `Keep` damages the written bytes. All
/// other operations are atomic.
pub(super) fn change_content(content: &mut Content, op: &SimOp, fate: Fate) {
    match op {
        SimOp::Write { patch, .. } => write(content, patch, fate),
        SimOp::SetLen { len, .. } => content.set_len(*len),
        SimOp::Allocate { offset, len, .. } => content.allocate(*offset, *len),
        SimOp::Punch { offset, len, .. } => content.punch(*offset, *len),
        _ => unreachable!("{op:?} does not change a file"),
    }
}

/// The whole pages of a write, up to the end of the file. A page cache writes whole pages, so a damaged page loses all
/// of its bytes, including bytes that were synced earlier.
fn pages_of(content: &Content, range: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    let end = range.end.next_multiple_of(page).min(content.len().max(range.end));
    let pages = range.start / page * page..end;
    debug_assert!(pages.start <= range.start && range.end <= pages.end, "the pages hold the write");
    pages
}

fn write(content: &mut Content, patch: &Patch, fate: Fate) {
    let range = patch.range();
    let len = range.end - range.start;
    match fate {
        Fate::Keep => content.apply(patch, 0..len),
        Fate::Drop => {}
        Fate::Head(n) => content.apply(patch, 0..n.min(len)),
        Fate::Tail(n) => content.apply(patch, len - n.min(len)..len),
        Fate::Zeros => {
            let pages = pages_of(content, &range);
            content.punch(pages.start, pages.end - pages.start);
            content.allocate(pages.start, pages.end - pages.start);
        }
        Fate::Garbage(seed) => {
            let pages = pages_of(content, &range);
            let mut rng = Rng(seed ^ range.start);
            let mut garbage = vec![0; (pages.end - pages.start) as usize];
            for word in garbage.chunks_mut(8) {
                word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
            }
            content.write(pages.start, &garbage);
        }
    }
}
