//! Scenarios for the buffer pool without a store. The threads request far more pages than the pool has room for.

use pandodb::base::{BlockAddr, OwnerId, PAGE, PageNo};
use pandodb::device::AlignedBuf;
use pandodb::device::sim::SimImage;
use pandodb::pool::{Block, Keep, Pool, PoolPolicy};

use super::{Twist, body, threads};

/// The claim of [`pool`].
pub const POOL: &str =
    "a block from the pool has the contents of its owner and page; the pool stays within its capacity";
/// The claim of [`pair`].
pub const PAIR: &str = "two threads that miss the same block leave one copy of it in the pool, charged once";

/// The claim of [`reuse`].
pub const REUSE: &str =
    "a lookup of a block whose frame is being reused returns the block or nothing, never another block";
/// The claim of [`pinned`].
pub const PINNED: &str = "2Q does not evict a block that a reader holds";
/// The claim of [`victim`].
pub const VICTIM: &str =
    "2Q under its lock does not evict a block that was requested during the load for which it was chosen";
/// The claim of [`hot_2q`].
pub const HOT_2Q: &str = "2Q evicts a block that was requested twice after all blocks that were not";

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
    bounded(PoolPolicy::Clock, twist);
}

/// [`pool`], with 2Q.
pub fn pool_2q(_: &SimImage, twist: Twist) {
    bounded(PoolPolicy::TwoQueue, twist);
}

/// [`pool`], with 2Q under its lock.
pub fn pool_2q_locked(_: &SimImage, twist: Twist) {
    bounded(PoolPolicy::TwoQueueLocked, twist);
}

fn bounded(policy: PoolPolicy, twist: Twist) {
    let pool = Pool::with_policy(9 * COST, policy);
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
    one_copy(PoolPolicy::Clock, twist);
}

/// [`pair`], with 2Q.
pub fn pair_2q(_: &SimImage, twist: Twist) {
    one_copy(PoolPolicy::TwoQueue, twist);
}

/// [`pair`], with 2Q under its lock.
pub fn pair_2q_locked(_: &SimImage, twist: Twist) {
    one_copy(PoolPolicy::TwoQueueLocked, twist);
}

fn one_copy(policy: PoolPolicy, twist: Twist) {
    let pool = Pool::with_policy(9 * COST, policy);
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

/// Two threads load eight blocks into a pool of eight, whose oldest block is held during the whole time. A third thread
/// also takes and drops references to this block, without requesting it. The canary: references of readers are
/// overlooked.
pub fn pinned(_: &SimImage, _: Twist) {
    for policy in [PoolPolicy::TwoQueue, PoolPolicy::TwoQueueLocked] {
        let pool = Pool::with_policy(8 * COST, policy);
        (0..8).for_each(|page| drop(get(&pool, 1, page)));
        let pool = &pool;
        let oldest = || pool.glance(OwnerId(1), PageNo(0)).map(Block::keep);
        let held = oldest().expect("everything fits");
        let fill = |pages: std::ops::Range<u64>| body(move || pages.for_each(|page| drop(get(pool, 1, page))));
        let touch = body(|| (0..4).for_each(|_| drop(oldest())));
        threads([fill(8..12), fill(12..16), touch]);
        assert!(oldest().is_some(), "the block was evicted although it is in use");
        drop(held);
        let (bytes, blocks) = charged(pool);
        assert_eq!(bytes, blocks, "bytes charged and blocks in the pool");
    }
}

/// One thread loads a block into a full pool, and another thread requests the oldest block. If it finds the block, the
/// block is hot and must stay. The canary: the victim is not checked again after the load.
pub fn victim(_: &SimImage, _: Twist) {
    let pool = Pool::with_policy(8 * COST, PoolPolicy::TwoQueueLocked);
    (0..8).for_each(|page| drop(get(&pool, 1, page)));
    let pool = &pool;
    let request = body(move || {
        if pool.peek(OwnerId(1), PageNo(0)).is_some() {
            shuttle::thread::yield_now();
            assert!(pool.glance(OwnerId(1), PageNo(0)).is_some(), "the victim was requested meanwhile");
        }
    });
    threads([body(move || drop(get(pool, 1, 8))), request]);
    let (bytes, blocks) = charged(pool);
    assert_eq!((bytes, blocks), (8 * COST as u64, 8 * COST as u64));
}

/// Two threads load three blocks into a full pool, after one block was requested twice and while a third thread
/// requests it once more. The other blocks were requested once, so they leave first. The canary: the search for a
/// victim overlooks hits.
pub fn hot_2q(_: &SimImage, _: Twist) {
    const HOT: u64 = 0;
    let pool = Pool::with_policy(8 * COST, PoolPolicy::TwoQueue);
    (0..8).for_each(|page| drop(get(&pool, 1, page)));
    let ask = || drop(pool.peek(OwnerId(1), PageNo(HOT)).expect("it was requested twice"));
    ask();
    let fill = |pages: std::ops::Range<u64>| {
        let pool = &pool;
        body(move || pages.for_each(|page| drop(get(pool, 1, page))))
    };
    threads([fill(8..10), fill(10..11), body(ask)]);
    ask();
    let (bytes, blocks) = charged(&pool);
    assert_eq!(bytes, blocks, "bytes charged and blocks in the pool");
}
