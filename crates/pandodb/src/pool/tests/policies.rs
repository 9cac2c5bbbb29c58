//! Tests of the replacement policies: which blocks leave the pool, on scripted traces.

use super::*;

const TWO_QUEUES: [PoolPolicy; 2] = [PoolPolicy::TwoQueue, PoolPolicy::TwoQueueLocked];

/// A pool with room for 8 blocks.
fn of_eight(policy: PoolPolicy) -> Pool {
    Pool::with_policy(8 * (PAGE + OVERHEAD), policy)
}

/// Requests pages one after the other, and loads those that are missing.
fn ask(pool: &Pool, pages: impl IntoIterator<Item = u64>) {
    for page in pages {
        let block =
            pool.get(OWNER, addr(page, 1), Keep::Short, || Ok(buf(page as u8, 1))).expect("loading cannot fail");
        assert_eq!(block[0], page as u8);
    }
}

/// The pages below 1,000 that are cached.
fn left(pool: &Pool) -> Vec<u64> {
    (0..1_000).filter(|page| pool.glance(OWNER, PageNo(*page)).is_some()).collect()
}

#[test]
fn blocks_that_were_requested_once_leave_in_the_order_of_their_arrival() {
    for policy in TWO_QUEUES {
        let pool = of_eight(policy);
        ask(&pool, 0..8);
        for page in 8..30 {
            ask(&pool, [page]);
            assert_eq!(left(&pool), (page - 7..=page).collect::<Vec<_>>(), "{policy}");
        }
    }
}

#[test]
fn a_second_request_keeps_a_block_until_the_fifo_queue_is_empty() {
    for policy in TWO_QUEUES {
        let pool = of_eight(policy);
        ask(&pool, 0..8);
        ask(&pool, [5, 2]);
        ask(&pool, 8..14);
        assert_eq!(left(&pool), [2, 5, 8, 9, 10, 11, 12, 13], "{policy}");
        ask(&pool, 100..300);
        assert_eq!(left(&pool), [2, 5, 294, 295, 296, 297, 298, 299], "{policy}: a scan displaces no hot block");
        assert_eq!(pool.stats().evictions, 206, "{policy}");
    }
}

#[test]
fn the_locked_policy_evicts_the_least_recently_requested_of_the_hot_blocks() {
    let pool = of_eight(PoolPolicy::TwoQueueLocked);
    ask(&pool, (0..8).chain([3, 0, 6, 1, 7, 2, 5, 4, 3]));
    for (page, evicted) in (8..).zip([0, 6, 1, 7, 2, 5, 4, 3]) {
        let before = left(&pool);
        ask(&pool, [page, page]);
        let gone: Vec<u64> = before.into_iter().filter(|page| !left(&pool).contains(page)).collect();
        assert_eq!(gone, [evicted], "page {page} displaces the least recently requested");
    }
}

#[test]
fn the_policy_without_a_lock_gives_hot_blocks_a_second_round() {
    let pool = of_eight(PoolPolicy::TwoQueue);
    ask(&pool, (0..8).chain(0..8));
    // The search moves all blocks to the LRU queue, clears their marks, and evicts the first.
    ask(&pool, [8]);
    assert_eq!(left(&pool), (1..9).collect::<Vec<_>>());
    // Block 8 is requested again, so the next search moves it, too. Block 1 was hit after its mark was cleared.
    ask(&pool, [8, 1]);
    ask(&pool, [9]);
    assert_eq!(left(&pool), [1, 3, 4, 5, 6, 7, 8, 9], "block 2 is the oldest without a mark");
}

#[test]
fn a_block_in_use_is_not_evicted() {
    for policy in TWO_QUEUES {
        let pool = of_eight(policy);
        ask(&pool, 0..8);
        let pin = pool.peek(OWNER, PageNo(0)).expect("cached").pin();
        let kept = pool.glance(OWNER, PageNo(1)).expect("cached").keep();
        ask(&pool, 10..200);
        let cached = left(&pool);
        assert!(cached[..2] == [0, 1] && pool.stats().blocks == 8, "{policy}: {cached:?}");
        drop((pin, kept));
        let held: Vec<Block> =
            (0..1_000).filter_map(|page| pool.glance(OWNER, PageNo(page)).map(Block::keep)).collect();
        ask(&pool, [500]);
        assert_eq!(left(&pool), cached, "{policy}: nothing can be evicted, so the new block is not cached");
        assert_eq!(pool.stats().bytes, 8 * buf_cost(), "{policy}: and not charged");
        drop(held);
        pool.set_capacity(0);
        assert_eq!((pool.stats().bytes, pool.stats().blocks), (0, 0), "{policy}");
    }
}

#[test]
fn the_locked_policy_checks_its_victim_and_the_block_again_after_a_load() {
    let load = |pool: &Pool, meanwhile: &dyn Fn(&Pool)| {
        let block = pool.get(OWNER, addr(100, 1), Keep::Short, || {
            meanwhile(pool);
            Ok(buf(100, 1))
        });
        assert_eq!(block.unwrap()[0], 100);
        left(pool)
    };
    let full = || {
        let pool = of_eight(PoolPolicy::TwoQueueLocked);
        ask(&pool, 0..8);
        pool
    };
    assert_eq!(load(&full(), &|_| {}), [1, 2, 3, 4, 5, 6, 7, 100]);
    assert_eq!(load(&full(), &|pool| ask(pool, [0])), [0, 2, 3, 4, 5, 6, 7, 100], "the victim was requested");
    assert_eq!(load(&full(), &|pool| ask(pool, [8])), [2, 3, 4, 5, 6, 7, 8, 100], "the victim was evicted");
    assert_eq!(load(&full(), &|pool| pool.forget(OWNER, PageNo(5))), [0, 1, 2, 3, 4, 6, 7, 100], "there is room");
    let pool = full();
    assert_eq!(load(&pool, &|pool| ask(pool, [100])), [1, 2, 3, 4, 5, 6, 7, 100], "another thread loaded the block");
    assert_eq!((pool.stats().evictions, pool.stats().bytes), (1, 8 * buf_cost()));
    let held = std::cell::RefCell::new(None);
    let hold = |pool: &Pool| *held.borrow_mut() = pool.glance(OWNER, PageNo(0));
    assert_eq!(load(&full(), &hold), [0, 2, 3, 4, 5, 6, 7, 100], "the victim is in use");
}

#[test]
fn the_optimal_policy_never_evicts() {
    let pool = of_eight(PoolPolicy::Optimal);
    ask(&pool, (0..900).chain(0..900));
    pool.reserve(1 << 20);
    pool.set_capacity(0);
    let stats = pool.stats();
    assert_eq!((left(&pool).len(), stats.hits, stats.misses, stats.evictions), (900, 900, 900, 0));
    assert!(pool.has_room(1 << 40) && !pool.should_copy());
    pool.insert_scanned(OWNER, addr(950, 1), true, &buf(1, 1));
    pool.release(1 << 20);
    pool.forget(OWNER, PageNo(3));
    assert_eq!((left(&pool).len(), pool.stats().bytes), (900, 900 * buf_cost()));
}

#[test]
fn clock_ignores_references() {
    let pool = of_eight(PoolPolicy::Clock);
    ask(&pool, 0..8);
    let held = pool.glance(OWNER, PageNo(0)).expect("cached").keep();
    ask(&pool, 8..30);
    assert!(!left(&pool).contains(&0) && held[0] == 0, "the holder keeps the evicted block");
}

#[test]
fn threads_that_hold_hit_and_forget_blocks_leave_exact_counts() {
    for policy in PoolPolicy::ALL {
        let pool = Pool::with_policy(32 * (PAGE + OVERHEAD), policy);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held = std::collections::VecDeque::new();
                    for i in 0..8_000u64 {
                        // A third of the requests goes to 8 hot pages.
                        let page = if i % 3 == 0 { i % 8 } else { 8 + (i * 31 + thread * 17) % 100 };
                        held.push_back((page, pool.get(OWNER, addr(page, 1), Keep::Short, || Ok(buf(page as u8, 1)))));
                        if held.len() > 3 {
                            let (page, block) = held.pop_front().expect("not empty");
                            assert!(block.expect("loaded").iter().all(|byte| *byte == page as u8));
                        }
                        if i % 97 == 0 {
                            pool.forget(OWNER, PageNo(page));
                        }
                        if i % 1_000 == thread {
                            pool.reserve(8 * (PAGE + OVERHEAD));
                            pool.release(8 * (PAGE + OVERHEAD));
                        }
                    }
                });
            }
        });
        let stats = pool.stats();
        assert!(stats.bytes <= stats.capacity && stats.bytes == stats.blocks * buf_cost(), "{policy}: {stats:?}");
        assert_eq!(stats.blocks, left(&pool).len() as u64, "{policy}");
        assert_eq!(stats.hits + stats.misses, 32_000, "{policy}: each request is counted once");
        assert_eq!(stats.evictions == 0, policy == PoolPolicy::Optimal, "{policy}");
    }
}
