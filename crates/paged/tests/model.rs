//! Compares both trees with a `BTreeMap` under random operations, in all configurations.
#![cfg(not(feature = "explore"))]

mod common;

use common::{DYNAMIC, Model, Random, TREES, apply, compare, run, tree, value};
use pandodb_paged::{
    BeOptions, BufferConfig, BufferKind, Buffers, FanOut, FlushPolicy, Op, RootKind, Sizes, TreeKind, create,
};

const SEPARATE: TreeKind = TreeKind::BeTree(BeOptions::SOURCE);

#[test]
fn every_tree_on_every_buffer_agrees_with_the_model() {
    for kind in TREES {
        for buffer in BufferKind::ALL {
            let fixture = tree(kind, 256, 0.5, buffer, 12);
            let context = format!("{kind:?} {buffer:?}");
            let shape = run(&*fixture.tree, 1, 3_000, 12_000, &context);
            assert!(shape.height >= 4, "{context}: {shape:?}");
        }
    }
}

/// Each configuration runs with two seeds. A seed also draws the flush policy, the kind of buffers, and whether nodes
/// choose their ε.
#[test]
fn every_epsilon_and_page_size_agrees_with_the_model() {
    let (mut seed, mut drawn, mut moves) = (0, [0; 3], 0);
    for root in [RootKind::Separate, RootKind::Textbook] {
        for (page, keys) in [(128, 600), (160, 600), (256, 1_500), (512, 3_000), (4096, 10_000)] {
            for epsilon in [0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9, 0.99, 1.0].repeat(2) {
                seed += 1;
                let policy = Random(seed).below(3) as usize;
                drawn[policy] += 1;
                let policy = FlushPolicy::ALL[policy];
                let is_dynamic = policy == FlushPolicy::Largest && seed % 2 == 0;
                let fan_out = if is_dynamic { FanOut::Dynamic { least: 4 } } else { FanOut::Fixed };
                let buffers = [Buffers::Inside, Buffers::Apart][Random(!seed).below(2) as usize];
                let kind = TreeKind::BeTree(BeOptions { root, policy, fan_out, buffers, ..BeOptions::SOURCE });
                let fixture = tree(kind, page, epsilon, BufferKind::Optimal, 0);
                let context = format!("{kind:?}, pages of {page} bytes, epsilon {epsilon}, seed {seed}");
                let shape = run(&*fixture.tree, seed, keys, 4 * keys, &context);
                moves += fixture.tree.flushes().moves;
                assert!(shape.height >= 2, "{context}: {shape:?}");
            }
        }
    }
    assert!(drawn.iter().all(|&runs| runs >= 40), "each policy is drawn often: {drawn:?}");
    assert!(moves > 1_000, "{moves} nodes got another epsilon");
}

#[test]
fn nodes_follow_the_reads_and_writes() {
    for root in [RootKind::Separate, RootKind::Textbook] {
        let fixture = tree(TreeKind::BeTree(BeOptions { root, ..DYNAMIC }), 1024, 0.7, BufferKind::Optimal, 0);
        let (tree, mut model, mut random, mut out) = (&*fixture.tree, Model::new(), Random(8), Vec::new());
        let mut moves = 0;
        for (phase, reads) in [("writes", 0), ("reads", 200), ("writes again", 0)] {
            for i in 0..20_000_u64 {
                let key = random.below(30_000);
                tree.upsert(key, Op::Insert, &value(i, key)).unwrap();
                apply(&mut model, key, Op::Insert, &value(i, key));
                // A rewrite needs writes, so a phase of reads has some.
                for _ in 0..if i % 10 == 0 { reads } else { 0 } {
                    let key = random.below(30_000);
                    let found = tree.get(key, &mut out).unwrap();
                    assert_eq!(found.then_some(&out), model.get(&key), "{root:?} {phase}: key {key}");
                }
            }
            let now = tree.flushes().moves;
            assert!(now > moves + 5, "{root:?} {phase}: {moves} to {now} nodes got another epsilon");
            moves = now;
            compare(tree, &model, 30_000, &format!("{root:?} {phase}"));
        }
    }
}

#[test]
fn flush_policies_differ_in_their_batches_and_splits() {
    for root in [RootKind::Separate, RootKind::Textbook] {
        let [largest, threshold, reserved] = FlushPolicy::ALL.map(|policy| {
            let kind = TreeKind::BeTree(BeOptions { root, policy, ..BeOptions::SOURCE });
            let fixture = tree(kind, 512, 0.5, BufferKind::Optimal, 0);
            let mut random = Random(4);
            for i in 0..60_000 {
                fixture.tree.upsert(random.below(1 << 40), Op::Insert, &value(i, i)).unwrap();
            }
            let shape = fixture.tree.verify().unwrap();
            assert!(shape.height >= 5, "several levels of buffers: {shape:?}");
            (fixture.tree.flushes(), fixture.tree.layout().first().share() as u64)
        });
        assert_eq!((largest.0.splits_instead, reserved.0.splits_instead), (0, 0));
        assert!(threshold.0.splits_instead > 0, "{threshold:?}");
        let (counts, share) = reserved;
        assert!(share > 1 && counts.messages <= counts.batches * share, "at most a share for each batch: {counts:?}");
        assert!(counts.batches > largest.0.batches, "smaller batches: {counts:?} {largest:?}");
    }
}

#[test]
fn sorted_and_reversed_inserts_are_found() {
    for kind in TREES {
        for reversed in [false, true] {
            let fixture = tree(kind, 256, 0.7, BufferKind::Clock, 10);
            let mut model = Model::new();
            for i in 0..3_000 {
                let key = if reversed { 2_999 - i } else { i };
                fixture.tree.upsert(key, Op::Insert, &value(i, i)).unwrap();
                apply(&mut model, key, Op::Insert, &value(i, i));
            }
            let shape = compare(&*fixture.tree, &model, 3_000, &format!("{kind:?} reversed {reversed}"));
            assert!(shape.records + shape.messages >= 3_000);
        }
    }
}

#[test]
fn extreme_keys_and_skewed_updates() {
    for kind in TREES {
        let fixture = tree(kind, 256, 0.6, BufferKind::TwoQueue, 8);
        let (mut model, mut random) = (Model::new(), Random(9));
        for i in 0..8_000_u64 {
            // Most operations are for few keys, at both ends of the range.
            let key = match random.below(4) {
                0 => u64::MAX - random.below(3),
                1 => random.below(3),
                _ => random.below(1 << 60) << 4,
            };
            let op = if i % 3 == 0 { Op::Insert } else { Op::Update };
            fixture.tree.upsert(key, op, &value(1, i)).unwrap();
            apply(&mut model, key, op, &value(1, i));
        }
        compare(&*fixture.tree, &model, 3, &format!("{kind:?}"));
        let mut out = Vec::new();
        for key in u64::MAX - 3..=u64::MAX {
            let found = fixture.tree.get(key, &mut out).unwrap();
            assert_eq!(found.then_some(&out), model.get(&key), "{kind:?}");
        }
    }
}

#[test]
fn a_buffer_with_all_messages_for_one_child_is_passed_on_in_parts() {
    // Messages for one leaf after the other fill whole buffers with one block.
    let fixture = tree(SEPARATE, 256, 0.3, BufferKind::Optimal, 0);
    let mut model = Model::new();
    for round in 0..40_u64 {
        for base in (0..4_000_u64).step_by(40) {
            for key in [base + round % 40, base + (round * 7) % 40] {
                fixture.tree.upsert(key, Op::Insert, &value(round, key)).unwrap();
                apply(&mut model, key, Op::Insert, &value(round, key));
            }
        }
    }
    let shape = compare(&*fixture.tree, &model, 4_000, "one block");
    assert!(shape.height >= 4 && shape.messages > 0, "{shape:?}");
}

#[test]
fn the_separate_root_is_distributed_to_several_nodes() {
    let fixture = tree(SEPARATE, 512, 0.5, BufferKind::Optimal, 0);
    let fan_out = fixture.tree.layout().plain.pivots_max;
    let (mut heights, mut inner_before) = (Vec::new(), 0);
    for key in 0..4_000_u64 {
        fixture.tree.upsert(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), Op::Insert, &value(key, 0)).unwrap();
        let shape = fixture.tree.verify().unwrap();
        if heights.last() != Some(&shape.height) {
            let new = shape.inner - inner_before;
            if shape.height == 4 {
                assert!(new > 2, "a root of {fan_out} pivots becomes more than two nodes: {shape:?}");
            }
            heights.push(shape.height);
        }
        inner_before = shape.inner;
    }
    assert!(heights.starts_with(&[1, 3, 4]), "one level after the other: {heights:?}");
}

#[test]
fn a_flush_policy_that_needs_equal_nodes_is_refused_with_a_dynamic_epsilon() {
    let sizes = Sizes { page: 256, value: 8, epsilon: 0.5 };
    let config = BufferConfig { kind: BufferKind::Optimal, page: 256, frames: 0, direct: false };
    for policy in FlushPolicy::ALL {
        let tree = create(TreeKind::BeTree(BeOptions { policy, ..DYNAMIC }), sizes, &config, "".as_ref());
        assert_eq!(tree.is_ok(), policy == FlushPolicy::Largest, "{}", policy.name());
    }
}
