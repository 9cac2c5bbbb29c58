//! [`Control`]: an idle thread that measures how much longer its sleeps take than requested. The machine can add this
//! delay to any latency.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The duration of one sleep.
const NAP: Duration = Duration::from_millis(1);

/// A running control thread.
#[derive(Debug)]
pub struct Control {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Control {
    /// Starts the thread, which sleeps 1 ms at a time.
    pub fn start() -> Control {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !until.load(Relaxed) {
                let before = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(before.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Control { stop, thread }
    }

    /// Stops the thread. Returns the longest delay of a sleep beyond the requested time.
    pub fn stop(self) -> Duration {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
