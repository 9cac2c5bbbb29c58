//! Replay: reads the log after a crash and determines its end.
//!
//! ```text
//!   seqno  ···│ 7 │ 8 │ 9 │10 │ ╳ │12 │13 │        ╳ missing or damaged
//!             └from       └end        └ durable = 9: a torn tail, 12 and 13 are void
//!                                       durable = 11: corruption, since 11 was already durable
//! ```
//!
//! 1. The records of all streams are merged by seqno ([`super::merge`]). Records after `from` are visited as long as
//!    their seqnos are contiguous and the visitor accepts them. The log ends before the first record that is missing or
//!    rejected.
//! 2. The remaining records are still read. If an intact record, the `start` of a later epoch, or a superblock claims
//!    that the log was durable beyond the end that was found, a durable record is missing. Replay then returns
//!    [`Error::Corruption`] instead of cutting the log silently. If there is no such claim, the remaining records are
//!    the torn tail of a crash and are ignored.
//! 3. The last records of the log, which no durability claim covers, are made durable ([`super::settle`]). A sync that
//!    failed before the crash may have marked the pages of these records clean, so reading the pages does not prove
//!    that their bytes are on the disk.
//! 4. Segments that hold no part of the log are removed.
//!
//! A segment is not read, but kept, if the index is known to hold all its records ([`Merge::skip_covered`]). After a
//! clean close that has packed everything, no segment is read beyond its header ([`Merge::skip_all`]).
//!
//! If the header of a segment is damaged and its body is blank, the segment holds no records, because a header is
//! durable before the first record is written. If the header is damaged and the body is not blank, the log is corrupt,
//! unless a later segment shows that all records of the segment are at or below `from`.
//!
//! Invariant: with [`Mode::Recover`], all records that were visited and kept are durable when [`replay()`] returns.
//!
//! Replay merges the streams by sequence number. In contrast, 002 §3.6.4 orders records by generations of memtable
//! leaves. If records carry these generations, a visitor can check that both orders agree ([`super::tags`]).

use super::format::{HEADER_BYTES, RECORD_HEAD, RecordKind};
use super::merge::{Headless, Item, Merge, Place};
use super::ops::Ops;
use super::settle::{Settled, Tail, settle};
use super::tags::Tags;
use super::{SegmentInfo, segment_name};
use crate::base::{Error, MAX_EPOCH, Result, SeededBug, Seqno, StoreId};
use crate::device::Device;

/// Facts that are known before the log is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The indexes of all keyspaces hold all records through this seqno, so these records may be missing in the log.
    pub from: Seqno,
    /// The seqno through which the log was durable, as a superblock claims.
    pub durable: Seqno,
    /// If a clean close wrote the newest superblock, the epoch that it closed. The log of this epoch ends exactly at
    /// `durable`.
    pub closed: Option<u32>,
}

impl Claims {
    /// The epoch of a clean close after which the index holds the whole log.
    fn closed_and_covered(&self) -> Option<u32> {
        self.closed.filter(|_| self.from == self.durable)
    }
}

/// The visitor's decision about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The record was applied.
    Continue,
    /// The record cannot be used, because data to which it refers never reached the disk. The log ends before this
    /// record.
    Stop,
}

/// A record of the log.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The first seqno of the record.
    pub first: Seqno,
    /// The number of seqnos that the record takes, at least 1.
    pub count: u32,
    /// The epoch that wrote the record.
    pub epoch: u32,
    /// The log was durable through this seqno when the record was written.
    pub durable: Seqno,
    /// The kind of the payload. Never [`RecordKind::Tagged`], because replay splits the generations off.
    pub kind: RecordKind,
    /// The operations (see [`super::ops`]), or a created keyspace.
    pub payload: &'a [u8],
    /// The leaves into which the operations were inserted, if the record has tags.
    pub tags: Option<&'a Tags>,
}

impl<'a> Record<'a> {
    /// The operations of the record; empty if the record is about a keyspace ([`RecordKind::Created`],
    /// [`RecordKind::Loaded`]).
    pub fn ops(&self) -> Ops<'a> {
        let has_ops = matches!(self.kind, RecordKind::Ops | RecordKind::Tagged);
        Ops::new(if has_ops { self.payload } else { &[] })
    }
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// The last seqno of the log, at least [`Claims::from`]. The log is durable through this seqno, unless the replay
    /// was read only.
    pub last: Seqno,
    /// The log was known to be durable through this seqno before the replay.
    pub durable: Seqno,
    /// The highest epoch of the log; 0 if the log has no segments. [`super::Log::start`] gets the next epoch.
    pub epoch: u32,
    /// A number above the number of every existing segment.
    pub next_segment: u64,
    /// The segments that hold a part of the log, for [`super::Log::start`].
    pub segments: Vec<SegmentInfo>,
    /// The number of records that were visited and kept.
    pub records: u64,
    /// The bytes of these records in the log, heads and padding included.
    pub bytes: u64,
    /// The file and the byte offset at which an ignored torn tail begins; `None` if there is no torn tail.
    pub torn: Option<(String, u64)>,
    /// The damage to durable records at which a replay with [`Mode::Salvage`] stopped; `None` if there was no such
    /// damage.
    pub cut: Option<Error>,
}

/// The actions that a replay may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Make the end of the log durable, and remove segments that hold no part of the log.
    Recover,
    /// Modify no file.
    Read,
    /// Modify no file, and treat damage to durable records as the end of the log instead of an error. The visited
    /// records are the contiguous prefix before the damage.
    Salvage,
}

/// Reads the log of `store` and passes its records after `claims.from` to `visit` in the order of their seqnos. A
/// record that begins at or before `from` and ends after it is visited, too. The visitor must skip those operations of
/// the record that the index already holds.
///
/// Reads every segment once whose records the index may lack, and reads the records that are not known to be durable a
/// second time. With
/// [`Mode::Recover`], the log is durable when this function succeeds. If this function fails with `Corruption`, it has
/// modified no file.
///
/// # Errors
/// `Corruption` if a durable record is missing or damaged, except with [`Mode::Salvage`]; errors of the device and the
/// visitor.
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
    let all = claims.closed_and_covered().is_some_and(|closed| merge.skip_all(closed, claims.from));
    if !all {
        merge.skip_covered(device, store, claims.from)?;
    }
    // The copy of the tail needs one new epoch, and the log that is written after the replay needs another one. Both
    // must be epochs that a later opening accepts.
    if !read_only && merge.epoch() > MAX_EPOCH - 2 {
        let detail = format!("epoch {}: the log has been opened too often", merge.epoch());
        return Err(Error::Unsupported { detail });
    }
    let mut walk = Walk::new(claims, &merge);
    let cut = match walk.walk(&mut merge, claims, visit) {
        Err(e) if mode == Mode::Salvage && e.is_damage() => Some(e),
        walked => walked.map(|()| None)?,
    };
    assert!(walk.end >= claims.from, "replay does not end before the checkpoint");
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

/// Removes files. If a file reappears after a crash, its records are void, as before.
fn remove(device: &dyn Device, names: &[String]) -> Result<()> {
    for name in names {
        device.remove(name).map_err(|e| Error::io("remove", name, None, &e))?;
    }
    if names.is_empty() {
        return Ok(());
    }
    device.sync_dir().map_err(|e| Error::final_io("sync", &device.path(), None, &e))
}

/// The source of a durability claim.
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
    /// The last seqno of the contiguous prefix that was found so far.
    end: Seqno,
    /// Whether the prefix has ended. Records behind the end of the prefix are only checked for claims.
    ended: bool,
    /// The highest seqno of a durability claim, and the source of that claim.
    claimed: Seqno,
    claimant: Claimant,
    /// The position of the first record behind the prefix.
    next_place: Option<Place>,
    /// For each segment, the first and the last seqno of its records that are part of the log. For a segment that is
    /// not read, an upper bound of its seqnos.
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
            spans: merge.segments.iter().map(|source| source.covered.map(|bound| (bound, bound))).collect(),
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

    /// Processes every record, and checks the end of the log.
    fn walk(
        &mut self,
        merge: &mut Merge,
        claims: Claims,
        visit: &mut dyn FnMut(&Record<'_>) -> Result<Visit>,
    ) -> Result<()> {
        // The header that is damaged may have made records of other segments void, so it is unknown which records are
        // valid.
        let unsure = |headless: &&Headless| !headless.blank && headless.covering(claims.from).is_none();
        if let Some(headless) = merge.headless.iter().find(unsure) {
            return Err(headless.error.clone());
        }
        while let Some(item) = merge.next()? {
            self.step(merge, &item, visit)?;
        }
        self.judge(merge)
    }

    /// Processes the next record: skips it, visits it, or ends the prefix before it.
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
            let detail = format!("seqno {} occurs again after {}", head.first, self.end);
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
        // A decoder does not know where its record is in the log, so add the file and the offset to the error.
        let visited = read().map_err(|error| {
            let (file, offset) = merge.describe(Some(item.place()));
            error.in_file(&file, offset + RECORD_HEAD as u64)
        })?;
        if visited == Visit::Stop {
            self.ended = true;
            merge.reject(item);
            return Ok(());
        }
        assert!(head.last() > self.end, "a visited record extends the prefix");
        self.end = head.last();
        self.records += 1;
        self.bytes += head.record_bytes();
        self.count(item);
        merge.accept(item);
        Ok(())
    }

    /// Notes that the record `item` is part of the log, so that its segment is kept.
    fn count(&mut self, item: &Item) {
        let (first, last) = (item.head().first, item.head().last());
        let span = self.spans[item.segment].get_or_insert((first, last));
        debug_assert!(span.0 <= first && span.1 <= last, "the records of a segment ascend");
        span.1 = span.1.max(last);
        self.next_place = Some(Place { segment: item.segment, offset: item.found.end() });
    }

    /// Distinguishes a torn tail from damage to durable records, and returns an error for such damage.
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

    /// Fills in the segments of the report, and the numbers that have changed because the tail was made durable.
    /// Returns the names of the files that hold no part of the log.
    fn keep(&self, merge: &Merge, claims: Claims, settled: &Settled, report: &mut ReplayReport) -> Vec<String> {
        let mut void = merge.unfinished.clone();
        let start = match settled {
            Settled::Copied { start, .. } => *start,
            Settled::AsIs => Seqno::MAX,
        };
        // A kept segment with a damaged header needs a later segment that gives the bound of its records. Records are
        // void only as long as a segment exists whose header makes them void. Segments that are needed for one of these
        // purposes are the *witnesses*. They are kept even if they have no records.
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
        assert_eq!(kept.len(), merge.segments.len(), "each segment with a header has a span");
        let mut todo: Vec<usize> = (0..kept.len()).filter(|&index| kept[index].is_some()).chain(witnesses).collect();
        while let Some(index) = todo.pop() {
            // Keep the witness until a checkpoint covers the first seqno after its `start`. By then, the header of a
            // newer segment serves the same purpose.
            kept[index].get_or_insert(merge.segments[index].reader.header.start.next());
            // A witness may itself hold void records and need further witnesses. These belong to later epochs, so this
            // loop ends.
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
        let files = merge.segments.len() + merge.headless.len() + merge.unfinished.len();
        assert_eq!(report.segments.len() + void.len(), files, "each file is either kept or removed");
        report.segments.sort_by_key(|info| (info.stream, info.number));
        if let Settled::Copied { info, .. } = settled {
            assert_eq!(info.number, report.next_segment, "the copy has the next number");
            report.epoch += 1;
            report.next_segment = info.number + 1;
            report.segments.push(*info);
        }
        void
    }
}
