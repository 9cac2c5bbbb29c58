//! Replay: what the log holds after a crash, and where it ends.
//!
//! ```text
//!   seqno  ···│ 7 │ 8 │ 9 │10 │ ╳ │12 │13 │        ╳ missing or damaged
//!             └from       └end        └ durable = 9: a torn tail, 12 and 13 are void
//!                                       durable = 11: corruption, since 11 had been acknowledged
//! ```
//!
//! 1. The records of all streams are merged by seqno ([`super::merge`]) and the contiguous ones after `from` are
//!    visited, until one is missing, or the visitor cannot use one. There the log ends.
//! 2. The rest is read to its end all the same. If anything intact claims that the log was durable past its end — a
//!    record, a later epoch's `start`, a superblock — then what is missing had been promised: that is
//!    [`Error::Corruption`], never a silent cut. Otherwise it is the torn tail of a crash and is ignored.
//! 3. The end of the prefix that no claim covers is made durable again ([`super::settle`]): a sync that failed before
//!    the crash may have marked its pages clean, so that reading them proves nothing about the disk.
//! 4. Segments that hold nothing of the log are removed.
//!
//! A segment whose header is damaged holds no records if its body is blank, since a header is durable before the first
//! record is written; else it is corruption, unless the next segment shows that all of it is at most `from`.
//!
//! Source: design §5.3, §5.5, §5.6. The streams are merged by sequence number; 002 §3.6.4 has generation numbers of memtable
//! leaves in its place, which a visitor may compare ([`super::tags`]).

use super::format::{HEADER_BYTES, RECORD_HEAD, RecordKind};
use super::merge::{Headless, Item, Merge, Place};
use super::ops::Ops;
use super::settle::{Settled, Tail, settle};
use super::tags::Tags;
use super::{SegmentInfo, segment_name};
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId};
use crate::device::Device;

/// What is known before the log is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Records through here are in the index of every keyspace; they may be missing.
    pub from: Seqno,
    /// A superblock says that the log was durable through here.
    pub durable: Seqno,
}

/// What the visitor says of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// It was applied.
    Continue,
    /// It cannot be used, since something it refers to never reached the disk: the log ends before it.
    Stop,
}

/// A record of the log.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its first seqno.
    pub first: Seqno,
    /// How many seqnos it takes, at least 1.
    pub count: u32,
    /// The epoch that wrote it.
    pub epoch: u32,
    /// The log was durable through here when it was written.
    pub durable: Seqno,
    /// What the payload is; generations are split off already, so never [`RecordKind::Tagged`].
    pub kind: RecordKind,
    /// The operations, see [`super::ops`], or a created keyspace.
    pub payload: &'a [u8],
    /// Where they were inserted, if the record says so.
    pub tags: Option<&'a Tags>,
}

impl<'a> Record<'a> {
    /// Its operations: none if it creates a keyspace.
    pub fn ops(&self) -> Ops<'a> {
        Ops::new(if self.kind == RecordKind::Created { &[] } else { self.payload })
    }
}

/// What a replay found.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// The last seqno of the log, at least [`Claims::from`]; all of it is durable (unless read only).
    pub last: Seqno,
    /// Through here the log was known to be durable before it was replayed.
    pub durable: Seqno,
    /// The highest epoch in use; 0 if there is none. [`super::Log::start`] takes the next.
    pub epoch: u32,
    /// Above every segment number in use.
    pub next_segment: u64,
    /// The segments that hold something of the log, for [`super::Log::start`].
    pub segments: Vec<SegmentInfo>,
    /// Records visited and kept.
    pub records: u64,
    /// Their bytes in the log, heads and padding included.
    pub bytes: u64,
    /// Where a torn tail begins that was ignored: file and byte offset.
    pub torn: Option<(String, u64)>,
    /// The damage to what had been durable at which a [`Mode::Salvage`] ended.
    pub cut: Option<Error>,
}

/// What a replay may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Make the end of the log durable, and remove what holds nothing of it.
    Recover,
    /// Modify nothing.
    Read,
    /// Modify nothing, and take damage to what had been durable for the end of the log instead of an error: what was
    /// visited is the contiguous prefix before it.
    Salvage,
}

/// Reads the log of `store` and hands its records after `claims.from` to `visit` in the order of their seqnos. A record
/// that only ends after `from` is visited too; the visitor skips what it has.
///
/// Reads every segment once, and those records a second time that are not known to be durable. With [`Mode::Recover`] the
/// result is durable when it returns, and nothing is modified if it fails with `Corruption`.
///
/// # Errors
/// `Corruption` where a durable record is missing or damaged (but see [`Mode::Salvage`]); what the device or the visitor
/// returned.
pub fn replay(
    device: &dyn Device,
    store: StoreId,
    claims: Claims,
    mode: Mode,
    visit: &mut dyn FnMut(&Record<'_>) -> Result<Visit>,
) -> Result<ReplayReport> {
    let read_only = mode != Mode::Recover;
    let mut merge = match Merge::open(device, store) {
        Err(e) if mode == Mode::Salvage && e.is_damage() => {
            return Ok(ReplayReport {
                last: claims.from,
                durable: claims.from,
                cut: Some(e),
                ..ReplayReport::default()
            });
        }
        opened => opened?,
    };
    // One epoch for what is settled, one for the log to come; what is written must be believed when it is read.
    if !read_only && merge.epoch() > MAX_EPOCH - 2 {
        let detail = format!("epoch {}: the log has been opened too often", merge.epoch());
        return Err(Error::Unsupported { detail });
    }
    let mut walk = Walk::new(claims, &merge);
    let cut = match walk.walk(&mut merge, claims, visit) {
        Err(e) if mode == Mode::Salvage && e.is_damage() => Some(e),
        walked => walked.map(|()| None)?,
    };
    let torn = merge.damage().filter(|place| merge.epoch_of(place.segment) == merge.epoch());
    let mut report = ReplayReport {
        last: walk.end,
        durable: claims.from.max(walk.claimed),
        epoch: merge.epoch(),
        next_segment: merge.next_segment,
        segments: Vec::new(),
        records: walk.records,
        bytes: walk.bytes,
        torn: torn.map(|place| merge.describe(Some(place))),
        cut,
    };
    let durable = report.durable;
    let mut settled = Settled::AsIs;
    if !read_only && walk.end > durable && !SeededBug::TailTrusted.is_on() {
        let tail = Tail { durable, end: walk.end };
        settled = settle(device, store, tail, report.epoch + 1, report.next_segment)?;
    }
    let void = walk.keep(&merge, claims, &settled, &mut report);
    if !read_only {
        remove(device, &void)?;
    }
    Ok(report)
}

/// Removes files; a file that comes back after a crash is void again.
fn remove(device: &dyn Device, names: &[String]) -> Result<()> {
    for name in names {
        device.remove(name).map_err(|e| Error::io("remove", name, None, &e))?;
    }
    if names.is_empty() {
        return Ok(());
    }
    device.sync_dir().map_err(|e| Error::final_io("sync", &device.path(), None, &e))
}

/// Who says that the log was durable.
#[derive(Clone, Copy, Debug)]
enum Claimant {
    Superblock,
    Header(usize),
    Record(Place),
}

/// The state of a replay.
#[derive(Debug)]
struct Walk {
    from: Seqno,
    /// The end of the prefix so far.
    end: Seqno,
    /// Whether the prefix has ended: what follows is only asked for claims.
    ended: bool,
    /// The highest durability that anything claims, and who does.
    claimed: Seqno,
    claimant: Claimant,
    /// Where the record after the prefix would stand.
    next_place: Option<Place>,
    /// The first and last seqno that each segment contributes.
    spans: Vec<Option<(Seqno, Seqno)>>,
    records: u64,
    bytes: u64,
}

impl Walk {
    fn new(claims: Claims, merge: &Merge) -> Walk {
        let mut walk = Walk {
            from: claims.from,
            end: claims.from,
            ended: false,
            claimed: claims.durable,
            claimant: Claimant::Superblock,
            next_place: None,
            spans: vec![None; merge.segments.len()],
            records: 0,
            bytes: 0,
        };
        for (index, source) in merge.segments.iter().enumerate() {
            walk.claim(source.reader.header.start, Claimant::Header(index));
        }
        walk
    }

    fn claim(&mut self, durable: Seqno, claimant: Claimant) {
        if durable > self.claimed {
            self.claimed = durable;
            self.claimant = claimant;
        }
    }

    /// Takes every record, and judges the end.
    fn walk(
        &mut self,
        merge: &mut Merge,
        claims: Claims,
        visit: &mut dyn FnMut(&Record<'_>) -> Result<Visit>,
    ) -> Result<()> {
        // It may have been what made other records void, so none of them is certain.
        let unsure = |headless: &&Headless| !headless.blank && headless.covering(claims.from).is_none();
        if let Some(headless) = merge.headless.iter().find(unsure) {
            return Err(headless.error.clone());
        }
        while let Some(item) = merge.next()? {
            self.step(merge, &item, visit)?;
        }
        self.judge(merge)
    }

    /// Takes the next record: skips it, visits it, or ends the prefix before it.
    fn step(
        &mut self,
        merge: &mut Merge,
        item: &Item,
        visit: &mut dyn FnMut(&Record<'_>) -> Result<Visit>,
    ) -> Result<()> {
        let head = *item.head();
        self.claim(head.durable, Claimant::Record(item.place()));
        if head.last() <= self.from {
            self.count(item);
            merge.accept(item);
            return Ok(());
        }
        if self.ended || (head.first > self.end.next() && !SeededBug::GapIgnored.is_on()) {
            self.ended = true;
            merge.reject(item);
            return Ok(());
        }
        let straddles = self.end == self.from && head.first <= self.from;
        if head.first <= self.end && !straddles {
            let (file, _) = merge.describe(Some(item.place()));
            let detail = format!("seqno {} once more, after {}", head.first, self.end);
            return Err(Error::corruption("log record", item.found.offset, detail).in_file(&file, 0));
        }
        let mut read = || {
            let (payload, tags) = match merge.payload(item) {
                tagged if head.kind == RecordKind::Tagged => {
                    Tags::split(tagged, head.first, head.count).map(|(ops, tags)| (ops, Some(tags)))?
                }
                ops => (ops, None),
            };
            let (first, count, durable) = (head.first, head.count, head.durable);
            let epoch = merge.epoch_of(item.segment);
            let kind = if tags.is_some() { RecordKind::Ops } else { head.kind };
            visit(&Record { first, count, epoch, durable, kind, payload, tags: tags.as_ref() })
        };
        // Whoever cannot read a record does not know where it stands.
        let visited = read().map_err(|error| {
            let (file, offset) = merge.describe(Some(item.place()));
            error.in_file(&file, offset + RECORD_HEAD as u64)
        })?;
        if visited == Visit::Stop {
            self.ended = true;
            merge.reject(item);
            return Ok(());
        }
        self.end = head.last();
        self.records += 1;
        self.bytes += head.record_bytes();
        self.count(item);
        merge.accept(item);
        Ok(())
    }

    /// Notes that the segment of `item` is needed for it.
    fn count(&mut self, item: &Item) {
        let (first, last) = (item.head().first, item.head().last());
        let span = self.spans[item.segment].get_or_insert((first, last));
        span.1 = span.1.max(last);
        self.next_place = Some(Place { segment: item.segment, offset: item.found.end() });
    }

    /// Tells a torn tail from damage to what had been durable.
    fn judge(&self, merge: &Merge) -> Result<()> {
        if self.claimed <= self.end || SeededBug::TornTailEatsTheMiddle.is_on() {
            return Ok(());
        }
        let by = match self.claimant {
            Claimant::Superblock => "a superblock".to_owned(),
            Claimant::Header(segment) => format!("the header of `{}`", merge.segments[segment].reader.name),
            Claimant::Record(place) => {
                let (file, offset) = merge.describe(Some(place));
                format!("the record in `{file}` at byte {offset}")
            }
        };
        let detail = format!(
            "seqno {} is missing or damaged, but {by} says that the log was durable through {}",
            self.end.next(),
            self.claimed
        );
        let (file, offset) = merge.describe(merge.damage().or(self.next_place));
        Err(Error::corruption("log record", offset, detail).in_file(&file, 0))
    }

    /// Fills the report's segments and the numbers that settling changed. Returns the files that hold nothing.
    fn keep(&self, merge: &Merge, claims: Claims, settled: &Settled, report: &mut ReplayReport) -> Vec<String> {
        let mut void = merge.unfinished.clone();
        let start = match settled {
            Settled::Copied { start, .. } => *start,
            Settled::AsIs => Seqno::MAX,
        };
        // A segment without a header that is kept rests on what the next one says; void records are void only
        // as long as the header is there that says so. Such headers are kept even above no record.
        let mut witnesses = Vec::new();
        for headless in &merge.headless {
            let (stream, number) = (headless.name.stream, headless.name.number);
            match headless.covering(claims.from) {
                Some((next, last)) if !headless.blank => {
                    report.segments.push(SegmentInfo { stream, number, last, bytes: headless.bytes });
                    witnesses.push(next);
                }
                _ => void.push(segment_name(stream, number)),
            }
        }
        let used =
            |span: &Option<(Seqno, Seqno)>| span.filter(|&(first, _)| first <= start).map(|(_, last)| last.min(start));
        let mut kept: Vec<Option<Seqno>> = self.spans.iter().map(used).collect();
        let mut todo: Vec<usize> = (0..kept.len()).filter(|&index| kept[index].is_some()).chain(witnesses).collect();
        while let Some(index) = todo.pop() {
            // Until something is written after its start: then a newer header says the same.
            kept[index].get_or_insert(merge.segments[index].reader.header.start.next());
            // A witness may hold void records itself. Its own are of a later epoch, so this ends.
            todo.extend(merge.voiding(index).filter(|&other| kept[other].is_none()));
        }
        for (source, last) in merge.segments.iter().zip(kept) {
            let header = source.reader.header;
            let Some(last) = last else {
                void.push(source.reader.name.clone());
                continue;
            };
            report.segments.push(SegmentInfo {
                stream: header.stream,
                number: header.number,
                last,
                bytes: source.reader.len.max(HEADER_BYTES as u64),
            });
        }
        report.segments.sort_by_key(|info| (info.stream, info.number));
        if let Settled::Copied { info, .. } = settled {
            report.epoch += 1;
            report.next_segment = info.number + 1;
            report.segments.push(*info);
        }
        void
    }
}
