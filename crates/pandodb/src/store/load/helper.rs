//! [`Helper`] is a thread that builds the index's structure for a sorted load, while the caller makes the next rows.
//!
//! ```text
//!   caller   rows ─▶ chunk ─▶ pass ─▶ full chunks ─▶ Builder::push ─▶ index       helper
//!                      ▲              ◀─ empty chunks ◀───────┘
//!            attach(range) ─────────▶ Builder::finish ─▶ outcome ─▶ caller
//! ```
//!
//! 1. The helper ends after its first error. The caller gets this error from its next call. A panic of the helper
//!    becomes a panic of this call.
//! 2. If the caller drops the helper instead, the helper drops its builder, which frees all pages of the load. The drop
//!    waits for this, and ignores an error or a panic of the helper.
//!
//! 3. Waking a thread costs as much as building some rows. So the helper is woken when a quarter of the queue is full,
//!    and a waiting caller when half of it is empty.
//!
//! Invariants: `bytes` is the memory of the full chunks. The outcome is set exactly once, after the builder of the
//! helper was dropped. The caller joins the thread before it returns, so nothing of the helper outlives the load.
//!
//! Locks: the lock of the queue is taken alone. No other lock is taken while it is held.

use std::collections::VecDeque;
use std::sync::Arc;

use super::builder::Builder;
use crate::base::sync::{Condvar, EXPLORED, Mutex};
use crate::base::{EntryBlock, KeyRange, Result, seeded};
use crate::device::JoinHandle;
use crate::store::engine::Engine;
use crate::store::state::KeyspaceState;

/// The caller's order to the helper.
enum Order {
    /// It pushes full chunks, and waits for the next one when none is left.
    Wait,
    /// It pushes the full chunks and then attaches the load.
    Attach(KeyRange),
    /// It drops the load at once.
    Drop,
}

struct State {
    full: VecDeque<EntryBlock>,
    /// Bytes of memory of the full chunks.
    bytes: usize,
    empty: Vec<EntryBlock>,
    order: Order,
    /// Whether the helper has ended.
    has_ended: bool,
    /// The result of the helper, until the caller takes it, which ends the load. A helper that has panicked leaves
    /// none.
    outcome: Option<Result<()>>,
}

struct Queue {
    state: Mutex<State>,
    /// Notified when enough chunks are passed or taken, when an order is given, and when the helper ends.
    changed: Condvar,
    /// The caller waits while the full chunks take this many bytes of memory.
    most: usize,
    chunk_bytes: usize,
}

/// The next task of a helper.
enum Task {
    Push(EntryBlock),
    Attach(KeyRange),
    Drop,
}

impl Queue {
    /// Waits for the next task.
    fn next(&self) -> Task {
        let mut state = self.state.lock();
        loop {
            if matches!(state.order, Order::Drop) {
                return Task::Drop;
            }
            let is_attached_early = seeded!(ChunksLeftBehind: matches!(state.order, Order::Attach(_)), false);
            if !is_attached_early && let Some(chunk) = state.full.pop_front() {
                let before = state.bytes;
                state.bytes -= chunk.memory();
                assert!(!state.full.is_empty() || state.bytes == 0, "the sum of the full chunks");
                if state.bytes <= self.most / 2 && before > self.most / 2 {
                    self.changed.notify_all();
                }
                return Task::Push(chunk);
            }
            if let Order::Attach(range) = &state.order {
                return Task::Attach(range.clone());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Adds a full chunk.
    fn add(&self, state: &mut State, chunk: EntryBlock) {
        let before = state.bytes;
        state.bytes += chunk.memory();
        state.full.push_back(chunk);
        if state.bytes >= self.most / 4 && before < self.most / 4 {
            self.changed.notify_all();
        }
    }

    /// Keeps an empty chunk for reuse, unless long rows have made it large.
    fn give_back(&self, mut chunk: EntryBlock) {
        chunk.clear();
        if chunk.allocated() <= 2 * self.chunk_bytes {
            self.state.lock().empty.push(chunk);
        }
    }

    /// Records that the helper has ended.
    fn end(&self, outcome: Option<Result<()>>) {
        let mut state = self.state.lock();
        assert!(!state.has_ended, "a helper ends once");
        (state.has_ended, state.outcome) = (true, outcome);
        self.changed.notify_all();
    }
}

/// Records the end of a helper, also after a panic.
struct Ending<'a> {
    queue: &'a Queue,
    outcome: Option<Result<()>>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.queue.end(self.outcome.take());
    }
}

/// The body of the helper's thread.
fn run(queue: &Queue, engine: &Engine, state: &Arc<KeyspaceState>) {
    let mut ending = Ending { queue, outcome: None };
    ending.outcome = Some(build(queue, engine, state));
}

fn build(queue: &Queue, engine: &Engine, state: &Arc<KeyspaceState>) -> Result<()> {
    let mut builder = Builder::begin(engine, state)?;
    loop {
        match queue.next() {
            Task::Push(chunk) => {
                builder.push(&chunk)?;
                queue.give_back(chunk);
            }
            Task::Attach(range) => return builder.finish(&range),
            Task::Drop => return Ok(()),
        }
    }
}

/// A thread that builds a sorted load. Dropping it before [`Helper::attach`] drops the load.
pub(super) struct Helper {
    queue: Arc<Queue>,
    engine: Arc<Engine>,
    /// Taken when the thread is joined.
    thread: Option<Box<dyn JoinHandle>>,
    /// Bytes of the pool that are reserved for waiting chunks.
    reserved: usize,
}

impl Helper {
    /// Starts a helper for chunks of `chunk_bytes`. Returns `None` if the store has no background threads or the system
    /// refuses the thread.
    pub fn start(engine: &Arc<Engine>, state: &Arc<KeyspaceState>, chunk_bytes: usize) -> Option<Helper> {
        /// Waiting chunks take at most 1/SHARE of the memory budget, but at least one chunk may wait.
        const SHARE: usize = 64;
        /// A builder writes its run in pieces of 1 MiB. This number of chunks has as many bytes.
        const MOST: usize = if EXPLORED { 2 } else { 16 };
        if engine.config.background_threads == 0 {
            return None;
        }
        let chunks = (engine.config.memory_budget / SHARE / chunk_bytes).clamp(1, MOST);
        let (full, empty) = (VecDeque::with_capacity(chunks), Vec::with_capacity(chunks + 1));
        let empty_state = State { full, bytes: 0, empty, order: Order::Wait, has_ended: false, outcome: None };
        let (state_of_queue, most) = (Mutex::new(empty_state), chunks * chunk_bytes);
        let queue = Arc::new(Queue { state: state_of_queue, changed: Condvar::new(), most, chunk_bytes });
        let (theirs, of, keyspace) = (queue.clone(), engine.clone(), state.clone());
        let body = Box::new(move || run(&theirs, &of, &keyspace));
        let thread = Some(engine.device.spawn("pando-load", body).ok()?);
        // The caller fills one more chunk, and the helper empties another. With their spare capacity chunks may take
        // twice their size.
        let reserved = 2 * (chunks + 2) * chunk_bytes;
        engine.core.pool.hold(reserved);
        Some(Helper { queue, engine: engine.clone(), thread, reserved })
    }

    /// Passes a chunk to the helper, and replaces it by an empty one. Waits while too many chunks wait.
    ///
    /// # Errors
    /// The error that has ended the helper. The load must then be dropped.
    ///
    /// # Panics
    /// If the helper has panicked.
    pub fn pass(&self, chunk: &mut EntryBlock) -> Result<()> {
        self.check_process()?;
        let (queue, mut state) = (&*self.queue, self.queue.state.lock());
        if state.bytes >= queue.most {
            while state.bytes > queue.most / 2 && !state.has_ended {
                queue.changed.wait(&mut state);
            }
        }
        if state.has_ended {
            let outcome = state.outcome.take().expect("the helper of a sorted load panicked");
            return Err(outcome.expect_err("without an order, only an error ends a helper"));
        }
        let empty = state.empty.pop().unwrap_or_default();
        queue.add(&mut state, std::mem::replace(chunk, empty));
        Ok(())
    }

    /// Waits until all chunks are in the index and the load is attached ([`Builder::finish`]).
    ///
    /// # Errors
    /// As [`Builder::finish`], and the error that has ended the helper.
    ///
    /// # Panics
    /// If the helper has panicked.
    pub fn attach(mut self, range: KeyRange) -> Result<()> {
        self.check_process()?;
        self.join(Order::Attach(range)).expect("the helper of a sorted load panicked")
    }

    /// Returns an error in a forked child, which has no helper and must not wait for one. The helper itself notices
    /// that the store accepts no writes.
    fn check_process(&self) -> Result<()> {
        if self.engine.access.is_inherited() { self.engine.access.check() } else { Ok(()) }
    }

    /// Gives the last order, waits for the end of the helper, and returns its outcome.
    fn join(&mut self, order: Order) -> Option<Result<()>> {
        let thread = self.thread.take()?;
        self.queue.state.lock().order = order;
        self.queue.changed.notify_all();
        thread.join();
        self.engine.core.pool.let_go(self.reserved);
        let mut state = self.queue.state.lock();
        assert!(state.has_ended, "the thread has ended");
        state.outcome.take()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.engine.access.is_inherited() {
            // The helper is a thread of the parent process. Free nothing that it may use, and take no lock of it.
            std::mem::forget((self.thread.take(), self.queue.clone()));
        } else {
            drop(self.join(Order::Drop));
        }
    }
}
