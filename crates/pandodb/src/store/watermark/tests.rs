//! Tests of the watermark alone. They try every order of tickets on one thread, and many threads with few slots.

use std::sync::atomic::{AtomicU64 as Plain, Ordering::SeqCst};

use super::*;

fn done(watermark: &Watermark) -> u64 {
    watermark.done.load(SeqCst)
}

#[test]
fn it_moves_over_what_is_contiguous_only() {
    let watermark = Watermark::new(4);
    for (ticket, expected) in [(0, 1), (2, 1), (4, 1), (3, 1), (1, 5), (5, 6), (6, 7)] {
        watermark.finish(ticket);
        assert_eq!(done(&watermark), expected, "after {ticket}");
    }
    watermark.wait(7);
}

#[test]
fn every_order_of_a_ring_ends_at_its_end() {
    // Try all orders of four tickets. Each order is used for two rounds with four slots.
    let mut order = [0u64, 1, 2, 3];
    let mut orders = Vec::new();
    permutations(&mut order, 0, &mut orders);
    assert_eq!(orders.len(), 24);
    for order in orders {
        let watermark = Watermark::new(4);
        for round in 0..2 {
            for (i, ticket) in order.iter().enumerate() {
                let before = &order[..=i];
                let contiguous = (0..4).take_while(|t| before.contains(t)).count() as u64;
                watermark.finish(round * 4 + ticket);
                assert_eq!(done(&watermark), round * 4 + contiguous, "{order:?}, {i} of round {round}");
            }
        }
    }
}

fn permutations(order: &mut [u64; 4], at: usize, out: &mut Vec<[u64; 4]>) {
    if at == order.len() {
        out.push(*order);
    }
    for i in at..order.len() {
        order.swap(at, i);
        permutations(order, at + 1, out);
        order.swap(at, i);
    }
}

#[test]
fn what_was_given_up_counts_for_all_after_it() {
    let watermark = Watermark::new(4);
    watermark.give_up(1);
    watermark.give_up(2);
    assert_eq!(done(&watermark), 0);
    watermark.finish(0);
    watermark.wait(3);
    assert_eq!([0, 1, 2, 9].map(|ticket| watermark.is_given_up(ticket)), [false, true, true, true]);
}

#[test]
fn a_full_ring_makes_the_next_one_wait() {
    let watermark = Watermark::new(2);
    assert_eq!(watermark.limit(), 2);
    watermark.wait_for_slot(0);
    watermark.wait_for_slot(1);
    watermark.finish(1);
    let (drawn, started) = (Plain::new(0), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            watermark.wait_for_slot(2);
            drawn.store(1, SeqCst);
        });
        started.wait();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(drawn.load(SeqCst), 0);
        watermark.finish(0);
    });
    assert_eq!((drawn.load(SeqCst), watermark.limit()), (1, 4));
}

/// Threads draw, apply and finish tickets. A thread that sees its own ticket done sees everything that earlier tickets
/// have applied.
#[test]
fn many_threads_meet_on_a_small_ring() {
    const EACH: u64 = 3_000;
    for (threads, slots) in [(2, 2), (4, 3), (8, 64)] {
        let watermark = Watermark::new(slots);
        let sequencer = parking_lot::Mutex::new(0u64);
        let applied: Vec<Plain> = (0..threads * EACH).map(|_| Plain::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let ticket = {
                            let mut next = sequencer.lock();
                            watermark.wait_for_slot(*next);
                            *next += 1;
                            *next - 1
                        };
                        applied[ticket as usize].store(1, std::sync::atomic::Ordering::Relaxed);
                        watermark.finish(ticket);
                        watermark.wait(ticket + 1);
                        let from = ticket.saturating_sub(20);
                        let seen = |t: u64| applied[t as usize].load(std::sync::atomic::Ordering::Relaxed) == 1;
                        assert!((from..=ticket).all(seen), "{ticket} is done and one before it not applied");
                    }
                });
            }
        });
        assert_eq!(done(&watermark), threads * EACH);
    }
}
