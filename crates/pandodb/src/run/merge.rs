//! [`MergeCursor`]: merges several runs into one ordered stream, by a loser tree (a tournament in which each inner node
//! stores the loser of its match).
//!
//! ```text
//!   winner ──▶ 2            each inner node holds the loser of its match,
//!            [ 5 ]          so that after the winner has moved on
//!        [ 0 ]   [ 6 ]      one path of log₂ k matches finds the next one
//!      [1] [3]   [4] [7]
//!      0 1 2 3   4 5 6 7    inputs
//! ```
//!
//! Steps of [`MergeCursor::advance`]: advance the winner's cursor; compute the new head of this input; replay the
//! matches on the path from this input to the root; if the new winner is pending, open it and replay again.
//!
//! A match compares two *heads*. A head is a number made of the eight key bytes that follow the common prefix of the
//! keys of *all* inputs. (The prefix is computed from the bounds of the runs.) So the heads of different keys usually
//! differ even if keys share a long prefix. If the heads are equal, the keys are compared, and then the seqnos, newest
//! first. In a reverse cursor, every comparison is inverted. With eight inputs, one entry takes about 150 ns.
//!
//! An input that was not opened yet (a *pending* input) has no current entry. In a match, its lower bound
//! ([`RunCursor::lower_bound`]) takes the place of the key of the current entry. The input is opened only when its
//! bound wins, because before that none of its entries can be the next entry of the merge. If several inputs have the
//! first bound when the merge starts, they are opened together.
//!
//! Invariant: no two inputs hold the same (key, seqno), because each message is in only one of the runs that a reader
//! merges. Source: 002 §3.3.

use std::cell::Cell;
use std::cmp::Ordering;

use super::cursor::RunCursor;
use super::slots::common_prefix;
use crate::base::range::head;
use crate::base::{Entry, Error, KeyRange, OwnerId, Result, Seqno, seeded};

/// A vector with room for more than this number of inputs is not kept.
const MOST_KEPT: usize = 64;

thread_local! {
    /// An empty vector that a merge of this thread has left. A short scan would otherwise allocate some kilobytes for
    /// it. Before such an allocation, the system's allocator merges the small pieces of memory that were freed before.
    static KEPT: Cell<Vec<RunCursor>> = const { Cell::new(Vec::new()) };
}

/// A cursor that merges several cursors.
pub struct MergeCursor {
    inputs: Vec<RunCursor>,
    /// The head of each input: the eight key bytes that decide most matches. In a reverse cursor, the bits of heads are
    /// inverted. The head of an input that has ended is `u64::MAX`.
    heads: Vec<u64>,
    /// `losers[0]` is the winner; for `i` > 0, `losers[i]` is the loser of the match at node `i`.
    losers: Vec<u32>,
    reverse: bool,
    shared: usize,
    /// The input whose last step failed.
    failed: Option<u32>,
}

/// The length of the prefix that all keys of the inputs share.
fn shared_prefix(inputs: &[RunCursor]) -> usize {
    let metas = || inputs.iter().map(|input| input.slice().run().meta()).filter(|meta| !meta.first_key.is_empty());
    let first = metas().map(|meta| meta.first_key.as_slice()).min();
    let last = metas().map(|meta| meta.last_key.as_slice()).max();
    first.zip(last).map_or(0, |(first, last)| common_prefix(first, last))
}

impl MergeCursor {
    /// An empty vector for inputs, if possible with the memory of the inputs of an earlier merge of this thread.
    pub fn no_inputs() -> Vec<RunCursor> {
        // The thread may be ending.
        KEPT.try_with(Cell::take).unwrap_or_default()
    }

    /// Merges `inputs`, all of which have the direction `reverse`, and moves to the first entry.
    ///
    /// # Errors
    /// The id of the run that could not be opened, and its error.
    pub fn new(mut inputs: Vec<RunCursor>, reverse: bool) -> std::result::Result<MergeCursor, (OwnerId, Error)> {
        RunCursor::open_all(&mut inputs).map_err(|(input, e)| (inputs[input].slice().run().meta().id, e))?;
        let shared = shared_prefix(&inputs);
        assert!(u32::try_from(inputs.len()).is_ok(), "inputs are numbered with 32 bits");
        assert!(inputs.iter().all(|input| input.is_reverse() == reverse), "all inputs have the same direction");
        let heads = vec![0; inputs.len()];
        let mut merge = MergeCursor { heads, losers: Vec::new(), inputs, reverse, shared, failed: None };
        merge.rebuild();
        match merge.open_winner() {
            Ok(()) => Ok(merge),
            Err(e) => Err((merge.failed().expect("an input failed"), e)),
        }
    }

    /// The current entry; `None` past the end.
    #[inline]
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.inputs[*self.losers.first()? as usize].entry()
    }

    /// Whether certainly no later entry has the key of the current entry. Compares numbers only, and no keys, so the
    /// result may be `false` although no such entry follows. For ascending cursors.
    #[inline]
    pub fn is_last_of_key(&self) -> bool {
        let Some(&winner) = self.losers.first() else { return false };
        let head = self.heads[winner as usize];
        // An input with an entry of the same key has the same head as the winner. If there is such an input, then the
        // input that would win without the winner has this head too. That input has lost its match against the winner,
        // so it is on the winner's path.
        let mut node = (winner as usize + self.inputs.len()) / 2;
        while node > 0 {
            if self.heads[self.losers[node] as usize] == head {
                return seeded!(SameKeyOverlooked: true, false);
            }
            node /= 2;
        }
        self.inputs[winner as usize].is_last_of_key()
    }

    /// Whether the pool has the leaf of the current entry, for compactions.
    #[inline]
    pub fn is_pooled(&self) -> bool {
        self.losers.first().is_some_and(|&winner| self.inputs[winner as usize].is_pooled())
    }

    /// The run whose error the last failed [`MergeCursor::advance`] returned.
    pub fn failed(&self) -> Option<OwnerId> {
        self.failed.map(|input| self.inputs[input as usize].slice().run().meta().id)
    }

    /// Moves to the next entry. Does nothing past the end.
    ///
    /// # Errors
    /// I/O errors and [`crate::Error::Corruption`] of an input. After an error, this input counts as ended.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        let Some(&winner) = self.losers.first() else { return Ok(()) };
        let moved = self.inputs[winner as usize].advance();
        if self.inputs.len() == 1 {
            // There is no match. The input is not pending, because it has a current entry or has ended.
            return moved.inspect_err(|_| self.failed = Some(winner));
        }
        self.take_head(winner as usize);
        self.replay(winner);
        moved.inspect_err(|_| self.failed = Some(winner))?;
        self.open_winner()
    }

    /// Leaves out the messages of `range` that are in inputs without any message from `seqno` on.
    ///
    /// # Errors
    /// The errors of [`MergeCursor::advance`].
    pub fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        let older = |input: &&mut RunCursor| {
            let newest = input.slice().run().meta().max_seqno;
            seeded!(CoveredRunNotOlder: true, newest < seqno)
        };
        let left = self.inputs.iter_mut().filter(older).try_for_each(|input| input.leave(range));
        self.rebuild();
        left?;
        self.open_winner()
    }

    /// Opens the winner if it is pending, and repeats this until the winner is not pending.
    #[inline]
    fn open_winner(&mut self) -> Result<()> {
        while let Some(&winner) = self.losers.first()
            && self.inputs[winner as usize].lower_bound().is_some()
        {
            let opened = self.inputs[winner as usize].open();
            self.take_head(winner as usize);
            self.replay(winner);
            opened.inspect_err(|_| self.failed = Some(winner))?;
        }
        debug_assert!(self.is_won(), "no input precedes the winner");
        Ok(())
    }

    #[inline]
    fn take_head(&mut self, input: usize) {
        let cursor = &self.inputs[input];
        // The bound of a pending input is between the first and the last key of the input's run, so the bound also has
        // the shared prefix.
        let key = cursor.place();
        self.heads[input] = match key.map(|key| &key[self.shared..]) {
            None => u64::MAX,
            Some(rest) => {
                let head = head(rest);
                if self.reverse { !head } else { head }
            }
        };
    }

    /// Whether the current entry of input `a` precedes the current entry of input `b`.
    #[inline]
    fn beats(&self, a: u32, b: u32) -> bool {
        match self.heads[a as usize].cmp(&self.heads[b as usize]) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.beats_by_key(a, b),
        }
    }

    fn beats_by_key(&self, a: u32, b: u32) -> bool {
        match (self.inputs[a as usize].entry(), self.inputs[b as usize].entry()) {
            (Some(first), Some(second)) => {
                // The entries have the same key and seqno only in a damaged store. In this case neither entry beats the
                // other, both are returned, and a compaction detects the damage.
                first.order(&second) == if self.reverse { Ordering::Greater } else { Ordering::Less }
            }
            (first, second) => {
                let (a, b) = (&self.inputs[a as usize], &self.inputs[b as usize]);
                let first = first.map(|entry| entry.key).or_else(|| a.lower_bound());
                let second = second.map(|entry| entry.key).or_else(|| b.lower_bound());
                let Some((first, second)) = first.zip(second) else { return first.is_some() };
                match first.cmp(second) {
                    // A pending input beats a message of the same key, so that the input is opened before this message
                    // is returned, because the input may hold a newer message of the key.
                    Ordering::Equal => a.lower_bound().is_some(),
                    order => order == if self.reverse { Ordering::Greater } else { Ordering::Less },
                }
            }
        }
    }

    /// Whether no other input precedes the winner.
    fn is_won(&self) -> bool {
        let inputs = || (0..).zip(&self.inputs).map(|(input, _)| input);
        self.losers.first().is_none_or(|&winner| inputs().all(|input| !self.beats(input, winner)))
    }

    /// Replays the matches from an input to the root, after the head of the input has changed.
    #[inline]
    fn replay(&mut self, input: u32) {
        debug_assert_eq!(self.losers.len(), self.inputs.len(), "a node for each match, and the winner");
        let mut winner = input;
        let mut node = (input as usize + self.inputs.len()) / 2;
        while node > 0 {
            if self.beats(self.losers[node], winner) {
                std::mem::swap(&mut self.losers[node], &mut winner);
            }
            node /= 2;
        }
        self.losers[0] = winner;
    }

    /// Plays all matches.
    fn rebuild(&mut self) {
        let count = self.inputs.len();
        (0..count).for_each(|input| self.take_head(input));
        // The winners of the nodes are computed from the last node to the first. The nodes with numbers from `count` on
        // are the inputs, which win their own nodes. The second half of the vector has the winners until all are known.
        self.losers.clear();
        self.losers.resize(2 * count, 0);
        #[expect(clippy::cast_possible_truncation, reason = "inputs are numbered with 32 bits")]
        let winner = |losers: &[u32], node| if node >= count { (node - count) as u32 } else { losers[count + node] };
        for node in (1..count).rev() {
            let (a, b) = (winner(&self.losers, 2 * node), winner(&self.losers, 2 * node + 1));
            (self.losers[count + node], self.losers[node]) = if self.beats(b, a) { (b, a) } else { (a, b) };
        }
        if count > 0 {
            self.losers[0] = winner(&self.losers, 1);
        }
        self.losers.truncate(count);
    }
}

impl Drop for MergeCursor {
    fn drop(&mut self) {
        let mut inputs = std::mem::take(&mut self.inputs);
        if inputs.capacity() <= MOST_KEPT {
            inputs.clear();
            let _ = KEPT.try_with(|kept| {
                let other = kept.take();
                kept.set(if other.capacity() > inputs.capacity() { other } else { inputs });
            });
        }
    }
}
