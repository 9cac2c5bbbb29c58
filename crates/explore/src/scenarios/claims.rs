//! The cache that the pool was measured against, by itself: counts of readers and claims, as the source has them.

use pandodb::device::sim::SimImage;

use super::{Twist, body, threads};

/// The lab's own files, with the explorer's primitives.
#[path = "../../../lab/src/pool/claims/mod.rs"]
#[allow(dead_code)]
mod cache;

/// What the included files meet by.
mod primitives {
    pub use pandodb::base::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, relax};
    pub use shuttle::sync::atomic::fence;
}

/// The claim of [`claims`].
pub const CLAIMS: &str = "a page stays what it is while it is read, however it is claimed, thrown out and loaded anew";

/// Three threads read six pages of a cache of three frames. The canary: whoever claims a frame does not regard its readers.
pub fn claims(_: &SimImage, _: Twist) {
    let size = cache::Size { threads: 3, frames: 3, pages: 6, words: 2, hand: 2 };
    let cache = cache::Claims::new(size);
    let read = |thread: usize| {
        let cache = &cache;
        body(move || {
            for page in [0, 3, 1].map(|page| (page + thread as u64) % 6) {
                let found = cache.get(thread, page, |_| page);
                assert!((0..size.words).all(|at| found.word(at) == page), "another page");
            }
        })
    };
    threads((0..size.threads).map(read));
}
