//! Tests of whole stores with a keyspace whose index keeps keys in the order of a hash (the test index `stub`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Keyspace, KeyspaceOptions, Store, StoreBuilder};
use crate::base::random::Rng;
use crate::base::{Error, Result};
use crate::check::salvage;
use crate::device::{MemDevice, SimDevice};
use crate::index::IndexKind;
use crate::resolve::AddU64;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn builder(device: &Arc<SimDevice>) -> StoreBuilder {
    let builder = Store::builder("hashed").device(device.clone()).background_threads(0);
    builder.memory_budget(2 << 20).memtable_bytes(16 << 10)
}

fn in_memory() -> StoreBuilder {
    Store::builder("copy").device(MemDevice::new()).background_threads(0).memory_budget(2 << 20)
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::new().index(IndexKind::named("stub").unwrap()).merge(AddU64)
}

fn key(i: u64) -> Vec<u8> {
    format!("key{i:04}").into_bytes()
}

/// Does puts, deletes and merges of `count` keys out of 1,000.
fn change(keyspace: &Keyspace, model: &mut Model, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let (key, amount) = (key(rng.below(1000)), rng.below(1 << 40));
        match rng.below(4) {
            0 => {
                keyspace.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                keyspace.merge(&key, amount.to_le_bytes()).unwrap();
                let old = model.get(&key).map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
                model.insert(key, (old + amount).to_le_bytes().to_vec());
            }
            _ => {
                keyspace.put(&key, amount.to_le_bytes()).unwrap();
                model.insert(key, amount.to_le_bytes().to_vec());
            }
        }
    }
}

/// The entries of a walk over all keys. Checks that no key occurs twice.
pub(super) fn walked(entries: impl Iterator<Item = Result<(super::Value, super::Value)>>) -> Model {
    let mut found = Model::new();
    for entry in entries {
        let (key, value) = entry.unwrap();
        assert_eq!(found.insert(key.to_vec(), value.to_vec()), None, "{} comes twice", key.escape_ascii());
    }
    found
}

fn check(keyspace: &Keyspace, model: &Model) {
    assert_eq!(&walked(keyspace.iter()), model);
    assert_eq!(&walked(keyspace.iter().rev()), model);
    assert_eq!(keyspace.iter().keys().count(), model.len());
    let keys: Vec<Vec<u8>> = (0..1000).map(key).collect();
    let expected: Vec<Option<&Vec<u8>>> = keys.iter().map(|key| model.get(key)).collect();
    let values = keyspace.multi_get(&keys).unwrap();
    for ((key, value), expected) in keys.iter().zip(&values).zip(expected) {
        assert_eq!(value.as_deref(), expected.map(Vec::as_slice), "{}", key.escape_ascii());
        assert_eq!(keyspace.get(key).unwrap().as_deref(), value.as_deref());
        assert_eq!(keyspace.contains(key).unwrap(), value.is_some());
    }
}

/// A store with a keyspace in hash order, and the contents of this keyspace. Some of the contents are in memtables.
fn filled(device: &Arc<SimDevice>) -> (Store, Keyspace, Model) {
    let store = builder(device).open().unwrap();
    let keyspace = store.keyspace_with("k", options()).unwrap();
    let mut model = Model::new();
    change(&keyspace, &mut model, &mut Rng(1), 5_000);
    (store, keyspace, model)
}

#[test]
fn reads_find_what_was_written_in_memtables_and_index() {
    let device = SimDevice::new(1);
    let (store, keyspace, mut model) = filled(&device);
    check(&keyspace, &model);
    let (snapshot, then) = (store.snapshot(), model.clone());
    change(&keyspace, &mut model, &mut Rng(2), 3_000);
    store.pack().unwrap();
    store.settle().unwrap();
    keyspace.compact(..).unwrap();
    check(&keyspace, &model);
    assert_eq!(walked(keyspace.at(&snapshot).iter()), then);
    for i in 0..1000 {
        assert_eq!(keyspace.at(&snapshot).get(key(i)).unwrap().as_deref(), then.get(&key(i)).map(Vec::as_slice));
    }
    let mut batch = store.batch();
    batch.put(&keyspace, key(1), 5u64.to_le_bytes());
    batch.merge(&keyspace, key(1), 2u64.to_le_bytes());
    batch.delete(&keyspace, key(2));
    batch.commit(super::Durability::Synced).unwrap();
    model.insert(key(1), 7u64.to_le_bytes().to_vec());
    model.remove(&key(2));
    check(&keyspace, &model);
    assert!(store.verify().unwrap().is_clean());
}

#[test]
fn a_walk_goes_on_in_a_newer_view() {
    let device = SimDevice::new(1);
    let (store, keyspace, mut model) = filled(&device);
    let then = model.clone();
    for from_both_ends in [false, true] {
        let (mut walk, mut found) = (keyspace.iter(), Vec::new());
        let now = if from_both_ends { model.clone() } else { then.clone() };
        for _ in 0..now.len() / 10 {
            found.extend(walk.by_ref().take(5));
            if from_both_ends {
                found.extend(walk.by_ref().rev().take(5));
            }
            change(&keyspace, &mut model, &mut Rng(3), 20);
            device.advance_clock(Duration::from_secs(1));
        }
        found.extend(walk);
        assert_eq!(walked(found.into_iter()), now);
    }
    check(&keyspace, &model);
    assert!(store.verify().unwrap().is_clean());
}

#[test]
fn contents_survive_a_close_and_a_crash() {
    let device = SimDevice::new(1);
    let (store, keyspace, mut model) = filled(&device);
    store.checkpoint().unwrap();
    change(&keyspace, &mut model, &mut Rng(4), 2_000);
    drop(keyspace);
    // Make an image of the files as a SIGKILL would leave them. Only the part of the log that is newer than the
    // checkpoint is replayed.
    let killed = SimDevice::from_image(&device.image(), 2);
    store.close().unwrap();
    for device in [killed, device] {
        let store = builder(&device).open().unwrap();
        let keyspace = store.keyspace_with("k", options()).unwrap();
        check(&keyspace, &model);
        assert!(store.verify().unwrap().is_clean());
        store.close().unwrap();
    }
}

#[test]
fn a_dropped_keyspace_frees_its_pages() {
    let device = SimDevice::new(1);
    let (store, keyspace, _) = filled(&device);
    store.checkpoint().unwrap();
    drop(keyspace);
    store.drop_keyspace("k").unwrap();
    assert!(store.open_keyspace("k").unwrap().is_none());
    assert!(store.verify().unwrap().is_clean());
}

#[test]
fn a_backup_and_a_salvage_have_everything() {
    let device = SimDevice::new(1);
    let (store, _, model) = filled(&device);
    let copy = MemDevice::new();
    let target = || Store::builder("copy").device(copy.clone()).background_threads(0);
    assert_eq!(store.backup_with(target()).unwrap().records, model.len() as u64);
    store.close().unwrap();
    let out = in_memory().open().unwrap();
    let report = salvage(builder(&device), &out, false).unwrap();
    assert!(report.is_complete() && report.keyspaces[0].entries == model.len() as u64, "{report:?}");
    for store in [target().open().unwrap(), out] {
        assert_eq!(store.keyspaces()[0].index.kind().name(), "stub");
        check(&store.open_keyspace("k").unwrap().unwrap(), &model);
    }
}

#[test]
fn what_needs_the_order_of_keys_is_refused() {
    let device = SimDevice::new(1);
    let (store, keyspace, model) = filled(&device);
    let refused = |what: &str, result: Result<()>| {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{what}: {result:?}");
    };
    let first = |range: super::Range| range.map(|entry| entry.map(drop)).next().unwrap();
    refused("range", first(keyspace.range(key(1)..key(5))));
    refused("range from", first(keyspace.range(key(1)..)));
    refused("prefix", first(keyspace.prefix("key")));
    refused("range at", first(keyspace.at(&store.snapshot()).range(..key(5))));
    refused("estimate", keyspace.estimate(key(1)..key(5)).map(drop));
    refused("delete_range", keyspace.delete_range(key(1)..key(5)));
    refused("compact", keyspace.compact(key(1)..));
    let mut batch = store.batch();
    batch.delete_range(&keyspace, key(1)..key(5));
    refused("delete_range of a batch", batch.commit(super::Durability::Buffered));
    let mut seeking = keyspace.iter();
    seeking.next().unwrap().unwrap();
    seeking.seek(key(5));
    refused("seek", first(seeking));
    let mut seeking = keyspace.iter();
    seeking.seek_back(key(5));
    refused("seek_back", seeking.next_back().unwrap().map(drop));
    check(&keyspace, &model);
}

/// The test index has no loader, so the store commits the rows of a load as one batch.
#[test]
fn a_load_into_an_index_without_a_loader_is_one_batch() {
    let device = SimDevice::new(4);
    let (store, keyspace, mut model) = filled(&device);
    let (snapshot, then) = (store.snapshot(), model.clone());
    let rows: Vec<_> = (0..300).map(|i| (key(i * 3), i.to_le_bytes())).collect();
    assert_eq!(keyspace.load_sorted(rows.clone()).unwrap(), 300);
    model.extend(rows.into_iter().map(|(key, value)| (key, value.to_vec())));
    check(&keyspace, &model);
    let twice = [(key(1), 7u64.to_le_bytes()), (key(1), 8u64.to_le_bytes())];
    assert!(matches!(keyspace.load_sorted(twice), Err(Error::InvalidArgument { .. })));
    check(&keyspace, &model);
    assert_eq!(walked(keyspace.at(&snapshot).iter()), then);
    let cut = device.durable_image();
    let recovered = builder(&SimDevice::from_image(&cut, 1)).open().unwrap();
    check(&recovered.keyspace("k").unwrap(), &model);
}
