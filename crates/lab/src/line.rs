//! [`Line`]: all results of one workload, as one line of JSON.
//!
//! [`crate::report`] compares lines of several runs. Unknown fields are ignored and missing fields get default values,
//! so that older files stay readable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::{Figures, Mode};

/// Latencies of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyFigures {
    /// The number of operations.
    pub count: u64,
    /// The mean latency.
    pub mean_us: f64,
    /// The latency that 50 % of the operations did not exceed.
    pub p50_us: f64,
    /// The latency that 90 % of the operations did not exceed.
    pub p90_us: f64,
    /// The latency that 99 % of the operations did not exceed.
    pub p99_us: f64,
    /// The latency that 99.9 % of the operations did not exceed.
    pub p99_9_us: f64,
    /// The latency that 99.99 % of the operations did not exceed.
    pub p99_99_us: f64,
    /// The latency of the slowest operation.
    pub max_us: f64,
}

/// Values over time, one number for each bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Milliseconds of a bucket.
    pub bucket_ms: u64,
    /// The number of operations that ended in each bucket.
    pub ops: Vec<u64>,
    /// The latency of the slowest operation that ended in each bucket, in microseconds.
    pub max_us: Vec<f64>,
    /// Bytes of pending background work at the end of each bucket; empty if the engine does not report it.
    pub debt_bytes: Vec<u64>,
    /// Bytes of memory of the process at the end of each bucket.
    pub rss_bytes: Vec<u64>,
}

/// The settings of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// The number of records that were loaded before the workload or by the workload.
    pub records: u64,
    /// Bytes of a key; the greatest length if keys have several lengths.
    pub key_len: usize,
    /// Bytes of a value; the greatest length if values have several lengths.
    pub value_len: usize,
    /// The share of a value that is zeros, in percent.
    pub zeros: f64,
    /// The distribution: `uniform`, `zipf`, `latest` or `hotspot`.
    pub dist: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// The memory budget of the engine, in bytes.
    pub memory_budget: u64,
    /// The state of the caches: `cold` (reopened, page cache dropped), `warm` (after a warm-up), or `as-is`.
    pub cache: String,
    /// Operations per second that all threads together issue in an open loop; 0 for a closed loop.
    pub rate: f64,
    /// The share of sequential insertions in `load-mixed`, in percent.
    pub seq_share: f64,
    /// Whether the engine runs without background threads.
    pub deterministic: bool,
    /// The limit in bytes of the memory cgroup that contains the engine and its page cache; 0 if there is no such
    /// cgroup.
    pub memory_limit: u64,
    /// The number of customers of the hot set of `smallbank`; 0 for other workloads.
    #[serde(skip_serializing_if = "is_zero")]
    pub hot: u64,
    /// The number of warehouses of `neworder` and `payment`; 0 for other workloads.
    #[serde(skip_serializing_if = "is_zero")]
    pub warehouses: u64,
}

/// The transactions of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransactionFigures {
    /// The isolation: `serializable`, `serializable-keys` (ranges are not protected), `snapshot`, or `none` for a workload
    /// without transactions.
    pub isolation: String,
    /// The separation of concurrent transactions: `optimistic`, `locks`, `single-writer` or `none`.
    pub scheme: String,
    /// The number of committed transactions.
    pub committed: u64,
    /// The number of transactions that their procedure has rolled back.
    pub rolled_back: u64,
    /// The mean number of attempts of a transaction.
    pub attempts_mean: f64,
    /// The most attempts of a transaction.
    pub attempts_max: u64,
    /// The number of attempts that ended in a conflict.
    pub conflicts: u64,
    /// The number of times that the engine's own retry loop ended with a conflict.
    pub gave_up: u64,
}

/// The figures in one line, for printing.
impl std::fmt::Display for TransactionFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TransactionFigures { isolation, scheme, attempts_mean, attempts_max, conflicts, rolled_back, .. } = self;
        write!(f, "isolation {isolation}, {scheme}; attempts {attempts_mean:.3} mean, {attempts_max} most; ")?;
        write!(f, "{conflicts} conflicts; {rolled_back} rolled back")?;
        if self.gave_up > 0 {
            write!(f, "; {} times the engine gave up", self.gave_up)?;
        }
        Ok(())
    }
}

/// The machine of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The name of the processor.
    pub cpu: String,
    /// The number of processors that the process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The operating system and its version.
    pub system: String,
    /// The file system of the store.
    pub file_system: String,
}

/// The results of one workload on one engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// The workload.
    pub workload: String,
    /// The engine: `pando`, or a rival's name.
    pub engine: String,
    /// The index of a PandoDB keyspace; empty for a rival.
    pub index: String,
    /// The mode of the index.
    pub mode: Mode,
    /// The number of client threads.
    pub threads: usize,
    /// The reason why the workload was not run. If there is a reason, the results are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// If PandoDB got the memory that a rival really took as its budget: the name of the rival; otherwise empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub matched: String,
    /// The memory that PandoDB got in this case, in bytes; otherwise 0. `asked` has the budget of all other lines.
    #[serde(skip_serializing_if = "is_zero")]
    pub given_memory: u64,
    /// Whether a kill of the process loses acknowledged writes of the engine. If so, no ratio to this engine is
    /// computed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
    /// The number of finished operations.
    pub ops: u64,
    /// Seconds from the first operation to the last acknowledgement.
    pub seconds: f64,
    /// Operations per second until the last acknowledgement.
    pub ops_per_s: f64,
    /// Seconds from the first operation until all background work was done; 0 if the workload does not write.
    pub settled_seconds: f64,
    /// Latency of all operations. In an open loop, the latency is measured from the time when the operation was due.
    pub latency: LatencyFigures,
    /// The transactions, if the workload belongs to the transactional workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transactions: Option<TransactionFigures>,
    /// Latency by kind: `write`, `read`, `scan`.
    pub latency_by: BTreeMap<String, LatencyFigures>,
    /// The longest oversleep of an idle thread during the workload, in microseconds. This is the delay that the machine
    /// adds to latencies.
    pub control_max_us: f64,
    /// Bytes written to the device (background work included) for each byte of keys and values that the workload wrote.
    /// 0 if the workload wrote nothing.
    pub write_amplification: f64,
    /// Bytes read from the device per operation. If the engine does not count these bytes, the count comes from the
    /// operating system.
    pub read_bytes_per_op: f64,
    /// Total size of the store's files for each byte of live keys and values.
    pub space_amplification: f64,
    /// Peak memory of the process during the workload, in bytes.
    pub peak_rss_bytes: u64,
    /// The lab's own part of `peak_rss_bytes`: the resident size before the store was opened, plus the latency
    /// recorders of all client threads. The value is 0 in files of earlier versions.
    #[serde(default)]
    pub lab_bytes: u64,
    /// Seconds of CPU time per million operations. The time includes user time, system time and background work.
    pub cpu_s_per_million: f64,
    /// The operating system's counters for the process: `read_bytes`, `write_bytes`, `syscr`, `syscw`.
    pub process_io: BTreeMap<String, u64>,
    /// The engine's internal figures.
    pub inside: Figures,
    /// The number of wrong answers among the checked answers. If this number is not 0, the other results are not valid.
    pub wrong_answers: u64,
    /// The number of checked answers.
    pub checked_answers: u64,
    /// The number of entries that scans returned or keys that lookups found.
    pub found: u64,
    /// Identifies the operations: a hash of the first 10,000 operations of each thread.
    pub stream: String,
    /// Values over time.
    pub series: Series,
    /// The settings of the workload.
    pub asked: Asked,
    /// The settings of the engine.
    pub configuration: BTreeMap<String, String>,
    /// The commit that was measured.
    pub commit: String,
    /// The time of the measurement, in seconds since 1970.
    pub at: u64,
    /// The machine of the measurement.
    pub machine: Machine,
}

/// Whether a number is 0.
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Line {
    /// Peak memory of the engine, in bytes: the peak resident size of the process without the lab's own part. Pages that
    /// the engine maps from its files count; the rest of the page cache does not.
    pub fn engine_bytes(&self) -> u64 {
        self.peak_rss_bytes.saturating_sub(self.lab_bytes)
    }

    /// The memory budget of the engine, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        if self.given_memory > 0 { self.given_memory } else { self.asked.memory_budget }
    }

    /// The rate for comparisons: the number of operations divided by the time until all background work was done, or
    /// until the last acknowledgement if this was later.
    pub fn fair_ops_per_s(&self) -> f64 {
        let seconds = self.seconds.max(self.settled_seconds);
        if seconds > 0.0 { self.ops as f64 / seconds } else { 0.0 }
    }

    /// The name of the measured engine in tables: `pando-stbe`, `rocksdb`, `pando-stbe with the memory of rocksdb`.
    pub fn who(&self) -> String {
        let who = match (self.index.as_str(), self.mode) {
            ("", _) => self.engine.clone(),
            (index, Mode::Product) => format!("{}-{index}", self.engine),
            (index, Mode::Paper) => format!("{}-{index}-paper", self.engine),
        };
        if self.matched.is_empty() { who } else { format!("{who} with the memory of {}", self.matched) }
    }
}
