//! The operations of the simulated device: [`OpKind`] distinguishes operations for counting and for faults, and
//! [`SimOp`] is a change that a history records.

use std::sync::Arc;

use super::Patch;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

/// The kinds of operations that are counted and can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Opening an existing file.
    Open,
    /// Creating a file.
    Create,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Listing the directory.
    List,
    /// Syncing the directory.
    SyncDir,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Setting a length.
    SetLen,
    /// Allocating space.
    Allocate,
    /// Punching a hole.
    Punch,
    /// Syncing a file.
    Sync,
}

impl OpKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [OpKind; 12] = [
        OpKind::Open,
        OpKind::Create,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::List,
        OpKind::SyncDir,
        OpKind::Read,
        OpKind::Write,
        OpKind::SetLen,
        OpKind::Allocate,
        OpKind::Punch,
        OpKind::Sync,
    ];
}

const _: () = assert!(OpKind::ALL.len() == OpKind::Sync as usize + 1, "counters are indexed by kind");

/// One change or sync, as a history records it.
#[derive(Clone, Debug)]
pub enum SimOp {
    /// Bytes were written.
    Write {
        /// The file.
        inode: Inode,
        /// The offset and the bytes.
        patch: Patch,
    },
    /// The file was cut or extended.
    SetLen {
        /// The file.
        inode: Inode,
        /// The new length in bytes.
        len: u64,
    },
    /// Space was allocated.
    Allocate {
        /// The file.
        inode: Inode,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// A hole was punched.
    Punch {
        /// The file.
        inode: Inode,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// The pending changes of the file's bytes and length became durable.
    Sync {
        /// The file.
        inode: Inode,
    },
    /// A sync failed and forgot the file's pending changes. The changes may or may not be on the disk, and no later
    /// sync makes them durable.
    SyncFailed {
        /// The file.
        inode: Inode,
    },
    /// A file was created.
    Create {
        /// The file.
        inode: Inode,
        /// The name of the file.
        name: Arc<str>,
    },
    /// A file was renamed. An existing file with the new name was replaced.
    Rename {
        /// The file.
        inode: Inode,
        /// The old name.
        from: Arc<str>,
        /// The new name.
        to: Arc<str>,
    },
    /// A name was removed.
    Remove {
        /// The file that had the name.
        inode: Inode,
        /// The name.
        name: Arc<str>,
    },
    /// The pending changes of the directory became durable.
    SyncDir,
    /// A sync of the directory failed and forgot the directory's pending changes, as with [`SimOp::SyncFailed`].
    SyncDirFailed,
    /// A mark that the test set.
    Mark(u64),
}

/// The changes that one sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The entries of the directory.
    Directory,
    /// The bytes and the length of one file.
    File(Inode),
}

impl SimOp {
    /// The scope whose sync makes the change durable; `None` for syncs and marks, which change nothing.
    pub(super) fn scope(&self) -> Option<Scope> {
        match self {
            SimOp::Write { inode, .. }
            | SimOp::SetLen { inode, .. }
            | SimOp::Allocate { inode, .. }
            | SimOp::Punch { inode, .. } => Some(Scope::File(*inode)),
            SimOp::Create { .. } | SimOp::Rename { .. } | SimOp::Remove { .. } => Some(Scope::Directory),
            SimOp::Sync { .. } | SimOp::SyncFailed { .. } | SimOp::SyncDir | SimOp::SyncDirFailed | SimOp::Mark(_) => {
                None
            }
        }
    }
}
