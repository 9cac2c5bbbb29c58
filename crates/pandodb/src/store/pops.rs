//! Takes the first or the last row of a keyspace: [`Keyspace::pop_first`](crate::Keyspace::pop_first) and its
//! counterpart.
//!
//! ```text
//!   pop ─▶ lock ─▶ next key of the list ─▶ was a key before it noted? ─▶ get ─▶ has no value? ─▶ delete, validated ─▶ row
//!             fetch the list again ◀── yes, or the list is empty     ▲   next key ◀── yes            │
//!                                                                     └── changed in between ◀──────┘
//! ```
//!
//! Opening a scan costs much more than a pop, so a scan fetches the next keys for several pops, twice as many each
//! time. Deletes by other callers are found because each key is read again. Writes are found because the list has a
//! [`Watch`] over the keys up to its last key. The scan that fetches the list also notes in the watch each key whose
//! newest value is not visible to it.
//!
//! Invariants: the lock `pops` of the keyspace is held during a whole pop, so no two pops take the same row. Every key
//! that has a value and comes before a key of the list is noted in the watch. The list is empty after an error, so a
//! row that could not be read or deleted stays the first one.
//!
//! [`Watch`]: super::dead_ranges::Watch

use std::sync::Arc;

use super::commit::{OneOp, Payload, PayloadOps};
use super::footprints::FootprintGuard;
use super::next_keys::NextKeys;
use super::options::Durability;
use super::range::Range;
use super::read::{self, ReadPoint};
use super::shared::Shared;
use super::state::KeyspaceState;
use super::validation::{ReadFrom, ReadSet, Validation};
use super::value::Value;
use crate::base::{KeyCodec, KeyRange, Kind, Result, Seqno};
use crate::index::Changes;

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
        if let Some((value, last)) = take_key(engine, state, &key, durability)? {
            return Ok(Some(((Value::owned(key), value), last)));
        }
    }
}

/// Deletes a key, and returns its value and the seqno of the delete; `None` if it has no value. Reads the key again if
/// another thread changes it between the read and the delete.
fn take_key(
    engine: &Arc<Shared>,
    state: &Arc<KeyspaceState>,
    key: &[u8],
    durability: Durability,
) -> Result<Option<(Value, Seqno)>> {
    debug_assert_eq!(state.codec, KeyCodec::Plain, "keys in the order of a hash are not popped");
    let mut reads = ReadSet::default();
    reads.add_key(state, state.codec.hashed(key), Changes::All);
    let ops = PayloadOps::One(OneOp { keyspace: state, kind: Kind::Delete, key, value: &[] });
    let _guard = FootprintGuard::of(&engine.writer.footprints);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let point = ReadFrom::newest(engine);
        let Some(value) = read::get(engine, state, key, ReadPoint::At(&point.snapshot))? else { return Ok(None) };
        let validation = Validation::new(&reads, &point);
        let (keyspaces, validation) = (std::slice::from_ref(state), Some(&validation));
        let payload = Payload { ops, bytes: key.len() as u64, frees: true, keyspaces, validation };
        let committed = engine.commit(payload, durability);
        engine.figures.transactions.count(&committed);
        match committed {
            Ok(last) => return Ok(Some((value, last))),
            Err(error) => engine.after_conflict(error, attempts).map(drop)?,
        }
    }
}
