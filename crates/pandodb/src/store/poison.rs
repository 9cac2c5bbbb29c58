//! [`Poison`] records the first failure of a write that was already accepted. From that failure on the store refuses
//! writes.
//!
//! The record is set once and never cleared. Reads continue: data that was acknowledged before the failure stays
//! readable. A reopening finds the data that is on the disk.

use crate::base::sync::OnceLock;
use crate::base::{Error, Result, events, seeded};

/// The first failure after which a store accepts no writes, if there was one.
#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<String>);

impl Poison {
    /// The first failure, as text.
    #[inline]
    pub(crate) fn first(&self) -> Option<&String> {
        self.0.get()
    }

    /// Whether the store refuses writes.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns an error if the store refuses writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`] with the first failure.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(first) => Err(Error::Poisoned { first: first.clone() }),
        }
    }

    /// Records a failure, unless another failure is already recorded.
    pub(crate) fn set(&self, error: &Error) {
        let first = match error {
            // The log had already recorded the first failure before the store was poisoned, so use that failure.
            Error::Poisoned { first } | Error::Indeterminate { first } => first.clone(),
            other => other.to_string(),
        };
        seeded!(PoisonIgnored: (), self.set_text(first));
    }

    /// Records a failure that has no error value.
    pub(crate) fn set_text(&self, first: String) {
        assert!(!first.is_empty(), "users are told why the store refuses writes");
        if let Ok(()) = self.0.set(first) {
            events::poisoned(self.0.get().map_or("", |first| first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_reported_however_often_it_fails() {
        let poison = Poison::default();
        assert!(poison.check().is_ok() && !poison.is_set());
        poison.set(&Error::DiskFull { op: "log" });
        poison.set(&Error::Closed);
        let first = Error::DiskFull { op: "log" }.to_string();
        assert_eq!(poison.first(), Some(&first));
        assert_eq!(poison.check(), Err(Error::Poisoned { first: first.clone() }));
        let again = Poison::default();
        again.set(&Error::Poisoned { first: first.clone() });
        assert_eq!(again.first(), Some(&first), "the text is not wrapped twice");
    }
}
