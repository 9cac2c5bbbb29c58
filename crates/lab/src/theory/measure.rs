//! Measures the costs for one number of records: loads in random order and in key order, lookups and scans of a
//! reopened store.
//!
//! ```text
//!   MemDevice ◀─ CountingDevice ◀─ PandoDB, no background threads     put … settle ─▶ Load
//!       └──────── reopened, pool of a chosen size ◀─ warm-up, then get · get absent · scan ─▶ Reads, Scans
//! ```
//!
//! * The cost of a load is the I/O of the data file until all background work is done, divided by the records that have
//!   left the memtable. The log is counted separately. The greatest cost of one insert includes the I/O of every file.
//! * Lookups choose keys uniformly. Their leaves are not cached, as the bounds assume: the pool of the reopened store
//!   has room for the filters, the inner blocks and only a few leaves (`POOL_ROOM`). A warm-up with lookups of the same
//!   kind fills the pool. The lookups are measured a second time with a pool of the size that the memory budget gives.
//!   This pool may be too small for all filters and inner blocks.
//! * Scans use the pool of the lookups. For trees of pages each scan starts with an empty pool, because the inner pages
//!   of a `betree` with small nodes are a third of its data, so that a pool for all of them would hold most leaves.
//!
//! Invariant: the same configuration gives the same results, byte for byte.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use pandodb::device::counting::{Access, FileClass};
use pandodb::device::{CountingDevice, Device, MemDevice, OpenHow};
use pandodb::space::{BLOCK_HEADER, BlockKind};
use pandodb::{IndexKind, IndexOptions, IndexStats, StbeOptions};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::claims::Family;
use super::transfers::{Affine, Memory, Transfers, transfers};
use crate::engine::{Mode, Result, Setup};
use crate::pando::{Pando, PandoEngine};
use crate::record::{Shape, Space};

/// The size of the pool for cold lookups, as a multiple of the bytes of filters and inner blocks.
const POOL_ROOM: u64 = 2;
/// The minimum pool in bytes, which is half of the engine's minimum budget.
const LEAST_POOL: u64 = 512 << 10;
/// The block sizes for which transfers are counted.
pub const BLOCKS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The least bytes that a checkpoint writes.
const PAGE_BYTES: u64 = 4 << 10;
/// The minimum number of memory blocks in the model. A merge of 8 runs needs one block for each run and one block for
/// its output.
const LEAST_BLOCKS: u64 = 10;

/// The settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The index, with its options.
    pub index: IndexOptions,
    /// The smallest number of records.
    pub start: u64,
    /// The number of doublings.
    pub doublings: u32,
    /// The memory of the engine in bytes, which is also M of the model.
    pub memory_budget: usize,
    /// m, the size of a full memtable in bytes.
    pub memtable_bytes: usize,
    /// F, the maximum number of children of a trunk node.
    pub fanout: usize,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The number of lookups of each kind.
    pub lookups: u64,
    /// The scans.
    pub scans: u64,
    /// k, the number of records of a scan.
    pub scan_len: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            index: IndexKind::default().into(),
            start: 1 << 15,
            doublings: 6,
            memory_budget: 2 << 20,
            memtable_bytes: 256 << 10,
            fanout: 8,
            key_len: 24,
            value_len: 100,
            lookups: 20_000,
            scans: 200,
            scan_len: 1000,
            seed: 1,
        }
    }
}

impl Config {
    /// The numbers of records.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let start = self.start;
        (0..=self.doublings).map(move |i| start << i)
    }

    /// The memory sizes of the model, one for each block size.
    pub fn memories(&self) -> [Memory; 3] {
        BLOCKS.map(|block| Memory { block, bytes: (self.memory_budget as u64).max(LEAST_BLOCKS * block) })
    }

    /// log_F(N/m); 0 if all records fit into a memtable.
    pub fn depth(&self, logical_bytes: u64) -> f64 {
        (logical_bytes as f64 / self.memtable_bytes as f64).log(self.fanout as f64).max(0.0)
    }

    /// Whether the index is a tree of pages.
    pub fn is_tree(&self) -> bool {
        Family::of(self.index.kind()) == Some(Family::Trees)
    }

    /// Whether the results name the index with its options. The results of `stbe` do not, because its options are fixed.
    pub fn is_named(&self) -> bool {
        Family::of(self.index.kind()) != Some(Family::Stbe)
    }

    fn open(&self, device: &Arc<MemDevice>, memory_budget: usize) -> Result<PandoEngine> {
        let (memtable, fanout) = (self.memtable_bytes, self.fanout);
        let device: Arc<dyn Device> = device.clone();
        let pando = Pando::new(self.index.clone()).on(device);
        let pando =
            pando.tuned(move |builder| builder.memtable_bytes(memtable).index(StbeOptions::new().fanout(fanout)));
        let setup = Setup { memory_budget, mode: Mode::Product, deterministic: true };
        pando.open_itself(Path::new("theory"), &setup)
    }
}

/// The shape of the tree, as the engine reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// The number of levels of the trunk.
    pub levels: u32,
    /// The number of runs.
    pub runs: u64,
    /// The maximum number of runs on one path from the root to a leaf.
    pub max_runs_on_path: u64,
    /// Bytes of keys and values in runs.
    pub logical_bytes: u64,
    /// Bytes of the runs.
    pub run_bytes: u64,
    /// Bytes of filters and inner blocks, included in `run_bytes`. For a tree of pages: the bytes of the inner pages that
    /// lookups read.
    pub search_bytes: u64,
}

impl Tree {
    fn of(stats: &IndexStats) -> Tree {
        Tree {
            levels: stats.figure("levels") as u32,
            runs: stats.figure("runs"),
            max_runs_on_path: stats.figure("max_runs_on_path"),
            logical_bytes: stats.logical_bytes,
            run_bytes: stats.disk_bytes,
            search_bytes: stats.search_bytes,
        }
    }

    /// Bytes of runs for each live byte of records. The bytes of runs include bytes that are no longer needed but not
    /// yet freed.
    pub fn space(&self) -> f64 {
        share(self.run_bytes, self.logical_bytes)
    }
}

/// The cost of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The tree after the load.
    pub tree: Tree,
    /// Bytes written to the data file.
    pub written_bytes: u64,
    /// The part of `bytes_written` that checkpoints wrote.
    pub checkpoint_bytes: u64,
    /// The part of `bytes_written` that the packing of memtables wrote.
    pub packed_bytes: u64,
    /// The part of `bytes_written` that compactions wrote.
    pub compacted_bytes: u64,
    /// The number of compactions.
    pub compactions: u64,
    /// The number of flushes. A flush passes references to runs to a child.
    pub flushes: u64,
    /// The number of trunk nodes that were split.
    pub splits: u64,
    /// The number of pairs of trunk nodes that were merged.
    pub merges: u64,
    /// Bytes read from the data file.
    pub read_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Block transfers of the data file, one for each of [`BLOCKS`].
    pub transfers: [Transfers; 3],
    /// The cost of the data file's I/O in the affine model, in setups.
    pub affine: f64,
    /// The maximum number of bytes that one insert read and wrote, in all files.
    pub worst_insert_bytes: u64,
    /// The same without the bytes that checkpoints wrote. Not measured for `stbe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_job_bytes: Option<u64>,
    /// The average number of bytes that an insert read and wrote.
    pub mean_insert_bytes: f64,
}

impl Load {
    /// Bytes written to the data file for each byte of records.
    pub fn writes_per_record(&self) -> f64 {
        share(self.written_bytes, self.tree.logical_bytes)
    }

    /// Bytes written to the data file for each byte of records, without checkpoints. So only the bytes of runs count.
    pub fn run_writes_per_record(&self) -> f64 {
        share(self.packed_bytes + self.compacted_bytes, self.tree.logical_bytes)
    }

    /// s, the bytes of packed memtables for each byte of their records, including block headers, filters and inner
    /// blocks.
    pub fn packing(&self) -> f64 {
        share(self.packed_bytes, self.tree.logical_bytes)
    }

    /// b̄, the average number of bytes that a compaction writes. If there was no compaction, the size of a memtable.
    pub fn batch_bytes(&self, memtable_bytes: usize) -> f64 {
        if self.compactions == 0 { memtable_bytes as f64 } else { share(self.compacted_bytes, self.compactions) }
    }
}

/// The average cost of a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// The number of reads of the data file.
    pub reads: f64,
    /// The number of these reads that read a leaf.
    pub leaf: f64,
    /// The number of these reads that read an inner block.
    pub inner: f64,
    /// The number of these reads that read a filter.
    pub filter: f64,
    /// The number of requested blocks, whether they were cached or not.
    pub probed: f64,
    /// Block transfers for each of [`BLOCKS`]. For lookups, the engine's pool represents the model's memory. So only
    /// the misses of the pool are counted, and the model's own memory for this count is one block.
    pub transfers: [f64; 3],
    /// Cost in the affine model, in setups.
    pub affine: f64,
}

/// The average cost of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scans {
    /// Bytes read.
    pub bytes: f64,
    /// The number of reads that do not begin where an earlier read of the same scan ended.
    pub seeks: f64,
    /// Block transfers for each of [`BLOCKS`].
    pub transfers: [f64; 3],
    /// Cost in the affine model, in setups.
    pub affine: f64,
}

/// All measurements for one number of records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The index with its options. Empty for `stbe`, whose options are fixed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// N, the number of records.
    pub records: u64,
    /// The cost of a load in random order.
    pub load: Load,
    /// The cost of a load in key order.
    pub load_seq: Load,
    /// The cost of lookups of present keys, with filters and inner blocks in memory.
    pub get: Reads,
    /// The cost of lookups of absent keys.
    pub absent: Reads,
    /// The cost of lookups of present keys, with the pool of the memory budget.
    pub get_small_pool: Reads,
    /// The scans.
    pub scan: Scans,
}

/// Measures the costs for one number of records.
///
/// # Errors
/// If the engine fails or returns a wrong answer.
pub fn measure(config: &Config, records: u64) -> Result<Point> {
    let shape = Shape::new(config.key_len, config.value_len);
    let (load_seq, _) = load(config, &shape, Space::Sorted { stride: u64::MAX / records.max(1) }, records)?;
    let (mut load, device) = load(config, &shape, Space::Rows, records)?;
    let small = config.open(&device, config.memory_budget)?;
    let get_small_pool = gets(config, &shape, (&small, &device), Space::Rows, records)?;
    close(small)?;
    if config.is_tree() {
        load.tree.search_bytes = inner_bytes(config, &shape, &device, records)?;
    }
    let pool = (POOL_ROOM * load.tree.search_bytes).max(LEAST_POOL) as usize;
    let engine = config.open(&device, 2 * pool)?;
    let get = gets(config, &shape, (&engine, &device), Space::Rows, records)?;
    let absent = gets(config, &shape, (&engine, &device), Space::Absent, records)?;
    let scan_warm =
        if config.is_tree() { None } else { Some(scans(config, &shape, (Some(&engine), &device), records)?) };
    close(engine)?;
    let scan = match scan_warm {
        Some(scan) => scan,
        None => scans(config, &shape, (None, &device), records)?,
    };
    let index = if config.is_named() { config.index.to_string() } else { String::new() };
    Ok(Point { index, records, load, load_seq, get, absent, get_small_pool, scan })
}

fn close(engine: PandoEngine) -> Result<()> {
    drop(engine.keyspace);
    Ok(engine.store.close()?)
}

fn load(config: &Config, shape: &Shape, space: Space, records: u64) -> Result<(Load, Arc<MemDevice>)> {
    let device = MemDevice::new();
    let engine = config.open(&device, config.memory_budget)?;
    let moved = |device: &CountingDevice| {
        let total = device.counts().total();
        total.read_bytes + total.write_bytes
    };
    engine.device.log_accesses();
    let before = engine.device.counts();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (mut worst, mut worst_job, mut checkpointed) = (0, 0, 0);
    let first = moved(&engine.device);
    let mut last = first;
    for number in 0..records {
        shape.key(space, number, &mut key);
        shape.value(&key, number, &mut value);
        engine.keyspace.put(&key, &value)?;
        let now = moved(&engine.device);
        worst = worst.max(now - last);
        // Only inserts that move more than a page can have written a checkpoint.
        if config.is_named() && now - last >= PAGE_BYTES {
            let total = engine.store.stats()?.written.checkpoint;
            worst_job = worst_job.max((now - last).saturating_sub(total - checkpointed));
            checkpointed = total;
        }
        last = now;
    }
    let mean_insert_bytes = share(last - first, records);
    engine.store.settle()?;
    let counts = engine.device.counts();
    let accesses = data_only(engine.device.take_accesses());
    let stats = engine.store.stats()?;
    let index = &stats.keyspaces.first().ok_or("the keyspace is missing in the store's figures")?.index;
    let data = (counts[FileClass::Data], before[FileClass::Data]);
    let load = Load {
        tree: Tree::of(index),
        written_bytes: data.0.write_bytes - data.1.write_bytes,
        checkpoint_bytes: stats.written.checkpoint,
        packed_bytes: index.packed_bytes,
        compacted_bytes: index.compacted_bytes,
        compactions: index.compactions,
        flushes: index.figure("flushes"),
        splits: index.figure("splits"),
        merges: index.figure("merges"),
        read_bytes: data.0.read_bytes - data.1.read_bytes,
        log_bytes: counts[FileClass::Log].write_bytes - before[FileClass::Log].write_bytes,
        transfers: config.memories().map(|memory| transfers(&accesses, memory)),
        affine: Affine::default().cost(&accesses),
        worst_insert_bytes: worst,
        worst_job_bytes: config.is_named().then_some(worst_job),
        mean_insert_bytes,
    };
    close(engine)?;
    Ok((load, device))
}

fn data_only(mut accesses: Vec<Access>) -> Vec<Access> {
    accesses.retain(|access| access.class == FileClass::Data);
    accesses
}

/// The bytes of the inner pages of a tree of pages, by twice the lookups of a measurement. With fewer inner pages than a
/// third of these lookups, fewer than 5 % of the inner pages are missed.
fn inner_bytes(config: &Config, shape: &Shape, device: &Arc<MemDevice>, records: u64) -> Result<u64> {
    let engine = config.open(device, config.memory_budget)?;
    engine.device.log_accesses();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(config.seed);
    play(&engine, shape, Space::Rows, (records, 2 * config.lookups), &mut rng)?;
    let accesses = data_only(engine.device.take_accesses());
    close(engine)?;
    let kinds = kinds(device, &accesses)?;
    let inner = accesses.iter().zip(kinds).filter(|(_, kind)| *kind == BlockKind::TreeInner as u8);
    let pages: HashMap<u64, u64> = inner.map(|(access, _)| (access.offset, access.len)).collect();
    Ok(pages.values().sum())
}

/// Does uniform lookups, and checks the answers.
fn play(
    engine: &PandoEngine,
    shape: &Shape,
    space: Space,
    (records, lookups): (u64, u64),
    rng: &mut Xoshiro256PlusPlus,
) -> Result<()> {
    let mut key = Vec::new();
    for _ in 0..lookups {
        shape.key(space, rng.next_u64() % records, &mut key);
        let value = engine.keyspace.get(&key)?;
        let right = match (&value, space) {
            (found, Space::Absent) => found.is_none(),
            (found, _) => found.as_ref().is_some_and(|value| shape.is_value_of(&key, value)),
        };
        if !right {
            return Err("a lookup returned a wrong answer, so the costs are not valid".into());
        }
    }
    Ok(())
}

/// Measures uniform lookups. Before the measurement, the same number of lookups fills the pool.
fn gets(
    config: &Config,
    shape: &Shape,
    (engine, device): (&PandoEngine, &MemDevice),
    space: Space,
    records: u64,
) -> Result<Reads> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(config.seed);
    let sizes = (records, config.lookups);
    play(engine, shape, space, sizes, &mut rng)?;
    let before = engine.store.stats()?.probed_blocks;
    engine.device.log_accesses();
    play(engine, shape, space, sizes, &mut rng)?;
    let accesses = data_only(engine.device.take_accesses());
    let kinds = kinds(device, &accesses)?;
    let each = |n: u64| share(n, config.lookups);
    let of = |wanted: &[BlockKind]| {
        each(kinds.iter().filter(|&&found| wanted.iter().any(|&kind| kind as u8 == found)).count() as u64)
    };
    Ok(Reads {
        reads: each(accesses.len() as u64),
        leaf: of(&[BlockKind::RunLeaf, BlockKind::TreeLeaf]),
        inner: of(&[BlockKind::RunInner, BlockKind::TreeInner]),
        filter: of(&[BlockKind::RunFilter]),
        probed: each(engine.store.stats()?.probed_blocks - before),
        transfers: BLOCKS.map(|block| each(transfers(&accesses, Memory { block, bytes: block }).reads)),
        affine: Affine::default().cost(&accesses) / config.lookups.max(1) as f64,
    })
}

/// The kind of the block at the start of each access. The kind is the fifth byte of the block header.
fn kinds(device: &MemDevice, accesses: &[Access]) -> Result<Vec<u8>> {
    let data = device.open("data", OpenHow::default())?;
    let mut header = [0; BLOCK_HEADER];
    let kind = |access: &Access| {
        data.read_at(access.offset, &mut header)?;
        Ok(header[4])
    };
    accesses.iter().map(kind).collect()
}

/// Measures scans from uniformly chosen keys. The model's memory is empty at the start of each scan. Without an engine,
/// the store is opened for each scan, so that the pool is empty, too.
fn scans(
    config: &Config,
    shape: &Shape,
    (engine, device): (Option<&PandoEngine>, &Arc<MemDevice>),
    records: u64,
) -> Result<Scans> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(!config.seed);
    let (mut sum, mut key, mut done) = (Scans::default(), Vec::new(), 0u64);
    while done < config.scans {
        shape.key(Space::Rows, rng.next_u64() % records, &mut key);
        let opened = if engine.is_none() { Some(config.open(device, config.memory_budget)?) } else { None };
        let engine = engine.or(opened.as_ref()).expect("one of them is open");
        engine.device.log_accesses();
        let mut found = 0;
        for entry in engine.keyspace.range(&key[..]..).take(config.scan_len) {
            entry?;
            found += 1;
        }
        let accesses = data_only(engine.device.take_accesses());
        if let Some(opened) = opened {
            close(opened)?;
        }
        // A scan that reaches the end of the keyspace is not counted. In a keyspace of few records, such scans are
        // counted, because too many scans reach the end.
        if found < config.scan_len && records as usize > 4 * config.scan_len {
            continue;
        }
        done += 1;
        sum.bytes += accesses.iter().map(|access| access.len).sum::<u64>() as f64;
        sum.seeks += seeks(&accesses) as f64;
        sum.affine += Affine::default().cost(&accesses);
        for (sum, memory) in sum.transfers.iter_mut().zip(config.memories()) {
            *sum += transfers(&accesses, memory).reads as f64;
        }
    }
    let each = |n: f64| n / done.max(1) as f64;
    Ok(Scans {
        bytes: each(sum.bytes),
        seeks: each(sum.seeks),
        transfers: sum.transfers.map(each),
        affine: each(sum.affine),
    })
}

/// The number of accesses that do not begin where an earlier access ended.
fn seeks(accesses: &[Access]) -> usize {
    let mut ends = HashSet::new();
    accesses
        .iter()
        .filter(|access| {
            let goes_on = ends.remove(&access.offset);
            ends.insert(access.offset + access.len);
            !goes_on
        })
        .count()
}

pub(super) fn share(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_is_an_access_that_does_not_continue_an_earlier_one() {
        let read = |offset, len| Access { file: 0, class: FileClass::Data, offset, len, is_write: false };
        // Two alternating sequences of contiguous accesses need two seeks.
        assert_eq!(seeks(&[read(0, 10), read(100, 10), read(10, 20), read(110, 5), read(30, 1)]), 2);
        assert_eq!(seeks(&[read(0, 10), read(20, 10), read(0, 10)]), 3);
    }
}
