//! [`Reading`]: the entries of a unit, one after the other.

use super::ahead::JobAhead;
use crate::base::{Entry, Result, Seqno};
use crate::index::pages::source::OnceRead;
use crate::index::pages::{PageRef, PageSource, Unit};

/// A unit whose entries are being merged.
pub(super) struct Reading {
    /// The unit.
    pub(super) unit: Unit,
    /// The number of the current leaf in the unit.
    number: usize,
    leaf: Option<(PageRef, OnceRead)>,
    /// The number of the current entry in the leaf.
    at: usize,
    key: Vec<u8>,
    /// Whether lookups request the current leaf often.
    pub(super) is_warm: bool,
    through: Seqno,
}

impl Reading {
    /// Starts to read a unit. Messages above `through` are left out.
    ///
    /// # Errors
    /// If a leaf cannot be read, or is damaged.
    pub(super) fn new(unit: Unit, source: &PageSource, through: Seqno, ahead: &mut JobAhead) -> Result<Reading> {
        let mut reading = Reading { unit, number: 0, leaf: None, at: 0, key: Vec::new(), is_warm: false, through };
        reading.load(source, ahead)?;
        reading.leave_out(source, ahead)?;
        Ok(reading)
    }

    /// Passes the messages that a job which was not finished has left.
    fn leave_out(&mut self, source: &PageSource, ahead: &mut JobAhead) -> Result<()> {
        while let Some((page, bytes)) = &self.leaf
            && page.leaf(bytes).slot(self.at).seqno > self.through
        {
            self.pass(source, ahead)?;
        }
        Ok(())
    }

    /// Reads the current leaf of the unit; there is none at the end of the unit.
    fn load(&mut self, source: &PageSource, ahead: &mut JobAhead) -> Result<()> {
        self.leaf = match self.unit.leaves.get(self.number) {
            None => None,
            Some(leaf) => Some((leaf.page, ahead.read(&leaf.page, source)?)),
        };
        self.at = 0;
        if let Some((page, bytes)) = &self.leaf {
            self.is_warm = bytes.is_pooled();
            let leaf = page.leaf(bytes);
            leaf.key(leaf.len() - 1, &mut self.key);
            let is_above = self.unit.ends_before(&self.key);
            leaf.key(0, &mut self.key);
            if is_above || self.key < self.unit.from {
                return Err(source.corrupt(&self.unit.leaves[self.number].page, "a key outside the leaf's keys"));
            }
        }
        Ok(())
    }

    /// The current entry.
    pub(super) fn entry(&self) -> Option<Entry<'_>> {
        let (page, bytes) = self.leaf.as_ref()?;
        let leaf = page.leaf(bytes);
        let slot = leaf.slot(self.at);
        Some(Entry { key: &self.key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) })
    }

    /// Whether the next entry certainly has another key.
    pub(super) fn is_last_of_key(&self) -> bool {
        let Some((page, bytes)) = &self.leaf else { return true };
        let leaf = page.leaf(bytes);
        if self.at + 1 == leaf.len() { !leaf.continues() } else { leaf.differ(self.at, self.at + 1) }
    }

    /// Moves to the next entry.
    ///
    /// # Errors
    /// If a leaf cannot be read, or is damaged.
    pub(super) fn advance(&mut self, source: &PageSource, ahead: &mut JobAhead) -> Result<()> {
        self.pass(source, ahead)?;
        self.leave_out(source, ahead)
    }

    fn pass(&mut self, source: &PageSource, ahead: &mut JobAhead) -> Result<()> {
        let Some((page, bytes)) = &self.leaf else { return Ok(()) };
        let leaf = page.leaf(bytes);
        self.at += 1;
        if self.at < leaf.len() {
            leaf.key(self.at, &mut self.key);
            return Ok(());
        }
        self.number += 1;
        self.load(source, ahead)
    }
}
