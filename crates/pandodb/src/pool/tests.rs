//! Tests of the pool.

mod policies;

use std::sync::Barrier;

use super::*;
use crate::base::Error;

const OWNER: OwnerId = OwnerId(7);

/// The policies that keep the pool within its capacity.
const BOUNDED: [PoolPolicy; 3] = [PoolPolicy::Clock, PoolPolicy::TwoQueue, PoolPolicy::TwoQueueLocked];

fn addr(page: u64, pages: u32) -> BlockAddr {
    BlockAddr { page: PageNo(page), pages }
}

fn buf(fill: u8, pages: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(pages);
    buf.fill(fill);
    buf
}

#[test]
fn a_block_is_loaded_once_and_known_by_owner_and_page() {
    for policy in PoolPolicy::ALL {
        let pool = Pool::with_policy(1 << 20, policy);
        let first = pool.get(OWNER, addr(3, 1), Keep::Short, || Ok(buf(1, 1))).unwrap();
        let again = pool.get(OWNER, addr(3, 1), Keep::Short, || panic!("it is cached")).unwrap();
        assert_eq!((&first[..], again.pages()), (&[1u8; 4096][..], 1));
        // The same page with another owner is another block.
        let other = pool.get(OwnerId(8), addr(3, 1), Keep::Short, || Ok(buf(2, 1))).unwrap();
        assert_eq!(other[0], 2);
        let stats = pool.stats();
        assert_eq!((stats.hits, stats.misses, stats.blocks), (1, 2, 2));
        pool.forget(OWNER, PageNo(3));
        assert!(pool.peek(OWNER, PageNo(3)).is_none());
        assert_eq!(first[4095], 1, "a holder keeps a forgotten block");
    }
}

#[test]
fn peek_several_finds_the_same_blocks_as_peek() {
    for policy in PoolPolicy::ALL {
        // Each chain has about three blocks, so most blocks are not at the head of a chain.
        let pool = Pool::with_policy(64 * (PAGE + OVERHEAD), policy);
        pool.set_capacity(1 << 20);
        let fill = |page: u64| (page % 251) as u8;
        (0..192).for_each(|page| drop(pool.insert(OWNER, addr(page, 1), Keep::Long, &buf(fill(page), 1))));
        for first in 0..200 {
            let wanted: [_; Pool::TOGETHER] = std::array::from_fn(|i| {
                let owner = if i == 3 { OwnerId(8) } else { OWNER };
                (owner, PageNo(first + i as u64 * 7))
            });
            let mut found = [const { None }; Pool::TOGETHER];
            pool.peek_several(&wanted, &mut found);
            for ((owner, page), found) in wanted.into_iter().zip(found) {
                assert_eq!(found.is_some(), owner == OWNER && page.0 < 192, "{page:?} of {owner:?}");
                assert!(found.is_none_or(|block| block.iter().all(|byte| *byte == fill(page.0))));
            }
        }
    }
}

#[test]
fn reserving_evicts_blocks_and_releasing_restores_the_capacity() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(1 << 20, policy);
        let fill = |from: u64| {
            (from..from + 300).for_each(|page| drop(pool.insert(OWNER, addr(page, 1), Keep::Short, &buf(1, 1))))
        };
        fill(0);
        pool.reserve(512 << 10);
        assert!(pool.stats().bytes <= 512 << 10 && pool.stats().capacity == 512 << 10);
        fill(1_000);
        assert!(pool.stats().bytes <= 512 << 10, "{:?}", pool.stats());
        // Blocks keep a quarter of the capacity, even if more than three quarters are reserved.
        pool.reserve(4 << 20);
        let stats = pool.stats();
        assert!(stats.bytes <= 256 << 10 && stats.blocks > 40 && !pool.has_room(128 << 10), "{stats:?}");
        pool.release(4 << 20);
        pool.release(512 << 10);
        fill(2_000);
        assert!(pool.stats().bytes > 900 << 10, "{:?}", pool.stats());
    }
}

#[test]
fn a_failed_load_caches_nothing() {
    for policy in PoolPolicy::ALL {
        let pool = Pool::with_policy(1 << 20, policy);
        let result = pool.get(OWNER, addr(1, 1), Keep::Short, || Err(Error::corruption("leaf block", 0, "damage")));
        assert!(result.unwrap_err().is_corruption());
        assert_eq!(pool.stats().blocks, 0);
    }
}

#[test]
fn the_capacity_is_kept_and_blocks_that_are_hit_stay() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(1 << 20, policy);
        for page in 0..32 {
            pool.insert(OWNER, addr(page, 1), Keep::Short, &buf(9, 1));
        }
        for page in 100..5_000 {
            pool.insert(OWNER, addr(page, 1), Keep::Short, &buf(0, 1));
            for hot in 0..32 {
                let block = pool.peek(OWNER, PageNo(hot)).expect("a block that is hit all the time stays");
                assert_eq!(block[17], 9);
            }
            assert!(pool.stats().bytes <= 1 << 20);
        }
        let stats = pool.stats();
        assert!(stats.evictions > 4_000 && stats.blocks > 200, "{stats:?}");
        pool.set_capacity(40_000);
        assert!(pool.stats().bytes <= 40_000);
        pool.set_capacity(0);
        assert_eq!((pool.stats().bytes, pool.stats().blocks), (0, 0));
    }
}

#[test]
fn blocks_above_the_leaves_outlive_leaves_that_are_hit() {
    let pool = Pool::new(1 << 20);
    for page in 0..64 {
        pool.insert(OWNER, addr(page, 1), Keep::Long, &buf(9, 1));
    }
    for round in 1..20 {
        // Between two uses of the blocks above the leaves, read more leaves than fit into the pool, and hit each leaf
        // once.
        for page in 0..200 {
            pool.insert(OWNER, addr(round * 1_000 + page, 1), Keep::Short, &buf(0, 1));
            pool.peek(OWNER, PageNo(round * 1_000 + page)).expect("just inserted");
        }
        let kept = (0..64).filter(|&page| pool.peek(OWNER, PageNo(page)).is_some()).count();
        assert!(kept >= 60, "round {round}: {kept} of 64 blocks are left");
    }
}

#[test]
fn offered_blocks_that_are_not_requested_are_evicted_first() {
    let pool = Pool::new(64 * (PAGE + OVERHEAD));
    assert!(pool.has_room(64 * PAGE) && !pool.has_room(65 * PAGE));
    for page in 0..32 {
        pool.offer(OWNER, addr(page, 1), Keep::Long, &buf(page as u8, 1));
        pool.insert(OWNER, addr(100 + page, 1), Keep::Long, &buf(7, 1));
    }
    assert!(!pool.has_room(PAGE));
    let asked = pool.peek(OWNER, PageNo(3)).expect("there is room for all");
    assert_eq!(asked[0], 3);
    pool.offer(OWNER, addr(3, 1), Keep::Long, &buf(99, 1));
    assert_eq!(pool.peek(OWNER, PageNo(3)).unwrap()[0], 3, "a cached block is not replaced");
    for page in 200..231 {
        pool.insert(OWNER, addr(page, 1), Keep::Long, &buf(0, 1));
    }
    let left = |pages: std::ops::Range<u64>| pages.filter(|&page| pool.peek(OWNER, PageNo(page)).is_some()).count();
    assert_eq!((left(0..32), left(100..132)), (1, 32));
}

#[test]
fn a_large_block_is_handed_out_without_being_cached() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(16 * 4096, policy);
        let block = pool.insert(OWNER, addr(1, 2), Keep::Short, &buf(5, 2));
        assert_eq!((block.len(), pool.stats().blocks), (8192, 0));
        pool.insert(OWNER, addr(9, 1), Keep::Short, &buf(5, 1));
        assert_eq!(pool.stats().blocks, 1);
    }
}

#[test]
fn pins_are_counted_until_the_last_one_drops() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(64 * 1024, policy);
        let block = pool.insert(OWNER, addr(1, 1), Keep::Short, &buf(5, 1));
        let pins: Vec<PinnedBlock> = (0..4).map(|_| block.clone().pin()).collect();
        assert!(!pool.should_copy() && pool.stats().pinned_bytes == 16_384);
        let fifth = pins[0].clone();
        assert!(pool.should_copy());
        drop((pins, block));
        pool.set_capacity(0);
        assert_eq!((fifth[0], pool.stats().pinned_bytes), (5, 4096));
        drop(fifth);
        assert_eq!(pool.stats().pinned_bytes, 0);
    }
}

#[test]
fn threads_that_miss_together_share_one_block() {
    for policy in PoolPolicy::ALL {
        let pool = Pool::with_policy(4 << 20, policy);
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (pool, barrier) = (&pool, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for i in 0..2_000u64 {
                        let page = (i * 31 + thread) % 700;
                        let block = pool.get(OWNER, addr(page, 1), Keep::Short, || Ok(buf(page as u8, 1))).unwrap();
                        assert_eq!(block[0], page as u8);
                    }
                });
            }
        });
        let stats = pool.stats();
        assert_eq!((stats.blocks, stats.bytes), (700, 700 * buf_cost()));
    }
}

#[test]
fn readers_see_the_right_bytes_while_blocks_of_all_sizes_are_evicted() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(96 * (PAGE + OVERHEAD), policy);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for i in 0..6_000u64 {
                        let page = 4 * ((i * 37 + thread * 11) % 90);
                        let pages = 1 + (page / 4 % 3) as u32;
                        let keep = if page % 8 == 0 { Keep::Long } else { Keep::Short };
                        let block =
                            pool.get(OWNER, addr(page, pages), keep, || Ok(buf(page as u8, pages as usize))).unwrap();
                        assert!(block.pages() == pages && block.iter().all(|&byte| byte == page as u8));
                        // Hold more blocks than the thread has slots, so that some of the blocks are reference-counted.
                        held.push(if i % 3 == 0 { block.keep() } else { block });
                        if held.len() > 12 {
                            held.drain(..).for_each(|block| assert!(block.iter().all(|&byte| byte == block[0])));
                        }
                        if i % 50 == 0 {
                            pool.forget(OWNER, PageNo(page));
                        }
                    }
                });
            }
        });
        let stats = pool.stats();
        assert!(stats.bytes <= stats.capacity && stats.evictions > 1_000, "{stats:?}");
        pool.set_capacity(0);
        assert_eq!((pool.stats().bytes, pool.stats().blocks), (0, 0), "evicting all blocks releases all charged bytes");
    }
}

#[test]
fn lookups_find_all_blocks_after_the_pool_has_grown() {
    for policy in PoolPolicy::ALL {
        let pool = Pool::with_policy(8 * (PAGE + OVERHEAD), policy);
        pool.set_capacity(20_000 * (PAGE + OVERHEAD));
        for page in 0..10_000 {
            pool.insert(OWNER, addr(page, 1), Keep::Short, &buf(page as u8, 1));
        }
        assert!((0..10_000).all(|page| pool.peek(OWNER, PageNo(page)).is_some_and(|block| block[9] == page as u8)));
    }
}

#[test]
fn a_block_that_does_not_fit_is_returned_and_not_charged() {
    for policy in BOUNDED {
        let pool = Pool::with_policy(0, policy);
        let block = pool.get(OWNER, addr(1, 1), Keep::Long, || Ok(buf(3, 1))).unwrap();
        assert_eq!((block[0], pool.stats().bytes, pool.stats().blocks), (3, 0, 0));
    }
}

fn buf_cost() -> u64 {
    (PAGE + OVERHEAD) as u64
}

/// Fills the pool with leaves that lookups have requested twice, so that each has a chance.
fn full_of_hot_leaves(blocks: u64) -> Pool {
    let pool = Pool::new(blocks as usize * (PAGE + OVERHEAD));
    for _ in 0..2 {
        (0..blocks).for_each(|page| {
            drop(pool.get(OWNER, addr(page, 1), Keep::Short, || Ok(buf(1, 1))).unwrap());
        });
    }
    assert!(!pool.has_room(PAGE));
    pool
}

fn cached(pool: &Pool, pages: std::ops::Range<u64>) -> usize {
    pages.filter(|page| pool.glance(OWNER, PageNo(*page)).is_some()).count()
}

#[test]
fn scans_displace_at_most_an_eighth_of_the_blocks() {
    let pool = full_of_hot_leaves(800);
    for page in 1_000..9_000 {
        pool.insert_scanned(OWNER, addr(page, 1), false, &buf(2, 1));
        assert!(pool.stats().bytes <= pool.stats().capacity);
    }
    let left = cached(&pool, 0..800);
    assert!((700..=704).contains(&left), "{left} of 800 blocks are left");
    assert!(cached(&pool, 8_900..9_000) > 90, "the last leaves are on probation");
    assert_eq!(cached(&pool, 1_000..8_800), 0, "the earlier leaves have left");
}

#[test]
fn a_leaf_that_was_hit_on_probation_stays() {
    let pool = full_of_hot_leaves(800);
    pool.insert_scanned(OWNER, addr(1_000, 1), false, &buf(2, 1));
    assert!(pool.peek(OWNER, PageNo(1_000)).is_some(), "a hit");
    assert!(pool.glance(OWNER, PageNo(1_000)).is_some_and(|block| block[0] == 2));
    pool.insert_scanned(OWNER, addr(1_001, 1), false, &buf(3, 1));
    assert!(pool.glance(OWNER, PageNo(1_001)).is_some(), "not a hit");
    (2_000..2_200).for_each(|page| pool.insert_scanned(OWNER, addr(page, 1), false, &buf(2, 1)));
    assert_eq!(cached(&pool, 1_000..1_002), 1, "the leaf that was hit");
    // The other leaf comes back while it is remembered, so it stays without a hit.
    pool.insert_scanned(OWNER, addr(1_001, 1), false, &buf(3, 1));
    (3_000..3_200).for_each(|page| pool.insert_scanned(OWNER, addr(page, 1), false, &buf(2, 1)));
    assert_eq!(cached(&pool, 1_000..1_002), 2);
}

#[test]
fn a_long_scan_displaces_nothing_and_uses_free_room() {
    let pool = full_of_hot_leaves(800);
    (1_000..9_000).for_each(|page| pool.insert_scanned(OWNER, addr(page, 1), true, &buf(2, 1)));
    assert_eq!((cached(&pool, 0..800), cached(&pool, 1_000..9_000)), (800, 0));
    pool.forget_pages(OWNER, 100..200);
    pool.forget_all();
    assert_eq!((cached(&pool, 0..800), pool.stats().blocks), (700, 700));
    (1_000..9_000).for_each(|page| pool.insert_scanned(OWNER, addr(page, 1), true, &buf(2, 1)));
    assert_eq!((cached(&pool, 0..800), cached(&pool, 1_000..1_100)), (700, 100));
}

#[test]
fn blocks_of_freed_pages_make_room_for_others_little_by_little() {
    let pool = full_of_hot_leaves(800);
    pool.forget_pages(OWNER, 0..400);
    assert_eq!(cached(&pool, 0..800), 800 - FORGOTTEN_AT_ONCE, "the caller removes only a few");
    assert!(pool.has_room(24 * PAGE) && cached(&pool, 0..800) < 784, "asking for room removes some");
    (1_000..1_040).for_each(|page| drop(pool.insert(OWNER, addr(page, 1), Keep::Short, &buf(2, 1))));
    assert_eq!(cached(&pool, 0..400), 0, "each insertion removes {FORGOTTEN_AT_INSERTION}");
    assert_eq!(cached(&pool, 400..1_040), 440, "nothing else was evicted");
    pool.forget_pages(OWNER, 400..800);
    pool.reserve(pool.size() / 2);
    assert_eq!((cached(&pool, 400..800), cached(&pool, 1_000..1_040)), (0, 40), "a reservation removes them first");
}
