//! Handles Ctrl-C during a load: the load stops between two commits, closes the store and reports the number of records
//! in the store.
//!
//! ```text
//! SIGINT, SIGTERM ─▶ signal thread ─▶ `asked` ─▶ the command sees it before its next record, stops, closes, reports
//!                       └─ not seen within a second (the command waits for input or background work): another
//!                          thread makes all commits durable, reports, and ends the process
//! a second signal ─▶ the process ends at once
//! ```

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use pandodb::{Durability, Store};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    failure::{Failure, Outcome},
    output,
};

/// The time within which the command must notice the request to stop.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state of a load that signals can interrupt: whether a signal has arrived, and the number of committed records.
#[derive(Clone, Debug, Default)]
pub struct Interrupts(Arc<State>);

#[derive(Debug, Default)]
struct State {
    asked: AtomicBool,
    seen: AtomicBool,
    records: AtomicU64,
    line: AtomicU64,
}

impl Interrupts {
    /// Starts to listen for signals. If the command does not notice a signal within a second, another thread makes the
    /// commits of `store` durable and ends the process.
    ///
    /// # Errors
    /// If the system does not allow the signal handler or the thread.
    pub fn listen(store: Store) -> Outcome<Interrupts> {
        let failed = |e: io::Error| Failure::io("listening for Ctrl-C", &e);
        let interrupts = Interrupts::default();
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let mine = interrupts.clone();
        let body = move || {
            let mut store = Some(store);
            for _ in signals.forever() {
                if mine.0.asked.swap(true, SeqCst) {
                    std::process::exit(Failure::INTERRUPTED.into());
                }
                if let Some(store) = store.take() {
                    let mine = mine.clone();
                    thread::spawn(move || mine.end_unless_seen(store));
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(body).map_err(failed)?;
        Ok(interrupts)
    }

    /// Whether the command should stop now. If so, the caller must close the store and return [`Interrupts::failure`].
    pub fn asked(&self) -> bool {
        let asked = self.0.asked.load(SeqCst);
        if asked {
            self.0.seen.store(true, SeqCst);
        }
        asked
    }

    /// Records that `records` records are committed, and that the last of these records is from line `line` of the
    /// input.
    pub fn committed(&self, records: u64, line: u64) {
        self.0.records.store(records, SeqCst);
        self.0.line.store(line, SeqCst);
    }

    /// The failure with which an interrupted command ends.
    pub fn failure(&self) -> Failure {
        let (records, line) = (self.0.records.load(SeqCst), self.0.line.load(SeqCst));
        Failure::Interrupted(match records {
            0 => "interrupted before the first record was committed; no record of the input is in the store".into(),
            _ => {
                let records = output::count(records);
                format!(
                    "interrupted: {records} records, up to line {line} of the input, are committed and in the store; \
                     load the lines after it to continue"
                )
            }
        })
    }

    fn end_unless_seen(&self, store: Store) {
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            if self.0.seen.load(SeqCst) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let failure = match store.persist(Durability::Synced) {
            Ok(()) => self.failure(),
            Err(e) => Failure::from(e).context("interrupted"),
        };
        failure.report();
        std::process::exit(failure.code().into());
    }
}
