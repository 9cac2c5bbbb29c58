//! Spans and events for a subscriber of `tracing`, with the feature `tracing`. Without the feature every function of
//! this file is empty.
//!
//! All spans and events have the target `pandodb`. A span covers an operation in progress. An event reports a finished
//! operation or a failure:
//!
//! | level | spans | events |
//! | --- | --- | --- |
//! | error | | a failure after which the store refuses writes |
//! | warn | | stored bytes that cannot be read; a full disk |
//! | info | opening, closing | opened, with the figures of recovery; closed; a keyspace was created or dropped |
//! | debug | checkpoint | checkpoint taken; memtable packed; compaction finished; a writer waited for [`STALL`] or longer |
//! | trace | a step of background work | |
//!
//! Rules: a put or a get emits an event only if it stalls or fails. A field holds a number or a name, and the name of
//! the field contains its unit. No field holds a key or a value. No other file depends on the feature.

use std::time::Duration;

use super::Error;

/// The shortest wait of a writer that an event reports.
pub const STALL: Duration = Duration::from_millis(1);

macro_rules! event {
    ($level:ident, $message:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::event!(target: "pandodb", tracing::Level::$level, $($field = $value,)* $message);
        #[cfg(not(feature = "tracing"))]
        { $(let _ = $value;)* }
    }};
}

macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        { Scope(tracing::span!(target: "pandodb", tracing::Level::$level, $name, $($field = $value,)*).entered()) }
        #[cfg(not(feature = "tracing"))]
        { $(let _ = $value;)* Scope() }
    }};
}

/// A span that is entered on this thread until it is dropped.
#[must_use]
pub struct Scope(
    #[cfg(feature = "tracing")]
    #[expect(dead_code, reason = "it is dropped")]
    tracing::span::EnteredSpan,
);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The span of opening a store.
pub fn opening(path: &str, read_only: bool) -> Scope {
    span!(INFO, "open", path = path, read_only = read_only)
}

/// Figures of recovery, for [`opened`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// The number of log records that replay visited.
    pub records: u64,
    /// The bytes of these records.
    pub bytes: u64,
    /// The number of segments that held these records.
    pub segments: u64,
    /// Whether the end of the log was torn, for example by a crash in the middle of a write.
    pub torn: bool,
}

/// A store was opened.
pub fn opened(keyspaces: usize, recovery: Recovery, took: Duration) {
    event!(
        INFO,
        "opened",
        keyspaces = keyspaces as u64,
        replayed_records = recovery.records,
        replayed_bytes = recovery.bytes,
        log_segments = recovery.segments,
        torn_tail = recovery.torn,
        took_us = micros(took),
    );
}

/// The span of closing a store.
pub fn closing() -> Scope {
    span!(INFO, "close")
}

/// A store was closed. `clean` means that every acknowledged write is durable, and that the end of the log is recorded.
pub fn closed(clean: bool, took: Duration) {
    event!(INFO, "closed", clean = clean, took_us = micros(took));
}

/// A keyspace was created.
pub fn created(name: &str) {
    event!(INFO, "keyspace created", keyspace = name);
}

/// A keyspace was dropped.
pub fn dropped(name: &str) {
    event!(INFO, "keyspace dropped", keyspace = name);
}

/// The span of taking a checkpoint.
pub fn checkpoint() -> Scope {
    span!(DEBUG, "checkpoint")
}

/// A checkpoint was taken. The checkpoint wrote `root_bytes` bytes of trunk nodes and catalogues, apart
/// from what was written ahead of it.
pub fn checkpoint_taken(generation: u64, root_bytes: u64, took: Duration) {
    event!(DEBUG, "checkpoint taken", generation = generation, root_bytes = root_bytes, took_us = micros(took));
}

/// The span of one step of background work for a keyspace.
pub fn step(keyspace: &str) -> Scope {
    span!(TRACE, "step", keyspace = keyspace)
}

/// A sealed memtable was written as a run.
pub fn packed(memtable_bytes: u64, run_bytes: u64) {
    event!(DEBUG, "memtable packed", memtable_bytes = memtable_bytes, run_bytes = run_bytes);
}

/// A compaction replaced its inputs by one run. If no message survived, the compaction removed its inputs without a
/// replacement.
pub fn compacted(height: u32, inputs: usize, input_bytes: u64, output_bytes: u64) {
    event!(
        DEBUG,
        "compaction finished",
        height = u64::from(height),
        inputs = inputs as u64,
        input_bytes = input_bytes,
        output_bytes = output_bytes,
    );
}

/// A writer waited for background work. Only waits of at least [`STALL`] are reported.
pub fn waited(time: Duration, pack_bytes: u64, compact_bytes: u64) {
    if time >= STALL {
        event!(
            DEBUG,
            "writer stalled",
            waited_us = micros(time),
            pack_debt_bytes = pack_bytes,
            compact_debt_bytes = compact_bytes,
        );
    }
}

/// A write was refused, or background work could not continue, because the disk is full.
pub fn disk_full(what: &str) {
    event!(WARN, "disk full", what = what);
}

/// The store refuses writes from now on.
pub fn poisoned(first: &str) {
    event!(ERROR, "the store refuses writes", first = first);
}

/// An operation failed. The error is reported only if [`Error::is_damage`] holds for the error.
pub fn failed(keyspace: &str, error: &Error) {
    if error.is_damage() {
        event!(WARN, "damage", keyspace = keyspace, error = error.to_string().as_str());
    }
}
