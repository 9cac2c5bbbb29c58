//! Tests that every device must pass, and further tests of single devices.

use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use super::counting::{ClassCounts, CountingDevice, FileClass};
use super::*;
use crate::base::PAGE;

const CREATE: OpenHow = OpenHow { write: true, create_new: true, direct: false, small_writes: false };
const WRITE: OpenHow = OpenHow { write: true, create_new: false, direct: false, small_writes: false };
const READ: OpenHow = OpenHow { write: false, create_new: false, direct: false, small_writes: false };

/// A new device of each kind, with the guard of its directory.
fn devices() -> Vec<(Arc<dyn Device>, Option<tempfile::TempDir>)> {
    let mut devices: Vec<(Arc<dyn Device>, Option<tempfile::TempDir>)> = vec![
        (MemDevice::new(), None),
        (SimDevice::new(1), None),
        (CountingDevice::new(MemDevice::new(), |_| FileClass::Data), None),
        (CountingDevice::new(SimDevice::new(1), |_| FileClass::Data), None),
    ];
    for io in [Io::Auto, Io::Sleeping, Io::Sync] {
        let dir = tempfile::tempdir().unwrap();
        let file = FileDevice::open(&dir.path().join("store"), true).unwrap().with_io(io).unwrap();
        devices.push((Arc::new(file), Some(dir)));
    }
    devices
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(e) => e.kind(),
    }
}

fn read_all(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    read_exact_at(file, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn files_keep_what_is_written() {
    for (device, _dir) in devices() {
        let file = device.open("a", CREATE).unwrap();
        assert!(file.is_empty().unwrap());
        assert_eq!(file.read_at(0, &mut [0; 4]).unwrap(), 0, "nothing to read in an empty file");
        write_all_at(&*file, 5000, b"hello").unwrap();
        assert_eq!(file.len().unwrap(), 5005);
        let mut buf = [1; 9];
        read_exact_at(&*file, 4996, &mut buf).unwrap();
        assert_eq!(&buf, b"\0\0\0\0hello", "skipped bytes read as zeros");
        assert_eq!(kind(read_exact_at(&*file, 5000, &mut [0; 6])), ErrorKind::UnexpectedEof);

        file.set_len(5002).unwrap();
        file.set_len(5004).unwrap();
        assert_eq!(&read_all(&*file)[4999..], b"\0he\0\0", "bytes that were cut off do not reappear");
        file.sync().unwrap();
        let again = device.open("a", READ).unwrap();
        assert_eq!(&read_all(&*again)[5000..5002], b"he");
        assert!(again.write_at(0, b"x").is_err(), "opened for reading only");
    }
}

#[test]
fn space_is_allocated_and_freed() {
    for (device, _dir) in devices() {
        let file = device.open("space", CREATE).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(file.occupied().unwrap(), 0, "extending allocates nothing");
        write_all_at(&*file, 8192, &[7; 3 * PAGE]).unwrap();
        file.allocate(0, 64 * PAGE as u64).unwrap();
        let mut buf = [0; PAGE];
        read_exact_at(&*file, 8192, &mut buf).unwrap();
        assert_eq!(buf, [7; PAGE], "allocating keeps existing bytes");
        let full = file.occupied().unwrap();
        assert!(full >= 64 * PAGE as u64, "{device:?} occupies {full}");
        file.punch_hole(0, 32 * PAGE as u64).unwrap();
        assert_eq!(file.len().unwrap(), 1 << 30, "a hole does not shorten the file");
        read_exact_at(&*file, 8192, &mut buf).unwrap();
        assert_eq!(buf, [0; PAGE]);
        assert!(file.occupied().unwrap() < full);
        file.allocate(1 << 30, 5000).unwrap();
        assert_eq!(file.len().unwrap(), (1 << 30) + 5000, "allocating extends the file");
        file.allocate(0, 0).unwrap();
        file.punch_hole(0, 0).unwrap();
    }
}

#[test]
fn the_directory_lists_renames_and_removes_files() {
    for (device, _dir) in devices() {
        for name in ["b", "a", "c"] {
            write_all_at(&*device.open(name, CREATE).unwrap(), 0, name.as_bytes()).unwrap();
        }
        assert_eq!(kind(device.open("a", CREATE)), ErrorKind::AlreadyExists);
        assert_eq!(kind(device.open("d", WRITE)), ErrorKind::NotFound);
        let held = device.open("b", WRITE).unwrap();
        device.rename("a", "b").unwrap();
        device.remove("c").unwrap();
        device.sync_dir().unwrap();
        assert_eq!(device.list().unwrap(), ["b"]);
        assert_eq!(read_all(&*device.open("b", READ).unwrap()), b"a");
        write_all_at(&*held, 0, b"x").unwrap();
        assert_eq!(read_all(&*held), b"x", "an open file outlives its name");
        assert_eq!(kind(device.rename("c", "d")), ErrorKind::NotFound);
        assert_eq!(kind(device.remove("c")), ErrorKind::NotFound);
    }
}

#[test]
fn names_cannot_leave_the_directory() {
    let long = "x".repeat(256);
    for (device, _dir) in devices() {
        device.open("ok", CREATE).unwrap();
        for name in ["", ".", "..", "a/b", "/etc", "a\\b", "a\0b", "lock", &long] {
            assert_eq!(kind(device.open(name, CREATE)), ErrorKind::InvalidInput, "open {name:?}");
            assert_eq!(kind(device.remove(name)), ErrorKind::InvalidInput, "remove {name:?}");
            assert_eq!(kind(device.rename(name, "b")), ErrorKind::InvalidInput, "rename from {name:?}");
            assert_eq!(kind(device.rename("ok", name)), ErrorKind::InvalidInput, "rename to {name:?}");
        }
        assert_eq!(device.list().unwrap(), ["ok"]);
    }
}

#[test]
fn the_lock_excludes() {
    for (device, _dir) in devices() {
        let writer = device.lock(LockMode::Exclusive).unwrap();
        assert_eq!(kind(device.lock(LockMode::Exclusive)), ErrorKind::WouldBlock);
        assert_eq!(kind(device.lock(LockMode::Shared)), ErrorKind::WouldBlock);
        drop(writer);
        let readers = [device.lock(LockMode::Shared).unwrap(), device.lock(LockMode::Shared).unwrap()];
        assert_eq!(kind(device.lock(LockMode::Exclusive)), ErrorKind::WouldBlock);
        drop(readers);
        device.lock(LockMode::Exclusive).unwrap();
        assert!(device.list().unwrap().is_empty(), "the lock is not a file of the store");
    }
}

#[test]
fn concurrent_reads_complete_in_any_order_with_the_right_bytes() {
    for (device, _dir) in devices() {
        let file = device.open("direct", OpenHow { direct: true, ..CREATE }).unwrap();
        for page in 0..100u8 {
            write_all_at(&*file, u64::from(page) * PAGE as u64, &AlignedBuf::from_bytes(&[page; PAGE])).unwrap();
        }
        // More reads than any queue accepts at once.
        let mut reads = Reads::new(file.clone());
        for tag in 0..98 {
            let buf = AlignedBuf::zeroed(1 + tag % 3);
            reads.submit(Read { tag, offset: tag as u64 * PAGE as u64, buf });
        }
        let past = Read { tag: 98, offset: 99 * PAGE as u64, buf: AlignedBuf::zeroed(2) };
        reads.submit(past);
        let mut seen = [false; 100];
        while let Some((tag, read)) = reads.complete() {
            assert!(!std::mem::replace(&mut seen[tag], true), "{device:?}: {tag} ended twice");
            if tag == 98 {
                assert_eq!(kind(read), ErrorKind::UnexpectedEof);
                // Submit another read while other reads are in flight.
                reads.submit(Read { tag: 99, offset: 99 * PAGE as u64, buf: AlignedBuf::zeroed(1) });
                continue;
            }
            let buf = read.unwrap();
            assert_eq!(buf.pages(), if tag == 99 { 1 } else { 1 + tag % 3 });
            for (i, page) in buf.chunks(PAGE).enumerate() {
                assert!(page.iter().all(|byte| *byte as usize == tag + i), "{device:?}: bytes of another read");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{device:?}");
        // Submit some reads that are never completed.
        for tag in 0..3 {
            reads.submit(Read { tag, offset: 0, buf: AlignedBuf::zeroed(1) });
        }
        reads.start();
    }
}

#[test]
fn reads_proceed_while_their_caller_does_something_else() {
    for (device, _dir) in devices() {
        let file = device.open("direct", OpenHow { direct: true, ..CREATE }).unwrap();
        write_all_at(&*file, 0, &AlignedBuf::from_bytes(&[7; PAGE])).unwrap();
        let mut reads = Reads::new(file);
        assert!(!reads.start() && reads.complete().is_none(), "nothing is in flight");
        reads.submit(Read { tag: 3, offset: 0, buf: AlignedBuf::zeroed(1) });
        reads.start();
        let (tag, read) = reads.complete().unwrap();
        assert_eq!((tag, &read.unwrap()[..]), (3, &[7; PAGE][..]));
        assert!(reads.complete().is_none());
    }
}

#[test]
fn the_clock_randomness_and_threads_work() {
    for (device, _dir) in devices() {
        let before = device.now();
        device.sleep(Duration::from_millis(1));
        assert!(device.now() >= before + Duration::from_millis(1));
        assert_ne!(device.random(), device.random());
        assert!(!device.path().is_empty());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = match device.spawn("worker", Box::new(move || sender.send(1).unwrap())) {
            Ok(thread) => thread,
            Err(e) => {
                assert_eq!((e.kind(), device.path().as_str()), (ErrorKind::Unsupported, "(simulated)"));
                continue;
            }
        };
        assert_eq!(receiver.recv().unwrap(), 1);
        thread.join();
    }
}

#[test]
fn a_direct_file_in_memory_rejects_the_transfers_that_a_kernel_rejects() {
    let devices: [Arc<dyn Device>; 2] = [MemDevice::new(), SimDevice::new(1)];
    for device in devices {
        let file = device.open("direct", OpenHow { direct: true, ..CREATE }).unwrap();
        let mut buf = AlignedBuf::zeroed(2);
        assert_eq!(kind(file.write_at(1, &buf)), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_at(0, &buf[..100])), ErrorKind::InvalidInput);
        assert_eq!(kind(file.read_at(0, &mut buf[1..PAGE + 1])), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_at(u64::MAX - 4095, &buf)), ErrorKind::FileTooLarge);
        assert_eq!(kind(file.set_len(u64::MAX)), ErrorKind::FileTooLarge);
        assert_eq!(kind(file.allocate(u64::MAX, 2)), ErrorKind::FileTooLarge);
        assert_eq!(kind(file.punch_hole(u64::MAX, 2)), ErrorKind::FileTooLarge);
    }
}

#[test]
fn a_directory_is_private_and_refuses_links() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    assert_eq!(kind(FileDevice::open(&path, false)), ErrorKind::NotFound);
    let device = FileDevice::open(&path, true).unwrap();
    device.open("a", CREATE).unwrap();
    let _lock = device.lock(LockMode::Exclusive).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join("a")), 0o600);
    assert_eq!(mode(&path.join("lock")), 0o600);

    symlink(path.join("a"), path.join("link")).unwrap();
    std::fs::create_dir(path.join("folder")).unwrap();
    assert!(device.open("link", READ).is_err());
    assert_eq!(device.list().unwrap(), ["a"], "only regular files");

    let second = FileDevice::open(&path, true).unwrap();
    assert_eq!(kind(second.lock(LockMode::Shared)), ErrorKind::WouldBlock, "even in the same process");
}

#[test]
fn operations_are_counted_by_class_of_file() {
    let classify = |name: &str| {
        if name.starts_with("log") { FileClass::Log } else { FileClass::Data }
    };
    let device = CountingDevice::new(MemDevice::new(), classify);
    let (data, log) = (device.open("data", CREATE).unwrap(), device.open("log-1", CREATE).unwrap());
    data.write_at(0, &[1; 100]).unwrap();
    device.log_accesses();
    log.write_at(10, &[1; 7]).unwrap();
    log.sync().unwrap();
    data.read_at(60, &mut [0; 100]).unwrap();
    data.write_at(0, &[1; PAGE]).unwrap();
    let mut reads = Reads::new(data.clone());
    reads.submit(Read { tag: 0, offset: 0, buf: AlignedBuf::zeroed(9) });
    assert!(reads.complete().unwrap().1.is_err(), "one page exists, the others do not");
    device.sync_dir().unwrap();

    let counts = device.counts();
    let expected =
        ClassCounts { reads: 2, read_bytes: 40 + PAGE as u64, writes: 2, write_bytes: 100 + PAGE as u64, syncs: 0 };
    assert_eq!(counts[FileClass::Data], expected);
    assert_eq!(counts[FileClass::Log], ClassCounts { writes: 1, write_bytes: 7, syncs: 1, ..ClassCounts::default() });
    assert_eq!(counts[FileClass::Other], ClassCounts::default());
    assert_eq!((counts.total().writes, counts.total().syncs, counts.dir_syncs), (3, 1, 1));

    let log = device.take_accesses();
    assert_eq!(log.len(), 4);
    assert_eq!((log[0].file, log[0].offset, log[0].len, log[0].is_write), (1, 10, 7, true));
    assert_eq!((log[1].class, log[1].len, log[1].is_write), (FileClass::Data, 40, false));
}

/// A torn write may leave a file whose length is inside a page. A read past that length must fail with the end of the
/// file, not with a misaligned transfer.
#[test]
fn a_direct_file_may_end_inside_a_page() {
    let mut image = sim::SimImage::default();
    image.write("a", 0, &[7; 6000]);
    let device = SimDevice::from_image(&image, 1);
    let file = device.open("a", OpenHow { direct: true, ..OpenHow::default() }).unwrap();
    let mut buf = AlignedBuf::zeroed(2);
    let error = read_exact_at(&*file, 0, &mut buf).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}
