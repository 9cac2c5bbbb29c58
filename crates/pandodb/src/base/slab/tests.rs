//! Tests that slots do not overlap, that pieces are reused, and that excess memory returns to the system.

use super::*;

const WORDS: usize = PAGE / size_of::<u64>();

/// A slab with pieces of two pages.
fn slab(most: usize, spare: usize) -> Arc<Slab<u64>> {
    Slab::new(2 * WORDS, most, spare)
}

/// The number of pieces of a slab that are wholly in memory, according to the system.
#[cfg(all(target_os = "linux", not(miri)))]
fn resident(slab: &Slab<u64>) -> usize {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let is_present = |page: usize| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, page as u64 * 8).unwrap();
        u64::from_le_bytes(entry) >> 63 == 1
    };
    let reserved = slab.reserved.as_ref().unwrap();
    let first = reserved.at.as_ptr() as usize / PAGE;
    (0..reserved.pieces as usize).filter(|piece| (0..2).all(|page| is_present(first + piece * 2 + page))).count()
}

#[test]
fn slots_do_not_overlap_and_keep_their_values() {
    // The last three pieces are beyond the reserved addresses.
    let slab = slab(6, 2);
    let mut slots: Vec<_> = (0..9).map(|_| slab.take()).collect();
    for (i, slot) in slots.iter_mut().enumerate() {
        assert!(slot.iter().all(|word| *word == 0) && slot.len() == 2 * WORDS);
        slot.fill(i as u64 + 1);
    }
    slots.remove(4);
    assert!(slots.iter().zip([1, 2, 3, 4, 6, 7, 8, 9]).all(|(slot, i)| slot.iter().all(|word| *word == i)));
}

#[test]
fn pieces_are_reused_and_outlive_the_slab_handle() {
    let slab = slab(4, 2);
    let mut slot = slab.take();
    slot[7] = 3;
    let at = slot.as_ptr();
    drop(slot);
    let again = slab.take();
    if MAPPED {
        assert_eq!((again.as_ptr(), again[7]), (at, 3));
    }
    drop(slab);
    assert_eq!(again[8], 0);
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn the_system_gets_excess_memory_back() {
    let slab = slab(64, 3);
    let touch = |slot: &mut Slot<u64>| slot.iter_mut().step_by(WORDS).for_each(|word| *word = 1);
    let mut slots: Vec<_> = (0..16).map(|_| slab.take()).collect();
    slots.iter_mut().for_each(touch);
    let held = slots.remove(9);
    assert_eq!(resident(&slab), 16);
    drop(slots);
    assert_eq!(resident(&slab), 1 + 3, "the piece in use and the spare ones");
    assert_eq!(held[0], 1, "only its neighbours' pages were discarded");
    let again: Vec<_> = (0..15).map(|_| slab.take()).collect();
    let zeros = again.iter().filter(|slot| slot.iter().all(|word| *word == 0)).count();
    assert_eq!(zeros, 12, "discarded pieces read as zeros");
    assert_eq!(slab.pieces.lock().fresh, 16, "no fresh one was needed");
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn returned_memory_stays_within_a_limit_and_leaves_when_the_limit_falls() {
    let slab = slab(64, 3);
    let touch = |slot: &mut Slot<u64>| slot.iter_mut().step_by(WORDS).for_each(|word| *word = 1);
    let full = |count: usize| {
        let mut slots: Vec<_> = (0..count).map(|_| slab.take()).collect();
        slots.iter_mut().for_each(touch);
        slots
    };
    slab.keep_within(|| 20);
    let mut held = full(16);
    held.truncate(4);
    assert_eq!(resident(&slab), 16, "all pieces are within the limit");
    held.extend(full(20));
    drop(held.split_off(4));
    assert_eq!(resident(&slab), 20, "those above the limit left");
    slab.count_beside(6, 0);
    assert_eq!(resident(&slab), 14, "other memory counts, too");
    slab.count_beside(0, 6);
    slab.keep_within(|| 10);
    assert_eq!(resident(&slab), 10);
    slab.keep_within(|| 0);
    assert_eq!(resident(&slab), 4 + 3, "the pieces in use and the spare ones");
    assert!(held.iter().all(|slot| slot[0] == 1), "pieces in use keep their values");
}

#[test]
fn threads_take_and_return_pieces_concurrently() {
    let slab = slab(8, 2);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let slab = &slab;
            scope.spawn(move || {
                for round in 0..200 {
                    let mut slots: Vec<_> = (0..3).map(|_| slab.take()).collect();
                    slots.iter_mut().for_each(|slot| slot.fill(thread << 32 | round));
                    assert!(slots.iter().all(|slot| slot.iter().all(|word| *word == (thread << 32 | round))));
                }
            });
        }
    });
}
