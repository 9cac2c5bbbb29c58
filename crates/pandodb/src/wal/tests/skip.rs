//! Segments that a replay does not read, and the passes of a recovery that share their reads.

use super::*;
use crate::device::counting::FileClass;
use crate::device::{CountingDevice, MemDevice};
use crate::wal::RereadDevice;

const SMALL: u64 = 64 << 10;
const HEADER: u64 = BLOCK;

fn fresh(device: &Arc<MemDevice>) -> Log {
    let options = LogOptions { segment_bytes: SMALL, ..LogOptions::default() };
    Log::start(Arc::clone(device) as _, STORE, 1, Seqno(0), 1, Vec::new(), options).unwrap()
}

/// A log of epoch 1 with records of 1 KB, all durable.
fn logged(records: u64) -> Arc<MemDevice> {
    let device = MemDevice::new();
    let log = fresh(&device);
    (1..=records).for_each(|seqno| put(&log, seqno, 1000, false).unwrap());
    log.sync(Seqno(records)).unwrap();
    log.trim().unwrap();
    device
}

/// The claims of a superblock that a clean close of epoch 1 wrote.
fn closed(from: u64, durable: u64) -> Claims {
    Claims { from: Seqno(from), durable: Seqno(durable), closed: Some(1) }
}

fn unclean(from: u64, durable: u64) -> Claims {
    Claims { closed: None, ..closed(from, durable) }
}

/// Replays the log. Returns the report, the number of visited records and the bytes that were read.
fn replayed(device: &Arc<MemDevice>, claims: Claims) -> Result<(ReplayReport, usize, u64)> {
    let counting = CountingDevice::new(Arc::clone(device) as _, |_| FileClass::Log);
    let (report, found) = collect(&*counting, claims, true)?;
    Ok((report, found.len(), counting.counts().total().read_bytes))
}

/// The lengths of the segments, in the order of their numbers.
fn lengths(device: &MemDevice) -> Vec<u64> {
    snapshot(device).into_iter().map(|(_, bytes)| bytes.len() as u64).collect()
}

#[test]
fn after_a_clean_close_only_headers_are_read() {
    let device = logged(300);
    let segments = lengths(&device).len() as u64;
    assert!(segments >= 4);
    let (report, found, read) = replayed(&device, closed(300, 300)).unwrap();
    assert_eq!((report.last, report.epoch, found, read), (Seqno(300), 1, 0, segments * HEADER));
    assert_eq!(report.segments.len() as u64, segments, "segments stay until a checkpoint of the next epoch");
    assert!(report.segments.iter().all(|info| info.last == Seqno(300)));
    // The next epoch continues after the log, and its checkpoint discards the segments that were not read.
    let (log, found) = reopen(&device, closed(300, 300), SMALL).unwrap();
    assert_eq!(found, []);
    put(&log, 301, 1000, false).unwrap();
    log.sync(Seqno(301)).unwrap();
    assert_eq!(log.discard_through(Seqno(300)).unwrap() as u64, segments);
    drop(log);
    assert_eq!(reopen(&device, unclean(300, 300), SMALL).unwrap().1, batches([301], 1000));
}

/// The newest superblock may be that of a clean close although a later epoch has written to the log: the superblock of
/// the later epoch was damaged.
#[test]
fn a_log_with_traces_of_a_later_epoch_is_read() {
    let device = logged(100);
    let (log, _) = reopen(&device, closed(100, 100), SMALL).unwrap();
    (101..=105).for_each(|seqno| put(&log, seqno, 1000, false).unwrap());
    log.sync(Seqno(105)).unwrap();
    drop(log);
    let (report, found, _) = replayed(&device, closed(100, 100)).unwrap();
    assert_eq!((report.last, found), (Seqno(105), 5));
    // The same holds if the header of the later epoch is damaged: nothing may be lost without an error.
    let last = device.list().unwrap().into_iter().max().unwrap();
    write_at(&*device, &last, 20, &[0xff]);
    assert!(replayed(&device, closed(100, 100)).unwrap_err().is_corruption());
}

#[test]
fn a_clean_close_with_a_tail_reads_the_tail() {
    let device = logged(300);
    let lengths = lengths(&device);
    let (report, found, read) = replayed(&device, closed(290, 300)).unwrap();
    assert_eq!((report.last, found), (Seqno(300), 10));
    let headers = lengths.len() as u64 * HEADER;
    assert!(read <= headers + lengths.last().unwrap(), "{read} bytes read of {lengths:?}");
    assert!(replayed(&device, closed(290, 301)).unwrap_err().is_corruption(), "a durable record is missing");
}

#[test]
fn segments_below_the_bound_of_a_later_one_are_not_read() {
    let device = logged(300);
    let lengths = lengths(&device);
    let (headers, all) = (lengths.len() as u64 * HEADER, lengths.iter().sum::<u64>());
    assert!(replayed(&device, unclean(0, 300)).unwrap().2 >= all);
    let (report, found, read) = replayed(&device, unclean(295, 300)).unwrap();
    assert_eq!((report.last, found), (Seqno(300), 5));
    assert!(read <= headers + lengths.last().unwrap(), "{read} bytes read of {lengths:?}");
    assert_eq!(report.segments.len(), lengths.len(), "they are kept until they are discarded");
    let before = &report.segments[..lengths.len() - 1];
    assert!(before.iter().all(|info| info.last <= Seqno(295)), "a checkpoint can discard them: {before:?}");
    // The bound of a segment is not above its last record.
    let starts = places(&*device);
    for info in before {
        let name = segment_name(info.stream, info.number);
        assert!(starts.iter().filter(|place| place.0 == name).all(|place| place.2 <= info.last.0));
    }
}

/// A segment with void records is read even if a later segment of its stream begins below them: whether records are void
/// decides which segments are kept.
#[test]
fn segments_of_an_earlier_epoch_are_read() {
    let device = MemDevice::new();
    let header = |number, epoch, start, after| Header { stream: 0, number, epoch, start: Seqno(start), after };
    // Record 2 was lost, so the next epoch began after 1, and its records replace 2 to 4.
    let lost = handmade(header(1, 1, 0, Some(Seqno(0))), &[(1, 1, 0), (3, 1, 0), (4, 1, 0)]);
    create(&*device, &segment_name(0, 1), &lost);
    create(&*device, &segment_name(0, 2), &handmade(header(2, 2, 1, Some(Seqno(1))), &[(2, 1, 1), (3, 1, 1)]));
    create(&*device, &segment_name(0, 3), &handmade(header(3, 2, 1, None), &[(4, 1, 1), (5, 1, 1)]));
    let covered = |from| {
        let mut merge = crate::wal::merge::Merge::open(&*device, STORE).unwrap();
        merge.skip_covered(&*device, STORE, Seqno(from)).unwrap();
        merge.segments.iter().map(|source| source.covered).collect::<Vec<_>>()
    };
    assert_eq!(covered(2), [None, None, None]);
    assert_eq!(covered(3), [None, Some(Seqno(3)), None], "the first record of a segment made ahead gives the bound");
    for from in 1..=5 {
        let (report, found) = collect(&*device, unclean(from, 0), true).unwrap();
        assert_eq!((report.last, found.len() as u64), (Seqno(5), 5 - from), "from {from}");
        assert_eq!(report.segments.len(), 3, "the segment that voids records is kept with them");
    }
}

/// A segment is read if a later epoch, in another stream, has made records of it void.
#[test]
fn segments_with_void_records_are_read() {
    let device = MemDevice::new();
    let header = |stream, number, epoch, start, after| Header { stream, number, epoch, start: Seqno(start), after };
    create(&*device, &segment_name(0, 1), &handmade(header(0, 1, 1, 0, Some(Seqno(0))), &[(1, 1, 0), (3, 1, 0)]));
    create(&*device, &segment_name(0, 2), &handmade(header(0, 2, 1, 0, Some(Seqno(3))), &[(4, 1, 0)]));
    create(&*device, &segment_name(1, 3), &handmade(header(1, 3, 2, 1, Some(Seqno(1))), &[(2, 3, 1), (5, 1, 1)]));
    let mut merge = crate::wal::merge::Merge::open(&*device, STORE).unwrap();
    merge.skip_covered(&*device, STORE, Seqno(4)).unwrap();
    assert!(merge.segments.iter().all(|source| source.covered.is_none()), "3 is above the start of epoch 2");
    let (report, found) = collect(&*device, unclean(4, 0), true).unwrap();
    assert_eq!((report.last, found.len()), (Seqno(5), 1));
}

#[test]
fn the_passes_of_a_recovery_read_the_log_once() {
    let device = logged(1000);
    let all = lengths(&device).iter().sum::<u64>();
    for (kept, most) in [(4 << 20, 0), (400 << 10, all - (200 << 10)), (0, 2 * all)] {
        let counting = CountingDevice::new(Arc::clone(&device) as _, |_| FileClass::Log);
        let passes = RereadDevice::new(Arc::clone(&counting) as _, kept);
        let first = collect(&passes, unclean(0, 1000), true).unwrap();
        let before = counting.counts().total().read_bytes;
        let second = collect(&passes, unclean(0, 1000), false).unwrap();
        assert_eq!((first.1.len(), first.1 == second.1), (1000, true));
        let again = counting.counts().total().read_bytes - before;
        assert!(again <= most, "{again} bytes read again of {all}, {kept} kept");
    }
}
