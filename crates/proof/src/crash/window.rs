//! The window: the states that a crash may leave, from the state after the last acknowledged step to the state after
//! the last step that had begun.

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
    /// Advances the window past a mark that [`crate::drive::mark_of`] made.
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

    /// Whether the step after the first `steps` has begun.
    pub fn has_begun(self, steps: usize) -> bool {
        self.issued > steps || steps == 0
    }

    /// The window after a power cut, which begins at the last step acknowledged as synced.
    pub fn power(self) -> RangeInclusive<usize> {
        self.synced..=self.issued
    }

    /// The window after a kill, which begins at the last step acknowledged as buffered or synced.
    pub fn kill(self) -> RangeInclusive<usize> {
        self.buffered..=self.issued
    }
}
