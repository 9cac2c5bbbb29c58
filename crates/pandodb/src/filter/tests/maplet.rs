//! Tests of maplets and merges.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::hash;
use super::quotient::page_of;
use crate::base::{PAGE, Result};
use crate::device::AlignedBuf;
use crate::filter::maplet::{Input, MapletBuilder, Merge, values};
use crate::filter::page::{Fingerprint, PageEncoder};
use crate::filter::quotient::{QuotientBuilder, QuotientMeta, ask};

type Built = (QuotientMeta, AlignedBuf);

fn build(max: u8, room: u64, entries: impl IntoIterator<Item = (u64, u8)>) -> Built {
    let mut builder = MapletBuilder::new(max).with_room(room);
    entries.into_iter().for_each(|(hash, value)| builder.add(hash, value));
    builder.build()
}

fn look((meta, buf): &Built, hash: u64) -> Vec<u8> {
    let mut found = Vec::new();
    assert!(values(page_of(*meta, buf, hash), hash, &mut |value| found.push(value)));
    assert!(found.is_sorted_by(|a, b| a < b), "ascending, each once");
    assert_eq!(ask(page_of(*meta, buf, hash), hash), !found.is_empty());
    found
}

fn merge(inputs: &[(&Built, Vec<Option<u8>>)], room: u64) -> Result<Built> {
    let inputs = inputs.iter().map(|((meta, buf), values)| {
        let pages = buf.chunks_exact(PAGE).map(Ok);
        Input { meta: *meta, pages, values: values.clone() }
    });
    let mut merge = Merge::new(inputs.collect(), room)?;
    let mut buf = AlignedBuf::zeroed(merge.meta().pages as usize);
    for page in buf.chunks_exact_mut(PAGE) {
        assert!(merge.next_page(page)?);
    }
    assert!(!merge.next_page(&mut [0; PAGE])?);
    Ok((merge.meta(), buf))
}

/// The average number of wrong values for a hash that was never added.
fn wrong(built: &Built, tries: u64) -> f64 {
    (0..tries).map(|i| look(built, hash(1 << 40 | i)).len()).sum::<usize>() as f64 / tries as f64
}

/// The keys of 8 runs are either the same in all runs or different in each run.
#[test]
fn wrong_values_are_one_in_256_at_any_size() {
    for (runs, shared, keys) in
        [(8u64, false, 1_000u64), (8, true, 8_000), (64, true, 64_000), (8, false, 100_000), (16, true, 1_000_000)]
    {
        let key = |i: u64| if shared { i / runs } else { i };
        let built = build((runs - 1) as u8, 0, (0..keys).map(|i| (hash(key(i)), (i % runs) as u8)));
        assert!((0..keys).all(|i| look(&built, hash(key(i))).contains(&((i % runs) as u8))), "a value is missing");
        let rate = wrong(&built, 500_000);
        assert!(rate <= 1.0 / 256.0, "1/{:.0} with {keys} entries of {runs} runs", 1.0 / rate);
    }
}

#[test]
fn maplets_of_no_entry_one_entry_and_all_values() {
    let (meta, buf) = build(9, 0, []);
    assert!(meta.pages == 0 && buf.is_empty());
    let one = build(0, 0, [(5, 0), (5, 0)]);
    assert_eq!((one.0.entries, look(&one, 5)), (1, vec![0]));
    let all = build(255, 0, (0..=255).rev().map(|value| (hash(1), value)));
    assert_eq!(look(&all, hash(1)), (0..=255).collect::<Vec<u8>>());
}

/// The hashes are so similar that pages drop bits until all fingerprints are equal, but every value is still found.
#[test]
fn skewed_entries_are_never_lost() {
    for shift in [4, 40, 50, 63] {
        let entries: Vec<(u64, u8)> = (0..60_000).map(|i| (hash(i) >> shift, (i % 256) as u8)).collect();
        let built = build(255, 0, entries.iter().copied());
        assert!(entries.iter().all(|&(hash, value)| look(&built, hash).contains(&value)), "skewed by {shift}");
    }
}

/// Filters that are built with room merge into a maplet that is as precise as a maplet that is built from the hashes.
#[test]
fn a_merge_of_filters_answers_as_a_maplet() {
    let (runs, each) = (8u64, 20_000u64);
    // Neighbouring runs share half of their keys.
    let keys = |run: u64| run * each / 2..run * each / 2 + each;
    let filters: Vec<Built> = (0..runs)
        .map(|run| {
            let mut builder = QuotientBuilder::new().with_room(runs * each);
            keys(run).for_each(|i| builder.add(hash(i)));
            builder.build()
        })
        .collect();
    let inputs: Vec<_> = (0..).zip(&filters).map(|(run, filter)| (filter, vec![Some(run)])).collect();
    let merged = merge(&inputs, 0).expect("sound pages");
    for run in 0..runs {
        assert!(keys(run).all(|i| look(&merged, hash(i)).contains(&(run as u8))), "a key of run {run} is lost");
    }
    let rate = wrong(&merged, 500_000);
    assert!(rate <= 1.0 / 256.0, "1/{:.0}", 1.0 / rate);
    let direct = build(7, 0, (0..runs).flat_map(|run| keys(run).map(move |i| (hash(i), run as u8))));
    assert_eq!(merged.0.bits, direct.0.bits);
    assert!(merged.1.pages() <= direct.1.pages() + 1, "{} and {} pages", merged.1.pages(), direct.1.pages());
}

/// Without room, a merge is as precise as the fingerprints of its inputs. An input with much shorter fingerprints does
/// not make the other inputs less precise.
#[test]
fn short_fingerprints_only_affect_their_own_input() {
    let small = build(0, 0, (0..100).map(|i| (hash(i), 0)));
    let large = build(0, 0, (1_000..101_000).map(|i| (hash(i), 0)));
    let merged = merge(&[(&small, vec![Some(0)]), (&large, vec![Some(1)])], 0).expect("sound pages");
    assert!((0..100).all(|i| look(&merged, hash(i)).contains(&0)));
    assert!((1_000..101_000).all(|i| look(&merged, hash(i)).contains(&1)));
    // The small input has the same false-positive rate as before the merge, 1/512. The pages of the large input dropped
    // bits to make room for the small input.
    let rate = wrong(&merged, 400_000);
    assert!(rate < 1.0 / 50.0, "1/{:.0}", 1.0 / rate);
}

#[test]
fn values_are_renumbered_and_dropped() {
    let a = build(3, 1 << 20, [(hash(1), 0), (hash(1), 3), (hash(2), 1)]);
    let b = build(1, 1 << 20, [(hash(1), 1), (hash(3), 0)]);
    let merged =
        merge(&[(&a, vec![Some(100), Some(101), None, None]), (&b, vec![Some(7), Some(6)])], 0).expect("sound");
    assert_eq!(look(&merged, hash(1)), [6, 100]);
    assert_eq!((look(&merged, hash(2)), look(&merged, hash(3))), (vec![101], vec![7]));
    assert_eq!(merged.0.entries, 4);
    let none = merge(&[(&a, vec![None; 4])], 0).expect("sound");
    assert_eq!((none.0.entries, look(&none, hash(1))), (0, vec![]));
    assert_eq!(merge(&[], 0).expect("nothing to read").0.pages, 0);
}

#[test]
fn damaged_inputs_are_errors() {
    let (meta, buf) = build(1, 0, (0..20_000).map(|i| (hash(i), 1)));
    let all = vec![Some(0), Some(1)];
    let fails = |broken: &Built, values: Vec<Option<u8>>| {
        assert!(merge(&[(broken, values)], 0).is_err_and(|error| error.is_corruption()));
    };
    let changed = |change: fn(&mut [u8])| {
        let mut broken = AlignedBuf::from_bytes(&buf);
        change(&mut broken);
        (meta, broken)
    };
    fails(&changed(|buf| buf[..PAGE].fill(0)), all.clone());
    fails(&changed(|buf| buf[PAGE + 16] ^= 1), all.clone());
    fails(&changed(|buf| buf[64] ^= 1), all.clone());
    fails(&changed(|buf| buf[26] ^= 1), all.clone());
    fails(&changed(|buf| buf.copy_within(PAGE..2 * PAGE, 0)), all.clone());
    fails(&(meta, AlignedBuf::from_bytes(&buf[..PAGE])), all);
    fails(&(meta, AlignedBuf::from_bytes(&buf)), vec![Some(0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares merges (some of whose inputs are merges themselves), with any fingerprint lengths and values, with a
    /// map.
    #[test]
    fn merges_lose_nothing(
        runs in prop::collection::vec(
            (prop::collection::vec((prop_oneof![any::<u64>(), any::<u64>().prop_map(|h| h >> 45)], 0u8..4), 0..3_000),
             prop_oneof![Just(0u64), 1u64..1 << 30]),
            1..5,
        ),
        room in prop_oneof![Just(0u64), 1u64..1 << 30],
    ) {
        let built: Vec<Built> = runs.iter().map(|(entries, room)| build(3, *room, entries.iter().copied())).collect();
        let renumber = |run: usize| -> Vec<Option<u8>> { (0..4).map(|v| Some(run as u8 * 4 + v)).collect() };
        let inputs: Vec<_> = built.iter().enumerate().map(|(run, built)| (built, renumber(run))).collect();
        let once = merge(&inputs, room).expect("sound pages");
        let identity: Vec<Option<u8>> = (0..=255).map(Some).collect();
        let twice = merge(&[(&once, identity.clone()), (&once, identity)], 0).expect("sound pages");
        let mut expected: BTreeMap<u64, BTreeSet<u8>> = BTreeMap::new();
        for (run, (entries, _)) in runs.iter().enumerate() {
            entries.iter().for_each(|&(hash, value)| { expected.entry(hash).or_default().insert(run as u8 * 4 + value); });
        }
        for (&hash, values) in &expected {
            for result in [&once, &twice] {
                let found = look(result, hash);
                prop_assert!(values.iter().all(|value| found.contains(value)), "{values:?} {found:?}");
            }
        }
    }
}

#[test]
fn inconsistent_descriptions_are_rejected() {
    let mut page = vec![0; PAGE];
    let print = Fingerprint { low: 0, high: 0, value: 0 };
    PageEncoder::default().encode(&mut page, (0, 1), 1, 0, &[print]);
    // Each input alone has a valid description, with one bit of a page per entry. Together the inputs have more entries
    // than there are fingerprints of 1 bit.
    let meta = QuotientMeta { pages: 1, bits: 1, entries: 32_768 };
    assert!(meta.is_sound());
    let input = |value| Input { meta, pages: [Ok(page.clone())].into_iter(), values: vec![Some(value)] };
    assert!(Merge::new((0..4).map(input).collect(), 0).unwrap_err().is_corruption());
}
