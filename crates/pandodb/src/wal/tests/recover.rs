//! Tests of replay with torn tails, damage in the middle, several epochs and several streams.

use std::sync::Arc;

use super::*;
use crate::base::MAX_EPOCH;
use crate::device::mem::MemDevice;

const SMALL: u64 = 16 << 10;

/// A device with a copy of these files.
fn restore(files: &[(String, Vec<u8>)]) -> Arc<MemDevice> {
    let device = MemDevice::new();
    for (name, bytes) in files {
        create(&*device, name, bytes);
    }
    device
}

/// A device with a log of the seqnos 1 to `last`, synced through `synced`.
fn logged(last: u64, synced: u64, len: usize) -> Arc<MemDevice> {
    let device = MemDevice::new();
    let (log, _) = reopen(&device, Claims::default(), SMALL).unwrap();
    for seqno in 1..=last {
        put(&log, seqno, len, false).unwrap();
        if seqno == synced {
            log.sync(Seqno(seqno)).unwrap();
        }
    }
    device
}

fn claims(from: u64, durable: u64) -> Claims {
    Claims { from: Seqno(from), durable: Seqno(durable), ..Claims::default() }
}

#[test]
fn a_torn_last_record_is_cut_at_every_byte() {
    let device = logged(5, 3, 40);
    let files = snapshot(&*device);
    let (name, offset, _, end) = places(&*device).pop().unwrap();
    for at in offset..end {
        let torn = restore(&files);
        write_at(&*torn, &name, at, &vec![0; (end - at) as usize]);
        let (report, found) = collect(&*torn, claims(0, 3), false).unwrap();
        assert_eq!(found, batches(1..=4, 40), "zeros from byte {at} on");
        assert_eq!(report.last, Seqno(4));

        let torn = restore(&files);
        write_at(&*torn, &name, at, &[!read_all(&*torn, &name)[at as usize]]);
        let (report, found) = collect(&*torn, claims(0, 3), false).unwrap();
        assert_eq!(found, batches(1..=4, 40), "byte {at} turned over");
        assert!(report.torn.is_some(), "byte {at}");
        assert_eq!(collect(&*torn, claims(0, 4), false).unwrap().1.len(), 4, "again after recovery");
        let error = collect(&*torn, claims(0, 5), true).unwrap_err();
        assert!(error.is_corruption(), "a superblock claims it: {error}");
    }
}

#[test]
fn a_file_cut_short_is_a_torn_tail() {
    let device = logged(5, 3, 40);
    let files = snapshot(&*device);
    let (name, offset, _, end) = places(&*device).pop().unwrap();
    for len in offset..end {
        let torn = restore(&files);
        torn.open(&name, OpenHow { write: true, ..OpenHow::default() }).unwrap().set_len(len).unwrap();
        assert_eq!(collect(&*torn, claims(0, 3), false).unwrap().1, batches(1..=4, 40), "cut to {len}");
    }
}

#[test]
fn damage_to_any_durable_record_is_corruption() {
    let device = logged(60, 59, 500);
    let files = snapshot(&*device);
    let places = places(&*device);
    assert!(files.len() > 2);
    for (name, offset, first, _) in &places[..59] {
        let bad = restore(&files);
        write_at(&*bad, name, offset + 40, &[0xee, 0xdd, 0xee]);
        let before = snapshot(&*bad);
        let error = collect(&*bad, claims(0, 0), false).unwrap_err();
        assert!(is_corruption_in(&error, name), "record {first}: {error}");
        assert!(matches!(error, Error::Corruption { offset: at, .. } if at == *offset), "record {first}: {error}");
        assert!(snapshot(&*bad) == before, "nothing is modified");
        let (_, found) = collect(&*bad, claims(*first, 0), true).unwrap();
        assert_eq!(found.len() as u64, 60 - first, "records that are not needed may be missing");
    }
    // No other segment contains a claim about the last segment.
    for (name, _) in &files[..files.len() - 1] {
        let bad = restore(&files);
        bad.remove(name).unwrap();
        assert!(collect(&*bad, claims(0, 0), true).unwrap_err().is_corruption());
    }
}

#[test]
fn damage_between_records_is_harmless() {
    let device = logged(3, 2, 100);
    write_at(&*device, &segment_name(0, 1), 4096 + 2 * 136 + 16, b"flip");
    let (report, found) = collect(&*device, claims(0, 0), false).unwrap();
    assert_eq!((found, report.torn), (batches(1..=3, 100), None));
}

#[test]
fn a_damaged_header_is_corruption_unless_the_segment_is_blank_or_covered() {
    let device = logged(60, 59, 500);
    let files = snapshot(&*device);
    for (i, (name, _)) in files.iter().enumerate() {
        let bad = restore(&files);
        write_at(&*bad, name, 100, &[1]);
        let error = collect(&*bad, claims(0, 0), false).unwrap_err();
        assert!(is_corruption_in(&error, name), "{error}");
        let next = inspect(&*device, STORE).unwrap().get(i + 1).and_then(|segment| segment.after).map(|after| after.0);
        if let Some(covered) = next {
            let (report, found) = collect(&*bad, claims(covered, 0), false).unwrap();
            assert_eq!(found.len() as u64, 60 - covered);
            assert!(bad.list().unwrap().contains(name), "kept for the caller to discard");
            assert!(report.segments.iter().any(|s| segment_name(0, s.number) == *name && s.last.0 == covered));
        }
    }
    // The next segment was being created when the power failed.
    for header in [vec![], vec![0; 100], vec![0x5a; 4096], vec![0; 65536]] {
        let device = restore(&files);
        let name = segment_name(0, files.len() as u64 + 1);
        create(&*device, &name, &header);
        let (report, found) = collect(&*device, claims(0, 0), false).unwrap();
        assert_eq!(found.len(), 60);
        assert!(!device.list().unwrap().contains(&name) && report.next_segment > files.len() as u64 + 1);
    }
}

#[test]
fn a_stale_tail_stays_void() {
    let device = logged(6, 2, 100);
    let places = places(&*device);
    let (name, offset, ..) = &places[3];
    write_at(&*device, name, *offset, &[0; 136]);
    // Seqno 4 is lost, and seqnos 5 and 6 behind it are intact.
    let (log, found) = reopen(&device, claims(0, 0), SMALL).unwrap();
    assert_eq!(found, batches(1..=3, 100));
    put(&log, 4, 70, false).unwrap();
    drop(log);
    let (log, found) = reopen(&device, claims(0, 0), SMALL).unwrap();
    assert_eq!(found[..3], batches(1..=3, 100));
    assert_eq!(found[3..], batches([4], 70), "the new 4, and no 5");
    for seqno in 5..=7 {
        put(&log, seqno, 30, false).unwrap();
    }
    log.sync(Seqno(7)).unwrap();
    drop(log);
    for _ in 0..3 {
        let (_, found) = reopen(&device, claims(0, 7), SMALL).unwrap();
        assert_eq!(found[4..], batches(5..=7, 30));
    }
}

#[test]
fn the_visitor_can_end_the_log_or_the_replay() {
    let device = logged(6, 2, 100);
    let stop_at = |seqno, claims| {
        replay(&*device, STORE, claims, Mode::Read, &mut |record| {
            Ok(if record.first == Seqno(seqno) { Visit::Stop } else { Visit::Continue })
        })
    };
    let report = stop_at(5, claims(0, 0)).unwrap();
    assert_eq!((report.last, report.records), (Seqno(4), 4));
    assert!(stop_at(2, claims(0, 0)).unwrap_err().is_corruption(), "record 3 claims that 2 was durable");
    assert!(stop_at(5, claims(0, 5)).unwrap_err().is_corruption());
    let error = replay(&*device, STORE, claims(0, 0), Mode::Read, &mut |_| Err(Error::ReadOnly)).unwrap_err();
    assert!(matches!(error, Error::ReadOnly));
}

#[test]
fn read_only_modifies_nothing() {
    let device = logged(6, 2, 100);
    create(&*device, &super::super::format::unfinished_name(0, 9), b"rest of a recovery");
    let before = snapshot(&*device);
    let (report, found) = collect(&*device, claims(0, 0), true).unwrap();
    assert_eq!((found.len(), report.next_segment), (6, 10));
    assert!(snapshot(&*device) == before);
    let (report, _) = collect(&*device, claims(0, 0), false).unwrap();
    let names: Vec<_> = report.segments.iter().map(|s| segment_name(s.stream, s.number)).collect();
    assert_eq!(device.list().unwrap(), names, "files without records were removed");
    assert_eq!(report.segments.last().unwrap().last, Seqno(6));
}

fn header(stream: u32, number: u64, epoch: u32, start: u64, after: u64) -> Header {
    Header { stream, number, epoch, start: Seqno(start), after: Some(Seqno(after)) }
}

#[test]
fn streams_are_merged_by_seqno() {
    let device = MemDevice::new();
    let a = handmade(header(0, 1, 1, 0, 0), &[(1, 2, 0), (5, 1, 2), (6, 1, 2)]);
    let b = handmade(header(1, 1, 1, 0, 0), &[(3, 2, 0), (8, 1, 4)]);
    let c = handmade(header(7, 2, 1, 0, 0), &[(7, 1, 2), (9, 3, 4)]);
    create(&*device, &segment_name(0, 1), &a);
    create(&*device, &segment_name(1, 1), &b);
    create(&*device, &segment_name(7, 2), &c);
    let firsts = |found: &[Batch]| found.iter().map(|b| b.first).collect::<Vec<_>>();
    let (report, found) = collect(&*device, claims(0, 0), true).unwrap();
    assert_eq!((firsts(&found), report.last), (vec![1, 3, 5, 6, 7, 8, 9], Seqno(11)));

    // If the second stream is missing, seqno 3 is missing, and record 9 claims that the log was durable through 4.
    let files = snapshot(&*device);
    device.remove(&segment_name(1, 1)).unwrap();
    assert!(collect(&*device, claims(0, 0), true).unwrap_err().is_corruption());
    // If the end of the second stream is missing, no claim covers seqno 8, and the records 9 to 11 are void.
    let device = restore(&files);
    write_at(&*device, &segment_name(1, 1), b.len() as u64 - 10, &[0xff]);
    let (report, found) = collect(&*device, claims(0, 0), false).unwrap();
    assert_eq!((firsts(&found), report.last), (vec![1, 3, 5, 6, 7], Seqno(7)));
    assert_eq!(report.torn, Some((segment_name(1, 1), 4096 + 56)));
    assert_eq!(report.epoch, 2, "the tail was copied");
    let (log, _) = reopen(&device, claims(0, 0), SMALL).unwrap();
    put(&log, 8, 20, false).unwrap();
    drop(log);
    let (_, found) = reopen(&device, claims(0, 0), SMALL).unwrap();
    assert_eq!(firsts(&found), [1, 3, 5, 6, 7, 8]);
}

#[test]
fn a_later_epoch_voids_earlier_records_beyond_its_start() {
    let device = MemDevice::new();
    create(&*device, &segment_name(0, 1), &handmade(header(0, 1, 1, 0, 0), &[(1, 1, 0), (2, 1, 0), (3, 5, 0)]));
    create(&*device, &segment_name(0, 2), &handmade(header(0, 2, 3, 2, 2), &[(3, 1, 2), (4, 1, 2)]));
    let (report, found) = collect(&*device, claims(0, 0), true).unwrap();
    assert_eq!(found.iter().map(|b| (b.first, b.count)).collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!((report.epoch, report.last), (3, Seqno(4)));
    // An epoch that began after seqno 9 shows that the log reached 9.
    create(&*device, &segment_name(0, 3), &handmade(header(0, 3, 4, 9, 9), &[]));
    let error = collect(&*device, claims(0, 0), true).unwrap_err();
    assert!(is_corruption_in(&error, &segment_name(0, 2)), "{error}");
    assert_eq!(collect(&*device, claims(9, 0), true).unwrap().0.last, Seqno(9));
}

#[test]
fn hostile_segments_are_rejected() {
    // The same seqnos occur twice in one epoch.
    let device = MemDevice::new();
    create(&*device, &segment_name(0, 1), &handmade(header(0, 1, 1, 0, 0), &[(1, 3, 0), (2, 1, 0)]));
    assert!(collect(&*device, claims(0, 0), true).unwrap_err().is_corruption());
    // The file is longer than the maximum.
    let device = MemDevice::new();
    create(&*device, &segment_name(0, 1), b"");
    let file = device.open(&segment_name(0, 1), OpenHow { write: true, ..OpenHow::default() }).unwrap();
    file.set_len(super::super::format::MAX_SEGMENT + 1).unwrap();
    assert!(collect(&*device, claims(0, 0), true).unwrap_err().is_corruption());
    // The segment has the highest possible number.
    let device = MemDevice::new();
    create(&*device, "wal-0000-999999999999", b"");
    assert!(collect(&*device, claims(0, 0), true).unwrap_err().is_corruption());
    // Each of these heads claims the whole rest of the file.
    let device = MemDevice::new();
    let mut bytes = handmade(header(0, 1, 1, 0, 0), &[(1, 1, 0)]);
    for i in 0..4000u32 {
        let mut head = [0; 32];
        head[4..8].copy_from_slice(&(30 * (4000 - i)).to_le_bytes());
        head[8] = 1;
        head[12..16].copy_from_slice(b"REC\x01");
        head[16] = 2;
        bytes.extend_from_slice(&head);
    }
    create(&*device, &segment_name(0, 1), &bytes);
    assert!(collect(&*device, claims(0, 0), true).unwrap_err().is_corruption());
}

#[test]
fn any_flipped_byte_is_detected_or_harmless() {
    let device = logged(12, 6, 100);
    let (name, bytes) = snapshot(&*device).remove(0);
    for (at, byte) in bytes.iter().enumerate() {
        for mask in [1, 0x80, 0xff] {
            write_at(&*device, &name, at as u64, &[byte ^ mask]);
            match collect(&*device, claims(0, 6), true) {
                Ok((report, found)) => {
                    assert!(report.last >= Seqno(6), "byte {at}");
                    assert!(found == batches(1..=report.last.0, 100), "byte {at}");
                }
                Err(error) => assert!(is_corruption_in(&error, &name), "byte {at}: {error}"),
            }
            inspect(&*device, STORE).unwrap();
        }
        write_at(&*device, &name, at as u64, &[*byte]);
    }
}

#[test]
fn a_missing_log_is_corruption_if_it_was_durable() {
    let device = MemDevice::new();
    assert!(collect(&*device, claims(3, 4), false).unwrap_err().is_corruption());
    let (report, found) = collect(&*device, claims(4, 4), false).unwrap();
    assert_eq!((report.last, report.next_segment, found.len()), (Seqno(4), 1, 0));
}

#[test]
fn the_inspector_reports_damage() {
    let device = logged(5, 3, 40);
    let name = segment_name(0, 1);
    write_at(&*device, &name, places(&*device)[1].1, &[0xff; 8]);
    create(&*device, &segment_name(0, 2), &[7; 5000]);
    let before = snapshot(&*device);
    let segments = inspect(&*device, STORE).unwrap();
    assert_eq!(segments.len(), 2);
    assert_eq!(segments[0].records.iter().map(|r| r.first.0).collect::<Vec<_>>(), [1, 3, 4, 5]);
    assert_eq!((segments[0].epoch, segments[0].damage.len()), (Some(1), 1));
    assert!(segments[1].problem.as_ref().unwrap().contains("log segment header"));
    assert!(snapshot(&*device) == before);
}

#[test]
fn a_segment_that_bounds_a_damaged_one_is_kept() {
    let device = MemDevice::new();
    let mut damaged = handmade(header(0, 1, 1, 0, 0), &[(1, 1, 0), (2, 1, 1)]);
    damaged[20] ^= 1;
    create(&*device, &segment_name(0, 1), &damaged);
    // The second segment has no records yet. Its header only shows that the records of the first segment end at 2.
    create(&*device, &segment_name(0, 2), &handmade(header(0, 2, 1, 0, 2), &[]));
    for _ in 0..3 {
        let (report, found) = collect(&*device, claims(2, 2), false).unwrap();
        assert_eq!((report.last, found.len(), report.segments.len()), (Seqno(2), 0, 2));
    }
}

#[test]
fn a_segment_that_voids_a_record_is_kept() {
    let device = MemDevice::new();
    create(&*device, &segment_name(0, 1), &handmade(header(0, 1, 1, 0, 0), &[(1, 1, 0), (2, 1, 0)]));
    // The second epoch could not use record 2, so it began without this record. It wrote no record.
    create(&*device, &segment_name(0, 2), &handmade(header(0, 2, 2, 1, 1), &[]));
    for _ in 0..3 {
        let (log, found) = reopen(&device, claims(0, 0), SMALL).unwrap();
        assert_eq!(found.iter().map(|batch| batch.first).collect::<Vec<_>>(), [1], "record 2 stays void");
        drop(log);
    }
    let (log, _) = reopen(&device, claims(0, 0), SMALL).unwrap();
    put(&log, 2, 30, false).unwrap();
    log.sync(Seqno(2)).unwrap();
    drop(log);
    let (_, found) = reopen(&device, claims(0, 2), SMALL).unwrap();
    assert_eq!(found[1..], batches([2], 30), "the new record");
}

#[test]
fn no_epoch_is_written_that_would_be_rejected() {
    for (epoch, opens) in [(MAX_EPOCH - 2, true), (MAX_EPOCH - 1, false), (MAX_EPOCH, false)] {
        let device = MemDevice::new();
        create(&*device, &segment_name(0, 1), &handmade(header(0, 1, epoch, 0, 0), &[(1, 1, 0)]));
        let recovered = collect(&*device, claims(0, 0), false);
        assert_eq!(recovered.is_ok(), opens, "epoch {epoch}: {recovered:?}");
        assert_eq!(collect(&*device, claims(0, 0), true).unwrap().1.len(), 1, "the log is still readable");
    }
}

#[test]
fn damage_inside_a_record_is_reported_with_file_and_offset() {
    let device = logged(1, 1, 40);
    let place = &places(&*device)[0];
    let detail = "no operation has kind 9";
    let error =
        replay(&*device, STORE, claims(0, 0), Mode::Read, &mut |_| Err(Error::corruption("log operation", 3, detail)));
    let Err(Error::Corruption { file, offset, .. }) = error else { panic!("{error:?}") };
    assert_eq!((file, offset), (place.0.clone(), place.1 + 32 + 3));
}
