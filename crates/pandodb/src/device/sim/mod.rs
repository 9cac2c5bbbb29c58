//! A simulated machine, which every crash test and fault test uses.
//!
//! [`SimDevice`] is a directory in memory that tracks which part of its state would survive a power cut. The device is
//! deterministic in its seed: the same calls give the same results, the same clock values and the same history.
//!
//! ```text
//!      engine ── Device, File ──▶ SimDevice ── record() ──▶ SimHistory ── walk() ──▶ Cursor
//!                                   │   │                                      for each point and CrashPlan choice
//!               cached: state that ─┘   └─ disk: durable bytes and entries            │
//!               reads and kills see        + pending operations since a sync          ▼
//!                                                                                  SimImage ── from_image() ──▶ SimDevice
//! ```
//!
//! **The model.** A file is an inode with bytes; the directory maps names to inodes. Every change is an operation that
//! is at first *pending*. A sync of a file makes the operations on its bytes and length durable. A sync of the
//! directory makes the operations on its entries durable. A sync of a file covers no operation on entries, and a sync
//! of the directory covers no operation on bytes. At a power cut each pending operation survives or not, independently
//! of the others, and a write may survive in part or as garbage ([`Fate`]). The surviving operations apply in the order
//! in which they were issued. An operation on an entry is lost, too, if its precondition is missing (for example, a
//! rename of a file whose creation was lost). A file that no entry names is lost with its bytes.
//!
//! **Exhaustive crashes.** Record a run, and call [`SimDevice::mark`] where a commit was acknowledged. Walk the
//! history. At each point build the images of a [`CrashPlan`], drop the images whose [`SimImage::hash`] has occurred
//! before, and open a store from each of the others. Building and hashing an image takes microseconds, because images
//! share pages with the history.
//!
//! **Reads in flight** ([`super::Reads`]) complete in any order. Each read sees the file as the file was at some moment
//! between the read's beginning and its end. [`SimDevice::set_queue_depth`] bounds the number of reads in flight.
//!
//! **Faults.** [`SimDevice::set_fault`] makes the nth matching operation fail, or this operation and all later matching
//! ones. [`SimDevice::set_byte_budget`] bounds the disk space. A failed sync behaves as on Linux: reads see the new
//! bytes, later syncs succeed and do not write them, and a crash may restore the old bytes.
//!
//! ```
//! use pandodb::device::sim::{CrashPlan, SimDevice};
//! use pandodb::device::{Device, OpenHow};
//!
//! let sim = SimDevice::new(7);
//! sim.record();
//! let file = sim.open("a", OpenHow { create_new: true, ..OpenHow::default() })?;
//! sim.sync_dir()?;
//! file.write_at(0, b"first")?;
//! file.sync()?;
//! sim.mark(1);
//! file.write_at(0, b"other")?;
//!
//! let history = sim.history();
//! let mut cursor = history.walk();
//! while cursor.advance().is_some() {
//!     for choice in CrashPlan::default().choices(&cursor.pending()) {
//!         let image = cursor.image(&choice);
//!         if cursor.last_mark() == Some(1) {
//!             assert!(image.file("a").is_some(), "an acknowledged file is there");
//!         }
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The simulation is single-threaded: [`super::Device::spawn`] fails, so an engine runs with
//! `background_threads = 0`.

mod crash;
mod disk;
mod fault;
mod history;
mod image;
mod machine;
mod op;
mod queue;
mod stranded;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use super::content::Patch;
use super::host::Locks;
use crate::base::random::Rng;
pub use crash::{CrashChoice, CrashPlan, Fate};
pub use fault::{Fault, FaultKind, OpClass};
pub use history::{Cursor, SimHistory};
pub use image::SimImage;
use machine::Machine;
pub use op::{Inode, OpKind, SimOp};

/// A simulated directory and the machine around it.
#[derive(Debug)]
pub struct SimDevice {
    machine: Arc<Mutex<Machine>>,
    locks: Arc<Locks>,
}

impl SimDevice {
    /// An empty device. All its random choices follow from `seed`.
    pub fn new(seed: u64) -> Arc<SimDevice> {
        SimDevice::from_image(&SimImage::default(), seed)
    }

    /// A device that starts with the files of `image`. All these files are durable, and no lock is held.
    pub fn from_image(image: &SimImage, seed: u64) -> Arc<SimDevice> {
        let machine = Arc::new(Mutex::new(Machine::new(image, seed)));
        Arc::new(SimDevice { machine, locks: Arc::default() })
    }

    /// The number of operations until now that had an effect or could have failed.
    pub fn op_count(&self) -> u64 {
        OpKind::ALL.into_iter().map(|kind| self.op_count_of(kind)).sum()
    }

    /// The number of operations of `kind` in [`SimDevice::op_count`].
    pub fn op_count_of(&self, kind: OpKind) -> u64 {
        self.machine.lock().count_of(kind)
    }

    /// Starts recording at the present state, and drops the previous recording. The history holds every byte that is
    /// written from this call on.
    pub fn record(&self) {
        self.machine.lock().record();
    }

    /// Adds a mark to the history, with a meaning chosen by the test (`batch n was acknowledged`).
    pub fn mark(&self, value: u64) {
        self.machine.lock().mark(value);
    }

    /// The recording until now. Recording continues.
    ///
    /// # Panics
    /// If [`SimDevice::record`] was never called.
    pub fn history(&self) -> SimHistory {
        self.machine.lock().history()
    }

    /// The files after a kill of the process: all written bytes survive, synced or not.
    pub fn image(&self) -> SimImage {
        self.machine.lock().image()
    }

    /// The files after the worst power cut: only synced changes survive.
    pub fn durable_image(&self) -> SimImage {
        self.crash_image(&CrashChoice::none())
    }

    /// The files after a power cut in which `choice` decides about [`SimDevice::pending`].
    pub fn crash_image(&self, choice: &CrashChoice) -> SimImage {
        self.machine.lock().disk().image(choice)
    }

    /// The operations that a power cut at this moment could undo, in order of issue.
    pub fn pending(&self) -> Vec<SimOp> {
        self.machine.lock().disk().pending().cloned().collect()
    }

    /// Sets or clears the fault. Only matching operations after this call count for [`Fault::nth`].
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.machine.lock().set_fault(fault);
    }

    /// The number of times that the last fault has struck. If the number is 0 after a run, the run had at most `nth`
    /// matching operations.
    pub fn faults_struck(&self) -> u64 {
        self.machine.lock().faults_struck()
    }

    /// Bounds the space of all files, in bytes; a partly used page counts as a whole page. A write or allocation that
    /// needs more space fails with `StorageFull` and has no effect. Space becomes free by cutting, punching and
    /// removing files. If the bound is below the space in use, no data is removed.
    pub fn set_byte_budget(&self, budget: Option<u64>) {
        self.machine.lock().set_byte_budget(budget);
    }

    /// Models a copy-on-write file system, in which not every hole frees space. A hole in a piece of `bytes` bytes
    /// (whole pages) frees no space while other pages of the piece are in use. Later writes into the hole occupy new
    /// space. The default piece is one page. Call this function before any file exists.
    pub fn set_hole_unit(&self, bytes: u64) {
        self.machine.lock().set_hole_unit(bytes);
    }

    /// The number of bytes of space that all files occupy, including unfreed space of holes and removed files that are
    /// still open.
    pub fn occupied(&self) -> u64 {
        self.machine.lock().occupied()
    }

    /// The most reads that a queue has in flight, 8 by default; 0 disables queues. The number applies to queues that
    /// are created from now on.
    pub fn set_queue_depth(&self, depth: usize) {
        self.machine.lock().set_queue_depth(depth);
    }

    /// Moves the clock forward.
    pub fn advance_clock(&self, time: Duration) {
        self.machine.lock().advance_clock(time);
    }
}
