//! `inspect`: prints what stands on disk, with the engine's own decoders. Read-only; decodes what it can and says what
//! it cannot.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::base::{BlockAddr, Error, PAGE, PageNo, Result, RunId};
use crate::device::file::FileDevice;
use crate::device::{Device, File};
use crate::run::{Inner, Leaf, RunMeta, unpack};
use crate::space::data::{BLOCK_HEADER, DATA_FILE, MAX_BLOCK_PAGES};
use crate::space::{BlockKind, DataFile, Superblock};
use crate::store::{Store, StoreBuilder};
use crate::wal;

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspect {
    /// Both superblock slots.
    Superblock,
    /// The keyspaces and their roots.
    Catalog,
    /// The trunk of every keyspace.
    Trunk,
    /// One run, by its identity.
    Run(u64),
    /// The block that starts at a page of the data file.
    Block(u64),
    /// The segments and records of the log.
    Log,
}

/// Describes a part of the store in a directory, as text for people. Reads only what it shows; changes nothing.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("s");
/// pandodb::Store::open(&path)?.close()?;
/// let text = pandodb::check::inspect(&path, pandodb::check::Inspect::Superblock)?;
/// assert!(text.contains("generation"), "{text}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NotAStore`] if there is none; [`Error::Locked`] if a writer has it open and the part needs a whole opening
/// (catalogue, trunk, run); what cannot be decoded at all.
pub fn inspect(path: impl AsRef<Path>, what: Inspect) -> Result<String> {
    let path = path.as_ref();
    let device = FileDevice::open(path, false).map_err(|_| Error::NotAStore {
        path: path.display().to_string(),
        detail: "there is no such directory".into(),
    })?;
    inspect_device(Arc::new(device), what)
}

/// As [`inspect`], on any device.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_device(device: Arc<dyn Device>, what: Inspect) -> Result<String> {
    let mut out = String::new();
    let file = DataFile::open_raw(&*device, false)?;
    match what {
        Inspect::Superblock => superblocks(&*file, &mut out),
        Inspect::Block(page) => block(&file, page, &mut out)?,
        Inspect::Log => log(&*device, &*file, &mut out)?,
        Inspect::Catalog => catalog(&open(device)?, &mut out),
        Inspect::Trunk => trunk(&open(device)?, &mut out),
        Inspect::Run(id) => run(&open(device)?, id, &mut out)?,
    }
    Ok(out)
}

fn open(device: Arc<dyn Device>) -> Result<Store> {
    let path = device.path();
    StoreBuilder::new(Path::new(&path)).device(device).read_only(true).memory_budget(64 << 20).open()
}

fn superblocks(file: &dyn File, out: &mut String) {
    for (i, slot) in Superblock::read_slots(file, DATA_FILE).into_iter().enumerate() {
        match slot {
            Ok(superblock) => {
                let _ = writeln!(out, "slot {i}: {superblock:#?}");
            }
            Err(e) => {
                let _ = writeln!(out, "slot {i}: {e}");
            }
        }
    }
}

fn catalog(store: &Store, out: &mut String) {
    for keyspace in &store.engine.durable_root.lock().catalog.keyspaces {
        let operator = keyspace.operator.as_ref().map_or("none".into(), |(name, version)| format!("{name} v{version}"));
        let (id, name, index) = (keyspace.id, &keyspace.name, &keyspace.index);
        let (threshold, through, root) = (keyspace.blob_threshold, keyspace.root.through, keyspace.root.bytes.len());
        let _ = writeln!(
            out,
            "keyspace {id} `{name}` index {index} operator {operator} large values over {threshold} bytes, runs hold \
             everything through seqno {through}, root record of {root} bytes"
        );
    }
}

fn trunk(store: &Store, out: &mut String) {
    for keyspace in store.engine.keyspaces.read().values() {
        let _ = writeln!(out, "keyspace {} `{}`", keyspace.id, keyspace.name);
        keyspace.index.describe(out);
    }
}

fn run(store: &Store, id: u64, out: &mut String) -> Result<()> {
    for keyspace in store.engine.keyspaces.read().values() {
        if let Some(meta) = keyspace.index.run(RunId(id)) {
            describe_run(&meta, out);
            return Ok(());
        }
    }
    Err(Error::invalid(format!("no run {id} is reached by any keyspace; `inspect STORE trunk` lists them")))
}

fn describe_run(meta: &RunMeta, out: &mut String) {
    let _ = writeln!(out, "run {}: {} entries of {} keys", meta.id, meta.entries(), meta.keys);
    let _ = writeln!(
        out,
        "  puts {} deletes {} merges {} large values {} range tombstones {}",
        meta.puts, meta.deletes, meta.merges, meta.blob_puts, meta.range_tombstones
    );
    let _ = writeln!(out, "  seqnos {}..={}", meta.min_seqno, meta.max_seqno);
    let _ = writeln!(out, "  keys {} ..= {}", meta.first_key.escape_ascii(), meta.last_key.escape_ascii());
    let _ = writeln!(out, "  bytes on disk {}, logical {}", meta.disk_bytes(), meta.logical_bytes());
    let _ = writeln!(out, "  leaf pages {}, height {}, root page {}", meta.leaf_pages, meta.height, meta.root.page);
    let _ = writeln!(out, "  filter of {} pages from position {}", meta.filter.pages, meta.filter.first);
    for extent in &meta.extents {
        let _ = writeln!(out, "  extent: {} pages from page {}", extent.pages, extent.start);
    }
}

/// Decodes a block without knowing its owner: the checksum cannot be judged then, the structure can.
fn block(file: &Arc<dyn File>, page: u64, out: &mut String) -> Result<()> {
    let superblock = Superblock::read_slots(&**file, DATA_FILE).into_iter().find_map(Result::ok);
    let store_id = superblock.map(|superblock| superblock.store_id).unwrap_or_default();
    let data = DataFile::open(file.clone(), store_id)?;
    let head = data.read(BlockAddr { page: PageNo(page), pages: 1 })?;
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
    match kind {
        BlockKind::Leaf => leaf(&bytes, out),
        BlockKind::CompressedLeaf => {
            let mut unpacked = Vec::new();
            match unpack(&bytes, &mut unpacked) {
                Ok(()) => {
                    let _ = writeln!(out, "  {} bytes in memory", unpacked.len());
                    leaf(&unpacked, out);
                }
                Err(flaw) => {
                    let _ = writeln!(out, "  damaged: {flaw}");
                }
            }
        }
        BlockKind::Inner => match Inner::check(&bytes) {
            Ok(inner) => describe_inner(&inner, out),
            Err(flaw) => {
                let _ = writeln!(out, "  damaged: {flaw}");
            }
        },
        _ => {
            let body = &bytes[BLOCK_HEADER..(BLOCK_HEADER + 64).min(bytes.len())];
            let _ = writeln!(out, "  body starts {}", body.escape_ascii());
        }
    }
    Ok(())
}

fn leaf(bytes: &[u8], out: &mut String) {
    match Leaf::check(bytes) {
        Ok(leaf) => describe_leaf(&leaf, out),
        Err(flaw) => {
            let _ = writeln!(out, "  damaged: {flaw}");
        }
    }
}

fn describe_leaf(leaf: &Leaf<'_>, out: &mut String) {
    let mut key = Vec::new();
    for i in 0..leaf.len() {
        leaf.key(i, &mut key);
        let slot = leaf.slot(i);
        let (seqno, kind, len) = (slot.seqno, slot.kind, slot.value().len());
        let _ = writeln!(out, "  {} @{seqno} {kind:?} {len} bytes", key.escape_ascii());
    }
}

fn describe_inner(inner: &Inner<'_>, out: &mut String) {
    let mut key = Vec::new();
    for i in 0..inner.len() {
        inner.separator(i, &mut key);
        let child = inner.child(i);
        let _ =
            writeln!(out, "  from \"{}\": {} pages at position {}", key.escape_ascii(), child.pages, child.position);
    }
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
                if record.tagged { " with generations" } else { "" },
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
