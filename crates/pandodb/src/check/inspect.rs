//! `inspect` prints the contents of a store's files with the decoders of the engine. It never writes. It decodes as
//! much as possible, and prints an error for each part that it cannot decode.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use super::glance;
use crate::base::{BlockAddr, Error, OwnerId, PAGE, PageNo, Result};
use crate::device::{Device, File, Io};
use crate::index::IndexKind;
use crate::space::data::DATA_FILE;
use crate::space::superblock::SLOTS;
use crate::space::{BLOCK_HEADER, BlockKind, DataFile, MAX_BLOCK_PAGES, Superblock};
use crate::store::open_directory;
use crate::store::roots::Roots;
use crate::wal::{self, RecordKind};

/// The part of the store to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspect {
    /// Both superblock slots.
    Superblock,
    /// The keyspaces and their roots.
    Catalog,
    /// The trunk or table of every keyspace.
    Trunk,
    /// The run with this identity.
    Run(u64),
    /// The block that starts at a page of the data file.
    Block(u64),
    /// The segments of the log and their records.
    Log,
}

/// Describes a part of the store in a directory as text. Reads only that part, changes nothing and takes no lock, so a
/// writer may run concurrently. The catalogue, the trunk and the runs are shown as of the last checkpoint.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// pandodb::Store::open(&path)?.close()?;
/// let text = pandodb::check::inspect(&path, pandodb::check::Inspect::Superblock)?;
/// assert!(text.contains("generation"), "{text}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NotAStore`] if there is no store. [`Error::Locked`] if a writer's checkpoints made all attempts to read the
/// catalogue or a trunk fail. Any other error if nothing can be decoded.
pub fn inspect(path: impl AsRef<Path>, what: Inspect) -> Result<String> {
    let device = open_directory(path.as_ref(), false, Io::default())?;
    inspect_device(Arc::new(device), what)
}

/// Like [`inspect`], but on any device.
///
/// # Errors
/// The errors of [`inspect`].
pub fn inspect_device(device: Arc<dyn Device>, what: Inspect) -> Result<String> {
    let mut out = String::new();
    let file = DataFile::open_raw(&*device, false)?;
    match what {
        Inspect::Superblock => superblocks(&*file, &mut out),
        Inspect::Block(page) => block(&file, page, &mut out)?,
        Inspect::Log => log(&*device, &*file, &mut out)?,
        Inspect::Catalog => catalog(&glance::roots(&*device)?, &mut out),
        Inspect::Trunk => trunk(&glance::roots(&*device)?, &mut out),
        Inspect::Run(id) => object(&glance::roots(&*device)?, id, &mut out)?,
    }
    Ok(out)
}

fn superblocks(file: &dyn File, out: &mut String) {
    let slots = Superblock::read_slots(file, DATA_FILE);
    assert_eq!(slots.len(), SLOTS.len(), "each slot has a place in the file");
    let newest = slots.iter().flatten().map(|superblock| superblock.generation).max();
    for (i, slot) in slots.iter().enumerate() {
        let at = SLOTS[i].offset();
        match slot {
            Ok(superblock) => {
                let current = if Some(superblock.generation) == newest { ", the current one" } else { "" };
                let _ = writeln!(out, "slot {i} at byte {at}: whole{current}");
                describe_superblock(superblock, out);
            }
            Err(e) => {
                let _ = writeln!(out, "slot {i} at byte {at}: {e}");
            }
        }
    }
}

fn describe_superblock(superblock: &Superblock, out: &mut String) {
    let hex: String = superblock.store_id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let flags = |flags: u64| if flags == 0 { "none".to_owned() } else { format!("{flags:#x}") };
    let clean = if superblock.clean { "closed cleanly: the log ends there" } else { "open, or not closed cleanly" };
    let [first, second] = superblock.catalog.0;
    let time = match superblock.checkpointed_at {
        0 => "not recorded".to_owned(),
        seconds => format!("{} UTC", civil(seconds)),
    };
    let rows = [
        ("store id", hex),
        ("generation", superblock.generation.to_string()),
        ("epoch", superblock.epoch.to_string()),
        ("state", clean.to_owned()),
        ("log durable", format!("at least through seqno {}", superblock.durable)),
        ("next run id", superblock.next_run_id.to_string()),
        (
            "catalogue",
            format!(
                "{} bytes, in {} pages from page {} and again from page {}",
                superblock.catalog_len, first.pages, first.page, second.page
            ),
        ),
        ("written with", format!("generation {}, {time}", superblock.catalog_generation)),
        (
            "features",
            format!(
                "incompatible {}, for writers {}, compatible {}",
                flags(superblock.incompatible),
                flags(superblock.read_only_compatible),
                flags(superblock.compatible)
            ),
        ),
    ];
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<12}  {value}");
    }
}

/// Converts seconds since 1970 to a date and a time of day. Source of the algorithm: Howard Hinnant, `civil_from_days`.
fn civil(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    debug_assert!(rest < 86_400 && day_of_era < 146_097, "a day of an era of 400 years");
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    debug_assert!(year_of_era < 400 && day_of_year < 366, "day {day_of_year} of year {year_of_era}");
    // In this algorithm a year begins in March, so that the leap day is the last day of its year.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    debug_assert!((1..=12).contains(&month) && (1..=31).contains(&day), "day {day} of month {month}");
    let year = era * 400 + year_of_era + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

fn catalog(roots: &Roots, out: &mut String) {
    for keyspace in &roots.catalog.keyspaces {
        let (identity, root) = (&keyspace.identity, &keyspace.root);
        let operator = identity.operator.as_ref().map_or("none".into(), |(name, version)| format!("{name} v{version}"));
        let (id, name, index) = (identity.id, &identity.name, &identity.index);
        let (threshold, through, root) = (identity.blob_threshold, root.through, root.bytes.len());
        let _ = writeln!(
            out,
            "keyspace {id} `{name}` index {index} operator {operator} large values over {threshold} bytes, runs hold \
             everything through seqno {through}, root record of {root} bytes"
        );
    }
}

fn trunk(roots: &Roots, out: &mut String) {
    assert_eq!(roots.catalog.keyspaces.len(), roots.indexes.len(), "each keyspace has an index");
    for (keyspace, index) in roots.catalog.keyspaces.iter().zip(&roots.indexes) {
        let _ = writeln!(out, "keyspace {} `{}`", keyspace.identity.id, keyspace.identity.name);
        index.inspect().describe(None, out);
    }
}

fn object(roots: &Roots, id: u64, out: &mut String) -> Result<()> {
    if roots.indexes.iter().any(|index| index.inspect().describe(Some(OwnerId(id)), out)) {
        return Ok(());
    }
    Err(Error::invalid(format!("no run {id} is reached by any keyspace; `inspect STORE trunk` lists them")))
}

/// Decodes a block whose owner is not known. Therefore the structure of the block is checked, but not its checksum,
/// which depends on the owner.
fn block(file: &Arc<dyn File>, page: u64, out: &mut String) -> Result<()> {
    let superblock = Superblock::read_slots(&**file, DATA_FILE).into_iter().find_map(Result::ok);
    let store_id = superblock.map(|superblock| superblock.store_id).unwrap_or_default();
    let data = DataFile::open(file.clone(), store_id)?;
    let head = data.read(BlockAddr { page: PageNo(page), pages: 1 })?;
    assert_eq!(head.len(), PAGE, "a read that succeeds returns all pages");
    let Some(kind) = BlockKind::from_u8(head[4]) else {
        let _ = writeln!(out, "page {page}: kind {} is no block's (a large value, a superblock, or free)", head[4]);
        return Ok(());
    };
    let pages = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let _ = writeln!(out, "page {page}: {} of {pages} pages ({} bytes)", kind.name(), u64::from(pages) * PAGE as u64);
    if pages == 0 || pages > MAX_BLOCK_PAGES {
        let _ = writeln!(out, "  the length is impossible: not the start of a block");
        return Ok(());
    }
    let bytes = data.read(BlockAddr { page: PageNo(page), pages })?;
    assert_eq!(bytes.len(), pages as usize * PAGE, "a read that succeeds returns all pages");
    if !IndexKind::all().any(|index| (index.index_type().describe_block)(kind, &bytes, out)) {
        let body = &bytes[BLOCK_HEADER..(BLOCK_HEADER + 64).min(bytes.len())];
        let _ = writeln!(out, "  body starts {}", body.escape_ascii());
    }
    Ok(())
}

fn log(device: &dyn Device, file: &dyn File, out: &mut String) -> Result<()> {
    let slots = Superblock::read_slots(file, DATA_FILE);
    let Some(superblock) = slots.into_iter().find_map(Result::ok) else {
        return Err(Error::corruption("superblock", 0, "neither slot can be read, so the log's owner is not known"));
    };
    for segment in wal::inspect(device, superblock.store_id)? {
        let epoch = segment.epoch.map_or("unknown".into(), |epoch| epoch.to_string());
        let _ = writeln!(
            out,
            "{}: {} bytes, epoch {epoch} from seqno {}, {} records",
            segment.file,
            segment.bytes,
            segment.start,
            segment.records.len()
        );
        for record in &segment.records {
            let _ = writeln!(
                out,
                "  at {}: seqno {} count {} payload {} bytes{}, log durable through {}",
                record.offset,
                record.first,
                record.count,
                record.payload_bytes,
                match record.kind {
                    RecordKind::Ops => "",
                    RecordKind::Tagged => " with generations",
                    RecordKind::Created => " of a created keyspace",
                    RecordKind::Loaded => " of a sorted load",
                },
                record.durable
            );
        }
        for damage in &segment.damage {
            let _ = writeln!(out, "  at {damage}: neither a record nor zeros");
        }
        if let Some(problem) = &segment.problem {
            let _ = writeln!(out, "  {problem}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_converted_to_calendar_dates() {
        for (seconds, text) in [
            (1, "1970-01-01 00:00:01"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (1_735_689_599, "2024-12-31 23:59:59"),
        ] {
            assert_eq!(civil(seconds), text);
        }
    }
}
