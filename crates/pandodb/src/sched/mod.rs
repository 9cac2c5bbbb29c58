//! Background work: the worker threads, and the throttling of writers to the pace of the workers. The idea of spreading
//! this work over all writes comes from 001 §5.1.
//!
//! `sched` knows only *debt*, the bytes of work that accepted writes have caused, but not the kinds of work.
//!
//! ```text
//!   writer ── bytes, debt ──▶ price ──▶ paid_until += price ÷ pace ──▶ waits while paid_until is ahead of the clock
//!   worker ── step ─────────────────────────────▶ pace: bytes worked a second, over some seconds
//! ```
//!
//! Steps of a write: compute the price of the write from the debt ([`Load::price`]); charge the price
//! ([`Scheduler::pay`]); wait until the price is paid.
//!
//! * **No stall at a limit.** The price grows with the debt, so each write is slowed down a little. At a steady rate of
//!   writes, the debt is about [`SPREAD`] units times the write amplification of compactions.
//! * **A steady rate.** A writer pays its price by waiting for the time that the workers usually need for this many
//!   bytes ([`Pace`]). The writer does not wait until a worker has finished anything, so a worker that waits for a sync
//!   or loses its core does not stall writers. A new compaction adds its whole debt at one moment, but writers pay this
//!   debt gradually, over [`SPREAD`] units of writes.
//! * **Short waits spin.** A writer that must wait for some microseconds polls the clock instead of sleeping, as long
//!   as polling saves time ([`SpinPolicy`]).
//! * **A bounded wait.** A write waits at most 1 ms for each 2 KiB of its size (rounded up), and at most 64 ms in
//!   total. The next write pays the rest of what it owes. The price and the longest wait double for each memtable
//!   beyond the usual number that waits to be packed, because nothing else limits the memory of memtables. The longest
//!   wait also doubles, repeatedly, as the compaction debt grows beyond 128 units. Otherwise a writer would outrun
//!   a slow disk, and each read would search all runs that were not compacted yet. No wait is longer than one second.
//! * **No price for other work**: compactions that do not fit on a full disk, and compactions that a caller requested,
//!   cost writers nothing.
//! * Without background threads, each writer does the background work itself, in steps of at most [`FOREGROUND_STEP`]
//!   bytes, and pays with this work instead of waiting ([`Account`]). This mode is deterministic.
//! * **Steps fit small stores.** A step ([`Scheduler::step`]) and the slack of the account are at most a quarter of a
//!   memtable. So even if the memtables have only a few kilobytes, a compaction is divided into several steps with
//!   writes between them, as in a large store.
//!
//! Invariant: writers do not accumulate credit. Neither work that was done in advance nor a time without writes allows
//! a later burst of writes.

mod pace;

use std::time::Duration;

pub use pace::Pace;

use crate::base::spin::{LONGEST, SpinPolicy};
use crate::base::sync::{
    AtomicBool, AtomicU64, Condvar, EXPLORED, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// One moment: the unit in which the longest wait of a write is counted.
const MOMENT: Duration = Duration::from_millis(1);
/// A write may wait one moment for each `MOMENT_BYTES` bytes of its size, rounded up.
const MOMENT_BYTES: u64 = 2 << 10;
/// The longest wait in moments, before any doubling.
const MAX_MOMENTS: u64 = 64;
/// The longest wait doubles at most this many times.
const MOST_CROWD: u64 = 8;
/// If a writer's spin succeeds, the spin policy counts 1/`WORTH` of its duration as saved time. So if other threads
/// want the core, writers may lose about 1/`WORTH` of their spinning time before the policy lets them sleep.
const WORTH: u32 = 4;
/// The most times that a spinning writer reads the clock, in case the clock does not advance.
const MOST_LOOKS: u32 = 1 << 16;
/// The most times that a writer sleeps for one payment, in case the clock does not advance.
const ROUNDS: u32 = if EXPLORED { 1 } else { 4 };
/// The most bytes of work in one step of a worker.
pub const BACKGROUND_STEP: u64 = 256 << 10;
/// The most bytes of work in one step of a writer.
pub const FOREGROUND_STEP: u64 = 16 << 10;
/// Without background threads: the most bytes that writers may owe before a writer must do work.
const SLACK: u64 = 8 << 20;
/// An idle background thread looks for work again after this time.
const REST: Duration = Duration::from_millis(100);
/// The debt of compactions falls to about a third (1/e) within the writes of this many units.
pub const SPREAD: u64 = 8;
/// The value of [`Load::rate`] that means one byte of work for each byte written.
pub const RATE_UNIT: u64 = 1 << 16;
/// The compaction debt, in units, up to which the longest wait does not double.
const USUAL: u64 = 16 * SPREAD;
/// The longest wait doubles for each `PILE` units of compaction debt beyond [`USUAL`].
const PILE: u64 = 8 * SPREAD;

const _: () = assert!(FOREGROUND_STEP <= BACKGROUND_STEP, "a writer pauses for less than a worker");
const _: () = assert!(FOREGROUND_STEP <= SLACK, "a writer that owes the slack has a whole step to do");
const _: () = assert!(MAX_MOMENTS << MOST_CROWD <= u32::MAX as u64, "the longest wait is a number of moments");
const _: () = assert!(ROUNDS > 0 && MOST_LOOKS > 0 && WORTH > 0, "a writer waits at least once");

/// The debt and the free memory of a store, which determine the price of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of memtables that the indexes have not written yet.
    pub memory: u64,
    /// Bytes of all other background work that is owed.
    pub work: u64,
    /// The bytes of work that must be done for each byte written, so that all deadlines are met, in units of
    /// 1/[`RATE_UNIT`]; 0 if there is no deadline.
    pub rate: u64,
    /// The number of bytes that still fit into the active memtables.
    pub room: u64,
    /// The smallest size of a full memtable in bytes.
    pub memtable: u64,
    /// The unit of sizes in bytes, in which compaction debt is measured. By default it is a quarter of the memory
    /// budget.
    pub unit: u64,
    /// The number of memtables that wait to be packed, beyond the usual number.
    pub crowd: u64,
}

impl Load {
    /// The price of writing `bytes` bytes: the bytes of background work that the writer must wait for. A pure function.
    ///
    /// Owed work must be done while writers write [`SPREAD`] units, or earlier if a deadline requires it. Sealed
    /// memtables must be written before the active memtable is full, because a full active memtable leaves no room for
    /// writes.
    pub fn price(&self, bytes: u64) -> u64 {
        let unit = u128::from(self.unit.max(1));
        let spread = u128::from(bytes) * u128::from(self.work) / (unit * u128::from(SPREAD));
        let by_deadline = u128::from(bytes) * u128::from(self.rate) / u128::from(RATE_UNIT);
        let work = spread.max(by_deadline);
        // Count only a part of the room, so that the price rises before the room is used up.
        let room = u128::from(self.room.saturating_sub(self.memtable / 16).max(self.memtable / 64).max(1));
        let memory = u128::from(bytes) * u128::from(self.memory) / room;
        debug_assert!(work + memory <= u128::MAX >> MOST_CROWD, "the doubled price does not overflow");
        u64::try_from((work + memory) << self.crowd.min(MOST_CROWD)).unwrap_or(u64::MAX)
    }

    /// The longest wait of a write of `bytes` bytes. The wait grows with `bytes`; otherwise a writer of large batches
    /// would outrun the workers. The wait doubles for each memtable beyond the usual number that waits to be packed. It
    /// also doubles for each [`PILE`] of compaction debt beyond [`USUAL`]. Of the two numbers of doublings, the larger
    /// one applies.
    pub fn patience(&self, bytes: u64) -> Duration {
        let piles = (self.work / self.unit.max(1)).saturating_sub(USUAL) / PILE;
        let moments = (1 + bytes / MOMENT_BYTES).min(MAX_MOMENTS) << self.crowd.max(piles).min(MOST_CROWD);
        MOMENT * u32::try_from(moments).expect("the moments and the doublings are bounded")
    }
}

/// The account of writers that do the background work themselves. It records the bytes of work that they owe and the
/// bytes of work that they have done.
///
/// [`Account::due`] reads `owed` before `earned`. A thread that voids credit reads `earned` before it writes `owed`
/// with `Release`. So a thread that reads the new `owed` also reads an `earned` that includes the work whose credit was
/// voided. Otherwise the thread would have to do this work a second time (`crates/explore/loom`, model `account`).
#[derive(Debug)]
pub struct Account {
    owed: AtomicU64,
    earned: AtomicU64,
    slack: u64,
}

impl Account {
    /// Creates the account of a store whose smallest memtables have `memtable_bytes`.
    pub fn new(memtable_bytes: u64) -> Account {
        Account { owed: AtomicU64::new(0), earned: AtomicU64::new(0), slack: SLACK.min(memtable_bytes / 4) }
    }

    /// Adds `price` to the debt of writers. Returns the bytes of work that must be done before the write may continue.
    pub fn charge(&self, price: u64) -> u64 {
        let earned = self.earned.load(Relaxed);
        let before = self.owed.fetch_add(price, AcqRel);
        debug_assert!(before.checked_add(price).is_some(), "{before} bytes are owed, {price} more overflow");
        if before < earned {
            // Writers have done more work than they owed. Void this credit.
            let _ = self.owed.compare_exchange(before + price, earned + price, AcqRel, Relaxed);
        }
        self.due()
    }

    /// Records `bytes` of work that was done.
    pub fn earn(&self, bytes: u64) {
        let before = self.earned.fetch_add(bytes, Relaxed);
        debug_assert!(before.checked_add(bytes).is_some(), "{before} bytes are earned, {bytes} more overflow");
    }

    /// The bytes of work that writers owe beyond the slack.
    pub fn due(&self) -> u64 {
        let owed = self.owed.load(Acquire);
        owed.saturating_sub(self.earned.load(Relaxed) + self.slack)
    }

    /// Cancels the debt of writers. Called when there is no work to do.
    pub fn clear(&self) {
        self.owed.store(self.earned.load(Relaxed), Release);
    }
}

/// The result of one turn of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This many bytes of work were done.
    Worked(u64),
    /// There is nothing to do.
    Idle,
    /// Nothing can be done now, because of a full disk or a failure. The worker retries later.
    Stuck,
}

/// Starts, wakes and stops the background threads.
#[derive(Debug)]
pub struct Scheduler {
    account: Account,
    pace: Pace,
    memtable_bytes: u64,
    gate: Mutex<()>,
    /// The wake-up counter: the number of times that the background threads were woken.
    calls: AtomicU64,
    /// Wakes the background threads, because there may be work.
    work: Condvar,
    /// Wakes threads that wait for a worker to finish a turn.
    done: Condvar,
    /// Wakes throttled writers after their debt was cancelled.
    free: Condvar,
    /// The number of times that the debt of writers was cancelled.
    debt_cleared: AtomicU64,
    /// The number of workers that have found work in their last turn.
    busy: AtomicU64,
    /// The spin policy of throttled writers. `None` means that they always sleep.
    watcher: Option<SpinPolicy>,
    stop: AtomicBool,
}

impl Scheduler {
    /// Creates the scheduler of a store whose smallest memtables have `memtable_bytes`.
    pub fn new(memtable_bytes: u64) -> Scheduler {
        Scheduler {
            account: Account::new(memtable_bytes),
            pace: Pace::default(),
            memtable_bytes,
            gate: Mutex::new(()),
            calls: AtomicU64::new(0),
            work: Condvar::new(),
            done: Condvar::new(),
            free: Condvar::new(),
            debt_cleared: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            watcher: None,
            stop: AtomicBool::new(false),
        }
    }

    /// Sets whether throttled writers may spin. By default they sleep.
    #[must_use]
    pub fn watching(mut self, watching: bool) -> Scheduler {
        self.watcher = watching.then(SpinPolicy::default);
        self
    }

    /// The size of a step in bytes: `most`, but at most a quarter of the smallest memtable.
    pub fn step(&self, most: u64) -> u64 {
        most.min(self.memtable_bytes / 4)
    }

    /// The account of writers that do the background work themselves.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Runs `turn` repeatedly until the scheduler is stopped. This is the body of a worker thread.
    pub fn run(&self, turn: &dyn Fn() -> Turn, now: &dyn Fn() -> Duration) {
        let mut is_busy = false;
        while let Some(calls) = self.is_on() {
            let turn = turn();
            match turn {
                Turn::Worked(bytes) => {
                    if !std::mem::replace(&mut is_busy, true) {
                        self.busy.fetch_add(1, Relaxed);
                    }
                    self.pace.work(bytes, now());
                    self.done.notify_all();
                }
                Turn::Idle | Turn::Stuck => {
                    if std::mem::take(&mut is_busy) {
                        let busy = self.busy.fetch_sub(1, Relaxed);
                        debug_assert!(busy > 0, "this worker was counted as busy");
                    }
                    self.clear_debt();
                    self.done.notify_all();
                    self.rest(self.since(turn, calls));
                }
            }
        }
    }

    /// Called by a worker that has nothing to do. If no other worker has work, cancels the debt of the writers.
    fn clear_debt(&self) {
        let _gate = self.gate.lock();
        if self.busy.load(Relaxed) == 0 {
            self.pace.rest();
            self.debt_cleared.fetch_add(1, Relaxed);
            self.free.notify_all();
        }
    }

    /// Runs `turn` whenever the background threads are woken, until the scheduler is stopped. This is the body of a
    /// background thread whose work costs writers nothing.
    pub fn run_unmetered(&self, turn: &dyn Fn() -> Turn) {
        while let Some(calls) = self.is_on() {
            let turn = turn();
            self.done.notify_all();
            if !matches!(turn, Turn::Worked(_)) {
                self.rest(self.since(turn, calls));
            }
        }
    }

    /// The wake-up counter; `None` if the scheduler was stopped.
    fn is_on(&self) -> Option<u64> {
        (!self.stop.load(Relaxed)).then(|| self.calls.load(Relaxed))
    }

    /// The value of the wake-up counter up to which a turn has handled the wake-ups. `calls` is the counter's value
    /// before the turn. After [`Turn::Stuck`] the result is the current value. So all pending wake-ups are dropped, and
    /// a failing task that wakes the threads is not retried in a loop.
    fn since(&self, turn: Turn, calls: u64) -> u64 {
        if turn == Turn::Stuck { self.calls.load(Relaxed) } else { calls }
    }

    /// Sleeps until the wake-up counter differs from `seen`, but at most for [`REST`].
    fn rest(&self, seen: u64) {
        let mut gate = self.gate.lock();
        if self.is_on() == Some(seen) {
            self.work.wait_for(&mut gate, REST);
        }
    }

    /// Wakes the background threads, because there may be work.
    pub fn wake(&self) {
        let _gate = self.gate.lock();
        self.calls.fetch_add(1, Relaxed);
        self.work.notify_all();
    }

    /// Waits until a worker has done something, but at most for `time`.
    pub fn wait(&self, time: Duration) {
        let mut gate = self.gate.lock();
        if !self.stop.load(Relaxed) {
            self.done.wait_for(&mut gate, time);
        }
    }

    /// Charges a writer `price` at time `now`, and makes the writer wait until the price is paid, but at most for
    /// `most` ([`Load::patience`]). Returns how long the writer waited.
    pub fn pay(&self, price: u64, most: Duration, now: Duration, clock: &dyn Fn() -> Duration) -> Duration {
        if price == 0 {
            return Duration::ZERO;
        }
        let watcher = self.watcher.as_ref().filter(|_| !EXPLORED);
        let would_watch = watcher.is_some_and(SpinPolicy::is_enabled);
        let slack = if would_watch { pace::SLACK_WATCHING } else { pace::SLACK_ASLEEP };
        let debt_cleared = self.debt_cleared.load(Relaxed);
        let Some(until) = self.pace.charge(price, now, slack) else { return Duration::ZERO };
        debug_assert!(until > now, "a writer that is ahead waits for a later time");
        let until = until.min(now + most);
        let is_over = || self.debt_cleared.load(Relaxed) != debt_cleared || self.stop.load(Relaxed);
        let ended = match watcher.filter(|watcher| watcher.should_spin() && until - now <= LONGEST) {
            Some(watcher) => self.watch(watcher, until, now, clock, &is_over),
            None => self.sleep(until, now, clock, &is_over),
        };
        ended.saturating_sub(now)
    }

    /// Polls the clock until the time `until`, or until `is_over` returns `true`. Returns the last time that was read
    /// from the clock.
    fn watch(
        &self,
        watcher: &SpinPolicy,
        until: Duration,
        since: Duration,
        clock: &dyn Fn() -> Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Duration {
        let mut now = since;
        for _ in 0..MOST_LOOKS {
            if now >= until || is_over() {
                break;
            }
            std::hint::spin_loop();
            now = clock();
        }
        match now.saturating_sub(until) {
            late if late >= LONGEST => watcher.record_miss(late),
            // The spin may have been shorter than planned, because the debt was cancelled during the spin.
            _ => watcher.record_success(now.min(until).saturating_sub(since) / WORTH),
        }
        now
    }

    /// Sleeps until the time `until`, or until `is_over` returns `true`. Returns the last time that was read from the
    /// clock.
    fn sleep(
        &self,
        until: Duration,
        mut now: Duration,
        clock: &dyn Fn() -> Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Duration {
        for _ in 0..ROUNDS {
            {
                // `clear_debt` and `stop` hold the gate while they change the fields that `is_over` reads, so no notification is
                // lost.
                let mut gate = self.gate.lock();
                if is_over() {
                    break;
                }
                self.free.wait_for(&mut gate, until.saturating_sub(now));
            }
            now = clock();
            if now >= until {
                break;
            }
        }
        now
    }

    /// Tells the background threads to end after their current turn, and wakes all waiting threads.
    pub fn stop(&self) {
        let _gate = self.gate.lock();
        self.stop.store(true, Relaxed);
        [&self.work, &self.done, &self.free].into_iter().for_each(|condition| {
            condition.notify_all();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_price_rises_with_the_debt_and_with_the_memtable() {
        let free = Load { memory: 0, work: 0, rate: 0, room: 32 * MIB, memtable: 32 * MIB, unit: 32 * MIB, crowd: 0 };
        assert_eq!(free.price(1000), 0);
        let owing = Load { work: 64 * MIB, ..free };
        assert_eq!(owing.price(1000), 64 * 1000 / (32 * SPREAD));
        assert_eq!(Load { unit: 64 * MIB, ..owing }.price(1000), 64 * 1000 / (64 * SPREAD));
        let packing = Load { memory: 32 * MIB, room: 31 * MIB, ..free };
        let nearly_full = Load { room: 3 * MIB, ..packing };
        assert!(packing.price(1000) < 1200 && nearly_full.price(1000) > 20_000);
        assert_eq!(Load { unit: 64 * MIB, ..nearly_full }.price(1000), nearly_full.price(1000), "no matter of units");
        assert_eq!(
            Load { crowd: 3, ..owing }.price(1000),
            8 * owing.price(1000),
            "the price doubles for each waiting memtable"
        );
        // If there is no room, the price is high, and the computation does not divide by zero.
        assert!(Load { room: 0, ..packing }.price(1000) >= nearly_full.price(1000));
        let due = Load { rate: 3 * RATE_UNIT, ..free };
        assert_eq!(due.price(1000), 3000, "a deadline asks for three bytes of work a byte");
        assert_eq!(Load { work: 640 * MIB, ..due }.price(1000), 3000, "the steeper of both");
        assert_eq!(Load { work: 1280 * MIB, ..due }.price(1000), 5000);
    }

    #[test]
    fn the_longest_wait_grows_with_the_write_and_the_debt_up_to_a_limit() {
        let free = Load { memory: 0, work: 0, rate: 0, room: MIB, memtable: MIB, unit: MIB, crowd: 0 };
        let moments = |load: Load, bytes| load.patience(bytes).as_millis() as u64;
        assert_eq!([0, 100, 2 << 10, 5 << 10, 1 << 30].map(|bytes| moments(free, bytes)), [1, 1, 2, 3, MAX_MOMENTS]);
        let crowded = |crowd| moments(Load { crowd, ..free }, 100);
        assert_eq!([0, 1, 3, 100].map(crowded), [1, 2, 8, 1 << MOST_CROWD]);
        let piled = |units| moments(Load { work: units * MIB, ..free }, 100);
        assert_eq!([USUAL, USUAL + PILE, USUAL + 3 * PILE, 1 << 30].map(piled), [1, 2, 8, 1 << MOST_CROWD]);
        assert_eq!(moments(Load { unit: 2 * MIB, work: (USUAL + PILE) * MIB, ..free }, 100), 1);
    }

    /// Simulates a thread that makes writes of `write` bytes without a pause, and workers that compact `rate` bytes a
    /// second. Each byte is compacted ten times. Returns the largest debt, in memtables.
    fn largest_debt(write: u64, rate: u64, memtable: u64) -> u64 {
        let pace = Pace::default();
        let (mut now, mut owed, mut most) = (Duration::from_secs(1), 0, 0);
        for _ in 0..1000 * memtable / write {
            let load = Load { memory: 0, work: owed, rate: 0, room: memtable, memtable, unit: memtable, crowd: 0 };
            let until = pace
                .charge(load.price(write), now, pace::SLACK_ASLEEP)
                .map(|until| until.min(now + load.patience(write)));
            let then = until.unwrap_or(now) + Duration::from_micros(20);
            let done = (rate as f64 * (then - now).as_secs_f64()) as u64;
            owed = (owed + 10 * write).saturating_sub(done);
            most = most.max(owed / memtable);
            now = then;
            pace.work(done, now);
        }
        most
    }

    #[test]
    fn one_writer_of_batches_does_not_outrun_a_slow_disk() {
        // No write waits for more than one second. So a thread with larger writes than these outruns a disk of 2 MiB a
        // second.
        let k = 1 << 10;
        for (write, memtable) in
            [(128, 64 * k), (4 * k, 64 * k), (32 * k, 64 * k), (32 * k, 2 * MIB), (128 * k, 2 * MIB)]
        {
            for rate in [2 * MIB, 20 * MIB, 200 * MIB] {
                let most = largest_debt(write, rate, memtable);
                assert!(most <= 512, "{most} memtables of {memtable} bytes, writes of {write}, {rate} bytes a second");
            }
        }
    }

    /// A scheduler with spinning writers, and a clock that advances by `step` each time that it is read.
    fn owing(step: Duration) -> (Scheduler, impl Fn() -> Duration) {
        let time = AtomicU64::new(1_000_000_000);
        let clock = move || Duration::from_nanos(time.fetch_add(step.as_nanos() as u64, Relaxed));
        (Scheduler::new(32 * MIB).watching(true), clock)
    }

    const MOMENTS: Duration = Duration::from_millis(5);

    #[test]
    fn a_spinning_writer_waits_until_its_debt_is_half_the_slack_ahead() {
        let (scheduler, clock) = owing(Duration::from_nanos(50));
        // The price of 40 µs at the assumed initial pace.
        let price = 256 * MIB * 40 / 1_000_000;
        let began = clock();
        scheduler.pay(price, MOMENTS, began, &clock);
        let took = clock() - began;
        let due = Duration::from_micros(40) - pace::SLACK_WATCHING / 2;
        assert!(took >= due && took < due + Duration::from_micros(1), "{took:?}");
        let again = clock();
        scheduler.pay(price / 40, MOMENTS, again, &clock);
        assert!(clock() - again < Duration::from_micros(1), "debt within the slack needs no wait");
    }

    #[test]
    fn writers_stop_spinning_when_they_lose_the_core_and_not_otherwise() {
        let (scheduler, clock) = owing(Duration::from_micros(1));
        let watcher = scheduler.watcher.as_ref().expect("watching");
        for _ in 0..1000 {
            scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, clock(), &clock);
        }
        assert!(watcher.is_enabled());
        // The clock advances by 4 ms between two reads, as if another thread had run on the core.
        let (scheduler, clock) = owing(Duration::from_millis(4));
        let watcher = scheduler.watcher.as_ref().expect("watching");
        for _ in 0..10 {
            scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, clock(), &clock);
        }
        assert!(!watcher.is_enabled());
    }

    #[test]
    fn spins_end_after_a_bounded_number_of_looks_and_when_the_debt_is_cancelled() {
        let (scheduler, _) = owing(Duration::ZERO);
        let looks = AtomicU64::new(0);
        let still = || {
            looks.fetch_add(1, Relaxed);
            Duration::from_secs(1)
        };
        scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, Duration::from_secs(1), &still);
        assert_eq!(looks.swap(0, Relaxed), u64::from(MOST_LOOKS));
        // If the wait is longer, the writer does not spin; it sleeps in a few timed waits.
        scheduler.pay(256 * MIB * 400 / 1_000_000, MOMENTS, Duration::from_secs(1), &still);
        assert_eq!(looks.swap(0, Relaxed), u64::from(ROUNDS));
        // After the clock was read ten times, the scheduler is stopped, or the debt is cancelled and another writer is
        // charged.
        let clear_debt = |it: &Scheduler| {
            it.clear_debt();
            it.pace.charge(256 * MIB, Duration::from_secs(1), pace::SLACK_ASLEEP);
        };
        for ends in [clear_debt, Scheduler::stop] {
            let (scheduler, _) = owing(Duration::ZERO);
            let clock = || {
                if looks.fetch_add(1, Relaxed) == 9 {
                    ends(&scheduler);
                }
                Duration::from_secs(1)
            };
            scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, Duration::from_secs(1), &clock);
            assert_eq!(looks.swap(0, Relaxed), 10);
        }
    }

    #[test]
    fn credit_does_not_accumulate() {
        let account = Account::new(32 * MIB);
        account.earn(100 * MIB);
        assert_eq!(account.charge(SLACK), 0);
        assert_eq!(account.charge(MIB), MIB, "work done in advance gives no credit");
        account.earn(MIB);
        assert_eq!(account.due(), 0);
    }
}
