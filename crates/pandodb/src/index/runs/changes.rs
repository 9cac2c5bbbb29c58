//! Finds the changes that a transaction must know of before it commits: was a key, or a key of a range, changed after a
//! seqno?
//!
//! ```text
//!   since = 40     run 51..60   run 41..50   run 12..40   run 1..11         newest first
//!                  │ searched   │ searched   │ older: skipped, also its filter
//! ```
//!
//! A run whose newest message is not newer than the seqno has no change. A transaction is usually younger than all runs,
//! or than all but a few, so almost nothing is read.

use super::probe::{Path, Stop};
use crate::base::{HashedKey, Result, SeededBug, Seqno};
use crate::blocks::BlockRequest;
use crate::index::Changes;
use crate::run::{ProbeStep, RunProbe};
use crate::space::BlockKind;

/// Whether a run on the path of a key has a change of the key with a seqno above `since`.
///
/// # Errors
/// If a block cannot be read.
pub fn changed_on<'v>(
    mut path: impl Path<'v>,
    HashedKey { key, hash }: HashedKey<'_>,
    since: Seqno,
    changes: Changes,
) -> Result<bool> {
    while let Some(stop) = path.stop(key)? {
        if stop.slice.run().meta().max_seqno > since
            && let Some(changed) = changed_in_run(stop, key, hash, since, changes)?
        {
            return Ok(changed);
        }
        path.advance();
    }
    Ok(false)
}

/// Whether the run of a stop has such a change. `None` if older runs must be searched, too.
fn changed_in_run(stop: Stop<'_>, key: &[u8], hash: u64, since: Seqno, changes: Changes) -> Result<Option<bool>> {
    let (slice, run) = (stop.slice, stop.slice.run());
    if !slice.contains(key) {
        return Ok(None);
    }
    if slice.covering(key, Seqno::MAX)? > since && !SeededBug::PackedReadTombstoneMissed.is_on() {
        return Ok(Some(true));
    }
    if !slice.may_hold(key) {
        return Ok(None);
    }
    let (mut probe, mut block) = (RunProbe::new(hash), None);
    loop {
        match probe.step(slice, key, block.take())? {
            ProbeStep::Need(addr, kind) => {
                let optional = kind == BlockKind::RunFilter;
                block = BlockRequest { source: &**run, addr, kind, optional }.load()?;
            }
            ProbeStep::Found(hit) => {
                for (entry, _) in hit.entries(key) {
                    // All older messages of the key, in this run and in older ones, have smaller seqnos.
                    if entry.seqno <= since {
                        return Ok(Some(false));
                    }
                    if changes.include(entry.kind) {
                        return Ok(Some(true));
                    }
                }
            }
            ProbeStep::Done => return Ok(None),
        }
    }
}
