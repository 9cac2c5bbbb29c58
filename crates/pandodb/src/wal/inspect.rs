//! A listing of a log for people and tools: every segment and every record, decoded in the same way as during replay.
//!
//! The listing modifies no file. It includes all records, even records that replay would treat as void. Damage is part
//! of the result, not an error.

use super::format::{FileName, Header, RecordKind, parse_name};
use super::scan::{Opened, SegmentReader, open_segment};
use crate::base::{Error, Result, Seqno, StoreId};
use crate::device::Device;

/// One segment file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSummary {
    /// The file's name.
    pub file: String,
    /// The stream, from the file's name.
    pub stream: u32,
    /// The segment number, from the file's name.
    pub number: u64,
    /// The length of the file in bytes; 0 if it could not be determined.
    pub bytes: u64,
    /// The epoch that wrote the segment; `None` if the header is damaged.
    pub epoch: Option<u32>,
    /// The last seqno before the epoch of the segment.
    pub start: Seqno,
    /// The records of the segment are above this seqno, if the header states this seqno.
    pub after: Option<Seqno>,
    /// The intact records of the segment, in file order.
    pub records: Vec<RecordSummary>,
    /// Offsets of bytes that are neither a record nor zeros, at most one offset for each gap between records.
    pub damage: Vec<u64>,
    /// The reason why the file could not be read, or could not be read to its end.
    pub problem: Option<String>,
}

/// One intact record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// The byte offset of the record in the file.
    pub offset: u64,
    /// The length of the payload in bytes.
    pub payload_bytes: u32,
    /// The first seqno of the record.
    pub first: Seqno,
    /// The number of seqnos that the record takes.
    pub count: u32,
    /// The log was durable through this seqno when the record was written.
    pub durable: Seqno,
    /// The kind of the record's payload.
    pub kind: RecordKind,
}

/// Lists the segments of the log of `store` by stream and number, with all readable records. The memory that the
/// listing takes is proportional to the number of records.
///
/// # Errors
/// `Io` if the directory cannot be listed.
pub fn inspect(device: &dyn Device, store: StoreId) -> Result<Vec<SegmentSummary>> {
    let files = device.list().map_err(|e| Error::io("list", &device.path(), None, &e))?;
    let named = files.into_iter().filter_map(|file| parse_name(&file).map(|name| (name, file)));
    let mut segments: Vec<SegmentSummary> = named.map(|(name, file)| summary(device, store, name, file)).collect();
    segments.sort_by_key(|segment| (segment.stream, segment.number));
    Ok(segments)
}

fn summary(device: &dyn Device, store: StoreId, name: FileName, file: String) -> SegmentSummary {
    let mut out = SegmentSummary { file, stream: name.stream, number: name.number, ..SegmentSummary::default() };
    if name.unfinished {
        out.problem = Some("left behind by a recovery that did not finish; the next one removes it".to_owned());
        return out;
    }
    match open_segment(device, store, name) {
        Ok(Opened::Intact(mut reader)) => {
            let Header { epoch, start, after, .. } = reader.header;
            (out.bytes, out.epoch, out.start, out.after) = (reader.len, Some(epoch), start, after);
            if let Err(error) = read_records(&mut reader, &mut out) {
                out.problem = Some(error.to_string());
            }
        }
        Ok(Opened::Damaged { error, blank, bytes }) => {
            out.bytes = bytes;
            let rest = if blank { "no records" } else { "the rest cannot be read without the header" };
            out.problem = Some(format!("{error} ({rest})"));
        }
        Err(error) => out.problem = Some(error.to_string()),
    }
    out
}

fn read_records(reader: &mut SegmentReader, out: &mut SegmentSummary) -> Result<()> {
    while let Some(found) = reader.next()? {
        out.damage.extend(found.damage);
        let head = found.head;
        out.records.push(RecordSummary {
            offset: found.offset,
            payload_bytes: head.length,
            first: head.first,
            count: head.count,
            durable: head.durable,
            kind: head.kind,
        });
    }
    out.damage.extend(reader.take_damage());
    Ok(())
}
