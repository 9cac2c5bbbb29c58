//! Tests of all kinds of page buffers through their trait.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const WITH_FILE: [BufferKind; 4] =
    [BufferKind::TwoQueue, BufferKind::TwoQueueSharded, BufferKind::Clock, BufferKind::Swizzled];

fn buffer(kind: BufferKind, frames: usize) -> (tempfile::TempDir, Box<dyn PageBuffer>) {
    let dir = tempfile::tempdir().unwrap();
    let config = BufferConfig { kind, page: 256, frames, direct: false };
    let buffer = create(&config, &dir.path().join("pages")).unwrap();
    (dir, buffer)
}

fn create_pages(buffer: &dyn PageBuffer, count: u64) -> Vec<PageNo> {
    let create = |i: u64| {
        let mut page = buffer.create().unwrap();
        page[..8].copy_from_slice(&i.to_le_bytes());
        page.no()
    };
    (0..count).map(create).collect()
}

fn number(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

#[test]
fn evicted_pages_keep_their_changes() {
    for kind in BufferKind::ALL {
        let (_dir, buffer) = buffer(kind, 4);
        let pages = create_pages(&*buffer, 100);
        for (i, &page) in (0..).zip(&pages) {
            assert_eq!(number(&buffer.read(page).unwrap()), i, "{kind:?}");
            buffer.write(page).unwrap()[..8].copy_from_slice(&(2 * i).to_le_bytes());
        }
        for (i, &page) in (0..100).rev().zip(pages.iter().rev()) {
            assert_eq!(number(&buffer.read(page).unwrap()), 2 * i, "{kind:?}");
        }
        let counts = buffer.counts();
        assert_eq!(counts.pages, 100);
        if kind == BufferKind::Optimal {
            assert_eq!(counts.reads + counts.writes + counts.evictions, 0);
        } else {
            assert!(counts.reads >= 190 && counts.writes >= 190 && counts.overflows == 0, "{kind:?} {counts:?}");
            assert!(counts.evictions >= counts.reads, "{counts:?}");
        }
    }
}

#[test]
fn clean_pages_are_not_written_again() {
    for kind in WITH_FILE {
        let (_dir, buffer) = buffer(kind, 4);
        let pages = create_pages(&*buffer, 20);
        pages.iter().for_each(|&page| drop(buffer.read(page).unwrap()));
        let before = buffer.counts();
        pages.iter().for_each(|&page| drop(buffer.read(page).unwrap()));
        let done = buffer.counts().since(&before);
        assert_eq!((done.reads, done.writes), (20, 0), "{kind:?}");
    }
}

#[test]
fn hot_pages_stay_under_2q() {
    for kind in [BufferKind::TwoQueue, BufferKind::TwoQueueSharded] {
        let (_dir, buffer) = buffer(kind, 8);
        let pages = create_pages(&*buffer, 40);
        for _ in 0..3 {
            pages[..4].iter().for_each(|&page| drop(buffer.read(page).unwrap()));
        }
        let before = buffer.counts().reads;
        for &cold in &pages[4..] {
            drop(buffer.read(cold).unwrap());
            pages[..4].iter().for_each(|&page| drop(buffer.read(page).unwrap()));
        }
        assert_eq!(buffer.counts().reads - before, 36, "only cold pages are read: {kind:?}");
    }
}

#[test]
fn pinned_pages_are_not_evicted_even_above_the_capacity() {
    for kind in WITH_FILE {
        let (_dir, buffer) = buffer(kind, 2);
        let pages = create_pages(&*buffer, 30);
        let held: Vec<_> = pages[..10].iter().map(|&page| buffer.read(page).unwrap()).collect();
        assert!((0..).zip(&held).all(|(i, page)| number(page) == i), "{kind:?}");
        assert!(buffer.counts().overflows >= 8, "{kind:?}");
        drop(held);
        let before = buffer.counts();
        for _ in 0..3 {
            pages.iter().for_each(|&page| drop(buffer.read(page).unwrap()));
        }
        let done = buffer.counts().since(&before);
        assert_eq!(done.overflows, 0, "the buffer shrinks again: {kind:?}");
        assert!(done.reads >= 40, "{kind:?} {done:?}");
    }
}

#[test]
fn threads_never_lose_an_increment() {
    const ROUNDS: u64 = 4_000;
    for kind in BufferKind::ALL {
        let (_dir, buffer) = buffer(kind, 6);
        let (pages, hints) = (create_pages(&*buffer, 24), Hints::default());
        let done: Vec<AtomicU64> = (0..24).map(AtomicU64::new).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (buffer, pages, hints, done) = (&buffer, &pages, &hints, &done);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let i = ((round + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % pages.len();
                        let child = Child { no: pages[i], slot: i, slots: 24 };
                        let mut page = buffer.pin_child(hints, child).unwrap().write();
                        assert_eq!(page.no(), pages[i]);
                        let next = number(&page) + 1;
                        page[..8].copy_from_slice(&next.to_le_bytes());
                        done[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        for (&page, done) in pages.iter().zip(&done) {
            assert_eq!(number(&buffer.read(page).unwrap()), done.load(Ordering::Relaxed), "{kind:?}");
        }
    }
}

#[test]
fn wrong_hints_lead_to_the_right_pages() {
    for kind in BufferKind::ALL {
        let (_dir, buffer) = buffer(kind, 3);
        let pages = create_pages(&*buffer, 30);
        let hints = Hints::default();
        for round in 0..200_u64 {
            // The slots get other pages in each round, and frames other pages between the rounds.
            let i = (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 30;
            let child = Child { no: pages[i as usize], slot: round as usize % 2, slots: 2 };
            let page = buffer.pin_child(&hints, child).unwrap().read();
            assert_eq!((page.no(), number(&page)), (child.no, i), "{kind:?}");
        }
        assert_eq!(hints.get(Child { no: 0, slot: 0, slots: 2 }).is_some(), kind == BufferKind::Swizzled, "{kind:?}");
    }
}

#[test]
fn a_page_that_is_loaded_again_has_no_hints() {
    let (_dir, buffer) = buffer(BufferKind::Swizzled, 2);
    let pages = create_pages(&*buffer, 10);
    let child = Child { no: pages[1], slot: 0, slots: 1 };
    {
        let parent = buffer.read(pages[0]).unwrap();
        drop(buffer.pin_child(parent.hints(), child).unwrap());
        assert!(parent.hints().get(child).is_some());
    }
    assert!(buffer.read(pages[0]).unwrap().hints().get(child).is_some(), "the page was not evicted");
    pages[2..].iter().for_each(|&page| drop(buffer.read(page).unwrap()));
    let mut parent = buffer.read(pages[0]).unwrap();
    assert!(parent.hints().get(child).is_none(), "the page was evicted");
    // The child is loaded without the latch of the parent, and then found in the table.
    for is_in_memory in [false, true] {
        let released = buffer.pin_child_unlatched(parent, child).unwrap();
        assert_eq!(released.child.read().no(), child.no);
        parent = released.parent.read();
        assert_eq!(parent.hints().get(child).is_some(), is_in_memory);
    }
}

#[test]
fn a_buffer_without_pages_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = BufferConfig { kind: BufferKind::Clock, page: 256, frames: 0, direct: false };
    assert!(create(&config, &dir.path().join("pages")).is_err());
}

#[test]
fn direct_io_reads_what_it_wrote() {
    // Not every file system allows direct I/O, so the file is in the build directory, not in memory.
    let Ok(dir) = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")) else { return };
    let config = BufferConfig { kind: BufferKind::TwoQueue, page: 4096, frames: 2, direct: true };
    let Ok(buffer) = create(&config, &dir.path().join("pages")) else { return };
    let pages = create_pages(&*buffer, 20);
    for (i, &page) in (0..).zip(&pages) {
        assert_eq!(number(&buffer.read(page).unwrap()), i);
    }
}
