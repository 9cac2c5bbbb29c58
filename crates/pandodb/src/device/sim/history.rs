//! A recorded run, and a cursor over the points at which a power cut could have happened.

use super::disk::Disk;
use super::{CrashChoice, SimImage, SimOp};

/// The state at the start of a recording, and every change after that.
#[derive(Clone, Debug)]
pub struct SimHistory {
    start: Disk,
    ops: Vec<SimOp>,
}

impl SimHistory {
    pub(super) fn new(start: Disk, ops: Vec<SimOp>) -> SimHistory {
        SimHistory { start, ops }
    }

    /// The recorded operations, in order.
    pub fn ops(&self) -> &[SimOp] {
        &self.ops
    }

    /// A cursor before the first operation.
    pub fn walk(&self) -> Cursor<'_> {
        Cursor { history: self, disk: self.start.clone(), position: 0, last_mark: None }
    }

    /// A cursor after the first `prefix` operations. The call walks from the start of the history, so use one
    /// [`SimHistory::walk`] to visit many points.
    ///
    /// # Panics
    /// If there are fewer than `prefix` operations.
    pub fn at(&self, prefix: usize) -> Cursor<'_> {
        assert!(prefix <= self.ops.len(), "operation {prefix} of {}", self.ops.len());
        let mut cursor = self.walk();
        while cursor.position < prefix {
            cursor.advance();
        }
        cursor
    }
}

/// A point of a history, which moves forward.
#[derive(Clone, Debug)]
pub struct Cursor<'h> {
    history: &'h SimHistory,
    disk: Disk,
    position: usize,
    last_mark: Option<u64>,
}

impl<'h> Cursor<'h> {
    /// Steps over the next operation and returns it; `None` at the end.
    pub fn advance(&mut self) -> Option<&'h SimOp> {
        let op = self.history.ops.get(self.position)?;
        self.position += 1;
        self.disk.feed(op);
        if let SimOp::Mark(value) = op {
            self.last_mark = Some(*value);
        }
        Some(op)
    }

    /// The number of operations before this point.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The last mark before this point.
    pub fn last_mark(&self) -> Option<u64> {
        self.last_mark
    }

    /// The operations that a power cut at this point could undo, in order of issue. A [`CrashChoice`] refers to them by
    /// position.
    pub fn pending(&self) -> Vec<&SimOp> {
        self.disk.pending().collect()
    }

    /// The files after a power cut at this point. The cost is a few microseconds, plus some for each kept operation.
    pub fn image(&self, choice: &CrashChoice) -> SimImage {
        self.disk.image(choice)
    }

    /// The files after a kill of the process at this point: no written byte is lost.
    pub fn cached_image(&self) -> SimImage {
        self.image(&CrashChoice::all())
    }
}
