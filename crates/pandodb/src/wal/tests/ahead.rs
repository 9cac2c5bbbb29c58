//! Tests of segments that are created in advance.

use std::sync::Arc;

use super::*;
use crate::device::mem::MemDevice;
use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};

const SMALL: u64 = 16 << 10;

fn fresh(device: &Arc<impl Device + 'static>) -> Log {
    reopen(device, Claims::default(), SMALL).unwrap().0
}

fn names(device: &dyn Device) -> Vec<String> {
    device.list().unwrap()
}

#[test]
fn a_writer_takes_the_segment_that_was_made_ahead() {
    let device = MemDevice::new();
    let log = fresh(&device);
    log.prepare(UNLIMITED).unwrap();
    assert!(names(&*device).is_empty(), "a store that writes nothing has no log");
    put(&log, 1, 10, false).unwrap();
    put(&log, 2, 100, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device), [segment_name(0, 1), segment_name(0, 2)], "exactly one is made ahead");
    put(&log, 3, 5000, false).unwrap();
    put(&log, 4, 10_000, false).unwrap();
    assert_eq!(names(&*device).len(), 2);
    assert_eq!(inspect(&*device, STORE).unwrap()[1].records[0].first, Seqno(4));
    log.sync(Seqno(4)).unwrap();
    assert_eq!(log.discard_through(Seqno(3)).unwrap(), 1);
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(log.discard_through(Seqno(4)).unwrap(), 0, "neither the current one nor the next");
    drop(log);
    let (_, found) = reopen(&device, Claims { from: Seqno(3), durable: Seqno(4), ..Claims::default() }, SMALL).unwrap();
    assert_eq!(found, batches([4], 10_000));
    assert_eq!(names(&*device), [segment_name(0, 2)], "the unused segment was removed");
}

#[test]
fn a_segment_is_wanted_once_a_quarter_of_the_current_one_is_used() {
    let device = MemDevice::new();
    let log = reopen(&device, Claims::default(), 64 << 10).unwrap().0;
    put(&log, 1, 8000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    assert!(!log.wants_segment() && names(&*device).len() == 1);
    put(&log, 2, 8000, false).unwrap();
    assert!(log.wants_segment() && !log.wants_segment(), "reported once");
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device).len(), 2);
}

#[test]
fn a_segment_that_is_too_small_for_a_record_is_removed() {
    let device = MemDevice::new();
    let log = fresh(&device);
    put(&log, 1, 10_000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    put(&log, 2, 50_000, false).unwrap();
    assert_eq!(names(&*device), [segment_name(0, 1), segment_name(0, 3)]);
    drop(log);
    let (_, found) = reopen(&device, Claims::default(), SMALL).unwrap();
    assert_eq!(found.len(), 2);
}

#[test]
fn a_clean_close_removes_segments_made_ahead() {
    let device = MemDevice::new();
    let log = fresh(&device);
    put(&log, 1, 10_000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    log.sync(Seqno(1)).unwrap();
    log.trim().unwrap();
    log.close();
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device), [segment_name(0, 1)]);
}

#[test]
fn only_the_writer_reports_a_full_disk() {
    let sim = SimDevice::new(3);
    sim.set_byte_budget(Some(SMALL + 100));
    let log = fresh(&sim);
    put(&log, 1, 10_000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*sim), [segment_name(0, 1)], "nothing is left of the attempt");
    sim.set_byte_budget(None);
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*sim).len(), 1, "one attempt for each current segment");
    sim.set_byte_budget(Some(SMALL + 100));
    assert!(matches!(log.reserve(10_000, false, UNLIMITED), Err(Error::DiskFull { .. })));
    sim.set_byte_budget(None);
    put(&log, 2, 10_000, false).unwrap();
    log.sync(Seqno(2)).unwrap();
}

/// If a call fails, only the segment is not created. But if the sync of the directory fails, other names may be lost,
/// too.
#[test]
fn failing_to_make_a_segment_ahead_does_not_poison_the_log() {
    let mut final_ones = 0;
    for kind in [FaultKind::IoError(OpClass::Any), FaultKind::FailedSync] {
        for nth in 0.. {
            let sim = SimDevice::new(3);
            let log = fresh(&sim);
            put(&log, 1, 10_000, false).unwrap();
            log.sync(Seqno(1)).unwrap();
            sim.set_fault(Some(Fault::once(kind, nth)));
            let prepared = log.prepare(UNLIMITED);
            let struck = sim.faults_struck();
            sim.set_fault(None);
            let last = if prepared.is_ok() {
                put(&log, 2, 10_000, false).unwrap();
                log.sync(Seqno(2)).unwrap();
                2
            } else {
                final_ones += 1;
                assert!(matches!(log.reserve(1, false, UNLIMITED), Err(Error::Poisoned { .. })), "{kind:?} at {nth}");
                1
            };
            let left = SimDevice::from_image(&sim.durable_image(), 1);
            let (_, found) = collect(&*left, Claims::default(), false).unwrap();
            assert_eq!(found, batches(1..=last, 10_000), "{kind:?} at {nth}");
            if struck == 0 {
                break;
            }
        }
    }
    assert_eq!(final_ones, 2, "the sync of the directory, for either reason");
}

#[test]
fn a_stream_that_fills_segments_quickly_has_four_ahead() {
    let device = MemDevice::new();
    let log = fresh(&device);
    let mut ahead = Vec::new();
    for seqno in 1..=6 {
        put(&log, seqno, 10_000, false).unwrap();
        log.prepare(UNLIMITED).unwrap();
        log.prepare(UNLIMITED).unwrap();
        ahead.push(names(&*device).len() - seqno as usize);
    }
    assert_eq!(ahead, [1, 2, 3, 4, 4, 4]);
    // After the stream has used all segments that were created in advance, it gets as many as before.
    (7..=11).for_each(|seqno| put(&log, seqno, 10_000, false).unwrap());
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device).len(), 11 + 4);
    assert!(log.discard_preallocated() && !log.discard_preallocated());
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device).len(), 11, "none for the same current segment");
    put(&log, 12, 10_000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    put(&log, 13, 50_000, false).unwrap();
    assert_eq!(names(&*device).len(), 13, "too small segments have lower numbers, so they are removed");
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device).len(), 13, "a segment for a long record makes none ahead");
    put(&log, 14, 10_000, false).unwrap();
    log.prepare(UNLIMITED).unwrap();
    assert_eq!(names(&*device).len(), 15, "the count restarts");
    drop(log);
    let (_, found) = reopen(&device, Claims::default(), SMALL).unwrap();
    assert_eq!(found.len(), 14);
}

#[test]
fn long_segments_are_limited_by_their_bytes() {
    let device = MemDevice::new();
    let log = reopen(&device, Claims::default(), 16 << 20).unwrap().0;
    for seqno in 1..=4 {
        put(&log, seqno, 9 << 20, false).unwrap();
        log.prepare(UNLIMITED).unwrap();
    }
    assert_eq!(names(&*device).len(), 4 + 2, "two of 16 MiB");
}

/// The header of a segment that was created in advance does not bound the previous segment, but its first record does.
#[test]
fn the_first_record_bounds_the_previous_segment() {
    let device = MemDevice::new();
    let header = |number, after| Header { stream: 0, number, epoch: 1, start: Seqno(0), after };
    let mut damaged = handmade(header(1, Some(Seqno(0))), &[(1, 1, 0), (2, 1, 0)]);
    damaged[20] ^= 1;
    create(&*device, &segment_name(0, 1), &damaged);
    create(&*device, &segment_name(0, 2), &handmade(header(2, None), &[]));
    let recover = |from| collect(&*device, Claims { from: Seqno(from), durable: Seqno(0), ..Claims::default() }, false);
    assert!(recover(2).unwrap_err().is_corruption(), "an empty segment gives no bound");
    create(&*device, &segment_name(0, 3), &handmade(header(3, None), &[(3, 1, 0)]));
    assert!(recover(1).unwrap_err().is_corruption(), "2 may be lost");
    assert!(inspect(&*device, STORE).unwrap().iter().all(|segment| segment.after.is_none()));
    for _ in 0..2 {
        let (report, found) = recover(2).unwrap();
        assert_eq!((report.last, found.len()), (Seqno(3), 1));
        assert!(report.segments.iter().any(|info| (info.number, info.last) == (1, Seqno(2))));
    }
}

#[test]
fn concurrent_writers_and_preparation_keep_the_order_of_segments() {
    let device = MemDevice::new();
    let log = fresh(&device);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                log.prepare(UNLIMITED).unwrap();
            }
        });
        for seqno in 1..=2000 {
            put(&log, seqno, 1000, false).unwrap();
            if seqno % 7 == 0 {
                log.roll().unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop(log);
    let (_, found) = reopen(&device, Claims::default(), SMALL).unwrap();
    assert!(found == batches(1..=2000, 1000));
}
