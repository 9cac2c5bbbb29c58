//! Checks after a workload that cannot be checked by single answers: the sums of counters, the set of deleted rows, the
//! index of rows, the rows of a bulk load.

use super::{Measured, indexed};
use crate::engine::{Engine, Need, Result, Session};
use crate::record::{Shape, Space};
use crate::workload::set::{SERIES, points_of};
use crate::workload::{Kind, Stream, Workload, World};

/// The number of rows that are checked, out of all rows.
const SAMPLE: u64 = 1000;

/// The numbers of checked and of wrong answers.
#[derive(Default)]
struct Count {
    checked: u64,
    wrong: u64,
}

impl Count {
    fn check(&mut self, is_right: bool) {
        self.checked += 1;
        self.wrong += u64::from(!is_right);
    }
}

/// Checks the contents of the store after a workload over `records` records. Returns the number of checked answers and
/// the number of wrong answers.
///
/// # Errors
/// The engine's error.
pub(super) fn check(
    workload: &Workload,
    engine: &dyn Engine,
    measured: &Measured,
    (shape, world, records): (&Shape, &World, u64),
) -> Result<(u64, u64)> {
    let mut count = Count::default();
    if matches!(workload.kind, Kind::Transactions(_)) {
        // The program of the workload has checks of its own.
        return Ok((count.checked, count.wrong));
    }
    let mut session = engine.session()?;
    let session = session.as_mut();
    if workload.needs().contains(&Need::Merge) {
        counters(session, shape, world, &mut count)?;
    }
    match workload.kind {
        Kind::Thin | Kind::LoadSortedRows => thinned(session, shape, world, &mut count)?,
        // With several threads, a slow thread may insert an event after a fast thread has deleted the range of the
        // event.
        Kind::Expiry if measured.streams.len() == 1 => {
            let first = measured.streams.iter().map(Stream::expired).max().unwrap_or(0);
            expired(session, shape, first, &mut count)?;
        }
        Kind::LoadPoints => points(session, shape, records, &mut count)?,
        Kind::LoadSorted => sorted(session, shape, records, &mut count)?,
        _ if workload.needs().contains(&Need::Batch) => {
            indexed::verify(session, shape, records, SAMPLE, &mut |is_right| count.check(is_right))?;
        }
        _ => {}
    }
    Ok((count.checked, count.wrong))
}

fn counters(session: &mut dyn Session, shape: &Shape, world: &World, count: &mut Count) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for (number, sum) in world.known_counters() {
        shape.key(Space::Counters, number, &mut key);
        let found = session.get(&key, &mut value)?;
        count.check(found && value == sum.to_le_bytes());
    }
    Ok(())
}

fn thinned(session: &mut dyn Session, shape: &Shape, world: &World, count: &mut Count) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let step = (world.rows / SAMPLE).max(1);
    for number in (0..world.rows).step_by(step as usize) {
        shape.key(Space::Rows, number, &mut key);
        count.check(session.get(&key, &mut value)? == world.has_row(number));
    }
    Ok(())
}

/// Checks that the event `first` is the oldest.
fn expired(session: &mut dyn Session, shape: &Shape, first: u64, count: &mut Count) -> Result<()> {
    let (mut key, mut found) = (Vec::new(), Vec::new());
    shape.key(Space::Events, 0, &mut key);
    session.scan(&key, 1, &mut |key, _| found.extend_from_slice(key))?;
    shape.key(Space::Events, first, &mut key);
    count.check(found == key);
    Ok(())
}

/// Checks the newest point of each series, and that no newer point exists.
fn points(session: &mut dyn Session, shape: &Shape, records: u64, count: &mut Count) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let space = Space::Points { series: SERIES };
    for series in 0..SERIES.min(records) {
        let newest = points_of(series, records) - 1;
        shape.key(space, newest * SERIES + series, &mut key);
        let found = session.get(&key, &mut value)? && shape.is_value_of(&key, &value);
        shape.key(space, (newest + 1) * SERIES + series, &mut key);
        count.check(found && !session.get(&key, &mut value)?);
    }
    Ok(())
}

/// Checks a sample of the rows of a bulk load, and the order of the first rows.
fn sorted(session: &mut dyn Session, shape: &Shape, records: u64, count: &mut Count) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let space = Space::Sorted { stride: u64::MAX / records.max(1) };
    for number in (0..records).step_by((records / SAMPLE).max(1) as usize) {
        shape.key(space, number, &mut key);
        count.check(session.get(&key, &mut value)? && shape.is_value_of(&key, &value));
    }
    let (mut number, mut is_right) = (0, true);
    let limit = records.min(10 * SAMPLE);
    let found = session.scan(&[0], limit as usize, &mut |found, value| {
        shape.key(space, number, &mut key);
        is_right &= found == key && shape.is_value_of(found, value);
        number += 1;
    })?;
    count.check(is_right && found as u64 == limit);
    Ok(())
}
