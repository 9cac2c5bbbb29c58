//! Returns all records of the log in the order of their seqnos, merged from the segments of all streams.
//!
//! Steps: the segments of each stream are read one after another. The next record of the merge is taken from the stream
//! whose next record has the smallest first seqno. A record is skipped if it is above the `start` of a later epoch: it
//! was not part of the log when that epoch began, and its seqno was assigned again.
//!
//! A segment is not read if it is known without reading it that the index holds all its records
//! ([`Merge::skip_covered`]).
//!
//! Invariant: the records of a stream that are not skipped ascend by seqno; if they do not, the log is corrupt.

use std::ops::Range;

use super::format::{BLOCK, FileName, Head, Header, MAX_NUMBER, parse_name, segment_name};
use super::scan::{Found, Opened, SegmentReader, open_segment};
use crate::base::{Error, Result, SeededBug, Seqno, StoreId};
use crate::device::Device;

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The index of the segment in [`Merge::segments`].
    pub segment: usize,
    /// The byte offset in the segment.
    pub offset: u64,
}

/// A segment of the merge.
#[derive(Debug)]
pub(super) struct Source {
    pub reader: SegmentReader,
    /// Records above this seqno are void, because a later epoch began without them.
    limit: Seqno,
    /// Whether void records were found.
    voided: bool,
    /// If the segment need not be read, an upper bound of the seqnos of its records.
    pub covered: Option<Seqno>,
}

/// A segment file whose header is damaged.
#[derive(Clone, Debug)]
pub(super) struct Headless {
    pub name: FileName,
    pub error: Error,
    pub blank: bool,
    pub bytes: u64,
    /// The next segment of the same stream from which the last seqno before it is known: its index in
    /// [`Merge::segments`], and that seqno.
    pub next: Option<(usize, Seqno)>,
}

impl Headless {
    /// Whether no bound for the records of this segment is known yet, and `later` is a segment of the same stream that
    /// may give one.
    fn lacks_next(&self, later: FileName) -> bool {
        self.name.stream == later.stream && self.next.is_none()
    }

    /// The segment that proves that all records of this segment are at or below `from`, and the bound that it gives.
    /// `None` if no segment proves this.
    pub fn covering(&self, from: Seqno) -> Option<(usize, Seqno)> {
        self.next.filter(|&(_, last)| last <= from)
    }
}

/// The last seqno of the stream's records before this segment, if it is known. This seqno comes from the header or, if
/// the segment was created in advance, from the first record of the segment.
fn ends_before(device: &dyn Device, store: StoreId, name: FileName, reader: &SegmentReader) -> Result<Option<Seqno>> {
    if reader.header.after.is_some() {
        return Ok(reader.header.after);
    }
    // Use a separate reader, because the merge still has to return the record that is read here.
    let Opened::Intact(mut records) = open_segment(device, store, name)? else { return Ok(None) };
    Ok(records.next()?.map(|found| Seqno(found.head.first.0 - 1)))
}

/// A record and its position. Its payload is available from [`Merge::payload`] until the next call of [`Merge::next`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub segment: usize,
    pub stream: usize,
    pub found: Found,
}

impl Item {
    pub fn head(&self) -> &Head {
        &self.found.head
    }

    pub fn place(&self) -> Place {
        Place { segment: self.segment, offset: self.found.offset }
    }
}

#[derive(Debug)]
struct Stream {
    /// Segments that were not yet read to their end.
    rest: Range<usize>,
    head: Option<Item>,
    /// The last seqno of the records that were returned until now.
    last: Seqno,
    stale: bool,
    /// The first damage behind the last record that was accepted.
    damage: Option<Place>,
    /// The first record that was rejected.
    rejected: Option<Place>,
}

/// Every record of every stream, in the order of seqnos.
#[derive(Debug)]
pub(super) struct Merge {
    /// The segments with an intact header, sorted by stream and number.
    pub segments: Vec<Source>,
    /// The segments with a damaged header.
    pub headless: Vec<Headless>,
    /// The files of a recovery that did not finish.
    pub unfinished: Vec<String>,
    /// A number above the number of every existing segment, whether the segment is intact or damaged.
    pub next_segment: u64,
    streams: Vec<Stream>,
}

impl Merge {
    /// Opens all segments of the log and reads their headers.
    pub fn open(device: &dyn Device, store: StoreId) -> Result<Merge> {
        let mut merge = Merge {
            segments: Vec::new(),
            headless: Vec::new(),
            unfinished: Vec::new(),
            next_segment: 1,
            streams: Vec::new(),
        };
        let names = device.list().map_err(|e| Error::io("list", &device.path(), None, &e))?;
        let mut files: Vec<FileName> = Vec::new();
        for (text, name) in names.iter().filter_map(|text| Some((text, parse_name(text)?))) {
            if name.number >= MAX_NUMBER {
                return Err(Error::corruption("log segment", 0, "the segment numbers are used up").in_file(text, 0));
            }
            merge.next_segment = merge.next_segment.max(name.number + 1);
            if name.unfinished {
                merge.unfinished.push(text.clone());
            } else {
                files.push(name);
            }
        }
        files.sort_by_key(|name| (name.stream, name.number));
        for name in files {
            merge.add(device, store, name)?;
        }
        debug_assert!(merge.streams.iter().map(|stream| stream.rest.len()).sum::<usize>() == merge.segments.len());
        merge.set_limits();
        Ok(merge)
    }

    fn add(&mut self, device: &dyn Device, store: StoreId, name: FileName) -> Result<()> {
        let reader = match open_segment(device, store, name)? {
            Opened::Intact(reader) => reader,
            Opened::Damaged { error, blank, bytes } => {
                self.headless.push(Headless { name, error, blank, bytes, next: None });
                return Ok(());
            }
        };
        let index = self.segments.len();
        let before = self.segments.last().map(|source| (source.reader.header.stream, source.reader.header.number));
        debug_assert!(before.is_none_or(|before| before <= (name.stream, name.number)), "segments are added in order");
        let mut headless: Vec<&mut Headless> =
            self.headless.iter_mut().filter(|headless| headless.lacks_next(name)).collect();
        if !headless.is_empty()
            && let Some(before) = ends_before(device, store, name, &reader)?
        {
            headless.iter_mut().for_each(|headless| headless.next = Some((index, before)));
        }
        match self.streams.last_mut() {
            Some(stream) if self.segments[index - 1].reader.header.stream == name.stream => stream.rest.end = index + 1,
            _ => self.streams.push(Stream {
                rest: index..index + 1,
                head: None,
                last: Seqno(0),
                stale: true,
                damage: None,
                rejected: None,
            }),
        }
        self.segments.push(Source { reader, limit: Seqno::MAX, voided: false, covered: None });
        Ok(())
    }

    /// The limit of a segment is the smallest `start` of a later epoch.
    fn set_limits(&mut self) {
        let mut starts: Vec<(u32, Seqno)> =
            self.segments.iter().map(|s| (s.reader.header.epoch, s.reader.header.start)).collect();
        starts.sort_unstable();
        for source in &mut self.segments {
            let later = starts.partition_point(|&(epoch, _)| epoch <= source.reader.header.epoch);
            debug_assert!(starts[later..].iter().all(|&(epoch, _)| epoch > source.reader.header.epoch));
            source.limit = starts[later..].iter().map(|&(_, start)| start).min().unwrap_or(Seqno::MAX);
        }
    }

    /// Marks the segments whose records are all at or below `from`, as far as this is known without reading them, so
    /// that [`Merge::next`] does not read them. Their records are valid, because they are at or below the `start` of
    /// every later epoch. So they say nothing that the rest of the log does not say.
    ///
    /// The bound of a segment is the seqno after which the next segment of the same stream and epoch begins. It does
    /// not hold across epochs: a segment may have void records, and the next epoch begins below them.
    ///
    /// # Errors
    /// The errors of reading the first record of a segment that was created in advance.
    pub fn skip_covered(&mut self, device: &dyn Device, store: StoreId, from: Seqno) -> Result<()> {
        // The lowest known bound of the segments before this one, with the stream and the epoch for which it holds.
        let mut known: Option<((u32, u32), Seqno)> = None;
        for index in (0..self.segments.len()).rev() {
            let Source { reader, limit, .. } = &self.segments[index];
            let header = reader.header;
            let of = (header.stream, header.epoch);
            let bound = known.filter(|&(known_of, _)| known_of == of).map(|(_, bound)| bound);
            let covered = bound.filter(|&bound| bound <= from && bound <= *limit);
            // Segments before a covered one are below its bound, too. So their first records need not be read.
            let is_first = index == 0 || {
                let before = self.segments[index - 1].reader.header;
                (before.stream, before.epoch) != of
            };
            let begins = match (header.after, covered) {
                _ if is_first => None,
                (None, None) => {
                    let name = FileName { stream: header.stream, number: header.number, unfinished: false };
                    ends_before(device, store, name, reader)?
                }
                (after, covered) => after.or(covered),
            };
            known = begins.or(bound).map(|begins| (of, begins));
            self.segments[index].covered = covered;
        }
        Ok(())
    }

    /// Marks all segments as covered if a clean close of the epoch `closed` left the log, which then ends at `end`, and
    /// the index holds everything through `end`. Returns whether it has marked them. It marks none if the log has
    /// traces of a later epoch, or a segment with a damaged header, which may be of a later epoch.
    pub fn skip_all(&mut self, closed: u32, end: Seqno) -> bool {
        let fits = |header: &Header| header.epoch <= closed && header.start <= end;
        if !self.headless.is_empty() || !self.segments.iter().all(|source| fits(&source.reader.header)) {
            return false;
        }
        self.segments.iter_mut().for_each(|source| source.covered = Some(end));
        true
    }

    /// The next record; `None` after the last record.
    pub fn next(&mut self) -> Result<Option<Item>> {
        for stream in 0..self.streams.len() {
            if self.streams[stream].stale {
                self.refill(stream)?;
            }
        }
        debug_assert!(self.streams.iter().all(|stream| stream.head.is_some() || stream.rest.is_empty()));
        let next = self.streams.iter().filter_map(|stream| stream.head).min_by_key(|item| item.head().first);
        if let Some(item) = next {
            self.streams[item.stream].stale = true;
        }
        Ok(next)
    }

    /// Finds the next valid (not void) record of a stream.
    fn refill(&mut self, stream: usize) -> Result<()> {
        let state = &mut self.streams[stream];
        state.stale = false;
        state.head = None;
        while let Some(segment) = state.rest.clone().next() {
            let source = &mut self.segments[segment];
            if source.covered.is_some() {
                state.rest.start = segment + 1;
                continue;
            }
            while let Some(found) = source.reader.next()? {
                if let Some(offset) = found.damage {
                    state.damage.get_or_insert(Place { segment, offset });
                }
                if found.head.last() <= source.limit || SeededBug::VoidEpochReplayed.is_on() {
                    // Without this check, a record that follows a rejected record could become part of the log once the
                    // segment of the rejected record is removed.
                    if found.head.first <= state.last {
                        let detail = format!("seqno {} after {} in the same stream", found.head.first, state.last);
                        let error = Error::corruption("log record", found.offset, detail);
                        return Err(error.in_file(&source.reader.name, 0));
                    }
                    state.last = found.head.last();
                    state.head = Some(Item { segment, stream, found });
                    return Ok(());
                }
                source.voided = true;
            }
            if let Some(offset) = source.reader.take_damage() {
                state.damage.get_or_insert(Place { segment, offset });
            }
            state.rest.start = segment + 1;
        }
        Ok(())
    }

    /// The payload of the record that [`Merge::next`] returned most recently.
    pub fn payload(&self, item: &Item) -> &[u8] {
        debug_assert!(self.is_last_of_stream(item), "a later record has replaced the bytes of this one");
        self.segments[item.segment].reader.payload(&item.found)
    }

    /// Whether [`Merge::next`] returned `item`, and returned no later record of the same stream.
    fn is_last_of_stream(&self, item: &Item) -> bool {
        let stream = &self.streams[item.stream];
        stream.stale && stream.head.is_some_and(|head| head.place() == item.place())
    }

    /// Notes that `item`, the most recently returned record, is part of the log. This shows that no record of the same
    /// stream was lost in the damage before `item`.
    pub fn accept(&mut self, item: &Item) {
        debug_assert!(self.is_last_of_stream(item), "records are accepted in order");
        self.streams[item.stream].damage = None;
    }

    /// Notes that `item`, the most recently returned record, is not part of the log.
    pub fn reject(&mut self, item: &Item) {
        debug_assert!(self.is_last_of_stream(item), "records are rejected in order");
        self.streams[item.stream].rejected.get_or_insert(item.place());
    }

    /// The first damaged position behind the accepted records of a stream or, if there is none, the position of the
    /// first rejected record. If several streams have such a position, returns the one in the segment of the newest
    /// epoch.
    pub fn damage(&self) -> Option<Place> {
        let places = self.streams.iter().flat_map(|stream| {
            let damage = stream.damage.map(|place| (place, true));
            [damage, stream.rejected.map(|place| (place, false))]
        });
        let newest = places.flatten().max_by_key(|&(place, damaged)| (self.epoch_of(place.segment), damaged));
        newest.map(|(place, _)| place)
    }

    /// The segments whose headers make some records of `segment` void: segments of a later epoch whose `start` is the
    /// limit of `segment`.
    pub fn voiding(&self, segment: usize) -> impl Iterator<Item = usize> + '_ {
        let Source { reader, limit, voided, .. } = &self.segments[segment];
        let voids = |other: &Header| *voided && other.epoch > reader.header.epoch && other.start == *limit;
        (0..self.segments.len()).filter(move |&other| voids(&self.segments[other].reader.header))
    }

    /// The epoch of a segment.
    pub fn epoch_of(&self, segment: usize) -> u32 {
        self.segments[segment].reader.header.epoch
    }

    /// The highest epoch of all segments; 0 without segments.
    pub fn epoch(&self) -> u32 {
        self.segments.iter().map(|source| source.reader.header.epoch).max().unwrap_or(0)
    }

    /// The file name and the offset of a position. `None` stands for the start of the log.
    pub fn describe(&self, place: Option<Place>) -> (String, u64) {
        match place {
            Some(place) => (self.segments[place.segment].reader.name.clone(), place.offset),
            None => match self.segments.first() {
                Some(source) => (source.reader.name.clone(), BLOCK),
                None => (segment_name(0, self.next_segment), 0),
            },
        }
    }
}
