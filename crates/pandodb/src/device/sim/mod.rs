//! A simulated machine: the tool of every crash and fault test.
//!
//! [`SimDevice`] is a directory in memory that knows what a power cut would leave of it. It is deterministic from its
//! seed: the same calls give the same answers, the same clock, the same history.
//!
//! ```text
//!      engine ── Device, File ──▶ SimDevice ── record() ──▶ SimHistory ── walk() ──▶ Cursor
//!                                   │   │                                      for each point and CrashPlan choice
//!               cached: what reads ─┘   └─ disk: durable bytes and entries            │
//!               and a SIGKILL see          + pending operations since a sync          ▼
//!                                                                                  SimImage ── from_image() ──▶ SimDevice
//! ```
//!
//! **The model.** A file is an inode with bytes; the directory maps names to inodes. Every change is an operation that
//! is at first *pending*. A sync of a file makes the operations on its bytes and length durable, a sync of the directory
//! those on its entries; neither does the other's work. At a power cut each pending operation survives or not,
//! independently of the others, and a write may survive in part or as rubbish ([`Fate`]). Those that survive apply in
//! the order in which they were issued. An entry operation that has lost its ground (renaming a file whose creation is
//! lost) is lost too, and a file that no entry names is gone with its bytes.
//!
//! **Exhaustive crashes.** Record a run, putting in [`SimDevice::mark`] where a commit was acknowledged; walk the
//! history; at each point build the images of a [`CrashPlan`], drop those whose [`SimImage::hash`] was seen, open the
//! rest. Building and hashing an image costs microseconds: images share pages with the history.
//!
//! **Reads in flight** ([`super::Reads`]) end in any order, and see the file as it was at some moment between their beginning and their
//! end; [`SimDevice::set_queue_depth`] says how many there are.
//!
//! **Faults.** [`SimDevice::set_fault`] breaks the nth matching operation, once or from then on;
//! [`SimDevice::set_byte_budget`] fills the disk. A failed sync behaves as on Linux: reads see the new bytes, later
//! syncs succeed and do not write them, a crash may give the old.
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
//!             assert!(image.file("a").is_some(), "what was acknowledged is there");
//!         }
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The simulation is single-threaded: [`super::Device::spawn`] is refused, so an engine runs with
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
use super::content::mix;
use super::host::Locks;
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
    /// An empty device. All its choices follow from `seed`.
    pub fn new(seed: u64) -> Arc<SimDevice> {
        SimDevice::from_image(&SimImage::default(), seed)
    }

    /// A device that starts with the files of `image`, all durable, nobody holding a lock.
    pub fn from_image(image: &SimImage, seed: u64) -> Arc<SimDevice> {
        let machine = Arc::new(Mutex::new(Machine::new(image, seed)));
        Arc::new(SimDevice { machine, locks: Arc::default() })
    }

    /// Operations so far that had an effect or could have failed.
    pub fn op_count(&self) -> u64 {
        OpKind::ALL.into_iter().map(|kind| self.op_count_of(kind)).sum()
    }

    /// The share of `kind` in [`SimDevice::op_count`].
    pub fn op_count_of(&self, kind: OpKind) -> u64 {
        self.machine.lock().count_of(kind)
    }

    /// Starts recording at the present state, dropping what was recorded before. The history holds every byte written
    /// from here on.
    pub fn record(&self) {
        self.machine.lock().record();
    }

    /// Puts a mark of the test's own (`batch n was acknowledged`) into the history.
    pub fn mark(&self, value: u64) {
        self.machine.lock().mark(value);
    }

    /// What was recorded so far; recording goes on.
    ///
    /// # Panics
    /// If [`SimDevice::record`] was never called.
    pub fn history(&self) -> SimHistory {
        self.machine.lock().history()
    }

    /// The files as a killed process leaves them: all that was written, synced or not.
    pub fn image(&self) -> SimImage {
        self.machine.lock().image()
    }

    /// The files as a power cut leaves them at worst: only what was synced.
    pub fn durable_image(&self) -> SimImage {
        self.crash_image(&CrashChoice::none())
    }

    /// The files as a power cut leaves them, `choice` deciding about [`SimDevice::pending`].
    pub fn crash_image(&self, choice: &CrashChoice) -> SimImage {
        self.machine.lock().disk().image(choice)
    }

    /// The operations that a power cut now could undo, in order.
    pub fn pending(&self) -> Vec<SimOp> {
        self.machine.lock().disk().pending().cloned().collect()
    }

    /// Sets (or clears) the fault to come; it counts matching operations from here.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.machine.lock().set_fault(fault);
    }

    /// How often the fault set last has struck. 0 after a run says that `nth` is past the end of what there is to break.
    pub fn faults_struck(&self) -> u64 {
        self.machine.lock().faults_struck()
    }

    /// Bounds the space of all files, in bytes (whole pages count). A write or allocation that needs more fails with
    /// `StorageFull` and has no effect; cutting, punching and removing give space back. Lowering it below what is in
    /// use takes nothing away.
    pub fn set_byte_budget(&self, budget: Option<u64>) {
        self.machine.lock().set_byte_budget(budget);
    }

    /// Gives space back as a copy-on-write file system does: a hole in a piece of `bytes` bytes (whole pages), of which other pages
    /// are in use, gives back nothing before those are punched or cut off, too; and what is written there takes new space.
    /// The default is one page. Set it before there are files.
    pub fn set_hole_unit(&self, bytes: u64) {
        self.machine.lock().set_hole_unit(bytes);
    }

    /// Bytes of space that all files occupy, what holes have not given back and removed ones that are still open included.
    pub fn occupied(&self) -> u64 {
        self.machine.lock().occupied()
    }

    /// How many reads a queue has in flight at most, 8 if nobody says otherwise; 0: there are no queues. Concerns queues that
    /// are handed out from now on.
    pub fn set_queue_depth(&self, depth: usize) {
        self.machine.lock().set_queue_depth(depth);
    }

    /// Moves the clock forward.
    pub fn advance_clock(&self, time: Duration) {
        self.machine.lock().advance_clock(time);
    }

    /// Lets go of every lock, for an engine that was killed and not dropped.
    pub fn release_locks(&self) {
        self.locks.release_all();
    }
}

/// A small generator (splitmix64): the same numbers for the same seed, on every machine.
#[derive(Clone, Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, as good as uniform for the small bounds of a simulation.
    fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        self.next() % bound
    }
}
