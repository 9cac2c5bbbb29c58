//! Lookups: they collect messages from the root down (000 §3.3 and §5.2.4).
//!
//! A point lookup keeps one operand: the combination of all updates that it has met, newer ones being in upper buffers.
//! It ends at an insert, at a delete, or at the leaf.
//!
//! A range lookup visits leaf after leaf, from the root each time. For each leaf it merges the messages in its range
//! from all buffers on the path, and then the records.
//!
//! Invariant: a flush holds the exclusive latch of a node from the moment at which messages leave it to the moment at
//! which their children are latched. So a reader that couples latches finds each message once. A reader with optimistic
//! coupling compares the version of a node, which a flush increases, after it has latched the child.

use super::BeTree;
use crate::batch::Batch;
use crate::error::Result;
use crate::frame::{Pinned, ReadPage};
use crate::layout::{Kind, header};
use crate::message::{Message, Op, combine, combine_older};
use crate::mistake::Mistake;

/// The result of a visit of a node by a lookup.
enum Visit {
    /// The lookup ends; whether there is a value, which is in `out`.
    Done(bool),
    /// The value depends on lower nodes. Whether `out` has an operand.
    Below(bool),
}

/// Adds the collected operand to the value below it.
fn finish(value: &[u8], collected: bool, out: &mut Vec<u8>) {
    if collected {
        combine_older(out, value);
    } else {
        out.extend_from_slice(value);
    }
}

/// Collects the message of a lookup's key.
fn meet(message: Option<Message<'_>>, collected: bool, out: &mut Vec<u8>) -> Visit {
    let Some(message) = message else { return Visit::Below(collected) };
    match message.op {
        Op::Insert => {
            finish(message.value, collected, out);
            return Visit::Done(true);
        }
        Op::Delete if Mistake::TombstonePassed.is_on() => out.clear(),
        Op::Delete => return Visit::Done(false),
        Op::Update if collected => combine_older(out, message.value),
        Op::Update => out.extend_from_slice(message.value),
    }
    Visit::Below(message.op == Op::Update)
}

impl BeTree {
    /// Copies the value of `key` to `out`.
    pub fn lookup(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        'restart: loop {
            out.clear();
            let (mut page, mut collected) = (self.pin_root()?.read(), false);
            loop {
                self.note_read(&page);
                match self.visit(&page, key, collected, out) {
                    Visit::Done(found) => return Ok(found),
                    Visit::Below(now) => collected = now,
                }
                match self.step(page, key, Pinned::read)? {
                    Some(child) => page = child,
                    None => continue 'restart,
                }
            }
        }
    }

    fn visit(&self, page: &ReadPage<'_>, key: u64, collected: bool, out: &mut Vec<u8>) -> Visit {
        match header::kind(page) {
            Kind::Plain => Visit::Below(collected),
            Kind::Buffered => {
                let met = {
                    let front = page.front().read().filter(|_| !Mistake::FrontNotRead.is_on());
                    meet(front.as_ref().and_then(|front| front.find(key)), collected, out)
                };
                match met {
                    Visit::Below(collected) => meet(self.layout.node(page).buffer.find(page, key), collected, out),
                    done @ Visit::Done(_) => done,
                }
            }
            Kind::Leaf => {
                let value = self.layout.leaf.find(page, key);
                value.into_iter().for_each(|value| finish(value, collected, out));
                Visit::Done(value.is_some())
            }
        }
    }

    /// The leaf for `key`, the messages with keys from `key` on in its range, and the least key above this range.
    fn leaf_with_messages(&self, key: u64) -> Result<(ReadPage<'_>, Batch, Option<u64>)> {
        let (mut page, mut upper) = (self.pin_root()?.read(), None);
        let mut messages = Batch::new(self.layout.sizes.value);
        while header::level(&page) > 0 {
            self.note_read(&page);
            let inner = self.layout.inner_of(&page);
            let i = inner.child_for(&page, key);
            upper = inner.upper(&page, i).or(upper);
            if header::kind(&page) == Kind::Buffered && !Mistake::RangeSkipsBuffers.is_on() {
                let (buffer, count) = (&self.layout.node(&page).buffer, header::messages(&page));
                let to = upper.map_or(count, |upper| buffer.keys.lower_bound(&page, count, upper));
                let mut held = Batch::new(self.layout.sizes.value);
                (buffer.keys.lower_bound(&page, count, key)..to).for_each(|i| held.push(buffer.get(&page, i)));
                if let Some(front) = page.front().read().filter(|_| !Mistake::RangeSkipsFronts.is_on()) {
                    let mut newest = Batch::new(self.layout.sizes.value);
                    front.collect(key, upper, &mut newest);
                    held = Batch::union(&held, &newest);
                }
                messages = Batch::union(&held, &messages);
            }
            // Latches are coupled whatever the tree's coupling is: writers of both kinds respect them.
            let child = self.pages.pin_child(page.hints(), inner.child_slot(&page, i))?.read();
            page = child;
        }
        if let Some(upper) = upper {
            messages.split_off_key(upper);
        }
        Ok((page, messages, upper))
    }

    /// Passes rows from `from` on to `row`.
    pub fn rows(&self, from: u64, limit: usize, row: &mut dyn FnMut(u64, &[u8])) -> Result<usize> {
        let (mut next, mut rows) = (Some(from), 0);
        while let Some(from) = next.filter(|_| rows < limit) {
            let (leaf, messages, upper) = self.leaf_with_messages(from)?;
            let (leaves, count) = (&self.layout.leaf, header::count(&leaf));
            let (mut i, mut j) = (leaves.keys.lower_bound(&leaf, count, from), 0);
            while rows < limit && (i < count || j < messages.len()) {
                let stored = (i < count).then(|| (leaves.keys.number(&leaf, i), leaves.values.get(&leaf, i)));
                let message = (j < messages.len()).then(|| messages.get(j));
                let key = stored.map(|stored| stored.0).into_iter().chain(message.map(|message| message.key)).min();
                let key = key.expect("a record or a message");
                let stored = stored.filter(|stored| stored.0 == key).map(|stored| stored.1);
                let message = message.filter(|message| message.key == key);
                (i, j) = (i + usize::from(stored.is_some()), j + usize::from(message.is_some()));
                rows += usize::from(emit(key, stored, message, row));
            }
            debug_assert!(upper.is_none_or(|upper| upper > from), "each leaf is behind the one before");
            next = upper;
        }
        Ok(rows)
    }
}

/// Passes the row of a record and a newer message to `row`, if there is one. Returns whether there is.
fn emit(key: u64, stored: Option<&[u8]>, message: Option<Message<'_>>, row: &mut dyn FnMut(u64, &[u8])) -> bool {
    match (stored, message.map(|message| (message.op, message.value))) {
        (_, Some((Op::Insert, value))) | (Some(value), None) => row(key, value),
        (Some(value), Some((Op::Update, operand))) => {
            let mut value = value.to_vec();
            combine(&mut value, operand);
            row(key, &value);
        }
        (_, Some((Op::Delete, _))) | (None, _) => return false,
    }
    true
}
