//! Each deliberate mistake makes a test of this crate fail.
//!
//! The switch is one for the process, so this program has one test. Mistakes that need two threads and a certain
//! schedule are found by the explorer (`tests/explore.rs`).
#![cfg(all(debug_assertions, not(feature = "explore")))]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{APART, Random, run, tree, value};
use pandodb_paged::mistake::{Mistake, activate};
use pandodb_paged::{BeOptions, BufferConfig, BufferKind, Child, Coupling, FanOut, FlushPolicy, Hints, Op, RootKind};
use pandodb_paged::{TreeKind, buffer};

/// Mistakes with schedules that are too rare without the explorer.
const RARE: [Mistake; 3] = [Mistake::FilledFrontCleaned, Mistake::StampedBeforeLock, Mistake::StampedAfterRoot];

/// The checks of the model test, on small trees.
fn model(options: BeOptions) {
    for (buffer, epsilon) in [(BufferKind::Optimal, 0.3), (BufferKind::TwoQueue, 0.6), (BufferKind::Swizzled, 0.9)] {
        for root in [RootKind::Separate, RootKind::Textbook] {
            let fixture = tree(TreeKind::BeTree(BeOptions { root, ..options }), 256, epsilon, buffer, 10);
            run(&*fixture.tree, 7, 1_200, 6_000, "a tree with a mistake");
        }
    }
}

/// Ascending inserts, so that all messages for a leaf are above its records.
fn ascending() {
    let kind = TreeKind::BeTree(BeOptions::SOURCE);
    let fixture = tree(kind, 1024, 0.0, BufferKind::Optimal, 0);
    (0..40_000).for_each(|key| fixture.tree.upsert(key, Op::Insert, &value(key, 0)).unwrap());
    fixture.tree.verify().unwrap();
}

/// Lookups make the nodes wide. Then the messages for a few children fill whole buffers.
fn narrowing() {
    for page in [256, 512, 1024] {
        let kind = TreeKind::BeTree(BeOptions { fan_out: FanOut::Dynamic { least: 4 }, ..BeOptions::SOURCE });
        let (fixture, mut random, mut out) = (tree(kind, page, 0.7, BufferKind::Optimal, 0), Random(5), Vec::new());
        for i in 0..20_000 {
            fixture.tree.upsert(random.below(1 << 20), Op::Insert, &value(i, i)).unwrap();
            for _ in 0..10 {
                fixture.tree.get(random.below(1 << 20), &mut out).unwrap();
            }
        }
        for i in 0..60_000 {
            fixture.tree.upsert(i * 8 % 4093 + i / 2000 * 5000, Op::Insert, &value(i, i)).unwrap();
        }
        fixture.tree.verify().unwrap();
    }
}

/// Readers and writers of counters, on a small buffer.
fn threads(kind: TreeKind) {
    let fixture = tree(kind, 256, 0.4, BufferKind::TwoQueueSharded, 8);
    let tree = &*fixture.tree;
    (0..1_000).for_each(|key| tree.upsert(key, Op::Insert, &value(0, 0)).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let (mut random, mut out, mut seen) = (Random(thread), Vec::new(), vec![0; 1_000]);
                for _ in 0..20_000 {
                    let key = random.below(30) * random.below(33);
                    tree.upsert(key, Op::Update, &value(1, 0)).unwrap();
                    assert!(tree.get(key, &mut out).unwrap(), "a counter is missing");
                    let count = u64::from_le_bytes(out[..8].try_into().unwrap());
                    assert!(count > seen[key as usize], "a counter has lost an increment");
                    seen[key as usize] = count;
                }
            });
        }
    });
    tree.verify().unwrap();
}

/// Threads that find few pages by hints, in fewer frames. Each thread latches one page at a time, so that a mistake is
/// not a deadlock.
fn hints() {
    const PAGES: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let config = BufferConfig { kind: BufferKind::Swizzled, page: 256, frames: 2, direct: false };
    let buffer = buffer::create(&config, &dir.path().join("pages")).unwrap();
    let pages: Vec<_> = (0..PAGES).map(|_| buffer.create().unwrap().no()).collect();
    let hints = Hints::default();
    let child = |slot: usize| Child { no: pages[slot], slot, slots: PAGES };
    let child = &child;
    let count = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (buffer, hints) = (&buffer, &hints);
            scope.spawn(move || {
                for i in 0..10_000 {
                    let mut page = buffer.pin_child(hints, child((i + thread) % PAGES)).unwrap().write();
                    let next = count(&page) + 1;
                    page[..8].copy_from_slice(&next.to_le_bytes());
                }
            });
        }
    });
    for &page in &pages {
        assert_eq!(count(&buffer.read(page).unwrap()), 10_000, "every increment of page {page}");
    }
}

fn check(mistake: Mistake) {
    match mistake {
        Mistake::PinnedVictimEvicted => threads(TreeKind::BeTree(BeOptions::SOURCE)),
        Mistake::ChangedParentTrusted | Mistake::FlushNotNoted => {
            threads(TreeKind::BeTree(BeOptions { coupling: Coupling::Optimistic, ..BeOptions::SOURCE }));
        }
        Mistake::EmptyFramePinned | Mistake::HintNotChecked => hints(),
        Mistake::LeafSplitWithoutMessages => ascending(),
        Mistake::NarrowedTooFar => narrowing(),
        Mistake::FrontNotRead | Mistake::RangeSkipsFronts | Mistake::FrontNotFolded | Mistake::FrontDropped => {
            model(APART);
        }
        Mistake::ShareExceeded => model(BeOptions { policy: FlushPolicy::Reserved, ..BeOptions::SOURCE }),
        Mistake::ArrivedNotDivided => model(BeOptions { policy: FlushPolicy::Threshold, ..BeOptions::SOURCE }),
        _ => model(BeOptions::SOURCE),
    }
}

#[test]
fn every_mistake_is_detected() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let mut undetected = Vec::new();
    for &mistake in Mistake::ALL.iter().filter(|mistake| !RARE.contains(mistake)) {
        activate(None);
        let sound = catch_unwind(|| check(mistake)).is_ok();
        activate(Some(mistake));
        // Mistakes of schedules get several attempts.
        let detected = (0..5).any(|_| catch_unwind(AssertUnwindSafe(|| check(mistake))).is_err());
        if !sound || !detected {
            undetected.push((mistake, sound));
        }
    }
    activate(None);
    std::panic::set_hook(quiet);
    assert!(undetected.is_empty(), "undetected, or failing without a mistake: {undetected:?}");
}
