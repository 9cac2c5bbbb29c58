//! Models of the modules of the engine in which threads synchronise through several atomics, or through an atomic and a
//! lock.
//!
//! `shuttle` tries schedules, but treats every atomic as sequentially consistent. `loom` works only for a few threads,
//! but it tries every schedule *and* every value that a load may return under the C11 memory model. The models run
//! source files of the engine and one source file of the lab. These files are included by path, so that they use the
//! types of `loom` instead of the types of `base::sync`.
//!
//! ```text
//! cargo run --manifest-path crates/explore/loom/Cargo.toml --release
//! ```
//!
//! Each model runs twice: once as it should be, and once with a deliberate mistake, which `loom` must find.

// The models do not use all parts of the included files.
#![allow(dead_code, unused_imports)]

extern crate loom as shuttle;

/// The module `base` for the included files. It is equal to the module `base` of the engine, except that the primitives
/// are those of `loom`.
mod base {
    pub(crate) use crate::primitives as sync;
    pub use pandodb::base::*;
}
mod device {
    pub use pandodb::device::*;

    /// A stub, because no model forks the process.
    #[derive(Debug, Default)]
    pub struct Process;

    impl Process {
        pub fn current() -> Process {
            Process
        }

        pub fn is_current(&self) -> bool {
            true
        }
    }
}
mod resolve {
    pub use pandodb::resolve::*;
}

#[path = "../../../pandodb/src/store/dead_ranges/mod.rs"]
mod dead_ranges;
#[path = "../../../pandodb/src/store/footprints.rs"]
mod footprints;
#[path = "../../../pandodb/src/memtable/latch.rs"]
mod latch;
#[path = "../../../lab/src/pool/claims/locks.rs"]
mod locks;
#[path = "../../../pandodb/src/memtable/mod.rs"]
mod memtable;
#[path = "../../../pandodb/src/sched/mod.rs"]
mod sched;
#[path = "../../../pandodb/src/store/snapshot.rs"]
mod snapshot;
#[path = "../../../pandodb/src/store/watermark/mod.rs"]
mod watermark;

mod models;
mod pool;
mod primitives;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The maximum number of preemptions (switches away from a runnable thread) in one execution. The authors of `loom`
/// recommend 2 or 3.
const PREEMPTIONS: usize = 3;

/// Runs all executions of a model. Returns their number, or the message of the first failure.
fn check(model: models::Body, mistake: bool) -> Result<u64, String> {
    let runs = Arc::new(AtomicU64::new(0));
    let count = runs.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 10_000;
    let result = catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            count.fetch_add(1, Relaxed);
            model(mistake);
        });
    }));
    let words = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    };
    result.map(|()| runs.load(Relaxed)).map_err(words)
}

fn main() -> ExitCode {
    let mut fine = true;
    let only = std::env::args().nth(1);
    for (name, model) in models::ALL.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        let started = Instant::now();
        let outcome = check(*model, false);
        let seconds = started.elapsed().as_secs_f64();
        match &outcome {
            Ok(runs) => println!("{name:12} {runs} executions in {seconds:.1} s"),
            Err(failure) => println!("{name:12} FAILED: {failure}"),
        }
        // This hook hides the panic message that the mistake causes.
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let blind = check(*model, true).is_ok();
        std::panic::set_hook(loud);
        if blind {
            println!("{name:12} its mistake was NOT FOUND");
        }
        fine &= outcome.is_ok() && !blind;
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
