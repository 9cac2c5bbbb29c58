//! Takes the first or the last row of a keyspace: [`Keyspace::pop_first`](crate::Keyspace::pop_first) and its
//! counterpart.
//!
//! ```text
//!   pop ─▶ lock ─▶ next key of the list ─▶ was a key before it noted? ─▶ get ─▶ has no value? ─▶ delete ─▶ row
//!             fetch the list again ◀── yes, or the list is empty       next key ◀── yes
//! ```
//!
//! Opening a scan costs much more than a pop, so a scan fetches the next keys for several pops, twice as many each time.
//! Deletes by other callers are found because each key is read again. Writes are found because the list has a [`Watch`]
//! over the keys up to its last key. The scan that fetches the list also notes in the watch each key whose newest value is
//! not visible to it.
//!
//! Invariants: the lock `pops` of the keyspace is held during a whole pop, so no two pops take the same row. Every key
//! that has a value and comes before a key of the list is noted in the watch. The list is empty after an error, so a row
//! that could not be read or deleted stays the first one.
//!
//! [`Watch`]: super::dead_ranges::Watch

use std::sync::Arc;

use super::commit::{OneOp, Payload, PayloadOps};
use super::next_keys::NextKeys;
use super::options::Durability;
use super::range::Range;
use super::read::{self, ReadPoint};
use super::shared::Shared;
use super::state::KeyspaceState;
use super::value::Value;
use crate::base::{KeyRange, Kind, Result, Seqno};

/// Takes the first row of the keyspace, or the last one if `reverse`.
pub(super) fn pop(
    engine: &Arc<Shared>,
    state: &Arc<KeyspaceState>,
    reverse: bool,
    durability: Durability,
) -> Result<Option<(Value, Value)>> {
    let log = engine.check_writable()?;
    state.check_sorted(&KeyRange::new([0], []))?;
    // The sync follows without the lock, so that consumers share syncs.
    let written = if durability == Durability::Synced { Durability::Buffered } else { durability };
    let taken = {
        let mut pops = state.pops.lock();
        let ahead = if reverse { &mut pops.last } else { &mut pops.first };
        take(ahead, engine, state, reverse, written).inspect_err(|_| ahead.clear())?
    };
    let Some((row, last)) = taken else { return Ok(None) };
    if durability == Durability::Synced {
        log.sync(last).inspect_err(|e| engine.poison(e))?;
    }
    Ok(Some(row))
}

/// A row and the seqno of its delete.
type Taken = ((Value, Value), Seqno);

/// Takes a row under the lock `pops`.
fn take(
    ahead: &mut NextKeys,
    engine: &Arc<Shared>,
    state: &Arc<KeyspaceState>,
    reverse: bool,
    durability: Durability,
) -> Result<Option<Taken>> {
    loop {
        let next =
            match ahead.next(reverse) {
                None => {
                    let watch = state.dead_ranges.watch(&KeyRange::all(), reverse);
                    let mut keys = Range::new(engine, state, KeyRange::all(), None).keys();
                    ahead.fetch(&engine.core.pool, watch, reverse, || {
                        if reverse { keys.next_back() } else { keys.next() }
                    })?
                }
                next => next,
            };
        let Some(key) = next else {
            state.check_alive()?;
            return Ok(None);
        };
        let Some(value) = read::get(engine, state, &key, ReadPoint::Newest)? else { continue };
        let ops = PayloadOps::One(OneOp { keyspace: state, kind: Kind::Delete, key: &key, value: &[] });
        let keyspaces = std::slice::from_ref(state);
        let last = engine.commit(Payload { ops, bytes: key.len() as u64, frees: true, keyspaces }, durability)?;
        return Ok(Some(((Value::owned(key), value), last)));
    }
}
