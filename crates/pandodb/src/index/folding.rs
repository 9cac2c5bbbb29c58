//! [`Folding`]: turns a sorted stream of messages into the messages that an index has to keep.
//!
//! ```text
//!   messages in order ──▶ group by key ──▶ fold (stripes, operator, tombstones) ──▶ Sink: a run, pages of a tree
//!                                            │ large values
//!                                            └──▶ moved out of the index, or dropped
//! ```
//!
//! 1. A job pushes the messages of its inputs in order ([`Folding::push`]). Messages of one key are collected.
//! 2. At the end of a key, its messages are folded ([`fold_key`]) and the result is passed to the [`Sink`]. If a key has
//!    many messages, they are folded several times while they are collected, so that they take little memory.
//! 3. At the end, the job takes the lists of large values that were kept, written and dropped ([`Folding::finish`]).
//!
//! Invariant: the sink receives messages in strictly ascending order (key ascending, seqno descending).

use std::sync::Arc;

use super::Core;
use crate::base::{BlobRef, Entry, EntryBlock, Error, Extent, FragmentSweep, Fragments, Kind, Result, Seqno, seeded};
use crate::resolve::{FoldOutput, Operator, Stripes, fold_key, fold_newest};
use crate::space::data::DATA_FILE;
use crate::space::values::{NewValues, ValueWriter};

/// Once a key has this number of messages, the messages that were collected so far are folded. So a counter with millions
/// of operands takes little memory.
const FOLD_AT: usize = 16;

/// Receives the messages that remain.
pub trait Sink {
    /// Adds the next message.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    fn push(&mut self, entry: Entry<'_>) -> Result<()>;

    /// Says whether lookups request the next messages often.
    fn set_warm(&mut self, is_warm: bool);
}

/// Collects messages in memory.
#[derive(Default)]
pub struct BlockSink(pub EntryBlock);

impl Sink for BlockSink {
    fn push(&mut self, entry: Entry<'_>) -> Result<()> {
        self.0.push(entry);
        Ok(())
    }

    fn set_warm(&mut self, _: bool) {}
}

/// Moves values out of the structure that is being built. Compactions do not copy such values.
struct Separation {
    /// Values of at most this many bytes stay in the structure.
    above: usize,
    /// Values of messages up to this seqno stay in the structure, too.
    after: Seqno,
    values: ValueWriter,
}

impl Separation {
    /// Whether the value of `entry` is moved out.
    #[inline]
    fn is_for(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Put && entry.seqno > self.after && ValueWriter::is_worth(entry.value.len(), self.above)
    }
}

/// The large values of a folded stream.
#[must_use = "large values that were written are freed unless they are kept"]
pub struct FoldedValues {
    /// The large values that the output refers to, except those that were already known ([`Folding::knows_values_to`]).
    pub kept: Vec<Extent>,
    /// The same with their keys, if they were requested ([`Folding::naming_values`]).
    pub named: Vec<(Vec<u8>, Extent)>,
    /// The large values among them that the job wrote. They are freed unless [`NewValues::keep`] is called.
    pub new_values: NewValues,
    /// The large values whose last message was dropped.
    pub dropped: Vec<Extent>,
}

/// Groups messages by key, folds each group, and passes the result to a sink.
pub struct Folding<S> {
    /// The receiver of the result.
    pub sink: S,
    stripes: Stripes,
    operator: Option<Operator>,
    bottom: bool,
    is_newest: bool,
    tombstones: FragmentSweep,
    group: EntryBlock,
    /// The seqno of the last message of the group, before any folding.
    last: Seqno,
    /// The group is folded while it is collected when it has at least this number of messages, and this number of bytes.
    fold_at: (usize, usize),
    out: FoldOutput,
    /// Set if values may be moved out of the structure.
    separation: Option<Separation>,
    /// The encoded reference of the last value that was moved out.
    reference: Vec<u8>,
    /// Large values of messages up to this seqno are not listed as kept.
    known_to: Seqno,
    kept: Vec<Extent>,
    /// Set if the keys of these values are wanted.
    named: Option<Vec<(Vec<u8>, Extent)>>,
    dropped: Vec<Extent>,
    new_values: NewValues,
}

impl<S: Sink> Folding<S> {
    /// Starts a stream. `tombstones` are all range tombstones of the inputs. `bottom` says that no input is missing: no
    /// message that is older than the inputs exists for any key.
    pub fn new(
        core: &Core,
        sink: S,
        stripes: Stripes,
        operator: Option<Operator>,
        bottom: bool,
        tombstones: Arc<Fragments>,
    ) -> Folding<S> {
        Folding {
            sink,
            stripes,
            operator,
            bottom,
            is_newest: false,
            tombstones: FragmentSweep::new(tombstones),
            group: EntryBlock::new(),
            last: Seqno(0),
            fold_at: (FOLD_AT, 0),
            out: FoldOutput::default(),
            separation: None,
            reference: Vec::new(),
            known_to: Seqno(0),
            kept: Vec::new(),
            named: None,
            dropped: Vec::new(),
            new_values: NewValues::none(core.data.clone()),
        }
    }

    /// The inputs are only the newest messages of each key. There may be older messages elsewhere that are newer than some
    /// of the range tombstones.
    #[must_use]
    pub fn of_newest(self) -> Folding<S> {
        Folding { is_newest: true, ..self }
    }

    /// Moves values of more than `above` bytes out of the structure. `expected_bytes` is a hint for allocation.
    #[must_use]
    pub fn separating(mut self, core: &Core, above: usize, expected_bytes: u64) -> Folding<S> {
        let values = ValueWriter::new(core.data.clone(), expected_bytes);
        self.separation = Some(Separation { above, after: Seqno(0), values });
        self
    }

    /// Moves no values of messages up to `seqno` out of the structure.
    #[must_use]
    pub fn separating_after(mut self, seqno: Seqno) -> Folding<S> {
        if let Some(separation) = &mut self.separation {
            separation.after = seqno;
        }
        self
    }

    /// Leaves the large values of messages with a seqno of at most `seqno` out of the list of kept values, because the
    /// structure already knows them.
    #[must_use]
    pub fn knows_values_to(mut self, seqno: Seqno) -> Folding<S> {
        self.known_to = seqno;
        self
    }

    /// Also lists the keys of the large values to which the output refers ([`FoldedValues::named`]).
    #[must_use]
    pub fn naming_values(self) -> Folding<S> {
        Folding { named: Some(Vec::new()), ..self }
    }

    /// Replaces the sink.
    #[must_use]
    pub fn map_sink(self, change: impl FnOnce(S) -> S) -> Folding<S> {
        Folding { sink: change(self.sink), ..self }
    }

    /// The oldest read point of readers without a snapshot that gets the same results from the output as from the
    /// inputs.
    pub fn horizon(&self) -> Seqno {
        self.stripes.horizon
    }

    /// Adds the next message in order. If `last_of_key` is set, the next message certainly has another key; otherwise
    /// this is unknown. The result of the messages of a key is as warm ([`Sink::set_warm`]) as the newest message.
    ///
    /// # Errors
    /// [`Error::Corruption`] if `entry` is not after the previous message. Each input is in order, so in that case two
    /// inputs hold the same message.
    #[inline]
    pub fn push(&mut self, entry: Entry<'_>, last_of_key: bool, is_warm: bool) -> Result<()> {
        if let Some(last) = self.group.len().checked_sub(1).map(|last| self.group.get(last)) {
            if last.key != entry.key {
                self.close_group()?;
            } else if self.last <= entry.seqno {
                let detail = format!("two of the inputs hold the message with seqno {}", entry.seqno);
                return Err(Error::corruption("inputs of a compaction", 0, detail).in_file(DATA_FILE, 0));
            }
        }
        if self.group.is_empty() {
            self.sink.set_warm(is_warm);
        }
        if last_of_key && self.group.is_empty() {
            // The message need not be copied.
            return self.write(std::slice::from_ref(&entry));
        }
        self.last = entry.seqno;
        self.group.push(entry);
        if self.group.len() >= self.fold_at.0 && self.group.bytes() >= self.fold_at.1 {
            self.fold_part();
        }
        Ok(())
    }

    /// Folds the messages of the group that were collected so far.
    fn fold_part(&mut self) {
        let group: Vec<Entry<'_>> = self.group.iter().collect();
        let tombs = self.tombstones.seqnos(group[0].key);
        fold_newest(&group, tombs, &self.stripes, self.operator.as_ref(), &mut self.out);
        let mut rest = EntryBlock::new();
        self.out.entries(&group).for_each(|entry| rest.push(entry));
        self.group = rest;
        self.take_dropped();
        // A fold copies what it keeps, so wait until as much was added. An operator may combine no operands, or append them.
        self.fold_at = (FOLD_AT.max(self.group.len() * 2), self.group.bytes() * 2);
    }

    /// Folds the collected messages of one key and passes the result to the sink.
    pub fn close_group(&mut self) -> Result<()> {
        let messages = std::mem::take(&mut self.group);
        let first;
        let many: Vec<Entry<'_>>;
        let group = match messages.len() {
            0 => return Ok(()),
            1 => {
                first = messages.get(0);
                std::slice::from_ref(&first)
            }
            _ => {
                many = messages.iter().collect();
                &many
            }
        };
        self.write(group)?;
        self.group = messages;
        self.group.clear();
        self.fold_at = (FOLD_AT, 0);
        Ok(())
    }

    /// Folds `group`, which are all messages of one key, and passes the result to the sink.
    fn write(&mut self, group: &[Entry<'_>]) -> Result<()> {
        debug_assert!(
            group.windows(2).all(|pair| pair[0].key == pair[1].key && pair[0].seqno > pair[1].seqno),
            "messages of one key, newest first"
        );
        let tombs = self.tombstones.seqnos(group[0].key);
        if let ([entry], []) = (group, tombs)
            && entry.kind == Kind::Put
            && !self.separation.as_ref().is_some_and(|separation| separation.is_for(entry))
        {
            // Most keys have one message, which stays as it is.
            return self.sink.push(*entry);
        }
        let (stripes, operator) = (&self.stripes, self.operator.as_ref());
        if seeded!(BufferFoldedOnTombstone: false, self.is_newest) {
            fold_newest(group, tombs, stripes, operator, &mut self.out);
        } else {
            fold_key(group, tombs, stripes, self.bottom, operator, &mut self.out);
        }
        for mut entry in self.out.entries(group) {
            if let Some(separation) = self.separation.as_mut().filter(|separation| separation.is_for(&entry)) {
                self.reference.clear();
                let value = separation.values.push(entry.value)?;
                value.encode(&mut self.reference);
                entry = Entry { kind: Kind::BlobPut, value: &self.reference, ..entry };
                self.kept.push(value.extent());
            } else if entry.kind == Kind::BlobPut && entry.seqno > self.known_to {
                self.kept.push(BlobRef::decode(entry.value)?.extent());
            }
            if let (Some(named), Kind::BlobPut) = (&mut self.named, entry.kind) {
                named.push((entry.key.to_vec(), *self.kept.last().expect("it was added")));
            }
            self.sink.push(entry)?;
        }
        self.take_dropped();
        Ok(())
    }

    /// Notes the large values whose messages the last fold has dropped.
    fn take_dropped(&mut self) {
        self.dropped.extend(self.out.dropped_blobs.drain(..).map(|blob| blob.extent()));
    }

    /// Ends the stream. Returns the sink and the lists of large values.
    ///
    /// # Errors
    /// If a large value cannot be written.
    pub fn finish(mut self) -> Result<(S, FoldedValues)> {
        self.close_group()?;
        if let Some(separation) = self.separation.take() {
            self.new_values = separation.values.finish()?;
        }
        let Folding { sink, kept, named, dropped, new_values, .. } = self;
        Ok((sink, FoldedValues { kept, named: named.unwrap_or_default(), new_values, dropped }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;
    use crate::index::testing::core;
    use crate::resolve::{AddU64, Append};

    fn folding(operator: Option<Operator>) -> Folding<BlockSink> {
        let stripes = Stripes { snapshots: Vec::new(), horizon: Seqno::MAX };
        Folding::new(&core(&MemDevice::new()), BlockSink::default(), stripes, operator, false, Arc::default())
    }

    #[test]
    fn a_key_with_many_messages_takes_little_memory() {
        let mut folding = folding(Some(Operator::new(Arc::new(AddU64))));
        for seqno in (1..=100_000).rev() {
            let entry = Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Merge, value: &1u64.to_le_bytes() };
            folding.push(entry, false, false).unwrap();
            assert!(folding.group.len() < FOLD_AT, "{} messages are kept", folding.group.len());
        }
        let (collected, _) = folding.finish().unwrap();
        let entries: Vec<Entry<'_>> = collected.0.iter().collect();
        assert_eq!((entries.len(), entries[0].kind, entries[0].seqno), (1, Kind::Merge, Seqno(100_000)));
        assert_eq!(entries[0].value, 100_000u64.to_le_bytes());
    }

    #[test]
    fn appended_bytes_are_copied_a_few_times() {
        let mut folding = folding(Some(Operator::new(Arc::new(Append))));
        let mut most = 0;
        for seqno in (1..=50_000).rev() {
            let before = folding.fold_at.1;
            folding
                .push(Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Merge, value: &[7; 16] }, false, false)
                .unwrap();
            most += if folding.fold_at.1 == before { 0 } else { folding.group.bytes() };
        }
        assert!(most < 4 * 50_000 * 16, "{most} bytes are copied");
        let (collected, _) = folding.finish().unwrap();
        assert_eq!(collected.0.iter().map(|entry| entry.value.len()).sum::<usize>(), 50_000 * 16);
    }

    #[test]
    fn a_message_in_two_inputs_is_reported_as_corruption() {
        let mut folding = folding(None);
        let entry = |seqno| Entry { key: b"key", seqno: Seqno(seqno), kind: Kind::Put, value: b"value" };
        folding.push(entry(5), false, false).unwrap();
        folding.push(entry(3), false, false).unwrap();
        assert!(folding.push(entry(3), false, false).unwrap_err().is_corruption());
    }
}
