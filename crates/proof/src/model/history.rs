//! Histories: sequences of actions.
//!
//! A *word* is a random number. A word and the state before it determine one action, so a history is a seed and a list
//! of words. A list from which some words were removed is also a history, and failures are minimised by removing words.

use pandodb::Durability;

use super::config::Config;
use super::tables::{Bounds, COUNTERS, Rule, SLOTS, Write};
use super::world::{Sabotage, World, Wrong, check};
use crate::drive::calmly;
use crate::script::{Rng, mix, value};

/// Number of actions between two full comparisons with the model.
const COMPARE_EVERY: usize = 50;

/// Statistics of a history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// The largest number of levels that any index had.
    pub levels: u64,
    /// The largest total of compactions, flushes, node splits and node merges that one keyspace reached between an
    /// opening of the store and the next one.
    pub moves: u64,
    /// A hash of the model's contents at the end.
    pub digest: u64,
}

/// Makes the words of a history with this number of actions. The seed determines the words.
pub fn words(seed: u64, actions: usize) -> Vec<u64> {
    let mut rng = Rng(mix(seed));
    (0..actions).map(|_| rng.next_u64()).collect()
}

/// Plays a history to its end, or to the first wrong answer, error or panic. With `Some((sabotage, n))`, the sabotage
/// is applied to the nth operation of its kind.
///
/// # Errors
/// Describes the failure and the action at which it happened.
pub fn play(config: Config, words: &[u64], sabotage: Option<(Sabotage, usize)>) -> Result<Summary, Wrong> {
    calmly(|| play_on(config, words, sabotage)).map_err(Wrong)?
}

fn play_on(config: Config, words: &[u64], sabotage: Option<(Sabotage, usize)>) -> Result<Summary, Wrong> {
    let mut world = World::new(config, sabotage)?;
    let mut summary = Summary::default();
    for (i, &word) in words.iter().enumerate() {
        let told = |Wrong(why)| Wrong(format!("action {i} (word {word:#x}): {why}"));
        world.act(&mut Rng(word)).map_err(told)?;
        if i % COMPARE_EVERY == COMPARE_EVERY - 1 {
            world.compare_all().map_err(told)?;
        }
        if i % 8 == 0 || i + 1 == words.len() {
            summary.note(&world)?;
        }
    }
    world.finish(&mut Rng(words.len() as u64)).map_err(|Wrong(why)| Wrong(format!("at the end: {why}")))?;
    summary.note(&world)?;
    summary.digest = world.model.digest();
    Ok(summary)
}

impl Summary {
    fn note(&mut self, world: &World) -> Result<(), Wrong> {
        for keyspace in world.store.stats()?.keyspaces {
            let index = keyspace.index;
            self.levels = self.levels.max(index.figure("levels"));
            let moves = ["flushes", "splits", "merges", "moves"].map(|name| index.figure(name));
            self.moves = self.moves.max(index.compactions + moves.iter().sum::<u64>());
        }
        Ok(())
    }
}

impl World {
    /// Performs one action.
    fn act(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        let there: Vec<usize> = (0..SLOTS.len()).filter(|&slot| self.keyspaces[slot].is_some()).collect();
        if there.is_empty() {
            return self.create_keyspace(rng.index(SLOTS.len()));
        }
        let slot = there[rng.index(there.len())];
        if self.config.hot_counters && self.keyspaces[COUNTERS].is_some() && rng.chance(40) {
            return self.hot_counters(rng);
        }
        match rng.index(1000) {
            0..150 => self.some_writes(&there, 1, rng),
            150..300 => self.burst(slot, rng),
            300..380 => self.transact(&there, rng),
            380..388 => {
                let (write, value) = (self.point_write(slot, rng), self.value_of(slot, rng));
                let (Write::Put(_, key, _) | Write::Delete(_, key) | Write::Merge(_, key, _)) = write else {
                    unreachable!("a point write has a key")
                };
                self.update(slot, &key, &value, rng)
            }
            388..400 => {
                let count = 1 + rng.index(12);
                self.some_writes(&there, count, rng)
            }
            400..440 => {
                let write = self.range_delete(slot, rng);
                self.write(&write)
            }
            440..600 => self.read_points(slot, rng),
            600..770 => self.read_range(slot, rng),
            770..780 => self.load_sorted(slot, rng),
            780..795 => self.queue(slot, rng),
            795..820 => {
                self.ask_orphans()?;
                self.go_on_held(false, rng)
            }
            820..870 => {
                if self.snapshots.len() >= 4 {
                    self.snapshots.swap_remove(rng.index(4));
                }
                let between = self.counter_write(rng);
                self.take_snapshot(between.as_ref())
            }
            870..900 => {
                if !self.snapshots.is_empty() {
                    self.snapshots.swap_remove(rng.index(self.snapshots.len()));
                }
                self.values.truncate(rng.index(20));
                Ok(())
            }
            _ => self.rare(slot, rng),
        }
    }

    /// Performs one action on the counters with long chains of operands: mostly merges, and in between everything that
    /// may end a chain or make a part of it visible only to a snapshot.
    fn hot_counters(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        let key = self.config.hot_key(rng);
        match rng.index(20) {
            0..8 => {
                for _ in 0..20 + rng.index(80) {
                    let amount = rng.next_u64() as i64 >> rng.index(60);
                    self.write(&Write::Merge(COUNTERS, key.clone(), amount.to_le_bytes().to_vec()))?;
                }
                self.read_keys(COUNTERS, vec![key], rng)
            }
            8 => {
                let writes = (0..20 + rng.index(200)).map(|_| {
                    let key = self.config.hot_key(rng);
                    Write::Merge(COUNTERS, key, (rng.next_u64() as i64 >> rng.index(60)).to_le_bytes().to_vec())
                });
                let writes: Vec<Write> = writes.collect();
                self.commit(&writes, Durability::Buffered)
            }
            9..11 => {
                if self.snapshots.len() >= 4 {
                    self.snapshots.swap_remove(rng.index(4));
                }
                self.take_snapshot(None)
            }
            11 => self.write(&Write::Put(COUNTERS, key, value(rng, 8))),
            12 => self.write(&Write::Delete(COUNTERS, key)),
            13 => {
                let prefix = if rng.chance(50) { key } else { b"group/".to_vec() };
                self.write(&Write::DeletePrefix(COUNTERS, prefix))
            }
            14 => Ok(self.keyspace(COUNTERS).compact(..)?),
            _ => {
                let keys = (0..3).map(|_| self.config.hot_key(rng)).collect();
                self.read_keys(COUNTERS, keys, rng)
            }
        }
    }

    /// Performs one of the rarer actions, most of which affect the whole store.
    fn rare(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        match rng.index(100) {
            0..15 => {
                let bounds = self.bounds(rng);
                Ok(self.keyspace(slot).compact(bounds)?)
            }
            15..20 => Ok(self.keyspace(slot).compact(..)?),
            20..35 => {
                self.store.checkpoint()?;
                self.lazy.clear();
                Ok(())
            }
            35..45 => Ok(self.store.settle()?),
            45..58 => self.close_and_reopen(),
            58..75 => self.kill(),
            75..82 => self.cut_power(),
            82..88 => self.drop_keyspace(slot),
            88..97 => match (0..SLOTS.len()).find(|&slot| self.keyspaces[slot].is_none()) {
                Some(slot) => self.create_keyspace(slot),
                None => self.verify(),
            },
            97 if rng.chance(30) => self.back_up(),
            _ => {
                self.store.persist(Durability::Synced)?;
                self.lazy.clear();
                self.verify()
            }
        }
    }

    /// Checks that the counter keyspace refuses a put whose value is not 8 bytes long, both without a batch and in a
    /// batch.
    fn refused_write(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let (key, other) = (self.config.key(rng), self.config.key(rng));
        let (short, long) = (rng.index(8), 9 + rng.index(5000));
        let keyspace = self.keyspace(slot);
        let mut batch = self.store.batch();
        batch.put(keyspace, &other, [0; 8]);
        batch.put(keyspace, &key, rng.bytes(long));
        for refused in [keyspace.put(&key, rng.bytes(short)), batch.commit(Durability::Buffered)] {
            check(matches!(refused, Err(pandodb::Error::InvalidArgument { .. })), || {
                format!("a counter keyspace did not refuse a value that is not a number: {refused:?}")
            })?;
        }
        Ok(())
    }

    /// Sends a single write without a batch, or several writes as one batch.
    fn some_writes(&mut self, there: &[usize], count: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let counters = there.iter().copied().find(|&slot| SLOTS[slot].1 == Rule::Counter);
        if rng.chance(3)
            && let Some(slot) = counters
        {
            self.refused_write(slot, rng)?;
        }
        let writes: Vec<Write> = (0..count)
            .map(|_| {
                let slot = there[rng.index(there.len())];
                if count > 1 && rng.chance(4) { self.range_delete(slot, rng) } else { self.point_write(slot, rng) }
            })
            .collect();
        if count == 1 {
            return self.write(&writes[0]);
        }
        self.commit(&writes, [Durability::None, Durability::Buffered, Durability::Synced][rng.index(3)])
    }

    /// Commits one batch with many writes to one keyspace and an equal number of counter merges. These batches make the
    /// trees grow.
    fn burst(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let mut writes = Vec::new();
        for _ in 0..10 + rng.index(160) {
            writes.push(self.point_write(slot, rng));
            writes.extend(self.counter_write(rng));
        }
        self.commit(&writes, if rng.chance(30) { Durability::None } else { Durability::Buffered })
    }

    /// Loads sorted rows: mostly few of them, sometimes about as many as a keyspace has. One of 10 loads is refused,
    /// because its last row is out of order.
    fn load_sorted(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let count = if rng.chance(30) { rng.index(1500) } else { rng.index(60) };
        let mut rows = std::collections::BTreeMap::new();
        for _ in 0..count {
            let key = self.config.key(rng);
            let value = self.value_of(slot, rng);
            rows.insert(key, value);
        }
        let rows: Vec<(Vec<u8>, Vec<u8>)> = rows.into_iter().collect();
        if rng.chance(10)
            && let Some(first) = rows.first().cloned()
        {
            let refused = self.keyspace(slot).load_sorted(rows.iter().cloned().chain([first]));
            return check(matches!(refused, Err(pandodb::Error::InvalidArgument { .. })), || {
                format!("a load with a repeated key was not refused: {refused:?}")
            });
        }
        self.write(&Write::Load(slot, rows))
    }

    /// Uses the keyspace as a queue: takes rows at one end or at both, and writes a key now and then, also at the end at
    /// which rows are taken.
    fn queue(&mut self, slot: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let backward = [0, 0, 50, 100, 100][rng.index(5)];
        for _ in 0..1 + rng.index(80) {
            match rng.index(12) {
                0 => {
                    let write = self.point_write(slot, rng);
                    self.write(&write)?;
                }
                1 => self.read_range(slot, rng)?,
                _ => self.pop(slot, rng.chance(backward))?,
            }
        }
        Ok(())
    }

    /// Draws a value for the keyspace in `slot`.
    pub fn value_of(&self, slot: usize, rng: &mut Rng) -> Vec<u8> {
        let (_, rule, threshold) = SLOTS[slot];
        let len = match rng.index(40) {
            0 => 0,
            1 => threshold + rng.index(3),
            2 => 4000 + rng.index(6000),
            _ => rng.index(self.config.value_bytes + 1),
        };
        let len = if rule == Rule::Counter { 8 } else { len };
        value(rng, len)
    }

    /// A merge into a counter, or `None` while the counter keyspace is dropped.
    fn counter_write(&self, rng: &mut Rng) -> Option<Write> {
        let amount = rng.next_u64() as i64 >> rng.index(60);
        self.keyspaces[COUNTERS].as_ref()?;
        Some(Write::Merge(COUNTERS, self.config.key(rng), amount.to_le_bytes().to_vec()))
    }

    /// Draws a write of one key.
    pub fn point_write(&self, slot: usize, rng: &mut Rng) -> Write {
        let key = self.config.key(rng);
        let rule = SLOTS[slot].1;
        let roll = rng.index(100);
        if roll < 15 {
            // Mostly draw a key that exists.
            let table = self.model.table(slot).expect("it is there");
            let key = table.range(key.clone()..).next().map_or(key, |(found, _)| found.clone());
            return Write::Delete(slot, key);
        }
        match rule {
            Rule::Counter if roll < 85 => {
                Write::Merge(slot, key, (rng.next_u64() as i64 >> rng.index(60)).to_le_bytes().to_vec())
            }
            Rule::Append | Rule::Max if roll < 70 => {
                let len = rng.index(20);
                Write::Merge(slot, key, rng.bytes(len))
            }
            _ => Write::Put(slot, key, self.value_of(slot, rng)),
        }
    }

    /// Draws a range delete: mostly a narrow one, so that entries remain.
    pub fn range_delete(&self, slot: usize, rng: &mut Rng) -> Write {
        if rng.chance(15) {
            return Write::DeletePrefix(slot, self.config.prefix(rng));
        }
        let bounds: Bounds = self.bounds(rng);
        let table = self.model.table(slot).expect("it is there");
        if rng.chance(70)
            && let Some((from, _)) = table.range(self.config.key(rng)..).next()
            && let Some((to, _)) = table.range(from.clone()..).nth(1 + rng.index(20))
        {
            let bounds = (std::ops::Bound::Included(from.clone()), std::ops::Bound::Excluded(to.clone()));
            return Write::DeleteRange(slot, bounds);
        }
        // Sometimes delete all keys, so that a whole tree is deleted while snapshots still read the tree.
        let bounds = if rng.chance(40) { (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded) } else { bounds };
        Write::DeleteRange(slot, bounds)
    }
}
