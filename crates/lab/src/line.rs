//! [`Line`]: everything that was measured of one workload, as one line of JSON.
//!
//! Lines of many runs are put beside each other by [`crate::report`]; unknown fields are ignored and missing ones
//! default, so that older files stay readable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::{Figures, Mode};

/// Latencies of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyFigures {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// Half took at most this.
    pub p50_us: f64,
    /// 90 % took at most this.
    pub p90_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p99_9_us: f64,
    /// 99.99 % took at most this.
    pub p99_99_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// What happened over time, one number a bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Milliseconds of a bucket.
    pub bucket_ms: u64,
    /// Operations that ended in each bucket.
    pub ops: Vec<u64>,
    /// The slowest operation that ended in each, in microseconds.
    pub max_us: Vec<f64>,
    /// Background work owed at the end of each, in bytes; empty where the engine does not say.
    pub debt_bytes: Vec<u64>,
    /// Memory of the process at the end of each, in bytes.
    pub rss_bytes: Vec<u64>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Records loaded before, or by, the workload.
    pub records: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// The share of a value that is zeros, in percent.
    pub zeros: f64,
    /// `uniform`, `zipf` or `latest`.
    pub dist: String,
    /// Where all random choices come from.
    pub seed: u64,
    /// Bytes of memory that the engine may hold.
    pub memory_budget: u64,
    /// `cold` (reopened, page cache dropped), `warm` (after a warm-up), or `as-is`.
    pub cache: String,
    /// Operations a second that were offered by all threads together; 0 for as many as it takes.
    pub rate: f64,
    /// The share of sequential insertions in `load-mixed`, in percent.
    pub seq_share: f64,
    /// No background threads.
    pub deterministic: bool,
    /// Bytes that the engine and what the system caches for it were limited to together (a memory cgroup); 0 for none.
    pub memory_limit: u64,
}

/// Where it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The processor, as the system names it.
    pub cpu: String,
    /// Processors that the process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The system and its kernel.
    pub system: String,
    /// The file system of the store.
    pub file_system: String,
}

/// One workload on one engine, measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// The workload.
    pub workload: String,
    /// The engine: `pando`, or a rival's name.
    pub engine: String,
    /// The index of a PandoDB keyspace; empty for a rival.
    pub index: String,
    /// Product or paper.
    pub mode: Mode,
    /// Client threads.
    pub threads: usize,
    /// Why there is no figure; the rest is then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What it acknowledges does not survive a kill: it stands beside the others, and no ratio is taken to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
    /// Operations done.
    pub ops: u64,
    /// From the first operation to the last acknowledgement.
    pub seconds: f64,
    /// Operations a second until the last acknowledgement.
    pub ops_per_s: f64,
    /// From the first operation until the engine owed nothing; 0 where the workload does not write.
    pub settled_seconds: f64,
    /// All operations. Of an open loop: from when each was due.
    pub latency: LatencyFigures,
    /// By kind: `write`, `read`, `scan`.
    pub latency_by: BTreeMap<String, LatencyFigures>,
    /// The longest oversleep of an idle thread at the same time, in microseconds: what the machine itself adds.
    pub control_max_us: f64,
    /// Bytes written to the device for each byte of keys and values that the workload wrote, debt included; 0 if it wrote
    /// none.
    pub write_amplification: f64,
    /// Bytes read from the device for each operation, by the engine's count, or else by the system's.
    pub read_bytes_per_op: f64,
    /// Bytes of all the store's files for each byte of live keys and values.
    pub space_amplification: f64,
    /// The most memory that the process held during the workload.
    pub peak_rss_bytes: u64,
    /// The lab's own part of `peak_rss_bytes`: the resident size before the store was opened, plus the latency recorders of all
    /// client threads. 0 in files of earlier versions.
    #[serde(default)]
    pub lab_bytes: u64,
    /// Processor seconds (user and system, background included) for a million operations.
    pub cpu_s_per_million: f64,
    /// What the system counted for the process: `read_bytes`, `write_bytes`, `syscr`, `syscw`.
    pub process_io: BTreeMap<String, u64>,
    /// What the engine counted inside.
    pub inside: Figures,
    /// Answers that were wrong, of those that were checked. Anything but 0 makes the other figures worthless.
    pub wrong_answers: u64,
    /// Answers that were checked.
    pub checked_answers: u64,
    /// Entries that scans returned, or keys that lookups found.
    pub found: u64,
    /// Identifies the operations: a hash of the first 10,000 of each thread.
    pub stream: String,
    /// Over time.
    pub series: Series,
    /// What was asked for.
    pub asked: Asked,
    /// How the engine was set.
    pub configuration: BTreeMap<String, String>,
    /// The commit that was measured.
    pub commit: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Where.
    pub machine: Machine,
}

impl Line {
    /// The rate that rivals are compared by: until nothing is owed, where that is later than the last acknowledgement.
    pub fn fair_ops_per_s(&self) -> f64 {
        let seconds = self.seconds.max(self.settled_seconds);
        if seconds > 0.0 { self.ops as f64 / seconds } else { 0.0 }
    }

    /// `pando-stbe`, `rocksdb`: who was measured, for tables.
    pub fn who(&self) -> String {
        match (self.index.as_str(), self.mode) {
            ("", _) => self.engine.clone(),
            (index, Mode::Product) => format!("{}-{index}", self.engine),
            (index, Mode::Paper) => format!("{}-{index}-paper", self.engine),
        }
    }
}
