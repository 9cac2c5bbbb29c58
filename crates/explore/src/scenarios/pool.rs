//! Scenarios for the buffer pool without a store. The threads request far more pages than the pool has room for.

use pandodb::base::{BlockAddr, OwnerId, PAGE, PageNo};
use pandodb::device::AlignedBuf;
use pandodb::device::sim::SimImage;
use pandodb::pool::{Block, Keep, Pool};

use super::{Twist, body, threads};

/// The claim of [`pool`].
pub const POOL: &str =
    "a block from the pool has the contents of its owner and page; the pool stays within its capacity";
/// The claim of [`pair`].
pub const PAIR: &str = "two threads that miss the same block leave one copy of it in the pool, charged once";

/// The claim of [`reuse`].
pub const REUSE: &str =
    "a lookup of a block whose frame is being reused returns the block or nothing, never another block";
/// The claim of [`hot`].
pub const HOT: &str = "a block that was requested twice is evicted after all blocks that were not";

/// Bytes charged for a cached page in addition to its size.
const OVERHEAD: usize = 224;
const COST: usize = PAGE + OVERHEAD;
/// Number of requested pages, which is larger than the capacity of the pool.
const PAGES: u64 = 16;
const READERS: u64 = 3;

fn addr(page: u64) -> BlockAddr {
    BlockAddr { page: PageNo(page), pages: 1 }
}

/// A block whose contents identify its owner and page.
fn made(owner: u64, page: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(1);
    buf.fill((owner * PAGES + page) as u8);
    buf
}

/// Gets a block from the pool.
fn get(pool: &Pool, owner: u64, page: u64) -> Block {
    let load = || {
        // Other threads may run during the read of a block.
        shuttle::thread::yield_now();
        Ok(made(owner, page))
    };
    pool.get(OwnerId(owner), addr(page), Keep::Short, load).expect("loaded")
}

fn charged(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats();
    (stats.bytes, stats.blocks * COST as u64)
}

/// Three threads read blocks of two owners, keep some of them pinned, and make the pool forget some. The threads use
/// some of the same blocks. A fourth thread shrinks the pool. The canary expects that the pool never exceeds the
/// smaller capacity.
pub fn pool(_: &SimImage, twist: Twist) {
    let pool = Pool::new(9 * COST);
    let reader = |first: u64| {
        let pool = &pool;
        body(move || {
            for page in (first..first + 8).map(|page| page % PAGES) {
                let owner = 1 + page % 2;
                let pin = get(pool, owner, page).pin();
                assert!(
                    pin.iter().all(|&byte| u64::from(byte) == owner * PAGES + page),
                    "the contents of another block"
                );
                if page % 7 == 0 {
                    pool.forget(OwnerId(owner), PageNo(page));
                }
                let bound = if twist == Twist::Canary { 8 } else { 9 + READERS };
                assert!(
                    pool.stats().bytes <= bound * COST as u64,
                    "over the capacity by more than the blocks being loaded"
                );
            }
        })
    };
    threads([reader(0), reader(4), reader(8), body(|| pool.set_capacity(8 * COST))]);
    let (bytes, blocks) = charged(&pool);
    assert_eq!(bytes, blocks, "bytes charged and blocks in the pool");
    assert!(bytes <= 9 * COST as u64 && pool.stats().pinned_bytes == 0);
}

/// Two threads miss the same block. The canary expects that both threads load the block.
pub fn pair(_: &SimImage, twist: Twist) {
    let pool = Pool::new(9 * COST);
    let ask = || drop(get(&pool, 1, 1));
    threads([body(ask), body(ask)]);
    let stats = pool.stats();
    assert_eq!((stats.blocks, stats.bytes), (1, COST as u64));
    assert!(twist == Twist::None || stats.misses == 2, "one thread found the block that the other had loaded");
}

/// A frame is reused repeatedly while two threads look up the blocks in the frame. The canary: a lookup does not check
/// which block the frame contains.
pub fn reuse(_: &SimImage, _: Twist) {
    let pool = Pool::new(9 * COST);
    drop(get(&pool, 1, 1));
    let ask = |pages: [u64; 3]| {
        let pool = &pool;
        body(move || {
            for page in pages {
                let found = pool.peek(OwnerId(1), PageNo(page));
                assert!(
                    found.is_none_or(|block| block.iter().all(|&byte| u64::from(byte) == PAGES + page)),
                    "another block"
                );
            }
        })
    };
    let exchange = || {
        for page in [1, 2, 3] {
            pool.forget(OwnerId(1), PageNo(page));
            // The block is added with `insert` instead of `get`, because a load would first yield to the other threads.
            drop(pool.insert(OwnerId(1), addr(page + 1), Keep::Short, &made(1, page + 1)));
        }
    };
    threads([ask([1, 2, 3]), ask([1, 1, 4]), body(exchange)]);
    assert_eq!(charged(&pool), (COST as u64, COST as u64));
}

/// Two threads load three blocks into a full pool while a third thread requests one block. Usually the two threads
/// evict three blocks, but they may evict one more, if both of them evict a block to make room for the same new block.
/// In both cases the clock hand makes less than a full revolution, so the requested block must stay in the pool. The
/// canary: a hit is not recorded.
pub fn hot(_: &SimImage, _: Twist) {
    const HOT: u64 = 2;
    let pool = Pool::new(8 * COST);
    (0..8).for_each(|page| drop(get(&pool, 1, page)));
    let ask = || drop(pool.peek(OwnerId(1), PageNo(HOT)).expect("it is requested repeatedly"));
    ask();
    let fill = |pages: std::ops::Range<u64>| {
        let pool = &pool;
        body(move || pages.for_each(|page| drop(get(pool, 1, page))))
    };
    threads([fill(8..10), fill(10..11), body(ask)]);
    ask();
    let (bytes, blocks) = charged(&pool);
    assert_eq!(bytes, blocks, "bytes charged and blocks in the pool");
    assert!((7 * COST as u64..=8 * COST as u64).contains(&bytes), "{bytes} bytes are left");
}
