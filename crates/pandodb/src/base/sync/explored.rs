//! The synchronization primitives under the explorer: the types of `shuttle`, with the interfaces of the crates that
//! they replace. Only the methods that the engine uses are provided.
//!
//! All threads of an execution are coroutines on one thread of the system. The explorer switches between them at
//! *points*. For a type that has no point in `shuttle`, [`Point`] provides one. A thread passes this point before each
//! operation on the type.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// Whether an explorer schedules the threads: here always `true`.
pub const EXPLORED: bool = true;

/// Switches to another thread. Without the switch, a thread that waits in a loop for another thread would never end.
pub fn relax(_turn: u32) {
    shuttle::thread::yield_now();
}

/// Never waits under an explorer. A retry would add one more point, but would lead to no outcome that sleeping does not
/// also lead to.
pub fn linger(_turn: &mut u32) -> bool {
    false
}

/// The number of this thread in its execution. The number is parsed from the debug output, because `shuttle` offers no
/// other access.
pub fn thread_number() -> usize {
    let words = format!("{:?}", shuttle::thread::current().id());
    words.bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

/// A point at which the explorer may switch threads.
#[derive(Debug, Default)]
struct Point(AtomicBool);

impl Point {
    fn pass(&self) {
        self.0.load(super::Ordering::SeqCst);
    }
}

/// A mutex without poisoning, like that of `parking_lot`.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// A held [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    /// `None` only while the lock is released inside a call.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { of: self, held: Some(self.acquire()) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(std::sync::TryLockError::Poisoned(held)) => held.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { of: self, held: Some(held) })
    }

    fn acquire(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guarded value, without locking. The exclusive borrow shows that no other thread can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `work` with the lock released, then takes the lock again.
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        assert!(guard.held.is_some(), "the caller holds the lock");
        guard.held = None;
        let result = work();
        guard.held = Some(guard.of.acquire());
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("the lock is released only inside a call")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the lock is released only inside a call")
    }
}

/// A condition variable, like that of `parking_lot`.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// The result of a timed wait.
#[derive(Debug)]
pub struct TimedOut;

impl TimedOut {
    /// Whether the time has passed. It always has, because time does not exist under an explorer.
    pub fn timed_out(&self) -> bool {
        true
    }
}

impl Condvar {
    /// A condition variable without waiters.
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Releases the lock until a notification arrives, then takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held by the caller");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Releases the lock for a while, then takes it again. The explorer has no clock, so the timeout may end at any
    /// moment. The explorer chooses the moment at which the thread continues, so this method does not have to listen
    /// for notifications.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> TimedOut {
        MutexGuard::unlocked(guard, shuttle::thread::yield_now);
        TimedOut
    }

    /// Wakes a waiting thread. Returns `false`, because it is not known whether a thread was woken.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one();
        false
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A reader-writer lock without poisoning. It is stricter than that of `parking_lot` in one respect: a thread that
/// takes the lock shared twice panics. Taking it twice would deadlock if a writer waited between the two calls.
#[derive(Debug, Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    /// Waits for shared access.
    pub fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An `Arc` that is replaced atomically, like that of `arc_swap`.
#[derive(Debug)]
pub struct ArcSwap<T> {
    point: Point,
    /// The lock is never held across a point.
    current: parking_lot::Mutex<Arc<T>>,
}

/// The value of an [`ArcSwap`] at the time of a load, like the guard of `arc_swap`. Under the explorer, the guard is a
/// counted reference.
#[derive(Debug)]
pub struct Guard<R>(R);

impl<R> Guard<R> {
    /// A guard around a reference.
    pub fn from_inner(inner: R) -> Guard<R> {
        Guard(inner)
    }

    /// The reference.
    pub fn into_inner(guard: Guard<R>) -> R {
        guard.0
    }
}

impl<R> Deref for Guard<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0
    }
}

impl<T> ArcSwap<T> {
    /// An `ArcSwap` that holds `value`.
    pub fn new(value: Arc<T>) -> ArcSwap<T> {
        ArcSwap { point: Point::default(), current: parking_lot::Mutex::new(value) }
    }

    /// An `ArcSwap` that holds `value`.
    pub fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap::new(Arc::new(value))
    }

    /// The current value.
    pub fn load_full(&self) -> Arc<T> {
        self.point.pass();
        self.current.lock().clone()
    }

    /// The current value.
    pub fn load(&self) -> Guard<Arc<T>> {
        Guard(self.load_full())
    }

    /// Replaces the value and returns the old one.
    pub fn swap(&self, new: Arc<T>) -> Arc<T> {
        self.point.pass();
        std::mem::replace(&mut *self.current.lock(), new)
    }

    /// Replaces the value. The old value is dropped after the replacement, because dropping it may pass a point.
    pub fn store(&self, new: Arc<T>) {
        drop(self.swap(new));
    }

    /// Replaces the value by the result of `change`, and returns the old value. Retries if another thread has replaced the
    /// value during the call.
    pub fn rcu(&self, mut change: impl FnMut(&Arc<T>) -> T) -> Arc<T> {
        loop {
            let seen = self.load_full();
            let new = Arc::new(change(&seen));
            self.point.pass();
            let mut current = self.current.lock();
            if Arc::ptr_eq(&current, &seen) {
                return std::mem::replace(&mut *current, new);
            }
        }
    }
}

/// A cell that is set once, like that of the standard library.
#[derive(Debug)]
pub struct OnceLock<T> {
    point: Point,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub fn new() -> OnceLock<T> {
        OnceLock { point: Point::default(), value: std::sync::OnceLock::new() }
    }

    /// The value, if the cell is set.
    pub fn get(&self) -> Option<&T> {
        self.point.pass();
        self.value.get()
    }

    /// Sets the cell; returns `value` as an error if the cell is already set.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.point.pass();
        self.value.set(value)
    }

    /// Returns the cell's value. If the cell is empty, first sets the cell to the result of `value`. Unlike with the
    /// standard type, several threads may call `value` at once; the first thread that finishes sets the cell.
    pub fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
        self.point.pass();
        if let Some(set) = self.value.get() {
            return set;
        }
        let value = value();
        self.point.pass();
        self.value.get_or_init(|| value)
    }

    /// Takes the value out and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}
