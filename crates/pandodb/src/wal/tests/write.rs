//! Tests of the log writer: which bytes it writes, and when it writes them.

use std::sync::Arc;

use super::*;
use crate::device::mem::MemDevice;
use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};

const SMALL: u64 = 16 << 10;

fn fresh(segment_bytes: u64) -> (Arc<MemDevice>, Log) {
    let device = MemDevice::new();
    let (log, found) = reopen(&device, Claims::default(), segment_bytes).unwrap();
    assert!(found.is_empty());
    (device, log)
}

#[test]
fn written_records_are_replayed() {
    let (device, log) = fresh(SMALL);
    assert!(device.list().unwrap().is_empty(), "opening writes nothing");
    let mut seqno = 1;
    let mut expected = Vec::new();
    for i in 0..200u32 {
        let (count, len) = (1 + i % 3, (i as usize * 37) % 900);
        append(&log, seqno, count, len, i % 4 == 0).unwrap();
        expected.push(Batch { first: seqno, count, payload: payload(seqno, len) });
        seqno += u64::from(count);
        if i % 50 == 17 {
            log.sync(Seqno(seqno - 1)).unwrap();
            assert_eq!(log.durable(), Seqno(seqno - 1));
        }
    }
    log.flush().unwrap();
    assert_eq!(log.written(), Seqno(seqno - 1));
    assert!(device.list().unwrap().len() > 5, "several segments");
    assert!(log.written_bytes() > 200 * 450);
    let (report, found) = collect(&*device, Claims::default(), true).unwrap();
    assert_eq!(found, expected);
    assert_eq!((report.last, report.epoch, report.records), (Seqno(seqno - 1), 1, 200));
    assert_eq!(report.torn, None);

    let from = Seqno(seqno / 2);
    let (_, found) = collect(&*device, Claims { from, durable: Seqno(0), ..Claims::default() }, true).unwrap();
    let rest: Vec<_> = expected.into_iter().filter(|b| b.first + u64::from(b.count) - 1 > from.0).collect();
    assert_eq!(found, rest, "a record that straddles `from` is visited");
}

#[test]
fn a_sync_ends_its_block() {
    let (device, log) = fresh(64 << 10);
    put(&log, 1, 100, false).unwrap();
    put(&log, 2, 100, true).unwrap();
    log.sync(Seqno(2)).unwrap();
    put(&log, 3, 100, false).unwrap();
    log.sync(Seqno(1)).unwrap();
    put(&log, 4, 100, false).unwrap();
    log.sync(Seqno(4)).unwrap();
    let places: Vec<_> = places(&*device).into_iter().map(|(_, offset, first, _)| (first, offset)).collect();
    assert_eq!(places, [(1, 4096), (2, 4096 + 136), (3, 8192), (4, 8192 + 136)]);
    let records = &inspect(&*device, STORE).unwrap()[0].records;
    assert_eq!(records.iter().map(|r| r.durable.0).collect::<Vec<_>>(), [0, 0, 2, 2]);
}

#[test]
fn lazy_records_wait_for_a_flush_or_64_kib() {
    let (device, log) = fresh(1 << 20);
    for seqno in 1..=10 {
        put(&log, seqno, 1000, true).unwrap();
    }
    assert_eq!((log.written(), places(&*device).len()), (Seqno(0), 0));
    log.flush().unwrap();
    assert_eq!((log.written(), places(&*device).len()), (Seqno(10), 10));
    for seqno in 11..=100 {
        put(&log, seqno, 1000, true).unwrap();
    }
    assert!(log.written() >= Seqno(70) && log.written() < Seqno(100));
    put(&log, 101, 10, false).unwrap();
    assert_eq!(log.written(), Seqno(101), "a record that is not lazy is written with those before it");
    assert_eq!(places(&*device).len(), 101);
    assert_eq!(log.durable(), Seqno(0));
}

#[test]
fn a_large_record_gets_its_own_segment() {
    let (device, log) = fresh(SMALL);
    put(&log, 1, 10, false).unwrap();
    put(&log, 2, 100_000, false).unwrap();
    put(&log, 3, 10, false).unwrap();
    assert_eq!(device.list().unwrap().len(), 3);
    log.sync(Seqno(3)).unwrap();
    drop(log);
    let (_, found) = reopen(&device, Claims::default(), SMALL).unwrap();
    assert_eq!(found.iter().map(|b| b.payload.len()).collect::<Vec<_>>(), [10, 100_000, 10]);
    let (_, log) = fresh(SMALL);
    assert!(matches!(log.reserve(super::super::MAX_PAYLOAD + 1, false, UNLIMITED), Err(Error::InvalidArgument { .. })));
    put(&log, 1, 10, false).unwrap();
}

#[test]
fn segments_are_rolled_cut_and_discarded() {
    let (device, log) = fresh(1 << 20);
    log.roll().unwrap();
    assert!(device.list().unwrap().is_empty(), "nothing to roll");
    put(&log, 1, 100, false).unwrap();
    log.roll().unwrap();
    assert_eq!(device.list().unwrap().len(), 2);
    assert_eq!(read_all(&*device, &segment_name(0, 1)).len(), 8192, "the rest was freed");
    log.roll().unwrap();
    assert_eq!(device.list().unwrap().len(), 2, "an empty segment is not rolled");
    put(&log, 2, 100, true).unwrap();
    let room = log.reserve(100, false, UNLIMITED).unwrap();
    log.roll().unwrap();
    let due = room.append(Seqno(3), 1, &payload(3, 100), false).unwrap();
    log.write(due.unwrap(), Seqno(3)).unwrap();
    assert_eq!(device.list().unwrap().len(), 2, "a reservation holds the segment");
    put(&log, 4, 100, false).unwrap();
    assert_eq!(device.list().unwrap().len(), 3);
    assert_eq!(log.retained_bytes(), 8192 + 8192 + 4096 + 136);

    assert_eq!(log.discard_through(Seqno(2)).unwrap(), 1);
    assert_eq!(log.discard_through(Seqno(2)).unwrap(), 0);
    log.sync(Seqno(4)).unwrap();
    assert_eq!(log.discard_through(Seqno(4)).unwrap(), 1, "the current one stays");
    assert_eq!(device.list().unwrap(), [segment_name(0, 3)]);
    drop(log);
    let (log, found) =
        reopen(&device, Claims { from: Seqno(3), durable: Seqno(4), ..Claims::default() }, SMALL).unwrap();
    assert_eq!(found, batches([4], 100));
    put(&log, 5, 100, false).unwrap();
    assert_eq!(log.discard_through(Seqno(4)).unwrap(), 1, "a segment of the previous epoch");
}

/// If the first segment reappeared without the second one, the void records at the end of the first one would be valid
/// again.
#[test]
fn a_segment_that_could_not_be_created_is_no_header_of_this_epoch() {
    let sim = SimDevice::new(3);
    let open =
        |from| reopen(&sim, Claims { from: Seqno(from), durable: Seqno(from), ..Claims::default() }, SMALL).unwrap().0;
    for life in 1..=2 {
        put(&open(life - 1), life, 100, false).unwrap();
    }
    let log = open(2);
    sim.set_byte_budget(Some(100));
    assert!(matches!(log.reserve(100, false, UNLIMITED), Err(Error::DiskFull { .. })));
    assert_eq!(log.discard_through(Seqno(2)).unwrap(), 1, "only the last segment proves that there was a later epoch");
    sim.set_byte_budget(None);
    put(&log, 3, 100, false).unwrap();
    assert_eq!(log.discard_through(Seqno(2)).unwrap(), 1);
}

#[test]
fn group_commit_with_threads() {
    let (device, log) = fresh(64 << 10);
    let sequencer = parking_lot::Mutex::new(1u64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut next = sequencer.lock();
                    let seqno = *next;
                    *next += 1;
                    put(&log, seqno, 50, seqno % 3 == 0).unwrap();
                    drop(next);
                    log.sync(Seqno(seqno)).unwrap();
                    assert!(log.durable() >= Seqno(seqno));
                }
            });
        }
    });
    assert_eq!(log.durable(), Seqno(800));
    drop(log);
    let (_, found) =
        reopen(&device, Claims { from: Seqno(0), durable: Seqno(800), ..Claims::default() }, SMALL).unwrap();
    assert_eq!(found, batches(1..=800, 50));
}

/// Appends continue during a write. When `write` returns, each record that had to be written is written.
#[test]
fn threads_share_writes() {
    let (device, log) = fresh(64 << 10);
    let sequencer = parking_lot::Mutex::new(1u64);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (log, sequencer) = (&log, &sequencer);
            scope.spawn(move || {
                for i in 0..500 {
                    let (seqno, due) = {
                        let mut next = sequencer.lock();
                        *next += 1;
                        let seqno = *next - 1;
                        let room = log.reserve(50, false, UNLIMITED).unwrap();
                        (seqno, room.append(Seqno(seqno), 1, &payload(seqno, 50), i % 7 == 3).unwrap())
                    };
                    if let Some(stream) = due {
                        log.write(stream, Seqno(seqno)).unwrap();
                        assert!(log.written() >= Seqno(seqno));
                    }
                    match (thread, i % 100) {
                        (0, 50) => log.sync(Seqno(seqno)).unwrap(),
                        (1, 60) => log.roll().unwrap(),
                        (2, 70) => log.flush().unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    log.sync(Seqno(2000)).unwrap();
    drop(log);
    let (_, found) =
        reopen(&device, Claims { from: Seqno(0), durable: Seqno(2000), ..Claims::default() }, SMALL).unwrap();
    assert_eq!(found, batches(1..=2000, 50));
}

/// All threads that share a failed write get an error, and so do all threads that write later.
#[test]
fn a_failed_write_fails_all_threads_that_share_it() {
    let sim = SimDevice::new(1);
    let options = LogOptions { segment_bytes: 64 << 10, ..LogOptions::default() };
    let log = Log::start(sim.clone(), STORE, 1, Seqno(0), 1, Vec::new(), options).unwrap();
    put(&log, 1, 50, false).unwrap();
    for seqno in [2, 3] {
        let due =
            log.reserve(50, false, UNLIMITED).unwrap().append(Seqno(seqno), 1, &payload(seqno, 50), false).unwrap();
        assert_eq!(due, Some(0));
    }
    sim.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Write), 0)));
    let room = log.reserve(50, false, UNLIMITED).unwrap();
    assert!(matches!(log.write(0, Seqno(3)), Err(Error::Io { .. })));
    assert!(matches!(log.write(0, Seqno(2)), Err(Error::Indeterminate { .. })));
    assert!(log.write(0, Seqno(1)).is_ok(), "earlier writes still succeed");
    assert!(matches!(room.append(Seqno(4), 1, &payload(4, 50), false), Err(Error::Poisoned { .. })));
}

/// Regression, found by the explorer (`sync-large`, `random:7000022:250`): another thread's sync fails between a
/// reservation and its append. Then a checkpoint syncs a seqno that was assigned but never appended.
#[test]
fn a_sync_of_a_record_whose_append_failed_is_an_error() {
    let sim = SimDevice::new(1);
    let options = LogOptions { segment_bytes: 64 << 10, ..LogOptions::default() };
    let log = Log::start(sim.clone(), STORE, 1, Seqno(0), 1, Vec::new(), options).unwrap();
    put(&log, 1, 50, false).unwrap();
    let room = log.reserve(50, false, UNLIMITED).unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
    assert!(matches!(log.sync(Seqno(1)), Err(Error::Indeterminate { .. })));
    assert!(matches!(room.append(Seqno(2), 1, &payload(2, 50), false), Err(Error::Poisoned { .. })));
    assert!(matches!(log.sync(Seqno(2)), Err(Error::Indeterminate { .. })));
}

#[test]
fn options_are_checked() {
    for segment_bytes in [0, 4096, 10_000, 1 << 40] {
        let options = LogOptions { segment_bytes, ..LogOptions::default() };
        let result = Log::start(MemDevice::new(), STORE, 1, Seqno(0), 1, Vec::new(), options);
        assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{segment_bytes}");
    }
}
