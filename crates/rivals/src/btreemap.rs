//! The adapter of the standard library's `BTreeMap` under a `RwLock`. The map is only in memory. Its speed is an upper
//! bound for the speed of stores on a device.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pandodb_lab::engine::{Engine, Figures, Need, Opener, Result, Rows, Session, Setup, Write};
use pandodb_lab::transactions::{Access, Attempts, Capability, Isolation, Scheme, Transaction, Verdict, Work, retry};

use crate::{Promise, add, admit, settings};

/// The promise: no data is persisted, and the memory budget is ignored.
pub const PROMISE: Promise =
    Promise { survives_close: false, survives_kill: false, background_threads: false, ..Promise::FULL };

/// Opens the map. The map is empty after each opening.
pub struct Map;

#[derive(Default)]
struct Tree(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Opener for Map {
    fn name(&self) -> String {
        "btreemap".into()
    }

    fn survives_kill(&self) -> bool {
        PROMISE.survives_kill
    }

    fn survives_close(&self) -> bool {
        PROMISE.survives_close
    }

    fn open(&self, _directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        admit("btreemap", setup, PROMISE)?;
        Ok(Box::new(Tree::default()))
    }
}

impl Tree {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Tree {
    fn configuration(&self) -> Vec<(String, String)> {
        settings([
            ("engine", "std BTreeMap under a RwLock".into()),
            ("durability", "none: memory only".into()),
            ("memory_budget", "not kept: holds all that it is given".into()),
        ])
    }

    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    fn transactions(&self) -> Option<Capability> {
        Some(Capability { isolation: Isolation::Serializable, scheme: Scheme::SingleWriter, merges: false })
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let mut figures = Figures::default();
        figures.gauges.insert("entries".into(), self.read().len() as f64);
        Ok(figures)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Handle<'a>(&'a Tree);

impl Session for Handle<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let tree = self.0.read();
        let found = tree.get(key);
        value.extend_from_slice(found.map_or(&[], |v| v));
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.write().remove(key);
        Ok(())
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let mut tree = self.0.write();
        let sum = add(tree.get(key).map(Vec::as_slice), delta)?;
        tree.insert(key.to_vec(), sum.to_vec());
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        if from < to {
            let mut tree = self.0.write();
            let mut rest = tree.split_off(from);
            let mut after = rest.split_off(to);
            tree.append(&mut after);
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let tree = self.0.read();
        let range = tree.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        Ok(range.take(limit).map(|(key, value)| visit(key, value)).count())
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let tree = self.0.read();
        let range = tree.range::<[u8], _>((Bound::Unbounded, Bound::Included(from)));
        Ok(range.rev().take(limit).map(|(key, value)| visit(key, value)).count())
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        let mut tree = self.0.write();
        for write in writes {
            match write {
                Write::Put(key, value) => drop(tree.insert(key.to_vec(), value.to_vec())),
                Write::Delete(key) => drop(tree.remove(*key)),
            }
        }
        Ok(())
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        // The map has no function that appends to a map, so each row is inserted.
        let (mut key, mut value, mut loaded) = (Vec::new(), Vec::new(), 0);
        let mut tree = self.0.write();
        while rows(&mut key, &mut value) {
            tree.insert(key.clone(), value.clone());
            loaded += 1;
        }
        Ok(loaded)
    }

    fn transact(&mut self, _access: Access, work: &mut Work) -> Result<Attempts> {
        retry(|| {
            let mut tree = self.0.write();
            let mut open = Open { tree: &mut tree, before: Vec::new() };
            let done = work(&mut open);
            if !matches!(done, Ok(Verdict::Commit)) {
                open.undo();
            }
            done
        })
    }
}

/// An open transaction, which holds the lock of the map.
struct Open<'a> {
    tree: &'a mut BTreeMap<Vec<u8>, Vec<u8>>,
    /// The keys that the transaction has written, each with its value before the write.
    before: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Open<'_> {
    fn undo(self) {
        for (key, value) in self.before.into_iter().rev() {
            match value {
                Some(value) => drop(self.tree.insert(key, value)),
                None => drop(self.tree.remove(&key)),
            }
        }
    }
}

impl Transaction for Open<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tree.get(key);
        value.extend_from_slice(found.map_or(&[], |found| found));
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let before = self.tree.insert(key.to_vec(), value.to_vec());
        self.before.push((key.to_vec(), before));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let before = self.tree.remove(key);
        self.before.push((key.to_vec(), before));
        Ok(())
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        let value = add(self.tree.get(key).map(Vec::as_slice), delta)?;
        self.put(key, &value)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let range = self.tree.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        Ok(range.take(limit).map(|(key, value)| visit(key, value)).count())
    }
}
