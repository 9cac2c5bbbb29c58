//! Injected faults: a fault determines which operation fails and how it fails.

use std::io;
use std::ops::Range;

use super::OpKind;

/// Classes of operations, for faults that may strike operations of several kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// All operations.
    Any,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Syncs of files and of the directory.
    Sync,
    /// All other operations: open, create, rename, remove, list, set a length, allocate, punch.
    Meta,
}

impl OpClass {
    fn holds(self, kind: OpKind) -> bool {
        match self {
            OpClass::Any => true,
            OpClass::Read => kind == OpKind::Read,
            OpClass::Write => kind == OpKind::Write,
            OpClass::Sync => matches!(kind, OpKind::Sync | OpKind::SyncDir),
            OpClass::Meta => ![OpClass::Read, OpClass::Write, OpClass::Sync].iter().any(|class| class.holds(kind)),
        }
    }
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An operation of this class fails with an I/O error and has no effect.
    IoError(OpClass),
    /// A sync fails with an I/O error, and its pending writes are forgotten. Reads see the new bytes, a crash may
    /// restore the old bytes, and later syncs succeed without writing the new bytes.
    FailedSync,
    /// As [`FaultKind::FailedSync`], with `StorageFull`: a thin-provisioned disk, or a copy-on-write file system, may
    /// detect only at the sync that there is no space.
    FullSync,
    /// A read or write transfers fewer bytes than requested, at least one (whole pages on a direct file). Transfers
    /// that cannot be shorter are not counted.
    ShortTransfer,
    /// The operation fails with `Interrupted`, without effect. If this fault is sticky, every second attempt still
    /// succeeds, because otherwise no operation would ever finish.
    Interrupted,
    /// A write reports success without writing.
    LostWrite,
    /// A write reports success, but wrote to other pages, of this file or of a different one.
    MisdirectedWrite,
    /// A read returns one flipped bit. The stored bytes do not change.
    BitFlip,
    /// An operation that needs space fails with `StorageFull`, without effect.
    StorageFull,
    /// The clock jumps forward by an hour. The fault has no other effect.
    ClockJump,
}

impl FaultKind {
    fn can_strike(self, operation: &Operation<'_>) -> bool {
        let kind = operation.kind;
        match self {
            FaultKind::IoError(class) => class.holds(kind),
            FaultKind::FailedSync | FaultKind::FullSync => OpClass::Sync.holds(kind),
            FaultKind::ShortTransfer => operation.divisible,
            FaultKind::Interrupted => true,
            FaultKind::LostWrite | FaultKind::MisdirectedWrite => kind == OpKind::Write,
            FaultKind::BitFlip => kind == OpKind::Read,
            FaultKind::StorageFull => operation.needs_space,
            FaultKind::ClockJump => true,
        }
    }
}

/// A fault to inject, for [`super::SimDevice::set_fault`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of matching operations that succeed before the fault strikes.
    pub nth: u64,
    /// The effect.
    pub kind: FaultKind,
    /// Whether every later matching operation fails too. If not, only one operation fails.
    pub sticky: bool,
    /// If set, the fault strikes only operations on the file of this name.
    pub file: Option<String>,
    /// If set, the fault strikes only operations that touch these bytes, like an unreadable sector. Overwriting the
    /// whole range makes the range readable again, because a drive remaps such a sector.
    pub range: Option<Range<u64>>,
}

impl Fault {
    /// A fault that strikes once: the first `nth` matching operations succeed, and the next one fails.
    pub fn once(kind: FaultKind, nth: u64) -> Fault {
        Fault { nth, kind, sticky: false, file: None, range: None }
    }

    /// A fault that strikes every matching operation after the first `nth` ones.
    pub fn sticky(kind: FaultKind, nth: u64) -> Fault {
        Fault { sticky: true, ..Fault::once(kind, nth) }
    }

    /// Whether the operation overwrites the whole unreadable range of the fault.
    fn is_healed_by(&self, operation: &Operation<'_>) -> bool {
        let Some((sector, written)) = self.range.as_ref().zip(operation.range.as_ref()) else { return false };
        self.kind == FaultKind::IoError(OpClass::Read)
            && operation.kind == OpKind::Write
            && self.is_about(operation)
            && written.start <= sector.start
            && sector.end <= written.end
    }

    /// Whether the operation touches the file and range of the fault.
    fn is_about(&self, operation: &Operation<'_>) -> bool {
        let file = self.file.as_deref().is_none_or(|file| operation.name == Some(file));
        let range = self.range.as_ref().is_none_or(|range| {
            operation.range.as_ref().is_some_and(|touched| touched.start < range.end && range.start < touched.end)
        });
        file && range
    }
}

/// The properties of an operation that is about to run, on which faults depend.
pub(super) struct Operation<'a> {
    pub kind: OpKind,
    /// The file's present name, if the operation concerns a file with a name.
    pub name: Option<&'a str>,
    /// The bytes that a transfer touches.
    pub range: Option<Range<u64>>,
    /// Whether a transfer can move fewer bytes than requested.
    pub divisible: bool,
    /// Whether the operation allocates pages that were holes.
    pub needs_space: bool,
}

/// Decides which operations the fault strikes.
#[derive(Default)]
pub(super) struct Injector {
    fault: Option<Fault>,
    seen: u64,
    struck: u64,
    /// Whether a sticky interruption has just struck, so that the next attempt succeeds.
    pausing: bool,
}

impl Injector {
    pub fn new(fault: Option<Fault>) -> Injector {
        Injector { fault, ..Injector::default() }
    }

    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// The fault that strikes this operation, if any.
    pub fn strike(&mut self, operation: &Operation<'_>) -> Option<FaultKind> {
        if self.fault.as_ref().is_some_and(|fault| fault.is_healed_by(operation)) {
            self.fault = None;
        }
        let fault = self.fault.as_ref()?;
        if !fault.kind.can_strike(operation) || !fault.is_about(operation) {
            return None;
        }
        let turn = self.seen;
        self.seen += 1;
        let due = turn == fault.nth || (fault.sticky && turn > fault.nth);
        if !due {
            return None;
        }
        if fault.kind == FaultKind::Interrupted && std::mem::take(&mut self.pausing) {
            return None;
        }
        self.pausing = true;
        self.struck += 1;
        debug_assert!(self.struck <= self.seen, "a fault strikes matching operations only");
        debug_assert!(fault.sticky || self.struck == 1, "a fault that is not sticky strikes once");
        Some(fault.kind)
    }
}

/// The error of a failed sync.
pub(super) fn sync_error(kind: FaultKind) -> io::Error {
    debug_assert!(matches!(kind, FaultKind::FailedSync | FaultKind::FullSync), "{kind:?} does not fail a sync");
    if kind == FaultKind::FullSync { io::ErrorKind::StorageFull.into() } else { io_error() }
}

/// The error of a failing disk (EIO).
pub(super) fn io_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}
