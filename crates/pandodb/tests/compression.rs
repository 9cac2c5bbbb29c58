//! Compressed data at the bottom of the tree, tested through the public interface. Compressed data is smaller. A
//! keyspace whose option was altered holds both kinds of leaves, also if its index is a B+-tree. The superblock has the
//! feature flag from the first checkpoint on that may reach compressed leaves.

use std::sync::Arc;

use pandodb::base::random::mix;
use pandodb::device::MemDevice;
use pandodb::space::COMPRESSED_LEAVES;
use pandodb::space::{DataFile, Superblock};
use pandodb::{BtreeOptions, Compression, Error, Keyspace, KeyspaceOptions, Result, StbeOptions, Store};

fn open(device: &Arc<MemDevice>, compression: Compression) -> Result<Store> {
    let builder = Store::builder("s").device(device.clone()).memory_budget(4 << 20).memtable_bytes(128 << 10);
    builder.background_threads(0).compression(compression).open()
}

/// Keys in a scattered order.
fn key(i: u64) -> Vec<u8> {
    format!("user{:020}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

/// A value of 100 bytes, of which the last 50 are zeros.
fn value(i: u64, round: u64) -> Vec<u8> {
    let word = |at: u64| (i * 7 + at).wrapping_add(round << 40).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(29);
    let mut value: Vec<u8> = (0..7).flat_map(|at| word(at).to_le_bytes()).take(50).collect();
    value.resize(100, 0);
    value
}

const ROWS: u64 = 12_000;

fn load(keyspace: &Keyspace, round: u64) -> Result<()> {
    (0..ROWS).filter(|i| round == 0 || i % 3 == 0).try_for_each(|i| keyspace.put(key(i), value(i, round)))
}

fn check(keyspace: &Keyspace, rounds: u64) {
    let last = |i: u64| value(i, if i.is_multiple_of(3) { rounds } else { 0 });
    for i in (0..ROWS).step_by(11) {
        assert!(*keyspace.get(key(i)).unwrap().expect("it was put") == last(i)[..], "row {i}");
    }
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = (0..ROWS).map(|i| (key(i), last(i))).collect();
    all.sort();
    let read = |(key, value): (pandodb::Value, pandodb::Value)| (key.to_vec(), value.to_vec());
    assert!(keyspace.iter().map(|entry| read(entry.unwrap())).eq(all.iter().cloned()), "upwards");
    assert!(keyspace.iter().rev().map(|entry| read(entry.unwrap())).eq(all.into_iter().rev()), "downwards");
}

/// The incompatible feature flags of both superblocks.
fn flags(device: &Arc<MemDevice>) -> Vec<u64> {
    let file = DataFile::open_raw(&**device, false).unwrap();
    let slots = Superblock::read_slots(&*file, "data");
    slots.into_iter().map(|slot| slot.unwrap().incompatible & COMPRESSED_LEAVES).collect()
}

#[test]
fn a_keyspace_whose_compression_was_altered_holds_both_kinds() -> Result<()> {
    let device = MemDevice::new();
    let mut disk = Vec::new();
    for (round, compression) in [Compression::None, Compression::Lz4, Compression::None].into_iter().enumerate() {
        let store = open(&device, compression)?;
        let keyspace = store.keyspace("k")?;
        // A keyspace keeps the compression that it was created with until it is altered. The index uses the altered
        // option after the next opening.
        store.alter_keyspace("k", StbeOptions::new().compression(compression))?;
        drop(keyspace);
        store.close()?;
        let store = open(&device, Compression::None)?;
        let keyspace = store.keyspace("k")?;
        if round > 0 {
            check(&keyspace, round as u64 - 1);
        }
        load(&keyspace, round as u64)?;
        store.settle()?;
        // Some of the leaves were written after this opening, and other leaves may be older.
        check(&keyspace, round as u64);
        keyspace.compact(..)?;
        check(&keyspace, round as u64);
        assert!(store.verify()?.is_clean());
        disk.push(store.stats()?.allocated_bytes);
        store.close()?;
        let named = u64::from(round > 0);
        assert_eq!(flags(&device), [named, named], "round {round}");
    }
    assert!(disk[1] * 100 < disk[0] * 75 && disk[2] * 100 > disk[0] * 95, "{disk:?}");
    // The store can also be opened read-only.
    let store = Store::builder("s").device(device).read_only(true).open()?;
    check(&store.open_keyspace("k")?.expect("it was made"), 2);
    assert!(store.verify()?.is_clean());
    Ok(())
}

#[test]
fn the_leaves_of_a_btree_are_compressed() -> Result<()> {
    let mut disk = Vec::new();
    for compression in [Compression::None, Compression::Lz4] {
        let device = MemDevice::new();
        let store = open(&device, compression)?;
        let options = KeyspaceOptions::new().index(BtreeOptions::new().page_kib(16));
        let keyspace = store.keyspace_with("k", options)?;
        for round in 0..3 {
            load(&keyspace, round)?;
            store.settle()?;
            check(&keyspace, round);
        }
        assert!(store.verify()?.is_clean());
        disk.push(store.stats()?.allocated_bytes);
        store.close()?;
        let flag = u64::from(compression == Compression::Lz4);
        assert_eq!(flags(&device), [flag, flag]);
        // The keyspace keeps its compression, whatever the default of the store is.
        let store = open(&device, Compression::None)?;
        let keyspace = store.keyspace("k")?;
        check(&keyspace, 2);
        load(&keyspace, 3)?;
        store.settle()?;
        check(&keyspace, 3);
        disk.push(store.stats()?.allocated_bytes);
        // New leaves have the new compression; the others stay as they are.
        store.alter_keyspace("k", BtreeOptions::new().page_kib(16).compression(Compression::None))?;
        drop(keyspace);
        store.close()?;
        let store = open(&device, Compression::None)?;
        let keyspace = store.keyspace("k")?;
        (0..ROWS / 50).try_for_each(|i| keyspace.put(key(i), value(i, if i.is_multiple_of(3) { 3 } else { 0 })))?;
        store.settle()?;
        check(&keyspace, 3);
        assert!(store.verify()?.is_clean());
    }
    assert!(disk[2] * 100 < disk[0] * 85 && disk[3] * 100 < disk[1] * 85, "{disk:?}");
    Ok(())
}

#[test]
fn an_unknown_feature_is_refused_with_its_flag() -> Result<()> {
    let device = MemDevice::new();
    open(&device, Compression::Lz4)?.close()?;
    let file = DataFile::open_raw(&*device, true)?;
    for slot in Superblock::read_slots(&*file, "data") {
        let superblock = slot?;
        let data = DataFile::open(file.clone(), superblock.store_id)?;
        data.write_superblock(&Superblock { incompatible: 1 << 9, ..superblock })?;
    }
    for read_only in [false, true] {
        let opened = Store::builder("s").device(device.clone()).read_only(read_only).open();
        assert!(
            matches!(opened, Err(Error::NotAStore { detail, .. }) if detail.contains("0x200 ")),
            "read only {read_only}"
        );
    }
    Ok(())
}

#[test]
fn compression_does_not_change_a_file_of_incompressible_data() -> Result<()> {
    // The option alone changes nothing: with incompressible data, the sizes, the written bytes and the flags are the
    // same as without the option.
    let images = [Compression::None, Compression::Lz4].map(|compression| {
        let device = MemDevice::new();
        let store = open(&device, compression).unwrap();
        let keyspace = store.keyspace("k").unwrap();
        for i in 0..4_000u64 {
            let value: Vec<u8> = (0..12)
                .flat_map(|at| (i * 12 + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).swap_bytes().to_le_bytes())
                .collect();
            let mixed: Vec<u8> = value
                .chunks(8)
                .flat_map(|word| mix(u64::from_le_bytes(word.try_into().unwrap())).to_le_bytes())
                .collect();
            keyspace.put(mix(i).to_be_bytes(), mixed).unwrap();
        }
        keyspace.compact(..).unwrap();
        let stats = store.stats().unwrap();
        store.close().unwrap();
        (stats.allocated_bytes, stats.written.pack, stats.written.compact, flags(&device))
    });
    assert_eq!(images[0], images[1]);
    assert_eq!(images[0].3, [0, 0]);
    Ok(())
}
