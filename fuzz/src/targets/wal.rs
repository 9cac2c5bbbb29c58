//! Target: a log, which is a directory of several segments, and the replay of the log.
//!
//! Input: the durability claims, then segments with their fields and their records, then patches, each of which changes
//! a single byte. All checksums are right, unless a patch has changed a byte that they cover.
//!
//! ```text
//!   from number │ durable number │ { segment: stream, number step, epoch, start, after, count
//!                                    { record: flags, first, count, durable, payload } … } … │ { file, offset, byte } …
//! ```
//!
//! The `after` of a header is raised to the last seqno that its stream and epoch have before it, as the engine writes
//! it. A flag of the segment leaves it as the input has it, so that it may be false.
//!
//! Properties: a replay visits only records of the input. The visited records continue from the claimed seqno without a
//! gap, and the report of the replay agrees with them. After a replay in recovery mode, another replay of the log
//! visits the same records. Inspection shows every visited record. A read-only replay modifies no file. Every error
//! reports corruption and names the file, unless a segment has the format of a later version.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use pandodb::base::{Error, KeyspaceId, Kind, Seqno, StoreId};
use pandodb::device::Device;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::wal::{Claims, Mode, Record, ReplayReport, SegmentSummary, Visit, inspect, put_op, replay, segment_name};

use crate::bytes::Bytes;
use crate::repair::{self, PAGE, RecordPlace};
use crate::{Target, assert_named, mutate};

/// The target.
pub const TARGET: Target = Target { name: "wal", max_len: 1024, memory: 8 << 20, run, mutate: mutate::plain, seeds };

const STORE: StoreId = StoreId([3; 16]);

/// A visited record: first seqno, count, payload.
type Visited = (u64, u32, Vec<u8>);

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let claims = Claims { from: seqno(&mut input), durable: seqno(&mut input), closed: None };
    let stop = input.number();
    let mut image = SimImage::default();
    let mut written = Written::default();
    let segments = input.u8() % 5;
    let mut number = 0;
    for _ in 0..segments {
        number = segment(&mut input, &mut image, &mut written, number);
    }
    let names: Vec<(String, u64)> = image.files();
    while !input.is_empty() && !names.is_empty() {
        let (name, len) = &names[input.below(names.len())];
        let at = u64::from(input.u16()) % len.max(&1);
        if at < *len {
            image.write(name, at, &[input.u8()]);
        }
    }
    check(&image, claims, stop, &written);
}

/// What the input has written to the log.
#[derive(Default)]
struct Written {
    records: BTreeSet<Visited>,
    /// For each stream and epoch, the last seqno of its records.
    last: BTreeMap<(u32, u32), u64>,
    /// The `start` of each epoch.
    starts: BTreeMap<u32, u64>,
    /// Whether the log breaks a rule that the engine keeps: the epochs of a stream ascend; the segments of an epoch
    /// have the same `start`, which is not below that of an earlier epoch; the records of a stream and epoch ascend and
    /// are above this `start`; the `after` of a header is not below the records of the same stream and epoch before it.
    /// Replay relies on these rules when it skips a segment. If they are broken, the skipped records may become visible
    /// once recovery has removed the segment with the false header.
    is_false: bool,
}

impl Written {
    /// Whether two records contain the same seqno. In such a log, if the visitor stops at one record, this record may
    /// hide another record. The hidden record becomes visible once recovery has removed the first one. The engine never
    /// writes such a log.
    fn overlaps(&self) -> bool {
        let mut end = 0;
        self.records.iter().any(|(first, count, _)| {
            let overlaps = *first < end;
            end = end.max(first.saturating_add(u64::from(*count)));
            overlaps
        })
    }

    /// Notes a segment. Returns the last seqno of the records of the same stream and epoch before it.
    fn begin(&mut self, place: &RecordPlace, start: u64) -> u64 {
        let of = (place.stream, place.epoch);
        let next_stream = (place.stream + 1, 0);
        let is_late = self.last.range(of..next_stream).any(|(&other, _)| other > of);
        let declines = self.starts.iter().any(|(&epoch, &other)| match epoch.cmp(&place.epoch) {
            Ordering::Less => other > start,
            Ordering::Equal => other != start,
            Ordering::Greater => other < start,
        });
        self.is_false |= is_late || declines;
        self.starts.insert(place.epoch, start);
        *self.last.entry(of).or_default()
    }

    /// Notes a record of a segment that [`Written::begin`] has noted.
    fn add(&mut self, place: &RecordPlace, (first, count, payload): (u64, u32, &[u8])) {
        let last = self.last.entry((place.stream, place.epoch)).or_default();
        self.is_false |= first <= self.starts[&place.epoch].max(*last);
        *last = (*last).max(first.saturating_add(u64::from(count)).saturating_sub(1));
        self.records.insert((first, count, payload.to_vec()));
    }
}

/// Reads the seqno of a claim. Limits the seqno to the largest possible value, because every caller of the replay does
/// so too.
fn seqno(input: &mut Bytes<'_>) -> Seqno {
    Seqno(input.number().min(Seqno::MAX.0))
}

/// Writes a segment and returns its number.
fn segment(input: &mut Bytes<'_>, image: &mut SimImage, written: &mut Written, number: u64) -> u64 {
    let tag = input.u8();
    let stream = u32::from(tag & 1);
    let number = (number + 1 + u64::from(tag >> 1 & 3)).min(999_999_999_998);
    let epoch = match tag >> 3 & 3 {
        0 => input.number() as u32,
        small => u32::from(small),
    };
    let mut bytes = vec![0; PAGE];
    bytes[..8].copy_from_slice(b"PandoWAL");
    bytes[8..12].copy_from_slice(&(1 + 3 * u32::from(tag == 0xff)).to_le_bytes());
    bytes[12..16].copy_from_slice(&stream.to_le_bytes());
    bytes[16..32].copy_from_slice(&STORE.0);
    bytes[32..40].copy_from_slice(&number.to_le_bytes());
    bytes[40..44].copy_from_slice(&epoch.to_le_bytes());
    let place = RecordPlace { store: STORE.0, epoch, stream, number, offset: 0 };
    let (start, drawn) = (input.number(), input.number());
    let last = written.begin(&place, start);
    let after = if tag & 0x20 == 0 { drawn.max(last) } else { drawn };
    written.is_false |= after < last;
    bytes[48..56].copy_from_slice(&start.to_le_bytes());
    bytes[56..64].copy_from_slice(&after.to_le_bytes());
    repair::segment_header(&mut bytes);
    let mut next = input.number();
    for _ in 0..input.u8() % 8 {
        next = record(input, &mut bytes, place, written, next);
    }
    let tail = usize::from(input.u8());
    bytes.resize(bytes.len() + tail * 8, 0);
    let name = segment_name(stream, number) + if tag == 0xfe { ".new" } else { "" };
    image.write(&name, 0, &bytes);
    number
}

/// Appends a record. In most cases, the first seqno of the record is `next`. Returns the seqno after the record.
fn record(input: &mut Bytes<'_>, out: &mut Vec<u8>, place: RecordPlace, written: &mut Written, next: u64) -> u64 {
    let tag = input.u8();
    if tag & 1 != 0 {
        out.resize(out.len().next_multiple_of(PAGE), 0);
    }
    let first = if tag & 6 == 0 { input.number() } else { next };
    let count = if tag & 8 == 0 { 1 } else { input.number() as u32 };
    let durable = if tag & 16 == 0 { first.saturating_sub(1 + u64::from(tag >> 5)) } else { input.number() };
    let payload = input.string();
    let at = out.len();
    out.resize(at + (32 + payload.len()).next_multiple_of(8), 0);
    let record = &mut out[at..];
    record[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    record[8..12].copy_from_slice(&count.to_le_bytes());
    // Some records create a keyspace. The visitor of the replay decodes the payload; the replay does not.
    let creates = tag & 0xe8 == 0xe0;
    record[12..16].copy_from_slice(if creates { b"REC\x03" } else { b"REC\x01" });
    record[16..24].copy_from_slice(&first.to_le_bytes());
    record[24..32].copy_from_slice(&durable.to_le_bytes());
    record[32..32 + payload.len()].copy_from_slice(payload);
    repair::record(record, &RecordPlace { offset: at as u64, ..place });
    written.add(&place, (first, count, payload));
    first.wrapping_add(u64::from(count))
}

fn read(device: &dyn Device, claims: Claims, mode: Mode, stop: u64) -> (Vec<Visited>, pandodb::Result<ReplayReport>) {
    let mut visited = Vec::new();
    let report = replay(device, STORE, claims, mode, &mut |record: &Record<'_>| {
        if record.first.0 == stop {
            return Ok(Visit::Stop);
        }
        visited.push((record.first.0, record.count, record.payload.to_vec()));
        Ok(Visit::Continue)
    });
    (visited, report)
}

fn check(image: &SimImage, claims: Claims, stop: u64, written: &Written) {
    let device = SimDevice::from_image(image, 1);
    let (visited, report) = read(&*device, claims, Mode::Read, stop);
    assert_eq!(device.image().hash(), image.hash(), "a read-only replay modified the log");
    let shown: BTreeSet<(u64, u32)> = inspect(&*device, STORE)
        .expect("the directory can be listed")
        .iter()
        .flat_map(|segment| segment.records.iter().map(|record| (record.first.0, record.count)))
        .collect();
    let mut end = claims.from.0;
    for (first, count, payload) in &visited {
        assert!(written.records.contains(&(*first, *count, payload.clone())), "record {first} was never written");
        assert!(shown.contains(&(*first, *count)), "record {first} is replayed but not shown by inspection");
        assert!(*first <= end + 1 && first + u64::from(*count) - 1 > end, "record {first} after {end}");
        end = first + u64::from(*count) - 1;
    }
    let report = match report {
        Ok(report) => report,
        Err(Error::Unsupported { .. }) => return,
        Err(error) => return assert_named(&error),
    };
    assert_eq!((report.last.0, report.records), (end, visited.len() as u64));
    assert!(report.durable <= report.last && report.durable >= claims.durable.min(report.last));
    let refused = written.records.iter().any(|(first, ..)| *first == stop);
    if !(written.is_false || refused && written.overlaps()) {
        writing(image, claims, stop, &visited, &report);
    }
    assert!(device.op_count() < 2_000, "{} operations", device.op_count());
}

/// Replays the log in recovery mode. Another replay of the resulting log must visit the same records, even after a
/// power cut.
fn writing(before_image: &SimImage, claims: Claims, stop: u64, visited: &[Visited], before: &ReplayReport) {
    let device = SimDevice::from_image(before_image, 1);
    let (again, report) = read(&*device, claims, Mode::Recover, stop);
    let report = match report {
        // The largest possible epoch is in use, so no writer can open the log.
        Err(Error::Unsupported { .. }) => return,
        report => report.expect("a log that can be read"),
    };
    assert_eq!(again, visited);
    assert_eq!((report.last, report.records), (before.last, before.records));
    let claims = Claims { durable: report.durable.max(claims.durable), ..claims };
    for image in [device.image(), device.durable_image()] {
        let (after, report) = read(&*SimDevice::from_image(&image, 1), claims, Mode::Read, stop);
        let report = report.expect("a recovered log");
        let (was, is) = (summary(before_image), summary(&image));
        assert_eq!(flat(&after), flat(visited), "a recovered log replays to other records: from {was:#?} to {is:#?}");
        assert_eq!(report.last, before.last);
    }
}

/// The segments and records of the log.
fn summary(image: &SimImage) -> Vec<SegmentSummary> {
    inspect(&*SimDevice::from_image(image, 1), STORE).expect("the directory can be listed")
}

/// The records, as first seqno and payload.
fn flat(visited: &[Visited]) -> Vec<(u64, &[u8])> {
    visited.iter().map(|(first, _, payload)| (*first, payload.as_slice())).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut payload = Vec::new();
    put_op(&mut payload, KeyspaceId(1), Kind::Put, b"key", b"value");
    // This record continues the sequence and is durable up to the record before it.
    let record = |tag: u8| [&[tag, payload.len() as u8], &payload[..]].concat();
    let segment = |tag: u8, start: u8, after: u8, records: &[u8]| {
        let mut out = vec![tag, start, after, start + 1, records.len() as u8];
        records.iter().for_each(|tag| out.extend(record(*tag)));
        out.push(20);
        out
    };
    let one = [vec![0, 0, 255, 1], segment(8, 0, 0, &[2, 3, 2, 2])].concat();
    let two = [vec![0, 0, 255, 2], segment(8, 0, 0, &[2, 2]), segment(8, 0, 2, &[2, 3])].concat();
    let epochs = [vec![0, 2, 255, 2], segment(8, 0, 0, &[2, 2, 2]), segment(16, 2, 2, &[2])].concat();
    let streams = [vec![1, 0, 255, 2], segment(8, 0, 0, &[2, 2]), segment(9, 2, 2, &[2])].concat();
    let torn = [one.clone(), vec![0, 0x40, 0x10, 0xff]].concat();
    vec![one, two, epochs, streams, torn]
}
