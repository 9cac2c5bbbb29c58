//! Which states a crash may leave: the window of steps between the last that was acknowledged and the last that had begun.

use std::ops::RangeInclusive;

use pandodb::Durability;

use crate::script::Script;

/// The steps whose state an image may show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    synced: usize,
    buffered: usize,
    issued: usize,
}

impl Window {
    /// Passes a mark of [`crate::drive::mark_of`].
    pub fn pass(&mut self, script: &Script, mark: u64) {
        let step = (mark / 2) as usize;
        self.issued = step + 1;
        if mark.is_multiple_of(2) {
            return;
        }
        let promise = script.steps[step].promise();
        if promise >= Durability::Buffered {
            self.buffered = step + 1;
        }
        if promise == Durability::Synced {
            self.synced = step + 1;
        }
    }

    /// Whether the step behind the first `steps` has begun.
    pub fn has_begun(self, steps: usize) -> bool {
        self.issued > steps || steps == 0
    }

    /// After a power cut: what was acknowledged as synced, and more in order.
    pub fn power(self) -> RangeInclusive<usize> {
        self.synced..=self.issued
    }

    /// After a kill, what was acknowledged as buffered counts too.
    pub fn kill(self) -> RangeInclusive<usize> {
        self.buffered..=self.issued
    }
}
