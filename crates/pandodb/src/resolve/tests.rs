//! Tests of the main invariant on random histories, and of the laws of the built-in operators.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::base::{
    BlobRef, Entry, EntryBlock, Error, KeyRange, Kind, MAX_OPERAND, MAX_VALUE, PageNo, RangeTombstone, Seqno,
};

const KEY: &[u8] = b"key";

/// An event at one seqno.
#[derive(Clone, Debug)]
enum Event {
    Message(Kind, Vec<u8>),
    /// A range delete that covers the key.
    Range,
}

type History = Vec<(Seqno, Event)>;

fn blob(seqno: u64) -> Vec<u8> {
    let mut out = Vec::new();
    BlobRef { page: PageNo(seqno), len: 5000, crc: 7 }.encode(&mut out);
    out
}

/// A random short history, newest first. The first seqno is 1. The difference between consecutive seqnos is 1, 2 or 3,
/// and is constant within a history.
fn history(max: usize) -> impl Strategy<Value = History> {
    let event = prop_oneof![
        3 => any::<u8>().prop_map(|n| (Kind::Put, i64::from(n).to_le_bytes().to_vec())),
        2 => Just((Kind::Delete, Vec::new())),
        6 => any::<i8>().prop_map(|n| (Kind::Merge, i64::from(n).to_le_bytes().to_vec())),
        1 => Just((Kind::BlobPut, Vec::new())),
        1 => Just((Kind::RangeDelete, Vec::new())),
    ];
    (prop::collection::vec(event, 0..max), 1u64..4).prop_map(|(events, gap)| {
        let place = |(i, (kind, value))| {
            let seqno = 1 + i as u64 * gap;
            let event = match kind {
                Kind::RangeDelete => Event::Range,
                Kind::BlobPut => Event::Message(kind, blob(seqno)),
                kind => Event::Message(kind, value),
            };
            (Seqno(seqno), event)
        };
        events.into_iter().enumerate().map(place).rev().collect()
    })
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Value(Vec<u8>),
    /// A large value. The fields are its reference and, if there are operands, the result of applying them to a
    /// substitute value.
    Large(Vec<u8>, Option<Vec<u8>>),
}

impl From<Option<Vec<u8>>> for Seen {
    fn from(value: Option<Vec<u8>>) -> Seen {
        value.map_or(Seen::Nothing, Seen::Value)
    }
}

fn read(history: &History, at: Seqno, operator: &Operator) -> Seen {
    let mut gather = Gather::new();
    let mut base = None;
    for (_, event) in history.iter().filter(|(seqno, _)| *seqno <= at) {
        match event {
            Event::Range => break,
            Event::Message(kind, value) if gather.push(*kind, value) => {
                base = (*kind != Kind::Delete).then(|| (*kind, value.clone()));
                break;
            }
            Event::Message(..) => {}
        }
    }
    let fold = |base: Option<&[u8]>| {
        let missing = || Error::OperatorMissing { keyspace: "k".into(), operator: "o".into() };
        gather.fold(KEY, base, Some(operator), missing).unwrap()
    };
    match base {
        Some((Kind::BlobPut, value)) if gather.is_empty() => Seen::Large(value, None),
        Some((Kind::BlobPut, value)) => Seen::Large(value, fold(Some(b"12345678"))),
        base if gather.is_empty() => base.map(|(_, value)| value).into(),
        base => fold(base.as_ref().map(|(_, value)| &value[..])).into(),
    }
}

/// Folds a history as a compaction would.
fn compact(history: &History, stripes: &Stripes, bottom: bool, operator: Option<&Operator>) -> History {
    compact_in_parts(history, stripes, bottom, operator, usize::MAX)
}

/// Folds a history as a compaction would, and folds the messages collected so far after each `part` messages.
fn compact_in_parts(
    history: &History,
    stripes: &Stripes,
    bottom: bool,
    operator: Option<&Operator>,
    part: usize,
) -> History {
    let messages: Vec<Entry<'_>> = history
        .iter()
        .filter_map(|(seqno, event)| match event {
            Event::Message(kind, value) => Some(Entry { key: KEY, seqno: *seqno, kind: *kind, value }),
            Event::Range => None,
        })
        .collect();
    let tombs: Vec<Seqno> =
        history.iter().filter(|(_, event)| matches!(event, Event::Range)).map(|&(seqno, _)| seqno).collect();
    let (mut out, mut collected) = (FoldOutput::default(), EntryBlock::new());
    for (i, entry) in messages.iter().enumerate() {
        collected.push(*entry);
        if (i + 1) % part == 0 {
            let group: Vec<Entry<'_>> = collected.iter().collect();
            fold_newest(&group, &tombs, stripes, operator, &mut out);
            let mut rest = EntryBlock::new();
            out.entries(&group).for_each(|entry| rest.push(entry));
            collected = rest;
        }
    }
    let group: Vec<Entry<'_>> = collected.iter().collect();
    fold_key(&group, &tombs, stripes, bottom, operator, &mut out);
    let kept: Vec<Entry<'_>> = out.entries(&group).collect();
    // Each large value is either kept or reported.
    let blobs = |entries: &[Entry<'_>]| entries.iter().filter(|e| e.kind == Kind::BlobPut).count();
    assert_eq!(blobs(&messages), blobs(&kept) + out.dropped_blobs.len());
    let ranges: Vec<RangeTombstone> =
        tombs.iter().map(|&seqno| RangeTombstone { range: KeyRange::all(), seqno }).collect();
    let mut result: History =
        kept.iter().map(|entry| (entry.seqno, Event::Message(entry.kind, entry.value.to_vec()))).collect();
    result.extend(prune_tombstones(&ranges, stripes, bottom).into_iter().map(|tomb| (tomb.seqno, Event::Range)));
    result.sort_by_key(|(seqno, _)| std::cmp::Reverse(*seqno));
    assert!(result.windows(2).all(|w| w[0].0 > w[1].0));
    result
}

/// An operator that does not combine operands.
struct NoPartial(Arc<dyn MergeOperator>);

impl MergeOperator for NoPartial {
    fn name(&self) -> &str {
        "no_partial"
    }
    fn validate(&self, operand: &[u8]) -> Result<(), String> {
        self.0.validate(operand)
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.0.full_merge(key, base, operands)
    }
}

/// Appends operands to the value. An operand whose first byte is a multiple of 3 removes the value.
struct Vanish;

impl MergeOperator for Vanish {
    fn name(&self) -> &str {
        "vanish"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        operands.iter().fold(base.map(<[u8]>::to_vec), |value, operand| {
            let value = value.unwrap_or_default();
            (operand[0] % 3 != 0).then(|| [&value[..], operand].concat())
        })
    }
}

/// Panics in every call.
struct Fails;

impl MergeOperator for Fails {
    fn name(&self) -> &str {
        "fails"
    }
    fn validate(&self, _operand: &[u8]) -> Result<(), String> {
        panic!("no operand is good enough")
    }
    fn full_merge(&self, _key: &[u8], _base: Option<&[u8]>, _operands: &[&[u8]]) -> Option<Vec<u8>> {
        std::panic::resume_unwind(Box::new("never folds".to_owned()))
    }
    fn partial_merge(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Vec<u8>> {
        std::panic::resume_unwind(Box::new("never combines"))
    }
}

fn operators() -> Vec<Operator> {
    let mut all: Vec<Operator> = BUILTIN_NAMES.iter().map(|name| Operator::new(builtin(name).unwrap())).collect();
    all.push(Operator::new(Arc::new(NoPartial(Arc::new(Append)))));
    all.push(Operator::new(Arc::new(Vanish)));
    all
}

/// The snapshots, and read points at and above the horizon.
fn points(stripes: &Stripes) -> Vec<Seqno> {
    let later = [0, 1, 2, 3, 5, 9, 200].map(|d| Seqno(stripes.horizon.0.saturating_add(d)));
    stripes.snapshots.iter().copied().chain(later).chain([Seqno::MAX]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn every_read_point_sees_the_same_after_one_fold_and_after_two(
        history in history(24),
        mut snapshots in prop::collection::vec(0u64..40, 0..4),
        horizon in prop_oneof![Just(u64::MAX >> 1), 0u64..40],
        cuts in (0usize..24, 0usize..24),
        released in 0usize..4,
        which in 0usize..9,
        working in 0u8..4,
    ) {
        snapshots.sort_unstable();
        snapshots.retain(|&snapshot| snapshot <= horizon);
        let stripes = Stripes { snapshots: snapshots.into_iter().map(Seqno).collect(), horizon: Seqno(horizon) };
        let operator = &operators()[which];
        let fails = Operator::new(Arc::new(Fails));
        // Each compaction uses the right operator, no operator, or an operator that fails.
        let folds = match working { 0 => None, 1 => Some(&fails), _ => Some(operator) };

        let whole = compact(&history, &stripes, true, folds);
        for &at in &points(&stripes) {
            prop_assert_eq!(read(&whole, at, operator), read(&history, at, operator), "{:?} {:?}", at, whole);
        }
        let again = compact(&whole, &stripes, true, folds);
        prop_assert!(again.len() <= whole.len());
        let in_parts = compact_in_parts(&history, &stripes, true, folds, 1 + cuts.0 % 8);
        for &at in &points(&stripes) {
            prop_assert_eq!(read(&in_parts, at, operator), read(&history, at, operator), "{:?} {:?}", at, in_parts);
        }

        // There are three containers. The newest is folded alone, and then together with the middle one. The oldest is
        // not folded and may be empty.
        let low = cuts.0.max(cuts.1).min(history.len());
        let high = cuts.0.min(cuts.1).min(low);
        let (upper, oldest) = history.split_at(low);
        let (newest, middle) = upper.split_at(high);
        let mut step = compact(&newest.to_vec(), &stripes, false, folds);
        step.extend_from_slice(middle);
        let mut later = stripes.clone();
        if released < later.snapshots.len() {
            later.snapshots.remove(released);
        }
        let mut step = compact(&step, &later, oldest.is_empty(), Some(operator));
        step.extend_from_slice(oldest);
        for &at in &points(&later) {
            prop_assert_eq!(read(&step, at, operator), read(&history, at, operator), "{:?} {:?}", at, step);
        }
        let last = compact(&step, &later, true, Some(operator));
        for &at in &points(&later) {
            prop_assert_eq!(read(&last, at, operator), read(&history, at, operator), "{:?} {:?}", at, last);
        }
    }

    #[test]
    fn partial_and_full_merges_agree(
        base in prop::option::of(prop::collection::vec(any::<u8>(), 0..10)),
        operands in prop::collection::vec(prop::collection::vec(any::<u8>(), 8), 2..8),
        at in 0usize..8,
    ) {
        for operator in operators() {
            let all: Vec<&[u8]> = operands.iter().map(|operand| &operand[..]).collect();
            all.iter().for_each(|operand| operator.validate(operand).unwrap());
            let value = operator.full(KEY, base.as_deref(), &all).unwrap();
            let at = 1 + at % (all.len() - 1);
            let first = operator.full(KEY, base.as_deref(), &all[..at]).unwrap();
            prop_assert_eq!(&operator.full(KEY, first.as_deref(), &all[at..]).unwrap(), &value);
            if let Some(pair) = operator.partial(KEY, all[at - 1], all[at]).unwrap() {
                let fewer = [&all[..at - 1], &[&pair[..]], &all[at + 1..]].concat();
                prop_assert_eq!(&operator.full(KEY, base.as_deref(), &fewer).unwrap(), &value);
            }
        }
    }
}

/// Parses a history, newest first. `12m` is a merge at seqno 12. The other letters are `p` for a put, `d` for a delete,
/// `b` for a put of a large value, and `r` for a range delete.
fn parse(text: &str) -> History {
    let event = |word: &str| {
        let seqno: u64 = word[..word.len() - 1].parse().unwrap();
        let number = (seqno as i64).to_le_bytes().to_vec();
        let event = match &word[word.len() - 1..] {
            "m" => Event::Message(Kind::Merge, number),
            "p" => Event::Message(Kind::Put, number),
            "d" => Event::Message(Kind::Delete, Vec::new()),
            "b" => Event::Message(Kind::BlobPut, blob(seqno)),
            "r" => Event::Range,
            other => panic!("{other}"),
        };
        (Seqno(seqno), event)
    };
    text.split_whitespace().map(event).collect()
}

fn show(history: &History) -> String {
    let letter = |event: &Event| match event {
        Event::Message(Kind::Merge, _) => 'm',
        Event::Message(Kind::Put, _) => 'p',
        Event::Message(Kind::Delete, _) => 'd',
        Event::Message(Kind::BlobPut, _) => 'b',
        Event::Message(Kind::RangeDelete, _) | Event::Range => 'r',
    };
    history.iter().map(|(seqno, event)| format!("{seqno}{}", letter(event))).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_fold_keeps_the_fewest_messages() {
    let add = Operator::new(builtin("add_i64").unwrap());
    let case = |history: &str, snapshots: &[u64], horizon: u64, bottom: bool| {
        let snapshots = snapshots.iter().copied().map(Seqno).collect();
        show(&compact(&parse(history), &Stripes { snapshots, horizon: Seqno(horizon) }, bottom, Some(&add)))
    };
    const NO_READERS: u64 = 1000;
    // Histories with one stripe.
    assert_eq!(case("9p 8m 7d 6p", &[], NO_READERS, false), "9p");
    assert_eq!(case("9m 8m 7p 6p", &[], NO_READERS, false), "9p");
    assert_eq!(case("9m 8m 7d 6p", &[], NO_READERS, false), "9p");
    assert_eq!(case("9m 8m 7m", &[], NO_READERS, false), "9m");
    assert_eq!(case("9m 8m 7m", &[], NO_READERS, true), "9p");
    assert_eq!(case("9m 8m 7b 6p", &[], NO_READERS, true), "9m 7b");
    assert_eq!(case("9d 8p", &[], NO_READERS, false), "9d");
    assert_eq!(case("9d 8p", &[], NO_READERS, true), "");
    // Range tombstones act as deletes.
    assert_eq!(case("9m 8r 7p", &[], NO_READERS, false), "9p 8r");
    assert_eq!(case("9m 8r 7p 6r", &[], NO_READERS, true), "9p");
    assert_eq!(case("9r 8r 7b", &[], NO_READERS, false), "9r");
    assert_eq!(case("9r 8r 7b", &[8], NO_READERS, true), "9r");
    // Histories with several stripes.
    assert_eq!(case("9p 8p 7p 6p 5p", &[6, 8], NO_READERS, true), "9p 8p 6p");
    assert_eq!(case("9d 8d 7d 6d 5d", &[6, 8], NO_READERS, false), "9d 8d 6d");
    assert_eq!(case("9d 8d 7p 6d 5d", &[6, 7], NO_READERS, true), "9d 7p");
    assert_eq!(case("9m 8m 7m 6m 5r", &[6], NO_READERS, true), "9m 6p");
    // Above the horizon, a reader may read between any two seqnos.
    assert_eq!(case("9p 8p 7p 6p 5p", &[], 6, true), "9p 8p 7p 6p");
    assert_eq!(case("9r 8p 7p 6p 5r", &[], 6, true), "9r 8p 7p 6p");
}

#[test]
fn stripes_are_bounded_by_snapshots_and_open_above_the_horizon() {
    let stripes = Stripes { snapshots: vec![Seqno(5), Seqno(10)], horizon: Seqno(16) };
    let of = |seqno: u64| stripes.stripe_of(Seqno(seqno));
    assert_eq!([1, 5, 6, 10, 11, 16, 17, 18].map(of), [0, 0, 1, 1, 2, 2, 3, 4]);
}

#[test]
fn an_operator_that_fails_is_contained_and_loses_nothing() {
    let fails = Operator::new(Arc::new(Fails));
    let error = fails.full(KEY, None, &[b"x"]).unwrap_err();
    assert!(matches!(&error, Error::OperatorFailed { detail, .. } if detail.contains("never folds")), "{error}");
    assert!(fails.partial(KEY, b"a", b"b").is_err());
    let stripes = Stripes { snapshots: Vec::new(), horizon: Seqno::MAX };
    for history in ["9m 8m 7p", "9m 8m 7b", "9m 8m 7d", "9m 8m"] {
        let kept = show(&compact(&parse(history), &stripes, false, Some(&fails)));
        assert_eq!(kept, history);
        assert_eq!(show(&compact(&parse(history), &stripes, false, None)), history);
    }
    // At the bottom, a delete that is older than the merges is dropped, because applying merges to a delete and to no
    // value gives the same result.
    assert_eq!(show(&compact(&parse("9m 8m 7d"), &stripes, true, Some(&fails))), "9m 8m");
}

#[test]
fn oversized_operands_and_results_are_refused_or_truncated() {
    struct Huge;
    impl MergeOperator for Huge {
        fn name(&self) -> &str {
            "huge"
        }
        fn validate(&self, _operand: &[u8]) -> Result<(), String> {
            Err("never".into())
        }
        fn full_merge(&self, _key: &[u8], _base: Option<&[u8]>, _operands: &[&[u8]]) -> Option<Vec<u8>> {
            Some(vec![0; MAX_VALUE + 1])
        }
        fn partial_merge(&self, _key: &[u8], _older: &[u8], _newer: &[u8]) -> Option<Vec<u8>> {
            Some(vec![0; MAX_OPERAND + 1])
        }
    }
    let huge = Operator::new(Arc::new(Huge));
    assert!(matches!(huge.full(KEY, None, &[b"x"]), Err(Error::OperatorFailed { .. })));
    assert_eq!(huge.partial(KEY, b"x", b"y").unwrap(), None);
    assert!(huge.validate(b"x").unwrap_err().to_string().contains("never"));

    let append = Operator::new(builtin("append").unwrap());
    let half = vec![7; MAX_OPERAND / 2 + 1];
    assert_eq!(append.partial(KEY, &half, &half).unwrap(), None);
    let long = vec![1; MAX_VALUE - 3];
    let value = append.full(KEY, Some(&long), &[b"abcd", b"e"]).unwrap().unwrap();
    assert_eq!((value.len(), &value[MAX_VALUE - 3..]), (MAX_VALUE, &b"abc"[..]));
    assert!(append.validate(&vec![0; MAX_OPERAND + 1]).is_err());
    assert!(Operator::new(builtin("add_u64").unwrap()).validate(b"1234567").is_err());
    assert!(builtin("nothing").is_none());
}

#[test]
fn the_built_in_operators_do_what_their_names_say() {
    let full = |name: &str, base: Option<&[u8]>, operands: &[&[u8]]| {
        let operator = Operator::new(builtin(name).unwrap());
        assert_eq!((operator.name(), operator.inner().version()), (name, 1));
        operator.full(KEY, base, operands).unwrap().unwrap()
    };
    let number = |n: i64| n.to_le_bytes();
    assert_eq!(full("add_i64", Some(&number(5)), &[&number(-7), &number(1)]), number(-1));
    assert_eq!(full("add_u64", Some(&[0xff; 8]), &[&number(2)]), number(1), "wraps");
    assert_eq!(full("add_i64", Some(&number(i64::MAX)), &[&number(1)]), number(i64::MIN), "wraps");
    assert_eq!(full("add_u64", Some(b"three"), &[&number(2)]), number(2), "not a number: 0");
    assert_eq!(full("min", Some(b"b"), &[b"ab", b"c"]), b"ab");
    assert_eq!(full("max", Some(b"b"), &[b"bb", b"a"]), b"bb");
    assert_eq!(full("append", None, &[b"a", b"bc"]), b"abc");
    assert_eq!(full("bit_or", Some(&[1, 2]), &[&[4], &[0, 0, 8]]), [5, 2, 8]);
    assert_eq!(full("put_if_absent", None, &[b"first", b"second"]), b"first");
    assert_eq!(full("put_if_absent", Some(b"old"), &[b"new"]), b"old");
}

#[test]
fn operands_without_an_operator_are_an_error() {
    let mut gather = Gather::new();
    assert!(gather.push(Kind::Delete, b"") && gather.is_empty());
    assert!(!gather.push(Kind::Merge, b"x") && !gather.is_empty());
    let missing = || Error::OperatorMissing { keyspace: "events".into(), operator: "mine v2".into() };
    assert!(matches!(gather.fold(KEY, None, None, missing), Err(Error::OperatorMissing { .. })));
}

#[test]
fn pruning_keeps_the_newest_range_tombstone_for_each_key_and_stripe() {
    let tomb =
        |from: &str, to: &str, seqno: u64| RangeTombstone { range: KeyRange::new(from, to), seqno: Seqno(seqno) };
    let tombs = [tomb("a", "m", 1), tomb("c", "e", 4), tomb("b", "d", 9), tomb("x", "", 12)];
    let stripes = Stripes { snapshots: vec![Seqno(5)], horizon: Seqno(11) };
    let kept = prune_tombstones(&tombs, &stripes, false);
    let old = [tomb("a", "c", 1), tomb("c", "e", 4), tomb("e", "m", 1)];
    assert_eq!(kept, [&[tomb("x", "", 12), tomb("b", "d", 9)], &old[..]].concat());
    assert_eq!(prune_tombstones(&tombs, &stripes, true), kept[..2]);
}
