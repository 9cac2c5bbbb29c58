//! Tests of creating and dropping keyspaces: the cost with many keyspaces, and the state after a crash or with a
//! damaged superblock.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandodb::base::PAGE;
use pandodb::device::sim::SimImage;
use pandodb::device::{MemDevice, SimDevice};
use pandodb::space::Superblock;
use pandodb::{AddI64, Durability, Error, KeyspaceOptions, Store, StoreBuilder};

fn builder(device: Arc<SimDevice>) -> StoreBuilder {
    Store::builder("simulated").device(device).background_threads(0).memory_budget(1 << 20)
}

#[test]
fn the_thousandth_keyspace_is_written_with_as_few_bytes_as_the_tenth() {
    let store = Store::builder("many").device(MemDevice::new()).background_threads(0).open().unwrap();
    let mut written = Vec::new();
    for i in 0..1_600 {
        drop(store.keyspace(&format!("keyspace number {i}")).unwrap());
        if i % 400 == 399 {
            let stats = store.stats().unwrap();
            written.push(stats.written.log + stats.written.data);
        }
    }
    let (first, last) = (written[0], written[3] - written[2]);
    // Each checkpoint writes all keyspaces. Therefore the more keyspaces exist, the more creations share one
    // checkpoint.
    assert!(
        last < 2 * first,
        "400 creations wrote {first} bytes, and {last} when there were 1,200 before: {written:?}"
    );
}

/// Regression: the memory of an empty memtable was counted, so small memtables always seemed full. Therefore each write
/// caused its entry to be packed into a run of its own.
#[test]
fn small_memtables_of_several_keyspaces_are_filled_before_they_are_packed() {
    let builder = Store::builder("small").device(MemDevice::new()).background_threads(0);
    let store = builder.memory_budget(1 << 20).memtable_bytes(4 << 10).open().unwrap();
    let keyspaces: Vec<_> = ["a", "b", "c"].into_iter().map(|name| store.keyspace(name).unwrap()).collect();
    for i in 0..6_000 {
        keyspaces[i % 3].put(format!("key{:05}", i * 7_919 % 4_096), [1; 60]).unwrap();
    }
    let written = store.stats().unwrap().written;
    assert!(written.pack < 16 * written.user, "packed into runs of a few entries: {written:?}");
}

/// The keyspaces, each with the value of its only key.
type World = BTreeMap<String, Option<u64>>;

fn contents(store: &Store) -> World {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let of = |name: &str| store.open_keyspace(name).unwrap().unwrap().get("sum").unwrap().map(|value| number(&value));
    store.keyspaces().into_iter().map(|info| (info.name.clone(), of(&info.name))).collect()
}

/// Returns the image with the newest superblock damaged.
fn without_newest(mut image: SimImage) -> SimImage {
    let slots = [0, 32 * PAGE as u64];
    let generation = |at: &u64| {
        Superblock::decode(&image.read("data", *at..*at + PAGE as u64)).map_or(0, |superblock| superblock.generation)
    };
    let newest = slots.into_iter().max_by_key(generation).unwrap();
    image.flip_bit("data", newest + 60, 1);
    image
}

/// Opens a store three times, with a kill after each opening, and checks that each opening finds the same contents.
/// Then writes to the store.
fn check(image: &SimImage, world: &World, what: &str) {
    let mut image = image.clone();
    for opening in 0..3 {
        let device = SimDevice::from_image(&image, 3);
        let store = builder(device.clone()).operator(Arc::new(AddI64)).open();
        let store = store.unwrap_or_else(|e| panic!("{what}: opening {opening}: {e}"));
        assert_eq!(&contents(&store), world, "{what}: opening {opening}");
        assert!(store.verify().unwrap().is_clean(), "{what}");
        image = device.durable_image();
        if opening == 2 {
            let fresh = store.keyspace("one more").unwrap();
            fresh.put("sum", 1u64.to_le_bytes()).unwrap();
            let ids: Vec<u32> = store.keyspaces().iter().map(|info| info.id).collect();
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{what}: an id was used twice: {ids:?}");
        }
    }
}

/// Tests all sequences of 5 steps in which one keyspace is created and dropped. Each sequence runs with and without
/// another keyspace whose memtable needs the log.
#[test]
fn creations_and_drops_survive_a_power_cut_and_the_loss_of_the_newest_superblock() {
    const STEPS: u32 = 5;
    let create = |store: &Store, name: &str| {
        let options = KeyspaceOptions::new().merge(AddI64);
        store.keyspace_with(name, options).unwrap()
    };
    for history in 0..4u32.pow(STEPS) {
        for beside in [false, true] {
            let (device, mut world) = (SimDevice::new(1), World::new());
            let store = builder(device.clone()).durability(Durability::Synced).open().unwrap();
            if beside {
                create(&store, "beside").merge("sum", 5u64.to_le_bytes()).unwrap();
                world.insert("beside".into(), Some(5));
            }
            let mut text = format!("beside {beside}:");
            let mut steps = history;
            for nth in 0..STEPS {
                let there = world.contains_key("temp");
                match steps % 4 {
                    0 => {
                        create(&store, "temp");
                        world.entry("temp".into()).or_default();
                    }
                    1 if there => {
                        create(&store, "temp").merge("sum", 1u64.to_le_bytes()).unwrap();
                        *world.get_mut("temp").unwrap() = Some(world["temp"].unwrap_or(0) + 1);
                    }
                    2 if there => {
                        store.drop_keyspace("temp").unwrap();
                        world.remove("temp");
                    }
                    3 => store.checkpoint().unwrap(),
                    _ => {}
                }
                text += [" create", " merge", " drop", " checkpoint"][steps as usize % 4];
                steps /= 4;
                // Check only after the last step. Shorter sequences need no check of their own, because other sequences
                // of full length end with the same steps.
                if nth + 1 == STEPS {
                    let image = device.durable_image();
                    check(&image, &world, &text);
                    check(&without_newest(image), &world, &format!("{text}, newest superblock damaged"));
                }
            }
        }
    }
}

#[test]
fn a_recreated_keyspace_is_empty() {
    let device = SimDevice::new(1);
    let store = builder(device.clone()).durability(Durability::Synced).open().unwrap();
    for round in 0..20u64 {
        let keyspace = store.keyspace("temp").unwrap();
        assert_eq!(keyspace.get("sum").unwrap(), None, "round {round}");
        keyspace.put("sum", round.to_le_bytes()).unwrap();
        check(
            &without_newest(device.durable_image()),
            &World::from([("temp".into(), Some(round))]),
            &format!("round {round}"),
        );
        store.drop_keyspace("temp").unwrap();
    }
}

/// The only space that a creation needs is space in the log. If the log has no space, nothing is created.
#[test]
fn a_creation_on_a_full_disk_fails_and_creates_nothing() {
    let device = SimDevice::new(1);
    let store = builder(device.clone()).durability(Durability::Synced).open().unwrap();
    drop(store.keyspace("first").unwrap());
    device.set_byte_budget(Some(device.occupied()));
    let mut created = 1;
    let refused = loop {
        match store.keyspace(&format!("keyspace {created}")) {
            Ok(_) => created += 1,
            Err(e) => break e,
        }
        assert!(created < 10_000, "the disk is full");
    };
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    assert_eq!(store.keyspaces().len(), created);
    device.set_byte_budget(None);
    drop(store.keyspace("and one more").unwrap());
    let image = device.durable_image();
    drop(store);
    let again = builder(SimDevice::from_image(&image, 2)).open().unwrap();
    assert_eq!(again.keyspaces().len(), created + 1);
}
