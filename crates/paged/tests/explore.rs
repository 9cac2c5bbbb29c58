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

use pandodb_paged::buffer::{self, PageBuffer};
use pandodb_paged::{BufferConfig, BufferKind, Child, Coupling, FlushPolicy, Hints, Op, RootKind, Sizes};
use pandodb_paged::{Tree, TreeKind, create};

const PAGE: usize = 128;
const KEYS: u64 = 48;

/// A configuration in which a scenario runs.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Writers and a reader of a tree.
    Tree(TreeKind, BufferKind),
    /// Three threads that increment numbers in pages, with fewer frames than pages.
    Pages(BufferKind),
}

const SEPARATE: RootKind = RootKind::Separate;
const LARGEST: FlushPolicy = FlushPolicy::Largest;

const SCENARIOS: [Scenario; 16] = [
    Scenario::Tree(TreeKind::BTree(Coupling::Latched), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BTree(Coupling::Optimistic), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Latched, SEPARATE, LARGEST), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, LARGEST), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Latched, RootKind::Textbook, LARGEST), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, RootKind::Textbook, LARGEST), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Latched, SEPARATE, LARGEST), BufferKind::TwoQueue),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, LARGEST), BufferKind::Clock),
    Scenario::Tree(TreeKind::BTree(Coupling::Latched), BufferKind::Swizzled),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, LARGEST), BufferKind::Swizzled),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, FlushPolicy::Threshold), BufferKind::Optimal),
    Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, FlushPolicy::Reserved), BufferKind::Optimal),
    Scenario::Pages(BufferKind::TwoQueue),
    Scenario::Pages(BufferKind::TwoQueueSharded),
    Scenario::Pages(BufferKind::Clock),
    Scenario::Pages(BufferKind::Swizzled),
];

fn count(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

fn tree(kind: TreeKind, buffer: BufferKind, dir: &std::path::Path) -> Arc<dyn Tree> {
    // Hints race with evictions only if a page is often evicted between two visits of its parent.
    let frames = if buffer == BufferKind::Swizzled { 3 } else { 6 };
    let config = BufferConfig { kind: buffer, page: PAGE, frames, direct: false };
    let sizes = Sizes { page: PAGE, value: 8, epsilon: 0.0 };
    let tree = create(kind, sizes, &config, &dir.join("pages")).expect("a tree");
    for key in 0..KEYS {
        // The last messages are in buffers, the others were flushed.
        tree.upsert(key * 5 % KEYS * 10, Op::Insert, &0_u64.to_le_bytes()).expect("an insert");
    }
    let shape = tree.verify().expect("a sound tree");
    let has_buffers = matches!(kind, TreeKind::BeTree(..));
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
    let body = move || match scenario {
        Scenario::Tree(kind, buffer) => writers_and_reader(kind, buffer),
        Scenario::Pages(kind) => pages(kind),
    };
    shuttle::check_random(body, schedules);
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
    let optimistic = Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, LARGEST), BufferKind::Optimal);
    let swizzled = Scenario::Tree(TreeKind::BeTree(Coupling::Optimistic, SEPARATE, LARGEST), BufferKind::Swizzled);
    let canaries = [
        (Mistake::ChangedParentTrusted, optimistic),
        (Mistake::FlushNotNoted, optimistic),
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
