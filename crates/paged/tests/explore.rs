//! Explores schedules of the latching protocols with `shuttle`: random ones, and PCT of depth 3.
//!
//! ```text
//! cargo test -p pandodb-paged --features explore --release
//! PAGED_SCHEDULES=20000 cargo test -p pandodb-paged --features explore --release --test explore
//! ```
//!
//! Each scenario builds a tree of tiny pages and then runs three threads. A wrong answer, a broken structure, a panic or
//! a deadlock fails the test. The switch of deliberate mistakes is one for the process, so all is in one test.
#![cfg(feature = "explore")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pandodb_paged::buffer::{self, PageBuffer};
use pandodb_paged::{
    BeOptions, BufferConfig, BufferKind, Buffers, Child, Coupling, FanOut, FlushPolicy, Hints, Op, RootKind, Sizes,
    Tree, TreeKind, create,
};

const PAGE: usize = 128;
/// A buffer with several messages, of which some are in a front.
const PAGE_WITH_FRONT: usize = 208;
const KEYS: u64 = 48;

/// A configuration in which a scenario runs.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Writers and a reader of a tree.
    Tree(TreeKind, BufferKind),
    /// Two writers of one key, while the children of the full root are distributed to new nodes.
    Distribution(BeOptions),
    /// Three threads that increment numbers in pages, with fewer frames than pages.
    Pages(BufferKind),
}

const OPTIMISTIC: BeOptions = BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE };
const APART: BeOptions = BeOptions { buffers: Buffers::Apart, ..BeOptions::SOURCE };
const APART_OPTIMISTIC: BeOptions = BeOptions { coupling: Coupling::Optimistic, ..APART };

const SCENARIOS: [Scenario; 27] = [
    Scenario::Tree(TreeKind::BTree(Coupling::Latched), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BTree(Coupling::Optimistic), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(BeOptions::SOURCE), BufferKind::Optimal),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE }),
        BufferKind::Optimal,
    ),
    Scenario::Tree(TreeKind::BeTree(BeOptions { root: RootKind::Textbook, ..BeOptions::SOURCE }), BufferKind::Optimal),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, root: RootKind::Textbook, ..BeOptions::SOURCE }),
        BufferKind::Optimal,
    ),
    Scenario::Tree(TreeKind::BeTree(BeOptions::SOURCE), BufferKind::TwoQueue),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE }),
        BufferKind::Clock,
    ),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions {
            coupling: Coupling::Optimistic,
            policy: FlushPolicy::Threshold,
            ..BeOptions::SOURCE
        }),
        BufferKind::Optimal,
    ),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions {
            coupling: Coupling::Optimistic,
            policy: FlushPolicy::Reserved,
            ..BeOptions::SOURCE
        }),
        BufferKind::Optimal,
    ),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions {
            coupling: Coupling::Optimistic,
            fan_out: FanOut::Dynamic { least: 4 },
            ..BeOptions::SOURCE
        }),
        BufferKind::Optimal,
    ),
    Scenario::Tree(TreeKind::BeTree(APART_OPTIMISTIC), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(BeOptions { root: RootKind::Textbook, ..APART }), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(APART), BufferKind::TwoQueue),
    Scenario::Tree(TreeKind::BeTree(APART_OPTIMISTIC), BufferKind::Clock),
    Scenario::Distribution(BeOptions::SOURCE),
    Scenario::Distribution(OPTIMISTIC),
    Scenario::Distribution(APART),
    Scenario::Distribution(APART_OPTIMISTIC),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions { fan_out: FanOut::Dynamic { least: 4 }, ..APART_OPTIMISTIC }),
        BufferKind::Clock,
    ),
    Scenario::Tree(TreeKind::BTree(Coupling::Latched), BufferKind::Swizzled),
    Scenario::Tree(TreeKind::BeTree(OPTIMISTIC), BufferKind::Swizzled),
    Scenario::Tree(
        TreeKind::BeTree(BeOptions { fan_out: FanOut::Dynamic { least: 4 }, ..APART_OPTIMISTIC }),
        BufferKind::Swizzled,
    ),
    Scenario::Pages(BufferKind::TwoQueue),
    Scenario::Pages(BufferKind::TwoQueueSharded),
    Scenario::Pages(BufferKind::Clock),
    Scenario::Pages(BufferKind::Swizzled),
];

fn count(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

fn tree(kind: TreeKind, buffer: BufferKind, dir: &std::path::Path) -> Arc<dyn Tree> {
    let options = if let TreeKind::BeTree(options) = kind { options } else { BeOptions::SOURCE };
    // Nodes that choose their ε begin with the greatest one, so the writers make them narrower.
    let (page, epsilon, frames) = match (options.fan_out, options.buffers) {
        (FanOut::Dynamic { .. }, _) => (2 * PAGE, 1.0, 3),
        (FanOut::Fixed, Buffers::Apart) => (PAGE_WITH_FRONT, 0.0, 2),
        // Hints race with evictions only if a page is often evicted between two visits of its parent.
        (FanOut::Fixed, Buffers::Inside) => (PAGE, 0.0, if buffer == BufferKind::Swizzled { 3 } else { 6 }),
    };
    let config = BufferConfig { kind: buffer, page, frames, direct: false };
    let sizes = Sizes { page, value: 8, epsilon };
    let tree = create(kind, sizes, &config, &dir.join("pages")).expect("a tree");
    for key in 0..KEYS {
        // The last messages are in buffers, the others were flushed.
        tree.upsert(key * 5 % KEYS * 10, Op::Insert, &0_u64.to_le_bytes()).expect("an insert");
    }
    let shape = tree.verify().expect("a sound tree");
    let has_buffers = matches!(kind, TreeKind::BeTree(_));
    assert!(shape.height >= 3 && (shape.messages > 0) == has_buffers, "messages can be flushed: {shape:?}");
    tree.into()
}

/// Two writers add new keys and increment counters, while a reader observes that no counter decreases.
fn writers_and_reader(kind: TreeKind, buffer: BufferKind) {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = tree(kind, buffer, dir.path());
    let writers: Vec<_> = (0..2_u64)
        .map(|thread| {
            let tree = tree.clone();
            shuttle::thread::spawn(move || {
                for i in 0..5 {
                    // Near the counters, so that their buffer is flushed.
                    tree.upsert(10 * thread + 1 + i, Op::Insert, &7_u64.to_le_bytes()).expect("an insert");
                    tree.upsert(i % 2 * 10, Op::Update, &1_u64.to_le_bytes()).expect("an update");
                }
            })
        })
        .collect();
    let (mut seen, mut out) = ([0; 2], Vec::new());
    for i in 0..10 {
        let key = i % 2;
        assert!(tree.get(key as u64 * 10, &mut out).expect("a lookup"), "a counter is missing");
        assert!(count(&out) >= seen[key], "a counter has decreased");
        seen[key] = count(&out);
    }
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    let mut counters = 0;
    for key in 0..2 {
        assert!(tree.get(key * 10, &mut out).expect("a lookup"));
        assert!(seen[key as usize] <= count(&out), "a reader has counted an increment twice");
        counters += count(&out);
    }
    assert_eq!(counters, 10, "every increment");
    let rows = tree.range(0, usize::MAX, &mut |_, _| ()).expect("a scan");
    assert_eq!(rows as u64, KEYS + 10, "every insert");
    tree.verify().expect("a sound tree");
}

/// A writer increments a counter, while another one adds a level to the tree and then increments the counter, too.
/// `inserts` is the number of inserts before which a tree gets its fourth level, or 0 if it is unknown.
fn distribution(options: BeOptions, inserts: &AtomicU64) {
    let empty = || -> Arc<dyn Tree> {
        let config = BufferConfig { kind: BufferKind::Optimal, page: PAGE_WITH_FRONT, frames: 1, direct: false };
        let sizes = Sizes { page: PAGE_WITH_FRONT, value: 8, epsilon: 0.0 };
        create(TreeKind::BeTree(options), sizes, &config, "".as_ref()).expect("a tree").into()
    };
    let insert = |tree: &dyn Tree, key| tree.upsert(key, Op::Insert, &0_u64.to_le_bytes()).expect("an insert");
    if inserts.load(Ordering::Relaxed) == 0 {
        let tree = empty();
        let last = (0..).find(|&key| {
            insert(&*tree, key);
            tree.verify().expect("a sound tree").height == 4
        });
        inserts.store(last.expect("a tree grows"), Ordering::Relaxed);
    }
    let (tree, last) = (empty(), inserts.load(Ordering::Relaxed));
    (0..last).for_each(|key| insert(&*tree, key));
    let counter = last / 2;
    let increment = move |tree: &dyn Tree| tree.upsert(counter, Op::Update, &1_u64.to_le_bytes()).expect("an update");
    let other = tree.clone();
    let writer = shuttle::thread::spawn(move || {
        insert(&*other, last);
        increment(&*other);
    });
    increment(&*tree);
    writer.join().expect("a writer");
    let mut out = Vec::new();
    assert!(tree.get(counter, &mut out).expect("a lookup") && count(&out) == 2, "both increments");
    assert_eq!(tree.verify().expect("a sound tree").height, 4, "the root was distributed");
}

fn pages(kind: BufferKind) {
    let dir = tempfile::tempdir().expect("a directory");
    let config = BufferConfig { kind, page: PAGE, frames: 2, direct: false };
    let buffer: Arc<dyn PageBuffer> = buffer::create(&config, &dir.path().join("pages")).expect("a buffer").into();
    let pages: Vec<_> = (0..4).map(|_| buffer.create().expect("a page").no()).collect();
    // The hints that a parent would have.
    let hints = Arc::new(Hints::default());
    let children = [0, 1, 2, 3].map(|slot| Child { no: pages[slot], slot, slots: 4 });
    let add = |buffer: &dyn PageBuffer, hints: &Hints, child| {
        let mut page = buffer.pin_child(hints, child).expect("a page").write();
        let next = count(&page) + 1;
        page[..8].copy_from_slice(&next.to_le_bytes());
    };
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (buffer, hints) = (buffer.clone(), hints.clone());
            shuttle::thread::spawn(move || (0..4).for_each(|i| add(&*buffer, &hints, children[(i + thread) % 4])))
        })
        .collect();
    (0..4).for_each(|i| add(&*buffer, &hints, children[3 - i]));
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
    for page in pages {
        assert_eq!(count(&buffer.read(page).expect("a page")), 3, "every increment of page {page}");
    }
}

fn explore(scenario: Scenario, schedules: usize) {
    let inserts = Arc::new(AtomicU64::new(0));
    let body = move || match scenario {
        Scenario::Tree(kind, buffer) => writers_and_reader(kind, buffer),
        Scenario::Distribution(options) => distribution(options, &inserts),
        Scenario::Pages(kind) => pages(kind),
    };
    shuttle::check_random(body.clone(), schedules);
    shuttle::check_pct(body, schedules, 3);
}

#[test]
fn schedules_of_the_latching_protocols() {
    let schedules = std::env::var("PAGED_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    for scenario in SCENARIOS {
        explore(scenario, schedules);
    }
    #[cfg(debug_assertions)]
    mistakes_are_found();
}

/// The mistakes that need a certain schedule.
#[cfg(debug_assertions)]
fn mistakes_are_found() {
    use pandodb_paged::mistake::{Mistake, activate};
    let optimistic = Scenario::Tree(TreeKind::BeTree(OPTIMISTIC), BufferKind::Optimal);
    let swizzled = Scenario::Tree(TreeKind::BeTree(OPTIMISTIC), BufferKind::Swizzled);
    let canaries = [
        (Mistake::ChangedParentTrusted, optimistic),
        (Mistake::FlushNotNoted, optimistic),
        (Mistake::StampedAfterRoot, Scenario::Distribution(BeOptions::SOURCE)),
        (Mistake::FrontNotFolded, Scenario::Tree(TreeKind::BeTree(APART), BufferKind::Optimal)),
        (Mistake::StampedBeforeLock, Scenario::Tree(TreeKind::BeTree(APART), BufferKind::Optimal)),
        (Mistake::FrontDropped, Scenario::Tree(TreeKind::BeTree(APART), BufferKind::TwoQueue)),
        (Mistake::FilledFrontCleaned, Scenario::Tree(TreeKind::BeTree(APART), BufferKind::Clock)),
        (Mistake::PinnedVictimEvicted, Scenario::Pages(BufferKind::TwoQueueSharded)),
        (Mistake::EmptyFramePinned, Scenario::Pages(BufferKind::Swizzled)),
        (Mistake::EmptyFramePinned, swizzled),
        (Mistake::HintNotChecked, swizzled),
        (Mistake::DirtyPageDropped, Scenario::Pages(BufferKind::TwoQueue)),
    ];
    let hook = std::panic::take_hook();
    for (mistake, scenario) in canaries {
        std::panic::set_hook(Box::new(|_| ()));
        activate(Some(mistake));
        // A thread of its own: shuttle may abandon a task that unwinds, and its thread then counts as panicking for ever,
        // which forbids it to change the hook.
        let found = std::thread::spawn(move || explore(scenario, 3_000)).join().is_err();
        activate(None);
        let _ = std::panic::take_hook();
        assert!(found, "{mistake:?} was not found in {scenario:?}");
    }
    std::panic::set_hook(hook);
}
