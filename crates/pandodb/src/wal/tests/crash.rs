//! Crashes and faults, in the simulator.

use std::collections::HashSet;
use std::sync::Arc;

use super::*;
use crate::base::sync::stand_for_thread;
use crate::device::sim::{CrashChoice, CrashPlan, Fault, FaultKind, OpClass, SimDevice, SimImage};

const SMALL: u64 = 12 << 10;

/// The state that was acknowledged when the machine stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Promise {
    /// All records through this seqno were synced.
    durable: u64,
    /// All records through this seqno were written to the page cache.
    written: u64,
    /// A checkpoint covers all records through this seqno.
    from: u64,
}

impl Promise {
    fn of_mark(mark: Option<u64>) -> Promise {
        let mark = mark.unwrap_or(0);
        Promise { durable: mark & 0xffff, written: mark >> 16 & 0xffff, from: mark >> 32 & 0xffff }
    }

    fn mark(self) -> u64 {
        self.durable | self.written << 16 | self.from << 32
    }

    fn claims(self) -> Claims {
        Claims { from: Seqno(self.from), durable: Seqno(0), ..Claims::default() }
    }
}

fn len_of(seqno: u64) -> usize {
    [100, 3000, 10, 700, 5000][seqno as usize % 5]
}

fn expected(seqnos: std::ops::RangeInclusive<u64>) -> Vec<Batch> {
    seqnos.map(|first| Batch { first, count: 1, payload: payload(first, len_of(first)) }).collect()
}

/// Options for a log with this number of streams.
fn of(streams: usize) -> LogOptions {
    LogOptions { segment_bytes: SMALL, streams, tagged: false, mapped: true }
}

/// Writes records with the seqnos after `last` through `last + steps`, as several writers in turn, and uses all
/// operations of a log. Marks the acknowledged state on the device after each step.
fn work(sim: &SimDevice, log: &Log, promise: &mut Promise, last: u64, steps: u64) -> Result<()> {
    work_ahead(sim, log, promise, last, steps, u64::MAX)
}

/// As [`work`]. At every seqno that is a multiple of `ahead`, segments are created in advance.
fn work_ahead(sim: &SimDevice, log: &Log, promise: &mut Promise, last: u64, steps: u64, ahead: u64) -> Result<()> {
    for seqno in last + 1..=last + steps {
        stand_for_thread([0, 1, 2, 2, 0, 0, 1, 2, 1][seqno as usize % 9]);
        put(log, seqno, len_of(seqno), seqno % 4 == 1)?;
        promise.written = log.written().0;
        sim.mark(promise.mark());
        match seqno % 7 {
            2 | 5 => {
                log.sync(Seqno(seqno))?;
                promise.durable = seqno;
                promise.written = seqno;
            }
            3 => {
                // Take a checkpoint that holds all durable records.
                log.roll()?;
                promise.from = promise.durable;
                sim.mark(promise.mark());
                log.discard_through(Seqno(promise.from))?;
            }
            6 => {
                log.flush()?;
                promise.written = seqno;
            }
            _ => {}
        }
        sim.mark(promise.mark());
        if seqno % ahead == 0 {
            log.prepare(UNLIMITED)?;
        }
    }
    Ok(())
}

/// Reopens an image and checks that its log is a prefix of the written records, at least through `least`. Also writes
/// more records to the reopened log, and reopens the log a second time.
fn check_image(image: &SimImage, promise: Promise, least: u64, most: u64, context: &str) -> Arc<SimDevice> {
    let sim = SimDevice::from_image(image, 1);
    sim.record();
    let (log, found) = reopen_with(&sim, promise.claims(), of(1 + promise.mark() as usize % 3))
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    let last = log.durable().0;
    sim.mark(last);
    assert!((least..=most).contains(&last), "{context}: {least} to {most} were promised, found {last}");
    assert!(found == expected(promise.from + 1..=last), "{context}: batches that were not written");
    let recovered = sim.history();
    put(&log, last + 1, len_of(last + 1), true).unwrap();
    log.sync(Seqno(last + 1)).unwrap();
    let again = SimDevice::from_image(&sim.durable_image(), 1);
    let (log, found) = reopen(&again, promise.claims(), SMALL).unwrap_or_else(|e| panic!("{context}, again: {e}"));
    assert_eq!(log.durable(), Seqno(last + 1), "{context}, again");
    assert!(found == expected(promise.from + 1..=last + 1), "{context}, again");
    // The state that a recovery has reported is durable once the recovery has returned.
    let settled = recovered.image_at(recovered.ops().len(), &CrashChoice::none());
    let (report, _) = collect(&*SimDevice::from_image(&settled, 1), promise.claims(), true).unwrap();
    assert_eq!(report.last, Seqno(last), "{context}: lost after recovery");
    sim
}

fn plan(subsets: usize, tears: usize) -> CrashPlan {
    CrashPlan { exhaustive: 5, pairs: false, subsets, tears, rot: true, seed: 5 }
}

#[test]
fn every_crash_keeps_what_was_acknowledged() {
    crash_everywhere(1, 1, u64::MAX);
}

/// In the first run all segments are created in advance, and in the second run only some of them.
#[test]
fn every_crash_keeps_what_was_acknowledged_with_segments_made_ahead() {
    crash_everywhere(1, 2, 1);
    crash_everywhere(2, 1, 3);
}

/// The number of streams differs between the openings.
#[test]
fn every_crash_keeps_what_was_acknowledged_in_several_streams() {
    crash_everywhere(3, 2, u64::MAX);
    crash_everywhere(1, 3, 2);
}

/// Opens a log first with `first` streams, then with `second` streams, and tries every crash.
fn crash_everywhere(first: usize, second: usize, ahead: u64) {
    let sim = SimDevice::new(3);
    sim.record();
    let (log, _) = reopen_with(&sim, Claims::default(), of(first)).unwrap();
    let mut promise = Promise::default();
    work_ahead(&sim, &log, &mut promise, 0, 18, ahead).unwrap();
    let (log, _) = reopen_with(&sim, promise.claims(), of(second)).unwrap();
    let last = log.durable().0;
    promise.durable = last;
    sim.mark(promise.mark());
    work_ahead(&sim, &log, &mut promise, last, 16, ahead).unwrap();

    let history = sim.history();
    let mut cursor = history.walk();
    let mut seen = HashSet::new();
    let most = last + 16;
    while cursor.advance().is_some() {
        let promise = Promise::of_mark(cursor.last_mark());
        let killed = cursor.cached_image();
        if seen.insert((killed.hash(), promise)) {
            check_image(&killed, promise, promise.written.max(promise.durable), most, "killed");
        }
        for choice in plan(4, 3).choices(&cursor.pending()) {
            let image = cursor.image(&choice);
            if !seen.insert((image.hash(), promise)) {
                continue;
            }
            let context = format!("power cut after operation {}, {choice:?}", cursor.position());
            let recovered = check_image(&image, promise, promise.durable, most, &context);
            if seen.len() % 20 == 0 {
                crash_in_recovery(&recovered, promise, most, &context);
            }
        }
    }
    assert!(seen.len() > 500, "{} states", seen.len());
}

/// Cuts the power at every point of a recovery, and at every point of the first write after the recovery.
fn crash_in_recovery(sim: &SimDevice, promise: Promise, most: u64, context: &str) {
    let history = sim.history();
    let mut cursor = history.walk();
    let mut seen = HashSet::new();
    while cursor.advance().is_some() {
        let least = cursor.last_mark().unwrap_or(promise.durable);
        for choice in plan(2, 2).choices(&cursor.pending()) {
            let image = cursor.image(&choice);
            if seen.insert((image.hash(), least)) {
                let device = SimDevice::from_image(&image, 1);
                let (log, found) = reopen(&device, promise.claims(), SMALL)
                    .unwrap_or_else(|e| panic!("{context}, then after {} in recovery: {e}", cursor.position()));
                let last = log.durable().0;
                assert!(last >= least && last <= most + 1, "{context}, then after {}: {last}", cursor.position());
                assert!(found == expected(promise.from + 1..=last));
            }
        }
    }
}

#[test]
fn every_fault_is_final_and_loses_nothing() {
    for (kind, streams) in [
        (FaultKind::IoError(OpClass::Any), 1),
        (FaultKind::IoError(OpClass::Any), 3),
        (FaultKind::FailedSync, 1),
        (FaultKind::FailedSync, 3),
    ] {
        for nth in 0.. {
            let sim = SimDevice::new(3);
            let (log, _) = reopen_with(&sim, Claims::default(), of(streams)).unwrap();
            let mut promise = Promise::default();
            sim.set_fault(Some(Fault::once(kind, nth)));
            let result = work(&sim, &log, &mut promise, 0, 18);
            if sim.faults_struck() == 0 {
                result.unwrap();
                assert!(nth > 3, "{kind:?} struck {nth} times");
                break;
            }
            let error = result.expect_err("a fault is reported");
            assert!(matches!(error, Error::Io { .. } | Error::Indeterminate { .. }), "{error}");
            let removing = matches!(error, Error::Io { op: "remove", .. });
            let poisoned = |result: Result<()>| removing || matches!(result, Err(Error::Poisoned { .. }));
            assert!(
                poisoned(log.reserve(1, false, UNLIMITED).map(drop)) && poisoned(log.flush()) && poisoned(log.roll()),
                "{kind:?} {nth}"
            );
            drop(log);
            // On the same machine, the pages that the failed sync marked clean are readable, but they are not on the
            // disk.
            let context = format!("{kind:?} at {nth}");
            check_image(&sim.durable_image(), promise, promise.durable, 18, &context);
            let (log, found) = reopen(&sim, promise.claims(), SMALL).unwrap();
            let last = log.durable().0;
            assert!(last >= promise.written && found == expected(promise.from + 1..=last), "{context}");
            check_image(&sim.durable_image(), promise, last, last, &context);
        }
    }
}

#[test]
fn faults_in_recovery_are_errors_and_lose_nothing() {
    let sim = SimDevice::new(3);
    let (log, _) = reopen(&sim, Claims::default(), SMALL).unwrap();
    let mut promise = Promise::default();
    work(&sim, &log, &mut promise, 0, 13).unwrap();
    let killed = sim.image();
    for kind in [FaultKind::IoError(OpClass::Any), FaultKind::FailedSync, FaultKind::ShortTransfer] {
        for nth in 0.. {
            let sim = SimDevice::from_image(&killed, 1);
            sim.set_fault(Some(Fault::once(kind, nth)));
            let result = reopen(&sim, promise.claims(), SMALL);
            let struck = sim.faults_struck();
            sim.set_fault(None);
            assert!(result.is_err() == (struck > 0 && kind != FaultKind::ShortTransfer), "{kind:?} at {nth}");
            if struck == 0 {
                break;
            }
            let context = format!("{kind:?} at {nth} of recovery");
            check_image(&sim.durable_image(), promise, 13, 13, &context);
            let (log, _) = reopen(&sim, promise.claims(), SMALL).unwrap();
            assert_eq!(log.durable(), Seqno(13));
            check_image(&sim.durable_image(), promise, 13, 13, &context);
        }
    }
}

#[test]
fn waiters_of_a_failed_sync_learn_that_it_is_indeterminate() {
    let sim = SimDevice::new(3);
    let (log, _) = reopen(&sim, Claims::default(), SMALL).unwrap();
    put(&log, 1, 10, false).unwrap();
    log.sync(Seqno(1)).unwrap();
    put(&log, 2, 10, false).unwrap();
    put(&log, 3, 10, false).unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
    assert!(matches!(log.sync(Seqno(2)), Err(Error::Indeterminate { .. })));
    // One thread's commit is applied, and then the sync of another thread fails. The first thread must not get
    // `Poisoned`, which would wrongly mean that its commit was refused.
    assert!(matches!(log.sync(Seqno(3)), Err(Error::Indeterminate { .. })));
    assert!(matches!(log.sync(Seqno(2)), Err(Error::Indeterminate { .. })), "no sync is retried");
    assert!(log.sync(Seqno(1)).is_ok(), "durable records stay durable");
    assert!(matches!(log.reserve(0, false, UNLIMITED), Err(Error::Poisoned { .. })));
    assert_eq!(sim.faults_struck(), 1);
}

#[test]
fn a_full_disk_shows_in_the_reservation() {
    let sim = SimDevice::new(3);
    sim.set_byte_budget(Some(0));
    let (log, _) = reopen(&sim, Claims::default(), SMALL).unwrap();
    assert!(matches!(log.reserve(10, false, UNLIMITED), Err(Error::DiskFull { .. })));
    sim.set_byte_budget(Some(SMALL));
    put(&log, 1, 2000, false).unwrap();
    for _ in 0..3 {
        assert!(matches!(log.reserve(5000, false, UNLIMITED), Err(Error::DiskFull { .. })));
        assert_eq!(sim.list().unwrap(), [segment_name(0, 2)], "nothing is left of the attempt");
    }
    log.roll().unwrap();
    put(&log, 2, 10, false).unwrap();
    log.sync(Seqno(2)).unwrap();
    sim.set_byte_budget(None);
    put(&log, 3, 5000, true).unwrap();
    log.sync(Seqno(3)).unwrap();
    let (_, found) = collect(&*SimDevice::from_image(&sim.durable_image(), 1), Claims::default(), true).unwrap();
    assert_eq!(found.iter().map(|b| b.first).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_log_can_be_opened_on_a_full_disk() {
    let sim = SimDevice::new(3);
    let (log, _) = reopen(&sim, Claims::default(), SMALL).unwrap();
    let mut promise = Promise::default();
    work(&sim, &log, &mut promise, 0, 8).unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
    assert!(log.sync(Seqno(8)).is_err());
    for extra in 0..20 {
        // The failed sync marks the pages clean. There is no space for a complete copy.
        sim.set_byte_budget(Some(sim.occupied() + extra * 1024));
        let (log, found) = reopen(&sim, promise.claims(), SMALL).unwrap();
        assert!(log.durable() == Seqno(8) && found == expected(promise.from + 1..=8));
        sim.set_byte_budget(None);
        check_image(&sim.durable_image(), promise, 8, 8, "without space");
    }
}
