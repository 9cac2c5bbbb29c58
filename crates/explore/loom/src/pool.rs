//! Models of the frames and chains of the buffer pool. They run the engine's own files and test the memory orderings in
//! these files.
//!
//! Frames are in segments. A segment is allocated when the number of its first frame is assigned. A thread that reads
//! the number of a frame must then find the segment of this frame. Threads read the numbers of frames in two places: in
//! the count of frames, which evictions read without a lock, and in the links of chains.

#[path = "../../../pandodb/src/pool/block.rs"]
mod block;
#[path = "../../../pandodb/src/pool/free.rs"]
mod free;
#[path = "../../../pandodb/src/pool/hand.rs"]
mod hand;
#[path = "../../../pandodb/src/pool/key.rs"]
mod key;
#[path = "../../../pandodb/src/pool/table.rs"]
mod table;

use std::sync::Arc;

use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::spawn;

use self::block::{Body, Home};
use self::free::FreeFrames;
use self::hand::Hands;
use self::key::FrameKey;
use self::table::Table;
use crate::base::{OwnerId, PAGE, PageNo};

/// A copy of the type of the same name in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Short,
    Long,
}

impl Keep {
    fn ref_count(self) -> u8 {
        match self {
            Keep::Short => 1,
            Keep::Long => 4,
        }
    }
}

/// Number of frames in the first segment, in a build for a schedule explorer.
const FIRST: u32 = 4;

/// A table whose first segment is full, so that the next frame allocates the second segment.
fn full() -> Arc<(Table, FreeFrames)> {
    let (table, free) = (Table::new(2), FreeFrames::new());
    (0..FIRST).for_each(|number| assert_eq!(free.frame(&table), number));
    Arc::new((table, free))
}

/// An eviction can access every counted frame, including one that another thread has just created. The mistake: the
/// number of the frame is passed to the reader with relaxed ordering.
///
/// The reader must be the spawned thread, because `loom` remembers only one access of each atomic. If the creator were
/// the spawned thread, this access would be the creator's own load of the count, immediately before its store.
pub fn frames(mistake: bool) {
    let pool = full();
    let told = Arc::new(AtomicU32::new(0));
    let reader = {
        let (pool, told) = (pool.clone(), told.clone());
        spawn(move || {
            if mistake {
                assert!(pool.0.pass(told.load(Relaxed)).is_none(), "no frame has a block");
            } else {
                assert!(Hands::new().evict(&pool.0, &pool.1).is_none(), "no frame has a block");
            }
        })
    };
    told.store(pool.1.frame(&pool.0), Relaxed);
    reader.join().expect("joined");
}

/// If a frame is moved to another chain, a reader at this frame follows the new link of the frame, and can access the
/// frame at the other end of the link. The mistake: the number of the last frame is passed to the reader with relaxed
/// ordering.
pub fn links(mistake: bool) {
    let pool = full();
    let home = Arc::new(Home::new(0));
    // Two keys belong to one chain, and one key belongs to the other chain.
    let of_chain = |chain: u64| {
        let keys = (0..).map(|page| FrameKey::new(OwnerId(1), PageNo(page)));
        keys.filter(move |key| key.hash() & 1 == chain)
    };
    let (first, wanted) = (of_chain(0).next().expect("endless"), of_chain(0).nth(1).expect("endless"));
    let mut others = of_chain(1);
    let (beyond, moved) = (others.next().expect("endless"), others.next().expect("endless"));
    let body = |key| Body::new(key, Keep::Short, &[0; PAGE], home.clone());
    let (at_first, at_beyond, at_moved) = (body(first), body(beyond), body(moved));
    assert!(pool.0.link(0, first.hash(), &at_first, 0).is_ok());
    let told = Arc::new(AtomicU32::new(0));
    let reader = {
        let (pool, told) = (pool.clone(), told.clone());
        spawn(move || {
            if mistake {
                let _ = pool.0.pass(told.load(Relaxed));
            } else {
                assert!(pool.0.find(wanted, wanted.hash()).is_none(), "it was never there");
            }
        })
    };
    let number = pool.1.frame(&pool.0);
    told.store(number, Relaxed);
    assert!(pool.0.link(number, beyond.hash(), &at_beyond, 0).is_ok());
    assert_eq!(pool.0.remove(first, first.hash()).map(|(number, _)| number), Some(0));
    assert!(pool.0.link(0, moved.hash(), &at_moved, 0).is_ok());
    reader.join().expect("joined");
}
