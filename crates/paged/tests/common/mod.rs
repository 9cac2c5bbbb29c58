//! A tree with its model: random operations, and the comparison of both.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::BTreeMap;

use pandodb_paged::message::combine;
use pandodb_paged::{
    BeOptions, BufferConfig, BufferKind, Buffers, Coupling, FanOut, FlushPolicy, Op, RootKind, Shape, Sizes, Tree,
    TreeKind, create,
};

/// Bytes of a value.
pub const VALUE: usize = 12;

/// Both couplings of both trees, and both roots; the other flush policies with each root and with each coupling; nodes
/// that choose their ε; buffers apart with each of these.
pub const TREES: [TreeKind; 18] = [
    TreeKind::BTree(Coupling::Latched),
    TreeKind::BTree(Coupling::Optimistic),
    TreeKind::BeTree(BeOptions::SOURCE),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE }),
    TreeKind::BeTree(BeOptions { root: RootKind::Textbook, ..BeOptions::SOURCE }),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, root: RootKind::Textbook, ..BeOptions::SOURCE }),
    TreeKind::BeTree(BeOptions { policy: FlushPolicy::Threshold, ..BeOptions::SOURCE }),
    TreeKind::BeTree(BeOptions {
        coupling: Coupling::Optimistic,
        root: RootKind::Textbook,
        policy: FlushPolicy::Threshold,
        ..BeOptions::SOURCE
    }),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, policy: FlushPolicy::Reserved, ..BeOptions::SOURCE }),
    TreeKind::BeTree(BeOptions { root: RootKind::Textbook, policy: FlushPolicy::Reserved, ..BeOptions::SOURCE }),
    TreeKind::BeTree(DYNAMIC),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, root: RootKind::Textbook, ..DYNAMIC }),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..DYNAMIC }),
    TreeKind::BeTree(APART),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..APART }),
    TreeKind::BeTree(BeOptions { root: RootKind::Textbook, policy: FlushPolicy::Threshold, ..APART }),
    TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, policy: FlushPolicy::Reserved, ..APART }),
    TreeKind::BeTree(BeOptions { buffers: Buffers::Apart, ..DYNAMIC }),
];

/// A Bε-tree whose nodes choose their ε.
pub const DYNAMIC: BeOptions = BeOptions { fan_out: FanOut::Dynamic { least: 4 }, ..BeOptions::SOURCE };

/// The tree of the source with its buffers apart.
pub const APART: BeOptions = BeOptions { buffers: Buffers::Apart, ..BeOptions::SOURCE };

/// A small generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// A value whose first eight bytes are a counter.
pub fn value(count: u64, tail: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    value[..8].copy_from_slice(&count.to_le_bytes());
    value[8..].copy_from_slice(&(tail as u32).to_le_bytes());
    value
}

/// What a tree must contain.
pub type Model = BTreeMap<u64, Vec<u8>>;

/// Applies an operation to the model.
pub fn apply(model: &mut Model, key: u64, op: Op, value: &[u8]) {
    match op {
        Op::Insert => drop(model.insert(key, value.to_vec())),
        Op::Delete => drop(model.remove(&key)),
        Op::Update => model.get_mut(&key).into_iter().for_each(|old| combine(old, value)),
    }
}

/// A random operation: half inserts, three eighths updates, the rest deletes.
pub fn operation(random: &mut Random) -> (Op, [u8; VALUE]) {
    let op = [Op::Insert, Op::Insert, Op::Insert, Op::Insert, Op::Update, Op::Update, Op::Update, Op::Delete];
    (op[random.below(8) as usize], value(random.below(1000), random.below(1 << 32)))
}

/// A tree in a temporary directory.
pub struct Fixture {
    pub tree: Box<dyn Tree>,
    _dir: tempfile::TempDir,
}

/// Creates a tree.
pub fn tree(kind: TreeKind, page: usize, epsilon: f64, buffer: BufferKind, frames: usize) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let config = BufferConfig { kind: buffer, page, frames, direct: false };
    let sizes = Sizes { page, value: VALUE, epsilon };
    let tree = create(kind, sizes, &config, &dir.path().join("pages")).unwrap();
    Fixture { tree, _dir: dir }
}

/// Compares everything that the tree answers with the model.
pub fn compare(tree: &dyn Tree, model: &Model, keys: u64, context: &str) -> Shape {
    let mut rows = Vec::new();
    tree.range(0, usize::MAX, &mut |key, value| rows.push((key, value.to_vec()))).unwrap();
    let expected: Vec<_> = model.iter().map(|(key, value)| (*key, value.clone())).collect();
    assert_eq!(rows.len(), expected.len(), "{context}: rows of a scan");
    assert!(rows == expected, "{context}: a scan differs");
    let mut out = Vec::new();
    for key in 0..keys {
        let found = tree.get(key, &mut out).unwrap();
        assert_eq!(found.then_some(&out), model.get(&key), "{context}: key {key}");
    }
    tree.verify().unwrap_or_else(|e| panic!("{context}: {e}"))
}

/// Runs random operations on a tree and on the model, and compares them from time to time.
pub fn run(tree: &dyn Tree, seed: u64, keys: u64, operations: u64, context: &str) -> Shape {
    let (mut random, mut model, mut out) = (Random(seed), Model::new(), Vec::new());
    let mut shape = Shape::default();
    for i in 1..=operations {
        let key = random.below(keys);
        let (op, value) = operation(&mut random);
        tree.upsert(key, op, &value).unwrap();
        apply(&mut model, key, op, &value);
        let asked = random.below(keys);
        let found = tree.get(asked, &mut out).unwrap();
        assert_eq!(found.then_some(&out), model.get(&asked), "{context}: key {asked} after {i} operations");
        if i % 16 == 0 {
            let (from, limit) = (random.below(keys), 1 + random.below(20) as usize);
            let mut rows = Vec::new();
            tree.range(from, limit, &mut |key, value| rows.push((key, value.to_vec()))).unwrap();
            let expected: Vec<_> = model.range(from..).take(limit).map(|(k, v)| (*k, v.clone())).collect();
            assert_eq!(rows, expected, "{context}: {limit} rows from {from} after {i} operations");
        }
        if i % (operations / 3).max(1) == 0 {
            shape = compare(tree, &model, keys, context);
        }
    }
    shape
}
