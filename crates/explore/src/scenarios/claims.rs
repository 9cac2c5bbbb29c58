//! Scenario for a page cache without a store. The lab compares the engine's buffer pool with this cache, which uses
//! reader counts and claims as its source describes (002 §3.6.1).

use pandodb::device::sim::SimImage;

use super::{Twist, body, threads};

/// The lab's own files, compiled with the explorer's primitives.
#[path = "../../../lab/src/pool/claims/mod.rs"]
#[allow(dead_code)]
mod cache;

/// The synchronisation primitives for the included files.
mod primitives {
    pub use pandodb::base::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, relax};
    pub use shuttle::sync::atomic::fence;
}

/// The claim of [`claims`].
pub const CLAIMS: &str =
    "a page does not change while it is read, although pages are claimed, evicted and loaded again";

/// Three threads read six pages through a cache of three frames. The canary: a claim ignores the readers of a frame.
pub fn claims(_: &SimImage, _: Twist) {
    let size = cache::Size { threads: 3, frames: 3, pages: 6, words: 2, hand: 2 };
    let cache = cache::Claims::new(size);
    let read = |thread: usize| {
        let cache = &cache;
        body(move || {
            for page in [0, 3, 1].map(|page| (page + thread as u64) % 6) {
                let found = cache.get(thread, page, |_| page);
                assert!((0..size.words).all(|at| found.word(at) == page), "the contents of another page");
            }
        })
    };
    threads((0..size.threads).map(read));
}
