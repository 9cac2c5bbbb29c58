//! The running device: the state that its callers see, and the faults between this state and the disk.
//!
//! Steps of an operation:
//!
//! 1. Check its arguments.
//! 2. Count it and advance the clock; a fault may strike ([`Machine::begin`]).
//! 3. Check the space budget.
//! 4. [`Machine::commit`] applies the change to the cached files, to the [`Disk`] and to the recording.
//!
//! Invariant: no other code changes state, so the cached files, the [`Disk`] and the recording agree.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::disk::{Disk, Entries, change_content, change_entries};
use super::fault::{Fault, FaultKind, Injector, Operation, io_error, sync_error};
use super::queue::SimQueue;
use super::stranded::Stranded;
use super::{Fate, Inode, OpKind, Patch, Rng, SimDevice, SimHistory, SimImage, SimOp};
use crate::base::PAGE;
use crate::device::content::Content;
use crate::device::host::{check_direct, check_name, check_range};
use crate::device::{Device, File, JoinHandle, LockGuard, LockMode, OpenHow, Queue};

/// The duration of every operation on the simulated clock.
const OPERATION_TIME: Duration = Duration::from_micros(10);
/// The duration of reading the clock. The duration is not 0, because otherwise a loop that waits for a point in time
/// would never end.
const LOOK_TIME: Duration = Duration::from_nanos(100);
/// The size of a clock jump.
const CLOCK_JUMP: Duration = Duration::from_secs(3_600);
/// The default queue depth. The depth is small enough that queues are full occasionally.
const QUEUE_DEPTH: usize = 8;

/// A file as its openers see it.
#[derive(Default)]
struct Cached {
    content: Content,
    handles: u32,
}

/// The state behind a [`SimDevice`].
pub(super) struct Machine {
    entries: Entries,
    files: BTreeMap<Inode, Cached>,
    disk: Disk,
    recording: Option<(Disk, Vec<SimOp>)>,
    injector: Injector,
    byte_budget: Option<u64>,
    /// The space of holes that the file system has not freed.
    stranded: Stranded,
    counts: [u64; OpKind::ALL.len()],
    inodes_given: u64,
    clock: Duration,
    rng: Rng,
    /// A separate generator for the completion order of reads in flight, so that this order does not affect other
    /// random choices.
    order: Rng,
    /// The most reads that one queue has in flight.
    queue_depth: usize,
}

impl Machine {
    pub fn new(image: &SimImage, seed: u64) -> Machine {
        let (mut entries, mut files) = (Entries::new(), BTreeMap::new());
        let mut durable = BTreeMap::new();
        for (number, (name, content)) in image.contents().enumerate() {
            let inode = Inode(number as u64);
            entries.insert(Arc::clone(name), inode);
            files.insert(inode, Cached { content: content.clone(), handles: 0 });
            durable.insert(inode, content.clone());
        }
        assert_eq!(files.len(), entries.len(), "each file has one name");
        Machine {
            disk: Disk::new(entries.clone(), durable),
            recording: None,
            injector: Injector::default(),
            byte_budget: None,
            stranded: Stranded::new(PAGE as u64),
            counts: [0; OpKind::ALL.len()],
            inodes_given: files.len() as u64,
            clock: Duration::ZERO,
            rng: Rng(seed),
            order: Rng(seed ^ 0x0D3B_5EED),
            queue_depth: QUEUE_DEPTH,
            entries,
            files,
        }
    }

    pub fn count_of(&self, kind: OpKind) -> u64 {
        self.counts[kind as usize]
    }

    pub fn record(&mut self) {
        self.recording = Some((self.disk.clone(), Vec::new()));
    }

    pub fn mark(&mut self, value: u64) {
        self.commit(SimOp::Mark(value));
    }

    pub fn history(&self) -> SimHistory {
        let (start, ops) = self.recording.as_ref().expect("`record` comes before `history`");
        SimHistory::new(start.clone(), ops.clone())
    }

    pub fn image(&self) -> SimImage {
        let contents = self.entries.iter().map(|(name, inode)| (Arc::clone(name), self.content(*inode).clone()));
        SimImage::from_files(contents.collect())
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    pub fn set_fault(&mut self, fault: Option<Fault>) {
        self.injector = Injector::new(fault);
    }

    pub fn faults_struck(&self) -> u64 {
        self.injector.struck()
    }

    pub fn set_byte_budget(&mut self, budget: Option<u64>) {
        self.byte_budget = budget;
    }

    /// The unused part of the byte budget.
    fn available(&self) -> Option<u64> {
        Some(self.byte_budget?.saturating_sub(self.occupied()))
    }

    pub fn occupied(&self) -> u64 {
        self.files.values().map(|file| file.content.occupied()).sum::<u64>() + self.stranded.bytes()
    }

    pub fn set_hole_unit(&mut self, bytes: u64) {
        self.stranded = Stranded::new(bytes);
    }

    pub fn hole_unit(&self) -> u64 {
        self.stranded.unit()
    }

    pub fn advance_clock(&mut self, time: Duration) {
        self.clock += time;
    }

    fn now(&mut self) -> Duration {
        self.clock += LOOK_TIME;
        self.clock
    }

    /// Applies a change. All changes of state go through this function.
    fn commit(&mut self, op: SimOp) {
        match &op {
            SimOp::Create { inode, .. } => {
                let reused = self.files.insert(*inode, Cached::default());
                assert!(reused.is_none(), "{inode:?} was given twice");
                change_entries(&mut self.entries, &op);
            }
            SimOp::Rename { .. } | SimOp::Remove { .. } => change_entries(&mut self.entries, &op),
            SimOp::Write { inode, .. }
            | SimOp::SetLen { inode, .. }
            | SimOp::Allocate { inode, .. }
            | SimOp::Punch { inode, .. } => {
                let file = self.files.get_mut(inode).expect("an open file is kept");
                match &op {
                    SimOp::Punch { offset, len, .. } => self.stranded.leave(*inode, &file.content, *offset, *len),
                    SimOp::SetLen { len, .. } => self.stranded.leave(*inode, &file.content, *len, u64::MAX - len),
                    _ => {}
                }
                let len = file.content.len();
                change_content(&mut file.content, &op, Fate::Keep);
                debug_assert!(
                    matches!(op, SimOp::SetLen { .. }) || file.content.len() >= len,
                    "only setting the length cuts a file"
                );
            }
            SimOp::Sync { .. } | SimOp::SyncFailed { .. } | SimOp::SyncDir | SimOp::SyncDirFailed | SimOp::Mark(_) => {}
        }
        self.disk.feed(&op);
        if let Some((_, ops)) = &mut self.recording {
            ops.push(op);
        }
    }

    /// Counts an operation and advances the clock. If a fault strikes and makes the operation fail, returns the error.
    /// If the fault has another effect, returns the fault.
    fn begin(&mut self, operation: &Operation<'_>) -> io::Result<Option<FaultKind>> {
        self.counts[operation.kind as usize] += 1;
        self.clock += OPERATION_TIME;
        match self.injector.strike(operation) {
            Some(FaultKind::IoError(_)) => Err(io_error()),
            Some(FaultKind::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
            Some(FaultKind::StorageFull) => Err(io::ErrorKind::StorageFull.into()),
            Some(FaultKind::ClockJump) => {
                self.clock += CLOCK_JUMP;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    /// As [`Machine::begin`], for an operation on the directory.
    fn begin_entry(&mut self, kind: OpKind, name: Option<&str>) -> io::Result<Option<FaultKind>> {
        self.begin(&Operation { kind, name, range: None, divisible: false, needs_space: false })
    }

    /// As [`Machine::begin`], for an operation on an open file.
    fn begin_file(
        &mut self,
        kind: OpKind,
        inode: Inode,
        range: Option<Range<u64>>,
        divisible: bool,
    ) -> io::Result<Option<FaultKind>> {
        let name = self.entries.iter().find(|(_, named)| **named == inode).map(|(name, _)| Arc::clone(name));
        let needs_space = matches!(kind, OpKind::Write | OpKind::Allocate)
            && range.as_ref().is_some_and(|r| self.content(inode).missing(r.start, r.end - r.start) > 0);
        self.begin(&Operation { kind, name: name.as_deref(), range, divisible, needs_space })
    }

    fn inode(&self, name: &str) -> io::Result<Inode> {
        self.entries.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub fn content(&self, inode: Inode) -> &Content {
        &self.files.get(&inode).expect("a named or open file is kept").content
    }

    /// Rejects a change that would exceed the space budget.
    fn reserve(&self, inode: Inode, offset: u64, len: u64) -> io::Result<()> {
        let Some(budget) = self.byte_budget else { return Ok(()) };
        let missing = self.content(inode).missing(offset, len);
        if missing > 0 && self.occupied() + missing > budget {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Drops the bytes of a file without a name and without open handles.
    fn reap(&mut self, inode: Inode) {
        let named = self.entries.values().any(|named| *named == inode);
        let open = self.files.get(&inode).is_some_and(|file| file.handles > 0);
        if !named && !open {
            self.files.remove(&inode);
            self.stranded.forget(inode);
        }
    }

    fn open(&mut self, name: &str, how: OpenHow) -> io::Result<Inode> {
        let inode = if how.create_new {
            if self.entries.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.begin_entry(OpKind::Create, Some(name))?;
            let inode = Inode(self.inodes_given);
            self.inodes_given += 1;
            self.commit(SimOp::Create { inode, name: Arc::from(name) });
            inode
        } else {
            let inode = self.inode(name)?;
            self.begin_entry(OpKind::Open, Some(name))?;
            inode
        };
        self.files.get_mut(&inode).expect("a named file is kept").handles += 1;
        Ok(inode)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let inode = self.inode(from)?;
        self.begin_entry(OpKind::Rename, Some(from))?;
        if from == to {
            return Ok(());
        }
        let replaced = self.entries.get(to).copied();
        self.commit(SimOp::Rename { inode, from: Arc::from(from), to: Arc::from(to) });
        if let Some(replaced) = replaced {
            self.reap(replaced);
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let inode = self.inode(name)?;
        self.begin_entry(OpKind::Remove, Some(name))?;
        self.commit(SimOp::Remove { inode, name: Arc::from(name) });
        self.reap(inode);
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        match self.begin_entry(OpKind::SyncDir, None)? {
            Some(kind @ (FaultKind::FailedSync | FaultKind::FullSync)) => {
                self.commit(SimOp::SyncDirFailed);
                Err(sync_error(kind))
            }
            _ => {
                self.commit(SimOp::SyncDir);
                Ok(())
            }
        }
    }

    fn sync(&mut self, inode: Inode) -> io::Result<()> {
        match self.begin_file(OpKind::Sync, inode, None, false)? {
            Some(kind @ (FaultKind::FailedSync | FaultKind::FullSync)) => {
                self.commit(SimOp::SyncFailed { inode });
                Err(sync_error(kind))
            }
            _ => {
                self.commit(SimOp::Sync { inode });
                Ok(())
            }
        }
    }

    fn read(&mut self, inode: Inode, offset: u64, buf: &mut [u8], unit: usize) -> io::Result<usize> {
        let content = self.content(inode).clone();
        self.read_of(inode, &content, offset, buf, unit)
    }

    /// Reads from `content`, the file's content at some moment. Faults strike at the time of this call.
    pub fn read_of(
        &mut self,
        inode: Inode,
        content: &Content,
        offset: u64,
        buf: &mut [u8],
        unit: usize,
    ) -> io::Result<usize> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let fault = self.begin_file(OpKind::Read, inode, Some(range), buf.len() > unit)?;
        let asked = if fault == Some(FaultKind::ShortTransfer) { self.shorter(buf.len(), unit) } else { buf.len() };
        let n = content.read(offset, &mut buf[..asked]);
        debug_assert!(n <= asked, "{n} of {asked} bytes were read");
        if fault == Some(FaultKind::BitFlip) && n > 0 {
            let bit = self.rng.below(n as u64 * 8);
            buf[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        Ok(n)
    }

    /// A random number below `bound`, for the order of concurrent events.
    pub fn pick(&mut self, bound: usize) -> usize {
        self.order.below(bound as u64) as usize
    }

    pub fn queue_depth(&self) -> usize {
        self.queue_depth
    }

    pub fn set_queue_depth(&mut self, depth: usize) {
        self.queue_depth = depth;
    }

    fn write(&mut self, inode: Inode, offset: u64, buf: &[u8], unit: usize) -> io::Result<usize> {
        let range = offset..check_range(offset, buf.len() as u64)?;
        let fault = self.begin_file(OpKind::Write, inode, Some(range), buf.len() > unit)?;
        let (mut inode, mut offset, mut n) = (inode, offset, buf.len());
        match fault {
            Some(FaultKind::LostWrite) => return Ok(n),
            Some(FaultKind::ShortTransfer) => n = self.shorter(n, unit),
            Some(FaultKind::MisdirectedWrite) => (inode, offset) = self.elsewhere(inode, offset),
            _ => {}
        }
        if n > 0 {
            self.reserve(inode, offset, n as u64)?;
            self.commit(SimOp::Write { inode, patch: Patch::new(offset, &buf[..n]) });
        }
        Ok(n)
    }

    /// A random length below `len`, in whole units and at least one unit.
    fn shorter(&mut self, len: usize, unit: usize) -> usize {
        debug_assert!(len > unit, "there is no shorter transfer");
        let units = len.div_ceil(unit) as u64;
        let shorter = (1 + self.rng.below(units - 1) as usize) * unit;
        debug_assert!(0 < shorter && shorter < len, "a transfer of {shorter} instead of {len} bytes");
        shorter
    }

    /// The target of a misdirected write: another page, at the same offset in the page, of any file that has a name. If
    /// no other page exists, the target is the next page of the same file.
    fn elsewhere(&mut self, inode: Inode, offset: u64) -> (Inode, u64) {
        let page_bytes = PAGE as u64;
        let (page, within) = (offset / page_bytes, offset % page_bytes);
        let files: Vec<Inode> = self.entries.values().copied().collect();
        let target = if files.is_empty() { inode } else { files[self.rng.below(files.len() as u64) as usize] };
        let pages = self.content(target).len().div_ceil(page_bytes);
        if target != inode && pages > 0 {
            return (target, self.rng.below(pages) * page_bytes + within);
        }
        let pages = self.content(inode).len().div_ceil(page_bytes).max(page + 1);
        let other = if pages == 1 { 1 } else { (page + 1 + self.rng.below(pages - 1)) % pages };
        assert_ne!(other, page, "a misdirected write goes elsewhere");
        (inode, other * page_bytes + within)
    }

    fn set_len(&mut self, inode: Inode, len: u64) -> io::Result<()> {
        check_range(0, len)?;
        self.begin_file(OpKind::SetLen, inode, None, false)?;
        self.commit(SimOp::SetLen { inode, len });
        Ok(())
    }

    fn allocate(&mut self, inode: Inode, offset: u64, len: u64) -> io::Result<()> {
        let range = offset..check_range(offset, len)?;
        self.begin_file(OpKind::Allocate, inode, Some(range), false)?;
        self.reserve(inode, offset, len)?;
        self.commit(SimOp::Allocate { inode, offset, len });
        Ok(())
    }

    fn punch(&mut self, inode: Inode, offset: u64, len: u64) -> io::Result<()> {
        check_range(offset, len)?;
        self.begin_file(OpKind::Punch, inode, None, false)?;
        self.commit(SimOp::Punch { inode, offset, len });
        Ok(())
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine({} names, {} operations pending)", self.entries.len(), self.disk.pending().count())
    }
}

impl Device for SimDevice {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        check_name(name)?;
        let inode = self.machine.lock().open(name, how)?;
        let machine = Arc::clone(&self.machine);
        Ok(Arc::new(SimFile { machine, inode, write: how.write || how.create_new, direct: how.direct }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.machine.lock().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.machine.lock().remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut machine = self.machine.lock();
        machine.begin_entry(OpKind::List, None)?;
        Ok(machine.entries.keys().map(|name| name.to_string()).collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.machine.lock().sync_dir()
    }

    fn lock(&self, mode: LockMode) -> io::Result<Box<dyn LockGuard>> {
        self.locks.take(mode)
    }

    fn now(&self) -> Duration {
        self.machine.lock().now()
    }

    fn sleep(&self, time: Duration) {
        self.advance_clock(time);
    }

    fn random(&self) -> u64 {
        self.machine.lock().rng.next_u64()
    }

    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn JoinHandle>> {
        let message = format!("the simulator cannot start thread `{name}`; use 0 background threads");
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    fn path(&self) -> String {
        "(simulated)".to_owned()
    }

    fn available(&self) -> Option<u64> {
        self.machine.lock().available()
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct SimFile {
    pub machine: Arc<Mutex<Machine>>,
    pub inode: Inode,
    write: bool,
    direct: bool,
}

impl SimFile {
    /// Another handle to the file, for reading.
    fn again(&self) -> SimFile {
        let mut machine = self.machine.lock();
        machine.files.get_mut(&self.inode).expect("an open file is kept").handles += 1;
        SimFile { machine: Arc::clone(&self.machine), inode: self.inode, write: false, direct: self.direct }
    }

    fn writable(&self) -> io::Result<()> {
        if self.write { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Checks a transfer. Returns the number of bytes that are transferred atomically.
    pub fn transfer_unit(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        if self.direct {
            check_direct(offset, buf)?;
        }
        Ok(if self.direct { PAGE } else { 1 })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        let file = machine.files.get_mut(&self.inode).expect("an open file is kept");
        assert!(file.handles > 0, "each handle is counted once");
        file.handles -= 1;
        machine.reap(self.inode);
    }
}

impl File for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let unit = self.transfer_unit(offset, buf)?;
        self.machine.lock().read(self.inode, offset, buf, unit)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        self.writable()?;
        let unit = self.transfer_unit(offset, buf)?;
        self.machine.lock().write(self.inode, offset, buf, unit)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.machine.lock().content(self.inode).len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        self.machine.lock().set_len(self.inode, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        self.machine.lock().allocate(self.inode, offset, len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        self.machine.lock().punch(self.inode, offset, len)
    }

    fn hole_unit(&self) -> u64 {
        self.machine.lock().hole_unit()
    }

    fn sync(&self) -> io::Result<()> {
        self.machine.lock().sync(self.inode)
    }

    fn occupied(&self) -> io::Result<u64> {
        Ok(self.machine.lock().content(self.inode).occupied())
    }

    fn queue(&self) -> Option<Box<dyn Queue>> {
        let depth = self.machine.lock().queue_depth();
        (depth > 0).then(|| SimQueue::new(self.again(), depth) as Box<dyn Queue>)
    }
}
