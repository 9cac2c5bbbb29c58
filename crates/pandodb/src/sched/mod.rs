//! Background work: who does it, and how writers pay for it (design §7, 001 §5.1 for the deamortised form).
//!
//! `sched` knows one thing: *debt*, the bytes of work that accepted writes have caused. It does not know what the work is.
//!
//! ```text
//!   writer ── bytes, debt ──▶ price ──▶ paid_until += price ÷ pace ──▶ waits while paid_until is ahead of the clock
//!   worker ── step ─────────────────────────────▶ pace: bytes worked a second, over some seconds
//! ```
//!
//! * **No cliff.** The price grows with the debt, so a writer slows down a little at every write instead of standing still
//!   at some limit. In balance the debt stays at about [`SPREAD`] times the write amplification of compactions, in memtables.
//! * **A level rate.** A writer pays in time, at the workers' usual pace ([`Pace`]), not in work that it sees done: a worker that pauses for a
//!   sync or is taken off its core stops nobody. And the debt of a compaction, which comes at once, is paid over [`SPREAD`] memtables.
//! * **No timer.** A writer that has to wait for some microseconds watches the clock instead of sleeping, where that serves ([`Patience`]).
//! * **A bounded wait.** A write waits at most 1 ms for each 2 KiB that it begins, and at most 64 ms; what it still owes, the next one pays.
//!   While memtables pile up, the price and the longest wait double for each of them: their memory is bounded by nothing else. Beyond 128
//!   memtables of compaction debt the longest wait doubles, too: otherwise a writer outruns a slow disk, and each read searches all runs that
//!   were not compacted. No wait is longer than a second.
//! * **No price for the work of others**: compactions that do not fit on a full disk, and those that a caller asked for, cost writers nothing.
//! * With no background threads the writer does the steps itself, in pieces of [`FOREGROUND_STEP`], and pays in work ([`Account`]): deterministic.
//! * **Small stores scale.** A step ([`Scheduler::step`]) and the slack of the account are at most a quarter of a memtable: a store of a few
//!   kilobytes parks its compactions between writes as a large one does.
//!
//! Invariant: credit does not pile up: neither work that ran ahead nor time in which nobody wrote buys a later burst.

mod pace;

use std::time::Duration;

pub use pace::Pace;

use crate::base::patience::{LONGEST, Patience};
use crate::base::sync::{
    AtomicBool, AtomicU64, Condvar, EXPLORED, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// The unit of a writer's patience.
const MOMENT: Duration = Duration::from_millis(1);
/// A write waits at most one moment for each piece of this size that it begins, in bytes,
const MOMENT_BYTES: u64 = 2 << 10;
/// and at most this number of moments.
const MAX_MOMENTS: u64 = 64;
/// The longest wait doubles at most this number of times.
const MOST_CROWD: u64 = 8;
/// A watch of the clock counts as so much of itself saved: while others want the core, so much of the time that is watched may be lost to them
/// before writers sleep.
const WORTH: u32 = 4;
/// How often a writer that watches looks at the clock at most: where it stands still.
const MOST_LOOKS: u32 = 1 << 16;
/// How often a writer waits at most: where the time stands still it is to come to an end, too.
const ROUNDS: u32 = if EXPLORED { 1 } else { 4 };
/// Bytes of work in one step of a worker, at most.
pub const BACKGROUND_STEP: u64 = 256 << 10;
/// Bytes of work in one step of a writer, at most.
pub const FOREGROUND_STEP: u64 = 64 << 10;
/// Bytes that a writer which works itself may owe before it does, at most.
const SLACK: u64 = 8 << 20;
/// A background thread that has nothing to do looks again after that.
const REST: Duration = Duration::from_millis(100);
/// The debt of compactions falls to a third within the writes of so many memtables.
pub const SPREAD: u64 = 8;
/// The unit of [`Load::rate`]: one byte of work for each byte written.
pub const RATE_UNIT: u64 = 1 << 16;
/// Compaction debt that is usual, in memtables.
const USUAL: u64 = 16 * SPREAD;
/// The longest wait doubles with each further compaction debt of this size, in memtables.
const PILE: u64 = 8 * SPREAD;

/// What a writer is up against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of memtables that the indexes have not written yet.
    pub memory: u64,
    /// Bytes of further work owed.
    pub work: u64,
    /// Bytes of work for each byte written that deadlines ask for, in units of 1/[`RATE_UNIT`]; 0 without a deadline.
    pub rate: u64,
    /// Bytes that still fit into the active memtables.
    pub room: u64,
    /// Bytes of a full memtable.
    pub memtable: u64,
    /// Memtables that wait to be packed, beyond what is usual.
    pub crowd: u64,
}

impl Load {
    /// Bytes of background work that `bytes` of writing must wait for. Pure.
    ///
    /// Work is due within [`SPREAD`] memtables, or earlier if a deadline says so; memtables must be written before the active one is full,
    /// since then there is no room.
    pub fn price(&self, bytes: u64) -> u64 {
        let memtable = u128::from(self.memtable.max(1));
        let spread = u128::from(bytes) * u128::from(self.work) / (memtable * u128::from(SPREAD));
        let by_deadline = u128::from(bytes) * u128::from(self.rate) / u128::from(RATE_UNIT);
        let work = spread.max(by_deadline);
        // A part of the room is kept back, so that the price rises before the room is gone.
        let room = u128::from(self.room.saturating_sub(self.memtable / 16).max(self.memtable / 64).max(1));
        let memory = u128::from(bytes) * u128::from(self.memory) / room;
        u64::try_from((work + memory) << self.crowd.min(MOST_CROWD)).unwrap_or(u64::MAX)
    }

    /// The longest wait of a write of `bytes` bytes. It grows with the size, or a writer of batches would outrun the workers. It doubles
    /// for each memtable that waits to be packed beyond what is usual, or for each [`PILE`] of compaction debt beyond [`USUAL`], whichever is
    /// more.
    pub fn patience(&self, bytes: u64) -> Duration {
        let piles = (self.work / self.memtable.max(1)).saturating_sub(USUAL) / PILE;
        let moments = (1 + bytes / MOMENT_BYTES).min(MAX_MOMENTS) << self.crowd.max(piles).min(MOST_CROWD);
        MOMENT * moments as u32
    }
}

/// The account of writers that do the work themselves.
///
/// `owed` is read before `earned`, and written with `Release` by whoever has looked at `earned`: who sees credit voided sees
/// the work that it was voided for, too, and does not owe it again (`crates/explore/loom`, model `account`).
#[derive(Debug)]
pub struct Account {
    owed: AtomicU64,
    earned: AtomicU64,
    slack: u64,
}

impl Account {
    /// An account of a store with memtables of so many bytes.
    pub fn new(memtable_bytes: u64) -> Account {
        Account { owed: AtomicU64::new(0), earned: AtomicU64::new(0), slack: SLACK.min(memtable_bytes / 4) }
    }

    /// A writer owes `price` more. Returns what is to be worked off before it may go on.
    pub fn charge(&self, price: u64) -> u64 {
        let earned = self.earned.load(Relaxed);
        let before = self.owed.fetch_add(price, AcqRel);
        if before < earned {
            // A worker that ran ahead: old credit is void.
            let _ = self.owed.compare_exchange(before + price, earned + price, AcqRel, Relaxed);
        }
        self.due()
    }

    /// Work was done.
    pub fn earn(&self, bytes: u64) {
        self.earned.fetch_add(bytes, Relaxed);
    }

    /// What is owed beyond the slack.
    pub fn due(&self) -> u64 {
        let owed = self.owed.load(Acquire);
        owed.saturating_sub(self.earned.load(Relaxed) + self.slack)
    }

    /// There is no debt: nothing is owed.
    pub fn clear(&self) {
        self.owed.store(self.earned.load(Relaxed), Release);
    }
}

/// What one turn of a worker came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Work was done.
    Worked(u64),
    /// Nothing to do.
    Idle,
    /// Nothing can be done now (a full disk, a failure): try again later.
    Stuck,
}

/// Starts, wakes and stops the background threads.
#[derive(Debug)]
pub struct Scheduler {
    account: Account,
    pace: Pace,
    memtable_bytes: u64,
    gate: Mutex<()>,
    /// How often the background threads were called.
    calls: AtomicU64,
    /// Wakes them: there may be work.
    work: Condvar,
    /// Wakes those who wait for work: something was done.
    done: Condvar,
    /// Wakes writers: nothing is owed.
    free: Condvar,
    /// How often the debt of writers was forgiven.
    forgiven: AtomicU64,
    /// Workers that have found work since they rested.
    busy: AtomicU64,
    /// Of writers who pay, if they are to watch the clock for it.
    watcher: Option<Patience>,
    stop: AtomicBool,
}

impl Scheduler {
    /// The scheduler of a store with memtables of so many bytes.
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
            forgiven: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            watcher: None,
            stop: AtomicBool::new(false),
        }
    }

    /// Whether writers who pay watch the clock, where that serves; they sleep if this is not said.
    #[must_use]
    pub fn watching(mut self, watching: bool) -> Scheduler {
        self.watcher = watching.then(Patience::default);
        self
    }

    /// The bytes of a step: `most`, but not more than a quarter of a memtable.
    pub fn step(&self, most: u64) -> u64 {
        most.min(self.memtable_bytes / 4)
    }

    /// The account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Runs `turn` until the scheduler is stopped: the body of a worker thread.
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
                        self.busy.fetch_sub(1, Relaxed);
                    }
                    self.forgive();
                    self.done.notify_all();
                    self.rest(self.since(turn, calls));
                }
            }
        }
    }

    /// A worker has nothing to do: if no other has, nothing is owed.
    fn forgive(&self) {
        let _gate = self.gate.lock();
        if self.busy.load(Relaxed) == 0 {
            self.pace.rest();
            self.forgiven.fetch_add(1, Relaxed);
            self.free.notify_all();
        }
    }

    /// Runs `turn` whenever the threads are called, until the scheduler is stopped: the body of a thread whose work is not paid for.
    pub fn attend(&self, turn: &dyn Fn() -> Turn) {
        while let Some(calls) = self.is_on() {
            let turn = turn();
            self.done.notify_all();
            if !matches!(turn, Turn::Worked(_)) {
                self.rest(self.since(turn, calls));
            }
        }
    }

    /// How often threads were called so far, unless they are to end.
    fn is_on(&self) -> Option<u64> {
        (!self.stop.load(Relaxed)).then(|| self.calls.load(Relaxed))
    }

    /// The calls to be regarded as answered by a turn before which there were so many. Where nothing can be done all of them are: what calls may be
    /// what failed, and would go round without a rest.
    fn since(&self, turn: Turn, calls: u64) -> u64 {
        if turn == Turn::Stuck { self.calls.load(Relaxed) } else { calls }
    }

    /// Waits for a call after those that were seen.
    fn rest(&self, seen: u64) {
        let mut gate = self.gate.lock();
        if self.is_on() == Some(seen) {
            self.work.wait_for(&mut gate, REST);
        }
    }

    /// There may be work: calls the background threads.
    pub fn nudge(&self) {
        let _gate = self.gate.lock();
        self.calls.fetch_add(1, Relaxed);
        self.work.notify_all();
    }

    /// Waits a moment for something to be done.
    pub fn wait(&self, time: Duration) {
        let mut gate = self.gate.lock();
        if !self.stop.load(Relaxed) {
            self.done.wait_for(&mut gate, time);
        }
    }

    /// Charges a writer, at `now`, and makes it wait until it has paid, or for `most` ([`Load::patience`]). How long it waited.
    pub fn pay(&self, price: u64, most: Duration, now: Duration, clock: &dyn Fn() -> Duration) -> Duration {
        if price == 0 {
            return Duration::ZERO;
        }
        let watcher = self.watcher.as_ref().filter(|_| !EXPLORED);
        let would_watch = watcher.is_some_and(Patience::is_left);
        let slack = if would_watch { pace::SLACK_WATCHING } else { pace::SLACK_ASLEEP };
        let forgiven = self.forgiven.load(Relaxed);
        let Some(until) = self.pace.charge(price, now, slack) else { return Duration::ZERO };
        let until = until.min(now + most);
        let is_over = || self.forgiven.load(Relaxed) != forgiven || self.stop.load(Relaxed);
        let ended = match watcher.filter(|watcher| watcher.watches() && until - now <= LONGEST) {
            Some(watcher) => self.watch(watcher, until, now, clock, &is_over),
            None => self.sleep(until, now, clock, &is_over),
        };
        ended.saturating_sub(now)
    }

    /// Looks at the clock until then, or until `is_over`. When it ended.
    fn watch(
        &self,
        watcher: &Patience,
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
            late if late >= LONGEST => watcher.was_in_vain(late),
            // Shorter than it was to be where nothing is owed any more.
            _ => watcher.went_well(now.min(until).saturating_sub(since) / WORTH),
        }
        now
    }

    /// Sleeps until then, or until `is_over`. When it ended, as of its last look at the clock.
    fn sleep(
        &self,
        until: Duration,
        mut now: Duration,
        clock: &dyn Fn() -> Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Duration {
        for _ in 0..ROUNDS {
            {
                // Who forgives holds the gate: that is not missed.
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

    /// Tells the background threads to end after their current turn.
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
        let free = Load { memory: 0, work: 0, rate: 0, room: 32 * MIB, memtable: 32 * MIB, crowd: 0 };
        assert_eq!(free.price(1000), 0);
        let owing = Load { work: 64 * MIB, ..free };
        assert_eq!(owing.price(1000), 64 * 1000 / (32 * SPREAD));
        let packing = Load { memory: 32 * MIB, room: 31 * MIB, ..free };
        let nearly_full = Load { room: 3 * MIB, ..packing };
        assert!(packing.price(1000) < 1200 && nearly_full.price(1000) > 20_000);
        assert_eq!(
            Load { crowd: 3, ..owing }.price(1000),
            8 * owing.price(1000),
            "and doubles where memtables pile up"
        );
        // No room at all is a high price, not a division by zero.
        assert!(Load { room: 0, ..packing }.price(1000) >= nearly_full.price(1000));
        let due = Load { rate: 3 * RATE_UNIT, ..free };
        assert_eq!(due.price(1000), 3000, "a deadline asks for three bytes of work a byte");
        assert_eq!(Load { work: 640 * MIB, ..due }.price(1000), 3000, "the steeper of both");
        assert_eq!(Load { work: 1280 * MIB, ..due }.price(1000), 5000);
    }

    #[test]
    fn a_small_write_waits_once_and_none_for_long() {
        let free = Load { memory: 0, work: 0, rate: 0, room: MIB, memtable: MIB, crowd: 0 };
        let moments = |load: Load, bytes| load.patience(bytes).as_millis() as u64;
        assert_eq!([0, 100, 2 << 10, 5 << 10, 1 << 30].map(|bytes| moments(free, bytes)), [1, 1, 2, 3, MAX_MOMENTS]);
        let crowded = |crowd| moments(Load { crowd, ..free }, 100);
        assert_eq!([0, 1, 3, 100].map(crowded), [1, 2, 8, 1 << MOST_CROWD]);
        let piled = |memtables| moments(Load { work: memtables * MIB, ..free }, 100);
        assert_eq!([USUAL, USUAL + PILE, USUAL + 3 * PILE, 1 << 30].map(piled), [1, 2, 8, 1 << MOST_CROWD]);
    }

    /// Simulates a thread that writes `write` bytes at a time without a pause, and workers that compact `rate` bytes a second; each byte is
    /// compacted ten times. Returns the largest debt, in memtables.
    fn largest_debt(write: u64, rate: u64, memtable: u64) -> u64 {
        let pace = Pace::default();
        let (mut now, mut owed, mut most) = (Duration::from_secs(1), 0, 0);
        for _ in 0..1000 * memtable / write {
            let load = Load { memory: 0, work: owed, rate: 0, room: memtable, memtable, crowd: 0 };
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
        // No write waits for more than a second, so larger ones do outrun 2 MiB a second.
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

    /// A scheduler that owes enough for every write to wait, and a clock that goes on by so much with each look.
    fn owing(step: Duration) -> (Scheduler, impl Fn() -> Duration) {
        let time = AtomicU64::new(1_000_000_000);
        let clock = move || Duration::from_nanos(time.fetch_add(step.as_nanos() as u64, Relaxed));
        (Scheduler::new(32 * MIB).watching(true), clock)
    }

    const MOMENTS: Duration = Duration::from_millis(5);

    #[test]
    fn who_watches_the_clock_waits_until_what_he_owes_is_half_a_slack_away() {
        let (scheduler, clock) = owing(Duration::from_nanos(50));
        // 40 µs at the pace that is believed at first.
        let price = 256 * MIB * 40 / 1_000_000;
        let began = clock();
        scheduler.pay(price, MOMENTS, began, &clock);
        let took = clock() - began;
        let due = Duration::from_micros(40) - pace::SLACK_WATCHING / 2;
        assert!(took >= due && took < due + Duration::from_micros(1), "{took:?}");
        let again = clock();
        scheduler.pay(price / 40, MOMENTS, again, &clock);
        assert!(clock() - again < Duration::from_micros(1), "what is within the slack is not waited for");
    }

    #[test]
    fn who_is_kept_from_looking_sleeps_from_then_on_and_who_watches_well_does_not() {
        let (scheduler, clock) = owing(Duration::from_micros(1));
        let watcher = scheduler.watcher.as_ref().expect("watching");
        for _ in 0..1000 {
            scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, clock(), &clock);
        }
        assert!(watcher.is_left());
        // Each look comes four milliseconds after the one before: somebody else has the core meanwhile.
        let (scheduler, clock) = owing(Duration::from_millis(4));
        let watcher = scheduler.watcher.as_ref().expect("watching");
        for _ in 0..10 {
            scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, clock(), &clock);
        }
        assert!(!watcher.is_left());
    }

    #[test]
    fn nobody_watches_for_long_nor_a_clock_that_stands_still_nor_for_what_is_forgiven() {
        let (scheduler, _) = owing(Duration::ZERO);
        let looks = AtomicU64::new(0);
        let still = || {
            looks.fetch_add(1, Relaxed);
            Duration::from_secs(1)
        };
        scheduler.pay(256 * MIB * 40 / 1_000_000, MOMENTS, Duration::from_secs(1), &still);
        assert_eq!(looks.swap(0, Relaxed), u64::from(MOST_LOOKS));
        // What takes longer is slept for: a few rounds of a timer.
        scheduler.pay(256 * MIB * 400 / 1_000_000, MOMENTS, Duration::from_secs(1), &still);
        assert_eq!(looks.swap(0, Relaxed), u64::from(ROUNDS));
        // After ten looks nothing is owed any more, though another writer owes at once, or the store closes.
        let forgive = |it: &Scheduler| {
            it.forgive();
            it.pace.charge(256 * MIB, Duration::from_secs(1), pace::SLACK_ASLEEP);
        };
        for ends in [forgive, Scheduler::stop] {
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
    fn credit_does_not_pile_up() {
        let account = Account::new(32 * MIB);
        account.earn(100 * MIB);
        assert_eq!(account.charge(SLACK), 0);
        assert_eq!(account.charge(MIB), MIB, "nothing was bought by the work before");
        account.earn(MIB);
        assert_eq!(account.due(), 0);
    }
}
