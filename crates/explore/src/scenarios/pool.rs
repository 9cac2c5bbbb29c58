//! The buffer pool by itself, far too small for what is asked of it.

use pandodb::base::{BlockAddr, OwnerId, PAGE, PageNo};
use pandodb::device::AlignedBuf;
use pandodb::device::sim::SimImage;
use pandodb::pool::{Block, Keep, Pool};

use super::{Twist, body, threads};

/// The claim of [`pool`].
pub const POOL: &str =
    "a block from the pool has the contents of its owner and page; the pool keeps within its capacity";
/// The claim of [`pair`].
pub const PAIR: &str = "two threads that miss the same block end with one copy of it, charged once";

/// The claim of [`reuse`].
pub const REUSE: &str =
    "whoever asks for a block while its frame is given to others gets it or nothing, never another's";
/// The claim of [`hot`].
pub const HOT: &str = "a block that was asked for twice goes after all that were not";

/// What a cached page costs beside its bytes.
const OVERHEAD: usize = 224;
const COST: usize = PAGE + OVERHEAD;
/// Pages that are asked for: more than the pool keeps.
const PAGES: u64 = 16;
const READERS: u64 = 3;

fn addr(page: u64) -> BlockAddr {
    BlockAddr { page: PageNo(page), pages: 1 }
}

/// A block whose contents say whose it is.
fn made(owner: u64, page: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(1);
    buf.fill((owner * PAGES + page) as u8);
    buf
}

/// Gets a block.
fn get(pool: &Pool, owner: u64, page: u64) -> Block {
    let load = || {
        // Others may run while a block is read.
        shuttle::thread::yield_now();
        Ok(made(owner, page))
    };
    pool.get(OwnerId(owner), addr(page), Keep::Short, load).expect("loaded")
}

fn charged(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats();
    (stats.bytes, stats.blocks * COST as u64)
}

/// Three threads read, pin and forget overlapping blocks of two owners, a fourth shrinks the pool. The canary takes the
/// shrunk capacity for a bound at every moment.
pub fn pool(_: &SimImage, twist: Twist) {
    let pool = Pool::new(9 * COST);
    let reader = |first: u64| {
        let pool = &pool;
        body(move || {
            for page in (first..first + 8).map(|page| page % PAGES) {
                let owner = 1 + page % 2;
                let pin = get(pool, owner, page).pin();
                assert!(pin.iter().all(|&byte| u64::from(byte) == owner * PAGES + page), "another's contents");
                if page % 7 == 0 {
                    pool.forget(OwnerId(owner), PageNo(page));
                }
                let bound = if twist == Twist::Canary { 8 } else { 9 + READERS };
                assert!(pool.stats().bytes <= bound * COST as u64, "over the capacity by more than is on its way");
            }
        })
    };
    threads([reader(0), reader(4), reader(8), body(|| pool.set_capacity(8 * COST))]);
    let (bytes, blocks) = charged(&pool);
    assert_eq!(bytes, blocks, "bytes charged and blocks kept");
    assert!(bytes <= 9 * COST as u64 && pool.stats().pinned_bytes == 0);
}

/// Two threads miss the same block. The canary expects both to have missed.
pub fn pair(_: &SimImage, twist: Twist) {
    let pool = Pool::new(9 * COST);
    let ask = || drop(get(&pool, 1, 1));
    threads([body(ask), body(ask)]);
    let stats = pool.stats();
    assert_eq!((stats.blocks, stats.bytes), (1, COST as u64));
    assert!(twist == Twist::None || stats.misses == 2, "one found what the other had loaded");
}

/// A frame changes hands again and again while two threads ask for what is in it. The canary: nobody looks whose block it is.
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
                    "another's"
                );
            }
        })
    };
    let exchange = || {
        for page in [1, 2, 3] {
            pool.forget(OwnerId(1), PageNo(page));
            // At once: whoever waits for a device would have the others go first.
            drop(pool.insert(OwnerId(1), addr(page + 1), Keep::Short, &made(1, page + 1)));
        }
    };
    threads([ask([1, 2, 3]), ask([1, 1, 4]), body(exchange)]);
    assert_eq!(charged(&pool), (COST as u64, COST as u64));
}

/// Two threads fill a pool that is full, beside a third that asks for one block. Three blocks more are not a turn, even where
/// both threads make room for the same one, so it stays. The canary: that it was asked for is not noted.
pub fn hot(_: &SimImage, _: Twist) {
    const HOT: u64 = 2;
    let pool = Pool::new(8 * COST);
    (0..8).for_each(|page| drop(get(&pool, 1, page)));
    let ask = || drop(pool.peek(OwnerId(1), PageNo(HOT)).expect("it is asked for all the time"));
    ask();
    let fill = |pages: std::ops::Range<u64>| {
        let pool = &pool;
        body(move || pages.for_each(|page| drop(get(pool, 1, page))))
    };
    threads([fill(8..10), fill(10..11), body(ask)]);
    ask();
    let (bytes, blocks) = charged(&pool);
    assert_eq!(bytes, blocks, "bytes charged and blocks kept");
    assert!((7 * COST as u64..=8 * COST as u64).contains(&bytes), "{bytes} bytes are left");
}
