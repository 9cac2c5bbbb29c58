//! The disturber: a thread that runs concurrently with the clients. It runs checkpoints, compactions, syncs, backups
//! and crashes, and it drops and creates a keyspace.
//!
//! The contents of a backup, or of a store recovered from a crash image, are recorded as a look like any other. They
//! must match one point between the seqno that was guaranteed before the operation and the newest seqno after the
//! operation.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pandodb::device::MemDevice;
use pandodb::device::sim::{CrashChoice, SimDevice};
use pandodb::{Durability, Result};

use super::client::Client;
use super::log::{Creation, Log, NAMES, TEMP, key};
use super::world::{World, options, read_whole};

/// The number of crash images of one window.
const IMAGES: usize = 12;

/// Runs the disturber until `done`. Its transactions get the numbers of thread `thread`, starting after `number`.
pub(super) fn disturb(world: &World, thread: u64, number: u64, done: &AtomicBool) -> Log {
    let temp = world.store.open_keyspace(NAMES[TEMP as usize]).expect("an open store");
    let mut client = Client::new(world, thread, number, None);
    client.temp = temp.map(|keyspace| (keyspace, false));
    let mut disturber = Disturber { world, client, copies: 1, images: IMAGES };
    while !done.load(Relaxed) {
        if let Err(e) = disturber.act() {
            disturber.client.log.errors.push(format!("disturbing: {e}"));
        }
        if !disturber.client.log.errors.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_micros(500 + disturber.client.rng.below(3_000)));
    }
    disturber.client.log
}

struct Disturber<'a> {
    world: &'a World,
    client: Client<'a>,
    copies: usize,
    images: usize,
}

impl Disturber<'_> {
    fn act(&mut self) -> Result<()> {
        let store = &self.world.store;
        match self.client.rng.below(20) {
            0..=2 => self.make_durable(Durability::Synced, || store.checkpoint()),
            3 => self.make_durable(Durability::None, || store.settle()),
            4 => {
                let keyspace = &self.world.spaces[self.client.rng.below(3) as usize];
                self.make_durable(Durability::None, || keyspace.compact(..))
            }
            5 => self.make_durable(Durability::Buffered, || store.persist(Durability::Buffered)),
            6 => self.make_durable(Durability::Synced, || store.persist(Durability::Synced)),
            7 => self.toggle(),
            8 if self.copies > 0 => self.copy(),
            9..=11 if self.images > 0 && self.world.sim.is_some() => self.crash(),
            _ => {
                let key = key(self.client.rng.below(self.world.plan.keys.into()) as u32);
                if let Some(answer) = self.world.ask_orphan(&key) {
                    self.client.log.errors.push(format!("a handle of a closed store returned: {answer}"));
                }
                self.client.run(20);
                Ok(())
            }
        }
    }

    /// Runs `work`. Records that all commits that were visible before `work` have the given durability after `work`.
    fn make_durable(&self, durability: Durability, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.world.clock.now();
        work()?;
        self.world.clock.acknowledge(before, durability);
        Ok(())
    }

    /// Drops the temporary keyspace, or creates it and writes to it.
    fn toggle(&mut self) -> Result<()> {
        let name = NAMES[TEMP as usize];
        self.client.forget();
        if self.client.temp.take().is_some() {
            return self.world.store.drop_keyspace(name);
        }
        let floor = self.world.clock.now();
        self.client.temp = Some((self.world.store.keyspace_with(name, options(TEMP))?, true));
        self.client.log.creations.push(Creation { floor, shown: self.world.visible() });
        while self.client.temp.as_ref().is_some_and(|(_, fresh)| *fresh) && self.client.log.errors.is_empty() {
            self.client.transaction();
        }
        // Older snapshots refer to the previous keyspace of that name.
        self.client.forget();
        Ok(())
    }

    /// Backs up the store while clients write to it, and reads the copy.
    fn copy(&mut self) -> Result<()> {
        self.copies -= 1;
        let device = MemDevice::new();
        let lo = self.world.clock.now();
        self.world.store.backup_with(World::builder(&self.world.plan, device.clone()))?;
        let hi = self.world.visible();
        let copy = World::builder(&self.world.plan, device).open()?;
        let (txn, from) = (self.client.next_txn(), self.client.log.reads.len());
        read_whole(&copy, self.world.plan.keys, &mut self.client.log)?;
        self.client.log.look(txn, 0, (lo, hi), from);
        self.client.log.copies += 1;
        Ok(())
    }

    /// Takes the image of a kill or of a power cut, recovers a store from the image, and reads that store.
    fn crash(&mut self) -> Result<()> {
        self.images -= 1;
        let Some(sim) = &self.world.sim else { return Ok(()) };
        let cut = self.client.rng.chance(50);
        let lo = self.world.clock.promised(cut);
        let image = if cut {
            let pending = sim.pending().len() as u64;
            let kept = self.client.rng.below(pending + 1) as usize;
            let choice = if self.client.rng.chance(30) { CrashChoice::none() } else { CrashChoice::prefix(kept) };
            sim.crash_image(&choice)
        } else {
            sim.image()
        };
        // After this call, every commit that was in progress when the image was taken has a seqno and is visible.
        self.world.store.persist(Durability::Synced)?;
        let hi = self.world.visible();
        let recovered = World::builder(&self.world.plan, SimDevice::from_image(&image, self.world.plan.seed)).open()?;
        let (txn, from) = (self.client.next_txn(), self.client.log.reads.len());
        read_whole(&recovered, self.world.plan.keys, &mut self.client.log)?;
        self.client.log.look(txn, 0, (lo, hi), from);
        self.client.log.crashes += 1;
        Ok(())
    }
}
