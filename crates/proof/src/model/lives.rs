//! Actions that close the store and open it again (closing, kills and power cuts), and actions on backups and dropped
//! keyspaces.

use std::sync::Arc;

use pandodb::device::MemDevice;
use pandodb::{Durability, Error, Store};

use super::config::Disk;
use super::tables::{Model, SLOTS, Table};
use super::world::{Orphans, World, Wrong, check};
use crate::drive::accounts;
use crate::script::Rng;

/// Reads all contents of a store into a model.
fn dump(store: &Store) -> Result<Model, Wrong> {
    let mut model = Model::new();
    for (slot, (name, ..)) in SLOTS.iter().enumerate() {
        let Some(keyspace) = store.open_keyspace(name)? else {
            model.reset(slot, false);
            continue;
        };
        let mut table = Table::new();
        for entry in keyspace.iter() {
            let (key, value) = entry?;
            table.insert(key.to_vec(), Arc::from(&*value));
        }
        model.set(slot, table);
    }
    Ok(model)
}

impl World {
    /// Opens the store again and takes new handles.
    fn reopen(&mut self) -> Result<(), Wrong> {
        self.store = self.config.open(&self.disk)?;
        for (slot, (name, ..)) in SLOTS.iter().enumerate() {
            self.keyspaces[slot] = self.store.open_keyspace(name)?;
            let (there, wanted) = (self.keyspaces[slot].is_some(), self.model.table(slot).is_some());
            check(there == wanted, || format!("after reopening, `{name}` is there: {there}"))?;
        }
        Ok(())
    }

    /// Closes the store and opens it again. The handles, snapshots and scans of the closed store are kept as orphans.
    /// Values that were read from the closed store must not change.
    pub fn close_and_reopen(&mut self) -> Result<(), Wrong> {
        self.ask_orphans()?;
        let orphans = Orphans {
            store: self.store.clone(),
            keyspaces: self.keyspaces.iter_mut().filter_map(Option::take).collect(),
            snapshots: self.snapshots.drain(..).map(|held| held.snapshot).collect(),
            ranges: self.ranges.drain(..).map(|held| held.range).collect(),
        };
        self.store.clone().close()?;
        self.orphans = Some(orphans);
        self.lazy.clear();
        self.reopen()
    }

    /// Checks that all handles, snapshots and scans of the store that was closed return [`Error::Closed`].
    pub fn ask_orphans(&mut self) -> Result<(), Wrong> {
        let Some(orphans) = &mut self.orphans else { return Ok(()) };
        let closed = |what: &str, result: pandodb::Result<()>| {
            check(matches!(result, Err(Error::Closed)), || format!("{what} of a store that was closed: {result:?}"))
        };
        closed("stats", orphans.store.stats().map(drop))?;
        closed("a batch", orphans.store.batch().commit(Durability::Buffered))?;
        for keyspace in &orphans.keyspaces {
            let mut keys = orphans.ranges.is_empty().then(|| keyspace.iter());
            let keys = orphans.ranges.iter_mut().chain(&mut keys);
            keys.filter_map(Iterator::next).try_for_each(|entry| closed("a scan", entry.map(drop)))?;
            closed("a read", keyspace.get(b"group/00/00004").map(drop))?;
            closed("reads", keyspace.multi_get(&[b"a", b"b"]).map(drop))?;
            // The value has 8 bytes, because a counter refuses any other length.
            closed("a write", keyspace.put(b"k", b"a number"))?;
            for snapshot in &orphans.snapshots {
                closed("a snapshot", keyspace.at(snapshot).get(b"group/01/00017").map(drop))?;
                let entry = keyspace.at(snapshot).iter().next_back();
                entry.map_or(Ok(()), |entry| closed("a scan at a snapshot", entry.map(drop)))?;
            }
        }
        Ok(())
    }

    /// Kills the process. Written data survives. Among the commits that were only in the memory of the process, any
    /// number of the newest ones may be lost.
    pub fn kill(&mut self) -> Result<(), Wrong> {
        let Disk::Simulated(device) = &self.disk else { return self.close_and_reopen() };
        let image = device.image();
        self.let_go();
        self.disk = self.config.simulated(&image);
        let allowed: Vec<Model> = self.lazy.drain(..).chain([self.model.clone()]).collect();
        self.store = self.config.open(&self.disk)?;
        let found = dump(&self.store)?;
        let Some(at) = allowed.iter().rposition(|model| *model == found) else {
            self.reopen_after_loss(&allowed)?;
            return Err(Wrong(format!("after a kill the store holds none of {} allowed states", allowed.len())));
        };
        self.model = allowed[at].clone();
        self.keyspaces =
            (0..SLOTS.len()).map(|slot| self.store.open_keyspace(SLOTS[slot].0)).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Reports the first difference from the newest allowed state.
    fn reopen_after_loss(&mut self, allowed: &[Model]) -> Result<(), Wrong> {
        self.model = allowed.last().expect("at least the newest").clone();
        self.keyspaces =
            (0..SLOTS.len()).map(|slot| self.store.open_keyspace(SLOTS[slot].0)).collect::<Result<_, _>>()?;
        self.compare_all()
    }

    /// Cuts the power after a sync. No commit may be lost.
    pub fn cut_power(&mut self) -> Result<(), Wrong> {
        self.store.persist(Durability::Synced)?;
        self.lazy.clear();
        let Disk::Simulated(device) = &self.disk else { return self.close_and_reopen() };
        let image = device.durable_image();
        self.let_go();
        self.disk = self.config.simulated(&image);
        self.reopen()?;
        self.compare_all()
    }

    /// Drops a keyspace and checks that its handle fails afterwards.
    pub fn drop_keyspace(&mut self, slot: usize) -> Result<(), Wrong> {
        self.ranges.retain(|held| held.slot != slot);
        let old = self.keyspaces[slot].take().expect("it is there");
        self.store.drop_keyspace(SLOTS[slot].0)?;
        self.lazy.clear();
        self.model.reset(slot, false);
        self.snapshots.iter_mut().for_each(|held| held.model.reset(slot, false));
        let refused = |result: pandodb::Result<()>| matches!(result, Err(Error::NoKeyspace { .. }));
        check(refused(old.put(b"k", b"v")), || "a dropped keyspace accepted a write".into())?;
        check(refused(old.get(b"k").map(|_| ())), || "a dropped keyspace answered a read".into())
    }

    /// Creates a keyspace that was dropped before. The new keyspace must be empty, even when it is read at an older
    /// snapshot.
    pub fn create_keyspace(&mut self, slot: usize) -> Result<(), Wrong> {
        self.open_keyspace(slot)?;
        self.lazy.clear();
        self.model.reset(slot, true);
        Ok(())
    }

    /// Copies the store to another device and compares the copy with the model.
    pub fn back_up(&mut self) -> Result<(), Wrong> {
        let target = MemDevice::new();
        let report = self.store.backup_with(self.config.builder(target.clone()))?;
        let copy = self.config.builder(target).read_only(true).open()?;
        check(dump(&copy)? == self.model, || "a backup differs from the store".into())?;
        let tables = || (0..SLOTS.len()).filter_map(|slot| self.model.table(slot));
        let records: usize = tables().map(|table| table.len()).sum();
        check(report.keyspaces == tables().count() as u64 && report.records == records as u64, || {
            format!("a backup of {records} records reports {report:?}")
        })?;
        check(copy.verify()?.is_clean(), || "a backup does not verify".into())
    }

    /// Checks that `Store::verify` reports no damage.
    pub fn verify(&self) -> Result<(), Wrong> {
        let report = self.store.verify()?;
        check(report.is_clean(), || format!("verify found {:?}", report.problems))
    }

    /// Ends a history: compares all contents, completes all background work, verifies, reopens, and checks that the
    /// allocated pages are exactly the reachable pages ([`accounts`]).
    pub fn finish(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        self.go_on_held(true, rng)?;
        self.compare_all()?;
        self.verify()?;
        self.store.settle()?;
        check(self.store.debt() == 0, || format!("{} bytes of debt after settling", self.store.debt()))?;
        self.compare_all()?;
        self.verify()?;
        self.close_and_reopen()?;
        self.compare_all()?;
        self.verify()?;
        accounts(&self.store)?.map_err(Wrong)
    }
}
