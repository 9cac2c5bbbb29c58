//! Concurrent reads by io_uring (Linux 5.6 and later), where the system allows it.
//!
//! ```text
//!   Rings ── idle ──▶ Ring ──▶ Lease, of one caller ──▶ back to idle, with its reads in flight
//!                      │
//!                      ├ slots:  [read + file][ ][read + file] …      the kernel writes into the buffers of these
//!                      ├ io_uring: submissions ──▶ kernel ──▶ completions, each with the number of its slot
//!                      └ queued, unsent: slots that the kernel does not know yet
//! ```
//!
//! Steps of a caller: take a ring ([`Rings::queue`]), push reads into slots, submit them ([`Queue::start`]), reap
//! completions ([`Queue::wait`]), return the ring (drop of [`Lease`]).
//!
//! **One ring has one owner at a time.** No other caller uses a ring until the owner returns the ring. So no thread
//! waits while it holds a lock, no thread is woken for another caller's read, and all `unsafe` code of this file has
//! exclusive access (`&mut`) to its ring. Taking a ring holds a lock for a few nanoseconds. The number of rings is the
//! largest number of callers that had reads in flight at the same time, at most [`MOST_RINGS`]. Beyond that number, and
//! where the system refuses a ring, a caller does its reads one after the other.
//!
//! **Buffer ownership.** From the submission of a read until its completion was taken from the ring, a slot of the ring
//! holds the read's buffer. During that time no code touches the buffer, even if the caller fails or panics. Dropping a
//! lease (after an error or panic) marks its slots as unwanted and returns the ring. The completions of these slots are
//! discarded later, by the next owner of the ring or by a search for a ring with an empty slot. Dropping a ring waits
//! for the reads in flight. If waiting fails, the buffers are leaked.
//!
//! **Failures.** The completion queue cannot overflow: the queue has twice as many entries as there are slots, and a
//! slot is taken before each submission. If the kernel refuses submissions (no memory, no requests left), the ring is
//! *retired*: reads that the kernel has accepted are awaited, the other reads are returned as interrupted, and the ring
//! is closed. [`super::Reads`] completes short and interrupted reads. A forked process must not use its parent's rings,
//! so it takes no ring and leaks the buffers of the rings.
//!
//! **Waiting.** A thread that waits for a read of a few pages spins instead of sleeping, as long as spinning is faster
//! ([`crate::base::spin`]).
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use io_uring::{EnterFlags, IoUring, Probe, opcode, types};
use parking_lot::Mutex;

use super::{AlignedBuf, Done, Process, Queue, Read};
use crate::base::PAGE;
use crate::base::spin::{LONGEST, READ_SAVED, SpinPolicy};

#[cfg(test)]
mod tests;

/// The most reads that one ring has in flight.
const SLOTS: u32 = 64;
/// The most rings of a device.
const MOST_RINGS: usize = 64;
/// The most bytes of a read for which a thread spins. A longer read takes more time than a thread needs to fall asleep
/// and wake up, so the thread sleeps.
const MOST_WATCHED: usize = 16 * PAGE;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS <= u16::MAX as u32, "a slot has a number of 16 bits");
const _: () = assert!(MOST_WATCHED < u32::MAX as usize, "the kernel takes lengths of 32 bits");

/// The rings of a device.
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
    /// The number of rings, idle ones and taken ones.
    made: AtomicUsize,
    /// Whether the system has refused a ring. If so, no more rings are created.
    refused: AtomicBool,
    /// The process that may use the rings.
    process: Process,
    /// `None` if waiting threads always sleep.
    patience: Option<SpinPolicy>,
}

impl Rings {
    /// A set without rings; `None` in a build without io_uring. If `watch` is set, a thread may spin for a short read.
    pub(super) fn new(watch: bool) -> Option<Arc<Rings>> {
        let (made, refused, process) = (AtomicUsize::new(0), AtomicBool::new(false), Process::current());
        let patience = watch.then(SpinPolicy::default);
        Some(Arc::new(Rings { idle: Mutex::default(), made, refused, process, patience }))
    }

    /// Whether a single read of `bytes` bytes is faster here than by pread. Call this exactly once per read, because
    /// each call counts as a read in the spin policy.
    pub(super) fn should_spin(&self, bytes: usize) -> bool {
        let watches = |patience: &SpinPolicy| bytes <= MOST_WATCHED && patience.should_spin();
        self.patience.as_ref().is_some_and(watches) && !self.refused.load(Relaxed)
    }

    /// Creates a ring now, to check whether the system allows it.
    ///
    /// # Errors
    /// The reason of the refusal: `Unsupported`, `PermissionDenied`, ….
    pub(super) fn try_out(&self) -> io::Result<()> {
        let ring = Ring::new(self.process)?;
        self.made.fetch_add(1, Relaxed);
        self.idle.lock().push(ring);
        Ok(())
    }

    /// A queue for reads of `file`; `None` if no ring is available.
    pub(super) fn queue(self: &Arc<Rings>, file: &Arc<File>) -> Option<Box<dyn Queue>> {
        if !self.process.is_current() {
            return None;
        }
        let ring = self.vacant().or_else(|| self.another())?;
        Some(Box::new(Lease {
            ring: Some(ring),
            file: Arc::clone(file),
            home: Arc::clone(self),
            wanted: 0,
            longest: 0,
        }))
    }

    /// An idle ring with an empty slot. An abandoned read occupies its slot until the read has completed and a call of
    /// this function, or the next owner of the ring, discards it.
    fn vacant(&self) -> Option<Ring> {
        let mut idle = self.idle.lock();
        idle.iter_mut().for_each(Ring::throw_away);
        let at = idle.iter().rposition(|ring| !ring.vacant.is_empty())?;
        Some(idle.swap_remove(at))
    }

    fn another(&self) -> Option<Ring> {
        if self.refused.load(Relaxed) {
            return None;
        }
        if self.made.fetch_add(1, Relaxed) < MOST_RINGS {
            match Ring::new(self.process) {
                Ok(ring) => return Some(ring),
                Err(_) => self.refused.store(true, Relaxed),
            }
        }
        self.uncount();
        None
    }

    /// Decrements `made`, because a counted ring could not be created or is about to be closed.
    fn uncount(&self) {
        let before = self.made.fetch_sub(1, Relaxed);
        assert!(before > 0, "each ring is counted once");
    }

    /// Adds the ring to the idle rings, or closes the ring if it is retired.
    /// REQUIRES: the caller has abandoned the ring's reads.
    fn take_back(&self, ring: Ring) {
        debug_assert!(ring.queued.is_empty() && !ring.is_awaited(), "the next owner would get these reads");
        debug_assert!(ring.are_slots_counted(), "a slot is vacant or has a read");
        if ring.retired {
            self.uncount();
        } else {
            self.idle.lock().push(ring);
        }
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings({} made, {} idle)", self.made.load(Relaxed), self.idle.lock().len())
    }
}

/// A read that the kernel has, or that will be submitted. The slot also keeps the file open.
struct Slot {
    read: Read,
    _file: Arc<File>,
    /// Whether the caller of the read still waits for it.
    wanted: bool,
}

/// An io_uring with the buffers of its reads in flight.
struct Ring {
    uring: IoUring,
    slots: Vec<Option<Slot>>,
    /// Numbers of empty slots.
    vacant: Vec<u16>,
    /// Slots that are not in the submission queue yet.
    queued: Vec<(u16, i32)>,
    /// Slots in the submission queue that the kernel has not accepted yet, oldest first. Empty unless the kernel
    /// refuses submissions.
    unsent: Vec<u16>,
    /// The number of slots that the kernel has accepted.
    flying: usize,
    /// Whether the kernel has refused submissions. If so, the ring makes no more submissions.
    retired: bool,
    /// Reads that the ring has abandoned and must return to the caller as interrupted.
    given_up: Vec<Slot>,
    process: Process,
}

impl Ring {
    fn new(process: Process) -> io::Result<Ring> {
        // Completions are posted when the submitting thread enters the kernel for another reason; the kernel does not
        // interrupt the thread. Kernels before 5.19 lack this option.
        let uring = IoUring::builder().setup_coop_taskrun().build(SLOTS);
        let uring = uring.or_else(|_| IoUring::new(SLOTS))?;
        // Kernels before 5.6 have rings, but they lack this read operation and the probe.
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring lacks plain reads (needs Linux 5.6)"));
        }
        assert!(uring.params().sq_entries() >= SLOTS && uring.params().cq_entries() >= 2 * SLOTS, "a ring has room");
        let slots = (0..SLOTS).map(|_| None).collect();
        let vacant = (0..SLOTS as u16).rev().collect();
        let (queued, unsent, given_up) = Default::default();
        Ok(Ring { uring, slots, vacant, queued, unsent, flying: 0, retired: false, given_up, process })
    }

    fn push(&mut self, read: Read, file: &Arc<File>) -> Result<(), Read> {
        if self.retired || u32::try_from(read.buf.len()).is_err() {
            return Err(read);
        }
        let Some(number) = self.vacant.pop() else { return Err(read) };
        assert!(self.slots[usize::from(number)].is_none(), "a vacant slot has no read");
        self.queued.push((number, file.as_raw_fd()));
        self.slots[usize::from(number)] = Some(Slot { read, _file: Arc::clone(file), wanted: true });
        Ok(())
    }

    /// Moves queued reads to the submission queue.
    fn fill_in(&mut self) {
        for (number, fd) in self.queued.drain(..) {
            let slot = self.slots[usize::from(number)].as_mut().expect("a queued read has a slot");
            let Read { offset, buf, .. } = &mut slot.read;
            let (bytes, len) = (buf.as_mut_ptr(), buf.len() as u32);
            let entry = opcode::Read::new(types::Fd(fd), bytes, len).offset(*offset).build();
            let entry = entry.user_data(u64::from(number));
            // SAFETY: the buffer is `len` bytes at an address that is stable while the slot owns the buffer, even if
            // the slot moves. A slot with a submission is emptied in three places only: when its completion was taken
            // (`reap`), when the kernel has not accepted the submission and never will (`retire`, which closes this
            // ring for submissions), and by leaking the buffer (`lose`). A slot that is only queued has no submission
            // (`abandon`). So the memory is valid and not accessed otherwise as long as the kernel may write to it. The
            // slot's file keeps the descriptor open for the same time.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            pushed.expect("there are no more slots than submissions");
            self.unsent.push(number);
        }
    }

    /// Submits the queued reads. If `wait` is set, also waits for a completion.
    fn enter(&mut self, wait: bool) {
        if self.retired {
            return self.wait_for_taken();
        }
        self.fill_in();
        let entered = self.uring.submit_and_wait(usize::from(wait));
        let left = self.uring.submission().len();
        assert!(left <= self.unsent.len(), "{left} submissions, of which {} are known", self.unsent.len());
        let taken = self.unsent.len() - left;
        self.unsent.drain(..taken);
        self.flying += taken;
        debug_assert!(self.flying <= SLOTS as usize, "each read in flight has a slot");
        match entered {
            Ok(_) if self.flying > 0 || left == 0 => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => self.retire(),
        }
    }

    /// Waits for a completion of a read that the kernel has accepted, without submitting.
    fn wait_for_taken(&mut self) {
        self.collect(1);
    }

    /// Lets the kernel post completions, and waits until at least `least` of them are posted.
    fn collect(&mut self, least: u32) {
        if self.flying == 0 {
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: without submissions and without an argument the call only waits.
        let entered = unsafe { self.uring.submitter().enter::<()>(0, least, flags, None) };
        match entered {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.lose(),
        }
    }

    /// Submits the queued reads, and spins for a completion for up to [`LONGEST`].
    fn watch(&mut self, patience: &SpinPolicy) {
        let began = Instant::now();
        if !self.queued.is_empty() || !self.unsent.is_empty() {
            self.enter(false);
        }
        // On a retired ring the caller gets the abandoned reads or blocks, but does not spin.
        while !self.retired && self.uring.completion().is_empty() {
            self.collect(0);
            if began.elapsed() >= LONGEST {
                break;
            }
        }
        match began.elapsed() {
            long if long >= LONGEST => patience.record_miss(long),
            _ => patience.record_success(READ_SAVED),
        }
    }

    /// Called when the kernel refuses submissions: takes the unsent submissions back and makes no more submissions.
    fn retire(&mut self) {
        self.retired = true;
        for number in mem::take(&mut self.unsent) {
            let slot = self.slots[usize::from(number)].take().expect("an unsent read has a slot");
            self.vacant.push(number);
            self.given_up.push(slot);
        }
    }

    /// Called when waiting for the kernel failed: leaks the buffers that the kernel may still write to.
    fn lose(&mut self) {
        self.retired = true;
        self.queued.clear();
        self.unsent.clear();
        for (number, place) in self.slots.iter_mut().enumerate() {
            if let Some(mut slot) = place.take() {
                let pages = slot.read.buf.pages();
                // Leak the buffer first, because the allocation that follows may fail.
                mem::forget(mem::take(&mut slot.read.buf));
                slot.read.buf = AlignedBuf::zeroed(pages);
                self.vacant.push(number as u16);
                self.given_up.push(slot);
            }
        }
        self.flying = 0;
        debug_assert_eq!(self.vacant.len(), self.slots.len(), "all slots are vacant");
    }

    /// A completed read whose caller still waits for it.
    fn reap(&mut self) -> Option<Done> {
        while let Some(slot) = self.given_up.pop() {
            if slot.wanted {
                return Some(Done { read: slot.read, result: Err(io::ErrorKind::Interrupted.into()) });
            }
        }
        while self.flying > 0 {
            let completion = self.uring.completion().next()?;
            let number = completion.user_data() as usize;
            // The kernel no longer uses the buffer.
            let slot = self.slots[number].take().expect("a slot completes once");
            self.vacant.push(number as u16);
            self.flying -= 1;
            if slot.wanted {
                let result = match completion.result() {
                    error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                    n => Ok(n as usize),
                };
                return Some(Done { read: slot.read, result });
            }
        }
        None
    }

    /// Whether a caller waits for one of the reads.
    fn is_awaited(&self) -> bool {
        self.slots.iter().flatten().chain(&self.given_up).any(|slot| slot.wanted)
    }

    /// Whether the number of listed vacant slots and the number of occupied slots add up to the number of all slots.
    fn are_slots_counted(&self) -> bool {
        self.vacant.len() + self.slots.iter().flatten().count() == self.slots.len()
    }

    /// Discards completed reads of an idle ring.
    /// REQUIRES: the ring is idle, so none of its reads is wanted.
    fn throw_away(&mut self) {
        debug_assert!(!self.is_awaited(), "a caller waits for a read of an idle ring");
        while self.reap().is_some() {}
    }

    /// Removes the queued reads, and marks the reads in flight as unwanted.
    fn abandon(&mut self) {
        for (number, _) in mem::take(&mut self.queued) {
            self.slots[usize::from(number)] = None;
            self.vacant.push(number);
        }
        self.slots.iter_mut().flatten().for_each(|slot| slot.wanted = false);
        self.given_up.clear();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.abandon();
        if !self.process.is_current() {
            // In a forked process, the kernel's side of the ring belongs to the parent.
            return self.lose();
        }
        self.retire();
        while self.flying > 0 {
            while self.reap().is_some() {}
            self.wait_for_taken();
        }
    }
}

/// A ring that one caller has taken.
struct Lease {
    /// `Some` until the lease is dropped.
    ring: Option<Ring>,
    file: Arc<File>,
    home: Arc<Rings>,
    /// The number of accepted reads that were not returned yet.
    wanted: usize,
    /// The length in bytes of the longest read accepted so far.
    longest: usize,
}

impl Lease {
    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("there until it is dropped")
    }

    /// In a forked process, the kernel's side of the ring belongs to the parent. A child cannot wait for the reads in
    /// flight, so this function abandons them.
    fn mind_fork(&mut self) {
        let ring = self.ring();
        if !ring.process.is_current() {
            ring.lose();
        }
    }
}

impl Queue for Lease {
    fn push(&mut self, read: Read) -> Result<(), Read> {
        let bytes = read.buf.len();
        let Lease { ring, file, .. } = self;
        ring.as_mut().expect("there until it is dropped").push(read, file)?;
        self.wanted += 1;
        self.longest = self.longest.max(bytes);
        Ok(())
    }

    fn start(&mut self) {
        self.mind_fork();
        if !self.ring().queued.is_empty() {
            self.ring().enter(false);
        }
    }

    fn wait(&mut self) -> Option<Done> {
        self.mind_fork();
        let mut has_watched = false;
        while self.wanted > 0 {
            let ring = self.ring.as_mut().expect("there until it is dropped");
            if let Some(done) = ring.reap() {
                self.wanted -= 1;
                return Some(done);
            }
            let patience = self.home.patience.as_ref().filter(|_| !has_watched && self.longest <= MOST_WATCHED);
            match patience.filter(|patience| patience.should_spin()) {
                Some(patience) => ring.watch(patience),
                None => ring.enter(true),
            }
            has_watched = true;
        }
        None
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut ring) = self.ring.take() {
            ring.abandon();
            self.home.take_back(ring);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} reads)", self.wanted)
    }
}
