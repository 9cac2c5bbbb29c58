//! Order: plots the addresses of writes in the data file over time, as in Fig. 6b of 003, and measures how sequential
//! the writes are.
//!
//! ```text
//!   workload ─▶ PandoDB on a device in memory ─▶ accesses of the data file ─▶ writes: address over time, figures
//! ```
//!
//! 003 §5 (experiment 2) shows one flush of a partition: first leaves, then inner nodes, in one rising line. Here, the
//! plot shows a whole load with its compactions. Each rising line shows the writing of one run. The line starts at the
//! address of the space that was allocated for the run. The time axis shows the number of each write instead of its
//! time, because times on a device in memory mean nothing.

use std::path::Path;
use std::sync::Arc;

use pandodb::StbeOptions;
use pandodb::device::counting::{Access, FileClass};
use pandodb::device::{Device, MemDevice};
use serde::{Deserialize, Serialize};

use super::measure::{Config, share};
use crate::engine::{Mode, Result, Setup};
use crate::pando::Pando;
use crate::plot::{Axis, Plot, Series, Style};
use crate::record::Shape;
use crate::workload::{Op, Stream, StreamPlan, Workload};

/// The workloads of the report.
pub const WORKLOADS: [&str; 3] = ["load", "load-seq", "load-mixed"];
/// The minimum size of a large write in bytes, which is an extent.
pub const LARGE_BYTES: u64 = 128 << 10;
/// The maximum number of writes in a plot. If there are more writes, the plot shows an evenly spaced sample. The usual
/// thinning would keep only the extreme points of each column, and so change the shape of a cloud of points.
const SHOWN: usize = 1_200;

/// The writes of one workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The workload.
    pub workload: String,
    /// The number of records.
    pub records: u64,
    /// The number of writes to the data file.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of these bytes that are in writes of at least [`LARGE_BYTES`].
    pub large_bytes: u64,
    /// The number of writes that begin where the previous write ended.
    pub adjacent: u64,
    /// Their bytes.
    pub adjacent_bytes: u64,
    /// The highest offset at which a write ended.
    pub file_bytes: u64,
    /// The start address of each write in the order of the writes, for at most 1,200 writes.
    #[serde(skip)]
    pub places: Vec<(f64, f64)>,
}

impl Order {
    /// Analyses the writes among these accesses.
    pub fn of(workload: &str, records: u64, accesses: &[Access]) -> Order {
        let writes: Vec<&Access> =
            accesses.iter().filter(|access| access.is_write && access.class == FileClass::Data).collect();
        let mut order = Order { workload: workload.to_owned(), records, ..Order::default() };
        let stride = writes.len().div_ceil(SHOWN).max(1);
        let mut end = None;
        for (i, write) in writes.iter().enumerate() {
            order.writes += 1;
            order.bytes += write.len;
            order.large_bytes += if write.len >= LARGE_BYTES { write.len } else { 0 };
            if end == Some(write.offset) {
                order.adjacent += 1;
                order.adjacent_bytes += write.len;
            }
            end = Some(write.offset + write.len);
            order.file_bytes = order.file_bytes.max(write.offset + write.len);
            if i % stride == 0 {
                order.places.push((i as f64, write.offset as f64));
            }
        }
        order
    }

    /// The average size of a write in bytes.
    pub fn mean_bytes(&self) -> f64 {
        share(self.bytes, self.writes)
    }

    /// The share of bytes in large writes.
    pub fn large_share(&self) -> f64 {
        share(self.large_bytes, self.bytes)
    }

    /// The share of writes that begin where the previous write ended.
    pub fn adjacent_share(&self) -> f64 {
        share(self.adjacent, self.writes)
    }

    /// The share of bytes in writes that begin where the previous write ended.
    pub fn adjacent_bytes_share(&self) -> f64 {
        share(self.adjacent_bytes, self.bytes)
    }

    /// The plot of addresses over time.
    pub fn plot(&self) -> Plot {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let plot = Plot::new(
            format!("Where writes go: {}", self.workload),
            Axis::linear("writes to the data file", ""),
            Axis::linear("address", "B"),
        );
        let plot = plot.with(Series::new("beginning of a write", Style::Points, self.places.clone()));
        plot.note(format!(
            "{} records, {} writes; {} of the bytes in writes of 128 KiB or more, {} of the writes begin where the last ended, \
             {:.0} KiB a write",
            self.records,
            self.writes,
            percent(self.large_share()),
            percent(self.adjacent_share()),
            self.mean_bytes() / 1024.0
        ))
    }
}

/// Runs a load and analyses its writes.
///
/// # Errors
/// If the workload is unknown or is not a load, or if the engine fails.
pub fn measure(config: &Config, workload: &str, records: u64) -> Result<Order> {
    let workload = Workload::find(workload).ok_or_else(|| format!("unknown workload `{workload}`"))?;
    let device: Arc<dyn Device> = MemDevice::new();
    let (memtable, fanout) = (config.memtable_bytes, config.fanout);
    let pando = Pando::new(config.index.clone()).on(device);
    let pando = pando.tuned(move |builder| builder.memtable_bytes(memtable).index(StbeOptions::new().fanout(fanout)));
    let setup = Setup { memory_budget: config.memory_budget, mode: Mode::Product, deterministic: true };
    let engine = pando.open_itself(Path::new("order"), &setup)?;
    engine.device.log_accesses();
    let shape = Shape::new(config.key_len, config.value_len);
    let stream = Stream::new(StreamPlan {
        workload,
        dist: workload.dist,
        seed: config.seed,
        threads: 1,
        thread: 0,
        ops: records,
        records,
        rows: 0,
        next_row: 0,
        seq_share: 50.0,
    });
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for op in stream {
        let Op::Put { space, number, nonce } = op else {
            return Err(format!("the workload `{}` is not a load", workload.name).into());
        };
        shape.key(space, number, &mut key);
        shape.value(&key, nonce, &mut value);
        engine.keyspace.put(&key, &value)?;
    }
    engine.store.settle()?;
    let order = Order::of(workload.name, records, &engine.device.take_accesses());
    drop(engine.keyspace);
    engine.store.close()?;
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, len: u64) -> Access {
        Access { file: 0, class: FileClass::Data, offset, len, is_write: true }
    }

    #[test]
    fn figures_equal_those_worked_out_by_hand() {
        let log = Access { class: FileClass::Log, ..write(0, 50) };
        let read = Access { is_write: false, ..write(0, 50) };
        let accesses = [write(0, 100), log, write(100, LARGE_BYTES), read, write(0, 10), write(20, 10)];
        let order = Order::of("x", 1, &accesses);
        assert_eq!((order.writes, order.adjacent, order.bytes), (4, 1, 120 + LARGE_BYTES));
        assert_eq!(
            (order.large_bytes, order.adjacent_bytes, order.file_bytes),
            (LARGE_BYTES, LARGE_BYTES, 100 + LARGE_BYTES)
        );
        assert_eq!(order.places.len(), 4);
    }

    #[test]
    fn a_load_in_key_order_writes_more_sequentially_than_it_must() {
        let config = Config { memory_budget: 1 << 20, memtable_bytes: 64 << 10, ..Config::default() };
        let order = measure(&config, "load-seq", 4000).expect("the device is memory");
        assert!(order.writes > 10 && order.bytes > 4000 * 124 && order.plot().has_data(), "{order:?}");
        assert!(measure(&config, "a", 10).is_err(), "a workload of reads is not a load");
    }
}
