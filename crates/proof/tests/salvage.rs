//! Tests how much data is lost through damage: the tests damage every page of a store, alone and together with another
//! page.
//!
//! 1. A single fault in the data file never prevents opening the store, for reading or for writing. Every lookup is
//!    right or returns an error that names file and offset. Keys outside the damaged block stay readable. `verify`
//!    finds the damage. If a copy of the block exists, the store repairs the block.
//! 2. `salvage` copies all readable data. Each key is either in the copy with its right value, or in the key range of a
//!    reported loss.
//! 3. A damaged store continues to work. Writes, compactions and checkpoints of undamaged data succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pandodb::check::{SalvageReport, salvage};
use pandodb::device::mem::MemDevice;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::run::Leaf;
use pandodb::space::BlockKind;
use pandodb::{Error, IndexKind, KeyRange, Result, Store};
use pandodb_proof::corrupt::{Rule, Specimen};
use pandodb_proof::drive::{Driver, Sizes, contents, options};
use pandodb_proof::golden::digest;
use pandodb_proof::indexes;
use pandodb_proof::script::{Mix, ROWS, Rng, Script, State};

const PAGE: u64 = 4096;
const DATA: &str = "data";
const SUPERBLOCKS: [u64; 2] = [0, 32];

/// The pages of a file that are not all zeros.
fn pages(image: &SimImage, name: &str) -> Vec<u64> {
    let all = image.ranges(name).into_iter().flat_map(|range| range.start / PAGE..range.end.div_ceil(PAGE));
    all.filter(|page| image.read(name, page * PAGE..(page + 1) * PAGE).iter().any(|byte| *byte != 0)).collect()
}

fn spoil(image: &SimImage, name: &str, page: u64, rng: &mut Rng) -> SimImage {
    let mut image = image.clone();
    let len = image.read(name, page * PAGE..(page + 1) * PAGE).len();
    let bytes: Vec<u8> = match rng.below(3) {
        0 => vec![0; len],
        1 => (0..len).map(|_| rng.next_u64() as u8).collect(),
        _ => {
            let mut bytes = image.read(name, page * PAGE..(page + 1) * PAGE);
            let sector = rng.below((len as u64 / 512).max(1)) as usize * 512;
            bytes[sector..(sector + 512).min(len)].fill(0xEE);
            bytes
        }
    };
    image.write(name, page * PAGE, &bytes);
    image
}

/// A closed store whose runs hold several versions and range deletes on several levels. Snapshots have kept the older
/// versions.
fn layered(seed: u64, index: IndexKind) -> Specimen {
    let script = Script::generate(seed, Mix { steps: 260, blobs: 6, lazy: 20, buffered: 60, keys: 500 });
    let (device, states) = (SimDevice::new(seed), script.states());
    let mut driver = Driver::open_with(Sizes::TINY, device.clone(), indexes::small(index)).expect("opens");
    let mut held = Vec::new();
    for (i, (step, before)) in script.steps.iter().zip(&states).enumerate() {
        driver.step(step, before).expect("no fault");
        if i % 15 == 0 {
            held.push(driver.store.snapshot());
        }
    }
    driver.store.settle().expect("settles");
    drop(held);
    driver.store.close().expect("closes");
    let right = states.into_iter().next_back().expect("not empty");
    Specimen::new(device.image(), SimImage::default(), right, Vec::new(), Rule::Exact)
}

/// The kind of the block whose header is at this page, if the page seems to begin a block.
fn kind(image: &SimImage, page: u64) -> Option<BlockKind> {
    let head = image.read(DATA, page * PAGE..page * PAGE + 16);
    let plausible = head[5..8] == [0; 3] && head[12..16] == [0; 4] && head[8..12] != [0; 4];
    BlockKind::from_u8(head[4]).filter(|_| plausible && !SUPERBLOCKS.contains(&page))
}

/// The keys of the leaf that begins at a page.
fn leaf_keys(image: &SimImage, page: u64) -> BTreeSet<Vec<u8>> {
    let head = image.read(DATA, page * PAGE..page * PAGE + 16);
    let count = u64::from(u32::from_le_bytes(head[8..12].try_into().expect("4 bytes")));
    let bytes = image.read(DATA, page * PAGE..(page + count) * PAGE);
    let Ok(leaf) = Leaf::check(&bytes) else { return BTreeSet::new() };
    let key = |i| {
        let mut key = Vec::new();
        leaf.key(i, &mut key);
        key
    };
    (0..leaf.len()).map(key).collect()
}

fn is_named(error: &Error) -> bool {
    matches!(error, Error::Corruption { file, .. } if file == DATA || file.starts_with("wal-"))
}

/// Looks up every key of the model. Returns the keys whose lookup is an error; panics on a wrong answer.
fn unreadable(store: &Store, right: &State, what: &str) -> BTreeSet<(String, Vec<u8>)> {
    let mut failed = BTreeSet::new();
    for (name, entries) in &right.0 {
        let keyspace = store.open_keyspace(name).expect("looks").expect("it is there");
        for (key, value) in entries {
            match keyspace.get(key) {
                Ok(Some(got)) => assert_eq!(got[..], value[..], "{what}: a wrong answer"),
                Ok(None) => panic!("{what}: {name} does not find {}", key.escape_ascii()),
                Err(e) => {
                    assert!(is_named(&e), "{what}: {e}");
                    failed.insert((name.clone(), key.clone()));
                }
            }
        }
    }
    failed
}

fn read_only(image: &SimImage) -> Result<Store> {
    Sizes::TINY.builder(SimDevice::from_image(image, 1)).read_only(true).create(false).open()
}

fn salvaged(image: &SimImage, include_stale: bool) -> Result<(SalvageReport, State)> {
    let out = Store::builder("out").device(MemDevice::new()).background_threads(0).memory_budget(4 << 20).open()?;
    let report = salvage(Sizes::TINY.builder(SimDevice::from_image(image, 1)), &out, include_stale)?;
    let state = contents(&out)?;
    let verdict = out.verify()?;
    assert!(verdict.is_clean(), "{verdict:?}");
    Ok((report, state))
}

/// Compares a salvaged copy with the model. Returns the missing keys; panics if a missing key is in no reported loss.
fn judge(report: &SalvageReport, copy: &State, right: &State, what: &str) -> BTreeSet<(String, Vec<u8>)> {
    let losses: BTreeMap<&str, Vec<&KeyRange>> = report
        .keyspaces
        .iter()
        .map(|keyspace| (keyspace.keyspace.as_str(), keyspace.losses.iter().map(|loss| &loss.range).collect()))
        .collect();
    let none = BTreeMap::new();
    let mut missing = BTreeSet::new();
    for (name, entries) in &right.0 {
        let Some(got) = copy.0.get(name) else {
            // The creation of the keyspace may be lost only if the log was cut.
            assert!(report.log_cut.is_some(), "{what}: keyspace {name} is missing");
            missing.extend(entries.keys().map(|key| (name.clone(), key.clone())));
            continue;
        };
        for (key, value) in entries {
            match got.get(key) {
                Some(found) => assert_eq!(found, value, "{what}: {name} {} is wrong", key.escape_ascii()),
                None => {
                    let listed = losses[name.as_str()].iter().any(|range| range.contains(key));
                    assert!(listed, "{what}: {name} {} is lost but not reported", key.escape_ascii());
                    missing.insert((name.clone(), key.clone()));
                }
            }
        }
    }
    for (name, entries) in &copy.0 {
        let expected = right.0.get(name).unwrap_or(&none);
        let risen = entries.keys().find(|key| !expected.contains_key(*key));
        assert!(risen.is_none(), "{what}: {name} {risen:?} is in the copy but was deleted");
    }
    for (keyspace, salvaged) in report.keyspaces.iter().map(|keyspace| (&keyspace.keyspace, keyspace)) {
        assert_eq!(salvaged.entries as usize, copy.0[keyspace].len());
        assert!(salvaged.losses.iter().all(|loss| is_named(&loss.reason)), "{what}: {:?}", salvaged.losses);
    }
    missing
}

/// Damages one page of a closed store and checks reads, `verify`, `salvage` and writes. `found` counts the reported
/// damage by kind.
fn examine(specimen: &Specimen, page: u64, rng: &mut Rng, found: &mut BTreeMap<&'static str, u64>) {
    let kind = kind(&specimen.image, page);
    let is_tree_leaf = matches!(kind, Some(BlockKind::TreeLeaf | BlockKind::TreeCompressedLeaf));
    let what = format!("page {page} ({kind:?})");
    let image = spoil(&specimen.image, DATA, page, rng);
    // The store is opened read-only, so that it repairs no block.
    let store = read_only(&image).unwrap_or_else(|e| panic!("{what}: a single fault prevents opening the store: {e}"));
    let failed = unreadable(&store, &specimen.right, &what);
    let has_buffers = store.keyspaces().iter().any(|keyspace| keyspace.index.kind().name() == "betree");
    let report = store.verify().expect("looks");
    report.problems.iter().for_each(|problem| assert!(is_named(problem), "{what}: {problem}"));
    drop(store);
    let (report_of, copy) = salvaged(&image, false).unwrap_or_else(|e| panic!("{what}: {e}"));
    let missing = judge(&report_of, &copy, &specimen.right, &what);
    assert!(missing.is_subset(&failed), "{what}: salvage lost the readable {:?}", missing.difference(&failed).next());
    assert!(failed.is_empty() || !report.is_clean(), "{what}: lookups fail, but verify reports nothing");
    assert!(report_of.is_complete() || !report.is_clean(), "{what}: salvage lost data, but verify reports nothing");
    match kind {
        Some(BlockKind::RunLeaf | BlockKind::TreeLeaf) => {
            let keys = leaf_keys(&specimen.image, page);
            let between = keys.first().zip(keys.last());
            let strangers = failed.iter().filter(|(_, key)| between.is_none_or(|(a, b)| key < a || b < key)).count();
            // The filter of the run has false positives for about one key in a hundred, whose lookups then read this
            // leaf. A leaf of a buffer is read for all keys of a part of the tree, also for those that it does not hold.
            let rows: usize = specimen.right.0.values().map(BTreeMap::len).sum();
            let most = if has_buffers { rows / 2 } else { 2 };
            assert!(strangers <= most, "{what}: {strangers} keys outside the leaf cannot be read");
        }
        // This test does not decompress the leaf, so it does not know the keys of the leaf.
        Some(BlockKind::RunCompressedLeaf | BlockKind::TreeCompressedLeaf) => {}
        Some(BlockKind::RunInner) => assert!(report_of.is_complete(), "{what}: salvage must read leaves without it"),
        Some(BlockKind::RunTombstones) => {}
        // The block has a second copy, or it is a filter or a footer. No data may be lost.
        Some(_) => assert!(failed.is_empty() && report_of.is_complete(), "{what}: {failed:?} {report_of:?}"),
        None => {}
    }
    *found.entry(kind.map_or("none", BlockKind::name)).or_default() += u64::from(!report.is_clean());
    // Opening for writing repairs a block that has a second copy.
    let (device, store) = Sizes::TINY.open_image(&image, 1).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(unreadable(&store, &specimen.right, &what), failed);
    if kind.is_some_and(|kind| kind.is_node() || kind == BlockKind::LargeValueMap) {
        assert!(store.verify().expect("looks").is_clean(), "{what}: not repaired");
    }
    let ks = store.open_keyspace(ROWS).expect("looks").expect("it is there");
    ks.put("beside", "damage").unwrap_or_else(|e| panic!("{what}: a put failed: {e}"));
    match store.checkpoint() {
        // A tree whose leaves are rewritten cannot apply a message to a damaged leaf. The message stays in the log.
        Err(e) if is_tree_leaf && is_named(&e) => return,
        done => done.unwrap_or_else(|e| panic!("{what}: a checkpoint failed: {e}")),
    }
    drop(ks);
    store.close().expect("closes");
    let store = Sizes::TINY.open(device).unwrap_or_else(|e| panic!("{what}: {e}"));
    let later = unreadable(&store, &specimen.right, &what);
    // A damaged leaf of a buffer is read for all keys between its neighbours, and jobs replace these. Each answer is checked
    // above.
    assert!(has_buffers || later == failed, "{what}: after a checkpoint {later:?} are unreadable, before {failed:?}");
}

#[test]
fn a_single_fault_never_prevents_opening_and_loses_at_most_its_block() {
    let mut found = BTreeMap::new();
    let layered = IndexKind::all().map(|index| (32, layered(32, index)));
    for (seed, specimen) in [(31, Specimen::seeded(31, true))].into_iter().chain(layered) {
        let mut rng = Rng(seed);
        let clean = read_only(&specimen.image).expect("opens").verify().expect("looks");
        assert!(clean.is_clean() && clean.nodes > 2 && clean.blobs > 0, "{clean:?}");
        let (report, copy) = salvaged(&specimen.image, false).expect("copies");
        assert!(report.is_complete() && copy == specimen.right, "a sound store was not copied completely");
        let nodes = |found: &BTreeMap<&str, u64>| {
            ["trunk node", "level table", "nested node", "description of a tree"]
                .iter()
                .filter_map(|name| found.get(name))
                .sum::<u64>()
        };
        let before = nodes(&found);
        pages(&specimen.image, DATA).into_iter().for_each(|page| examine(&specimen, page, &mut rng, &mut found));
        assert_eq!(nodes(&found) - before, clean.nodes, "damage to a copy of a node was not found");
    }
    println!("pages whose damage was reported: {found:?}");
    for kind in [
        "trunk node",
        "level table",
        "nested node",
        "map of pages",
        "catalogue",
        "leaf block",
        "run footer",
        "tombstone block",
        "filter block",
        "inner block",
    ] {
        assert!(found.get(kind).is_some_and(|count| *count > 0), "no {kind} was damaged: {found:?}");
    }
}

#[test]
fn two_faults_lose_only_what_salvage_reports() {
    let (mut incomplete, mut refused) = (0, 0);
    for seed in [33, 34, 35] {
        let specimen = Specimen::seeded(seed, true);
        let mut rng = Rng(seed);
        let live = pages(&specimen.image, DATA);
        for round in 0..150 {
            let a = live[rng.below(live.len() as u64) as usize];
            // In every third case, damage two blocks of the same kind. They may be the two copies of one metadata
            // block.
            let alike: Vec<u64> = live
                .iter()
                .copied()
                .filter(|&b| b != a && kind(&specimen.image, b) == kind(&specimen.image, a))
                .collect();
            let b = match round % 3 {
                0 if !alike.is_empty() => alike[rng.below(alike.len() as u64) as usize],
                _ => live[rng.below(live.len() as u64) as usize],
            };
            let what = format!("seed {seed}: pages {a} and {b}");
            let image = spoil(&spoil(&specimen.image, DATA, a, &mut rng), DATA, b, &mut rng);
            match salvaged(&image, false) {
                Ok((report, copy)) => {
                    judge(&report, &copy, &specimen.right, &what);
                    incomplete += u64::from(!report.is_complete());
                }
                Err(e) => {
                    assert!(is_named(&e), "{what}: {e}");
                    // Salvage may fail only if both superblocks or both copies of the catalogue are damaged.
                    let catalogues = [a, b].map(|page| kind(&specimen.image, page) == Some(BlockKind::Catalog));
                    let superblocks = SUPERBLOCKS.contains(&a) && SUPERBLOCKS.contains(&b);
                    assert!(superblocks || catalogues == [true, true], "{what}: {e}");
                    refused += 1;
                }
            }
            if let Ok(store) = read_only(&image) {
                unreadable(&store, &specimen.right, &what);
            }
        }
    }
    println!("{incomplete} salvages of 450 lost something, {refused} had no superblock or no catalogue");
    assert!(incomplete > 100);
}

/// Damages both copies of each index node, one node after the other.
#[test]
fn losing_both_copies_of_a_node_loses_only_its_key_range() {
    let (mut lost, mut whole) = (0, 0);
    for seed in 45..49 {
        let (some, others) = lose_nodes(&Specimen::seeded(seed, true));
        lost += some;
        whole += others;
    }
    assert!(lost >= 6 && whole >= 6, "{lost} {whole}");
}

/// Damages both copies of each node of a store, one node after the other. Returns two numbers: in how many cases data
/// was lost, and in how many cases some keys stayed readable.
fn lose_nodes(specimen: &Specimen) -> (usize, usize) {
    let nodes: Vec<u64> = pages(&specimen.image, DATA)
        .into_iter()
        .filter(|&page| kind(&specimen.image, page).is_some_and(BlockKind::is_node))
        .collect();
    let body = |page: u64| specimen.image.read(DATA, page * PAGE + 16..(page + 1) * PAGE);
    let mut rng = Rng(36);
    let (mut lost, mut whole) = (0, 0);
    for (i, &a) in nodes.iter().enumerate() {
        for &b in nodes[i + 1..].iter().filter(|&&b| body(a) == body(b)) {
            let what = format!("node at {a} and {b}");
            let image = spoil(&spoil(&specimen.image, DATA, a, &mut rng), DATA, b, &mut rng);
            let (report, copy) = salvaged(&image, false).expect("copies");
            let missing = judge(&report, &copy, &specimen.right, &what);
            let store = read_only(&image).unwrap_or_else(|e| panic!("{what}: opens for reading: {e}"));
            let failed = unreadable(&store, &specimen.right, &what);
            assert!(missing.is_subset(&failed), "{what}");
            let readable = specimen.right.0.values().map(BTreeMap::len).sum::<usize>() - failed.len();
            whole += usize::from(readable > 0);
            lost += usize::from(!report.is_complete());
            if !report.is_complete() {
                assert!(!store.verify().expect("looks").is_clean(), "{what}");
                drop(store);
                let refused = Sizes::TINY.open_image(&image, 1);
                assert!(refused.is_err_and(|e| is_named(&e)), "{what}: opened for writing with a lost node");
            }
        }
    }
    (lost, whole)
}

/// Damages both copies of every node of a map of large values, one node at a time. Every read still works, because
/// messages contain the addresses of the values.
#[test]
fn a_map_of_large_values_lost_in_both_copies_costs_no_read_and_no_writer_goes_on() {
    let (mut lost, mut levels) = (0, 0);
    for seed in 45..48 {
        let specimen = Specimen::fragmented(seed);
        let is_of_map = |page: &u64| kind(&specimen.image, *page) == Some(BlockKind::LargeValueMap);
        let nodes: Vec<u64> = pages(&specimen.image, DATA).into_iter().filter(is_of_map).collect();
        let body = |page: u64| specimen.image.read(DATA, page * PAGE + 16..(page + 1) * PAGE);
        // The height is the first byte after the length field.
        levels = levels.max(nodes.iter().map(|page| body(*page)[4] + 1).max().unwrap_or(0));
        let mut rng = Rng(seed);
        // Two nodes may have the same body, so each page is in one pair.
        let mut paired = BTreeSet::new();
        for (i, &a) in nodes.iter().enumerate() {
            let other = nodes[i + 1..].iter().find(|&&b| body(a) == body(b) && !paired.contains(&b));
            if let Some(&b) = other.filter(|_| !paired.contains(&a)) {
                paired.extend([a, b]);
                let what = format!("seed {seed}: node of a map at {a} and {b}");
                let image = spoil(&spoil(&specimen.image, DATA, a, &mut rng), DATA, b, &mut rng);
                let store = read_only(&image).unwrap_or_else(|e| panic!("{what}: opens for reading: {e}"));
                assert!(unreadable(&store, &specimen.right, &what).is_empty(), "{what}");
                let is_reported = !store.verify().expect("looks").is_clean();
                drop(store);
                let (report, copy) = salvaged(&image, false).expect("copies");
                assert!(report.is_complete() && copy == specimen.right, "{what}: salvage needs no map");
                // If the damage is not reported, the node is obsolete, because a later node has replaced it.
                if is_reported {
                    let refused = Sizes::TINY.open_image(&image, 1);
                    assert!(refused.is_err_and(|e| is_named(&e)), "{what}: pages of values could be overwritten");
                    lost += 1;
                }
            }
        }
    }
    println!("{lost} nodes in use were lost, of maps of up to {levels} levels");
    assert!(lost >= 30 && levels >= 3, "{lost} {levels}");
}

/// A killed store that has much of its history only in its log, and the states of this history.
fn logged(seed: u64) -> (SimImage, Vec<State>) {
    let script = Script::generate(seed, Mix { steps: 120, blobs: 6, lazy: 20, buffered: 60, keys: 100 });
    let (device, states) = (SimDevice::new(seed), script.states());
    let mut driver = Driver::open(Sizes::LOGGY, device.clone()).expect("opens");
    script.steps.iter().zip(&states).for_each(|(step, before)| driver.step(step, before).expect("no fault"));
    let killed = device.image();
    driver.store.close().expect("closes");
    (killed, states)
}

#[test]
fn a_damaged_log_yields_an_earlier_state_of_each_keyspace() {
    let (mut cut, mut whole) = (0, 0);
    for seed in [37, 38, 39] {
        let (image, states) = logged(seed);
        let of = |name: &str, entries: &BTreeMap<Vec<u8>, Vec<u8>>| {
            digest(&State([(name.to_owned(), entries.clone())].into()))
        };
        let moments = states.iter().flat_map(|state| state.0.iter().map(|(name, entries)| of(name, entries)));
        let moments: BTreeSet<u64> = moments.collect();
        let mut rng = Rng(seed);
        let names: Vec<String> =
            image.files().into_iter().map(|(name, _)| name).filter(|name| name.starts_with("wal-")).collect();
        for name in names {
            for page in pages(&image, &name) {
                let what = format!("seed {seed}: {name} page {page}");
                let damaged = spoil(&image, &name, page, &mut rng);
                let (report, copy) = salvaged(&damaged, false).unwrap_or_else(|e| panic!("{what}: {e}"));
                let complete = report.is_complete();
                for keyspace in &report.keyspaces {
                    assert!(
                        keyspace.losses.iter().all(|loss| loss.after.is_some() && loss.range == KeyRange::all()),
                        "{what}"
                    );
                    assert!(keyspace.losses.iter().all(|loss| is_named(&loss.reason)), "{what}");
                }
                // Each keyspace has the contents of some earlier state.
                *if complete { &mut whole } else { &mut cut } += 1;
                for (name, entries) in &copy.0 {
                    assert!(moments.contains(&of(name, entries)), "{what}: {name} never had these contents");
                }
            }
        }
    }
    println!("{cut} logs were cut, {whole} were not");
    assert!(cut > 5);
}

/// Returns a closed store of one keyspace with one damaged leaf, the contents of the store, and the keys of that leaf.
fn one_bad_leaf() -> (Arc<SimDevice>, State, BTreeSet<Vec<u8>>) {
    let device = SimDevice::new(40);
    let store = Sizes::TINY.open(device.clone()).expect("opens");
    let mut state = State::default();
    let rows = store.keyspace_with(ROWS, options(ROWS)).expect("made");
    let entries = state.0.entry(ROWS.to_owned()).or_default();
    for i in 0..600u64 {
        let (key, value) = (format!("key{:05}", i * 7 % 600).into_bytes(), vec![i as u8; 60]);
        rows.put(&key, &value).expect("written");
        entries.insert(key, value);
    }
    rows.compact(..).expect("compacts");
    drop(rows);
    store.close().expect("closes");
    let image = device.image();
    let leaf = pages(&image, DATA)
        .into_iter()
        .filter(|&page| kind(&image, page) == Some(BlockKind::RunLeaf))
        .map(|page| (page, leaf_keys(&image, page)));
    let (page, keys) =
        leaf.max_by_key(|(_, keys)| keys.iter().filter(|key| key.as_slice() < b"key00300").count()).expect("a leaf");
    let mut damaged = image.clone();
    damaged.write(DATA, page * PAGE, &[0xEE; PAGE as usize]);
    (SimDevice::from_image(&damaged, 40), state, keys)
}

#[test]
fn a_store_with_a_damaged_leaf_continues_to_work() {
    let (device, mut state, bad) = one_bad_leaf();
    let mut store = Sizes::TINY.open(device.clone()).expect("opens");
    let (mut told, mut stuck) = (0, 0);
    for round in 0..4u64 {
        let rows = store.open_keyspace(ROWS).expect("looks").expect("it is there");
        let other = store.keyspace("other").expect("made");
        for i in 0..400u64 {
            let (key, value) = (format!("key{:05}", (i * 11 + round) % 600).into_bytes(), vec![round as u8; 50]);
            rows.put(&key, &value).expect("a put succeeds");
            state.0.get_mut(ROWS).expect("made").insert(key.clone(), value.clone());
            other.put(&key, &value).expect("a put succeeds");
            state.0.entry("other".to_owned()).or_default().insert(key, value);
        }
        told += u64::from(rows.compact(..).is_err_and(|e| is_named(&e)));
        // The compaction has reported the damage. After that, background work skips the damaged run and counts no debt
        // for it.
        store.settle().expect("the rest is undamaged");
        assert_eq!(store.debt(), 0);
        let stats = store.stats().expect("looks").keyspaces.remove(0).index;
        stuck = stuck.max(stats.damaged);
        assert!(stats.figure("max_runs_on_path") <= 24, "too many runs on a path: {stats:?}");
        for (name, key) in unreadable(&store, &state, "with a damaged leaf") {
            assert!(name == ROWS && bad.contains(&key), "{name} {} is not in the leaf", key.escape_ascii());
        }
        other.compact(..).expect("another keyspace is not affected");
        drop((rows, other));
        store.close().expect("closes");
        store = Sizes::TINY.open(device.clone()).expect("opens");
    }
    assert!(told > 0 && stuck > 0, "reported {told} times, {stuck} runs stuck");
    drop(store);
    let (report, copy) = salvaged(&device.image(), false).expect("copies");
    assert!(judge(&report, &copy, &state, "with a damaged leaf").len() <= bad.len());
}

#[test]
fn salvage_copies_stale_values_only_on_request() {
    let device = SimDevice::new(41);
    let store = Sizes::TINY.open(device.clone()).expect("opens");
    let rows = store.keyspace_with(ROWS, options(ROWS)).expect("made");
    let write = |value: &str| (0..300u64).for_each(|i| rows.put(format!("key{i:05}"), value).expect("written"));
    write("old and gone");
    rows.compact(..).expect("compacts");
    // A snapshot prevents a compaction from dropping the range tombstone.
    let then = store.snapshot();
    rows.put("key00000", "new").expect("written");
    rows.delete_range("key00010".."key00020").expect("written");
    rows.put("key00299", "new").expect("written");
    rows.compact(..).expect("compacts");
    for i in 0..150u64 {
        rows.put(format!("zzz{i:05}"), [1; 30]).expect("written");
    }
    rows.put("key00200", "newest").expect("written");
    drop((rows, then));
    let right = contents(&store).expect("reads");
    store.close().expect("closes");
    let image = device.image();
    // Without the range tombstones of a run, salvage does not know which keys of the run are deleted.
    let page = pages(&image, DATA).into_iter().find(|&page| kind(&image, page) == Some(BlockKind::RunTombstones));
    let mut damaged = image.clone();
    damaged.write(DATA, page.expect("it was packed") * PAGE, &[0xEE; PAGE as usize]);
    let (report, copy) = salvaged(&damaged, false).expect("copies");
    let missing = judge(&report, &copy, &right, "tombstones").len();
    assert!(missing > 100, "{missing} missing");
    assert!(copy.0[ROWS].len() >= 100, "data newer than the damaged run, or outside its range, must be copied");
    let (report, copy) = salvaged(&damaged, true).expect("copies");
    let stale = report.keyspaces[0].stale;
    assert!(
        stale as usize >= missing && copy.0[ROWS].contains_key(&b"key00015"[..]),
        "{stale} stale values: deleted keys must be among them"
    );
    assert!(!report.is_complete(), "stale values must still be reported as a loss");
}

#[test]
fn a_target_with_keyspaces_is_refused() {
    let specimen = Specimen::seeded(42, true);
    let (_, out) = Sizes::TINY.open_image(&specimen.image, 1).expect("opens");
    let from = Sizes::TINY.builder(SimDevice::from_image(&specimen.image, 1));
    assert!(matches!(salvage(from, &out, false), Err(Error::InvalidArgument { .. })));
}

/// The canary: the check must detect a loss that is not reported.
#[test]
#[should_panic(expected = "is lost but not reported")]
fn a_loss_that_is_not_reported_is_detected() {
    let specimen = Specimen::seeded(31, true);
    let mut rng = Rng(1);
    for page in pages(&specimen.image, DATA) {
        let (mut report, copy) = salvaged(&spoil(&specimen.image, DATA, page, &mut rng), false).expect("copies");
        report.keyspaces.iter_mut().for_each(|keyspace| keyspace.losses.clear());
        judge(&report, &copy, &specimen.right, "canary");
    }
}
