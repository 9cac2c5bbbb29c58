//! Several reads at once by io_uring (Linux 5.6 and later), where the system allows it.
//!
//! ```text
//!   Rings ── idle ──▶ Ring ──▶ Lease, of one caller ──▶ back to idle, with what is still in flight
//!                      │
//!                      ├ slots:  [read + file][ ][read + file] …      the kernel writes into the buffers of these
//!                      ├ io_uring: submissions ──▶ kernel ──▶ completions, each with the number of its slot
//!                      └ queued, unsent: slots that the kernel does not know yet
//! ```
//!
//! **One ring has one owner at a time**: a caller with reads to do takes a ring, and nobody else enters it until it is
//! handed back. So no lock is held while somebody waits, nobody is woken for another's read, and all that is `unsafe` here
//! happens behind `&mut`. Taking a ring is a lock for a few nanoseconds; there are as many rings as callers with reads in
//! flight at the same time, [`MOST_RINGS`] at most. Past that, and where the system refuses a ring, callers read one after
//! the other.
//!
//! **Who owns a buffer.** From the moment that a submission names a buffer until its completion was taken from the ring,
//! the buffer lies in a slot of the ring and nobody touches it, whatever becomes of the caller: a lease that is dropped (by
//! an error, by a panic) marks its slots as unwanted and hands the ring back; the next owner throws away what completes
//! for them, or whoever looks for a ring with room. A ring that is dropped waits for what is in flight. If even that fails, the buffers are leaked.
//!
//! **What can go wrong.** The completion queue cannot overflow: it is twice as long as there are slots, and slots are
//! taken before submissions. A ring that the kernel does not let submit (no memory, no requests left) is *retired*: what
//! it has taken is waited for, what it has not taken is handed back as interrupted, and the ring is closed. Short and
//! interrupted reads are the caller's to finish ([`super::Reads`]). A process that was forked has the parent's rings
//! in name only: it takes none of them and leaks what it holds.
//!
//! **Waiting.** Who waits for a read of a few pages watches for its end instead of sleeping, as long as that serves
//! ([`crate::base::patience`]).
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
use crate::base::patience::{LONGEST, Patience, READ_SAVED};

#[cfg(test)]
mod tests;

/// Reads that one ring has in flight at most.
const SLOTS: u32 = 64;
/// Rings of a device at most.
const MOST_RINGS: usize = 64;
/// Nobody watches for a read of more bytes: it takes longer than to sleep and to wake.
const MOST_WATCHED: usize = 16 * PAGE;

/// The rings of a device.
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
    /// Idle and taken.
    made: AtomicUsize,
    /// The system has refused a ring: it is not asked again.
    refused: AtomicBool,
    /// The process that may use them.
    process: Process,
    /// Nothing if whoever waits is to sleep.
    patience: Option<Patience>,
}

impl Rings {
    /// No rings yet; nothing, in a build that has none. With `watch`, who waits for a short read does not sleep.
    pub(super) fn new(watch: bool) -> Option<Arc<Rings>> {
        let (made, refused, process) = (AtomicUsize::new(0), AtomicBool::new(false), Process::current());
        let patience = watch.then(Patience::default);
        Some(Arc::new(Rings { idle: Mutex::default(), made, refused, process, patience }))
    }

    /// Whether a read of so many bytes by itself is served sooner here than by pread.
    pub(super) fn watches(&self, bytes: usize) -> bool {
        let watches = |patience: &Patience| bytes <= MOST_WATCHED && patience.watches();
        self.patience.as_ref().is_some_and(watches) && !self.refused.load(Relaxed)
    }

    /// Makes a ring now, to see whether the system has them.
    ///
    /// # Errors
    /// Why not: `Unsupported`, `PermissionDenied`, ….
    pub(super) fn try_out(&self) -> io::Result<()> {
        let ring = Ring::new(self.process)?;
        self.made.fetch_add(1, Relaxed);
        self.idle.lock().push(ring);
        Ok(())
    }

    /// A queue for reads of `file`; none if there is no ring to be had.
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

    /// An idle ring with a vacant slot. Reads that callers have let go of take up slots until they end and somebody looks: here.
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
        self.made.fetch_sub(1, Relaxed);
        None
    }

    fn take_back(&self, ring: Ring) {
        if ring.retired {
            self.made.fetch_sub(1, Relaxed);
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

/// A read that the kernel has, or is about to get. It also keeps the file open.
struct Slot {
    read: Read,
    _file: Arc<File>,
    /// Somebody waits for it.
    wanted: bool,
}

/// An io_uring with the buffers of what is in flight.
struct Ring {
    uring: IoUring,
    slots: Vec<Option<Slot>>,
    /// Numbers of empty slots.
    vacant: Vec<u16>,
    /// Slots that are not among the submissions yet.
    queued: Vec<(u16, i32)>,
    /// Slots among the submissions that the kernel has not taken yet, oldest first: none but while it refuses them.
    unsent: Vec<u16>,
    /// Slots that the kernel has.
    flying: usize,
    /// The kernel has refused submissions: none are made any more.
    retired: bool,
    /// Reads that were given up, to be handed out.
    given_up: Vec<Slot>,
    process: Process,
}

impl Ring {
    fn new(process: Process) -> io::Result<Ring> {
        // Completions are posted when the thread that submitted enters the kernel anyway, instead of by interrupting it.
        // Kernels before 5.19 do not know that.
        let uring = IoUring::builder().setup_coop_taskrun().build(SLOTS);
        let uring = uring.or_else(|_| IoUring::new(SLOTS))?;
        // Kernels before 5.6 have rings, but neither this read nor a way to ask for it.
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring without reads into any memory"));
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
        self.queued.push((number, file.as_raw_fd()));
        self.slots[usize::from(number)] = Some(Slot { read, _file: Arc::clone(file), wanted: true });
        Ok(())
    }

    /// Moves what is queued to the submissions.
    fn fill_in(&mut self) {
        for (number, fd) in self.queued.drain(..) {
            let slot = self.slots[usize::from(number)].as_mut().expect("what is queued has a slot");
            let Read { offset, buf, .. } = &mut slot.read;
            let (bytes, len) = (buf.as_mut_ptr(), buf.len() as u32);
            let entry = opcode::Read::new(types::Fd(fd), bytes, len).offset(*offset).build();
            let entry = entry.user_data(u64::from(number));
            // SAFETY: the buffer is `len` bytes at an address that stays while the slot owns them, wherever that is moved. A slot whose submission is here is emptied in
            // three places only: when its completion was taken (`reap`), when the kernel has not taken the submission and never
            // will (`retire`, which closes this ring for submissions), and by leaking (`lose`); one that is only queued has none
            // (`abandon`). So the memory is valid, and untouched by
            // anyone else, for as long as the kernel may write to it. The slot's file keeps the descriptor open until then.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            pushed.expect("there are no more slots than submissions");
            self.unsent.push(number);
        }
    }

    /// Begins what is queued, and waits for a completion if asked to.
    fn enter(&mut self, wait: bool) {
        if self.retired {
            return self.wait_for_taken();
        }
        self.fill_in();
        let entered = self.uring.submit_and_wait(usize::from(wait));
        let left = self.uring.submission().len();
        let taken = self.unsent.len() - left;
        self.unsent.drain(..taken);
        self.flying += taken;
        match entered {
            Ok(_) if self.flying > 0 || left == 0 => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => self.retire(),
        }
    }

    /// Waits for a completion of what the kernel has taken, without submitting.
    fn wait_for_taken(&mut self) {
        self.collect(1);
    }

    /// Has the kernel post what has ended, and waits until so many completions are there.
    fn collect(&mut self, least: u32) {
        if self.flying == 0 {
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: without submissions and without an argument the call does nothing but wait.
        let entered = unsafe { self.uring.submitter().enter::<()>(0, least, flags, None) };
        match entered {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.lose(),
        }
    }

    /// Begins what is queued, and looks for a completion for as long as anybody watches.
    fn watch(&mut self, patience: &Patience) {
        let began = Instant::now();
        if !self.queued.is_empty() || !self.unsent.is_empty() {
            self.enter(false);
        }
        // A ring that has failed has what it gives up to hand out, or waits.
        while !self.retired && self.uring.completion().is_empty() {
            self.collect(0);
            if began.elapsed() >= LONGEST {
                break;
            }
        }
        match began.elapsed() {
            long if long >= LONGEST => patience.was_in_vain(long),
            _ => patience.went_well(READ_SAVED),
        }
    }

    /// The kernel does not take submissions: takes them back, for good.
    fn retire(&mut self) {
        self.retired = true;
        for number in mem::take(&mut self.unsent) {
            let slot = self.slots[usize::from(number)].take().expect("what is unsent has a slot");
            self.vacant.push(number);
            self.given_up.push(slot);
        }
    }

    /// What the kernel has cannot be waited for: leaks the buffers that it may write to.
    fn lose(&mut self) {
        self.retired = true;
        self.queued.clear();
        self.unsent.clear();
        for (number, place) in self.slots.iter_mut().enumerate() {
            if let Some(mut slot) = place.take() {
                let pages = slot.read.buf.pages();
                // Before anything that may fail.
                mem::forget(mem::take(&mut slot.read.buf));
                slot.read.buf = AlignedBuf::zeroed(pages);
                self.vacant.push(number as u16);
                self.given_up.push(slot);
            }
        }
        self.flying = 0;
    }

    /// A read that has ended and that somebody wants.
    fn reap(&mut self) -> Option<Done> {
        while let Some(slot) = self.given_up.pop() {
            if slot.wanted {
                return Some(Done { read: slot.read, result: Err(io::ErrorKind::Interrupted.into()) });
            }
        }
        while self.flying > 0 {
            let completion = self.uring.completion().next()?;
            let number = completion.user_data() as usize;
            // The kernel is done with the buffer.
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

    /// Throws away what has ended of what nobody wants. Of a ring that is idle: nothing there is wanted.
    fn throw_away(&mut self) {
        while self.reap().is_some() {}
    }

    /// Forgets what is queued, and wants nothing of what is in flight.
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
            // A forked copy: the kernel's side belongs to the parent.
            return self.lose();
        }
        self.retire();
        while self.flying > 0 {
            while self.reap().is_some() {}
            self.wait_for_taken();
        }
    }
}

/// A ring in the hands of one caller.
struct Lease {
    /// There until it is dropped.
    ring: Option<Ring>,
    file: Arc<File>,
    home: Arc<Rings>,
    /// Reads taken in and not handed out.
    wanted: usize,
    /// The bytes of the longest read that it ever took in.
    longest: usize,
}

impl Lease {
    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("there until it is dropped")
    }

    /// In a forked copy the kernel's side belongs to the parent: what is in flight is not ours to wait for, and is given up.
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
            match patience.filter(|patience| patience.watches()) {
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
