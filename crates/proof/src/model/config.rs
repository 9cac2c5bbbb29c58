//! Configuration of one history: the device, the store options and the keys, all drawn from the seed.

use std::sync::Arc;

use pandodb::device::sim::{Fault, FaultKind, SimImage};
use pandodb::device::{Device, FileDevice, MemDevice, SimDevice};
use pandodb::{AddI64, Append, IndexOptions, KeyspaceOptions, Max, Mode, Store, StoreBuilder};

use super::tables::{Rule, SLOTS};
use super::world::Wrong;
use crate::indexes;
use crate::script::{Rng, mix};

/// Configuration of one history.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed that all other fields are drawn from.
    pub seed: u64,
    /// Uses the simulated device, on which a kill and a power cut are possible. Takes precedence over `in_directory`.
    pub simulated: bool,
    /// Uses a temporary directory. If this field and `simulated` are both false, the store is in memory.
    pub in_directory: bool,
    /// Every transfer of the simulated device moves fewer bytes than requested, if the request has more than one byte.
    pub short: bool,
    /// Memtable size in bytes.
    pub memtable_bytes: usize,
    /// The index of most keyspaces.
    pub index: IndexOptions,
    /// Whether a separate index is drawn for each keyspace.
    pub mixed: bool,
    /// Number of log streams.
    pub streams: usize,
    /// Memory budget of the store in bytes.
    pub memory_budget: usize,
    /// Paper mode or product mode.
    pub mode: Mode,
    /// Number of distinct keys.
    pub keys: usize,
    /// The longest inline value, in bytes.
    pub value_bytes: usize,
    /// Whether a few keys of the counters get most of the merges, so that they have long chains of operands.
    pub hot_counters: bool,
}

impl Config {
    /// The configuration drawn from `seed`.
    pub fn from_seed(seed: u64) -> Config {
        let mut rng = Rng(mix(seed ^ 0xC0FF_EE00));
        let hot_counters = mix(seed ^ 0xC0B7_0000).is_multiple_of(4);
        // Long chains of operands, and snapshots between their operands, need some room in a memtable.
        let least_memtable = if hot_counters { 64 << 10 } else { 0 };
        Config {
            seed,
            simulated: rng.chance(80),
            short: mix(seed ^ 0x5407_0000).is_multiple_of(4),
            in_directory: mix(seed ^ 0xD13E_0000).is_multiple_of(4),
            memtable_bytes: ((4 << 10) << rng.index(8).saturating_sub(4)).max(least_memtable),
            index: indexes::options(seed),
            mixed: indexes::only().is_none() && mix(seed ^ 0x1D7E_0000).is_multiple_of(4),
            // This value is not drawn from `rng`, because another draw would change all later draws of the same seed.
            mode: if mix(seed ^ 0x9A9E_0000).is_multiple_of(4) { Mode::Paper } else { Mode::Product },
            streams: 1 + (mix(seed ^ 0x57E4_0000) % 3) as usize,
            memory_budget: 1 << (20 + rng.index(3)),
            keys: 40 << rng.index(8),
            value_bytes: [8, 40, 150][rng.index(3)],
            hot_counters,
        }
    }

    /// A configuration in which the index becomes deep.
    pub fn deep(seed: u64) -> Config {
        let index = indexes::deepest(indexes::kind(seed));
        Config { memtable_bytes: 4 << 10, index, mixed: false, keys: 4000, value_bytes: 150, ..Config::from_seed(seed) }
    }

    /// Creates an empty device.
    pub(super) fn device(&self) -> Result<Disk, Wrong> {
        let refused = |e: std::io::Error| Wrong(format!("no directory: {e}"));
        Ok(match (self.simulated, self.in_directory) {
            (true, _) => self.simulated(&SimImage::default()),
            (false, false) => Disk::Memory(MemDevice::new()),
            (false, true) => {
                let directory = tempfile::tempdir().map_err(refused)?;
                let device = FileDevice::open(directory.path(), true).map_err(refused)?;
                Disk::Directory(Arc::new(device), directory)
            }
        })
    }

    /// Creates a simulated device that starts with `image`.
    pub(super) fn simulated(&self, image: &SimImage) -> Disk {
        let device = SimDevice::from_image(image, self.seed);
        device.set_fault(self.short.then(|| Fault::sticky(FaultKind::ShortTransfer, 0)));
        Disk::Simulated(device)
    }

    /// The builder of the store on `device`, without background threads.
    pub(super) fn builder(&self, device: Arc<dyn Device>) -> StoreBuilder {
        let builder = Store::builder("model").device(device).background_threads(0);
        let builder = builder.log_streams(self.streams).index(self.index.clone());
        builder.mode(self.mode).memory_budget(self.memory_budget).memtable_bytes(self.memtable_bytes)
    }

    /// Opens the store on a device.
    pub(super) fn open(&self, disk: &Disk) -> Result<Store, Wrong> {
        let device: Arc<dyn Device> = match disk {
            Disk::Simulated(device) => device.clone(),
            Disk::Memory(device) => device.clone(),
            Disk::Directory(device, _) => device.clone(),
        };
        Ok(self.builder(device).open()?)
    }

    /// Draws a key. Keys are short or long; many share a prefix with a group; some consist of 0x00 or 0xff bytes.
    pub(super) fn key(&self, rng: &mut Rng) -> Vec<u8> {
        let i = rng.index(self.keys);
        let group = mix(i as u64) % 16;
        match i % 16 {
            0 => vec![i as u8],
            1 => [vec![0xff; 1 + i % 4], i.to_be_bytes()[6..].to_vec()].concat(),
            2 => [vec![0x00; 1 + i % 3], vec![i as u8]].concat(),
            3 => [format!("group/{group:02}/{i:05}").into_bytes(), vec![b'x'; 200 + i % 200]].concat(),
            _ => format!("group/{group:02}/{i:05}").into_bytes(),
        }
    }

    /// Draws one of the few keys that get most of the merges.
    pub(super) fn hot_key(&self, rng: &mut Rng) -> Vec<u8> {
        format!("group/{:02}/hot", rng.index(3)).into_bytes()
    }

    /// Draws a prefix, which is mostly the beginning of a key or of a group, and rarely empty.
    pub(super) fn prefix(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.index(8) {
            0 => vec![0xff; 1 + rng.index(4)],
            1 => b"group/".to_vec(),
            2 | 3 => format!("group/{:02}/", rng.index(16)).into_bytes(),
            4 if rng.chance(20) => Vec::new(),
            _ => {
                let key = self.key(rng);
                key[..1 + rng.index(key.len())].to_vec()
            }
        }
    }
}

/// The device of a history.
pub enum Disk {
    Simulated(Arc<SimDevice>),
    Memory(Arc<MemDevice>),
    /// A directory, with the guard that removes it when dropped.
    Directory(Arc<FileDevice>, #[expect(dead_code, reason = "held only for its Drop")] tempfile::TempDir),
}

impl Config {
    /// The options of the keyspace in a slot.
    pub fn options(&self, slot: usize) -> KeyspaceOptions {
        let (_, rule, threshold) = SLOTS[slot];
        let mut options = KeyspaceOptions::new().blob_threshold(threshold);
        if self.mixed {
            options = options.index(indexes::options(mix(self.seed ^ slot as u64)));
        }
        match rule {
            Rule::Plain => options,
            Rule::Counter => options.merge(AddI64),
            Rule::Append => options.merge(Append),
            Rule::Max => options.merge(Max),
        }
    }
}
