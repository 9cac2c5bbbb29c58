//! One tree under measurement: its creation, its preload, and timed segments.

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;

use pandodb_paged::{BufferConfig, BufferKind, FlushPolicy, Op, Sizes, Tree, TreeKind};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Config, Mix, Row};
use crate::failure::Result;
use crate::record::mix;
use crate::workload::pick::{Dist, Picker};

/// What a tree is created with, besides the experiment's [`Config`].
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The tree.
    pub tree: TreeKind,
    /// The page buffer.
    pub buffer: BufferKind,
    /// Bytes of a page.
    pub page: usize,
    /// Bytes of a value.
    pub value: usize,
    /// ε.
    pub epsilon: f64,
    /// Pages in memory.
    pub frames: usize,
}

/// A tree under measurement.
pub struct Bench<'a> {
    config: &'a Config,
    setup: Setup,
    tree: Box<dyn Tree>,
    file: PathBuf,
    segments: u64,
}

/// An operation with its key.
#[derive(Clone, Copy)]
enum Step {
    Read(u64),
    Write(u64, Op),
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // The file of an optimal buffer was never created.
        let _ = std::fs::remove_file(&self.file);
    }
}

impl<'a> Bench<'a> {
    /// Creates an empty tree. `number` makes the name of its file unique.
    pub fn create(config: &'a Config, setup: Setup, number: usize) -> Result<Bench<'a>> {
        let file = config.directory.join(format!("paged-{}-{number}", std::process::id()));
        let sizes = Sizes { page: setup.page, value: setup.value, epsilon: setup.epsilon };
        let buffer =
            BufferConfig { kind: setup.buffer, page: setup.page, frames: setup.frames.max(1), direct: config.direct };
        let tree = pandodb_paged::create(setup.tree, sizes, &buffer, &file)?;
        Ok(Bench { config, setup, tree, file, segments: 0 })
    }

    /// Inserts every record once, in scattered order.
    pub fn preload(&self) -> Result<()> {
        let value = vec![1; self.setup.value];
        // The keys are scattered, so the order of the numbers is.
        (0..self.config.records).try_for_each(|record| self.tree.upsert(mix(record), Op::Insert, &value))?;
        Ok(())
    }

    /// The operations of one thread.
    fn steps(&self, kind: Mix, dist: Dist, thread: u64, ops: u64) -> Vec<Step> {
        let seed = mix(self.config.seed ^ mix(self.segments << 16 | thread));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut picker = Picker::new(dist, self.config.records);
        (0..ops)
            .map(|i| {
                let key = mix(picker.pick(self.config.records, &mut rng));
                match kind {
                    Mix::InsertsIntoEmpty | Mix::Inserts => Step::Write(key, Op::Insert),
                    Mix::Reads => Step::Read(key),
                    Mix::MostlyReads if i % 20 == 19 => Step::Write(key, Op::Insert),
                    Mix::ReadsAndUpdates if i % 2 == 1 => Step::Write(key, Op::Update),
                    Mix::MostlyReads | Mix::ReadsAndUpdates => Step::Read(key),
                }
            })
            .collect()
    }

    /// Runs a segment.
    pub fn segment(&mut self, kind: Mix, dist: Dist, threads: usize) -> Result<Row> {
        self.segments += 1;
        let each = self.config.ops.div_ceil(threads as u64);
        let steps: Vec<Vec<Step>> = (0..threads as u64).map(|thread| self.steps(kind, dist, thread, each)).collect();
        let (before, flushes_before) = (self.tree.pages().counts(), self.tree.flushes());
        let (start, tree) = (Barrier::new(threads + 1), &*self.tree);
        let value_len = self.setup.value;
        let (seconds, results) = std::thread::scope(|scope| {
            let start = &start;
            let client = |steps| {
                scope.spawn(move || {
                    start.wait();
                    let began = processor_seconds();
                    play(tree, steps, value_len)?;
                    pandodb_paged::Result::Ok(processor_seconds() - began)
                })
            };
            let running: Vec<_> = steps.iter().map(|steps: &Vec<Step>| client(steps)).collect();
            start.wait();
            let began = Instant::now();
            let results: Vec<_> = running.into_iter().map(|thread| thread.join().expect("a client thread")).collect();
            (began.elapsed().as_secs_f64(), results)
        });
        let cpu: f64 = results.into_iter().collect::<std::result::Result<Vec<f64>, _>>()?.iter().sum();
        let done = self.tree.pages().counts().since(&before);
        let flushes = self.tree.flushes().since(&flushes_before);
        let ops = each * threads as u64;
        let layout = self.tree.layout();
        Ok(Row {
            kind: "paged",
            experiment: "",
            commit: env!("PANDO_COMMIT"),
            tree: self.setup.tree.name(),
            policy: self.setup.tree.flush_policy().map_or("", FlushPolicy::name),
            buffer: self.setup.buffer.name(),
            mix: kind,
            dist,
            page: self.setup.page,
            value: self.setup.value,
            epsilon: self.setup.epsilon,
            threads,
            records: self.config.records,
            frames: if self.setup.buffer == BufferKind::Optimal { 0 } else { self.setup.frames as u64 },
            round: 0,
            ops,
            seconds,
            rate: ops as f64 / seconds.max(1e-9),
            cpu_us: cpu * 1e6 / ops as f64,
            reads: done.reads as f64 / ops as f64,
            writes: done.writes as f64 / ops as f64,
            flushes: flushes.batches as f64 / ops as f64,
            flushed: flushes.messages as f64 / flushes.batches.max(1) as f64,
            width: flushes.batches as f64 / flushes.levels.max(1) as f64,
            splits: flushes.node_splits,
            splits_instead: flushes.splits_instead,
            moves: flushes.moves,
            height: 0,
            pages: done.pages,
            pivots: layout.first().inner.pivots_max,
            slots: layout.first().buffer.slots,
        })
    }

    /// Verifies the tree, unless it is too large. Returns its height, or 0.
    pub fn verify(&self) -> Result<usize> {
        if self.config.records > self.config.verify_up_to {
            return Ok(0);
        }
        Ok(self.tree.verify()?.height)
    }
}

/// Processor time of the calling thread in seconds.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Executes operations.
fn play(tree: &dyn Tree, steps: &[Step], value_len: usize) -> pandodb_paged::Result<()> {
    let (value, mut out) = (vec![1; value_len], Vec::with_capacity(value_len));
    for step in steps {
        match *step {
            Step::Read(key) => drop(std::hint::black_box(tree.get(key, &mut out)?)),
            Step::Write(key, op) => tree.upsert(key, op, &value)?,
        }
    }
    Ok(())
}
