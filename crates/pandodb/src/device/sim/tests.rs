//! Compares the simulator with a plain model of bytes, and tests each guarantee of the simulator.

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;

use super::*;
use crate::base::PAGE;
use crate::device::{AlignedBuf, Device, File, OpenHow, read_exact_at, write_all_at};

const CREATE: OpenHow = OpenHow { write: true, create_new: true, direct: false, small_writes: false };
const PAGE_BYTES: u64 = PAGE as u64;

/// A recording device with one durable, empty file.
fn with_file(name: &str) -> (Arc<SimDevice>, Arc<dyn File>) {
    let sim = SimDevice::new(42);
    let file = sim.open(name, CREATE).unwrap();
    sim.sync_dir().unwrap();
    sim.record();
    (sim, file)
}

impl SimHistory {
    /// The files after a power cut that follows the first `prefix` operations; see [`SimHistory::at`].
    pub fn image_at(&self, prefix: usize, choice: &CrashChoice) -> SimImage {
        self.at(prefix).image(choice)
    }
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().expect("expected an error").kind()
}

fn contents(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    read_exact_at(file, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_power_cut_keeps_synced_bytes() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"durable").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"PENDING").unwrap();
    assert_eq!(contents(&*file), b"PENDING");
    assert_eq!(sim.durable_image().file("a").unwrap(), b"durable");
    assert_eq!(sim.image().file("a").unwrap(), b"PENDING");
    assert_eq!(sim.pending().len(), 1);
    assert_eq!(sim.crash_image(&CrashChoice::all()).hash(), sim.image().hash());

    let history = sim.history();
    assert_eq!(history.ops().len(), 3);
    assert_eq!(history.image_at(1, &CrashChoice::none()).file("a").unwrap(), b"");
    assert_eq!(history.image_at(2, &CrashChoice::none()).file("a").unwrap(), b"durable");
    assert_eq!(history.image_at(3, &CrashChoice::all()).file("a").unwrap(), b"PENDING");
    assert_eq!(history.at(1).cached_image().file("a").unwrap(), b"durable");
}

#[test]
fn a_write_can_be_torn_or_damaged() {
    let (sim, file) = with_file("a");
    let old: Vec<u8> = vec![1; 3 * PAGE];
    write_all_at(&*file, 0, &old).unwrap();
    file.sync().unwrap();
    write_all_at(&*file, 1000, &[2; 2 * PAGE]).unwrap();
    let after = |fate| sim.crash_image(&CrashChoice::all().with(0, fate)).file("a").unwrap();
    let expect = |twos: std::ops::Range<usize>| {
        let mut bytes = old.clone();
        bytes[twos].fill(2);
        bytes
    };
    assert!(after(Fate::Keep) == expect(1000..1000 + 2 * PAGE));
    assert!(after(Fate::Drop) == old);
    assert!(after(Fate::Head(5144)) == expect(1000..6144));
    assert!(after(Fate::Tail(1024)) == expect(1000 + 2 * PAGE - 1024..1000 + 2 * PAGE));
    assert!(after(Fate::Head(1 << 40)) == after(Fate::Keep), "a longer head than the write is the whole write");
    let zeros = after(Fate::Zeros);
    assert!(zeros == vec![0; 3 * PAGE], "whole pages are damaged, with their synced bytes");
    let garbage = after(Fate::Garbage(5));
    assert!(garbage.len() == 3 * PAGE && garbage[..1000] != old[..1000]);
    assert!(garbage == after(Fate::Garbage(5)) && garbage != after(Fate::Garbage(6)));
}

#[test]
fn a_creation_without_a_directory_sync_can_vanish() {
    let sim = SimDevice::new(1);
    let file = sim.open("new", CREATE).unwrap();
    file.write_at(0, b"bytes").unwrap();
    file.sync().unwrap();
    assert_eq!(sim.durable_image().files(), [], "the bytes are durable, the name is not");
    assert_eq!(sim.pending().len(), 1);
    assert_eq!(sim.crash_image(&CrashChoice::all()).file("new").unwrap(), b"bytes");
    sim.sync_dir().unwrap();
    assert_eq!(sim.durable_image().files(), [("new".to_owned(), 5)]);
}

#[test]
fn a_rename_keeps_the_bytes_and_can_be_lost() {
    let (sim, old) = with_file("name");
    old.write_at(0, b"old").unwrap();
    old.sync().unwrap();
    let new = sim.open("tmp", CREATE).unwrap();
    new.write_at(0, b"new").unwrap();
    new.sync().unwrap();
    sim.rename("tmp", "name").unwrap();

    let after = |kept: &[usize]| sim.crash_image(&CrashChoice::only(kept.iter().copied()));
    assert_eq!(after(&[]).files(), [("name".to_owned(), 3)]);
    assert_eq!(after(&[]).file("name").unwrap(), b"old");
    assert_eq!(after(&[0]).files().len(), 2);
    assert_eq!(after(&[1]).file("name").unwrap(), b"old", "a file whose creation was lost is not renamed");
    assert_eq!(after(&[0, 1]).files(), [("name".to_owned(), 3)]);
    assert_eq!(after(&[0, 1]).file("name").unwrap(), b"new");
    assert_eq!(contents(&*old), b"old", "an open file outlives its name");
    old.write_at(0, b"late").unwrap();
    sim.sync_dir().unwrap();
    old.write_at(0, b"later").unwrap();
    old.sync().unwrap();
    assert_eq!(sim.durable_image().file("name").unwrap(), b"new");
    assert!(sim.pending().is_empty(), "writes to a file without a name are not pending");
    sim.rename("name", "name").unwrap();
    assert_eq!(sim.image().file("name").unwrap(), b"new");
}

#[test]
fn a_removal_can_be_lost() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"x").unwrap();
    file.sync().unwrap();
    sim.remove("a").unwrap();
    let again = sim.open("a", CREATE).unwrap();
    again.write_at(0, b"y").unwrap();
    let after = |kept: &[usize]| sim.crash_image(&CrashChoice::only(kept.iter().copied())).file("a");
    assert_eq!(after(&[]).unwrap(), b"x");
    assert_eq!(after(&[1, 2]).unwrap(), b"x", "the new file needs the name of the old one");
    assert_eq!(after(&[0]), None);
    assert_eq!(after(&[0, 1]).unwrap(), b"");
    assert_eq!(after(&[0, 1, 2]).unwrap(), b"y");
}

#[test]
fn a_failed_sync_forgets_its_writes() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"1").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"2").unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
    assert!(file.sync().is_err());
    assert_eq!(sim.faults_struck(), 1);
    assert_eq!(contents(&*file), b"2", "reads see the new bytes");
    file.sync().unwrap();
    assert_eq!(sim.durable_image().file("a").unwrap(), b"1", "the next sync reports success and writes nothing");
    assert_eq!(sim.pending().len(), 1, "but it may have reached the disk");
    file.write_at(1, b"3").unwrap();
    file.sync().unwrap();
    assert_eq!(sim.durable_image().file("a").unwrap(), b"13", "later writes are durable");
    file.write_at(0, b"4").unwrap();
    file.sync().unwrap();
    assert_eq!(sim.durable_image().file("a").unwrap(), b"43");
    assert_eq!(sim.crash_image(&CrashChoice::all()).file("a").unwrap(), b"43", "the order of writes is kept");
    let history = sim.history();
    assert_eq!(history.image_at(history.ops().len(), &CrashChoice::none()).hash(), sim.durable_image().hash());

    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, 0)));
    sim.open("b", CREATE).unwrap();
    assert!(sim.sync_dir().is_err());
    sim.sync_dir().unwrap();
    sim.remove("a").unwrap();
    sim.sync_dir().unwrap();
    assert_eq!(sim.durable_image().files(), [], "the creation is forgotten, the removal is not");
    assert_eq!(sim.crash_image(&CrashChoice::all()).files(), [("b".to_owned(), 0)]);
}

#[test]
fn an_io_error_at_a_sync_keeps_the_writes_pending() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"1").unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Sync), 0)));
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(sim.durable_image().file("a").unwrap(), b"1");
}

#[test]
fn errors_strike_the_nth_operation_of_their_class_which_has_no_effect() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"0").unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Write), 1)));
    file.write_at(0, b"1").unwrap();
    file.sync().unwrap();
    assert!(file.write_at(0, b"2").is_err());
    assert_eq!(contents(&*file), b"1");
    file.write_at(0, b"3").unwrap();
    assert_eq!(sim.faults_struck(), 1);

    sim.set_fault(Some(Fault::sticky(FaultKind::IoError(OpClass::Meta), 0)));
    assert!(sim.open("b", CREATE).is_err() && sim.open("a", OpenHow::default()).is_err());
    assert!(sim.rename("a", "b").is_err() && sim.remove("a").is_err() && sim.list().is_err());
    assert!(file.set_len(9).is_err() && file.allocate(0, 9).is_err() && file.punch_hole(0, 9).is_err());
    file.sync().unwrap();
    sim.sync_dir().unwrap();
    assert_eq!(sim.faults_struck(), 8);
    sim.set_fault(None);
    assert_eq!(sim.list().unwrap(), ["a"]);
    assert_eq!(contents(&*file), b"3");

    sim.set_fault(Some(Fault::sticky(FaultKind::IoError(OpClass::Any), 0)));
    assert!(file.read_at(0, &mut [0]).is_err() && file.sync().is_err() && sim.sync_dir().is_err());
}

#[test]
fn a_fault_can_be_limited_to_a_range_as_an_unreadable_sector() {
    let (sim, file) = with_file("a");
    let other = sim.open("b", CREATE).unwrap();
    for file in [&file, &other] {
        write_all_at(&**file, 0, &[1; 2 * PAGE]).unwrap();
    }
    let fault = Fault::sticky(FaultKind::IoError(OpClass::Read), 0);
    sim.set_fault(Some(Fault { file: Some("a".to_owned()), range: Some(512..1024), ..fault }));
    assert!(file.read_at(600, &mut [0]).is_err() && file.read_at(0, &mut [0; PAGE]).is_err());
    file.read_at(0, &mut [0; 512]).unwrap();
    file.read_at(1024, &mut [0; 512]).unwrap();
    other.read_at(600, &mut [0]).unwrap();
    sim.rename("a", "c").unwrap();
    file.read_at(600, &mut [0]).unwrap();
    sim.rename("c", "a").unwrap();
    file.write_at(512, &[2; 256]).unwrap();
    assert!(file.read_at(600, &mut [0]).is_err(), "overwriting half of the range does not repair it");
    file.write_at(512, &[2; 512]).unwrap();
    file.read_at(600, &mut [0]).unwrap();
}

#[test]
fn space_can_run_out_and_the_clock_can_leap() {
    let (sim, file) = with_file("a");
    file.write_at(0, b"there").unwrap();
    sim.set_fault(Some(Fault::sticky(FaultKind::StorageFull, 0)));
    assert_eq!(file.write_at(0, b"again").unwrap(), 5, "an overwrite needs no space");
    let full = |result: std::io::Result<()>| result.unwrap_err().kind() == std::io::ErrorKind::StorageFull;
    assert!(full(file.write_at(1 << 20, b"x").map(drop)) && full(file.allocate(1 << 20, 1)));
    assert_eq!(file.len().unwrap(), 5, "a refused write leaves no trace");
    sim.set_fault(Some(Fault::once(FaultKind::ClockJump, 0)));
    let before = sim.now();
    file.sync().unwrap();
    assert!(sim.now() - before >= std::time::Duration::from_secs(3_600));
    assert_eq!(sim.faults_struck(), 1);
}

#[test]
fn every_call_can_be_interrupted() {
    let (sim, file) = with_file("a");
    let calls: [&dyn Fn() -> std::io::Result<()>; 5] =
        [&|| file.sync(), &|| sim.sync_dir(), &|| file.set_len(3), &|| sim.list().map(drop), &|| {
            sim.open("a", OpenHow::default()).map(drop)
        }];
    for call in calls {
        sim.set_fault(Some(Fault::sticky(FaultKind::Interrupted, 0)));
        assert_eq!(call().unwrap_err().kind(), std::io::ErrorKind::Interrupted);
        call().unwrap();
    }
}

#[test]
fn transfers_can_be_short_or_interrupted() {
    let (sim, file) = with_file("a");
    for kind in [FaultKind::ShortTransfer, FaultKind::Interrupted] {
        sim.set_fault(Some(Fault::sticky(kind, 0)));
        let bytes: Vec<u8> = (0..2 * PAGE).map(|i| (i % 251) as u8).collect();
        write_all_at(&*file, 100, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        read_exact_at(&*file, 100, &mut back).unwrap();
        assert!(back == bytes);
        assert!(sim.faults_struck() >= 2);
        sim.set_fault(None);
        file.punch_hole(0, 1 << 20).unwrap();
    }
    sim.set_fault(Some(Fault::sticky(FaultKind::ShortTransfer, 0)));
    let n = file.write_at(0, b"12").unwrap();
    assert_eq!(n, 1);
    assert_eq!(file.write_at(0, b"1").unwrap(), 1, "at least one byte");

    let direct = sim.open("direct", OpenHow { direct: true, ..CREATE }).unwrap();
    let mut buf = AlignedBuf::from_bytes(&[7; 3 * PAGE]);
    let n = direct.write_at(0, &buf).unwrap();
    assert!(n == PAGE || n == 2 * PAGE, "whole pages on a direct file");
    write_all_at(&*direct, 0, &buf).unwrap();
    read_exact_at(&*direct, 0, &mut buf).unwrap();
}

#[test]
fn writes_can_be_lost_or_misdirected_and_reads_can_flip_bits() {
    let (sim, file) = with_file("a");
    write_all_at(&*file, 0, &[1; 4 * PAGE]).unwrap();
    sim.set_fault(Some(Fault::once(FaultKind::LostWrite, 0)));
    assert_eq!(file.write_at(0, &[2; PAGE]).unwrap(), PAGE);
    assert!(contents(&*file) == [1; 4 * PAGE]);

    sim.set_fault(Some(Fault::once(FaultKind::MisdirectedWrite, 0)));
    assert_eq!(file.write_at(PAGE_BYTES, &[2; PAGE]).unwrap(), PAGE);
    let bytes = contents(&*file);
    let pages: Vec<u8> = bytes.chunks(PAGE).map(|page| page[0]).collect();
    assert_eq!(pages.len(), 4);
    assert!(pages[1] == 1 && pages.iter().filter(|byte| **byte == 2).count() == 1, "{pages:?}");

    sim.set_fault(Some(Fault::once(FaultKind::BitFlip, 0)));
    let wrong = contents(&*file);
    let flipped: u32 = wrong.iter().zip(&bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(flipped, 1);
    assert!(contents(&*file) == bytes, "the stored bytes are unchanged");
    assert_eq!(sim.faults_struck(), 1);
}

#[test]
fn the_disk_can_be_full() {
    let (sim, file) = with_file("a");
    sim.set_byte_budget(Some(4 * PAGE_BYTES));
    file.set_len(1 << 30).unwrap();
    write_all_at(&*file, 100, &[1; PAGE]).unwrap();
    assert_eq!(sim.occupied(), 2 * PAGE_BYTES);
    let before = sim.image().hash();
    assert_eq!(kind(file.write_at(4 * PAGE_BYTES, &[1; 2 * PAGE + 1])), ErrorKind::StorageFull);
    assert_eq!(sim.image().hash(), before, "without effect");
    file.allocate(0, 4 * PAGE_BYTES).unwrap();
    assert_eq!(kind(file.allocate(0, 5 * PAGE_BYTES)), ErrorKind::StorageFull);
    write_all_at(&*file, 0, &[3; 4 * PAGE]).unwrap();
    let other = sim.open("b", CREATE).unwrap();
    assert_eq!(kind(other.write_at(0, b"x")), ErrorKind::StorageFull, "the bound is on all files together");
    file.punch_hole(0, PAGE_BYTES).unwrap();
    other.write_at(0, b"x").unwrap();
    file.set_len(100).unwrap();
    assert_eq!(sim.occupied(), PAGE_BYTES);
    write_all_at(&*file, 0, &[3; 3 * PAGE]).unwrap();
    sim.remove("a").unwrap();
    assert_eq!(kind(other.write_at(PAGE_BYTES, b"x")), ErrorKind::StorageFull, "an open file holds its space");
    drop(file);
    other.write_at(PAGE_BYTES, b"x").unwrap();
    sim.set_byte_budget(Some(0));
    other.write_at(0, b"in place").unwrap();
}

#[test]
fn a_hole_frees_no_space_until_its_piece_is_empty() {
    let sim = SimDevice::new(1);
    sim.set_hole_unit(4 * PAGE_BYTES);
    let file = sim.open("a", CREATE).unwrap();
    assert_eq!(file.hole_unit(), 4 * PAGE_BYTES);
    write_all_at(&*file, 0, &[1; 10 * PAGE]).unwrap();
    let pages = || sim.occupied() / PAGE_BYTES;
    file.punch_hole(PAGE_BYTES, PAGE_BYTES).unwrap();
    file.punch_hole(PAGE_BYTES, PAGE_BYTES).unwrap();
    assert_eq!(pages(), 10, "other pages of the piece are in use");
    sim.set_byte_budget(Some(10 * PAGE_BYTES));
    assert_eq!(kind(file.write_at(PAGE_BYTES, &[1; PAGE])), ErrorKind::StorageFull, "the hole has no free space");
    sim.set_byte_budget(None);
    write_all_at(&*file, PAGE_BYTES, &[2; PAGE]).unwrap();
    assert_eq!(pages(), 11);
    file.punch_hole(0, 5 * PAGE_BYTES).unwrap();
    assert_eq!(pages(), 6, "a whole piece was freed; one page of the next one stays");
    file.set_len(9 * PAGE_BYTES).unwrap();
    assert_eq!(pages(), 6);
    file.set_len(8 * PAGE_BYTES).unwrap();
    assert_eq!(pages(), 4);
    sim.remove("a").unwrap();
    drop(file);
    assert_eq!(pages(), 0);
}

#[test]
fn images_that_look_the_same_to_a_reader_have_the_same_hash() {
    let (sim, file) = with_file("a");
    write_all_at(&*file, 0, &[1; 3 * PAGE]).unwrap();
    file.sync().unwrap();
    let image = sim.image();
    let mut other = SimImage::default();
    other.write("a", 0, &[1; 3 * PAGE]);
    assert_eq!(image.hash(), other.hash());
    let changes: [fn(&mut SimImage); 6] = [
        |image| image.flip_bit("a", 5000, 3),
        |image| image.truncate("a", 3 * PAGE_BYTES - 1),
        |image| image.truncate("a", 3 * PAGE_BYTES + 1),
        |image| image.write("b", 0, b""),
        |image| image.remove("a"),
        |image| image.write("a", 2 * PAGE_BYTES, &[0; PAGE]),
    ];
    let mut hashes = HashSet::from([image.hash()]);
    for change in changes {
        let mut changed = image.clone();
        change(&mut changed);
        assert!(hashes.insert(changed.hash()), "{changed:?}");
    }
    assert_eq!(image.hash(), other.hash(), "changing a clone does not change the original");
    other.flip_bit("a", 5000, 3);
    other.flip_bit("a", 5000, 3);
    assert_eq!(image.hash(), other.hash());
    file.punch_hole(0, PAGE_BYTES).unwrap();
    other.write("a", 0, &[0; PAGE]);
    assert_eq!(sim.image().hash(), other.hash(), "a hole reads as zeros");
    assert_eq!(sim.image().ranges("a"), vec![PAGE_BYTES..3 * PAGE_BYTES]);
    assert_eq!(other.ranges("a"), vec![0..3 * PAGE_BYTES]);
    assert_eq!(other.read("a", PAGE_BYTES - 1..PAGE_BYTES + 1), [0, 1]);
    assert_eq!(other.read("a", 1 << 30..1 << 31), []);
}

#[test]
fn a_device_can_start_from_an_image() {
    let mut image = SimImage::default();
    image.write("a", 3, b"bytes");
    image.write("b", 0, b"");
    let sim = SimDevice::from_image(&image, 1);
    assert_eq!(sim.list().unwrap(), ["a", "b"]);
    assert_eq!(sim.durable_image().hash(), image.hash());
    sim.open("c", CREATE).unwrap();
    sim.open("a", OpenHow { write: true, ..OpenHow::default() }).unwrap().write_at(0, b"x").unwrap();
    assert_eq!(sim.durable_image().hash(), image.hash());
    assert_eq!(image.file("a").unwrap(), b"\0\0\0bytes");
}

#[test]
fn operations_are_counted_and_take_time() {
    let (sim, file) = with_file("a");
    let (before, ops) = (sim.now(), sim.op_count());
    file.write_at(0, b"x").unwrap();
    file.read_at(0, &mut [0]).unwrap();
    file.sync().unwrap();
    assert_eq!(kind(sim.remove("missing")), ErrorKind::NotFound);
    assert_eq!(sim.op_count(), ops + 3, "an operation with a bad argument is not counted");
    assert_eq!((sim.op_count_of(OpKind::Read), sim.op_count_of(OpKind::Create)), (1, 1));
    assert!(sim.now() > before);
    sim.sleep(Duration::from_secs(5));
    sim.advance_clock(Duration::from_secs(5));
    assert!(sim.now() >= before + Duration::from_secs(10));
}

/// Performs `steps` random operations on a device.
fn random_run(sim: &SimDevice, steps: usize, seed: u64) {
    let mut rng = Rng(seed);
    let names = ["a", "b", "c"];
    for step in 0..steps {
        let name = names[rng.below(3) as usize];
        let Ok(file) = sim.open(name, OpenHow { write: true, ..OpenHow::default() }) else {
            sim.open(name, CREATE).unwrap();
            continue;
        };
        // Choose offsets near the boundaries of pages and of the 256 KiB segments.
        let offset = rng.below(2) * (60 * PAGE_BYTES) + rng.below(6 * PAGE_BYTES);
        let magnitude = rng.below(15);
        let len = 1 + rng.below(1 << magnitude);
        match rng.below(12) {
            0 => file.set_len(rng.below(70 * PAGE_BYTES)).unwrap(),
            1 => file.allocate(offset, len).unwrap(),
            2 => file.punch_hole(offset, len * 4).unwrap(),
            3 => sim.rename(name, names[rng.below(3) as usize]).unwrap(),
            4 => sim.remove(name).unwrap(),
            5 => sim.sync_dir().unwrap(),
            6 | 7 => file.sync().unwrap(),
            8 => sim.mark(step as u64),
            _ => write_all_at(&*file, offset, &vec![1 + step as u8 % 255; len as usize]).unwrap(),
        }
    }
}

/// The same model on plain vectors of bytes. Returns the files after the operations `ops`, of which only the operations
/// with `keep(position)` survive.
fn plain(ops: &[&SimOp], keep: impl Fn(usize) -> bool) -> BTreeMap<String, Vec<u8>> {
    let (mut entries, mut files) = (BTreeMap::new(), BTreeMap::<Inode, Vec<u8>>::new());
    for (position, op) in ops.iter().enumerate() {
        if let SimOp::Create { inode, .. } = op {
            files.insert(*inode, Vec::new());
        }
        if !keep(position) {
            continue;
        }
        match op {
            SimOp::Create { inode, name } => {
                entries.entry(name.to_string()).or_insert(*inode);
            }
            SimOp::Rename { inode, from, to } if entries.get(&**from) == Some(inode) => {
                entries.remove(&**from);
                entries.insert(to.to_string(), *inode);
            }
            SimOp::Remove { inode, name } if entries.get(&**name) == Some(inode) => {
                entries.remove(&**name);
            }
            SimOp::Write { inode, patch } => {
                let (file, range) = (files.get_mut(inode).unwrap(), patch.range());
                file.resize(file.len().max(range.end as usize), 0);
                file[range.start as usize..range.end as usize].copy_from_slice(&patch.to_vec());
            }
            SimOp::SetLen { inode, len } => files.get_mut(inode).unwrap().resize(*len as usize, 0),
            SimOp::Allocate { inode, offset, len } => {
                let file = files.get_mut(inode).unwrap();
                file.resize(file.len().max((offset + len) as usize), 0);
            }
            SimOp::Punch { inode, offset, len } => {
                let file = files.get_mut(inode).unwrap();
                let end = file.len().min((offset + len) as usize);
                file[end.min(*offset as usize)..end].fill(0);
            }
            _ => {}
        }
    }
    entries.into_iter().map(|(name, inode)| (name, files[&inode].clone())).collect()
}

/// Whether the operation at `position` is durable after all of `ops`.
fn is_durable(ops: &[&SimOp], position: usize) -> bool {
    ops[position..].iter().any(|op| match (ops[position].scope(), op) {
        (Some(op::Scope::File(inode)), SimOp::Sync { inode: synced }) => inode == *synced,
        (Some(op::Scope::Directory), SimOp::SyncDir) => true,
        _ => false,
    })
}

#[test]
fn random_runs_agree_with_plain_bytes() {
    for seed in 0..30 {
        let sim = SimDevice::new(seed);
        sim.record();
        random_run(&sim, 60, seed);
        let history = sim.history();
        let mut cursor = history.walk();
        let mut choices = Rng(seed);
        let mut passed: Vec<&SimOp> = Vec::new();
        while let Some(op) = cursor.advance() {
            passed.push(op);
            // Each pending operation survives or not, by a random bit.
            let bits = choices.next_u64();
            let pending = cursor.pending();
            let choice = CrashChoice::only((0..pending.len()).filter(|position| bits >> (position % 64) & 1 == 1));
            let image = cursor.image(&choice);
            let mut fates = pending.iter().enumerate().peekable();
            let kept: Vec<bool> = (0..passed.len())
                .map(|at| {
                    if is_durable(&passed, at) {
                        return true;
                    }
                    // The pending operations are in order. The operations that are not in this list belong to deleted
                    // files.
                    let next = fates.next_if(|(_, op)| format!("{op:?}") == format!("{:?}", passed[at]));
                    next.is_some_and(|(position, _)| choice.fate(position) == Fate::Keep)
                })
                .collect();
            assert!(fates.next().is_none(), "every pending operation is one of those passed");
            let expected = plain(&passed, |position| kept[position]);
            let found = image.files().into_iter().map(|(name, _)| (name.clone(), image.file(&name).unwrap()));
            assert!(found.collect::<BTreeMap<_, _>>() == expected, "seed {seed}, operation {}", cursor.position());
            check_sparse(&image, &expected);
        }
        assert_eq!(cursor.cached_image().hash(), sim.image().hash(), "seed {seed}");
        let image = sim.image();
        let ranges = image.files().into_iter().flat_map(|(name, _)| image.ranges(&name));
        let occupied: u64 = ranges.map(|range| (range.end - range.start).next_multiple_of(PAGE_BYTES)).sum();
        assert_eq!(sim.occupied(), occupied, "seed {seed}");
        assert_eq!(cursor.image(&CrashChoice::none()).hash(), sim.durable_image().hash(), "seed {seed}");
    }
}

/// Checks that all non-zero bytes are in the ranges of an image, and that the image has the same hash as a newly
/// written one.
fn check_sparse(image: &SimImage, expected: &BTreeMap<String, Vec<u8>>) {
    let mut fresh = SimImage::default();
    for (name, bytes) in expected {
        let ranges = image.ranges(name);
        let occupied = |at: usize| ranges.iter().any(|range| range.contains(&(at as u64)));
        let full = bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        assert!(full.map(|(no, _)| no * PAGE).all(occupied), "{name}: {ranges:?}");
        fresh.write(name, 0, bytes);
    }
    assert_eq!(image.hash(), fresh.hash());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let sim = SimDevice::new(seed);
        sim.record();
        sim.set_fault(Some(Fault::sticky(FaultKind::ShortTransfer, 3)));
        random_run(&sim, 100, 9);
        (format!("{:?}", sim.history()), sim.image().hash(), sim.now(), sim.random())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6), "the length of a short transfer follows from the seed");
}

#[test]
fn plans_contain_the_documented_choices() {
    let writes = |count: u64| -> Vec<SimOp> {
        let patch = |at: u64| Patch::new(at * PAGE_BYTES, &[1; 100]);
        (0..count).map(|at| SimOp::Write { inode: Inode(0), patch: patch(at) }).collect()
    };
    let plan = CrashPlan { tears: 0, rot: false, subsets: 50, ..CrashPlan::default() };
    let kept =
        |choice: &CrashChoice, k: usize| -> Vec<bool> { (0..k).map(|at| choice.fate(at) != Fate::Drop).collect() };
    assert_eq!(plan.choices(&writes(0)).count(), 1, "nothing pending: one image");
    let all: HashSet<_> = plan.choices(&writes(5)).map(|choice| kept(&choice, 5)).collect();
    assert_eq!(all.len(), 32);
    let k = 20;
    let some: Vec<_> = plan.choices(&writes(k)).map(|choice| kept(&choice, k as usize)).collect();
    assert_eq!(some.len(), 21 + 20 + 20 + 190 + 50);
    for count in [0, 1, 2, 19, 20] {
        assert!(some.iter().any(|kept| kept.iter().filter(|kept| **kept).count() == count), "{count} kept");
    }

    // A write of the 512-byte sectors 1 (in part), 2, and 3 (in part). Its sector boundaries are at 1,024 and 1,536.
    let torn = [SimOp::Write { inode: Inode(0), patch: Patch::new(1000, &[1; 600]) }];
    let fates = |plan: CrashPlan| -> Vec<Fate> { plan.choices(&torn).map(|choice| choice.fate(0)).skip(2).collect() };
    let tears = CrashPlan { rot: false, ..CrashPlan::default() };
    let expected = [Fate::Head(24), Fate::Tail(576), Fate::Head(536), Fate::Tail(64)];
    let found = fates(tears.clone());
    assert_eq!(found, expected.iter().flat_map(|fate| [*fate; 2]).collect::<Vec<_>>());
    assert_eq!(fates(CrashPlan { tears: 1, ..tears }).len(), 4);
    assert_eq!(fates(CrashPlan { tears: 0, ..CrashPlan::default() }).len(), 4, "zeros and garbage");
}

/// Replaces the file `name`. If `careful` is set, syncs the new file before the rename. After a crash the file should
/// hold the old text or the whole new text.
fn replace(sim: &SimDevice, careful: bool) {
    let tmp = sim.open("tmp", CREATE).unwrap();
    write_all_at(&*tmp, 0, &[2; 2 * PAGE]).unwrap();
    if careful {
        tmp.sync().unwrap();
    }
    sim.rename("tmp", "name").unwrap();
    sim.sync_dir().unwrap();
    sim.mark(1);
}

/// Returns two numbers. The first is the number of images with a wrong text: neither the old nor the new text, or the
/// old text after the new one was acknowledged. The second is the number of all images.
fn violations(careful: bool) -> (usize, usize) {
    let mut image = SimImage::default();
    image.write("name", 0, &[1; PAGE]);
    let sim = SimDevice::from_image(&image, 1);
    sim.record();
    replace(&sim, careful);
    let history = sim.history();
    let mut cursor = history.walk();
    let (mut seen, mut bad) = (HashSet::new(), 0);
    while cursor.advance().is_some() {
        for choice in CrashPlan::default().choices(&cursor.pending()) {
            let image = cursor.image(&choice);
            if !seen.insert((cursor.last_mark(), image.hash())) {
                continue;
            }
            let text = image.file("name").unwrap_or_default();
            let (old, new) = (text == [1; PAGE], text == [2; 2 * PAGE]);
            bad += usize::from(!(new || (old && cursor.last_mark().is_none())));
        }
    }
    (bad, seen.len())
}

#[test]
fn a_missing_sync_is_detected() {
    let (bad, seen) = violations(true);
    assert_eq!(bad, 0, "syncing before renaming is safe");
    assert!(seen > 10);
    let (bad, _) = violations(false);
    assert!(bad > 10, "renaming an unsynced file loses it in {bad} images");
}

#[test]
fn images_of_large_sparse_files_are_cheap() {
    let (sim, file) = with_file("a");
    file.set_len(1 << 30).unwrap();
    write_all_at(&*file, (1 << 30) - PAGE_BYTES, &[9; PAGE]).unwrap();
    file.sync().unwrap();
    for at in 0..100 {
        write_all_at(&*file, at << 20, &[at as u8 + 1; 4 * PAGE]).unwrap();
    }
    let history = sim.history();
    let cursor = history.at(history.ops().len());
    let plan = CrashPlan { tears: 0, rot: false, ..CrashPlan::default() };
    let hashes: HashSet<u64> = plan.choices(&cursor.pending()).map(|choice| cursor.image(&choice).hash()).collect();
    // 101 prefixes, 100 subsets without one operation, 100 subsets of one operation, 4,950 pairs, 1,024 random subsets.
    // Few of these choices give the same image.
    assert!(hashes.len() > 6_000, "{}", hashes.len());
}
