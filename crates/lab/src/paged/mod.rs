//! The experiments of 000 ch. 6 and 8, and one on the flush policies of 004, on the source's own structures: the trees of
//! the crate `pandodb-paged`.
//!
//! ```text
//!   Experiment ──Config──▶ experiments: for each round, tree by tree
//!                              measure::Bench: create, preload, timed segments ──▶ Row
//!                          claims of the source beside ratios of rows          ──▶ Claim
//! ```
//!
//! 1. A tree is created and preloaded with all records in scattered order.
//! 2. Each *segment* is a number of operations whose keys were drawn before the time is taken.
//! 3. Trees that are compared are measured in turns (A B A B), so that both see the same disturbances of the machine.
//!
//! Invariants: a row has the counts of pages that its segment read and wrote, and its processor time, because the machine
//! may be shared. Trees are verified after their last segment, unless they are large ([`Config::verify_up_to`]).
//!
//! Differences from the source: a few hundred thousand records instead of 200 million, two cores instead of ten, and
//! "inserts" draw their keys from the preloaded ones, as YCSB's Zipf distribution needs a fixed set of keys.

mod experiments;
mod measure;

use std::path::PathBuf;

use pandodb_paged::{BeOptions, BufferKind, FlushPolicy, TreeKind};
use serde::Serialize;

use crate::failure::Result;
use crate::workload::pick::Dist;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Inserts into a preloaded tree with data four times memory (§6.4, workload 2).
    Inserts,
    /// The five workloads, in memory (§6.3).
    Workloads,
    /// Values of ε (§6.2).
    Epsilon,
    /// The separate root beside the textbook root (§6.3).
    Roots,
    /// Latched beside optimistic coupling, workload 5 (§6.3 and §8.1).
    Coupling,
    /// Sizes of pages, values and memory (ch. 8).
    Sizes,
    /// Page buffers, by threads (§5.1.2, §6.4 and §8.5).
    Buffers,
    /// Flush policies: that of 000, and those of 004 §2.4.1 and §3.
    Flushes,
    /// Nodes that choose their ε beside trees with one ε, in phases of writes, reads and both (§8.2).
    Dynamic,
}

impl Experiment {
    /// All experiments with their names on the command line.
    pub const ALL: [(&str, Experiment); 9] = [
        ("inserts", Experiment::Inserts),
        ("workloads", Experiment::Workloads),
        ("epsilon", Experiment::Epsilon),
        ("roots", Experiment::Roots),
        ("coupling", Experiment::Coupling),
        ("sizes", Experiment::Sizes),
        ("buffers", Experiment::Buffers),
        ("flushes", Experiment::Flushes),
        ("dynamic", Experiment::Dynamic),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        let known = Experiment::ALL.iter().find(|(_, experiment)| *experiment == self);
        known.map_or("", |(name, _)| name)
    }
}

/// The sizes of an experiment.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of records.
    pub records: u64,
    /// The number of operations of a segment, over all threads.
    pub ops: u64,
    /// The numbers of threads.
    pub threads: Vec<usize>,
    /// The number of rounds. In each round, each tree of a comparison is measured once.
    pub rounds: u64,
    /// Bytes of a page.
    pub page: usize,
    /// Bytes of a value.
    pub value: usize,
    /// ε, unless the experiment varies it.
    pub epsilon: f64,
    /// The page buffer, where data does not fit into memory.
    pub buffer: BufferKind,
    /// Memory as a share of the bytes of the records, where data does not fit.
    pub memory_share: f64,
    /// Whether the file bypasses the page cache of the system.
    pub direct: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// Trees with up to this number of records are verified at the end.
    pub verify_up_to: u64,
    /// The directory of the files.
    pub directory: PathBuf,
}

/// A kind of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Workload 1: inserts into an empty tree.
    InsertsIntoEmpty,
    /// Workload 2: inserts after a prerun.
    Inserts,
    /// Workload 3: reads after a prerun.
    Reads,
    /// Workload 4: 95 % reads and 5 % inserts after a prerun.
    MostlyReads,
    /// Workload 5: half reads, half updates after a prerun.
    ReadsAndUpdates,
}

impl Mix {
    /// The five workloads of §6.3, in the source's order.
    pub const ALL: [Mix; 5] = [Mix::InsertsIntoEmpty, Mix::Inserts, Mix::Reads, Mix::MostlyReads, Mix::ReadsAndUpdates];

    /// A short name with the source's number.
    pub fn name(self) -> &'static str {
        match self {
            Mix::InsertsIntoEmpty => "1 inserts, empty",
            Mix::Inserts => "2 inserts",
            Mix::Reads => "3 reads",
            Mix::MostlyReads => "4 reads 95 %",
            Mix::ReadsAndUpdates => "5 reads, updates",
        }
    }
}

/// One timed segment.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `paged`.
    pub kind: &'static str,
    /// The experiment.
    pub experiment: &'static str,
    /// The commit of the build.
    pub commit: &'static str,
    /// The tree.
    pub tree: String,
    /// The flush policy of a Bε-tree; empty for a B+-tree.
    pub policy: &'static str,
    /// The page buffer.
    pub buffer: &'static str,
    /// The operations.
    pub mix: Mix,
    /// The distribution of the keys.
    pub dist: Dist,
    /// Bytes of a page.
    pub page: usize,
    /// Bytes of a value.
    pub value: usize,
    /// ε.
    pub epsilon: f64,
    /// Threads.
    pub threads: usize,
    /// The number of records.
    pub records: u64,
    /// Pages that fit into memory; 0 if all do.
    pub frames: u64,
    /// The round.
    pub round: u64,
    /// Operations.
    pub ops: u64,
    /// Seconds.
    pub seconds: f64,
    /// Operations per second.
    pub rate: f64,
    /// Processor time of the client threads per operation, in microseconds.
    pub cpu_us: f64,
    /// Pages that were read, per operation.
    pub reads: f64,
    /// Pages that were written, per operation.
    pub writes: f64,
    /// Batches of messages that nodes passed on to a child, per operation.
    pub flushes: f64,
    /// Messages in such a batch, on average; 0 without batches.
    pub flushed: f64,
    /// Pages of one level to which a flush passes on batches, on average; 0 without batches.
    pub width: f64,
    /// Splits of inner nodes.
    pub splits: u64,
    /// The splits among them that a policy made instead of a flush.
    pub splits_instead: u64,
    /// Nodes that got another ε.
    pub moves: u64,
    /// Levels of the tree at the end; 0 if it was not verified.
    pub height: usize,
    /// Pages of the tree.
    pub pages: u64,
    /// The most pivots of a buffered node.
    pub pivots: usize,
    /// The most messages of a buffer.
    pub slots: usize,
}

/// A claim of the source beside the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// What is compared.
    pub what: String,
    /// The section of the source.
    pub from: &'static str,
    /// What the source says.
    pub paper: &'static str,
    /// The measured ratio, or `None` without a measurement.
    pub measured: Option<f64>,
    /// The same ratio by processor time instead of elapsed time, if the claim is about rates. Other programs on the
    /// machine disturb it less, but it has no waiting time.
    pub by_cpu: Option<f64>,
}

/// The results of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The segments.
    pub rows: Vec<Row>,
    /// The claims.
    pub claims: Vec<Claim>,
}

/// Runs an experiment. `watch` is told what is measured next.
///
/// # Errors
/// The errors of the trees and of their files, and what [`pandodb_paged::Tree::verify`] finds.
pub fn run(experiment: Experiment, config: &Config, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    assert!(config.records > 0 && config.ops > 0 && config.rounds > 0, "something to measure");
    experiments::Runner::new(experiment, config, watch).run()
}

/// The trees that experiments compare.
const BTREE: TreeKind = TreeKind::BTree(pandodb_paged::Coupling::Latched);
const BETREE: TreeKind = betree(FlushPolicy::Largest);

/// A Bε-tree of 000 with another flush policy.
const fn betree(policy: FlushPolicy) -> TreeKind {
    TreeKind::BeTree(BeOptions { policy, ..BeOptions::SOURCE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &std::path::Path) -> Config {
        Config {
            records: 3_000,
            ops: 2_000,
            threads: vec![1, 2],
            rounds: 1,
            page: 1024,
            value: 24,
            epsilon: 0.5,
            buffer: BufferKind::TwoQueue,
            memory_share: 0.25,
            direct: false,
            seed: 1,
            verify_up_to: 1 << 20,
            directory: directory.to_owned(),
        }
    }

    #[test]
    fn every_experiment_measures_its_claims() {
        let dir = tempfile::tempdir().unwrap();
        for (name, experiment) in Experiment::ALL {
            let report = run(experiment, &config(dir.path()), &mut |_| ()).unwrap();
            assert!(!report.rows.is_empty() && !report.claims.is_empty(), "{name}");
            assert!(report.rows.iter().all(|row| row.rate > 0.0 && row.height >= 2), "{name}");
            let unmeasured = report.claims.iter().find(|claim| claim.measured.is_none());
            assert!(unmeasured.is_none(), "{name}: {unmeasured:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the files are removed");
    }

    #[test]
    fn data_four_times_memory_needs_fewer_reads_in_a_betree() {
        let dir = tempfile::tempdir().unwrap();
        let report = run(Experiment::Inserts, &config(dir.path()), &mut |_| ()).unwrap();
        let reads = |tree: &str| {
            let rows = report.rows.iter().filter(|row| row.tree == tree && row.dist == Dist::Uniform);
            rows.map(|row| row.reads).fold(0.0, f64::max)
        };
        assert!(reads("betree") < reads("btree"), "{:?}", report.rows);
    }

    #[test]
    fn flush_policies_load_the_same_records() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { records: 20_000, ops: 20_000, ..config(dir.path()) };
        let report = run(Experiment::Flushes, &config, &mut |_| ()).unwrap();
        assert_eq!(report.rows.len(), 12, "three policies, two distributions, two values of epsilon");
        assert!(report.rows.iter().all(|row| row.flushes > 0.0 && row.flushed >= 1.0), "{:?}", report.rows);
        let flushes = |policy: FlushPolicy| {
            let rows = report.rows.iter().filter(|row| row.policy == policy.name() && row.dist == Dist::Uniform);
            rows.map(|row| row.flushes).fold(0.0, f64::max)
        };
        assert!(flushes(FlushPolicy::Reserved) > flushes(FlushPolicy::Largest), "{:?}", report.rows);
    }
}
