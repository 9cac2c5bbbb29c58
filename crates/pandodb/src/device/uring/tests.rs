//! Tests of rings that many threads use, and of dropped, refused and full rings. If the system has no io_uring, these
//! tests pass without testing anything. The tests in `device/tests.rs` test devices without io_uring (`Io::Sync`).

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use super::*;
use crate::base::PAGE;
use crate::base::random::Rng;
use crate::device::{FileDevice, Io, OpenHow, Reads};

const PAGES: usize = 300;

/// The first bytes of a page.
fn mark(page: usize) -> [u8; 8] {
    (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// A file of marked pages, and its rings; `None` if the system has no io_uring.
fn marked() -> Option<(Arc<Rings>, Arc<File>)> {
    let rings = Rings::new(true)?;
    rings.try_out().ok()?;
    let file = tempfile::tempfile().unwrap();
    for page in 0..PAGES {
        let mut bytes = [page as u8; PAGE];
        bytes[..8].copy_from_slice(&mark(page));
        file.write_all_at(&bytes, (page * PAGE) as u64).unwrap();
    }
    Some((rings, Arc::new(file)))
}

fn read(page: usize, pages: usize) -> Read {
    Read { tag: page, offset: (page * PAGE) as u64, buf: AlignedBuf::zeroed(pages) }
}

/// Whether a read returned the pages that its tag identifies.
fn is_right(done: &Done) -> bool {
    let Read { tag, buf, .. } = &done.read;
    let pages = buf.chunks(PAGE).enumerate();
    matches!(done.result, Ok(n) if n == buf.len())
        && pages.into_iter().all(|(i, bytes)| bytes[..8] == mark(tag + i) && bytes[PAGE - 1] == (tag + i) as u8)
}

#[test]
fn threads_submit_and_complete_in_any_order() {
    let Some((rings, file)) = marked() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (rings, file) = (&rings, &file);
            scope.spawn(move || {
                let mut rng = Rng(thread + 1);
                for _ in 0..40 {
                    let mut queue = rings.queue(file).unwrap();
                    let mut waits = 0;
                    for _ in 0..200 {
                        match rng.index(1 << 30) % 5 {
                            0 | 1 if waits < SLOTS as usize => {
                                queue.push(read(rng.index(1 << 30) % (PAGES - 8), 1 + rng.index(1 << 30) % 8)).unwrap();
                                waits += 1;
                            }
                            2 => queue.start(),
                            _ => {
                                let done = queue.wait();
                                assert_eq!(done.is_some(), waits > 0);
                                assert!(done.as_ref().is_none_or(is_right), "{done:?}");
                                waits -= usize::from(done.is_some());
                            }
                        }
                    }
                    // Half of the queues are dropped with reads in flight.
                    while rng.index(1 << 30).is_multiple_of(2) && waits > 0 {
                        assert!(is_right(&queue.wait().unwrap()));
                        waits -= 1;
                    }
                }
            });
        }
    });
    assert!(rings.made.load(Relaxed) <= 4, "{rings:?}: a ring for each thread");
    assert_eq!(rings.idle.lock().len(), rings.made.load(Relaxed), "all rings were returned");
}

#[test]
fn a_ring_that_was_dropped_with_reads_in_flight_serves_the_next() {
    let Some((rings, file)) = marked() else { return };
    for round in 0..50 {
        // By now the reads of earlier rounds have completed.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut queue = rings.queue(&file).unwrap();
        let mut taken = 0;
        while queue.push(read(taken + round, 2)).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, SLOTS as usize, "round {round}: abandoned reads release their slots");
        if round % 2 == 0 {
            queue.start();
        }
        if round % 5 != 4 {
            continue;
        }
        let mut mine: Vec<usize> =
            std::iter::from_fn(|| queue.wait().filter(is_right).map(|done| done.read.tag)).collect();
        mine.sort_unstable();
        assert_eq!(mine, (round..round + taken).collect::<Vec<_>>(), "each of this round's, once");
    }
    assert_eq!(rings.made.load(Relaxed), 1);
}

#[test]
fn a_thread_may_exit_or_panic_before_its_reads_complete() {
    let Some((rings, file)) = marked() else { return };
    let started = |pages: usize| {
        let mut queue = rings.queue(&file).unwrap();
        (0..pages).for_each(|page| queue.push(read(page, 1)).unwrap());
        queue.start();
        queue
    };
    let mut queue = std::thread::scope(|scope| scope.spawn(|| started(40)).join().unwrap());
    // The kernel cancels the reads of a thread that exits, and `Reads` repeats them.
    let done: Vec<Done> = std::iter::from_fn(|| queue.wait()).collect();
    assert_eq!(done.len(), 40);
    assert!(done.iter().all(|done| is_right(done) || done.result.is_err()));
    drop(queue);
    let panicked = std::thread::scope(|scope| {
        let body = || {
            let _queue = started(40);
            std::panic::resume_unwind(Box::new("on purpose"));
        };
        scope.spawn(body).join()
    });
    assert!(panicked.is_err());
    let mut queue = started(3);
    assert!(std::iter::from_fn(|| queue.wait()).all(|done| is_right(&done)));
}

#[test]
fn a_full_ring_refuses_reads_and_the_number_of_rings_is_bounded() {
    let Some((rings, file)) = marked() else { return };
    let mut queue = rings.queue(&file).unwrap();
    for page in 0..SLOTS as usize {
        queue.push(read(page, 1)).unwrap();
    }
    assert_eq!(queue.push(read(200, 1)).unwrap_err().tag, 200, "the read is returned unchanged");
    assert!(is_right(&queue.wait().unwrap()));
    queue.push(read(200, 1)).unwrap();
    assert_eq!(std::iter::from_fn(|| queue.wait()).filter(is_right).count(), SLOTS as usize);

    let mut all: Vec<_> = (1..MOST_RINGS).map(|_| rings.queue(&file).unwrap()).collect();
    assert!(rings.queue(&file).is_none(), "one too many");
    all.pop();
    assert!(rings.queue(&file).is_some(), "one was returned");
}

#[test]
fn errors_and_the_end_of_the_file_are_reported() {
    let Some((rings, file)) = marked() else { return };
    let mut queue = rings.queue(&file).unwrap();
    queue.push(read(PAGES - 1, 3)).unwrap();
    assert_eq!(queue.wait().unwrap().result.unwrap(), PAGE, "the file ends after one page");
    queue.push(read(PAGES + 7, 1)).unwrap();
    assert_eq!(queue.wait().unwrap().result.unwrap(), 0);
    let dir = tempfile::tempdir().unwrap();
    let unreadable = Arc::new(File::create(dir.path().join("f")).unwrap());
    let mut queue = rings.queue(&unreadable).unwrap();
    queue.push(read(0, 1)).unwrap();
    let error = queue.wait().unwrap().result.unwrap_err();
    assert_eq!(error.raw_os_error(), unreadable.read_at(&mut [0], 0).unwrap_err().raw_os_error());
}

#[test]
fn reads_that_the_kernel_refuses_are_returned() {
    let Some((_, file)) = marked() else { return };
    let mut ring = Ring::new(Process::current()).unwrap();
    (0..3).for_each(|page| ring.push(read(page, 1), &file).unwrap());
    ring.enter(false);
    (3..8).for_each(|page| ring.push(read(page, 1), &file).unwrap());
    ring.fill_in();
    ring.retire();
    assert!(ring.push(read(9, 1), &file).is_err(), "a retired ring refuses reads");
    let mut refused = 0;
    for _ in 0..8 {
        let done = loop {
            match ring.reap() {
                Some(done) => break done,
                None => ring.enter(true),
            }
        };
        match &done.result {
            Err(e) if e.kind() == ErrorKind::Interrupted && done.read.tag >= 3 => refused += 1,
            _ => assert!(is_right(&done) && done.read.tag < 3, "{done:?}"),
        }
    }
    assert_eq!((refused, ring.flying), (5, 0));
    ring.enter(true);
    assert!(ring.reap().is_none(), "it does not wait without reads in flight");
}

#[test]
fn buffers_of_reads_that_cannot_be_awaited_are_leaked() {
    let Some((_, file)) = marked() else { return };
    let mut ring = Ring::new(Process::current()).unwrap();
    let before: Vec<_> = (0..5)
        .map(|page| {
            let read = read(page, 1);
            let place = read.buf.as_ptr();
            ring.push(read, &file).unwrap();
            place
        })
        .collect();
    ring.enter(false);
    ring.lose();
    let lost: Vec<Done> = std::iter::from_fn(|| ring.reap()).collect();
    assert_eq!((lost.len(), ring.flying), (5, 0));
    for Done { read, result } in &lost {
        assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Interrupted);
        assert!(!before.contains(&read.buf.as_ptr()), "the buffer was leaked to the kernel");
    }
}

#[test]
fn a_refusal_is_remembered_and_a_forked_child_gets_no_rings() {
    let Some((rings, file)) = marked() else { return };
    let taken = rings.queue(&file).unwrap();
    rings.refused.store(true, Relaxed);
    assert!(rings.queue(&file).is_none());
    drop(taken);
    assert!(rings.queue(&file).is_some(), "existing rings stay usable");
    let forked = Rings { process: Process::current().other(), ..Arc::into_inner(Rings::new(true).unwrap()).unwrap() };
    assert!(Arc::new(forked).queue(&file).is_none());
    // A ring that was inherited from a parent process does not wait for the reads of the parent.
    let mut ring = Ring::new(Process::current()).unwrap();
    ring.push(read(0, 1), &file).unwrap();
    ring.enter(false);
    ring.process = ring.process.other();
    drop(ring);
}

#[test]
fn a_device_reads_with_the_selected_method() {
    let Some(_) = marked() else { return };
    let dir = tempfile::tempdir().unwrap();
    let how = |create_new| OpenHow { write: true, create_new, direct: true, ..OpenHow::default() };
    FileDevice::open(dir.path(), true).unwrap();
    for (i, io) in [Io::Auto, Io::Uring, Io::Sync].into_iter().enumerate() {
        use crate::device::Device;
        let device = FileDevice::open(dir.path(), true).unwrap().with_io(io).unwrap();
        let file = device.open("f", how(i == 0)).unwrap();
        file.write_at(0, &AlignedBuf::zeroed(1)).unwrap();
        let mut reads = Reads::new(file);
        assert_eq!(reads.has_queue(), io != Io::Sync, "{io:?}");
        let log = device.open("log", OpenHow { direct: false, ..how(i == 0) }).unwrap();
        assert!(log.queue().is_none(), "only direct files have queues");
    }
}
