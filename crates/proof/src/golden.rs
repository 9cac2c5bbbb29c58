//! Golden stores: stores that an earlier build wrote, and whose files are part of the repository. Every later build
//! must open them with the same contents.
//!
//! | store | contents |
//! | --- | --- |
//! | `closed` | a tree without pending background work, a large value, a few commits in the log; closed |
//! | `killed` | the same kind of store, but killed, so that its log was not closed either |
//! | `deep` | more keys and levels than `closed`, with range deletes and merges on several levels; closed |
//! | `levels` | the contents of `deep`, in a lookahead array (`cola`); closed |
//! | `pages` | the contents of `deep`, in a B+-tree (`btree`); closed |
//! | `nested` | the contents of `deep`, in a Nested B-tree (`nbtree`); closed |
//! | `buffers` | the contents of `deep`, in a Bε-tree (`betree`); closed |
//!
//! `golden/NAME-v3.bin` holds all files of the store's directory, without their holes. Integers are u32, little-endian:
//!
//! ```text
//!  for each file: name length | name | file length | span count | (offset | length | bytes)…
//! ```
//!
//! `golden/NAME-v3.txt` lists the entries: keyspace, key, length of the value, xxh3 of the value. The last lines, which
//! begin with `#`, list the [`digest`] of every state of the history. [`write()`] writes both files. Call [`write()`]
//! only for a new format version, and give the files new names.

use std::io;
use std::path::Path;

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Durability, IndexKind, IndexOptions};

use crate::drive::{Driver, Sizes, contents};
use crate::indexes;
use crate::script::{Mix, Op, ROWS, Script, State, Step, key};

/// A span ends at a gap of this many zero bytes.
const GAP: usize = 16;

/// A golden store.
#[derive(Clone, Copy, Debug)]
pub struct Golden {
    /// The name of the store.
    pub name: &'static str,
    /// The index type of the store's keyspaces.
    pub index: &'static str,
    bytes: &'static [u8],
    listing: &'static str,
}

macro_rules! golden {
    ($name:literal, $index:literal) => {
        Golden {
            name: $name,
            index: $index,
            bytes: include_bytes!(concat!("../golden/", $name, "-v3.bin")),
            listing: include_str!(concat!("../golden/", $name, "-v3.txt")),
        }
    };
}

/// A store of format version 2. No release has written this version. Opening must refuse it and name the version.
pub const REFUSED: &[u8] = include_bytes!("../golden/closed-v2.bin");

/// All golden stores.
pub const GOLDEN: [Golden; 7] = [
    golden!("closed", "stbe:fanout=3,maplet_width=2"),
    golden!("killed", "stbe:fanout=3,maplet_width=2"),
    golden!("deep", "stbe:fanout=3,maplet_width=2"),
    golden!("levels", "cola:growth=2"),
    golden!("pages", "btree:page_kib=4"),
    golden!("nested", "nbtree:fanout=3"),
    golden!("buffers", "betree:node_kib=4,page_kib=4"),
];

/// The golden stores of the index type that [`indexes::use_only`] set, or all golden stores if no type was set.
pub fn chosen() -> impl Iterator<Item = &'static Golden> {
    GOLDEN.iter().filter(|golden| indexes::only().is_none_or(|kind| golden.kind() == kind))
}

impl Golden {
    /// The files of the store.
    pub fn image(&self) -> SimImage {
        decode(self.bytes)
    }

    /// The list of the entries, made when the store was written.
    pub fn listing(&self) -> &'static str {
        self.listing.split('#').next().expect("the part before the first separator")
    }

    /// The digests of the states of the store's history, in order.
    pub fn states(&self) -> Vec<u64> {
        let lines = self.listing.lines().filter_map(|line| line.strip_prefix('#'));
        lines.map(|hex| u64::from_str_radix(hex, 16).expect("a digest")).collect()
    }

    /// The index type of the store's keyspaces.
    pub fn kind(&self) -> IndexKind {
        self.index.parse::<IndexOptions>().expect("options of an index").kind()
    }

    /// Whether the store was closed, not killed.
    pub fn is_closed(&self) -> bool {
        self.name != "killed"
    }

    /// Whether decoding the file and encoding the result again returns the same bytes.
    pub fn is_faithful(&self) -> bool {
        encode(&self.image()) == self.bytes
    }
}

/// The list of all entries, one line for each: keyspace, key, length, hash.
pub fn list(state: &State) -> String {
    let mut text = String::new();
    for (name, entries) in &state.0 {
        for (key, value) in entries {
            let (key, hash) = (String::from_utf8_lossy(key), xxhash_rust::xxh3::xxh3_64(value));
            text += &format!("{name}\t{key}\t{}\t{hash:016x}\n", value.len());
        }
    }
    text
}

/// A hash of the list of entries. It is the same in every build.
pub fn digest(state: &State) -> u64 {
    xxhash_rust::xxh3::xxh3_64(list(state).as_bytes())
}

/// The script of a store. The script ends with a large value, a `settle`, and a few steps whose commits are only in the
/// log.
fn script(name: &str) -> Script {
    let (seed, mix) = match name {
        "deep" | "levels" | "pages" | "buffers" | "nested" => {
            (3, Mix { steps: 90, blobs: 4, lazy: 20, buffered: 60, keys: 120 })
        }
        "killed" => (2, Mix { steps: 40, blobs: 8, lazy: 20, buffered: 50, keys: 24 }),
        _ => (1, Mix { steps: 40, blobs: 8, lazy: 20, buffered: 50, keys: 24 }),
    };
    let mut script = Script::generate(seed, mix);
    let large = Op::Put(ROWS, key(999), vec![0xAB; 5_000]);
    let at = script.steps.len() - 3;
    script.steps.insert(at, Step::Commit(vec![large], Durability::Buffered));
    script.steps.insert(at + 1, Step::Settle);
    script
}

/// Runs the script of a store and writes its two files into `folder`.
///
/// # Errors
/// The error of writing the files.
///
/// # Panics
/// If a step fails or the contents are wrong.
pub fn write(golden: &Golden, folder: &Path) -> io::Result<()> {
    let device = SimDevice::new(1);
    let index: IndexOptions = golden.index.parse().expect("options of an index");
    let mut driver = Driver::open_with(Sizes::TINY, device.clone(), index).expect("opens");
    let (script, mut state) = (script(golden.name), State::default());
    for step in &script.steps {
        driver.step(step, &state).expect("no fault");
        state.apply(step);
    }
    assert_eq!(contents(&driver.store).expect("reads"), state);
    let killed = device.image();
    driver.store.close().expect("closes");
    let image = if golden.is_closed() { device.image() } else { killed };
    // A killed store may lack commits that were only in the memory of the process.
    let (_, store) = Sizes::TINY.open_image(&image, 1).expect("opens");
    let left = contents(&store).expect("reads");
    assert!(left == state || !golden.is_closed());
    let states: String = script.states().iter().map(|state| format!("#{:016x}\n", digest(state))).collect();
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(format!("{}-v3.bin", golden.name)), encode(&image))?;
    std::fs::write(folder.join(format!("{}-v3.txt", golden.name)), list(&left) + &states)
}

fn put(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).expect("a small store").to_le_bytes());
}

/// The spans of a file that are separated by at least [`GAP`] zero bytes.
fn spans(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match spans.last_mut() {
            Some((_, end)) if at < *end + GAP => *end = at + 1,
            _ => spans.push((at, at + 1)),
        }
    }
    spans
}

fn encode(image: &SimImage) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, len) in image.files() {
        let bytes = image.file(&name).expect("it was listed");
        put(&mut out, name.len());
        out.extend_from_slice(name.as_bytes());
        put(&mut out, len as usize);
        let spans = spans(&bytes);
        put(&mut out, spans.len());
        for (from, to) in spans {
            put(&mut out, from);
            put(&mut out, to - from);
            out.extend_from_slice(&bytes[from..to]);
        }
    }
    out
}

/// The files of a golden store, from its bytes.
pub fn decode(bytes: &[u8]) -> SimImage {
    let mut rest = bytes;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at_checked(n).expect("the golden file is complete");
        rest = tail;
        head
    };
    let mut image = SimImage::default();
    let mut left = bytes.len();
    while left > 0 {
        let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
        let name_len = number();
        let name = String::from_utf8(take(name_len).to_vec()).expect("a file's name");
        let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
        let (len, count) = (number(), number());
        left -= 12 + name_len;
        image.write(&name, 0, &[]);
        for _ in 0..count {
            let mut number = || u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
            let (at, size) = (number(), number());
            image.write(&name, at as u64, take(size));
            left -= 8 + size;
        }
        image.truncate(&name, len as u64);
    }
    image
}
