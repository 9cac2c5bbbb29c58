//! Tests with several streams: which stream a record goes to, what a sync makes durable, and what a kill leaves.

use std::sync::Arc;

use super::*;
use crate::base::sync::stand_for_thread;
use crate::device::mem::MemDevice;
use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};

const SMALL: u64 = 16 << 10;

fn fresh(streams: usize) -> (Arc<SimDevice>, Log) {
    let device = SimDevice::new(1);
    let (log, _) = reopen_with(
        &device,
        Claims::default(),
        LogOptions { segment_bytes: SMALL, streams, tagged: false, mapped: true },
    )
    .unwrap();
    (device, log)
}

/// Appends a record as the writer with the number `writer`.
fn put_as(log: &Log, writer: usize, seqno: u64, lazy: bool) {
    stand_for_thread(writer);
    put(log, seqno, 100, lazy).unwrap();
}

/// Replays the state after a power cut.
fn after_a_cut(device: &SimDevice) -> Vec<Batch> {
    collect(&*SimDevice::from_image(&device.durable_image(), 1), Claims::default(), false).unwrap().1
}

#[test]
fn threads_write_to_streams_by_their_numbers() {
    let (device, log) = fresh(2);
    for (writer, seqno) in [(0, 1), (1, 2), (2, 3), (1, 4), (5, 5)] {
        put_as(&log, writer, seqno, false);
    }
    let segments = inspect(&*device, STORE).unwrap();
    let firsts = |stream: usize| segments[stream].records.iter().map(|r| r.first.0).collect::<Vec<_>>();
    assert_eq!((segments.len(), firsts(0), firsts(1)), (2, vec![1, 3], vec![2, 4, 5]));
    assert_eq!(collect(&*device, Claims::default(), true).unwrap().1, batches(1..=5, 100));
}

#[test]
fn a_sync_includes_all_streams_and_claims_the_requested_seqno() {
    let (device, log) = fresh(3);
    put_as(&log, 0, 1, true);
    put_as(&log, 1, 2, true);
    put_as(&log, 2, 3, false);
    log.sync(Seqno(2)).unwrap();
    assert_eq!(log.durable(), Seqno(2), "no caller has stated that all through 3 is appended");
    assert_eq!(after_a_cut(&device), batches(1..=3, 100));
    put_as(&log, 1, 4, false);
    log.sync(Seqno(4)).unwrap();
    assert_eq!((log.durable(), after_a_cut(&device).len()), (Seqno(4), 4));
    let segments = inspect(&*device, STORE).unwrap();
    assert_eq!(segments[1].records.iter().map(|r| r.durable.0).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_stream_without_new_records_is_not_synced() {
    let (device, log) = fresh(4);
    put_as(&log, 3, 1, false);
    log.sync(Seqno(1)).unwrap();
    put_as(&log, 2, 2, false);
    device.record();
    log.sync(Seqno(2)).unwrap();
    let syncs = device.history().ops().iter().filter(|op| format!("{op:?}").starts_with("Sync")).count();
    assert_eq!(syncs, 1);
}

#[test]
fn a_write_includes_earlier_lazy_records() {
    let (device, log) = fresh(3);
    put_as(&log, 0, 1, true);
    put_as(&log, 1, 2, true);
    put_as(&log, 2, 3, false);
    put_as(&log, 0, 4, true);
    assert_eq!(log.written(), Seqno(3));
    assert_eq!(collect(&*SimDevice::from_image(&device.image(), 1), Claims::default(), true).unwrap().1.len(), 3);
    log.flush().unwrap();
    assert_eq!(log.written(), Seqno(4));
}

#[test]
fn a_lost_stream_ends_the_log_at_its_first_missing_record() {
    let (device, log) = fresh(2);
    for seqno in 1..=6 {
        put_as(&log, usize::from(seqno == 3 || seqno > 4), seqno, false);
    }
    let kept = snapshot(&*device);
    let half = MemDevice::new();
    kept.iter().filter(|(name, _)| name.starts_with("wal-0000")).for_each(|(name, bytes)| create(&*half, name, bytes));
    let (report, found) = collect(&*half, Claims::default(), true).unwrap();
    assert_eq!((report.last, found), (Seqno(2), batches(1..=2, 100)));
    // Records beyond the end of the log stay void when their seqnos are assigned again.
    let (log, _) = reopen(&half, Claims::default(), SMALL).unwrap();
    put_as(&log, 1, 3, false);
    drop(log);
    let (report, _) = collect(&*half, Claims::default(), true).unwrap();
    assert_eq!(report.last, Seqno(3), "no 4 of an earlier epoch");
}

#[test]
fn segments_of_streams_of_earlier_epochs_are_discarded() {
    let (device, log) = fresh(3);
    (1..=3).for_each(|seqno| put_as(&log, seqno as usize, seqno, false));
    log.sync(Seqno(3)).unwrap();
    drop(log);
    // All records are known to be durable. Otherwise the tail would be copied into one segment.
    let (log, found) =
        reopen(&device, Claims { from: Seqno(0), durable: Seqno(3), ..Claims::default() }, SMALL).unwrap();
    assert_eq!((found.len(), device.list().unwrap().len()), (3, 3));
    put_as(&log, 0, 4, false);
    log.sync(Seqno(4)).unwrap();
    assert_eq!(log.discard_through(Seqno(2)).unwrap(), 2);
    assert_eq!(log.discard_through(Seqno(4)).unwrap(), 1, "the current one stays");
    drop(log);
    let claims = Claims { from: Seqno(3), durable: Seqno(4), ..Claims::default() };
    let (log, found) =
        reopen_with(&device, claims, LogOptions { segment_bytes: SMALL, streams: 2, tagged: false, mapped: true })
            .unwrap();
    assert_eq!(found, batches([4], 100));
    (5..=6).for_each(|seqno| put_as(&log, seqno as usize, seqno, false));
    assert_eq!(device.list().unwrap().len(), 3);
}

#[test]
fn a_closed_log_refuses_reservations() {
    let (device, log) = fresh(2);
    put_as(&log, 0, 1, false);
    log.trim().unwrap();
    log.close();
    for writer in [0, 1] {
        stand_for_thread(writer);
        assert!(matches!(log.reserve(1, false, UNLIMITED), Err(Error::Closed)));
    }
    assert_eq!(device.list().unwrap().len(), 1);
}

/// Five threads share three streams. All acknowledged records are replayed.
#[test]
fn threads_share_syncs_and_streams() {
    let device = MemDevice::new();
    let options = LogOptions { segment_bytes: 64 << 10, streams: 3, tagged: false, mapped: true };
    let (log, _) = reopen_with(&device, Claims::default(), options).unwrap();
    let (sequencer, appended) = (parking_lot::Mutex::new(1u64), std::sync::atomic::AtomicU64::new(0));
    let appended = &appended;
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let (log, sequencer) = (&log, &sequencer);
            scope.spawn(move || {
                for i in 0..300 {
                    let room = log.reserve(50, false, UNLIMITED).unwrap();
                    let seqno = {
                        let mut next = sequencer.lock();
                        *next += 1;
                        *next - 1
                    };
                    let due = room.append(Seqno(seqno), 1, &payload(seqno, 50), i % 5 == 2).unwrap();
                    due.map_or(Ok(()), |stream| log.write(stream, Seqno(seqno))).unwrap();
                    // Wait for the watermark.
                    while appended.load(std::sync::atomic::Ordering::SeqCst) != seqno - 1 {
                        std::thread::yield_now();
                    }
                    appended.store(seqno, std::sync::atomic::Ordering::SeqCst);
                    match (thread + i) % 7 {
                        0 | 3 => {
                            log.sync(Seqno(seqno)).unwrap();
                            assert!(log.durable() >= Seqno(seqno));
                        }
                        5 => {
                            log.write_before(Seqno(seqno)).unwrap();
                            assert!(log.written() >= Seqno(seqno));
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    log.sync(Seqno(1500)).unwrap();
    drop(log);
    let (_, found) =
        reopen(&device, Claims { from: Seqno(0), durable: Seqno(1500), ..Claims::default() }, SMALL).unwrap();
    assert_eq!(found, batches(1..=1500, 50));
}

#[test]
fn voided_records_stay_void_wherever_a_discard_stops() {
    let options = LogOptions { segment_bytes: SMALL, streams: 2, tagged: false, mapped: true };
    for stops in (0..4).flat_map(|first| (0..4).map(move |second| [first, second])) {
        let (device, log) = fresh(2);
        // Stream 1 has intact records behind a gap, because record 2 was only in the memory of the killed process.
        put_as(&log, 1, 1, false);
        log.sync(Seqno(1)).unwrap();
        put_as(&log, 0, 2, true);
        (3..=40).for_each(|seqno| put_as(&log, 1, seqno, true));
        log.write(1, Seqno(40)).unwrap();
        drop(log);
        let (log, found) = reopen_with(&device, Claims::default(), options).unwrap();
        assert_eq!(found, batches([1], 100));
        // The next epoch writes fewer records, to the other stream.
        (2..=8).for_each(|seqno| put_as(&log, 0, seqno, false));
        log.sync(Seqno(8)).unwrap();
        drop(log);
        // Later epochs write no record. The process of each such epoch has a checkpoint that covers all records, and is
        // killed while it removes covered segments.
        let covered = Claims { from: Seqno(8), durable: Seqno(8), ..Claims::default() };
        for stop in stops {
            let (log, found) = reopen_with(&device, covered, options).unwrap();
            assert_eq!(found, [], "{stops:?}: void records reappeared");
            device.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Meta), stop)));
            let _ = log.discard_through(Seqno(8));
            device.set_fault(None);
        }
        let (log, found) = reopen_with(&device, covered, options).unwrap();
        assert_eq!(found, [], "{stops:?}: void records reappeared");
        put_as(&log, 1, 9, false);
        log.sync(Seqno(9)).unwrap();
        log.discard_through(Seqno(8)).unwrap();
        assert_eq!(device.list().unwrap().len(), 1, "only a segment of the current epoch is left");
    }
}
