//! Sorted loads in damaged or hostile files: a merge and a verification report them, and nothing panics.

use super::super::index::TreeCheckpoint;
use super::*;
use crate::index::pages::{Child, Root, TreeWriter};
use crate::index::{Checkpoint, RootRecord};
use crate::run::LeafBuilder;
use crate::run::slots::{CONTINUED, CONTINUES};

/// The seqno of the loads.
const AT: Seqno = Seqno(9);

/// A leaf with its lower bound, its flags, and the keys, kinds and seqnos of its messages.
type Plan = (&'static str, u16, Vec<(String, Kind, u64)>);

fn puts(keys: &[&str]) -> Vec<(String, Kind, u64)> {
    keys.iter().map(|key| ((*key).to_string(), Kind::Put, 0)).collect()
}

/// A tree with a few rows, and beside it the tree of a load with these leaves. With `has_buffer`, its root has a
/// buffer.
fn with_load(plan: &[Plan], has_buffer: bool) -> Bench<Tree> {
    let mut bench = bench(1, 64);
    let old = ["a", "aa", "b", "c", "d", "k"].map(|key| (key.as_bytes().to_vec(), Kind::Put, vec![0; 8]));
    apply(&mut bench, old.to_vec());
    let tree = &bench.tree;
    let mut writer = TreeWriter::new(&tree.source, tree.core.ids.next(), None);
    let mut leaves = Vec::new();
    for (from, flags, messages) in plan {
        let mut builder = LeafBuilder::default();
        for (key, kind, seqno) in messages {
            let value: &[u8] = if *kind == Kind::Delete { &[] } else { &[7; 8] };
            builder.push(&Entry { key: key.as_bytes(), seqno: Seqno(*seqno), kind: *kind, value });
        }
        leaves.push(Child::new(from.as_bytes().to_vec(), writer.leaf(&builder, *flags, false).unwrap()));
    }
    let mut buffer = None;
    if has_buffer {
        let mut builder = LeafBuilder::default();
        builder.push(&Entry { key: b"b", seqno: AT, kind: Kind::Put, value: &[7; 8] });
        buffer = Some(Root { page: writer.leaf(&builder, 0, false).unwrap(), level: 0 });
        leaves[0].pending = 20;
    }
    let mut page = writer.inner(&leaves, buffer.as_ref(), 1).unwrap();
    page.totals.newest = AT;
    let mut written = writer.finish().unwrap();
    let mut inner = tree.inner.lock();
    let mut world = inner.world.clone();
    world.pages.insert_all(written.extents());
    written.keep();
    (world.loaded, world.loaded_bytes, world.through) = (Some(Root { page, level: 1 }), u64::MAX, AT);
    let old = tree.publish(&mut inner, world, &[], &[]);
    tree.note_loaded(&inner);
    drop(inner);
    drop(old);
    bench
}

/// Whether a verification finds a problem.
fn is_reported(bench: &Bench<Tree>) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| verify(bench))).is_err()
}

/// Merges until the first error.
fn merged(bench: &Bench<Tree>) -> crate::base::Result<()> {
    let keep = Stripes { snapshots: Vec::new(), horizon: AT };
    while bench.tree.published.load().loaded.is_some() {
        assert!(bench.tree.debt().total() > 0, "a waiting load is work");
        bench.tree.step(1 << 20, &|| keep.clone())?;
    }
    Ok(())
}

#[test]
fn a_sound_load_is_merged() {
    let bench = with_load(&[("", 0, puts(&["a", "b"])), ("bb", 0, puts(&["bb", "c", "z"]))], false);
    verify(&bench);
    merged(&bench).unwrap();
    verify(&bench);
    let view = bench.tree.published.load_full();
    assert_eq!(view.totals().entries, 8);
}

#[test]
fn loads_that_break_a_rule_are_reported() {
    let (first, second) = (puts(&["a", "b"]), puts(&["d", "e"]));
    let changed = |kind, seqno| vec![("d".to_string(), kind, seqno), ("e".to_string(), Kind::Put, seqno)];
    let two = |messages| vec![("", 0, first.clone()), ("c", 0, messages)];
    let many: Vec<_> = (0..9000).map(|i| (format!("a{i:04}"), Kind::Put, 0)).collect();
    let cases: Vec<(&str, Vec<Plan>, bool)> = vec![
        ("a key below its leaf", two(puts(&["a", "e"])), false),
        ("a key above its leaf", vec![("", 0, puts(&["a", "cc"])), ("c", 0, second.clone())], false),
        ("all keys above their leaf", vec![("", 0, puts(&["z"])), ("c", 0, second.clone())], false),
        ("a delete", two(changed(Kind::Delete, 0)), false),
        ("an operand", two(changed(Kind::Merge, 0)), false),
        ("an older message", two(changed(Kind::Put, 5)), false),
        ("several messages of a key", vec![("", CONTINUES, first.clone()), ("b\0", CONTINUED, second.clone())], false),
        ("a buffer", two(second.clone()), true),
        ("a long leaf with keys above its bound", vec![("", 0, many), ("a5", 0, puts(&["z"]))], false),
    ];
    for (name, plan, has_buffer) in cases {
        let bench = with_load(&plan, has_buffer);
        assert!(is_reported(&bench), "{name}: verify");
        let e = merged(&bench).expect_err(name);
        assert!(e.is_corruption(), "{name}: {e}");
        assert!(bench.tree.step(1 << 20, &|| bench.stripes()).is_err(), "{name}: no memtable passes the load");
    }
}

/// The debt of a load with impossible sums does not overflow.
#[test]
fn impossible_sums_are_bounded() {
    let bench = with_load(&[("", 0, puts(&["a"])), ("c", 0, puts(&["d"]))], false);
    bench.tree.compact(&KeyRange::all()).unwrap();
    assert!(bench.tree.debt().total() >= 1 << 56);
    merged(&bench).unwrap();
    bench.tree.clear();
    assert_eq!(bench.tree.debt().total(), 0);
}

/// The description of a load that is alone, or newer than the root record, is refused.
#[test]
fn impossible_descriptions_are_refused() {
    for (is_alone, through) in [(false, AT), (true, AT), (false, Seqno(AT.0 - 1))] {
        let bench = with_load(&[("", 0, puts(&["a"])), ("c", 0, puts(&["d"]))], false);
        let mut checkpoint = TreeCheckpoint { tree: &bench.tree, world: bench.tree.inner.lock().world.clone() };
        if is_alone {
            checkpoint.world.root = None;
        }
        let root = Box::new(checkpoint).write(&Stripes::default).unwrap().root;
        let root = RootRecord { through, ..root };
        let opened = Tree::open(bench.core.clone(), sizes(512, 6), &root, &mut Prefetch::new(bench.core.data.clone()));
        match opened {
            Ok(tree) => assert!(!is_alone && through == AT && tree.debt().work_bytes > 0),
            Err(e) => assert!((is_alone || through < AT) && e.is_corruption(), "{e}"),
        }
    }
}
